//! The note of a run: one line by its users. Words that begin with `#` are tags.

use crate::files::{read_run_text, write_atomic};
use crate::{Error, ErrorCode, Failure, RunDir};
use std::fs;
use std::io;

/// The most characters of a note.
const LONGEST: usize = 500;

/// Reads the note of a run. `None` if it has none, or if the file cannot be read.
pub fn read_note(run: &RunDir) -> Option<String> {
    let text = read_run_text(&run.note_file()).ok()?;
    valid(&text).ok().filter(|note| !note.is_empty())
}

/// Replaces the note of a run. An empty text removes it.
///
/// # Errors
/// When the text has several lines or is too long, or the file cannot be written.
pub fn write_note(run: &RunDir, text: &str) -> Result<(), Failure> {
    let note = valid(text).map_err(|why| {
        let what = format!("cannot write the note of {}", run.name());
        Failure::new(ErrorCode::InvalidArgument, what, why, format!("write one line of at most {LONGEST} characters"))
    })?;
    let file = run.note_file();
    if note.is_empty() {
        return match fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io("remove", &file, error).into()),
            _ => Ok(()),
        };
    }
    Ok(write_atomic(&file, format!("{note}\n").as_bytes())?)
}

/// Returns the tags of a note, without their `#`: letters, digits, `-`, `_`, `.` and `/`.
pub fn tags(note: &str) -> Vec<&str> {
    let mut tags = Vec::new();
    for word in note.split_whitespace().filter_map(|word| word.strip_prefix('#')) {
        let is_part = |c: char| c.is_alphanumeric() || "-_./".contains(c);
        let end = word.find(|c| !is_part(c)).unwrap_or(word.len());
        let tag = word[..end].trim_end_matches('.');
        if !tag.is_empty() && !tags.contains(&tag) {
            tags.push(tag);
        }
    }
    tags
}

/// Returns a text without surrounding blanks, if it is a note.
fn valid(text: &str) -> Result<String, String> {
    let note = text.trim();
    if note.chars().any(char::is_control) {
        return Err("it has a line break or another control character".to_owned());
    }
    match note.chars().count() {
        count if count > LONGEST => Err(format!("it has {count} characters")),
        _ => Ok(note.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::temp;

    #[test]
    fn a_note_is_replaced_and_removed() {
        let (_keep, run) = temp();
        assert_eq!(read_note(&run), None);
        for text in ["  #baseline, lr 1e-4 ", "ein längerer Satz"] {
            write_note(&run, text).unwrap();
            assert_eq!(read_note(&run).as_deref(), Some(text.trim()));
        }
        write_note(&run, " ").unwrap();
        write_note(&run, "").unwrap();
        assert_eq!((read_note(&run), run.note_file().exists()), (None, false));
    }

    #[test]
    fn a_note_of_several_lines_is_refused_and_not_read() {
        let (_keep, run) = temp();
        for text in ["a\nb", "a\x1b[2Jb", &"x".repeat(LONGEST + 1)] {
            assert_eq!(write_note(&run, text).unwrap_err().code, ErrorCode::InvalidArgument);
            std::fs::write(run.note_file(), text).unwrap();
            assert_eq!(read_note(&run), None);
        }
    }

    #[test]
    fn words_that_begin_with_a_hash_are_tags() {
        assert_eq!(
            tags("#baseline of #lr-sweep/2. See #baseline, #1; # and a#b #größe"),
            ["baseline", "lr-sweep/2", "1", "größe"]
        );
        assert!(tags("no tags").is_empty());
    }
}
