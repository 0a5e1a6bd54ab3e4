//! The parts of a SentencePiece model file that are read, as protobuf messages.
//!
//! Source of the field numbers and defaults: `sentencepiece_model.proto` of SentencePiece.

use prost::Message;

/// A model file.
#[derive(Clone, PartialEq, Message)]
pub struct Model {
    #[prost(message, repeated, tag = "1")]
    pub pieces: Vec<Piece>,
    #[prost(message, optional, tag = "2")]
    pub trainer: Option<Trainer>,
    #[prost(message, optional, tag = "3")]
    pub normalizer: Option<Normalizer>,
}

/// A piece of the vocabulary.
#[derive(Clone, PartialEq, Message)]
pub struct Piece {
    #[prost(string, optional, tag = "1")]
    pub text: Option<String>,
    #[prost(float, optional, tag = "2")]
    pub score: Option<f32>,
    /// 1, a normal piece, if it is not set.
    #[prost(int32, optional, tag = "3", default = "1")]
    pub kind: Option<i32>,
}

/// How the model was trained.
#[derive(Clone, PartialEq, Message)]
pub struct Trainer {
    /// 1, unigram, if it is not set.
    #[prost(int32, optional, tag = "3", default = "1")]
    pub kind: Option<i32>,
    #[prost(bool, optional, tag = "24")]
    pub whitespace_as_suffix: Option<bool>,
    #[prost(bool, optional, tag = "35")]
    pub byte_fallback: Option<bool>,
}

/// How texts are normalized.
#[derive(Clone, PartialEq, Message)]
pub struct Normalizer {
    #[prost(bytes = "vec", optional, tag = "2")]
    pub charsmap: Option<Vec<u8>>,
    #[prost(bool, optional, tag = "3", default = "true")]
    pub add_dummy_prefix: Option<bool>,
    #[prost(bool, optional, tag = "4", default = "true")]
    pub remove_extra_whitespaces: Option<bool>,
    #[prost(bool, optional, tag = "5", default = "true")]
    pub escape_whitespaces: Option<bool>,
}
