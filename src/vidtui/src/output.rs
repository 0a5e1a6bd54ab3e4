//! Everything that commands print: text, JSON and tables to standard output, notes to standard error.
//!
//! Names, captions, logs and errors come from files that others wrote. Nothing that is printed here controls the terminal but the sequences
//! of this program in [`Escaped`] text. Lints forbid other ways to print. A closed pipe is not an error: the process exits with 0.

use crate::command_error::CommandError;
use rundir::{ErrorCode, Failure};
use serde::Serialize;
use std::borrow::Cow;
use std::io::{self, Write};
use units::terminal::{Escaped, printable_line};

/// Prints text. Characters that control a terminal are escaped.
pub fn text(text: &str) -> Result<(), CommandError> {
    styled(&Escaped::text(text))
}

/// Prints text as it is.
pub fn styled(text: &Escaped) -> Result<(), CommandError> {
    written(io::stdout().write_all(text.as_str().as_bytes()).and_then(|()| io::stdout().flush()))
}

/// Prints one line.
pub fn line(line: &str) -> Result<(), CommandError> {
    text(&format!("{line}\n"))
}

/// Prints one JSON document, indented.
pub fn json(document: &impl Serialize) -> Result<(), CommandError> {
    let document = serde_json::to_string_pretty(document).map_err(unserializable)?;
    styled(&Escaped::json(&document).and(&Escaped::own("\n")))
}

/// Prints one JSON document as [`result`].
pub fn json_result(document: &impl Serialize) -> Result<(), CommandError> {
    let document = serde_json::to_string_pretty(document).map_err(unserializable)?;
    written_to_anyone(&Escaped::json(&document).and(&Escaped::own("\n")))
}

/// Prints one JSON object on one line, for streams.
pub fn json_line(object: &impl Serialize) -> Result<(), CommandError> {
    let object = serde_json::to_string(object).map_err(unserializable)?;
    styled(&Escaped::json(&object).and(&Escaped::own("\n")))
}

/// Prints a line to standard error, like `eprintln!`. Characters that control a terminal are escaped, and an error of writing is ignored.
macro_rules! note {
    ($($format:tt)*) => { $crate::output::note_line(&::std::format!($($format)*)) };
}
pub(crate) use note;

/// Prints the text of [`note`].
pub fn note_line(text: &str) {
    progress(&Escaped::text(text).and(&Escaped::own("\n")));
}

/// Writes text to standard error as it is. An error of writing is ignored, because standard error may be closed.
pub fn progress(text: &Escaped) {
    let _ = io::stderr().write_all(text.as_str().as_bytes()).and_then(|()| io::stderr().flush());
}

/// Prints the result of a command that has changed something. Its exit code does not depend on who reads the output.
pub fn result(text: &str) -> Result<(), CommandError> {
    written_to_anyone(&Escaped::text(text))
}

fn written_to_anyone(text: &Escaped) -> Result<(), CommandError> {
    match io::stdout().write_all(text.as_str().as_bytes()).and_then(|()| io::stdout().flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => written(result),
    }
}

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

/// Aligns cells in columns, two spaces apart, under their titles. A cell is one line, whatever is in it.
pub fn table(columns: &[(&str, Side)], rows: &[Vec<String>]) -> String {
    let titles: Vec<String> = columns.iter().map(|(title, _)| (*title).to_owned()).collect();
    let rows: Vec<Vec<_>> =
        [&titles].into_iter().chain(rows).map(|row| row.iter().map(|cell| printable_line(cell)).collect()).collect();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| ui::text::width(cell)).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for ((cell, width), (_, side)) in row.iter().zip(&widths).zip(columns) {
            let gap = " ".repeat(width - ui::text::width(cell));
            match side {
                Side::Left => line += &format!("{cell}{gap}  "),
                Side::Right => line += &format!("{gap}{cell}  "),
            }
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// Aligns names and values, one pair per line. A value is one line, whatever is in it.
pub fn facts(facts: &[(String, String)]) -> String {
    let facts: Vec<_> = facts.iter().map(|(name, value)| (printable_line(name), printable_line(value))).collect();
    let longest = facts.iter().map(|(name, _)| ui::text::width(name)).max().unwrap_or(0);
    let line = |(name, value): &(Cow<'_, str>, Cow<'_, str>)| {
        let gap = " ".repeat(longest - ui::text::width(name));
        format!("{name}{gap}  {value}").trim_end().to_owned() + "\n"
    };
    facts.iter().map(line).collect()
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

    #[test]
    fn columns_are_aligned_by_cells_and_a_line_break_in_a_cell_adds_no_row() {
        let rows = [vec!["实验一".into(), "7".into()], vec!["a\nb\x1b[2J".into(), "12".into()]];
        let text = table(&[("run", Side::Left), ("step", Side::Right)], &rows);
        assert_eq!(text, "run            step\n实验一            7\na\\nb\\u{1b}[2J    12\n");
        let facts = facts(&[("名".into(), "one\ntwo".into()), ("step".into(), "3".into())]);
        assert_eq!(facts, "名    one\\ntwo\nstep  3\n");
    }
}
