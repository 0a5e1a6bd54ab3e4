//! Inspects weights: their format and model, whether they are complete, and statistics of their values.

use crate::config::{Config, ModelFamily};
use crate::location::{SourceKind, SourceLocation};
use crate::source::{CONFIG_FILE, WeightsSource, identify};
use crate::tensor_chunks::for_each_chunk;
use crate::tensor_spans::{Files, StoredTensor};
use crate::write::{Doing, OnProgress, WriteProgress, stopped};
use crate::{Error, cast};
use camino::{Utf8Path, Utf8PathBuf};
use recipe::{Layer, Model};
use rundir::{ErrorCode, Failure};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// The result of the inspection of a file or folder.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Inspection {
    /// The path as the user gave it.
    pub path: Utf8PathBuf,
    /// The kind of file or folder.
    pub kind: SourceKind,
    /// The model family, if known.
    pub family: Option<ModelFamily>,
    /// The number of transformer blocks.
    pub layers: Option<usize>,
    /// The sequence layer that the blocks have besides attention.
    pub layer: Option<Layer>,
    /// Whether all files and tensors are present and have the expected shapes.
    pub complete: bool,
    /// The reason why the weights are not complete.
    pub why: Option<Failure>,
    /// The reason why the trainer does not support the model.
    pub unusable: Option<Failure>,
    /// The number of parameters.
    pub parameters: u64,
    /// The number of parameters of each dtype.
    pub dtypes: BTreeMap<&'static str, u64>,
    /// The total size of the tensor files in bytes.
    pub bytes: u64,
    /// The number of tensors of the training state: the optimizer and averages.
    pub optimizer_tensors: usize,
    /// The training step of a checkpoint.
    pub step: Option<u64>,
    /// The run that saved a checkpoint.
    pub run: Option<String>,
    /// All tensors.
    pub tensors: Vec<TensorRow>,
}

/// A tensor in an inspection.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TensorRow {
    /// The name in the source.
    pub name: String,
    /// The dtype in the source.
    pub dtype: &'static str,
    /// The shape in the source.
    pub shape: Vec<usize>,
    /// The statistics of the values, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stats: Option<Stats>,
}

/// Statistics of the values of a tensor. Values that are not finite are counted and excluded from the rest.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Stats {
    /// The minimum; `None` if no value is finite.
    pub min: Option<f64>,
    /// The maximum; `None` if no value is finite.
    pub max: Option<f64>,
    /// The mean; `None` if no value is finite.
    pub mean: Option<f64>,
    /// The mean of the absolute values; `None` if no value is finite.
    pub mean_abs: Option<f64>,
    /// The number of NaNs.
    pub nan: u64,
    /// The number of infinite values.
    pub infinite: u64,
}

/// Inspects a file or folder. Reads headers, and all values when `stats` is set.
///
/// # Errors
/// Fails when the kind of file is unknown or values cannot be read. Incomplete weights are reported in the result.
pub fn inspect(path: &Utf8Path, stats: bool) -> Result<Inspection, Failure> {
    inspect_with(path, stats, &mut |_| ControlFlow::Continue(()))
}

/// Does the same as [`inspect`] and reports the progress of reading values.
///
/// # Errors
/// Fails as [`inspect`] does, and when `progress` stops the work.
pub fn inspect_with(path: &Utf8Path, stats: bool, progress: OnProgress<'_>) -> Result<Inspection, Failure> {
    let location = identify(path)?;
    match WeightsSource::open_location(location.clone()) {
        Ok(source) => of_source(&source, stats, progress),
        Err(failure) => Ok(incomplete(location, failure)),
    }
}

fn of_source(source: &WeightsSource, stats: bool, progress: OnProgress<'_>) -> Result<Inspection, Failure> {
    let mut dtypes = BTreeMap::new();
    let mut rows = Vec::new();
    let mut files = Files::default();
    let (total, mut done) = (source.tensors.values().map(StoredTensor::bytes).sum(), 0);
    for (name, tensor) in &source.tensors {
        *dtypes.entry(tensor.dtype.name()).or_insert(0) += tensor.elements();
        let stats = if stats { Some(sum_up(&mut files, tensor)?) } else { None };
        done += tensor.bytes();
        if stats.is_some() && progress(WriteProgress { doing: Doing::Reading, done, total }).is_break() {
            return Err(stopped());
        }
        rows.push(TensorRow { name: name.clone(), dtype: tensor.dtype.name(), shape: tensor.shape.clone(), stats });
    }
    let model = source.model.as_ref().and_then(|model| model.as_ref().ok());
    let manifest = source.checkpoint.as_ref().map(|checkpoint| &checkpoint.manifest);
    let why = model.and_then(|model| lacking(source, model).or_else(|| contradicting(source, model)));
    Ok(Inspection {
        path: source.location.path.clone(),
        kind: source.location.kind,
        family: source.family,
        layers: model.map(|model| model.num_layers).or_else(|| blocks(source)),
        layer: model.map(|model| model.layer()),
        complete: why.is_none(),
        why,
        unusable: source.model.as_ref().and_then(|model| model.as_ref().err().cloned()),
        parameters: dtypes.values().sum(),
        dtypes,
        bytes: source.bytes,
        optimizer_tensors: source.optimizer.len(),
        step: manifest.map(|manifest| manifest.step),
        run: manifest.map(|manifest| manifest.run.to_string()),
        tensors: rows,
    })
}

