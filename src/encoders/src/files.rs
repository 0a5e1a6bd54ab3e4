//! The files of the encoders whose tables of tensors are in this crate: their configuration, tensors and identity.

use camino::{Utf8Path, Utf8PathBuf};
use failure::{ErrorCode, Failure};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};
use weights::{Dtype, Files, Header, Parameter, Span, StoredTensor, Tensors, tensors_of_header};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// The configuration file of each part of a pipeline.
const CONFIG_FILE: &str = "config.json";
/// The names of the file of weights: of diffusers, and of transformers.
const NAMES: [&str; 2] = ["diffusion_pytorch_model.safetensors", "model.safetensors"];
/// Keys of a `config.json` that have no effect on the results.
const WITHOUT_EFFECT: [&str; 5] = ["torch_dtype", "dtype", "transformers_version", "architectures", "use_cache"];

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
        self.0.push(Parameter { name: name.into(), shape: shape.into() });
    }

    /// Adds a weight of some shape and a bias for its first axis.
    pub fn affine(&mut self, name: &str, shape: impl Into<Vec<usize>>) {
        let shape = shape.into();
        let bias = [shape[0]];
        self.tensor(format!("{name}.weight"), shape);
        self.tensor(format!("{name}.bias"), bias);
    }
}

/// The tensors of an encoder, checked against its table. Only headers are read at first.
#[derive(Debug)]
pub struct ModelFiles {
    /// The tensors by the names of the table.
    tensors: Tensors,
    /// The configuration without the keys that have no effect.
    config: String,
}

impl ModelFiles {
    /// Opens the weights at `path` (a file, or the folder of a model) and checks them against a table.
    ///
    /// `aliases` returns another name that a tensor of the table may have in the files. Tensors whose names begin with one of `ignored`
    /// may be in the files and are not read.
    ///
    /// # Errors
    /// A file is missing or damaged; a tensor is missing, has another shape or is quantized; or the files have tensors that are not in
    /// the table.
    pub fn open(
        path: &Utf8Path,
        config: &Value,
        table: &[Parameter],
        aliases: impl Fn(&str) -> Option<String>,
        ignored: &[&str],
    ) -> Result<Self, Failure> {
        let what = || format!("cannot use the weights in {path}");
        let fix = || format!("copy {path} again from where the model came: weights and {CONFIG_FILE} of one model");
        let mismatch = |why: String| Failure::new(ErrorCode::TensorMismatch, what(), why, fix());
        let mut found = if path.is_dir() { tensors_of_folder(path)? } else { tensors_of_header(&Header::read(path)?) };
        let mut tensors = Tensors::new();
        for Parameter { name, shape } in table {
            let first = found.remove(name);
            // Tied tensors may be stored under both names.
            let second = aliases(name).and_then(|other| found.remove(&other));
            let Some(tensor) = first.or(second) else {
                return Err(mismatch(format!("tensor {name}, of shape {shape:?}, is missing")));
            };
            if tensor.shape != *shape {
                let why = format!(
                    "tensor {name} has shape {:?}, but {CONFIG_FILE} describes a model where it has {shape:?}",
                    tensor.shape
                );
                return Err(mismatch(why));
            }
            if !matches!(tensor.dtype, Dtype::F16 | Dtype::BF16 | Dtype::F32 | Dtype::F64) {
                let why = format!("tensor {name} is {}, expected F16, BF16, F32 or F64", tensor.dtype);
                let fix = "use weights that are not quantized";
                return Err(Failure::new(ErrorCode::UnsupportedModel, what(), why, fix));
            }
            tensors.insert(name.clone(), tensor);
        }
        let others = |name: &&String| !ignored.iter().any(|start| name.starts_with(start));
        if let Some(first) = found.keys().find(others) {
            let count = found.keys().filter(others).count();
            let why =
                format!("{count} tensors are not in the model that {CONFIG_FILE} describes; the first is {first}");
            return Err(mismatch(why));
        }
        Ok(Self { tensors, config: effective(config) })
    }

    /// Returns a reader of these tensors that also computes the identity.
    pub fn reader(&self) -> ModelReader<'_> {
        ModelReader { files: self, open: Files::default(), buffer: Vec::new(), hashes: BTreeMap::new() }
    }

    /// Returns a matrix whose rows are read when they are needed.
    ///
    /// # Panics
    /// The name is not in the table.
    pub fn rows(&self, name: &str) -> ModelRows {
        ModelRows { tensor: self.tensors[name].clone(), open: Mutex::default() }
    }
}

