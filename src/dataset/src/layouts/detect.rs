//! Detects the layout of a source and reads its rows.

use super::fields::{Fields, SourceFields, nothing_left};
use super::pairs::{Files, is_of, no_videos};
use super::table::{Columns, ReadTable};
use super::{
    CaptionFault, ClipRow, SourceListing, SourceRequest, VIDEO_ENDINGS, csv, frames, invalid, json, lists, pairs,
    parquet,
};
use camino::{Utf8Path, Utf8PathBuf};
use rundir::{ErrorCode, Failure};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The file names of tables that a folder is searched for, in order of preference.
const TABLES: [&str; 6] =
    ["metadata.csv", "metadata.tsv", "metadata.jsonl", "metadata.json", "metadata.parquet", "captions.json"];
/// The file name extensions of tables.
const TABLE_ENDINGS: [&str; 6] = ["csv", "tsv", "json", "jsonl", "parquet", "pq"];

/// How a source lists its videos and captions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// A folder with `a.mp4` and `a.txt`.
    Pairs,
    /// A folder with `a/1.png`, `a/2.png`… and `a.txt`.
    Frames,
    /// `prompts.txt` and `videos.txt`.
    Lists,
    /// A CSV, TSV, JSON, JSONL or Parquet file.
    Table,
}

impl Layout {
    /// Returns the name on the command line and on disk.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pairs => "pairs",
            Self::Frames => "frames",
            Self::Lists => "lists",
            Self::Table => "table",
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Returns the absolute path. A link to a file keeps its name, because the cache of the Hub links to files without endings.
fn absolute(given: &Utf8Path) -> std::io::Result<Utf8PathBuf> {
    let real = given.canonicalize_utf8()?;
    let Some(name) = given.file_name().filter(|_| !real.is_dir()) else { return Ok(real) };
    let folder = given.parent().filter(|folder| !folder.as_str().is_empty()).unwrap_or(Utf8Path::new("."));
    Ok(folder.canonicalize_utf8()?.join(name))
}

/// Reads what a source lists. Videos are not opened.
///
/// # Errors
/// The source does not exist or cannot be read, has no known layout, lists no videos, or is not valid in its layout.
pub fn read_source(request: &SourceRequest) -> Result<SourceListing, Failure> {
    let given = &request.source;
    let source = absolute(given).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Failure::new(
            ErrorCode::NotFound,
            format!("cannot find {given}"),
            "there is no such file or folder",
            "name a folder of videos, or a table: metadata.csv, .tsv, .json, .jsonl or .parquet",
        ),
        _ => super::unreadable(given, error),
    })?;
    let found = if source.is_dir() { of_folder(&source, request)? } else { of_file(&source, request)? };
    if found.rows.is_empty() && found.fields.left_out > 0 {
        return Err(nothing_left(given, &found.fields.conditions));
    }
    if found.rows.is_empty() {
        let fix = "list one video with its caption per line";
        return Err(invalid(format!("{given} lists no videos"), format!("{}, and it is empty", found.why), fix));
    }
    Ok(found)
}

/// Returns the absolute folder of a video or of a folder of videos, and the videos in it, in the order of their paths.
///
/// # Errors
/// There is no such file or folder, it cannot be read, or it has no video.
pub(crate) fn videos_below(given: &Utf8Path) -> Result<(Utf8PathBuf, Vec<Utf8PathBuf>), Failure> {
    let source = absolute(given).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Failure::new(
            ErrorCode::NotFound,
            format!("cannot find {given}"),
            "there is no such file or folder",
            "name a video, or a folder of videos",
        ),
        _ => super::unreadable(given, error),
    })?;
    if !source.is_dir() {
        return Ok((source.parent().unwrap_or(&source).to_owned(), vec![source]));
    }
    let files = Files::below(&source)?;
    if files.videos.is_empty() {
        return Err(no_videos(&source, &files));
    }
    Ok((source, files.videos))
}

/// The layouts that a folder could have.
struct Candidates {
    tables: Vec<&'static str>,
    lists: Option<(&'static str, &'static str)>,
}

fn of_folder(folder: &Utf8Path, request: &SourceRequest) -> Result<SourceListing, Failure> {
    let tables = TABLES.into_iter().filter(|name| folder.join(name).is_file()).collect();
    let lists = lists::find(folder, &lists::CAPTIONS).zip(lists::find(folder, &lists::VIDEOS));
    let found = Candidates { tables, lists };
    match (request.layout, found.tables.first(), found.lists) {
        (None | Some(Layout::Table), Some(table), _) => {
            let mut source = table_of(&folder.join(table), request)?;
            let others = found.tables[1..].iter().copied().chain(found.lists.map(|(captions, _)| captions));
            let others: Vec<&str> = others.collect();
            if !others.is_empty() {
                source.notes.push(format!("{} not read: {table} was found first", others.join(" and ")));
            }
            Ok(source)
        }
        (Some(Layout::Table), None, _) => Err(invalid(
            format!("{folder} has no table"),
            format!("looked for {}", TABLES.join(", ")),
            "name the table itself: vidtui data check PATH/TO/TABLE.csv",
        )),
        (None | Some(Layout::Lists), _, Some((captions, videos))) => {
            let root = root_of(folder, request)?;
            Ok(SourceListing {
                layout: Layout::Lists,
                why: format!("{captions} and {videos} are lists of the same length"),
                rows: lists::read(folder, &root, captions, videos)?,
                root,
                notes: vec![],
                fields: without_table(folder, request)?,
            })
        }
        (Some(Layout::Lists), _, None) => Err(invalid(
            format!("{folder} has no pair of lists"),
            format!("looked for {} and {}", lists::CAPTIONS.join(", "), lists::VIDEOS.join(", ")),
            "write one caption per line to prompts.txt and one path per line to videos.txt",
        )),
        (Some(Layout::Frames), _, _) => of_frames(folder, Files::below(folder)?, request),
        (None | Some(Layout::Pairs), _, _) => {
            let files = Files::below(folder)?;
            let has_only_frames = files.has_no_files() && !files.frame_folders.is_empty();
            match request.layout.is_none() && has_only_frames {
                true => of_frames(folder, files, request),
                false => of_pairs(folder, files, request),
            }
        }
    }
}

