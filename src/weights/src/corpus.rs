//! Bad input that was found or thought of, replayed through the reader that it is meant for: each file is refused.

use crate::fixtures::temp;
use crate::fuzz::READERS;
use camino::Utf8PathBuf;
use std::collections::BTreeMap;
use std::fs;

/// The index of the shards in a folder.
pub const INDEX: &str = "model.safetensors.index.json";

/// The bad inputs of one reader, by name.
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
        assert!(!inputs.is_empty(), "nothing bad is known of {}", reader.name);
        for (name, input) in inputs {
            assert!(reader.on(&folder, &input).is_err(), "{}: {name} was read", reader.name);
        }
    }
}
