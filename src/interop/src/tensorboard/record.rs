//! The records of an event file (TFRecord): a length, its checksum, the data, and their checksum.
//!
//! Source: tensorflow.org/tutorials/load_data/tfrecord, "TFRecords format details".

use std::io::{self, Read};

/// Bytes before the data of a record.
const HEADER: usize = 12;
/// Bytes after the data of a record.
const FOOTER: usize = 4;

/// Appends a record to a buffer.
pub fn append(buffer: &mut Vec<u8>, data: &[u8]) {
    let len = (data.len() as u64).to_le_bytes();
    buffer.extend(len);
    buffer.extend(masked(&len).to_le_bytes());
    buffer.extend(data);
    buffer.extend(masked(data).to_le_bytes());
}

/// Returns TensorFlow's masked CRC-32C: rotated by 15 bits plus a constant, because a CRC of data
/// that contains CRCs is weak.
fn masked(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The records of a file.
pub struct Records<R> {
    from: R,
    /// Bytes of the file after the last whole record.
    left: u64,
    offset: u64,
    data: Vec<u8>,
}

/// The next part of a file.
#[derive(Debug, PartialEq)]
pub enum Next<'a> {
    /// A whole record.
    Record(&'a [u8]),
    /// The end of the file, or an incomplete last record: its writer is still writing, or was killed.
    End,
    /// The record at this byte has a wrong checksum, so its length may be wrong too.
    WrongChecksum(u64),
}

impl<R: Read> Records<R> {
    /// Reads records from a file of `len` bytes.
    pub fn new(from: R, len: u64) -> Self {
        Self { from, left: len, offset: 0, data: Vec::new() }
    }

    /// Reads the next record. After a result other than a record, do not call this again.
    ///
    /// # Errors
    /// When reading fails.
    pub fn next(&mut self) -> io::Result<Next<'_>> {
        let Some(rest) = self.left.checked_sub((HEADER + FOOTER) as u64) else { return Ok(Next::End) };
        let mut header = [0; HEADER];
        self.from.read_exact(&mut header)?;
        let (len, sum) = header.split_at(8);
        if masked(len) != number(sum) {
            return Ok(Next::WrongChecksum(self.offset));
        }
        let len = len.iter().rev().fold(0, |len, byte| len << 8 | u64::from(*byte));
        let Some(left) = rest.checked_sub(len) else { return Ok(Next::End) };
        self.data.resize(len as usize + FOOTER, 0);
        self.from.read_exact(&mut self.data)?;
        let (data, sum) = self.data.split_at(len as usize);
        if masked(data) != number(sum) {
            return Ok(Next::WrongChecksum(self.offset));
        }
        self.offset += self.left - left;
        self.left = left;
        Ok(Next::Record(data))
    }
}

fn number(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(bytes: &[u8]) -> (Vec<Vec<u8>>, bool) {
        let (mut records, mut found) = (Records::new(bytes, bytes.len() as u64), Vec::new());
        loop {
            match records.next().unwrap() {
                Next::Record(data) => found.push(data.to_owned()),
                Next::End => return (found, true),
                Next::WrongChecksum(_) => return (found, false),
            }
        }
    }

    #[test]
    fn the_checksum_is_that_of_tensorflow() {
        // The first record of every event file has 24 bytes with this header.
        assert_eq!(masked(&24u64.to_le_bytes()), 0x224b_7fa3);
    }

    #[test]
    fn a_torn_record_ends_the_file_and_a_changed_byte_is_found() {
        let mut bytes = Vec::new();
        append(&mut bytes, b"first");
        let first = bytes.len();
        append(&mut bytes, b"second");
        for len in first..bytes.len() {
            assert_eq!(all(&bytes[..len]), (vec![b"first".to_vec()], true), "{len}");
        }
        for at in first..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert_eq!(all(&changed), (vec![b"first".to_vec()], false), "{at}");
        }
    }

    proptest! {
        #[test]
        fn records_are_read_as_they_were_written(written in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..20)) {
            let mut bytes = Vec::new();
            written.iter().for_each(|data| append(&mut bytes, data));
            prop_assert_eq!(all(&bytes), (written, true));
        }
    }
}