fn of_pairs(folder: &Utf8Path, files: Files, request: &SourceRequest) -> Result<SourceListing, Failure> {
    if files.has_no_files() && files.frame_folders.is_empty() {
        return Err(no_videos(folder, &files));
    }
    let mut kinds = vec![units::counted(files.videos.len() + files.unnamed.len(), "video")];
    if !files.pictures.is_empty() {
        kinds.push(units::counted(files.pictures.len(), "picture"));
    }
    if !files.frame_folders.is_empty() {
        kinds.push(frames::counted(files.frame_folders.len()));
    }
    let (rows, notes) = pairs::read(folder, files)?;
    let why =
        format!("{} below the folder, {} with a .txt file of the same name", kinds.join(" and "), with_text(&rows));
    let fields = without_table(folder, request)?;
    Ok(SourceListing { layout: Layout::Pairs, why, root: folder.to_owned(), rows, notes, fields })
}

fn of_frames(folder: &Utf8Path, files: Files, request: &SourceRequest) -> Result<SourceListing, Failure> {
    if files.picture_folders.is_empty() {
        return Err(frames::no_folders(folder));
    }
    let (rows, notes) = frames::read(folder, files)?;
    let folders = frames::counted(rows.len());
    let why = format!("{folders} below the folder, {} with a .txt file of the same name", with_text(&rows));
    let fields = without_table(folder, request)?;
    Ok(SourceListing { layout: Layout::Frames, why, root: folder.to_owned(), rows, notes, fields })
}

/// Returns the number of rows with a text file as text: `each` if all rows have one.
fn with_text(rows: &[ClipRow]) -> String {
    let with_text = rows.iter().filter(|row| row.caption != Err(CaptionFault::Missing)).count();
    if with_text == rows.len() { "each".into() } else { with_text.to_string() }
}

fn of_file(path: &Utf8Path, request: &SourceRequest) -> Result<SourceListing, Failure> {
    if is_of(path.extension(), &VIDEO_ENDINGS) {
        let fix = format!("name its folder: vidtui data check {}", path.parent().unwrap_or(path));
        return Err(invalid(format!("{path} is a single video"), "a data set is a folder or a table", fix));
    }
    if !is_of(path.extension(), &TABLE_ENDINGS) {
        return Err(invalid(
            format!("cannot read {path}"),
            format!("a table ends in {}", TABLE_ENDINGS.join(", ")),
            "name a table, or a folder of videos with .txt files beside them",
        ));
    }
    match request.layout {
        None | Some(Layout::Table) => table_of(path, request),
        Some(layout) => Err(Failure::new(
            ErrorCode::InvalidArgument,
            format!("cannot read {path} as {layout}"),
            format!("the layout {layout} is a folder, and this is a file"),
            "leave --layout out",
        )),
    }
}

fn table_of(path: &Utf8Path, request: &SourceRequest) -> Result<SourceListing, Failure> {
    let root = root_of(path.parent().unwrap_or(path), request)?;
    let ReadTable { columns, fields, rows } = read_table(path, &root, request)?;
    let Columns { video, captions } = &columns;
    let name = path.file_name().unwrap_or_default();
    let why = format!("{name} has a column of videos '{video}' and of captions '{}'", captions.join("' and '"));
    Ok(SourceListing { layout: Layout::Table, why, root, rows, notes: vec![], fields })
}

/// Returns the fields of a source that is not a table: conditions can be on measured numbers only.
fn without_table(folder: &Utf8Path, request: &SourceRequest) -> Result<SourceFields, Failure> {
    Ok(Fields::begin(folder, &[], std::iter::empty(), std::iter::empty(), request)?.done())
}

fn read_table(path: &Utf8Path, root: &Utf8Path, request: &SourceRequest) -> Result<ReadTable, Failure> {
    match path.extension().unwrap_or_default().to_ascii_lowercase().as_str() {
        "csv" | "tsv" => csv::read(path, root, request),
        "jsonl" => json::lines(path, root, request),
        "json" => json::read(path, root, request),
        _ => parquet::read(path, root, request),
    }
}

fn root_of(folder: &Utf8Path, request: &SourceRequest) -> Result<Utf8PathBuf, Failure> {
    let Some(root) = &request.root else { return Ok(folder.to_owned()) };
    root.canonicalize_utf8().map_err(|error| super::unreadable(root, error))
}
