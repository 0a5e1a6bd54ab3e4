//! Unigram models of SentencePiece: they cut a normalized text into its most probable sequence of pieces.

use crate::Error;
use crate::messages;
use crate::normalizer::Normalizer;
use prost::Message;
use std::collections::HashMap;

/// The score of an unknown character is this much below the lowest score of a normal piece.
const UNKNOWN_PENALTY: f32 = 10.0;
/// The score of a user-defined piece is its length in bytes times the highest score of a normal piece, minus this, as
/// in SentencePiece.
const USER_DEFINED_PENALTY: f64 = 0.1;
/// The kinds of models by their numbers in the file.
const KINDS: [(i32, &str); 4] = [(1, "unigram"), (2, "BPE"), (3, "word"), (4, "character")];

/// The type of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Type {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// A piece of the vocabulary. Its id is its index.
#[derive(Debug, Clone)]
struct Piece {
    text: String,
    score: f32,
    kind: Type,
}

impl Piece {
    fn read(piece: messages::Piece) -> Result<Self, Error> {
        let kind = match piece.kind() {
            1 => Type::Normal,
            2 => Type::Unknown,
            3 => Type::Control,
            4 => Type::UserDefined,
            5 => Type::Unused,
            6 => Type::Byte,
            other => return Err(Error::Malformed(format!("a piece is of type {other}"))),
        };
        Ok(Self { score: piece.score(), text: piece.text.unwrap_or_default(), kind })
    }
}

/// A SentencePiece unigram model.
#[derive(Debug)]
pub struct SentencePiece {
    normalizer: Normalizer,
    pieces: Vec<Piece>,
    /// The pieces that texts are cut into, in the order of their bytes, with their ids.
    sorted: Vec<(Box<[u8]>, u32)>,
    ids: HashMap<String, u32>,
    unknown: u32,
    unknown_score: f32,
    max_score: f32,
    /// The ids of the 256 byte pieces, if the model encodes unknown characters as bytes.
    bytes: Option<Vec<u32>>,
}

/// The best sequence of pieces for a prefix of the text.
#[derive(Debug, Clone, Copy)]
struct Best {
    id: u32,
    score: f32,
    /// The start of the last piece; `None` if no sequence is known yet.
    start: Option<u32>,
}

impl SentencePiece {
    /// Parses the content of a `.model` file.
    ///
    /// # Errors
    /// The file is not a SentencePiece model, or is of another kind than unigram.
    pub fn parse(file: &[u8]) -> Result<Self, Error> {
        let model = messages::Model::decode(file).map_err(|e| Error::Malformed(e.to_string()))?;
        if model.pieces.is_empty() {
            return Err(Error::Malformed("it has no pieces".into()));
        }
        let trainer = model.trainer.unwrap_or_default();
        let kind = trainer.kind();
        if kind != 1 {
            let name = KINDS.iter().find(|(number, _)| *number == kind).map_or("unknown", |(_, name)| name);
            return Err(Error::Kind(format!("it is a {name} model; only unigram models are supported")));
        }
        let mut normalizer = Normalizer::new(&model.normalizer.unwrap_or_default())?;
        normalizer.whitespace_as_suffix = trainer.whitespace_as_suffix();
        let pieces = model.pieces.into_iter().map(Piece::read).collect::<Result<_, _>>()?;
        Self::new(pieces, normalizer, trainer.byte_fallback())
    }

    fn new(pieces: Vec<Piece>, mut normalizer: Normalizer, byte_fallback: bool) -> Result<Self, Error> {
        let bad = |why: String| Err(Error::Malformed(why));
        let count = u32::try_from(pieces.len()).map_err(|_| Error::Malformed("it has too many pieces".into()))?;
        let mut ids = HashMap::new();
        for (id, piece) in (0..count).zip(&pieces) {
            if piece.text.is_empty() {
                return bad(format!("piece {id} is empty"));
            }
            if piece.score.is_nan() {
                return bad(format!("the score of piece {id} is not a number"));
            }
            if ids.insert(piece.text.clone(), id).is_some() {
                return bad(format!("piece {:?} is listed twice", piece.text));
            }
        }
        let of_type = |kind: Type| (0..count).zip(&pieces).filter(move |(_, piece)| piece.kind == kind);
        let Some((unknown, _)) = of_type(Type::Unknown).next() else {
            return bad("it has no unknown piece".into());
        };
        let scores = || of_type(Type::Normal).map(|(_, piece)| piece.score);
        let (min_score, max_score) = (scores().fold(f32::MAX, f32::min), scores().fold(f32::MIN, f32::max));
        let cut = [Type::Normal, Type::UserDefined].into_iter().flat_map(of_type);
        let mut sorted: Vec<(Box<[u8]>, u32)> = cut.map(|(id, piece)| (piece.text.as_bytes().into(), id)).collect();
        sorted.sort();
        normalizer.user_defined = of_type(Type::UserDefined).map(|(_, piece)| piece.text.clone()).collect();
        normalizer.user_defined.sort_by_key(|piece| std::cmp::Reverse(piece.len()));
        let bytes = match byte_fallback {
            true => {
                let id = |byte| {
                    let name = format!("<0x{byte:02X}>");
                    let found = ids.get(&name).copied().filter(|&id| pieces[id as usize].kind == Type::Byte);
                    found.ok_or_else(|| Error::Malformed(format!("it falls back to bytes and has no piece {name}")))
                };
                Some((0..=255u8).map(id).collect::<Result<Vec<_>, _>>()?)
            }
            false => None,
        };
        let unknown_score = min_score - UNKNOWN_PENALTY;
        Ok(Self { normalizer, pieces, sorted, ids, unknown, unknown_score, max_score, bytes })
    }

