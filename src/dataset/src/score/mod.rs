//! Scores the clips of a data set, for `vidtui data score`: writes a table with the columns of the source and with a column per score.

mod duplicates;
mod measure;
mod table;
#[cfg(test)]
mod tests;

use crate::check::ColumnReport;
use crate::each_file::{EachFile, OnProgress, Worked, cache_file, cache_folder, stamped};
use crate::layouts::{SourceListing, SourceRequest, read_source};
use crate::stamp::Stamp;
use crate::{ClipRow, ExclusionReason, NumberColumn};
use camino::{Utf8Path, Utf8PathBuf};
use duplicates::near_duplicates;
use measure::samples;
use rundir::{ErrorCode, Failure};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use video::Programs;

pub use measure::Scores;
pub use table::refuse_format;

/// The version of the rules of the scores. Kept results of other versions are not used.
const RULES: u32 = 1;
/// A hash with fewer bits is that of a picture without detail, which does not show that clips are alike.
const FEWEST_BITS: u32 = 24;

/// A request to score clips.
#[derive(Debug, Clone)]
pub struct ScoreRequest {
    /// The folder or table.
    pub source: SourceRequest,
    /// The table to write: `.csv` or `.jsonl`.
    pub out: Utf8PathBuf,
    /// The folder of the kept results. `None`: they are not kept.
    pub cache: Option<Utf8PathBuf>,
    /// ffmpeg and ffprobe.
    pub programs: Programs,
    /// Clips that are measured at the same time.
    pub workers: usize,
}

impl ScoreRequest {
    /// Makes a request with the defaults: all cores, and the cache folder of the user.
    pub fn new(source: SourceRequest, out: Utf8PathBuf) -> Self {
        // A process per core needs no threads of its own.
        let mut programs = Programs::default();
        programs.threads = 1;
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            source: SourceRequest { keep_all: true, ..source },
            out,
            cache: cache_folder("scores"),
            programs,
            workers,
        }
    }
}

/// The result of scoring.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ScoreReport {
    /// The table.
    pub table: Utf8PathBuf,
    /// The rows of the table.
    pub rows: usize,
    /// The videos that were measured or whose results were kept.
    pub videos: usize,
    /// The videos whose results were kept by an earlier call.
    pub cached: usize,
    /// Rows whose clip shows nearly the same as that of an earlier row.
    pub near_duplicates: usize,
    /// The columns of scores, without those that the source had already.
    pub columns: Vec<ColumnReport>,
    /// The scores that the source had already.
    pub kept_columns: Vec<String>,
    /// Why videos have no scores, by path.
    pub failures: BTreeMap<Utf8PathBuf, String>,
    /// Rows that conditions left out.
    pub left_out: usize,
}

impl ScoreReport {
    /// Formats the ranges and distributions of the scores.
    pub fn text(&self) -> String {
        crate::check::column_table(&self.columns)
    }
}

/// The scores of a video, or why it has none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Scored {
    Scores(Scores),
    Failed(String),
}

