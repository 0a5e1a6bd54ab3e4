//! Configurations of the encoders whose tables of tensors are in this crate.

use camino::Utf8Path;
use failure::{ErrorCode, Failure};
use serde::de::DeserializeOwned;
use serde_json::Value;
use weights::Parameter;

/// The configuration file of each part of a pipeline.
const CONFIG_FILE: &str = "config.json";

/// Reads the `config.json` of a folder.
///
/// # Errors
/// The file is missing or is not JSON; `wanted` describes the folder to give instead.
pub fn read_config(folder: &Utf8Path, wanted: &str) -> Result<Value, Failure> {
    let path = folder.join(CONFIG_FILE);
    if !path.is_file() {
        let why = if folder.is_dir() { "it has no config.json" } else { "the folder does not exist" };
        let fix = format!("give {wanted}; the folder of a whole model has it inside");
        return Err(Failure::new(ErrorCode::NotFound, format!("cannot use {folder}"), why, fix));
    }
    serde_json::from_str(&failure::read_text(&path)?).map_err(|e| malformed(&path, e.to_string()))
}

/// Reads the fields of a configuration.
///
/// # Errors
/// A field has another type.
pub fn parse<C: DeserializeOwned>(folder: &Utf8Path, config: &Value) -> Result<C, Failure> {
    C::deserialize(config).map_err(|e| malformed(&folder.join(CONFIG_FILE), e.to_string()))
}

/// Makes the failure of a configuration that is not supported.
pub fn unsupported(folder: &Utf8Path, why: String, wanted: &str) -> Failure {
    let what = format!("cannot use {}", folder.join(CONFIG_FILE));
    Failure::new(ErrorCode::UnsupportedModel, what, why, format!("give {wanted}"))
}

/// Checks numbers of a configuration: each at least 1 and at most 4 Mi.
///
/// # Errors
/// The first number outside of this range.
pub fn check_sizes(sizes: &[(&str, usize)]) -> Result<(), String> {
    match sizes.iter().find(|(_, value)| !(1..=1 << 22).contains(value)) {
        Some((key, value)) => Err(format!("{key} is {value}, expected 1 to {}", 1 << 22)),
        None => Ok(()),
    }
}

fn malformed(path: &Utf8Path, why: String) -> Failure {
    let fix = "copy it again from where the model came";
    Failure::new(ErrorCode::Malformed, format!("cannot use {path}"), why, fix)
}

/// A table of tensors under construction.
#[derive(Debug, Default)]
pub struct Table(pub Vec<Parameter>);

impl Table {
    /// Adds a tensor.
    pub fn tensor(&mut self, name: impl Into<String>, shape: impl Into<Vec<usize>>) {
        self.0.push(Parameter::new(name, shape));
    }

    /// Adds a weight of some shape and a bias for its first axis.
    pub fn affine(&mut self, name: &str, shape: impl Into<Vec<usize>>) {
        let shape = shape.into();
        let bias = [shape[0]];
        self.tensor(format!("{name}.weight"), shape);
        self.tensor(format!("{name}.bias"), bias);
    }
}