/// Returns the tensors of a folder: of the shards in its index, or of its only file.
fn tensors_of_folder(folder: &Utf8Path) -> Result<Tensors, Failure> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    for name in NAMES {
        let whole = folder.join(name);
        let index = Utf8PathBuf::from(format!("{whole}.index.json"));
        if index.is_file() {
            let text = failure::read_text(&index)?;
            let map = serde_json::from_str::<Index>(&text).map_err(|e| malformed(&index, e.to_string()))?.weight_map;
            let mut tensors = Tensors::new();
            for file in map.values().collect::<BTreeSet<_>>() {
                if Utf8Path::new(file).file_name() != Some(file) {
                    let why = format!("it lists a file outside of its folder: '{}'", file.escape_debug());
                    return Err(malformed(&index, why));
                }
                tensors.extend(tensors_of_header(&Header::read(&folder.join(file))?));
            }
            return Ok(tensors);
        }
        if whole.is_file() {
            return Ok(tensors_of_header(&Header::read(&whole)?));
        }
    }
    let why = format!("it has no {} and no index of shards", NAMES.join(" or "));
    let fix = "give the folder of a model with its weights, or copy the folder again";
    Err(Failure::new(ErrorCode::NotFound, format!("cannot read the weights in {folder}"), why, fix))
}

/// Reads tensors of [`ModelFiles`], and computes their identity.
#[derive(Debug)]
pub struct ModelReader<'a> {
    files: &'a ModelFiles,
    open: Files,
    /// The bytes of the tensor that was read last. One buffer is reused for all tensors.
    buffer: Vec<u8>,
    hashes: BTreeMap<&'a str, u128>,
}

impl<'a> ModelReader<'a> {
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
        read_spans(&mut self.open, &tensor.spans, &mut self.buffer)?;
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
        /// The number of bytes that are read at a time.
        const BUFFER: u64 = 4 << 20;
        let (name, tensor) = self.files.tensors.get_key_value(name).expect("open() checked every name of the table");
        let (mut hash, mut buffer) = (Xxh3::new(), vec![0; BUFFER as usize]);
        let mut at = 0;
        while at < tensor.bytes() {
            let count = (tensor.bytes() - at).min(BUFFER);
            read_spans(&mut self.open, &tensor.cut(at, count), &mut buffer[..count as usize])?;
            hash.update(&buffer[..count as usize]);
            at += count;
        }
        self.hashes.insert(name, hash.digest128());
        Ok(())
    }

    /// Returns the identity of the configuration and of all tensors that were read. It does not depend on how the tensors are
    /// distributed over files.
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

/// A matrix in files, read row by row.
#[derive(Debug)]
pub struct ModelRows {
    tensor: StoredTensor,
    open: Mutex<Files>,
}

impl ModelRows {
    /// Returns the element type.
    pub fn dtype(&self) -> Dtype {
        self.tensor.dtype
    }

    /// Reads rows in the given order; `rows` may contain a row several times.
    ///
    /// # Errors
    /// The file cannot be read.
    ///
    /// # Panics
    /// The matrix has no such row.
    pub fn read(&self, rows: &[i64]) -> Result<Vec<u8>, Failure> {
        let size = self.tensor.shape[1..].iter().product::<usize>() * self.tensor.dtype.size();
        let mut bytes = vec![0; rows.len() * size];
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let mut read = HashMap::new();
        for (place, &row) in rows.iter().enumerate() {
            let out = place * size;
            if let Some(&before) = read.get(&row) {
                bytes.copy_within(before..before + size, out);
                continue;
            }
            let inside = usize::try_from(row).ok().filter(|&row| row < self.tensor.shape[0]);
            let number = inside.expect("the caller checks rows");
            let spans = self.tensor.cut((number * size) as u64, size as u64);
            read_spans(&mut open, &spans, &mut bytes[out..out + size])?;
            read.insert(row, out);
        }
        Ok(bytes)
    }
}

fn read_spans(open: &mut Files, spans: &[Span], mut out: &mut [u8]) -> Result<(), Failure> {
    for span in spans {
        let (part, after) = out.split_at_mut(span.len as usize);
        open.read(&span.file, span.begin, part)?;
        out = after;
    }
    Ok(())
}

