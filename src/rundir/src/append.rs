//! Appends lines to a file, each with one write.

use camino::{Utf8Path, Utf8PathBuf};
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

/// Appends whole lines to a file, each with one write, so that a reader sees a partial line only while a write is in
/// progress.
///
/// A writer that is killed in the middle of a line leaves a torn line. The next writer ends it with a newline, and
/// readers report it as a [`crate::BadLine`].
#[derive(Debug)]
pub struct LineAppender {
    path: Utf8PathBuf,
    file: File,
    buffer: Vec<u8>,
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
        Ok(Self { path: path.to_owned(), file, buffer: Vec::new(), torn: last != [b'\n'] })
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Utf8Path {
        &self.path
    }

    /// Appends a value as one line of JSON.
    ///
    /// # Errors
    /// When writing fails, for instance on a full disk. The next value still begins on a new line.
    pub fn append<T: Serialize>(&mut self, value: &T) -> io::Result<()> {
        self.buffer.clear();
        if self.torn {
            self.buffer.push(b'\n');
        }
        serde_json::to_writer(&mut self.buffer, value)?;
        self.buffer.push(b'\n');
        self.torn = true;
        self.file.write_all(&self.buffer)?;
        self.torn = false;
        Ok(())
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
        assert!(full.torn, "the next line must begin on a line of its own");
    }
}
