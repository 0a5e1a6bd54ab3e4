//! The common part of all tables: chooses the columns of the video and the caption, and makes the rows.

use super::fields::{Fields, SourceFields};
use super::paths::{Located, locate};
use super::text::clean;
use super::{Caption, CaptionFault, ClipRow, SourceRequest, Stated, invalid, nearest};
use crate::{ExclusionReason, FieldValue};
use camino::Utf8Path;
use rundir::Failure;
use text_file::NotText;
use tokenizer::{SCENE_END, SCENE_START};

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
/// The columns of ttt-video-dit that mark the captions at which a scene begins and ends, with the tokens that such captions get.
const SCENE_COLUMNS: [&str; 2] = ["scene_start", "scene_end"];
/// The columns with the size of the video: frames, height and width.
const STATED_COLUMNS: [&str; 3] = ["num_frames", "height", "width"];
/// The column of VideoX-Fun that distinguishes `video` from `image`.
const KIND_COLUMN: &str = "type";

/// The largest table or list that is read at once, and the largest size of the texts in its rows: 4 GiB.
pub(super) const MAX_BYTES: u64 = 4 << 30;
/// The maximum number of rows. Each takes a few hundred bytes of memory, and a compressed table of few bytes may have any number of rows.
pub(super) const MAX_ROWS: u64 = 10_000_000;

/// A value of a table.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Cell {
    /// An empty cell.
    Null,
    /// Text.
    Text(String),
    /// Text that is not UTF-8.
    NotUtf8 {
        /// The text, with replacement characters in place of its invalid bytes.
        shown: String,
        /// The first fault.
        why: NotText,
    },
    /// Several texts.
    Texts(Vec<String>),
    /// A number.
    Number(f64),
}

impl Cell {
    /// Makes a cell from the bytes of a text.
    pub(super) fn of_bytes(bytes: &[u8]) -> Self {
        match text_file::decode(bytes.to_vec()) {
            Ok(text) => Self::Text(text),
            Err(why) => Self::NotUtf8 { shown: String::from_utf8_lossy(bytes).into_owned(), why },
        }
    }

    fn captions(self) -> Vec<Caption> {
        match self {
            Self::Null => vec![Err(CaptionFault::Missing)],
            Self::NotUtf8 { why, .. } => vec![Err(CaptionFault::NotUtf8(why))],
            Self::Text(text) => vec![clean(&text)],
            Self::Number(number) => vec![clean(&number.to_string())],
            Self::Texts(texts) if texts.is_empty() => vec![Err(CaptionFault::Missing)],
            Self::Texts(texts) => texts.iter().map(|text| clean(text)).collect(),
        }
    }

    fn into_text(self) -> String {
        match self {
            Self::Text(text) | Self::NotUtf8 { shown: text, .. } => text,
            Self::Number(number) => number.to_string(),
            Self::Texts(texts) => texts.into_iter().next().unwrap_or_default(),
            Self::Null => String::new(),
        }
    }

