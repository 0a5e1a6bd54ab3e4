//! The tokenizer of CLIP: byte-pair encoding of lower-case words.
//!
//! It returns the tokens of `CLIPTokenizerFast` of transformers. The slow tokenizer of transformers 4 and OpenAI's own one also repair
//! and unescape texts first; this one does not.

use camino::Utf8Path;
use failure::{ErrorCode, Failure};
use regex::Regex;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use unicode_normalization::UnicodeNormalization;
use xxhash_rust::xxh3::xxh3_128;

/// The tokens before and after a text.
const START: &str = "<|startoftext|>";
const END: &str = "<|endoftext|>";
/// The mark at the end of the last symbol of a word.
const WORD_END: &str = "</w>";
/// Words: contractions, letters, single digits, and runs of other characters.
const WORDS: &str = r"'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+";
const FOLDER: &str = "the tokenizer/ folder of CLIP, such as openai/clip-vit-large-patch14";

/// A tokenizer of CLIP.
#[derive(Debug)]
pub struct ClipTokenizer {
    ids: HashMap<String, u32>,
    /// The merges: a pair of ids, its rank, and the id of the merged symbol.
    merges: HashMap<(u32, u32), (u32, u32)>,
    /// The symbols of the 256 bytes, inside a word and at its end. A symbol that is missing in the vocabulary is unknown.
    bytes: Vec<[u32; 2]>,
    words: Regex,
    start: u32,
    end: u32,
    identity: String,
}

impl ClipTokenizer {
    /// Opens a folder with `vocab.json` and `merges.txt`.
    ///
    /// # Errors
    /// A file cannot be read or is malformed, or they are those of another tokenizer.
    pub fn open(folder: &Utf8Path) -> Result<Self, Failure> {
        let (vocabulary, merges) = (folder.join("vocab.json"), folder.join("merges.txt"));
        let bad = |path: &Utf8Path, why: String| {
            let fix = format!("copy {FOLDER} again from where the model came");
            Failure::new(ErrorCode::Malformed, format!("cannot use {path}"), why, fix)
        };
        let (ids_text, merges_text) = (failure::read_text(&vocabulary)?, failure::read_text(&merges)?);
        let ids: HashMap<String, u32> = serde_json::from_str(&ids_text)
            .map_err(|e| bad(&vocabulary, format!("it does not map texts to ids: {e}")))?;
        let special = |token: &str| {
            ids.get(token).copied().ok_or_else(|| {
                let why = format!("its vocabulary has no {token}");
                Failure::new(
                    ErrorCode::UnsupportedModel,
                    format!("cannot use {vocabulary}"),
                    why,
                    format!("give {FOLDER}"),
                )
            })
        };
        let (start, end) = (special(START)?, special(END)?);
        let mut table = HashMap::new();
        for (rank, line) in merges_text.lines().filter(|line| !line.starts_with("#version")).enumerate() {
            let parts: Vec<&str> = line.split_whitespace().collect();
            let [left, right] = parts[..] else {
                if parts.is_empty() {
                    continue;
                }
                return Err(bad(&merges, format!("a line has {} parts, expected 2: {line}", parts.len())));
            };
            let id = |token: &str| {
                ids.get(token).copied().ok_or_else(|| bad(&merges, format!("{token} is not in the vocabulary")))
            };
            let pair = (id(left)?, id(right)?);
            table.entry(pair).or_insert((rank as u32, id(&format!("{left}{right}"))?));
        }
        let symbol = |text: String| ids.get(&text).copied().unwrap_or(end);
        let bytes =
            printable_bytes().map(|char| [symbol(char.to_string()), symbol(format!("{char}{WORD_END}"))]).collect();
        let identity = format!("{:032x}", xxh3_128(format!("{ids_text}\0{merges_text}").as_bytes()));
        let words = Regex::new(WORDS).expect("the pattern is valid");
        Ok(Self { ids, merges: table, bytes, words, start, end, identity })
    }

