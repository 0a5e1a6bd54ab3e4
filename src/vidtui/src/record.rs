//! Recordings of a session: every message in its order, one JSON object per line, for `vidtui replay`.
//!
//! A recording is for the build that made it: no promise beyond that, which is why its first line says which.

use crate::appearance;
use crate::refusal::Refusal;
use camino::{Utf8Path, Utf8PathBuf};
use rundir::{Failure, RunId};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::time::Instant;
use ui::{Msg, Setup, Size};

/// The first line: what was recorded, and the surroundings of the session.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Header {
    vidtui: String,
    /// Terminal size at the start.
    pub size: Size,
    /// Unix seconds at the start.
    pub now: f64,
    /// The runs folder.
    pub runs_dir: Utf8PathBuf,
    /// The folder of exported charts.
    pub export_dir: Utf8PathBuf,
    /// Where the nodes came from that no run named.
    pub nodes_from: String,
    /// The run that the console was opened on.
    pub open: Option<RunId>,
}

impl Header {
    /// The surroundings of the recorded session, in a window of another size and a terminal of another kind.
    pub fn setup(&self, size: Size) -> Setup {
        Setup {
            size,
            now: self.now,
            theme: appearance::theme(),
            symbols: appearance::symbols(),
            runs_dir: self.runs_dir.clone(),
            export_dir: self.export_dir.clone(),
            nodes_from: self.nodes_from.clone(),
            open: self.open.clone(),
        }
    }
}

/// One line: what happened, and when.
#[derive(Debug, Serialize, Deserialize)]
pub struct RecordedMsg {
    /// Seconds since the start.
    pub at_s: f64,
    /// What happened.
    pub msg: Msg,
}

/// Writes a recording while the console runs.
pub struct Recorder {
    path: Utf8PathBuf,
    file: File,
    started: Instant,
}

impl Recorder {
    /// Begins a recording; an existing file is not overwritten.
    pub fn create(path: &Utf8Path, setup: &Setup) -> Result<Self, Refusal> {
        let file = File::create_new(path).map_err(|error| {
            let what = format!("cannot record to {path}");
            Refusal::request(Failure::new(
                rundir::ErrorCode::Unclassified,
                what,
                error.to_string(),
                "name a new file in a folder you may write to",
            ))
        })?;
        let mut recorder = Self { path: path.to_owned(), file, started: Instant::now() };
        recorder.write(&Header {
            vidtui: env!("CARGO_PKG_VERSION").into(),
            size: setup.size,
            now: setup.now,
            runs_dir: setup.runs_dir.clone(),
            export_dir: setup.export_dir.clone(),
            nodes_from: setup.nodes_from.clone(),
            open: setup.open.clone(),
        })?;
        Ok(recorder)
    }

    /// Adds a message.
    pub fn push(&mut self, msg: &Msg) -> Result<(), Refusal> {
        #[derive(Serialize)]
        struct Borrowed<'a> {
            at_s: f64,
            msg: &'a Msg,
        }
        let at_s = (self.started.elapsed().as_secs_f64() * 1e3).round() / 1e3;
        self.write(&Borrowed { at_s, msg })
    }

    fn write(&mut self, line: &impl Serialize) -> Result<(), Refusal> {
        let failed = |path: &Utf8Path, error: String| {
            Failure::new(
                rundir::ErrorCode::Unclassified,
                format!("cannot record to {path}"),
                error,
                "free some space, or open the console without --record",
            )
        };
        let mut bytes = serde_json::to_vec(line).map_err(|error| failed(&self.path, error.to_string()))?;
        bytes.push(b'\n');
        self.file.write_all(&bytes).map_err(|error| failed(&self.path, error.to_string()))?;
        Ok(())
    }
}

/// Opens a recording: its header, and its moments one by one.
pub fn open(path: &Utf8Path) -> Result<(Header, impl Iterator<Item = Result<RecordedMsg, Refusal>> + use<>), Refusal> {
    let unreadable = |why: String| {
        Failure::new(
            rundir::ErrorCode::Unclassified,
            format!("cannot replay {path}"),
            why,
            "record one with `vidtui --record FILE`",
        )
    };
    let file = File::open(path).map_err(|error| Refusal::request(unreadable(error.to_string())))?;
    let mut lines = BufReader::new(file).lines();
    let first = lines.next().transpose().map_err(|error| unreadable(error.to_string()))?.unwrap_or_default();
    let header: Header = serde_json::from_str(&first)
        .map_err(|_| Refusal::request(unreadable("it is not a recording of vidtui".into())))?;
    let ours = env!("CARGO_PKG_VERSION");
    if header.vidtui != ours {
        let why = format!("vidtui {} recorded it, and this is {ours}", header.vidtui);
        let fix = format!("use vidtui {}: recordings are for the build that made them", header.vidtui);
        return Err(Refusal::request(Failure::new(
            rundir::ErrorCode::Unclassified,
            format!("cannot replay {path}"),
            why,
            fix,
        )));
    }
    let path = path.to_owned();
    let moments = lines.enumerate().map(move |(i, line)| {
        let bad = |why: String| {
            let fix = "the rest cannot be replayed; was the disk full, or was it recorded by another build?";
            Failure::new(rundir::ErrorCode::Unclassified, format!("cannot replay line {} of {path}", i + 2), why, fix)
        };
        let line = line.map_err(|error| bad(error.to_string()))?;
        Ok(serde_json::from_str(&line).map_err(|error| bad(error.to_string()))?)
    });
    Ok((header, moments))
}
