//! Writes the table of scored clips.

use super::Scores;
use crate::layouts::SourceListing;
use crate::{ClipRow, FieldValue};
use camino::Utf8Path;
use rundir::{ErrorCode, Failure};
use serde_json::{Map, Value};

/// A row of the table.
pub(super) struct ScoredRow<'a> {
    pub row: &'a ClipRow,
    pub scores: Option<&'a Scores>,
    /// The name of an earlier clip that shows nearly the same.
    pub duplicate_of: Option<&'a str>,
}

/// A column of scores.
pub(super) struct Column {
    pub name: &'static str,
    pub number: fn(&ScoredRow<'_>) -> Option<f64>,
}

/// The columns of scores.
pub(super) const COLUMNS: [Column; 11] = [
    Column { name: "motion", number: |row| row.scores?.motion },
    Column { name: "brightness", number: |row| row.scores?.brightness },
    Column { name: "sharpness", number: |row| row.scores?.sharpness },
    Column { name: "black", number: |row| row.scores?.black },
    Column { name: "frozen", number: |row| row.scores?.frozen },
    Column { name: "letterbox", number: |row| row.scores?.letterbox },
    Column {
        name: "near_duplicate",
        number: |row| row.scores.map(|_| f64::from(u8::from(row.duplicate_of.is_some()))),
    },
    Column { name: "num_frames", number: |row| Some(row.scores?.num_frames as f64) },
    Column { name: "height", number: |row| Some(row.scores?.height as f64) },
    Column { name: "width", number: |row| Some(row.scores?.width as f64) },
    Column { name: "fps", number: |row| row.scores.map(|scores| scores.fps).filter(|fps| *fps > 0.0) },
];
/// The column with the name of an earlier clip that shows nearly the same.
const DUPLICATE_OF: &str = "duplicate_of";
/// The titles of the columns of the video and of its caption.
const PATH_AND_CAPTION: [&str; 2] = ["path", "caption"];

/// Writes the table: the path, the caption, the columns of the source, and the scores that the source does not have.
///
/// # Errors
/// The name ends in neither `.csv` nor `.jsonl`, a clip has several segments and the table is a CSV, or the file cannot be written.
pub(super) fn write(out: &Utf8Path, source: &SourceListing, rows: &[ScoredRow<'_>]) -> Result<(), Failure> {
    refuse_format(out)?;
    let is_csv = out.extension() == Some("csv");
    let kept: Vec<(usize, &str)> = source
        .fields
        .kept
        .iter()
        .enumerate()
        .map(|(at, name)| (at, name.as_str()))
        .filter(|(_, name)| !PATH_AND_CAPTION.contains(name))
        .collect();
    let has = |name: &str| kept.iter().any(|(_, kept)| *kept == name);
    let new: Vec<&Column> = COLUMNS.iter().filter(|column| !has(column.name)).collect();
    let folder = out.parent().filter(|folder| !folder.as_str().is_empty()).unwrap_or(Utf8Path::new("."));
    let folder = folder.canonicalize_utf8().map_err(|error| rundir::Error::io("open", folder, error))?;
    let mut csv = csv::Writer::from_writer(Vec::new());
    let mut lines = Vec::new();
    let mut titles: Vec<&str> = PATH_AND_CAPTION.to_vec();
    titles.extend(kept.iter().map(|(_, name)| *name));
    titles.extend(new.iter().map(|column| column.name));
    titles.extend(Some(DUPLICATE_OF).filter(|name| !has(name)));
    if is_csv {
        csv.write_record(&titles).expect("memory can be written");
    }
    for of in rows {
        let ScoredRow { row, duplicate_of, .. } = of;
        let path = row.path.strip_prefix(&folder).unwrap_or(&row.path);
        let caption = row.caption.as_deref().unwrap_or_default();
        if is_csv && !row.segments.is_empty() {
            return Err(Failure::new(
                ErrorCode::InvalidArgument,
                format!("cannot write {out}"),
                format!("{} has a caption for each segment, and a CSV has no lists", row.name),
                "end the name of the table in .jsonl",
            ));
        }
        let mut values: Vec<Value> = vec![path.as_str().into(), caption.into()];
        values.extend(kept.iter().map(|(at, _)| match &row.kept[*at] {
            FieldValue::Missing => Value::Null,
            FieldValue::Number(number) => value(*number),
            FieldValue::Text(text) => text.as_str().into(),
        }));
        values
            .extend(new.iter().map(|column| (column.number)(of).map_or(Value::Null, |number| value(rounded(number)))));
        values.extend(Some(duplicate_of.map_or(Value::Null, Value::from)).filter(|_| !has(DUPLICATE_OF)));
        if is_csv {
            csv.write_record(values.iter().map(text)).expect("memory can be written, and rows have the same length");
            continue;
        }
        let pairs = titles.iter().zip(values).filter(|(_, value)| !value.is_null());
        let mut object: Map<String, Value> = pairs.map(|(title, value)| ((*title).to_owned(), value)).collect();
        if !row.segments.is_empty() {
            object.remove("caption");
            object.insert("segments".into(), row.segments.clone().into());
        }
        serde_json::to_writer(&mut lines, &object).expect("memory can be written");
        lines.push(b'\n');
    }
    let bytes = if is_csv { csv.into_inner().expect("memory can be written") } else { lines };
    Ok(rundir::write_atomic(out, &bytes)?)
}

/// Refuses a table whose name ends in neither `.csv` nor `.jsonl`.
///
/// # Errors
/// `InvalidArgument`.
pub fn refuse_format(out: &Utf8Path) -> Result<(), Failure> {
    if matches!(out.extension(), Some("csv" | "jsonl")) {
        return Ok(());
    }
    let why = "the name of the table does not end in a known format";
    Err(Failure::new(ErrorCode::InvalidArgument, format!("cannot write {out}"), why, "end it in .csv or .jsonl"))
}

/// Returns a number as JSON, without a point if it is whole.
fn value(number: f64) -> Value {
    if number.fract() == 0.0 && number.abs() < 1e15 { Value::from(number as i64) } else { Value::from(number) }
}

/// Returns a number with six digits after the point.
fn rounded(number: f64) -> f64 {
    (number * 1e6).round() / 1e6
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