fn incomplete(location: SourceLocation, failure: Failure) -> Inspection {
    let config = Config::read(&location.weights.join(CONFIG_FILE)).ok();
    Inspection {
        path: location.path,
        kind: location.kind,
        family: config.as_ref().map(Config::family),
        layers: config.and_then(|config| usize::try_from(config.num_layers).ok()),
        layer: None,
        complete: false,
        why: Some(failure),
        unusable: None,
        parameters: 0,
        dtypes: BTreeMap::new(),
        bytes: 0,
        optimizer_tensors: 0,
        step: None,
        run: None,
        tensors: Vec::new(),
    }
}

/// Returns a failure if the source lacks tensors of the model.
fn lacking(source: &WeightsSource, model: &Model) -> Option<Failure> {
    let specs = recipe::param_specs(model);
    let wanted = specs.iter().map(|spec| source.name_of(spec));
    let missing: Vec<String> = wanted.filter(|name| !source.tensors.contains_key(name)).collect();
    (!missing.is_empty()).then(|| {
        let what = format!("{} lacks tensors of its model", source.location.path);
        let why = format!("{} of {} are missing: {}", missing.len(), specs.len(), crate::report::some(&missing));
        Failure::new(ErrorCode::TensorMismatch, what, why, "copy it again from its source")
    })
}

/// Returns a failure if tensors do not have the shapes of the model.
fn contradicting(source: &WeightsSource, model: &Model) -> Option<Failure> {
    let specs = recipe::param_specs(model);
    let others: Vec<_> = specs
        .iter()
        .filter_map(|spec| {
            let (name, tensor) = source.tensors.get_key_value(&source.name_of(spec))?;
            (tensor.shape != spec.shape).then_some((name, &tensor.shape, &spec.shape))
        })
        .collect();
    let (name, is, wanted) = others.first()?;
    let what = format!("the configuration of {} does not match its tensors", source.location.path);
    let why = format!(
        "{} of {} tensors have another shape: {name} is {is:?}, expected {wanted:?}",
        others.len(),
        specs.len()
    );
    Some(Failure::new(
        ErrorCode::TensorMismatch,
        what,
        why,
        "use the config.json of these weights, or download both again",
    ))
}

/// Returns the number of blocks according to the tensor names.
fn blocks(source: &WeightsSource) -> Option<usize> {
    let number = |name: &String| {
        let rest = name.strip_prefix("transformer_blocks.").or_else(|| name.strip_prefix("blocks."))?;
        rest.split('.').next()?.parse::<usize>().ok()
    };
    source.tensors.keys().filter_map(number).max().and_then(|last| last.checked_add(1))
}

