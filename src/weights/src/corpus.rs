//! Bad input that was found or thought of, replayed through the reader that it is meant for: each file is refused.

use crate::fixtures::temp;
use crate::pickle::Pickle;
use crate::{Config, Header, model_from_diffusers, shards};
use camino::{Utf8Path, Utf8PathBuf};
use std::fs;

fn replayed(kind: &str, refused: impl Fn(&Utf8Path) -> bool) {
    let folder = Utf8PathBuf::from("../../tests/fixtures/weights/corpus").join(kind);
    let files: Vec<_> = folder.read_dir_utf8().unwrap().map(|entry| entry.unwrap().into_path()).collect();
    assert!(files.len() > 5);
    for file in files {
        assert!(refused(&file), "{file} was read");
    }
}

#[test]
fn every_bad_safetensors_file_is_refused() {
    replayed("safetensors", |file| Header::read(file).is_err());
}

#[test]
fn every_bad_index_is_refused() {
    let (_keep, folder) = temp();
    let path = folder.join("model.safetensors.index.json");
    replayed("index", |file| {
        fs::copy(file, &path).unwrap();
        shards::open(&folder).is_err()
    });
}

#[test]
fn every_bad_configuration_is_refused() {
    replayed("config", |file| Config::read(file).and_then(|config| model_from_diffusers(&config)).is_err());
}

#[test]
fn every_bad_pickle_is_refused() {
    replayed("pickle", |file| Pickle::read(&fs::read(file).unwrap()).is_err());
}
