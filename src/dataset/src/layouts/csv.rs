//! Reads tables in CSV or TSV, whose first line has the names of the columns.

use super::table::{Cell, ReadTable, TableReader, Values};
use super::{SourceRequest, invalid, read_utf8};
use camino::Utf8Path;
use csv::{ByteRecord, ReaderBuilder};
use rundir::Failure;
use std::collections::BTreeMap;

/// Reads the rows of a table.
pub(super) fn read(path: &Utf8Path, root: &Utf8Path, request: &SourceRequest) -> Result<ReadTable, Failure> {
    let bytes = read_utf8(path)?;
    let delimiter =
        if path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("tsv")) { b'\t' } else { b',' };
    check_quotes(&bytes, delimiter).map_err(|why| invalid(format!("cannot read {path}"), why, QUOTES))?;
    let bytes = bytes.as_slice();
    let mut table = ReaderBuilder::new().delimiter(delimiter).from_reader(bytes);
    let titles = table.byte_headers().map_err(|error| bad(path, &error))?;
    let names: Vec<String> = titles.iter().map(|title| String::from_utf8_lossy(title).trim().to_owned()).collect();
    let mut all = TableReader::begin(path, root, &names, (&names, &names), request)?;
    let places: BTreeMap<&str, usize> = names.iter().enumerate().rev().map(|(at, name)| (name.as_str(), at)).collect();
    let name = path.file_name().unwrap_or_default();
    let mut record = ByteRecord::new();
    let mut lines = Lines { bytes, counted: 0, line: 1 };
    while table.read_byte_record(&mut record).map_err(|error| bad(path, &error))? {
        let line = lines.at(record.position().map_or(0, csv::Position::byte) as usize);
        all.add(&format!("{name} line {line}"), &Record { record: &record, places: &places })?;
    }
    Ok(all.done())
}

/// The hint for a table whose quotes are wrong.
const QUOTES: &str = "close the quote, or write a quote within a value twice: \"a \"\"big\"\" cat\"";

/// Checks that every quote that opens a value is closed at the end of the value. The crate `csv` accepts other quotes as Python does: the
/// rows after an open quote become a part of its value.
///
/// # Errors
/// The line of the first quote that is wrong.
fn check_quotes(bytes: &[u8], delimiter: u8) -> Result<(), String> {
    let (mut line, mut rest) = (1, bytes);
    while !rest.is_empty() {
        let Some(quoted) = rest.strip_prefix(b"\"") else {
            // The value ends at the delimiter or at the end of the line; the quotes in it are letters.
            let end = rest.iter().position(|byte| *byte == delimiter || matches!(byte, b'\r' | b'\n'));
            let Some(end) = end else { return Ok(()) };
            line += usize::from(rest[end] == b'\n');
            rest = &rest[end + 1..];
            continue;
        };
        let opened = line;
        rest = quoted;
        loop {
            let Some(quote) = rest.iter().position(|byte| *byte == b'"') else {
                return Err(format!("the quote that opens a value in line {opened} is never closed"));
            };
            line += rest[..quote].iter().filter(|byte| **byte == b'\n').count();
            rest = &rest[quote + 1..];
            match rest.strip_prefix(b"\"") {
                Some(after) => rest = after,
                None => break,
            }
        }
        let spaces = rest.iter().take_while(|byte| **byte == b' ').count();
        match rest.get(spaces) {
            None => return Ok(()),
            Some(byte) if *byte == delimiter || matches!(byte, b'\r' | b'\n') => {}
            Some(_) => {
                let within = if line == opened { String::new() } else { format!(", which line {opened} opened,") };
                return Err(format!("text follows the quote in line {line} that closes a value{within}"));
            }
        }
        line += usize::from(rest[spaces] == b'\n');
        rest = &rest[spaces + 1..];
    }
    Ok(())
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
    fn get(&self, column: &str) -> Cell {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quote_that_is_not_closed_is_named_with_its_line() {
        let check = |text: &str| check_quotes(text.as_bytes(), b',');
        for good in [
            "",
            "a,b\n1,2\n",
            "a,\"b\"\r\n1,\"a \"\"big\"\" cat\nsleeps\"\r\n",
            "a,6\" tall\n",
            "\"\",\"\"",
            "a,\"b\" ,c\n\n\"a\"",
            "\"\"\"\"",
        ] {
            assert_eq!(check(good), Ok(()), "{good:?}");
        }
        for (bad, line) in [
            ("a,b\n1,\"a cat\n2,a dog\n", "line 2 is never"),
            // The next quote closes the value, and its row is lost.
            ("a,b\n1,\"a cat\n2,\"a dog\"\n3,a cow\n", "line 3 that closes a value, which line 2"),
            ("a,b\r\n1,\"the \"big\" cat\"\r\n", "line 2 that closes a value"),
            ("\"a\"\n\"", "line 2 is never"),
        ] {
            let why = check(bad).unwrap_err();
            assert!(why.contains(line), "{why}");
        }
        assert!(check_quotes(b"a\t\"b\"\n", b'\t').is_ok() && check_quotes(b"a\t\"b\",\n", b'\t').is_err());
    }
}
