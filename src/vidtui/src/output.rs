//! Prints text, JSON and tables to standard output. A closed pipe is not an error: the process exits with 0.

use crate::command_error::CommandError;
use rundir::{ErrorCode, Failure};
use serde::Serialize;
use std::io::{self, Write};

/// Prints text as it is.
pub fn text(text: &str) -> Result<(), CommandError> {
    written(io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush()))
}

/// Prints one line.
pub fn line(line: &str) -> Result<(), CommandError> {
    text(&format!("{line}\n"))
}

/// Prints one JSON document, indented.
pub fn json(document: &impl Serialize) -> Result<(), CommandError> {
    let document = serde_json::to_string_pretty(document).map_err(unserializable)?;
    line(&document)
}

/// Prints one JSON document as [`result`].
pub fn json_result(document: &impl Serialize) -> Result<(), CommandError> {
    result(&format!("{}\n", serde_json::to_string_pretty(document).map_err(unserializable)?))
}

/// Prints one JSON object on one line, for streams.
pub fn json_line(object: &impl Serialize) -> Result<(), CommandError> {
    line(&serde_json::to_string(object).map_err(unserializable)?)
}

/// Prints the result of a command that has changed something. Its exit code does not depend on who reads the output.
pub fn result(text: &str) -> Result<(), CommandError> {
    match io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => written(result),
    }
}

/// Prints text on standard error. Text that cannot be written is dropped: a closed pipe or a full disk must not end a kill, a healer or a
/// queue before its end.
pub fn note_text(text: &str) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

/// Prints a line on standard error, as `eprintln!`. See [`note_text`].
macro_rules! note {
    ($($text:tt)*) => { $crate::output::note_text(&format!("{}\n", format_args!($($text)*))) };
}
pub(crate) use note;

fn written(result: io::Result<()>) -> Result<(), CommandError> {
    match result {
        // For example `vidtui logs RUN | head`.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(Failure::new(
            ErrorCode::of_io(&error),
            "cannot write to standard output",
            error.to_string(),
            "check that the disk is not full",
        )
        .into()),
        Ok(()) => Ok(()),
    }
}

fn unserializable(error: serde_json::Error) -> CommandError {
    Failure::new(
        ErrorCode::Internal,
        "cannot print JSON",
        error.to_string(),
        "this is a bug in vidtui: report it; without --json the command works",
    )
    .into()
}

/// The alignment of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// For text.
    Left,
    /// For numbers.
    Right,
}

/// Aligns cells in columns, two spaces apart, under their titles.
pub fn table(columns: &[(&str, Side)], rows: &[Vec<String>]) -> String {
    let titles: Vec<String> = columns.iter().map(|(title, _)| (*title).to_owned()).collect();
    let width = |column: usize| {
        let cells = rows.iter().chain([&titles]).filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let mut text = String::new();
    for row in [&titles].into_iter().chain(rows) {
        let mut line = String::new();
        for ((cell, width), (_, side)) in row.iter().zip(&widths).zip(columns) {
            match side {
                Side::Left => line += &format!("{cell:<width$}  "),
                Side::Right => line += &format!("{cell:>width$}  "),
            }
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// Aligns names and values, one pair per line.
pub fn facts(facts: &[(String, String)]) -> String {
    let width = facts.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    facts.iter().map(|(name, value)| format!("{name:<width$}  {value}").trim_end().to_owned() + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_aligned_right_and_words_left() {
        let rows = [vec!["a".into(), "7".into()], vec!["longer".into(), "1200".into()]];
        let text = table(&[("run", Side::Left), ("step", Side::Right)], &rows);
        assert_eq!(text, "run     step\na          7\nlonger  1200\n");
    }
}
