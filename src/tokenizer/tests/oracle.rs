//! Compares tokens with those recorded from transformers: every `t5/*/tokenize.json` beside a `tokenizer/`.

#[path = "../../../tests/oracle/mod.rs"]
mod oracle;

use camino::Utf8Path;
use serde_json::Value;
use tokenizer::Tokenizer;

fn ids(row: &Value, key: &str) -> Option<Vec<i64>> {
    Some(row.get(key)?.as_array()?.iter().map(|id| id.as_i64().expect("ids are numbers")).collect())
}

/// The length in tokens of the padded recordings, `ids_226`.
const LEN: usize = 226;

#[test]
fn oracle_scene_tokens_are_those_of_ttt_video_dit() {
    let has = |folder: &Utf8Path| folder.join("scene_tokens.json").is_file() && folder.join("tokenizer").is_dir();
    for folder in oracle::entries("t5", "*/scene_tokens.json beside a tokenizer/", has) {
        let plain = Tokenizer::open(&folder.join("tokenizer")).unwrap();
        let tokenizer = Tokenizer::open(&folder.join("tokenizer")).unwrap().with_scene_tokens();
        let file: Value = serde_json::from_slice(&std::fs::read(folder.join("scene_tokens.json")).unwrap()).unwrap();
        assert_eq!(Some(tokenizer.vocabulary() as u64), file["tokens"].as_u64());
        assert_ne!(tokenizer.identity(), plain.identity());
        let rows = file["rows"].as_array().expect("a list of rows");
        for row in rows {
            let text = row["text"].as_str().expect("a row has a text");
            assert_eq!(Some(tokenizer.ids(text)), ids(row, "ids"), "{text:?}");
        }
        println!("{folder}: {} texts with scene tokens", rows.len());
    }
}

#[test]
fn oracle_tokens_are_those_of_transformers() {
    let has = |folder: &Utf8Path| folder.join("tokenize.json").is_file() && folder.join("tokenizer").is_dir();
    for folder in oracle::entries("t5", "*/tokenize.json beside a tokenizer/", has) {
        let tokenizer = Tokenizer::open(&folder.join("tokenizer")).unwrap_or_else(|f| panic!("{f}"));
        let text = std::fs::read(folder.join("tokenize.json")).unwrap();
        let file: Value = serde_json::from_slice(&text).unwrap();
        let rows = file["rows"].as_array().expect("a list of rows");
        assert!(!rows.is_empty());
        let mut wrong = Vec::new();
        for row in rows {
            let text = row["text"].as_str().expect("a row has a text");
            let recorded = ids(row, "ids").expect("a row has ids");
            // Where the fast and the slow tokenizer of transformers differ, follow the slow one: it is SentencePiece itself.
            let followed = ids(row, "ids_slow").unwrap_or_else(|| recorded.clone());
            let got = tokenizer.ids(text);
            if got != followed {
                wrong.push(format!("{text:?}: {got:?}, recorded {followed:?}"));
                continue;
            }
            assert_eq!(tokenizer.count(text), got.len());
            let mut padded = match (ids(row, "ids_226"), followed == recorded) {
                (Some(padded), true) => padded,
                _ if followed.len() > LEN => [&followed[..LEN - 1], &[1]].concat(),
                _ => followed,
            };
            padded.resize(LEN, 0);
            assert_eq!(tokenizer.encode(text, LEN), padded, "{text:?}");
        }
        assert!(wrong.is_empty(), "{} of {} rows differ:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
        println!("{folder}: {} texts", rows.len());
    }
}
