//! LevelDB's log format: blocks of 32 KiB. A record that crosses the end of a block is divided into parts.
//!
//! Source: github.com/google/leveldb/blob/main/doc/log_format.md. W&B's differences: a header of seven bytes in the first block, and
//! the CRC-32 of zlib.

use std::fs::File;
use std::io::{self, BufReader, Read};

/// Bytes of a block.
const BLOCK: u64 = 32 * 1024;
/// Bytes before the data of a part: checksum, length, type.
const HEADER: u64 = 7;
/// The first bytes of a file: a name, a magic number and the version.
const FILE_HEADER: [u8; 7] = *b":W&B\xe1\xbe\0";

/// Returns the header of a new file.
pub fn begin() -> Vec<u8> {
    FILE_HEADER.to_vec()
}

/// Appends a record to a buffer whose first byte is at `offset` of the file.
pub fn append(buffer: &mut Vec<u8>, offset: u64, record: &[u8]) {
    let (mut rest, mut is_first) = (record, true);
    loop {
        let mut room = BLOCK - (offset + buffer.len() as u64) % BLOCK;
        if room < HEADER {
            buffer.resize(buffer.len() + room as usize, 0);
            room = BLOCK;
        }
        let (part, after) = rest.split_at(rest.len().min((room - HEADER) as usize));
        let kind = match (is_first, after.is_empty()) {
            (true, true) => 1,
            (true, false) => 2,
            (false, false) => 3,
            (false, true) => 4,
        };
        let mut sum = crc32fast::Hasher::new();
        sum.update(&[kind]);
        sum.update(part);
        buffer.extend(sum.finalize().to_le_bytes());
        // A part is shorter than a block of 32 KiB.
        buffer.extend((part.len() as u16).to_le_bytes());
        buffer.push(kind);
        buffer.extend(part);
        (rest, is_first) = (after, false);
        if rest.is_empty() {
            return;
        }
    }
}

/// The records of a file.
pub struct Blocks<R> {
    from: R,
    left: u64,
    offset: u64,
    record: Vec<u8>,
}

