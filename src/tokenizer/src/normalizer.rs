//! SentencePiece's normalizer: replaces characters by the model's map, joins consecutive spaces, and replaces spaces by
//! `▁`.

use crate::Error;
use crate::charsmap::Charsmap;
use crate::messages;

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

impl Normalizer {
    /// Returns the normalizer of a model, without its user-defined pieces.
    ///
    /// # Errors
    /// The map of characters is malformed.
    pub fn new(settings: &messages::Normalizer) -> Result<Self, Error> {
        Ok(Self {
            map: Charsmap::parse(settings.charsmap())?,
            add_dummy_prefix: settings.add_dummy_prefix(),
            remove_extra_whitespaces: settings.remove_extra_whitespaces(),
            escape_whitespaces: settings.escape_whitespaces(),
            whitespace_as_suffix: false,
            user_defined: Vec::new(),
        })
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
