//! Recordings of a console session: every message in order, one JSON object per line, for `vidtui replay`.
//!
//! Only the version of vidtui that made a recording can replay it. The first line contains the version.

use crate::appearance;
use crate::command_error::CommandError;
use crate::settings::Settings;
use camino::{Utf8Path, Utf8PathBuf};
use rundir::{ErrorCode, Failure, RunId};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::time::Instant;
use ui::draft::LaunchDraft;
use ui::{KeyMap, Msg, Session, Setup, Size};

/// The first line: the version and the setup of the session.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Header {
    vidtui: String,
    /// Terminal size at the start.
    pub size: Size,
    /// Unix seconds at the start.
    pub now: f64,
    /// The runs folder.
    pub runs_dir: Utf8PathBuf,
    /// The folder for exported charts.
    pub export_dir: Utf8PathBuf,
    /// The source of the nodes when no run is selected, as text.
    pub nodes_from: String,
    /// The launch form that the command-line options of the console describe.
    #[serde(default)]
    pub launch: LaunchDraft,
    /// The run that the console opened with.
    pub open: Option<RunId>,
    /// The key bindings of the user who recorded the session.
    #[serde(default)]
    pub keys: KeyMap,
    /// The screen that the console opened with, if no run was named.
    #[serde(default)]
    pub session: Option<Session>,
}

impl Header {
    /// Returns the recorded setup with the size and the colours of this terminal.
    pub fn setup(&self, size: Size) -> Setup {
        // Colours and symbols of this user do not change the session.
        let settings = Settings::of_user().unwrap_or_default();
        Setup {
            size,
            now: self.now,
            theme: appearance::theme(&settings),
            symbols: appearance::symbols(&settings),
            keys: self.keys.clone(),
            runs_dir: self.runs_dir.clone(),
            export_dir: self.export_dir.clone(),
            nodes_from: self.nodes_from.clone(),
            launch: self.launch.clone(),
            has_desktop: false,
            open: self.open.clone(),
            session: self.session.clone(),
            problem: None,
        }
    }
}

/// One line: a message and its time.
#[derive(Debug, Serialize, Deserialize)]
pub struct RecordedMsg {
    /// Seconds since the start.
    pub at_s: f64,
    /// The message.
    pub msg: Msg,
}

/// Writes a recording while the console runs.
pub struct Recorder {
    path: Utf8PathBuf,
    file: File,
    started: Instant,
}

impl Recorder {
    /// Starts a recording in a new file.
    pub fn create(path: &Utf8Path, setup: &Setup) -> Result<Self, CommandError> {
        let file = File::create_new(path).map_err(|error| {
            let what = format!("cannot record to {path}");
            CommandError::request(Failure::new(
                ErrorCode::of_io(&error),
                what,
                error.to_string(),
                "name a new file in a folder that you can write to",
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
            launch: setup.launch.clone(),
            open: setup.open.clone(),
            keys: setup.keys.clone(),
            session: setup.session.clone(),
        })?;
        Ok(recorder)
    }

    /// Appends a message.
    pub fn push(&mut self, msg: &Msg) -> Result<(), CommandError> {
        #[derive(Serialize)]
        struct Borrowed<'a> {
            at_s: f64,
            msg: &'a Msg,
        }
        let at_s = (self.started.elapsed().as_secs_f64() * 1e3).round() / 1e3;
        self.write(&Borrowed { at_s, msg })
    }

    fn write(&mut self, line: &impl Serialize) -> Result<(), CommandError> {
        let failed = |path: &Utf8Path, code, error: String| {
            Failure::new(
                code,
                format!("cannot record to {path}"),
                error,
                "free some space, or open the console without --record",
            )
        };
        let mut bytes =
            serde_json::to_vec(line).map_err(|error| failed(&self.path, ErrorCode::Internal, error.to_string()))?;
        bytes.push(b'\n');
        self.file.write_all(&bytes).map_err(|error| failed(&self.path, ErrorCode::of_io(&error), error.to_string()))?;
        Ok(())
    }
}

/// Opens a recording: its header, and an iterator over its messages.
pub fn open(
    path: &Utf8Path,
) -> Result<(Header, impl Iterator<Item = Result<RecordedMsg, CommandError>> + use<>), CommandError> {
    let unreadable = |code, why: String| {
        Failure::new(code, format!("cannot replay {path}"), why, "record a session with `vidtui --record FILE`")
    };
    let file = File::open(path)
        .map_err(|error| CommandError::request(unreadable(ErrorCode::of_io(&error), error.to_string())))?;
    let mut lines = BufReader::new(file).lines();
    let first = lines
        .next()
        .transpose()
        .map_err(|error| unreadable(ErrorCode::of_io(&error), error.to_string()))?
        .unwrap_or_default();
    let header: Header = serde_json::from_str(&first).map_err(|_| {
        CommandError::request(unreadable(ErrorCode::Malformed, "it is not a recording of vidtui".into()))
    })?;
    let ours = env!("CARGO_PKG_VERSION");
    if header.vidtui != ours {
        let why = format!("it was recorded by vidtui {}, and this is vidtui {ours}", header.vidtui);
        let fix = format!("replay it with vidtui {}", header.vidtui);
        return Err(CommandError::request(Failure::new(
            ErrorCode::Malformed,
            format!("cannot replay {path}"),
            why,
            fix,
        )));
    }
    let path = path.to_owned();
    let moments = lines.enumerate().map(move |(i, line)| {
        let bad = |code, why: String| {
            let fix = "remove this line and all lines after it, then replay the rest";
            Failure::new(code, format!("cannot replay line {} of {path}", i + 2), why, fix)
        };
        let line = line.map_err(|error| bad(ErrorCode::of_io(&error), error.to_string()))?;
        Ok(serde_json::from_str(&line).map_err(|error| bad(ErrorCode::Malformed, error.to_string()))?)
    });
    Ok((header, moments))
}