/// Returns a configuration as JSON with sorted keys, without comments (keys that begin with `_`) and keys without effect.
fn effective(config: &Value) -> String {
    let keys = config.as_object().into_iter().flatten();
    let kept: BTreeMap<&String, &Value> =
        keys.filter(|(key, _)| !key.starts_with('_') && !WITHOUT_EFFECT.contains(&key.as_str())).collect();
    serde_json::to_string(&kept).expect("a JSON value is JSON")
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::tensor::TensorView;
    use serde_json::json;

    fn table() -> Vec<Parameter> {
        let mut table = Table::default();
        table.affine("a", [3, 2]);
        table.tensor("b", [4]);
        table.0
    }

    /// Writes tensors of these names and shapes, whose numbers follow from their names.
    fn write(path: &Utf8Path, tensors: &[(&str, &[usize])]) {
        let bytes = |(name, shape): &(&str, &[usize])| -> Vec<u8> {
            let first = f32::from(name.as_bytes()[name.len() - 1]);
            (0..shape.iter().product::<usize>()).flat_map(|i| (first + i as f32).to_le_bytes()).collect()
        };
        let data: Vec<_> = tensors.iter().map(bytes).collect();
        let views = tensors.iter().zip(&data).map(|((name, shape), data)| {
            (*name, TensorView::new(safetensors::Dtype::F32, shape.to_vec(), data).unwrap())
        });
        std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
    }

    fn open(folder: &Utf8Path, config: &Value) -> Result<ModelFiles, Failure> {
        let alias = |name: &str| (name == "b").then(|| "other.b".to_owned());
        ModelFiles::open(folder, config, &table(), alias, &["unused."])
    }

    fn temporary() -> (tempfile::TempDir, Utf8PathBuf) {
        let keep = tempfile::tempdir().unwrap();
        let folder = Utf8PathBuf::try_from(keep.path().to_owned()).unwrap();
        (keep, folder)
    }

    const A: [(&str, &[usize]); 2] = [("a.weight", &[3, 2]), ("a.bias", &[3])];

    fn identity(files: &ModelFiles) -> String {
        let mut reader = files.reader();
        for Parameter { name, .. } in table() {
            reader.hash(&name).unwrap();
        }
        reader.identity()
    }

    #[test]
    fn shards_have_the_identity_and_the_rows_of_one_file() {
        let ((_one, whole), (_two, shards)) = (temporary(), temporary());
        write(&whole.join("model.safetensors"), &[A[0], A[1], ("b", &[4]), ("unused.x", &[1])]);
        write(&shards.join("model-1.safetensors"), &[A[1], ("b", &[4])]);
        write(&shards.join("model-2.safetensors"), &[A[0]]);
        let map = json!({"weight_map": {
            "a.weight": "model-2.safetensors", "a.bias": "model-1.safetensors", "b": "model-1.safetensors",
        }});
        std::fs::write(shards.join("model.safetensors.index.json"), map.to_string()).unwrap();
        let config = json!({"layers": 2, "_name_or_path": "x", "dtype": "float32"});
        let (whole, shards) = (open(&whole, &config).unwrap(), open(&shards, &json!({"layers": 2})).unwrap());
        assert_eq!(identity(&whole), identity(&shards));
        let mut reader = shards.reader();
        let read = reader.read("a.weight").unwrap().0.to_owned();
        assert_eq!(shards.rows("a.weight").read(&[2, 0, 2]).unwrap(), [&read[16..], &read[..8], &read[16..]].concat());
    }

    #[test]
    fn another_configuration_is_another_identity() {
        let (_keep, folder) = temporary();
        write(&folder.join("model.safetensors"), &[A[0], A[1], ("b", &[4])]);
        let [two, three] = [2, 3].map(|layers| open(&folder, &json!({"layers": layers})).unwrap());
        assert_ne!(identity(&two), identity(&three));
    }

    #[test]
    fn a_tensor_may_have_its_other_name_or_both() {
        let (_keep, folder) = temporary();
        for others in [&[("other.b", &[4_usize][..])][..], &[("other.b", &[4]), ("b", &[4])]] {
            write(&folder.join("model.safetensors"), &[&A[..], others].concat());
            assert!(open(&folder, &Value::Null).is_ok(), "{others:?}");
        }
    }

    #[test]
    fn files_of_another_model_are_refused() {
        let (_keep, folder) = temporary();
        let code = |tensors: &[(&str, &[usize])]| {
            write(&folder.join("model.safetensors"), tensors);
            open(&folder, &Value::Null).unwrap_err().code
        };
        assert_eq!(code(&A), ErrorCode::TensorMismatch, "b is missing");
        assert_eq!(code(&[A[0], A[1], ("b", &[5])]), ErrorCode::TensorMismatch, "b has another shape");
        assert_eq!(code(&[A[0], A[1], ("b", &[4]), ("c", &[1])]), ErrorCode::TensorMismatch, "c is unknown");
        let (_empty, empty) = temporary();
        assert_eq!(open(&empty, &Value::Null).unwrap_err().code, ErrorCode::NotFound);
        let outside = json!({"weight_map": {"b": "../model.safetensors"}});
        std::fs::write(empty.join("model.safetensors.index.json"), outside.to_string()).unwrap();
        assert_eq!(open(&empty, &Value::Null).unwrap_err().code, ErrorCode::Malformed);
    }
}
