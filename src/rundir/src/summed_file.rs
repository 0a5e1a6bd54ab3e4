//! A writer of a checkpoint file that computes its checksum while writing, so that the file need not be read again.

use crate::FileSum;
use camino::{Utf8Path, Utf8PathBuf};
use std::fs::File;
use std::io::{self, Write};
use xxhash_rust::xxh3::Xxh3;

/// A new file that computes the checksum of the bytes written to it.
///
/// It does not buffer, so write large pieces.
pub struct SummedFile {
    path: Utf8PathBuf,
    file: File,
    sum: Xxh3,
    bytes: u64,
}

impl SummedFile {
    /// Creates a file that does not exist yet.
    ///
    /// # Errors
    /// As [`File::create_new`].
    pub fn create(path: &Utf8Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), file: File::create_new(path)?, sum: Xxh3::new(), bytes: 0 })
    }

    /// Syncs the file to disk and returns its manifest entry.
    ///
    /// # Errors
    /// When syncing fails.
    pub fn finish(self) -> io::Result<FileSum> {
        self.file.sync_all()?;
        let name = self.path.file_name().unwrap_or_default().to_owned();
        Ok(FileSum { name, bytes: self.bytes, xxh3: format!("{:016x}", self.sum.digest()) })
    }
}

impl Write for SummedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.sum.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file_sum;
    use crate::fixtures::temp;

    #[test]
    fn the_checksum_is_the_same_as_that_of_reading_the_file() {
        let (_keep, run) = temp();
        let path = run.root.join("a");
        let mut file = SummedFile::create(&path).unwrap();
        for piece in [&b"some"[..], b"", b" more", &[7; 100_000]] {
            file.write_all(piece).unwrap();
        }
        assert_eq!(file.finish().unwrap(), file_sum(&path).unwrap());
        assert!(SummedFile::create(&path).is_err(), "an existing file is not overwritten");
    }
}
