//! Compares tokens with Google's `sentencepiece` on random texts, for models of several kinds.
//!
//! Needs Python with that package: the interpreter in `VIDTUI_PYTHON`, or the one that `cargo xtask bench encoders` installs.

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::Value;
use std::process::{Command, Stdio};
use tokenizer::SentencePiece;

const HERE: &str = env!("CARGO_MANIFEST_DIR");
const TEXTS: &str = "4000";

/// Returns the Python that has the package.
fn python() -> Option<Utf8PathBuf> {
    let absolute = |name: &str| std::env::var(name).ok().map(Utf8PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    let python = absolute("VIDTUI_PYTHON").unwrap_or_else(|| cache.join("vidtui/bench-python/bin/python"));
    let has = Command::new(&python).args(["-c", "import sentencepiece"]).stderr(Stdio::null()).status();
    has.is_ok_and(|status| status.success()).then_some(python)
}

#[test]
fn random_texts_have_the_tokens_of_googles_sentencepiece() {
    let Some(python) = python() else {
        return println!("skipped: no Python with sentencepiece; `cargo xtask bench encoders` installs one");
    };
    let keep = tempfile::tempdir().unwrap();
    let folder = Utf8Path::from_path(keep.path()).unwrap();
    let given = Utf8Path::new(HERE).join("../../tests/fixtures/oracle/t5/t5_v1_1_tiny/tokenizer/spiece.model");
    let script = Utf8Path::new(HERE).join("tests/google.py");
    let run = Command::new(python).args([script.as_str(), folder.as_str(), TEXTS, given.as_str()]).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let mut models = 0;
    for path in folder.read_dir_utf8().unwrap().map(|entry| entry.unwrap().into_path()) {
        if path.extension() != Some("model") {
            continue;
        }
        let model = SentencePiece::parse(&std::fs::read(&path).unwrap()).unwrap_or_else(|e| panic!("{path}: {e:?}"));
        let rows: Value = serde_json::from_slice(&std::fs::read(path.with_extension("json")).unwrap()).unwrap();
        let mut wrong = Vec::new();
        let rows = rows.as_array().unwrap();
        for row in rows {
            let text = row[0].as_str().unwrap();
            let want: Vec<i64> = row[1].as_array().unwrap().iter().map(|id| id.as_i64().unwrap()).collect();
            let got = model.encode(text);
            if got != want {
                wrong.push(format!("{text:?}: {got:?}, expected {want:?}"));
            }
        }
        println!("{}: {} texts, {} differ", path.file_name().unwrap_or(""), rows.len(), wrong.len());
        assert!(wrong.is_empty(), "{path}: {} differ\n{}", wrong.len(), wrong[..wrong.len().min(5)].join("\n"));
        models += 1;
    }
    assert_eq!(models, 7);
}