    /// Reads `true`, `false`, or a list of them, one for each caption. Other values are an error.
    fn flags(&self) -> Result<Vec<bool>, String> {
        let text = match self {
            Self::Null => return Ok(Vec::new()),
            Self::Text(text) | Self::NotUtf8 { shown: text, .. } => text.clone(),
            Self::Texts(texts) => texts.join(","),
            Self::Number(number) => number.to_string(),
        };
        let list = text.trim().trim_start_matches('[').trim_end_matches(']');
        let flag = |text: &str| match text.trim().to_ascii_lowercase().as_str() {
            "true" | "1" => Ok(true),
            "false" | "0" => Ok(false),
            other => Err(format!("'{other}' is neither true nor false")),
        };
        list.split(',').filter(|text| !text.trim().is_empty()).map(flag).collect()
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
    /// The columns with captions.
    pub captions: Vec<String>,
}

impl Columns {
    /// Chooses the columns of the video and the caption: those of the request, or the first known names among the titles.
    pub(super) fn choose(path: &Utf8Path, names: &[String], request: &SourceRequest) -> Result<Self, Failure> {
        let given = |given: &String, flag: &str| match names.contains(given) {
            true => Ok(given.clone()),
            false => Err(no_column(path, names, &format!("no column '{given}'"), flag, given)),
        };
        let detect = |known: &[&str], what: &str, flag: &str| {
            let found = known.iter().find_map(|known| names.iter().find(|name| name.eq_ignore_ascii_case(known)));
            found.cloned().ok_or_else(|| {
                let why = format!("no column for {what}: looked for {}", known.join(", "));
                no_column(path, names, &why, flag, known[0])
            })
        };
        let video = match &request.video_column {
            Some(column) => given(column, "--video-column")?,
            None => detect(&VIDEO_COLUMNS, "videos", "--video-column")?,
        };
        let captions = match request.caption_columns.as_slice() {
            [] => vec![detect(&[&SEGMENT_COLUMNS[..], &CAPTION_COLUMNS].concat(), "captions", "--caption-column")?],
            columns => columns.iter().map(|column| given(column, "--caption-column")).collect::<Result<_, _>>()?,
        };
        Ok(Self { video, captions })
    }
}

fn no_column(path: &Utf8Path, names: &[String], why: &str, flag: &str, wanted: &str) -> Failure {
    let near = nearest(names.iter().map(String::as_str), wanted);
    let guess =
        near.map_or_else(|| format!("name the column: {flag} COLUMN"), |near| format!("did you mean {flag} {near}?"));
    let columns = if names.is_empty() { "none".into() } else { names.join(", ") };
    invalid(format!("cannot read {path}"), format!("it has {why}; its columns are: {columns}"), guess)
}

impl Columns {
    /// Returns the names of all columns that [`rows`] reads.
    fn all(&self) -> impl Iterator<Item = &str> {
        self.read_otherwise().chain(STATED_COLUMNS)
    }

    /// Returns the names of the columns whose values become the path and the caption.
    fn read_otherwise(&self) -> impl Iterator<Item = &str> {
        let named = std::iter::once(&self.video).chain(&self.captions).map(String::as_str);
        named.chain([KIND_COLUMN]).chain(SCENE_COLUMNS)
    }
}

/// The rows of a table or a list, up to the limits on their number and size.
pub(super) struct Rows<'a> {
    path: &'a Utf8Path,
    all: Vec<ClipRow>,
    bytes: u64,
}

impl<'a> Rows<'a> {
    /// Begins the rows of a table. `path` names it in errors.
    pub(super) fn of(path: &'a Utf8Path) -> Self {
        Self { path, all: Vec::new(), bytes: 0 }
    }

    /// Appends rows.
    ///
    /// # Errors
    /// There are more than [`MAX_ROWS`], or their texts have more than [`MAX_BYTES`].
    pub(super) fn add(&mut self, rows: impl IntoIterator<Item = ClipRow>) -> Result<(), Failure> {
        for row in rows {
            let caption = row.caption.as_ref().map_or(0, String::len);
            let texts = [row.name.len(), row.path.as_str().len(), caption, row.origin.len()];
            let segments = row.segments.iter().map(String::len);
            let kept: usize = row.kept.iter().map(kept_bytes).sum();
            self.bytes += (texts.into_iter().chain(segments).sum::<usize>() + kept) as u64;
            self.all.push(row);
            self.check(self.all.len() as u64, self.bytes)?;
        }
        Ok(())
    }

    /// Checks the numbers of a table that states them.
    pub(super) fn check(&self, rows: u64, bytes: u64) -> Result<(), Failure> {
        let limit = match () {
            () if rows > MAX_ROWS => format!("it has more than {} rows", units::grouped(MAX_ROWS)),
            () if bytes > MAX_BYTES => format!("the texts of its rows have more than {}", units::size(MAX_BYTES)),
            () => return Ok(()),
        };
        let why = format!("{limit}, which is the limit");
        Err(invalid(format!("cannot read {}", self.path), why, "split it into several tables, and check each of them"))
    }