/// The next part of a file.
#[derive(Debug, PartialEq)]
pub enum Next<'a> {
    /// A whole record.
    Record(&'a [u8]),
    /// The end of the file, or an incomplete last record: its writer is still writing, or was killed.
    End,
    /// The bytes from this offset on cannot be read.
    Damaged { at: u64, why: &'static str },
}

/// A part of a record.
enum Part {
    Of { kind: u8, start: usize },
    End,
    Damaged(&'static str),
}

impl Blocks<BufReader<File>> {
    /// Opens a file for reading.
    pub fn open(file: File) -> io::Result<Self> {
        let len = file.metadata()?.len();
        Self::new(BufReader::with_capacity(1 << 20, file), len)
    }
}

impl<R: Read> Blocks<R> {
    /// Reads the header of a file of `len` bytes.
    ///
    /// # Errors
    /// Reading fails, or the header is not that of a W&B log.
    pub fn new(mut from: R, len: u64) -> io::Result<Self> {
        let mut header = [0; FILE_HEADER.len()];
        from.read_exact(&mut header).or_else(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => Ok(()),
            _ => Err(error),
        })?;
        if header != FILE_HEADER {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a W&B log of version 0"));
        }
        let offset = header.len() as u64;
        Ok(Self { from, left: len.saturating_sub(offset), offset, record: Vec::new() })
    }

    /// Reads the next record. After a result other than a record, do not call this again.
    pub fn next(&mut self) -> io::Result<Next<'_>> {
        self.record.clear();
        let mut is_begun = false;
        loop {
            let at = self.offset;
            let damaged = |why| Ok(Next::Damaged { at, why });
            match self.part()? {
                Part::End => return Ok(Next::End),
                Part::Damaged(why) => return damaged(why),
                // Whole.
                Part::Of { kind: 1, start } => return Ok(Next::Record(&self.record[start..])),
                // First. An incomplete record before it is dropped.
                Part::Of { kind: 2, start } => {
                    self.record.drain(..start);
                    is_begun = true;
                }
                // Middle and last.
                Part::Of { kind: 3, .. } if is_begun => {}
                Part::Of { kind: 4, .. } if is_begun => return Ok(Next::Record(&self.record)),
                Part::Of { .. } => return damaged("a record without a beginning"),
            }
        }
    }

    /// Appends the data of the next part to the record.
    fn part(&mut self) -> io::Result<Part> {
        let in_block = BLOCK - self.offset % BLOCK;
        if in_block < HEADER && self.left >= in_block {
            self.read(in_block)?;
            self.record.truncate(self.record.len() - in_block as usize);
        }
        if self.left < HEADER {
            return Ok(Part::End);
        }
        let mut header = [0; HEADER as usize];
        self.from.read_exact(&mut header)?;
        self.left -= HEADER;
        self.offset += HEADER;
        let [c0, c1, c2, c3, l0, l1, kind] = header;
        if header == [0; HEADER as usize] {
            // Zeros: space that was allocated but not written.
            return Ok(Part::End);
        }
        let len = u64::from(u16::from_le_bytes([l0, l1]));
        if len > BLOCK - self.offset % BLOCK && len > 0 {
            return Ok(Part::Damaged("a wrong length"));
        }
        if len > self.left {
            return Ok(Part::End);
        }
        let start = self.record.len();
        self.read(len)?;
        let mut sum = crc32fast::Hasher::new();
        sum.update(&[kind]);
        sum.update(&self.record[start..]);
        if sum.finalize() != u32::from_le_bytes([c0, c1, c2, c3]) {
            return Ok(Part::Damaged("wrong checksum"));
        }
        Ok(Part::Of { kind, start })
    }

    fn read(&mut self, len: u64) -> io::Result<()> {
        let start = self.record.len();
        self.record.resize(start + len as usize, 0);
        self.from.read_exact(&mut self.record[start..])?;
        self.left -= len;
        self.offset += len;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Writes records, each in a buffer of its own.
    fn written(records: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = begin();
        for record in records {
            let mut buffer = Vec::new();
            append(&mut buffer, bytes.len() as u64, record);
            bytes.extend(buffer);
        }
        bytes
    }

    fn all(bytes: &[u8]) -> (Vec<Vec<u8>>, bool) {
        let (mut blocks, mut records) = (Blocks::new(bytes, bytes.len() as u64).unwrap(), Vec::new());
        loop {
            match blocks.next().unwrap() {
                Next::Record(record) => records.push(record.to_owned()),
                Next::End => return (records, true),
                Next::Damaged { .. } => return (records, false),
            }
        }
    }

    #[test]
    fn a_record_that_spans_blocks_is_read_whole() {
        let records = [vec![1; 100], vec![2; 100_000], vec![3; 32_754], vec![4; 5]];
        assert_eq!(all(&written(&records)), (records.to_vec(), true));
    }

    #[test]
    fn a_torn_record_ends_the_log_and_a_changed_byte_is_found() {
        let bytes = written(&[vec![1; 20], vec![2; 20]]);
        let second = bytes.len() - 27;
        for len in second..bytes.len() {
            assert_eq!(all(&bytes[..len]), (vec![vec![1; 20]], true), "{len}");
        }
        for at in [second, second + 6, second + 7, bytes.len() - 1] {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert_eq!(all(&changed), (vec![vec![1; 20]], false), "{at}");
        }
    }

    #[test]
    fn another_file_is_refused() {
        for other in [&b""[..], b":W&B", b"{\"loss\": 1}\n"] {
            assert!(Blocks::new(other, other.len() as u64).is_err());
        }
    }

    proptest! {
        #[test]
        fn records_are_read_as_they_were_written(lens in prop::collection::vec((any::<u8>(), 0usize..9000), 0..20)) {
            let records: Vec<_> = lens.into_iter().map(|(byte, len)| vec![byte; len]).collect();
            prop_assert_eq!(all(&written(&records)), (records, true));
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = all(&[&FILE_HEADER[..], &bytes].concat());
        }
    }
}