    /// Returns the number of pieces.
    #[allow(clippy::len_without_is_empty, reason = "a model has pieces")]
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Returns the id of a piece.
    pub fn id(&self, piece: &str) -> Option<i64> {
        self.ids.get(piece).map(|&id| i64::from(id))
    }

    /// Returns the ids of a text.
    pub fn encode(&self, text: &str) -> Vec<i64> {
        let mut ids = Vec::new();
        self.encode_into(text, &mut ids);
        ids
    }

    /// Appends the ids of a text.
    pub fn encode_into(&self, text: &str, ids: &mut Vec<i64>) {
        let normalized = self.normalizer.normalize(text);
        let mut unknown_before = false;
        for (start, end, id) in self.cut(&normalized) {
            let unknown = id == self.unknown;
            match &self.bytes {
                Some(bytes) if unknown => {
                    let of_piece = &normalized.as_bytes()[start..end];
                    ids.extend(of_piece.iter().map(|&byte| i64::from(bytes[usize::from(byte)])));
                }
                // Consecutive unknown characters are one unknown piece.
                _ if unknown && unknown_before => {}
                _ => ids.push(i64::from(id)),
            }
            unknown_before = unknown;
        }
    }

    /// Cuts a normalized text into pieces. Returns the start, the end (in bytes) and the id of each.
    fn cut(&self, text: &str) -> Vec<(usize, usize, u32)> {
        let bytes = text.as_bytes();
        let mut best = vec![Best { id: self.unknown, score: 0.0, start: None }; bytes.len() + 1];
        for (start, char) in text.char_indices() {
            let before = best[start].score;
            let first_end = start + char.len_utf8();
            let mut first_is_piece = false;
            // Sums are compared in fp64 and kept in fp32, as SentencePiece does.
            let mut offer = |end: usize, id: u32, score: f64| {
                let known = &mut best[end];
                if known.start.is_none() || score > f64::from(known.score) {
                    *known = Best { id, score: score as f32, start: Some(start as u32) };
                }
            };
            // The range of pieces that begin with the bytes so far.
            let mut range = &self.sorted[..];
            for (depth, &byte) in bytes[start..].iter().enumerate() {
                let at = |piece: &(Box<[u8]>, u32)| piece.0.get(depth).copied();
                let from = range.partition_point(|piece| at(piece) < Some(byte));
                let to = range.partition_point(|piece| at(piece) <= Some(byte));
                range = &range[from..to];
                let Some((piece, id)) = range.first() else { break };
                let end = start + depth + 1;
                if piece.len() == depth + 1 {
                    offer(end, *id, self.score(*id, depth + 1) + f64::from(before));
                    first_is_piece |= end == first_end;
                }
            }
            if !first_is_piece {
                offer(first_end, self.unknown, f64::from(self.unknown_score + before));
            }
        }
        let (mut pieces, mut end) = (Vec::new(), bytes.len());
        while end > 0 {
            let Best { id, start, .. } = best[end];
            let start = start.expect("every character has a piece or is unknown") as usize;
            pieces.push((start, end, id));
            end = start;
        }
        pieces.reverse();
        pieces
    }

    /// Returns the score of a piece of `length` bytes.
    fn score(&self, id: u32, length: usize) -> f64 {
        let piece = &self.pieces[id as usize];
        match piece.kind {
            Type::UserDefined => f64::from(length as f32 * self.max_score) - USER_DEFINED_PENALTY,
            _ => f64::from(piece.score),
        }
    }
}
