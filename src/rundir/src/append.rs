//! Appends lines to a file, each with one write.

use crate::unwritten;
use camino::{Utf8Path, Utf8PathBuf};
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

/// The most bytes of lines that an appender keeps while they cannot be written.
const KEEP: usize = 16 << 20;

/// Appends whole lines to a file, each with one write, so that a reader sees a partial line only while a write is in
/// progress.
///
/// A writer that is killed in the middle of a line leaves a torn line. The next writer ends it with a newline, and
/// readers report it as a [`crate::BadLine`].
///
/// Lines that cannot be written, for instance on a full disk, are kept in memory and written by a later call.
/// [`unwritten`](crate::unwritten()) returns how many there are in this process.
#[derive(Debug)]
pub struct LineAppender {
    path: Utf8PathBuf,
    file: File,
    /// Lines that are not written yet. The first of them may be written in part; `torn` is then true.
    kept: Vec<u8>,
    /// Lines that were dropped, because [`KEEP`] bytes were kept already.
    lost: u64,
    torn: bool,
}

impl LineAppender {
    /// Opens a file for appending, creating it if needed.
    ///
    /// # Errors
    /// When the file cannot be opened or read.
    pub fn open(path: &Utf8Path) -> io::Result<Self> {
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
        let len = file.seek(SeekFrom::End(0))?;
        let mut last = [b'\n'];
        if len > 0 {
            file.read_exact_at(&mut last, len - 1)?;
        }
        Ok(Self { path: path.to_owned(), file, kept: Vec::new(), lost: 0, torn: last != [b'\n'] })
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Utf8Path {
        &self.path
    }

    /// Appends a value as one line of JSON, after the lines that an earlier call could not write.
    ///
    /// # Errors
    /// When writing fails, for instance on a full disk. A later call of this or of [`LineAppender::retry`] writes the
    /// line. If 16 MiB are kept already, the line is lost.
    pub fn append<T: Serialize>(&mut self, value: &T) -> io::Result<()> {
        self.add(value)?;
        self.retry()
    }

    /// Adds a value as one line of JSON to those that the next call of [`LineAppender::retry`] or [`LineAppender::append`] writes.
    ///
    /// # Errors
    /// The value has no form in JSON.
    pub fn add<T: Serialize>(&mut self, value: &T) -> io::Result<()> {
        let before = self.kept.len();
        if let Err(error) = serde_json::to_writer(&mut self.kept, value) {
            self.kept.truncate(before);
            return Err(error.into());
        }
        self.kept.push(b'\n');
        if before > 0 && self.kept.len() > KEEP {
            self.kept.truncate(before);
            self.lost += 1;
        }
        Ok(())
    }

    /// Writes the lines that earlier calls could not write.
    ///
    /// # Errors
    /// When writing fails again.
    pub fn retry(&mut self) -> io::Result<()> {
        if self.kept.is_empty() {
            return Ok(());
        }
        let result = self.write_kept();
        let lines = memchr::memchr_iter(b'\n', &self.kept).count() as u64;
        unwritten::record(&self.path, result.as_ref().err(), lines, self.lost);
        result
    }

    /// Writes as much as possible. Removes whole lines that are written.
    fn write_kept(&mut self) -> io::Result<()> {
        if self.torn {
            self.file.write_all(b"\n")?;
            self.torn = false;
        }
        let mut at = 0;
        let result = loop {
            match self.file.write(&self.kept[at..]) {
                Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => at += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
            if at == self.kept.len() {
                break Ok(());
            }
        };
        let whole = memchr::memrchr(b'\n', &self.kept[..at]).map_or(0, |end| end + 1);
        // A line that is written in part is written again as a whole.
        self.torn = at > whole && !self.remove_end(&self.kept[whole..at]).unwrap_or(false);
        self.kept.drain(..whole);
        result
    }

    /// Removes the end of the file, if it is still this one. Returns whether it was.
    fn remove_end(&self, end: &[u8]) -> io::Result<bool> {
        let Some(rest) = self.file.metadata()?.len().checked_sub(end.len() as u64) else { return Ok(false) };
        let mut found = vec![0; end.len()];
        self.file.read_exact_at(&mut found, rest)?;
        if found != end {
            return Ok(false);
        }
        self.file.set_len(rest)?;
        Ok(true)
    }
}

impl Drop for LineAppender {
    fn drop(&mut self) {
        if self.retry().is_err() {
            unwritten::forget(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::temp;
    use std::fs;

    #[test]
    fn each_value_is_one_line() {
        let (_keep, run) = temp();
        let mut file = LineAppender::open(&run.events()).unwrap();
        file.append(&"one\ntwo").unwrap();
        file.append(&3).unwrap();
        assert_eq!(fs::read_to_string(run.events()).unwrap(), "\"one\\ntwo\"\n3\n");
    }

    #[test]
    fn a_torn_last_line_is_ended_before_the_next_one() {
        let (_keep, run) = temp();
        fs::write(run.metrics(), "{\"v\":1}\n{\"v\":1,\"st").unwrap();
        LineAppender::open(&run.metrics()).unwrap().append(&7).unwrap();
        assert_eq!(fs::read_to_string(run.metrics()).unwrap(), "{\"v\":1}\n{\"v\":1,\"st\n7\n");
    }

    #[test]
    fn a_whole_last_line_is_not_changed() {
        let (_keep, run) = temp();
        for n in 1..=3 {
            LineAppender::open(&run.metrics()).unwrap().append(&n).unwrap();
        }
        assert_eq!(fs::read_to_string(run.metrics()).unwrap(), "1\n2\n3\n");
    }

    #[test]
    fn a_full_disk_is_an_error_and_not_a_panic() {
        let Ok(mut full) = LineAppender::open("/dev/full".into()) else { return };
        let error = full.append(&1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        full.append(&2).unwrap_err();
        let waiting = unwritten::files()[full.path()].clone();
        assert_eq!((waiting.lines, waiting.lost, waiting.path.as_str()), (2, 0, "/dev/full"));
        assert!(waiting.why.contains("No space left"), "{waiting:?}");
        drop(full);
        assert!(!unwritten::files().contains_key(Utf8Path::new("/dev/full")));
    }

    #[test]
    fn lines_that_could_not_be_written_are_written_later_in_their_order() {
        let (_keep, run) = temp();
        let mut file = LineAppender::open(&run.metrics()).unwrap();
        let real = std::mem::replace(&mut file.file, OpenOptions::new().write(true).open("/dev/full").unwrap());
        file.append(&1).unwrap_err();
        file.append(&2).unwrap_err();
        file.file = real;
        file.append(&3).unwrap();
        assert_eq!(fs::read_to_string(run.metrics()).unwrap(), "1\n2\n3\n");
        file.append(&4).unwrap();
        assert_eq!(fs::read_to_string(run.metrics()).unwrap(), "1\n2\n3\n4\n");
    }

    #[test]
    fn a_value_without_a_json_form_leaves_nothing_behind() {
        let (_keep, run) = temp();
        let mut file = LineAppender::open(&run.metrics()).unwrap();
        // Keys of JSON are texts. The bracket before the key is written first.
        file.append(&std::collections::BTreeMap::from([(vec![1], 2)])).unwrap_err();
        file.append(&3).unwrap();
        assert_eq!(fs::read_to_string(run.metrics()).unwrap(), "3\n");
    }

    #[test]
    fn a_line_that_was_written_in_part_is_written_again_on_a_line_of_its_own() {
        let (_keep, run) = temp();
        let mut file = LineAppender::open(&run.metrics()).unwrap();
        (file.kept, file.torn) = (b"\"second\"\n".to_vec(), true);
        fs::write(run.metrics(), "\"first\"\n\"sec").unwrap();
        file.append(&3).unwrap();
        assert_eq!(fs::read_to_string(run.metrics()).unwrap(), "\"first\"\n\"sec\n\"second\"\n3\n");
    }

    #[test]
    fn the_end_of_a_file_is_removed_only_if_it_is_the_expected_one() {
        let (_keep, run) = temp();
        fs::write(run.metrics(), "1\n{\"par").unwrap();
        let file = LineAppender::open(&run.metrics()).unwrap();
        assert!(!file.remove_end(b"other").unwrap() && file.remove_end(b"{\"par").unwrap());
        assert_eq!(fs::read_to_string(run.metrics()).unwrap(), "1\n");
        assert!(!file.remove_end(b"longer than the file").unwrap());
    }

    #[test]
    fn a_bounded_number_of_lines_is_kept_and_the_others_are_counted() {
        let Ok(mut full) = LineAppender::open("/dev/./full".into()) else { return };
        let long = "x".repeat(KEEP / 2);
        for _ in 0..4 {
            full.append(&long).unwrap_err();
        }
        assert!(full.kept.len() <= KEEP);
        assert_eq!(full.lost, 3);
    }
}
