//! SentencePiece's normalizer: replaces characters by the model's map, joins consecutive spaces, and replaces spaces by
//! `▁`.

use crate::Error;
use crate::charsmap::Charsmap;
use crate::proto::Fields;

/// The replacement of a space.
const SPACE: &str = "\u{2581}";

/// The normalizer of a model.
#[derive(Debug)]
pub struct Normalizer {
    map: Charsmap,
    add_dummy_prefix: bool,
    remove_extra_whitespaces: bool,
    escape_whitespaces: bool,
    /// Whether words end in a space instead of beginning with one. SentencePiece's trainer sets this.
    pub whitespace_as_suffix: bool,
    /// User-defined pieces, which are not normalized; the longest first.
    pub user_defined: Vec<String>,
}

impl Default for Normalizer {
    fn default() -> Self {
        Self {
            map: Charsmap::default(),
            add_dummy_prefix: true,
            remove_extra_whitespaces: true,
            escape_whitespaces: true,
            whitespace_as_suffix: false,
            user_defined: Vec::new(),
        }
    }
}

impl Normalizer {
    /// Reads the settings from a message of the type `NormalizerSpec`.
    pub fn read(&mut self, message: &[u8]) -> Result<(), Error> {
        for field in Fields::of(message) {
            let (number, value) = field?;
            match number {
                2 => self.map = Charsmap::parse(value.bytes()?)?,
                3 => self.add_dummy_prefix = value.number()? != 0,
                4 => self.remove_extra_whitespaces = value.number()? != 0,
                5 => self.escape_whitespaces = value.number()? != 0,
                _ => {}
            }
        }
        Ok(())
    }

    /// Normalizes a text.
    pub fn normalize(&self, text: &str) -> String {
        let space = if self.escape_whitespaces { SPACE } else { " " };
        let mut rest = text;
        if self.remove_extra_whitespaces {
            while !rest.is_empty() {
                let (replacement, length) = self.prefix(rest);
                if replacement != " " {
                    break;
                }
                rest = &rest[length..];
            }
        }
        let mut normalized = String::with_capacity(text.len() + text.len() / 4 + SPACE.len());
        if rest.is_empty() {
            return normalized;
        }
        if self.add_dummy_prefix && !self.whitespace_as_suffix {
            normalized += space;
        }
        let mut after_space = self.remove_extra_whitespaces;
        while !rest.is_empty() {
            let (mut replacement, length) = self.prefix(rest);
            if after_space {
                replacement = replacement.trim_start_matches(' ');
            }
            if !replacement.is_empty() {
                for char in replacement.chars() {
                    match char {
                        ' ' => normalized += space,
                        char => normalized.push(char),
                    }
                }
                after_space = replacement.ends_with(' ');
            }
            rest = &rest[length..];
            if !self.remove_extra_whitespaces {
                after_space = false;
            }
        }
        if self.remove_extra_whitespaces {
            normalized.truncate(normalized.trim_end_matches(space).len());
        }
        if self.add_dummy_prefix && self.whitespace_as_suffix {
            normalized += space;
        }
        normalized
    }

    /// Returns the replacement of the first characters of a text that is not empty, and the length of these characters
    /// in bytes.
    fn prefix<'a>(&'a self, text: &'a str) -> (&'a str, usize) {
        if let Some(piece) = self.user_defined.iter().find(|piece| text.starts_with(piece.as_str())) {
            return (piece, piece.len());
        }
        self.map.longest(text).unwrap_or_else(|| {
            let length = text.chars().next().map_or(0, char::len_utf8);
            (&text[..length], length)
        })
    }
}