    /// Returns the rows.
    pub(super) fn done(self) -> Vec<ClipRow> {
        self.all
    }
}

/// Returns the memory that a value takes.
fn kept_bytes(value: &FieldValue) -> usize {
    let text = if let FieldValue::Text(text) = value { text.len() } else { 0 };
    size_of::<FieldValue>() + text
}

/// The values of a row by column name.
pub(super) trait Values {
    /// Returns the value of a column; [`Cell::Null`] if there is none.
    fn get(&self, column: &str) -> Cell;
}

/// A table that is being read.
pub(super) struct TableReader<'a> {
    root: &'a Utf8Path,
    columns: Columns,
    fields: Fields,
    rows: Rows<'a>,
    /// The rows that were read, including those that conditions left out.
    read: u64,
}

/// A table that was read.
#[derive(Debug)]
pub(super) struct ReadTable {
    pub columns: Columns,
    pub fields: SourceFields,
    pub rows: Vec<ClipRow>,
}

impl<'a> TableReader<'a> {
    /// Begins to read a table with the columns `names`, of which those in `numbers` may hold numbers, and those in `kept` may be
    /// kept.
    ///
    /// # Errors
    /// The table has no column of videos or captions, or lacks a column that the request names.
    pub(super) fn begin(
        path: &'a Utf8Path,
        root: &'a Utf8Path,
        names: &[String],
        (numbers, kept): (&[String], &[String]),
        request: &SourceRequest,
    ) -> Result<Self, Failure> {
        let columns = Columns::choose(path, names, request)?;
        let shown = numbers.iter().filter(|name| columns.all().all(|known| known != name.as_str()));
        let keep = kept.iter().filter(|name| columns.read_otherwise().all(|known| known != name.as_str()));
        let fields = Fields::begin(path, names, shown, keep, request)?;
        Ok(Self { root, columns, fields, rows: Rows::of(path), read: 0 })
    }

    /// Begins to read a table that has only a column of videos and one of captions.
    pub(super) fn with(
        path: &'a Utf8Path,
        root: &'a Utf8Path,
        columns: Columns,
        request: &SourceRequest,
    ) -> Result<Self, Failure> {
        let names: Vec<String> = std::iter::once(&columns.video).chain(&columns.captions).cloned().collect();
        let fields = Fields::begin(path, &names, std::iter::empty(), std::iter::empty(), request)?;
        Ok(Self { root, columns, fields, rows: Rows::of(path), read: 0 })
    }

    /// Returns the names of all columns that are read.
    pub(super) fn columns(&self) -> impl Iterator<Item = &str> {
        self.columns.all().chain(self.fields.names())
    }

    /// Returns the column with the paths of the videos.
    pub(super) fn video_column(&self) -> &str {
        &self.columns.video
    }

    /// Checks the numbers of a table that states them.
    pub(super) fn check(&self, rows: u64, bytes: u64) -> Result<(), Failure> {
        self.rows.check(rows, bytes)
    }

    /// Reads a row of the table, unless it does not meet the conditions.
    pub(super) fn add(&mut self, origin: &str, values: &dyn Values) -> Result<(), Failure> {
        self.read += 1;
        self.rows.check(self.read, 0)?;
        match self.fields.read(self.rows.path, origin, values)? {
            Some(kept) => self.rows.add(rows(self.root, &self.columns, origin, &kept, values)),
            None => Ok(()),
        }
    }

    pub(super) fn done(self) -> ReadTable {
        ReadTable { columns: self.columns, fields: self.fields.done(), rows: self.rows.done() }
    }
}

