//! Compares cleaned captions with those recorded from Open-Sora 1.2: `opensora_encoders/clean_1_2.json`.

#![allow(clippy::unwrap_used, reason = "a failed unwrap reports its line")]

#[path = "../../../tests/oracle/mod.rs"]
mod oracle;

use proptest::prelude::*;
use serde_json::Value;
use tokenizer::clean_caption;

#[test]
fn oracle_captions_are_cleaned_as_by_open_sora() {
    let is = |path: &camino::Utf8Path| path.file_name() == Some("clean_1_2.json");
    for path in oracle::entries("opensora_encoders", "clean_1_2.json", is) {
        let rows: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let rows = rows.as_array().filter(|rows| !rows.is_empty()).expect("a list of rows");
        let text = |row: &Value, key: &str| row[key].as_str().unwrap().to_owned();
        let wrong: Vec<_> = rows
            .iter()
            .map(|row| (text(row, "text"), clean_caption(&text(row, "text")).text, text(row, "cleaned")))
            .filter(|(_, got, want)| got != want)
            .collect();
        assert!(wrong.is_empty(), "caption, cleaned, recorded: {wrong:#?}");
        println!("{path}: {} captions", rows.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_caption_is_cleaned_without_a_panic(text in "\\PC*|(.|a\\.com|@|%e2|&amp;|<b>|</|<!--|&#x|-|\u{1b}\\[|â€œ| |9){0,40}") {
        let cleaned = clean_caption(&text);
        prop_assert!((0.0..=1.0).contains(&cleaned.lost));
        prop_assert_eq!(cleaned.text.trim(), cleaned.text.as_str());
    }
}
