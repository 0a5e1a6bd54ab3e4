//! Compares the tokens of CLIP with those recorded from transformers: `opensora_encoders/clip/tokenize.json`.

#![allow(clippy::unwrap_used, reason = "a failed unwrap reports its line")]

#[path = "../../../tests/oracle/mod.rs"]
mod oracle;

use camino::{Utf8Path, Utf8PathBuf};
use failure::ErrorCode;
use proptest::prelude::*;
use serde_json::Value;
use std::sync::LazyLock;
use tokenizer::ClipTokenizer;

const FOLDER: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/oracle/opensora_encoders/clip/tokenizer");

static TOKENIZER: LazyLock<ClipTokenizer> = LazyLock::new(|| ClipTokenizer::open(FOLDER.into()).unwrap());

#[test]
fn oracle_tokens_of_clip_are_those_of_transformers() {
    let has = |folder: &Utf8Path| folder.file_name() == Some("clip") && folder.join("tokenize.json").is_file();
    for folder in oracle::entries("opensora_encoders", "clip/tokenize.json", has) {
        let tokenizer = ClipTokenizer::open(&folder.join("tokenizer")).unwrap_or_else(|f| panic!("{f}"));
        let rows: Value = serde_json::from_slice(&std::fs::read(folder.join("tokenize.json")).unwrap()).unwrap();
        let rows = rows.as_array().filter(|rows| !rows.is_empty()).expect("a list of rows");
        for row in rows {
            let text = row["text"].as_str().expect("a row has a text");
            let want: Vec<i64> = row["ids"].as_array().unwrap().iter().map(|id| id.as_i64().unwrap()).collect();
            assert_eq!(tokenizer.encode(text, want.len()), want, "{text:?}");
        }
        println!("{folder}: {} texts", rows.len());
    }
}

#[test]
fn a_text_that_is_too_long_keeps_its_end_token() {
    let end = TOKENIZER.vocabulary() as i64 - 1;
    let ids = TOKENIZER.encode(&"panda ".repeat(100), 77);
    assert_eq!((ids.len(), ids[0], ids[76]), (77, end - 1, end));
    assert!(ids[1..76].iter().all(|&id| id < end - 1));
    assert!(TOKENIZER.count(&"panda ".repeat(100)) > 100);
    assert_eq!((TOKENIZER.encode("a", 1), TOKENIZER.encode("a", 0)), (vec![end], vec![]));
}

#[test]
fn special_tokens_are_found_whatever_their_case() {
    let end = TOKENIZER.vocabulary() as i64 - 1;
    let [start, a] = [end - 1, TOKENIZER.ids("a")[1]];
    assert_eq!(TOKENIZER.ids("a<|EndOfText|>a <|startoftext|>"), [start, a, end, a, start, end]);
}

fn refused(vocabulary: &str, merges: &str) -> ErrorCode {
    let keep = tempfile::tempdir().unwrap();
    let folder = Utf8PathBuf::try_from(keep.path().to_owned()).unwrap();
    std::fs::write(folder.join("vocab.json"), vocabulary).unwrap();
    std::fs::write(folder.join("merges.txt"), merges).unwrap();
    ClipTokenizer::open(&folder).unwrap_err().code
}

#[test]
fn files_of_other_tokenizers_are_refused() {
    let specials = r#"{"a": 0, "b": 1, "<|startoftext|>": 2, "<|endoftext|>": 3}"#;
    assert_eq!(refused("[]", ""), ErrorCode::Malformed);
    assert_eq!(refused(r#"{"a": 0}"#, ""), ErrorCode::UnsupportedModel);
    assert_eq!(refused(specials, "a b"), ErrorCode::Malformed, "ab is not in the vocabulary");
    assert_eq!(refused(specials, "a b c"), ErrorCode::Malformed);
    assert_eq!(ClipTokenizer::open("no/such/folder".into()).unwrap_err().code, ErrorCode::NotFound);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_has_ids_in_the_vocabulary(text in "\\PC*|(.|\u{0}|<\\|endoftext\\|>| |e\u{301}|'s|1){0,40}", len in 0usize..40) {
        let (ids, count) = (TOKENIZER.ids(&text), TOKENIZER.vocabulary() as i64);
        prop_assert!(ids.iter().all(|&id| (0..count).contains(&id)));
        prop_assert_eq!(TOKENIZER.encode(&text, len).len(), len);
    }
}
