//! Reads the zip archives of `torch.save`. Their entries are not compressed, so that tensors can be read in place.

use crate::tensor_spans::Files;
use camino::Utf8Path;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The largest central directory in bytes. A larger size is invalid and is not allocated.
const MAX_DIRECTORY: u64 = 256 << 20;
/// The largest pickle in bytes. The names and shapes of all tensors of all ranks need far less.
pub(crate) const MAX_PICKLE: u64 = 256 << 20;

/// An archive in a range of a file.
#[derive(Debug)]
pub(crate) struct Archive {
    file: Arc<Utf8Path>,
    /// The offset and length of each entry in the file, by its name without the common folder.
    entries: BTreeMap<String, (u64, u64)>,
}

impl Archive {
    /// Reads the directory of an archive that lies at `base..base + len` of a file.
    ///
    /// # Errors
    /// The reason why the range is not a complete archive of `torch.save`.
    pub fn open(files: &mut Files, file: &Arc<Utf8Path>, base: u64, len: u64) -> Result<Self, String> {
        let mut read = |at: u64, count: u64| -> Result<Vec<u8>, String> {
            if at.checked_add(count).is_none_or(|end| end > len) {
                return Err("it is truncated".into());
            }
            let mut bytes = vec![0; count as usize];
            files.read(file, base + at, &mut bytes).map_err(|e| e.to_string())?;
            Ok(bytes)
        };
        // The end of the directory is the last record, because torch writes no archive comment.
        let tail_at = len.checked_sub(22).ok_or("it is truncated")?;
        let tail = read(tail_at, 22)?;
        if !tail.starts_with(b"PK\x05\x06") {
            return Err(
                "it is not a complete torch.save archive (torch before 1.6 wrote another format, which is not supported)".into()
            );
        }
        let (mut count, mut size, mut start) =
            (u64::from(u16_at(&tail, 10)), u64::from(u32_at(&tail, 12)), u64::from(u32_at(&tail, 16)));
        if tail_at >= 20 {
            let locator = read(tail_at - 20, 20)?;
            if locator.starts_with(b"PK\x06\x07") {
                let wide = read(u64_at(&locator, 8), 56)?;
                if !wide.starts_with(b"PK\x06\x06") {
                    return Err("its directory is damaged".into());
                }
                (count, size, start) = (u64_at(&wide, 32), u64_at(&wide, 40), u64_at(&wide, 48));
            }
        }
        if size > MAX_DIRECTORY {
            return Err(format!("the size of its directory, {size} bytes, is over the limit of {MAX_DIRECTORY}"));
        }
        let directory = read(start, size)?;
        let mut entries = BTreeMap::new();
        let mut at = 0;
        for _ in 0..count {
            let (entry, next) = entry(&directory, at)?;
            at = next;
            let local = read(entry.header, 30)?;
            if !local.starts_with(b"PK\x03\x04") {
                return Err(format!("entry '{}' is damaged", entry.name.escape_debug()));
            }
            let data = entry.header + 30 + u64::from(u16_at(&local, 26)) + u64::from(u16_at(&local, 28));
            if data.checked_add(entry.size).is_none_or(|end| end > len) {
                return Err("it is truncated".into());
            }
            let name = entry.name.split_once('/').map_or(entry.name.as_str(), |(_, rest)| rest).to_owned();
            entries.insert(name, (base + data, entry.size));
        }
        Ok(Self { file: file.clone(), entries })
    }

    /// Returns the offset and length of an entry in the file.
    pub fn place(&self, name: &str) -> Option<(u64, u64)> {
        self.entries.get(name).copied()
    }

    /// Returns the offsets and lengths of all entries.
    #[cfg(test)]
    pub fn places(&self) -> impl Iterator<Item = (u64, u64)> {
        self.entries.values().copied()
    }

    /// Reads an entry of at most [`MAX_PICKLE`] bytes.
    pub fn read(&self, files: &mut Files, name: &str) -> Result<Vec<u8>, String> {
        let (at, len) = self.place(name).ok_or_else(|| format!("it has no {name}"))?;
        if len > MAX_PICKLE {
            return Err(format!("its {name} has {len} bytes, the limit is {MAX_PICKLE}"));
        }
        let mut bytes = vec![0; len as usize];
        files.read(&self.file, at, &mut bytes).map_err(|e| e.to_string())?;
        Ok(bytes)
    }
}

struct Entry {
    name: String,
    size: u64,
    header: u64,
}

/// Reads one entry of the directory and returns the offset of the next one.
fn entry(directory: &[u8], at: usize) -> Result<(Entry, usize), String> {
    let damaged = || "its directory is damaged".to_owned();
    let head = directory.get(at..at + 46).filter(|head| head.starts_with(b"PK\x01\x02")).ok_or_else(damaged)?;
    let (name_len, extra_len, comment_len) =
        (usize::from(u16_at(head, 28)), usize::from(u16_at(head, 30)), usize::from(u16_at(head, 32)));
    let name_at = at + 46;
    let extra_at = name_at + name_len;
    let next = extra_at + extra_len + comment_len;
    let name = directory.get(name_at..extra_at).ok_or_else(damaged)?;
    let name = String::from_utf8_lossy(name).into_owned();
    let extra = directory.get(extra_at..extra_at + extra_len).ok_or_else(damaged)?;
    if u16_at(head, 10) != 0 || u32_at(head, 20) != u32_at(head, 24) {
        return Err(format!("entry '{}' is compressed, which torch.save never does", name.escape_debug()));
    }
    let (mut size, mut header) = (u64::from(u32_at(head, 24)), u64::from(u32_at(head, 42)));
    let mut wide = wide_numbers(extra);
    if size == u64::from(u32::MAX) {
        size = wide.next().ok_or_else(damaged)?;
        // If the uncompressed size did not fit into 32 bits, the compressed size follows it. Both are equal.
        wide.next().filter(|packed| *packed == size).ok_or_else(damaged)?;
    }
    if header == u64::from(u32::MAX) {
        header = wide.next().ok_or_else(damaged)?;
    }
    Ok((Entry { name, size, header }, next))
}

/// Returns the 64-bit numbers in the zip64 field of an entry.
fn wide_numbers(extra: &[u8]) -> impl Iterator<Item = u64> {
    let mut rest = extra;
    let mut found: &[u8] = &[];
    while rest.len() >= 4 {
        let (tag, len) = (u16_at(rest, 0), usize::from(u16_at(rest, 2)));
        let body = rest.get(4..4 + len).unwrap_or(&[]);
        if tag == 1 {
            found = body;
        }
        rest = rest.get(4 + len..).unwrap_or(&[]);
    }
    found.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes))
}

/// Reads a little-endian number. The caller guarantees that `bytes` is long enough.
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
