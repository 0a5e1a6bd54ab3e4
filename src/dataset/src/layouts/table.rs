//! The common part of all tables: chooses the columns of the video and the caption, and makes the rows.

use super::paths::{Located, locate};
use super::text::clean;
use super::{Caption, CaptionFault, ClipRow, SourceRequest, Stated, invalid};
use crate::ExclusionReason;
use camino::Utf8Path;
use rundir::Failure;

/// The known names of the video column, in order of preference.
const VIDEO_COLUMNS: [&str; 13] = [
    "video",
    "path",
    "file_name",
    "file_path",
    "video_path",
    "mp4",
    "filename",
    "file",
    "video_file",
    "vid",
    "media_path",
    "videos",
    "clip",
];
/// The known names of the caption column, in order of preference.
const CAPTION_COLUMNS: [&str; 6] = ["caption", "text", "prompt", "captions", "prompts", "description"];
/// The names of columns with the captions of the segments of a video, in place of one caption.
const SEGMENT_COLUMNS: [&str; 2] = ["segments", "segment_captions"];
/// The column of VideoX-Fun that distinguishes `video` from `image`.
const KIND_COLUMN: &str = "type";

/// A value of a table.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Cell {
    /// An empty cell.
    Null,
    /// Text.
    Text(String),
    /// Text that is not UTF-8; replacement characters stand for its invalid bytes.
    NotUtf8(String),
    /// Several texts.
    Texts(Vec<String>),
    /// A number.
    Number(f64),
}

impl Cell {
    /// Makes a cell from the bytes of a text.
    pub(super) fn of_bytes(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => Self::NotUtf8(String::from_utf8_lossy(bytes).into_owned()),
        }
    }

    fn captions(self) -> Vec<Caption> {
        match self {
            Self::Null => vec![Err(CaptionFault::Missing)],
            Self::NotUtf8(_) => vec![Err(CaptionFault::NotUtf8)],
            Self::Text(text) => vec![clean(&text)],
            Self::Number(number) => vec![clean(&number.to_string())],
            Self::Texts(texts) if texts.is_empty() => vec![Err(CaptionFault::Missing)],
            Self::Texts(texts) => texts.iter().map(|text| clean(text)).collect(),
        }
    }

    fn into_text(self) -> String {
        match self {
            Self::Text(text) | Self::NotUtf8(text) => text,
            Self::Number(number) => number.to_string(),
            Self::Texts(texts) => texts.into_iter().next().unwrap_or_default(),
            Self::Null => String::new(),
        }
    }

    fn as_count(&self) -> usize {
        match self {
            Self::Number(number) if *number >= 0.0 => *number as usize,
            Self::Text(text) => text.trim().parse::<f64>().map_or(0, |number| number.max(0.0) as usize),
            _ => 0,
        }
    }
}

/// The columns that are read from a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Columns {
    /// The column with the path of the video.
    pub video: String,
    /// The column with the caption.
    pub caption: String,
}

impl Columns {
    /// Chooses the columns of the video and the caption: those of the request, or the first known names among the titles.
    pub(super) fn choose(path: &Utf8Path, names: &[String], request: &SourceRequest) -> Result<Self, Failure> {
        let choose = |given: &Option<String>, known: &[&str], what: &str, flag: &str| match given {
            Some(given) if names.contains(given) => Ok(given.clone()),
            Some(given) => Err(no_column(path, names, &format!("no column '{given}'"), flag, given)),
            None => {
                let found = known.iter().find_map(|known| names.iter().find(|name| name.eq_ignore_ascii_case(known)));
                found.cloned().ok_or_else(|| {
                    no_column(
                        path,
                        names,
                        &format!("no column for {what}: looked for {}", known.join(", ")),
                        flag,
                        known[0],
                    )
                })
            }
        };
        Ok(Self {
            video: choose(&request.video_column, &VIDEO_COLUMNS, "videos", "--video-column")?,
            caption: choose(
                &request.caption_column,
                &[&SEGMENT_COLUMNS[..], &CAPTION_COLUMNS].concat(),
                "captions",
                "--caption-column",
            )?,
        })
    }
}

fn no_column(path: &Utf8Path, names: &[String], why: &str, flag: &str, wanted: &str) -> Failure {
    let near = names.iter().max_by(|a, b| strsim::jaro_winkler(a, wanted).total_cmp(&strsim::jaro_winkler(b, wanted)));
    let near = near.filter(|near| strsim::jaro_winkler(near, wanted) > 0.75);
    let guess =
        near.map_or_else(|| format!("name the column: {flag} COLUMN"), |near| format!("did you mean {flag} {near}?"));
    let columns = if names.is_empty() { "none".into() } else { names.join(", ") };
    invalid(format!("cannot read {path}"), format!("it has {why}; its columns are: {columns}"), guess)
}

/// The values of a row by column name.
pub(super) trait Values {
    /// Takes the value of a column out of the row; [`Cell::Null`] if there is none.
    fn take(&mut self, column: &str) -> Cell;
}

/// Makes the rows of a video, one per caption.
pub(super) fn rows(root: &Utf8Path, columns: &Columns, origin: &str, values: &mut dyn Values) -> Vec<ClipRow> {
    let Located { name, path, mut excluded } = locate(root, &values.take(&columns.video).into_text());
    let kind = values.take(KIND_COLUMN).into_text();
    if kind.eq_ignore_ascii_case("image") && !video::is_picture(&path) {
        let what = "the table marks it as an image, and its name does not end in png, jpg, jpeg or webp".into();
        excluded = Some(ExclusionReason::NotAVideo { what });
    }
    let mut count = |column| values.take(column).as_count();
    let stated = Stated { frames: count("num_frames"), height: count("height"), width: count("width") };
    let captions = values.take(&columns.caption).captions();
    let is_segments = SEGMENT_COLUMNS.iter().any(|known| columns.caption.eq_ignore_ascii_case(known));
    let (captions, segments) = if is_segments { of_segments(captions) } else { (captions, Vec::new()) };
    let row = |caption| ClipRow {
        name: name.clone(),
        path: path.clone(),
        caption,
        segments: segments.clone(),
        origin: origin.to_owned(),
        excluded: excluded.clone(),
        stated,
    };
    captions.into_iter().map(row).collect()
}

/// Joins the captions of the segments of one video. If one of them cannot be used, the video has no caption.
fn of_segments(captions: Vec<Caption>) -> (Vec<Caption>, Vec<String>) {
    match captions.into_iter().collect::<Result<Vec<_>, _>>() {
        Ok(segments) => (vec![Ok(segments.join("\n"))], segments),
        Err(fault) => (vec![Err(fault)], Vec::new()),
    }
}
