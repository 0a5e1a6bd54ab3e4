//! The files of a VAE and a text encoder: their configurations, tables of parameters, and tensors. Does not need libtorch.

pub mod config;
pub mod level_memory;
mod memory;
mod shapes;
mod t5;
mod table;
mod tiling;
mod umt5;
mod vae;
mod video_vae;
pub mod wan_vae;

use crate::tensor_spans::{Files, StoredTensor, Tensors};
use crate::{Dtype, Error, shards};
use camino::{Utf8Path, Utf8PathBuf};
use config::CONFIG_FILE;
use rundir::{ErrorCode, Failure, open_regular};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

pub use memory::{Peak, t5_memory, vae_memory};
pub use shapes::{check_latent, check_video};
pub use t5::T5Config;
pub use table::ParameterTable;
pub use tiling::{TileSize, TileSpan, Tiles};
pub use vae::{VaeConfig, Window, windows};
pub use video_vae::{VideoVaeConfig, WAN_TILE};
pub use wan_vae::WanVaeConfig;

/// Keys of a `config.json` that have no effect on the results.
const WITHOUT_EFFECT: [&str; 5] = ["torch_dtype", "dtype", "transformers_version", "architectures", "use_cache"];

/// The number of bytes that are read at a time when a tensor is only hashed.
const BUFFER: usize = 4 << 20;

/// A parameter of an encoder: its name in the files, and its shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// The name in the files of diffusers or transformers.
    pub name: String,
    /// The shape.
    pub shape: Vec<usize>,
}

impl Parameter {
    /// Makes a parameter.
    pub fn new(name: impl Into<String>, shape: impl Into<Vec<usize>>) -> Self {
        Self { name: name.into(), shape: shape.into() }
    }

    /// Returns the bytes of all parameters of a table; `element` is the number of bytes of an element.
    pub fn bytes_of_all(table: &[Self], element: u64) -> u64 {
        table.iter().map(|parameter| parameter.shape.iter().product::<usize>() as u64).sum::<u64>() * element
    }
}

/// The files of an encoder, checked against its table of parameters. Only headers are read at first.
#[derive(Debug, Clone, PartialEq)]
pub struct EncoderFiles {
    /// The tensors by the names of the table.
    pub tensors: Tensors,
    /// The configuration without the keys that have no effect.
    config: String,
}

impl EncoderFiles {
    /// Opens the weights at `path`, a file or a folder, and checks them against a table. `config` is the configuration of the encoder, a part
    /// of its identity.
    ///
    /// `alias` returns another name that a tensor of the table may have in the files. Tensors whose names begin with one of `ignored` may be
    /// in the files and are not read.
    ///
    /// # Errors
    /// A file is missing or damaged; a tensor is missing, has another shape or is quantized; or the files have tensors that are not in the
    /// table.
    pub fn open(
        path: &Utf8Path,
        config: &Value,
        table: &[Parameter],
        alias: impl Fn(&str) -> Option<String>,
        ignored: &[&str],
    ) -> Result<Self, Failure> {
        let what = || format!("cannot use the weights in {path}");
        let fix = || format!("copy {path} again from where the model came: weights and {CONFIG_FILE} of one model");
        let mut found = shards::open(path)?.tensors;
        let mut tensors = Tensors::new();
        for Parameter { name, shape } in table {
            let first = found.remove(name);
            // Tied tensors may be stored under both names.
            let second = alias(name).and_then(|other| found.remove(&other));
            let Some(tensor) = first.or(second) else {
                let why = format!("tensor {name}, of shape {shape:?}, is missing");
                return Err(Failure::new(ErrorCode::TensorMismatch, what(), why, fix()));
            };
            if tensor.shape != *shape {
                let why = format!(
                    "tensor {name} has shape {:?}, but {CONFIG_FILE} describes a model where it has {shape:?}",
                    tensor.shape
                );
                return Err(Failure::new(ErrorCode::TensorMismatch, what(), why, fix()));
            }
            if !matches!(tensor.dtype, Dtype::F16 | Dtype::BF16 | Dtype::F32 | Dtype::F64) {
                let why = format!("tensor {name} is {}, expected F16, BF16, F32 or F64", tensor.dtype);
                let fix = "use weights that are not quantized";
                return Err(Failure::new(ErrorCode::UnsupportedModel, what(), why, fix));
            }
            tensors.insert(name.clone(), tensor);
        }
        if let Some(name) = found.keys().find(|name| !ignored.iter().any(|start| name.starts_with(start))) {
            let why = format!(
                "{} tensors are not in the model that {CONFIG_FILE} describes; the first is {name}",
                found.keys().filter(|name| !ignored.iter().any(|start| name.starts_with(start))).count()
            );
            return Err(Failure::new(ErrorCode::TensorMismatch, what(), why, fix()));
        }
        Ok(Self { tensors, config: effective(config) })
    }