    /// Returns `len` ids of a text: the start token, at most `len - 2` tokens, the end token, and padding, which is the end token too.
    pub fn encode(&self, text: &str, len: usize) -> Vec<i64> {
        let mut ids = self.ids(text);
        if ids.len() > len {
            ids.truncate(len.saturating_sub(1));
            ids.push(i64::from(self.end));
            ids.truncate(len);
        }
        ids.resize(len, i64::from(self.end));
        ids
    }

    /// Returns all ids of a text with the start and the end token, without truncation and padding.
    pub fn ids(&self, text: &str) -> Vec<i64> {
        let mut ids = vec![self.start];
        let composed: String = text.nfc().flat_map(char::to_lowercase).collect();
        let mut rest = composed.as_str();
        // The special tokens in a text are these tokens.
        while !rest.is_empty() {
            let next = [(START, self.start), (END, self.end)]
                .into_iter()
                .filter_map(|(token, id)| Some((rest.find(token)?, token, id)))
                .min();
            let (plain, after) = match next {
                Some((at, token, _)) => (&rest[..at], &rest[at + token.len()..]),
                None => (rest, ""),
            };
            for word in self.words.find_iter(plain) {
                self.merge(word.as_str(), &mut ids);
            }
            ids.extend(next.map(|(_, _, id)| id));
            rest = after;
        }
        ids.push(self.end);
        ids.into_iter().map(i64::from).collect()
    }

    /// Returns the number of ids of a text with the start and the end token, without truncation and padding.
    pub fn count(&self, text: &str) -> usize {
        self.ids(text).len()
    }

    /// Returns a hash of vocabulary and merges.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Returns the number of ids: an encoder needs at least as many embeddings.
    pub fn vocabulary(&self) -> usize {
        self.ids.values().max().map_or(0, |&id| id as usize + 1)
    }

    /// Appends the tokens of a word: merges the pair of the lowest rank, the first of equal pairs, until no pair has a rank.
    fn merge(&self, word: &str, ids: &mut Vec<u32>) {
        /// A symbol, and the places of its neighbours; a merged one is `None`.
        struct Symbol {
            id: Option<u32>,
            before: Option<usize>,
            after: Option<usize>,
        }
        let last = word.len() - 1;
        let symbol = |(place, byte): (usize, u8)| Symbol {
            id: Some(self.bytes[usize::from(byte)][usize::from(place == last)]),
            before: place.checked_sub(1),
            after: (place < last).then_some(place + 1),
        };
        let mut symbols: Vec<Symbol> = word.bytes().enumerate().map(symbol).collect();
        let mut queue = BinaryHeap::new();
        let offer = |queue: &mut BinaryHeap<_>, symbols: &[Symbol], left: usize| {
            let right = symbols[left].after?;
            let pair = (symbols[left].id?, symbols[right].id?);
            let &(rank, merged) = self.merges.get(&pair)?;
            queue.push(Reverse((rank, left, pair, merged)));
            Some(())
        };
        for left in 0..last {
            offer(&mut queue, &symbols, left);
        }
        while let Some(Reverse((_, left, pair, merged))) = queue.pop() {
            // One of the two may have been merged with another neighbour.
            let Some(right) = symbols[left].after else { continue };
            if (symbols[left].id, symbols[right].id) != (Some(pair.0), Some(pair.1)) {
                continue;
            }
            let after = symbols[right].after;
            symbols[right].id = None;
            symbols[left].id = Some(merged);
            symbols[left].after = after;
            if let Some(after) = after {
                symbols[after].before = Some(left);
            }
            offer(&mut queue, &symbols, left);
            if let Some(before) = symbols[left].before {
                offer(&mut queue, &symbols, before);
            }
        }
        ids.extend(symbols.into_iter().filter_map(|symbol| symbol.id));
    }
}

/// Returns the characters that stand for the 256 bytes: a printable byte of Latin-1 for itself, the others from U+0100 on.
fn printable_bytes() -> impl Iterator<Item = char> {
    let mut others = '\u{100}'..;
    (0..=255u8).map(move |byte| match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
        _ => others.next().expect("there are more characters than bytes"),
    })
}
