//! The record of a folder of clips: which videos were cut, by which rules and where. A later call continues with it.

use super::plan::CutRules;
use crate::Stamp;
use camino::{Utf8Component, Utf8Path, Utf8PathBuf};
use rundir::{Error, ErrorCode, Failure, LineAppender, open_regular};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::io::{BufRead, BufReader};

/// The name of the record in the folder of the clips.
const JOURNAL: &str = ".cuts.jsonl";
/// The name of the table of the clips.
pub(super) const TABLE: &str = "cuts.csv";

/// A video and its clips. The line is written before the first clip.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct CutVideo {
    pub source: Utf8PathBuf,
    #[serde(flatten)]
    pub stamp: Stamp,
    pub rules: CutRules,
    pub clips: Vec<CutClip>,
    /// Scenes that are shorter than the limit.
    pub too_short: usize,
}

/// A clip of a video.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct CutClip {
    /// Below the folder of the clips.
    pub path: Utf8PathBuf,
    pub first_frame: usize,
    pub num_frames: usize,
    pub start_s: f64,
    pub end_s: f64,
    pub score: f64,
}

/// The record of a folder.
pub(super) struct Journal {
    folder: Utf8PathBuf,
    pub videos: BTreeMap<Utf8PathBuf, CutVideo>,
    file: LineAppender,
}

impl Journal {
    /// Opens the record of a folder, and creates it if there is none.
    ///
    /// # Errors
    /// The record cannot be read or written, or the table has rows that the record does not have.
    pub fn open(folder: &Utf8Path) -> Result<Self, Failure> {
        let path = folder.join(JOURNAL);
        let mut videos = BTreeMap::new();
        match open_regular(&path) {
            Ok(file) => {
                for line in BufReader::new(file).split(b'\n') {
                    let line = line.map_err(|error| Error::io("read", &path, error))?;
                    // A call that was killed may have left a part of a line, whose video has no clips yet.
                    let is_valid = |clip: &CutClip| {
                        clip.path.components().all(|part| matches!(part, Utf8Component::Normal(_)))
                            && clip.first_frame.checked_add(clip.num_frames).is_some()
                    };
                    if let Ok(video) = serde_json::from_slice::<CutVideo>(&line)
                        && video.clips.iter().all(is_valid)
                    {
                        videos.insert(video.source.clone(), video);
                    }
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::io("read", &path, error).into()),
        }
        let file = LineAppender::open(&path).map_err(|error| Error::io("write", &path, error))?;
        let journal = Self { folder: folder.to_owned(), videos, file };
        journal.refuse_edited_table()?;
        Ok(journal)
    }

    /// Records a video before its clips are written.
    pub fn add(&mut self, video: CutVideo) -> Result<(), Failure> {
        self.file.append(&video).map_err(|error| Error::io("write", self.file.path(), error))?;
        self.videos.insert(video.source.clone(), video);
        Ok(())
    }

    /// Checks that the table of an earlier call is as that call wrote it, because it is written again.
    fn refuse_edited_table(&self) -> Result<(), Failure> {
        let path = self.folder.join(TABLE);
        if path.symlink_metadata().is_err() {
            return Ok(());
        }
        let text = rundir::read_text(&path)?;
        let rows = self.rows(|_| true);
        let known: HashSet<&str> = rows.lines().collect();
        if text.lines().all(|line| known.contains(line)) {
            return Ok(());
        }
        Err(Failure::new(
            ErrorCode::AlreadyExists,
            format!("cannot write {path}"),
            "the file exists, and it has lines that no earlier call of `vidtui data cut` wrote",
            format!(
                "rename it, for example to metadata.csv, or choose another folder: mv {path} {}",
                self.folder.join("metadata.csv")
            ),
        ))
    }

    /// Writes the table of the clips that exist.
    pub fn write_table(&self) -> Result<Utf8PathBuf, Failure> {
        let path = self.folder.join(TABLE);
        let rows = self.rows(|clip| self.folder.join(&clip.path).exists());
        rundir::write_atomic(&path, rows.as_bytes())?;
        Ok(path)
    }

    fn rows(&self, has: impl Fn(&CutClip) -> bool) -> String {
        let mut table = csv::Writer::from_writer(Vec::new());
        let mut write =
            |row: &[&str]| table.write_record(row).expect("memory can be written, and all rows have the same length");
        write(&["path", "source", "start_s", "end_s", "score", "num_frames"]);
        for video in self.videos.values() {
            for clip in video.clips.iter().filter(|clip| has(clip)) {
                let [start, end] = [clip.start_s, clip.end_s].map(|seconds| format!("{seconds:.6}"));
                let (score, frames) = (format!("{:.3}", clip.score), clip.num_frames.to_string());
                write(&[clip.path.as_str(), video.source.as_str(), &start, &end, &score, &frames]);
            }
        }
        let bytes = table.into_inner().expect("memory can be written");
        String::from_utf8(bytes).expect("all values are UTF-8")
    }
}
