//! Special tokens, such as `<extra_id_0>`: reads them, and splits texts at them.

use camino::Utf8Path;
use failure::{ErrorCode, Failure};
use serde_json::Value;
use std::fmt::Write;

/// The file with the special tokens.
const CONFIG: &str = "tokenizer_config.json";
/// T5's special tokens and the number of its sentinels, used if the file does not name them.
const TOKENS: [(&str, i64); 3] = [("<pad>", 0), ("</s>", 1), ("<unk>", 2)];
const SENTINELS: usize = 100;

/// A special token.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Special {
    text: String,
    id: i64,
    /// Whether the token absorbs the spaces before it.
    left: bool,
    /// Whether the token absorbs the spaces after it.
    right: bool,
}

/// The special tokens of a tokenizer; the longest first.
#[derive(Debug)]
pub struct Specials(Vec<Special>);

/// A part of a text.
#[derive(Debug, PartialEq, Eq)]
pub enum Part<'a> {
    Text(&'a str),
    Token(i64),
}

impl Specials {
    /// Reads the special tokens of a `tokenizer/` folder whose model has `pieces` pieces. Without the file, or if it
    /// lists none, returns those of T5.
    pub fn read(folder: &Utf8Path, pieces: usize) -> Result<Self, Failure> {
        let path = folder.join(CONFIG);
        let text = match failure::read_text(&path) {
            Ok(text) => text,
            Err(error) if error.is_not_found() => return Ok(Self::of_t5(pieces)),
            Err(error) => return Err(error.into()),
        };
        let bad = |why: String| {
            let fix = "copy the tokenizer/ folder again from where the model came";
            Failure::new(ErrorCode::Malformed, format!("cannot use {path}"), why, fix)
        };
        let config: Value = serde_json::from_str(&text).map_err(|e| bad(format!("it is not JSON: {e}")))?;
        if let Some(class) = config["tokenizer_class"].as_str().filter(|class| !class.starts_with("T5Tokenizer")) {
            let why = format!("it configures a {class}, expected a T5Tokenizer");
            let fix = "give the tokenizer/ folder of a CogVideoX model";
            return Err(Failure::new(ErrorCode::UnsupportedModel, format!("cannot use {path}"), why, fix));
        }
        let Some(added) = config["added_tokens_decoder"].as_object().filter(|added| !added.is_empty()) else {
            return Ok(Self::of_t5(pieces));
        };
        let special = |(id, token): (&String, &Value)| {
            let id = id.parse().ok().filter(|id| (0..1i64 << 31).contains(id));
            let id = id.ok_or_else(|| bad(format!("a special token has no id: {token}")))?;
            let text = token["content"].as_str().filter(|text| !text.is_empty());
            let text = text.ok_or_else(|| bad(format!("special token {id} has no text")))?.to_owned();
            let flag = |key: &str| token[key].as_bool().unwrap_or(false);
            Ok(Special { text, id, left: flag("lstrip"), right: flag("rstrip") })
        };
        Ok(Self::new(added.iter().map(special).collect::<Result<_, Failure>>()?))
    }

    fn of_t5(pieces: usize) -> Self {
        let plain = TOKENS.map(|(text, id)| Special { text: text.into(), id, left: false, right: false });
        let sentinel = |n: usize| {
            let id = (pieces + SENTINELS - 1 - n) as i64;
            Special { text: format!("<extra_id_{n}>"), id, left: true, right: true }
        };
        Self::new(plain.into_iter().chain((0..SENTINELS).map(sentinel)).collect())
    }

    /// Adds a token that absorbs no spaces.
    pub fn add(&mut self, text: &str, id: i64) {
        let mut tokens = std::mem::take(&mut self.0);
        tokens.push(Special { text: text.into(), id, left: false, right: false });
        *self = Self::new(tokens);
    }

    fn new(mut tokens: Vec<Special>) -> Self {
        tokens.sort_by(|a, b| b.text.len().cmp(&a.text.len()).then_with(|| a.text.cmp(&b.text)));
        Self(tokens)
    }

    /// Returns the id of a special token.
    pub fn id(&self, text: &str) -> Option<i64> {
        self.0.iter().find(|token| token.text == text).map(|token| token.id)
    }

    /// Returns the largest id.
    pub fn most(&self) -> usize {
        self.0.iter().map(|token| token.id as usize).max().unwrap_or(0)
    }

    /// Returns all tokens as text, from which the identity of a tokenizer is computed.
    pub fn text(&self) -> String {
        self.0.iter().fold(String::new(), |mut text, token| {
            let _ = writeln!(text, "{} {} {} {}", token.text, token.id, token.left, token.right);
            text
        })
    }

    /// Splits a text at special tokens. If several begin at the same place, the longest is taken.
    pub fn split<'a>(&self, text: &'a str) -> Vec<Part<'a>> {
        let mut parts = Vec::new();
        let (mut begin, mut at) = (0, 0);
        let mut swallow = false;
        // The empty text between two adjacent tokens is left out.
        let add = |parts: &mut Vec<Part<'a>>, text: &'a str, left: bool, right: bool| {
            let text = if left { text.trim_start_matches(is_space) } else { text };
            let text = if right { text.trim_end_matches(is_space) } else { text };
            if !text.is_empty() {
                parts.push(Part::Text(text));
            }
        };
        while at < text.len() {
            let rest = &text[at..];
            match self.0.iter().find(|token| rest.starts_with(&token.text)) {
                Some(token) => {
                    add(&mut parts, &text[begin..at], swallow, token.left);
                    parts.push(Part::Token(token.id));
                    at += token.text.len();
                    (begin, swallow) = (at, token.right);
                }
                None => at += rest.chars().next().map_or(1, char::len_utf8),
            }
        }
        add(&mut parts, &text[begin..], swallow, false);
        parts
    }
}

/// Returns whether Python's `str.strip` removes a character.
pub fn is_space(char: char) -> bool {
    char.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&char)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentinels_absorb_the_spaces_around_them_and_other_tokens_do_not() {
        let specials = Specials::of_t5(1000);
        let parts = specials.split(" a\u{1c} <extra_id_99>  b </s> c<extra_id_1><pad>");
        let text = Part::Text;
        assert_eq!(
            parts,
            [text(" a"), Part::Token(1000), text("b "), Part::Token(1), text(" c"), Part::Token(1098), Part::Token(0)]
        );
    }
}
