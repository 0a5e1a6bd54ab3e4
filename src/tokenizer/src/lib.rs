//! Tokenizers of T5 and CLIP. This crate does not need libtorch.
//!
//! [`Tokenizer`] behaves as `T5Tokenizer` of transformers up to version 4, with `legacy` set as in the pipelines of
//! CogVideoX: it splits a text at special tokens and encodes each part with SentencePiece. [`SentencePiece`] encodes
//! without special tokens, with a unigram model (`spiece.model`), and returns exactly the tokens of Google's program.
//! [`ClipTokenizer`] behaves as the fast tokenizer of CLIP of transformers. [`clean_caption`] cleans captions as Open-Sora 1.2
//! does.

mod captions;
mod charsmap;
mod clip;
mod messages;
mod normalizer;
mod special;
mod unigram;

use camino::{Utf8Path, Utf8PathBuf};
use failure::{ErrorCode, Failure};
use special::{Part, Specials};
use std::borrow::Cow;
use xxhash_rust::xxh3::xxh3_128;

pub use captions::{CleanedCaption, clean_caption, clean_prompt};
pub use clip::ClipTokenizer;
pub use unigram::SentencePiece;

/// The file with the SentencePiece model.
const MODEL: &str = "spiece.model";
/// The default ids of padding and of the end of a text, which every T5 has.
const PAD: i64 = 0;
const END: i64 = 1;

/// The token at the end of the caption of a segment after which another scene begins.
pub const SCENE_END: &str = "<end_scene>";
/// The token at the start of the caption of a segment that begins a scene.
pub const SCENE_START: &str = "<start_scene>";

/// A T5 tokenizer.
#[derive(Debug)]
pub struct Tokenizer {
    model: SentencePiece,
    specials: Specials,
    identity: String,
    pad: i64,
    end: i64,
    cleans: bool,
}

impl Tokenizer {
    /// Opens a `tokenizer/` folder: `spiece.model`, and the special tokens of `tokenizer_config.json` if it exists.
    ///
    /// # Errors
    /// `spiece.model` cannot be read, is not a SentencePiece model, or is of another kind than unigram; or
    /// `tokenizer_config.json` cannot be read, is malformed, or belongs to another tokenizer than T5's.
    pub fn open(folder: &Utf8Path) -> Result<Self, Failure> {
        let path = folder.join(MODEL);
        let bytes = read(&path)?;
        let model = SentencePiece::parse(&bytes).map_err(|error| error.into_failure(&path))?;
        let specials = Specials::read(folder, model.len())?;
        let identity = format!("{:032x}", xxh3_128(&[&bytes, specials.text().as_bytes()].concat()));
        let id = |name: &str, or: i64| specials.id(name).or_else(|| model.id(name)).unwrap_or(or);
        Ok(Tokenizer { pad: id("<pad>", PAD), end: id("</s>", END), model, specials, identity, cleans: false })
    }

    /// Adds the scene tokens of ttt-video-dit, with the ids after all others: 32100 for [`SCENE_END`] and 32101 for [`SCENE_START`] with
    /// T5's vocabulary. A tokenizer that has them already keeps its ids.
    ///
    /// Source: ttt-video-dit `data/precomp_text.py:78` and `ttt/models/cogvideo/sampler.py:94`, which add the tokens in this order.
    pub fn with_scene_tokens(mut self) -> Self {
        for token in [SCENE_END, SCENE_START] {
            if self.specials.id(token).is_none() {
                let id = self.vocabulary() as i64;
                self.specials.add(token, id);
            }
        }
        self.identity = format!("{:032x}", xxh3_128(format!("{} {}", self.identity, self.specials.text()).as_bytes()));
        self
    }

    /// Cleans every text before it becomes tokens ([`clean_prompt`]), as for umT5 in Wan.
    pub fn with_cleaning(self) -> Self {
        let identity = format!("{:032x}", xxh3_128(format!("{} cleaned", self.identity).as_bytes()));
        Tokenizer { cleans: true, identity, ..self }
    }

    /// Returns `len` ids of a text: at most `len - 1` tokens, `</s>`, and padding.
    pub fn encode(&self, text: &str, len: usize) -> Vec<i64> {
        let mut ids = self.tokens(text);
        ids.truncate(len.saturating_sub(1));
        self.finish(&mut ids);
        ids.truncate(len);
        ids.resize(len, self.pad);
        ids
    }

    /// Returns the number of ids of a text with `</s>`, without truncation and padding.
    pub fn count(&self, text: &str) -> usize {
        self.ids(text).len()
    }

    /// Returns all ids of a text with `</s>`, without truncation and padding.
    pub fn ids(&self, text: &str) -> Vec<i64> {
        let mut ids = self.tokens(text);
        self.finish(&mut ids);
        ids
    }

    /// Returns a hash of the model and the special tokens.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Returns the number of ids, special tokens included: an encoder needs at least as many embeddings.
    pub fn vocabulary(&self) -> usize {
        self.model.len().max(self.specials.most() + 1)
    }

    fn tokens(&self, text: &str) -> Vec<i64> {
        let cleaned = if self.cleans { Cow::Owned(clean_prompt(text)) } else { Cow::Borrowed(text) };
        let text = cleaned.as_ref();
        let mut ids = Vec::new();
        for part in self.specials.split(text) {
            match part {
                Part::Text(text) => self.model.encode_into(text, &mut ids),
                Part::Token(id) => ids.push(id),
            }
        }
        ids
    }

    /// Appends `</s>` to the ids, unless they already end in it.
    fn finish(&self, ids: &mut Vec<i64>) {
        if ids.last() != Some(&self.end) {
            ids.push(self.end);
        }
    }
}

/// The reason why a file is not a usable model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// The file is not a SentencePiece model, or is damaged.
    Malformed(String),
    /// The file is a model of another kind, such as BPE.
    Kind(String),
}

impl Error {
    fn into_failure(self, path: &Utf8Path) -> Failure {
        match self {
            Error::Malformed(why) => Failure::new(
                ErrorCode::Malformed,
                format!("{path} is not a valid SentencePiece model"),
                why,
                "copy the tokenizer/ folder again from where the model came",
            ),
            Error::Kind(why) => Failure::new(
                ErrorCode::UnsupportedModel,
                format!("cannot use {path}"),
                why,
                "give the tokenizer/ folder of a model of CogVideoX or Wan, which is that of T5 or umT5",
            ),
        }
    }
}

fn read(path: &Utf8PathBuf) -> Result<Vec<u8>, Failure> {
    text_file::read_regular(path, text_file::MAX_TEXT).map_err(|e| {
        let fix = "give the tokenizer/ folder of a model of CogVideoX or Wan";
        Failure::new(ErrorCode::of_io(&e), format!("cannot read {path}"), e.to_string(), fix)
    })
}
