//! Tests that files that are not models are refused, and that no text or file makes the tokenizer panic.

#![allow(clippy::unwrap_used, reason = "a failed unwrap reports its line")]

use camino::{Utf8Path, Utf8PathBuf};
use failure::ErrorCode;
use proptest::prelude::*;
use std::fs;
use std::sync::LazyLock;
use tokenizer::{Error, SentencePiece, Tokenizer};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/oracle/t5/t5_v1_1_tiny/tokenizer");

static MODEL: LazyLock<Vec<u8>> = LazyLock::new(|| fs::read(Utf8Path::new(FOLDER).join("spiece.model")).unwrap());
static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| Tokenizer::open(FOLDER.into()).unwrap());

/// Returns a Protocol Buffers field with these bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, u8::try_from(bytes.len()).unwrap()], bytes].concat()
}

/// Returns a piece of the vocabulary with a type.
fn piece(text: &str, kind: u8) -> Vec<u8> {
    field(1, &[field(1, text.as_bytes()), vec![0x15, 0, 0, 0x80, 0xbf, 0x18, kind]].concat())
}

/// Returns a model of two pieces; `kind` 1 is unigram, 2 is BPE.
fn model(kind: u8) -> Vec<u8> {
    [piece("<unk>", 2), piece("a", 1), field(2, &[0x18, kind])].concat()
}

fn folder(files: &[(&str, &[u8])]) -> (tempfile::TempDir, Utf8PathBuf) {
    let keep = tempfile::tempdir().unwrap();
    let folder = Utf8PathBuf::try_from(keep.path().to_owned()).unwrap();
    for (name, bytes) in files {
        fs::write(folder.join(name), bytes).unwrap();
    }
    (keep, folder)
}

fn refused(files: &[(&str, &[u8])]) -> ErrorCode {
    let (_keep, folder) = folder(files);
    Tokenizer::open(&folder).unwrap_err().code
}

#[test]
fn a_model_of_another_kind_is_refused_by_its_name() {
    assert_eq!(SentencePiece::parse(&model(1)).unwrap().encode("aa"), [0, 1, 1]);
    let Err(Error::Kind(why)) = SentencePiece::parse(&model(2)) else { panic!("a BPE model was read") };
    assert!(why.contains("BPE"), "{why}");
    assert_eq!(refused(&[("spiece.model", &model(2))]), ErrorCode::UnsupportedModel);
}

#[test]
fn files_that_are_not_models_are_refused() {
    let no_unknown = piece("a", 1);
    let twice = [model(1), piece("a", 1)].concat();
    let empty_piece = [model(1), piece("", 1)].concat();
    let not_utf8 = [model(1), field(1, &field(1, &[0xff]))].concat();
    let no_bytes = [piece("<unk>", 2), piece("a", 1), field(2, &[0x98, 0x02, 1])].concat();
    let charsmap = [model(1), field(3, &field(2, &[200, 0, 0, 0, 1]))].concat();
    for bad in [b"" as &[u8], b"{\"model\": 1}", &no_unknown, &twice, &empty_piece, &not_utf8, &no_bytes, &charsmap] {
        assert_eq!(refused(&[("spiece.model", bad)]), ErrorCode::Malformed, "{bad:?}");
    }
    assert_eq!(refused(&[]), ErrorCode::NotFound);
}

#[test]
fn the_configuration_of_another_tokenizer_is_refused() {
    let with = |config: &str| refused(&[("spiece.model", &model(1)), ("tokenizer_config.json", config.as_bytes())]);
    assert_eq!(with("{]"), ErrorCode::Malformed);
    assert_eq!(with(r#"{"tokenizer_class": "LlamaTokenizer"}"#), ErrorCode::UnsupportedModel);
    assert_eq!(with(r#"{"added_tokens_decoder": {"x": {"content": "<a>"}}}"#), ErrorCode::Malformed);
    assert_eq!(with(r#"{"added_tokens_decoder": {"7": {}}}"#), ErrorCode::Malformed);
}

#[test]
fn without_a_configuration_the_special_tokens_are_those_of_t5() {
    let (_keep, folder) = folder(&[("spiece.model", &MODEL)]);
    let plain = Tokenizer::open(&folder).unwrap();
    let text = "a <extra_id_0> b </s> <extra_id_99><pad> c";
    assert_eq!(plain.ids(text), TOKENIZER.ids(text));
    assert_eq!(plain.vocabulary(), 1100);
}

#[test]
fn a_text_of_10_000_characters_is_cut_and_counted() {
    let text = "panda ".repeat(10_000 / 6);
    let ids = TOKENIZER.encode(&text, 226);
    assert_eq!((ids.len(), ids[225]), (226, 1));
    assert!(TOKENIZER.count(&text) > 1000);
    assert_eq!(TOKENIZER.encode("", 3), [1, 0, 0]);
    assert_eq!(TOKENIZER.encode("a", 1), [1]);
    assert!(TOKENIZER.encode("a", 0).is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_has_ids_in_the_vocabulary(text in "\\PC*|(.|\u{0}|\u{85}|<extra_id_1>|</s>| |e\u{301}|\u{1100}\u{1161}){0,40}", len in 0usize..40) {
        let ids = TOKENIZER.ids(&text);
        prop_assert!(ids.iter().all(|&id| (0..1100).contains(&id)));
        prop_assert_eq!(ids.last(), Some(&1));
        let cut = TOKENIZER.encode(&text, len);
        prop_assert_eq!(cut.len(), len);
    }

    #[test]
    fn a_damaged_model_is_refused_or_read_and_never_panics(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = MODEL.clone();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if cut.index(3) == 0 {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(model) = SentencePiece::parse(&bytes) {
            model.encode("A panda plays ﬁne Ω e\u{301} 中文 half ½ at 8 o'clock");
        }
    }
}
