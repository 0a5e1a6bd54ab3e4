//! Replays the corpus of invalid inputs through their readers, which must refuse every file.

use crate::fixtures::temp;
use crate::fuzz::READERS;
use camino::Utf8PathBuf;
use std::collections::BTreeMap;
use std::fs;

/// The name of the index of a folder of shards.
pub const INDEX: &str = "model.safetensors.index.json";

/// Returns the invalid inputs of one reader by file name.
pub fn inputs(reader: &str) -> BTreeMap<String, Vec<u8>> {
    let folder = Utf8PathBuf::from("../../tests/fixtures/weights/corpus").join(reader);
    let Ok(entries) = folder.read_dir_utf8() else { return BTreeMap::new() };
    let files = entries.map(|entry| entry.unwrap().into_path());
    files.map(|file| (file.file_name().unwrap().to_owned(), fs::read(file).unwrap())).collect()
}

#[test]
fn every_bad_input_of_the_corpus_is_refused() {
    for reader in &READERS {
        let (_keep, folder) = temp();
        reader.prepare(&folder);
        let inputs = inputs(reader.name);
        assert!(!inputs.is_empty(), "the corpus has no input for {}", reader.name);
        for (name, input) in inputs {
            assert!(reader.on(&folder, &input).is_err(), "{}: {name} was read", reader.name);
        }
    }
}