/// Scores clips and writes the table. The results are kept until a video changes. A clip that cannot be read has no scores.
///
/// # Errors
/// The source cannot be read; ffmpeg or ffprobe is missing; the table cannot be written; or `on_progress` breaks (`Cancelled`).
pub fn score(request: &ScoreRequest, on_progress: OnProgress<'_>) -> Result<ScoreReport, Failure> {
    let source = read_source(&request.source)?;
    let (files, excluded) = stamped(&source);
    let title = |reason: &ExclusionReason| format!("{} {reason}", reason.title()).trim().to_owned();
    let mut failures: BTreeMap<_, _> =
        excluded.iter().map(|(path, reason)| ((*path).to_owned(), title(reason))).collect();
    let scoring = EachFile {
        rules: RULES,
        cache: request.cache.as_ref().map(|folder| cache_file(folder, &source.root)),
        workers: request.workers,
        cancel: &request.programs.cancel,
        noun: "scoring",
    };
    let begin =
        |files: &[(&Utf8Path, Stamp)]| if files.is_empty() { Ok(()) } else { request.programs.check().map(drop) };
    let results = scoring.run(&files, begin, &|path| work(&request.programs, path), on_progress)?;
    let videos = results.by_path.len();
    let mut scores: HashMap<Utf8PathBuf, Scores> = HashMap::new();
    for (path, (_, scored)) in results.by_path {
        match scored {
            Scored::Scores(of) => _ = scores.insert(path, of),
            Scored::Failed(why) => _ = failures.insert(path, why),
        }
    }
    let of_row = |row: &ClipRow| scores.get(&row.path);
    let has_detail = |hash: &[u64; 3]| hash.iter().map(|bits| bits.count_ones()).sum::<u32>() >= FEWEST_BITS;
    let hash = |row| of_row(row).map(|of| of.hash).filter(has_detail);
    let duplicates = near_duplicates(&first_rows(&source).map(hash).collect::<Vec<_>>());
    let of_video: HashMap<&Utf8Path, Option<usize>> =
        first_rows(&source).map(|row| row.path.as_path()).zip(duplicates).collect();
    let names: Vec<&str> = first_rows(&source).map(|row| row.name.as_str()).collect();
    let rows: Vec<table::ScoredRow<'_>> = source
        .rows
        .iter()
        .map(|row| {
            let duplicate_of = of_video.get(row.path.as_path()).copied().flatten().map(|first| names[first]);
            table::ScoredRow { row, scores: of_row(row), duplicate_of }
        })
        .collect();
    let near_duplicates = rows.iter().filter(|row| row.duplicate_of.is_some()).count();
    table::write(&request.out, &source, &rows)?;
    let (kept_columns, new): (Vec<&table::Column>, Vec<&table::Column>) =
        table::COLUMNS.iter().partition(|column| source.fields.kept.iter().any(|kept| kept == column.name));
    let report = |column: &&table::Column| {
        let numbers = rows.iter().map(|row| (column.number)(row).map_or(f32::NAN, |number| number as f32)).collect();
        ColumnReport::new(&NumberColumn { name: column.name.to_owned(), numbers })
    };
    Ok(ScoreReport {
        table: request.out.clone(),
        rows: rows.len(),
        videos,
        cached: results.cached,
        near_duplicates,
        columns: new.iter().filter_map(report).collect(),
        kept_columns: kept_columns.iter().map(|column| column.name.to_owned()).collect(),
        failures,
        left_out: source.fields.left_out,
    })
}

/// Returns the first row of each video.
fn first_rows(source: &SourceListing) -> impl Iterator<Item = &ClipRow> {
    let mut seen = BTreeSet::new();
    source.rows.iter().filter(move |row| seen.insert(row.path.as_path()))
}

fn work(programs: &Programs, path: &Utf8Path) -> Result<Worked<Scored>, Failure> {
    let measured = programs.open(path).and_then(|source| {
        let (changes, frames) = programs.measure(&source, &samples(source.times().len()))?;
        let probe = &source.probe;
        let fps = if changes.is_empty() { 0.0 } else { probe.fps };
        let num_frames = source.times().len();
        Ok(Scores { width: probe.width, height: probe.height, fps, num_frames, ..Scores::new(&changes, &frames) })
    });
    match measured {
        Ok(scores) => Ok(Worked { result: Scored::Scores(scores), may_be_kept: true }),
        Err(failure) => match failure.code {
            ErrorCode::Cancelled | ErrorCode::ProgramMissing | ErrorCode::DiskFull => Err(failure),
            // Another disk or more memory may help, so that these are tried again.
            code => Ok(Worked {
                may_be_kept: matches!(code, ErrorCode::Malformed | ErrorCode::InvalidDataset),
                result: Scored::Failed(failure.why),
            }),
        },
    }
}
