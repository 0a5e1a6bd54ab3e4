//! Layouts of data sets: how a folder or table lists its videos and their captions.

mod csv;
mod detect;
mod fields;
mod frames;
mod json;
mod lists;
mod pairs;
mod parquet;
mod paths;
mod table;
#[cfg(test)]
mod tests;
mod text;

use crate::{CaptionTemplate, ExclusionReason, FieldValue, Filter};
use camino::Utf8PathBuf;
use rundir::{ErrorCode, Failure};
use serde::Serialize;
use text_file::NotText;

pub(crate) use detect::videos_below;
pub use detect::{Layout, read_source};
pub(crate) use fields::nothing_left;
pub use fields::{ConditionCount, MEASURED, NumberColumn, SourceFields};

/// The file name extensions of videos.
pub const VIDEO_ENDINGS: [&str; 16] =
    ["mp4", "mov", "mkv", "webm", "avi", "m4v", "mpg", "mpeg", "ts", "m2ts", "mts", "wmv", "flv", "3gp", "ogv", "gif"];

/// A source and the options for reading it.
#[derive(Debug, Clone, Default)]
pub struct SourceRequest {
    /// A folder, or a table.
    pub source: Utf8PathBuf,
    /// The layout. `None`: detected.
    pub layout: Option<Layout>,
    /// The column of a table that names the video. `None`: detected.
    pub video_column: Option<String>,
    /// The columns of a table that hold the captions. Each caption of a video is a clip. Empty: one column is detected.
    pub caption_columns: Vec<String>,
    /// The folder that relative paths of a table or list start at. `None`: the folder of the table or list.
    pub root: Option<Utf8PathBuf>,
    /// The conditions that clips must meet. `None`: all clips are read.
    pub filter: Option<Filter>,
    /// The template of captions. `None`: captions are as the source has them.
    pub template: Option<CaptionTemplate>,
    /// Rows keep the values of all columns, besides those of videos and captions.
    pub keep_all: bool,
}

/// The videos and captions that a source lists.
#[derive(Debug, Clone, PartialEq)]
pub struct SourceListing {
    /// The layout that was read.
    pub layout: Layout,
    /// Why this layout was chosen, as text for users.
    pub why: String,
    /// The absolute folder that relative paths start at.
    pub root: Utf8PathBuf,
    /// The rows, one per video and caption, in the order of the source.
    pub rows: Vec<ClipRow>,
    /// Notes for users: captions without a video, pictures that were skipped.
    pub notes: Vec<String>,
    /// The columns of a table besides the video and its caption.
    pub fields: SourceFields,
}

/// One video, or folder of frames, with one caption, as a layout lists it. The video has not been looked at.
#[derive(Debug, Clone, PartialEq)]
pub struct ClipRow {
    /// The path below the root, or the absolute path, as in the source.
    pub name: String,
    /// The absolute path.
    pub path: Utf8PathBuf,
    /// The caption; if each segment of the video has its own caption: all captions, one per line.
    pub caption: Caption,
    /// The captions of the segments of the video; empty if one caption describes the whole video.
    pub segments: Vec<String>,
    /// Where the caption was read, as text for users: `clips/a.txt`, `metadata.csv line 17`.
    pub origin: String,
    /// Why the row cannot be used, if the source already shows this.
    pub excluded: Option<ExclusionReason>,
    /// The properties of the video that a table states.
    pub stated: Stated,
    /// The values in the columns of [`SourceFields::kept`].
    pub kept: Vec<FieldValue>,
}

impl Default for ClipRow {
    fn default() -> Self {
        let caption = Err(CaptionFault::Missing);
        let (name, path, segments, origin, excluded, stated, kept) = Default::default();
        Self { name, path, caption, segments, origin, excluded, stated, kept }
    }
}

/// A caption, or the reason why it cannot be used.
pub type Caption = Result<String, CaptionFault>;

/// Why a caption cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaptionFault {
    /// The caption is missing.
    Missing,
    /// The caption is empty or white space.
    Empty,
    /// The caption is not UTF-8.
    NotUtf8(NotText),
    /// The file of the caption is a pipe, a device or a folder.
    NotAFile,
    /// The file of the caption may not be read, or is a link of another user to a private file.
    NotAllowed,
    /// The file of the caption is far too large for a caption.
    TooLarge,
}

impl From<CaptionFault> for ExclusionReason {
    fn from(fault: CaptionFault) -> Self {
        match fault {
            CaptionFault::Missing => Self::CaptionMissing,
            CaptionFault::Empty => Self::CaptionEmpty,
            CaptionFault::NotUtf8(not) => Self::CaptionNotUtf8 { why: not.to_string() },
            CaptionFault::NotAFile => Self::CaptionUnreadable { why: "it is not a regular file".into() },
            CaptionFault::NotAllowed => {
                let why = "it may not be read: see its permissions, or whether it is a link of another user to a private file";
                Self::CaptionUnreadable { why: why.into() }
            }
            CaptionFault::TooLarge => Self::CaptionUnreadable { why: "its file has more than 1 MiB".into() },
        }
    }
}

/// The size that a table states; zero where it states none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Stated {
    /// Frames.
    pub frames: usize,
    /// Pixels.
    pub height: usize,
    /// Pixels.
    pub width: usize,
}

/// Makes the error for a source that is not a valid data set.
fn invalid(what: impl Into<String>, why: impl Into<String>, fix: impl Into<String>) -> Failure {
    Failure::new(ErrorCode::InvalidDataset, what, why, fix)
}

/// Returns the name that is most like a name that does not exist, unless all are very different.
fn nearest<'a>(names: impl Iterator<Item = &'a str>, wanted: &str) -> Option<&'a str> {
    let likeness = |name: &str| strsim::jaro_winkler(name, wanted);
    names.max_by(|a, b| likeness(a).total_cmp(&likeness(b))).filter(|near| likeness(near) > 0.75)
}

/// Reads the bytes of a file of the user as UTF-8. Single captions may have bytes that are not.
fn read_utf8(path: &camino::Utf8Path) -> Result<Vec<u8>, Failure> {
    let bytes = text_file::read_named(path, table::MAX_BYTES).map_err(|error| unreadable(path, error))?;
    Ok(text_file::utf8(bytes).map_err(|not| rundir::Error::not_text(path, not))?)
}

/// Makes the error for a file that cannot be read.
fn unreadable(path: &camino::Utf8Path, error: std::io::Error) -> Failure {
    rundir::Error::io("read", path, error).into()
}
