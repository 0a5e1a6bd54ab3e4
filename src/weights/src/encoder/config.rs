//! Reads and checks the configurations of encoders.

use crate::config::read_text;
use camino::{Utf8Path, Utf8PathBuf};
use rundir::{ErrorCode, Failure};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The configuration file of each part of a pipeline.
pub(super) const CONFIG_FILE: &str = "config.json";

/// The largest number of layers. A table of parameters is built before it is compared with the files, so this limits its size.
pub const MOST_LAYERS: usize = 1024;
/// The largest factor between the channels of a level and those of the first level.
pub const MOST_MULTIPLIER: usize = 64;
/// The largest of other numbers.
pub const MOST: usize = 1 << 22;

/// The `config.json` of an encoder.
#[derive(Debug)]
pub struct ConfigFile {
    folder: Utf8PathBuf,
    text: String,
    /// The configuration, an object.
    pub json: Value,
}

impl ConfigFile {
    /// Reads the `config.json` of a folder.
    ///
    /// # Errors
    /// The folder or the file is missing; `wanted` names the folder to give instead. Or the file is too large, or not a JSON object.
    pub fn read(folder: &Utf8Path, wanted: &str) -> Result<Self, Failure> {
        let path = folder.join(CONFIG_FILE);
        if !path.is_file() {
            let why = if folder.is_dir() { "it has no config.json" } else { "the folder does not exist" };
            let fix = format!("give {wanted}; the folder of a whole model has it inside");
            return Err(Failure::new(ErrorCode::NotFound, format!("cannot use {folder}"), why, fix));
        }
        let text = read_text(&path)?;
        match serde_json::from_str(&text) {
            Ok(json @ Value::Object(_)) => Ok(Self { folder: folder.to_owned(), text, json }),
            Ok(_) => Err(malformed(&path, "it is not an object".into())),
            Err(e) => Err(malformed(&path, e.to_string())),
        }
    }

    /// Returns the folder.
    pub fn folder(&self) -> &Utf8Path {
        &self.folder
    }

    /// Returns the fields of the configuration.
    ///
    /// # Errors
    /// A field is missing or has another type.
    pub fn parse<C: DeserializeOwned>(&self) -> Result<C, Failure> {
        // Errors in the text have a line number, which errors in `json` have not.
        serde_json::from_str(&self.text).map_err(|e| malformed(&self.folder.join(CONFIG_FILE), e.to_string()))
    }

    /// Makes the failure of a configuration that is not supported.
    pub fn unsupported(&self, why: String, fix: &str) -> Failure {
        let what = format!("cannot use {}", self.folder.join(CONFIG_FILE));
        Failure::new(ErrorCode::UnsupportedModel, what, why, fix)
    }
}

fn malformed(path: &Utf8Path, why: String) -> Failure {
    let fix = "copy it again from where the weights came";
    Failure::new(ErrorCode::Malformed, format!("cannot use {path}"), why, fix)
}

/// Checks numbers of a configuration: each at least 1 and at most `most`.
///
/// # Errors
/// The first number outside of this range.
pub fn check_range(most: usize, numbers: &[(&str, usize)]) -> Result<(), String> {
    match numbers.iter().find(|(_, value)| !(1..=most).contains(value)) {
        Some((key, value)) => Err(format!("{key} is {value}, expected 1 to {most}")),
        None => Ok(()),
    }
}

/// Checks the name of the model that a configuration describes.
///
/// # Errors
/// The name is empty, because the key is missing, or another one.
pub fn check_class(key: &str, found: &str, expected: &str) -> Result<(), String> {
    match found {
        _ if found == expected => Ok(()),
        "" => Err(format!("{key} is missing, expected {expected}")),
        other => Err(format!("{key} is {other}, expected {expected}")),
    }
}