    /// Returns a reader of these tensors that also computes the identity.
    pub fn reader(&self) -> EncoderReader<'_> {
        EncoderReader { files: self, open: Files::default(), buffer: Vec::new(), hashes: BTreeMap::new() }
    }

    /// Reads every tensor and returns the identity: a hash of configuration and weights.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn identity(&self) -> Result<String, Failure> {
        let mut reader = self.reader();
        for name in self.tensors.keys() {
            reader.hash(name)?;
        }
        Ok(reader.identity())
    }

    /// Opens a matrix whose rows are read when they are needed.
    ///
    /// # Errors
    /// The file cannot be opened.
    ///
    /// # Panics
    /// The name is not in the table.
    pub fn rows(&self, name: &str) -> Result<Rows, Failure> {
        let tensor = &self.tensors[name];
        let span = tensor.spans.first().expect("a tensor of the table is not empty");
        let path = span.file.to_path_buf();
        let file = open_regular(&path).map_err(|source| Error::Io { path: path.clone(), source })?;
        let row = tensor.shape[1..].iter().product::<usize>() * tensor.dtype.size();
        Ok(Rows { file, path, begin: span.begin, row, count: tensor.shape[0], dtype: tensor.dtype })
    }

    /// Returns the number of parameters.
    pub fn parameters(&self) -> u64 {
        self.tensors.values().map(StoredTensor::elements).sum()
    }
}

/// Reads tensors of [`EncoderFiles`], and computes their identity.
#[derive(Debug)]
pub struct EncoderReader<'a> {
    files: &'a EncoderFiles,
    open: Files,
    /// The bytes of the tensor that was read last. One buffer is reused for all tensors, which avoids repeated
    /// allocations.
    buffer: Vec<u8>,
    hashes: BTreeMap<&'a str, u128>,
}

impl<'a> EncoderReader<'a> {
    /// Returns whether the table has a tensor.
    pub fn has(&self, name: &str) -> bool {
        self.files.tensors.contains_key(name)
    }

    /// Reads a tensor of the table: its bytes, element type and shape.
    ///
    /// # Errors
    /// A file cannot be read.
    ///
    /// # Panics
    /// The name is not in the table.
    pub fn read(&mut self, name: &str) -> Result<(&[u8], Dtype, &'a [usize]), Failure> {
        let (name, tensor) = self.files.tensors.get_key_value(name).expect("open() checked every name of the table");
        self.buffer.resize(usize::try_from(tensor.bytes()).expect("tensors fit in the address space"), 0);
        let mut rest = &mut self.buffer[..];
        for span in &tensor.spans {
            let (part, after) = rest.split_at_mut(span.len as usize);
            self.open.read(&span.file, span.begin, part)?;
            rest = after;
        }
        self.hashes.insert(name, xxh3_128(&self.buffer));
        Ok((&self.buffer, tensor.dtype, &tensor.shape))
    }

    /// Adds a tensor to the identity without keeping it in memory.
    ///
    /// # Errors
    /// A file cannot be read.
    ///
    /// # Panics
    /// The name is not in the table.
    pub fn hash(&mut self, name: &str) -> Result<(), Failure> {
        let (name, tensor) = self.files.tensors.get_key_value(name).expect("open() checked every name of the table");
        let (mut hash, mut buffer) = (Xxh3::new(), vec![0; BUFFER]);
        for span in &tensor.spans {
            let mut at = 0;
            while at < span.len {
                let count = (span.len - at).min(BUFFER as u64) as usize;
                self.open.read(&span.file, span.begin + at, &mut buffer[..count])?;
                hash.update(&buffer[..count]);
                at += count as u64;
            }
        }
        self.hashes.insert(name, hash.digest128());
        Ok(())
    }

    /// Returns the identity of the configuration and of all tensors that were read.
    ///
    /// The identity does not depend on how the tensors are distributed over files.
    pub fn identity(&self) -> String {
        let mut all = Xxh3::new();
        all.update(self.files.config.as_bytes());
        for (name, hash) in &self.hashes {
            let tensor = &self.files.tensors[*name];
            all.update(format!("\0{name} {} {:?} ", tensor.dtype, tensor.shape).as_bytes());
            all.update(&hash.to_le_bytes());
        }
        format!("{:032x}", all.digest128())
    }
}

/// A matrix in a file, read row by row.
#[derive(Debug)]
pub struct Rows {
    file: File,
    path: Utf8PathBuf,
    begin: u64,
    /// The size of a row in bytes.
    row: usize,
    count: usize,
    /// The element type.
    pub dtype: Dtype,
}

impl Rows {
    /// Reads rows in the given order; `rows` may contain a row several times.
    ///
    /// # Errors
    /// The file cannot be read.
    ///
    /// # Panics
    /// The matrix has no such row.
    pub fn read(&self, rows: &[i64]) -> Result<Vec<u8>, Failure> {
        let mut bytes = vec![0; rows.len() * self.row];
        let mut read = HashMap::new();
        for (place, &row) in rows.iter().enumerate() {
            let out = place * self.row;
            if let Some(&before) = read.get(&row) {
                bytes.copy_within(before..before + self.row, out);
                continue;
            }
            let number = usize::try_from(row).ok().filter(|&row| row < self.count).expect("the caller checks rows");
            let at = self.begin + (number * self.row) as u64;
            let io = |source| Error::Io { path: self.path.clone(), source };
            self.file.read_exact_at(&mut bytes[out..out + self.row], at).map_err(io)?;
            read.insert(row, out);
        }
        Ok(bytes)
    }
}

/// Returns a configuration as JSON with sorted keys, without comments (keys that begin with `_`) and keys without effect.
fn effective(config: &Value) -> String {
    let keys = config.as_object().into_iter().flatten();
    let kept: BTreeMap<&String, &Value> =
        keys.filter(|(key, _)| !key.starts_with('_') && !WITHOUT_EFFECT.contains(&key.as_str())).collect();
    serde_json::to_string(&kept).expect("a JSON value is JSON")
}

#[cfg(test)]
mod tests;