fn sum_up(files: &mut Files, tensor: &StoredTensor) -> Result<Stats, Error> {
    let (mut min, mut max, mut sum, mut finite) = (f64::INFINITY, f64::NEG_INFINITY, 0.0, 0u64);
    let (mut sum_abs, mut nan, mut infinite) = (0.0, 0, 0);
    for_each_chunk(files, [tensor], |[bytes]| {
        for value in cast::values(tensor.dtype, bytes) {
            if value.is_finite() {
                (min, max, sum, finite) = (min.min(value), max.max(value), sum + value, finite + 1);
                sum_abs += value.abs();
            } else if value.is_nan() {
                nan += 1;
            } else {
                infinite += 1;
            }
        }
    })?;
    let known = |value| (finite > 0).then_some(value);
    let (mean, mean_abs) = (known(sum / finite as f64), known(sum_abs / finite as f64));
    Ok(Stats { min: known(min), max: known(max), mean, mean_abs, nan, infinite })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{copy_folder, shown, temp, write};
    use crate::{Dtype, Form, Header};
    use std::fs;

    fn fixture(name: &str) -> Utf8PathBuf {
        Utf8PathBuf::from("../../tests/fixtures/oracle/cogvideox").join(name)
    }

    #[test]
    fn a_diffusers_model_a_pipeline_and_a_checkpoint_are_distinguished() {
        let (_keep, folder) = temp();
        let model = fixture("cogvideox_5b_i2v_tiny/transformer");
        let request = crate::ConvertRequest::new(&model, folder.join("inner"), Form::Internal);
        crate::plan_conversion(&request).unwrap().execute(false, 0.0, 1, &mut |_| ControlFlow::Continue(())).unwrap();
        let index = model.join("diffusion_pytorch_model.safetensors.index.json");
        let index: serde_json::Value = serde_json::from_slice(&fs::read(index).unwrap()).unwrap();
        let parts = [
            (model, SourceKind::Diffusers),
            (fixture("cogvideox_5b_i2v_tiny"), SourceKind::Pipeline),
            (folder.join("inner"), SourceKind::Checkpoint),
        ];
        for (path, kind) in parts {
            let seen = inspect(&path, false).unwrap();
            let family = seen.family.map(ModelFamily::name);
            assert_eq!((seen.kind, family, seen.layers), (kind, Some("CogVideoX I2V, learned positions"), Some(2)));
            assert_eq!((seen.complete, seen.tensors.len()), (true, 65), "{:?}", seen.why);
            assert_eq!(seen.dtypes, BTreeMap::from([("F32", seen.parameters)]));
            assert_eq!(4 * seen.parameters, index["metadata"]["total_size"]);
        }
    }

    #[test]
    fn a_missing_shard_is_reported_as_incomplete() {
        let (_keep, folder) = temp();
        let model = folder.join("m");
        copy_folder(&fixture("cogvideox_2b_tiny/transformer"), &model);
        fs::remove_file(model.join("diffusion_pytorch_model-00002-of-00003.safetensors")).unwrap();
        let seen = inspect(&model, false).unwrap();
        let family = seen.family.map(ModelFamily::name);
        assert_eq!((seen.complete, family, seen.layers), (false, Some("CogVideoX, sincos positions"), Some(2)));
        let failure = seen.why.unwrap();
        assert_eq!(failure.code, ErrorCode::NotFound);
        insta::assert_snapshot!(shown(&failure, &folder));
        fs::create_dir(folder.join("step-00000040")).unwrap();
        let seen = inspect(&folder.join("step-00000040"), false).unwrap();
        assert_eq!((seen.kind, seen.complete), (SourceKind::Checkpoint, false));
    }

    #[test]
    fn a_configuration_of_other_weights_is_reported_as_incomplete() {
        let (_keep, folder) = temp();
        copy_folder(&fixture("cogvideox_2b_tiny/transformer"), &folder);
        let config = fs::read_to_string(folder.join(CONFIG_FILE)).unwrap();
        let wider = config.replace("\"text_embed_dim\": 24", "\"text_embed_dim\": 32");
        assert_ne!(wider, config);
        fs::write(folder.join(CONFIG_FILE), wider).unwrap();
        let seen = inspect(&folder, false).unwrap();
        let failure = seen.why.unwrap();
        assert_eq!(failure.code, ErrorCode::TensorMismatch);
        insta::assert_snapshot!(shown(&failure, &folder));
        assert!(!seen.complete);
    }

    #[test]
    fn statistics_exclude_and_count_values_that_are_not_finite() {
        let (_keep, folder) = temp();
        let path = folder.join("a.safetensors");
        write(&path, &[("w", Dtype::F32, &[6]), ("empty", Dtype::F32, &[0])]);
        let at = Header::read(&path).unwrap().tensors["w"].begin as usize;
        let mut bytes = fs::read(&path).unwrap();
        let numbers = [1.0, f32::NAN, -3.0, 5.0, f32::NAN, f32::INFINITY];
        for (n, value) in numbers.iter().enumerate() {
            bytes[at + 4 * n..at + 4 * n + 4].copy_from_slice(&value.to_le_bytes());
        }
        fs::write(&path, bytes).unwrap();
        let seen = inspect(&path, true).unwrap();
        let stats = |name: &str| seen.tensors.iter().find(|row| row.name == name).unwrap().stats.unwrap();
        let w = Stats { min: Some(-3.0), max: Some(5.0), mean: Some(1.0), mean_abs: Some(3.0), nan: 2, infinite: 1 };
        assert_eq!(stats("w"), w);
        let empty = Stats { min: None, max: None, mean: None, mean_abs: None, nan: 0, infinite: 0 };
        assert_eq!(stats("empty"), empty);
    }

    #[test]
    fn an_unknown_file_or_folder_is_refused() {
        let (_keep, folder) = temp();
        let mut refusals = Vec::new();
        let mut code = |path: &Utf8Path| {
            let failure = inspect(path, false).unwrap_err();
            refusals.push(shown(&failure, &folder));
            failure.code
        };
        assert_eq!(code(&folder), ErrorCode::UnsupportedModel);
        assert_eq!(code(&folder.join("none")), ErrorCode::NotFound);
        fs::write(folder.join("notes.txt"), "").unwrap();
        assert_eq!(code(&folder.join("notes.txt")), ErrorCode::UnsupportedModel);
        insta::assert_snapshot!(refusals.join("\n\n"));
    }
}
