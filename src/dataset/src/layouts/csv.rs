//! Reads tables in CSV or TSV, whose first line has the names of the columns.

use super::table::{Cell, Columns, Values, rows};
use super::text::without_mark;
use super::{ClipRow, SourceRequest, invalid, unreadable};
use camino::Utf8Path;
use csv::{ByteRecord, ReaderBuilder};
use rundir::Failure;
use std::collections::BTreeMap;
use std::fs;

/// Reads the rows of a table.
pub(super) fn read(
    path: &Utf8Path,
    root: &Utf8Path,
    request: &SourceRequest,
) -> Result<(Columns, Vec<ClipRow>), Failure> {
    let bytes = fs::read(path).map_err(|error| unreadable(path, error))?;
    let delimiter =
        if path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("tsv")) { b'\t' } else { b',' };
    let bytes = without_mark(&bytes);
    let mut table = ReaderBuilder::new().delimiter(delimiter).from_reader(bytes);
    let titles = table.byte_headers().map_err(|error| bad(path, &error))?;
    let names: Vec<String> = titles.iter().map(|title| String::from_utf8_lossy(title).trim().to_owned()).collect();
    let columns = Columns::choose(path, &names, request)?;
    let places: BTreeMap<&str, usize> = names.iter().enumerate().rev().map(|(at, name)| (name.as_str(), at)).collect();
    let name = path.file_name().unwrap_or_default();
    let mut record = ByteRecord::new();
    let mut all = Vec::new();
    let mut lines = Lines { bytes, counted: 0, line: 1 };
    while table.read_byte_record(&mut record).map_err(|error| bad(path, &error))? {
        let line = lines.at(record.position().map_or(0, csv::Position::byte) as usize);
        let mut values = Record { record: &record, places: &places };
        all.extend(rows(root, &columns, &format!("{name} line {line}"), &mut values));
    }
    Ok((columns, all))
}

/// Counts the lines of a file. The count of the crate `csv` is one too small after a line that ends in `\r\n`.
struct Lines<'a> {
    bytes: &'a [u8],
    counted: usize,
    line: usize,
}

impl Lines<'_> {
    /// Returns the line of the record that begins at a byte. Call it with records in ascending order.
    fn at(&mut self, start: usize) -> usize {
        // If the byte is between `\r` and `\n`, the record begins after `\n`.
        let start = start + usize::from(self.bytes.get(start) == Some(&b'\n'));
        let passed = self.bytes.get(self.counted..start).unwrap_or_default();
        self.line += passed.iter().filter(|byte| **byte == b'\n').count();
        self.counted = start;
        self.line
    }
}

struct Record<'a> {
    record: &'a ByteRecord,
    places: &'a BTreeMap<&'a str, usize>,
}

impl Values for Record<'_> {
    fn take(&mut self, column: &str) -> Cell {
        let value = self.places.get(column).and_then(|at| self.record.get(*at));
        value.map_or(Cell::Null, Cell::of_bytes)
    }
}

fn bad(path: &Utf8Path, error: &csv::Error) -> Failure {
    let why = match error.kind() {
        csv::ErrorKind::UnequalLengths { pos, expected_len, len } => format!(
            "line {} has {}, the line of titles has {expected_len}",
            pos.as_ref().map_or(0, csv::Position::line),
            units::counted(*len as usize, "value")
        ),
        _ => error.to_string(),
    };
    invalid(format!("cannot read {path}"), why, "put values with commas, quotes or newlines in double quotes: \"a, b\"")
}