/// Makes the rows of a video, one per caption.
fn rows(root: &Utf8Path, columns: &Columns, origin: &str, kept: &[FieldValue], values: &dyn Values) -> Vec<ClipRow> {
    let Located { name, path, mut excluded } = match values.get(&columns.video) {
        Cell::NotUtf8 { shown, .. } => Located::not_utf8(root, shown),
        cell => locate(root, &cell.into_text()),
    };
    let kind = values.get(KIND_COLUMN).into_text();
    if kind.eq_ignore_ascii_case("image") && !video::is_picture(&path) {
        let what = "the table marks it as an image, and its name does not end in png, jpg, jpeg or webp".into();
        excluded = Some(ExclusionReason::NotAVideo { what });
    }
    let count = |column: &str| values.get(column).as_count();
    let [frames, height, width] = STATED_COLUMNS.map(count);
    let stated = Stated { frames, height, width };
    let mut captions: Vec<Caption> = columns.captions.iter().flat_map(|column| values.get(column).captions()).collect();
    if columns.captions.len() > 1 && captions.iter().any(Result::is_ok) {
        // A video need not have a caption in every column.
        captions.retain(|caption| !matches!(caption, Err(CaptionFault::Missing | CaptionFault::Empty)));
    }
    let is_segments = |column: &String| SEGMENT_COLUMNS.iter().any(|known| column.eq_ignore_ascii_case(known));
    let is_segments = matches!(columns.captions.as_slice(), [column] if is_segments(column));
    if let Err(why) = mark_scenes(&mut captions, SCENE_COLUMNS.map(|column| values.get(column))) {
        excluded = excluded.or(Some(ExclusionReason::Unsupported { why }));
    }
    let (captions, segments) = if is_segments { of_segments(captions) } else { (captions, Vec::new()) };
    let row = |caption| ClipRow {
        name: name.clone(),
        path: path.clone(),
        caption,
        segments: segments.clone(),
        origin: origin.to_owned(),
        excluded: excluded.clone(),
        stated,
        kept: kept.to_vec(),
    };
    captions.into_iter().map(row).collect()
}

/// Adds scene tokens to the captions that the flags mark: the token of the start before the caption, that of the end after it.
///
/// Source: ttt-video-dit `data/precomp_text.py:29-36`.
fn mark_scenes(captions: &mut [Caption], flags: [Cell; 2]) -> Result<(), String> {
    let count = captions.len();
    let mut read = SCENE_COLUMNS.iter().zip(flags).map(|(column, cell)| match cell.flags() {
        Ok(flags) if flags.is_empty() => Ok(vec![false; count]),
        Ok(flags) if flags.len() == count => Ok(flags),
        Ok(flags) => Err(format!("{column} has {} values for {}", flags.len(), units::counted(count, "caption"))),
        Err(why) => Err(format!("{column}: {why}")),
    });
    let (starts, ends) = (read.next().expect("two columns")?, read.next().expect("two columns")?);
    for ((caption, starts), ends) in captions.iter_mut().zip(starts).zip(ends) {
        let token = |marked, token| if marked { token } else { "" };
        if let Ok(text) = caption {
            *text = format!("{}{text}{}", token(starts, SCENE_START), token(ends, SCENE_END));
        }
    }
    Ok(())
}

/// Joins the captions of the segments of one video. If one of them cannot be used, the video has no caption.
fn of_segments(captions: Vec<Caption>) -> (Vec<Caption>, Vec<String>) {
    match captions.into_iter().collect::<Result<Vec<_>, _>>() {
        Ok(segments) => (vec![Ok(segments.join("\n"))], segments),
        Err(fault) => (vec![Err(fault)], Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_limited_number_of_rows_and_a_limited_size() {
        let table = Rows::of("videos/metadata.parquet".into());
        table.check(MAX_ROWS, MAX_BYTES).unwrap();
        for (rows, bytes) in [(MAX_ROWS + 1, 0), (1, MAX_BYTES + 1), (u64::MAX, u64::MAX)] {
            let failure = table.check(rows, bytes).unwrap_err();
            assert!(failure.what.contains("metadata.parquet") && failure.why.contains("limit"), "{failure}");
        }
    }

    #[test]
    fn the_texts_of_all_rows_are_counted() {
        let mut table = Rows::of("metadata.csv".into());
        let row = ClipRow { name: "a".into(), path: "/a".into(), caption: Ok("four".into()), ..ClipRow::default() };
        table.add([row.clone(), row]).unwrap();
        assert_eq!((table.bytes, table.done().len()), (14, 2));
    }
}
