//! SentencePiece's precompiled map of characters: a double array (Darts) from byte strings to their replacements.

use crate::Error;

/// The character map of a model, such as that of the normalization `nmt_nfkc`.
#[derive(Debug, Default)]
pub struct Charsmap {
    units: Vec<u32>,
    /// The replacements. Each ends in a zero byte.
    texts: Vec<u8>,
}

impl Charsmap {
    /// Parses the map; an empty one replaces nothing.
    pub fn parse(blob: &[u8]) -> Result<Self, Error> {
        if blob.is_empty() {
            return Ok(Self::default());
        }
        let bad = |why: String| Error::Malformed(format!("its map of characters {why}"));
        let Some((size, rest)) = blob.split_first_chunk::<4>() else { return Err(bad("is truncated".into())) };
        let size = u32::from_le_bytes(*size) as usize;
        let Some((trie, texts)) = rest.split_at_checked(size) else {
            return Err(bad(format!("needs {size} bytes and has {}", rest.len())));
        };
        if !size.is_multiple_of(4) || size == 0 {
            return Err(bad(format!("has a trie of {size} bytes")));
        }
        if std::str::from_utf8(texts).is_err() || texts.last() != Some(&0) {
            return Err(bad("has replacements that are not texts".into()));
        }
        let units = trie.chunks_exact(4).map(|unit| u32::from_le_bytes(unit.try_into().expect("four bytes"))).collect();
        Ok(Self { units, texts: texts.to_owned() })
    }

    /// Returns the replacement of the longest prefix of `text` that is in the map, and the length of that prefix.
    pub fn longest(&self, text: &str) -> Option<(&str, usize)> {
        let mut unit = *self.units.first()?;
        let (mut at, mut found) = (offset(unit), None);
        for (number, &byte) in text.as_bytes().iter().enumerate() {
            at ^= usize::from(byte);
            unit = *self.units.get(at)?;
            if unit & 0x8000_00ff != u32::from(byte) {
                break;
            }
            at ^= offset(unit);
            if unit >> 8 & 1 == 1 {
                found = Some((*self.units.get(at)? & 0x7fff_ffff, number + 1));
            }
        }
        let (value, length) = found?;
        let rest = self.texts.get(value as usize..)?;
        let end = rest.iter().position(|&byte| byte == 0)?;
        // A damaged map could point into the middle of characters.
        if !text.is_char_boundary(length) {
            return None;
        }
        Some((std::str::from_utf8(&rest[..end]).ok()?, length))
    }
}

fn offset(unit: u32) -> usize {
    ((unit >> 10) << ((unit & 1 << 9) >> 6)) as usize
}
