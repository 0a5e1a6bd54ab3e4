//! What a file or folder is, and the tensors in it, whatever their form.

use crate::config::{Config, Family, model_from_diffusers, read_json, read_text};
use crate::lora::{self, Lora, is_lora};
use crate::naming::{self, Recognized};
use crate::shards::{self, Shards};
use crate::tensor_spans::{Span, StoredTensor, Tensors};
use crate::{Dtype, Header, dcp, torch_file};
use camino::{Utf8Path, Utf8PathBuf};
use recipe::{Model, ParamSpec};
use rundir::{Checkpoint, ErrorCode, Failure, LogicalTensor, RunDir, TensorBox};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Beside a diffusers model: the TTT layers that it has no place for, under our names.
pub const TTT_FILE: &str = "ttt.safetensors";
/// In the header of [`TTT_FILE`]: the `[model]` section of a recipe, as TOML.
pub(crate) const TTT_MODEL: &str = "model";
/// Beside converted weights: the `[model]` section of a recipe that fits them.
pub(crate) const MODEL_FILE: &str = "model.toml";
/// The configuration of a diffusers model.
pub(crate) const CONFIG_FILE: &str = "config.json";

/// How the names of files end that `torch.save` wrote.
const TORCH_ENDS: [&str; 4] = [".pt", ".pth", ".bin", ".ckpt"];

/// What a file or folder is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceKind {
    /// A folder with `config.json` and weights, or one such file beside its configuration.
    Diffusers,
    /// A folder of a whole pipeline, with a diffusers model in `transformer/`.
    Pipeline,
    /// Safetensors without a configuration.
    Safetensors,
    /// A checkpoint of ours.
    Checkpoint,
    /// A run, which stands for its newest complete checkpoint.
    Run,
    /// A state dict that `torch.save` wrote.
    Torch,
    /// The folder of a distributed checkpoint of PyTorch, such as those of ttt-video-dit.
    Dcp,
    /// A LoRA adapter: a file, or its folder.
    Lora,
}

impl SourceKind {
    /// The kind in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Diffusers => "diffusers model",
            Self::Pipeline => "diffusers pipeline",
            Self::Safetensors => "safetensors",
            Self::Checkpoint => "checkpoint",
            Self::Run => "run",
            Self::Torch => "torch state dict",
            Self::Dcp => "torch distributed checkpoint",
            Self::Lora => "LoRA adapter",
        }
    }
}

impl fmt::Display for SourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.words())
    }
}

/// Whose names the tensors of a source have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Names {
    /// Those of diffusers.
    Diffusers,
    /// Ours.
    Internal,
    /// Those of ttt-video-dit.
    TttVideo,
    /// Unknown ones.
    Unknown,
}

/// A file or folder whose kind is known; nothing of it is checked yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceLocation {
    /// The path as it was given.
    pub path: Utf8PathBuf,
    /// What it is.
    pub kind: SourceKind,
    /// The folder or file that holds the weights.
    pub weights: Utf8PathBuf,
}

/// Weights, ready to be read.
#[derive(Debug, Clone)]
pub struct Source {
    /// What and where they are.
    pub location: SourceLocation,
    /// Whose names the tensors have.
    pub names: Names,
    /// The family, where it is known.
    pub family: Option<Family>,
    /// The model, or why the trainer cannot hold it; none without a configuration.
    pub model: Option<Result<Model, Failure>>,
    /// The `config.json` that the weights came with, as it was written.
    pub config: Option<String>,
    /// Whether the scale of latents is known, or only a default.
    pub latent_scale_known: bool,
    /// The parameters.
    pub tensors: Tensors,
    /// The tensors of the optimizer.
    pub optimizer: Tensors,
    /// The checkpoint, if it is one.
    pub checkpoint: Option<Checkpoint>,
    /// The size of all files that hold tensors.
    pub bytes: u64,
}

/// Says what a file or folder is.
///
/// # Errors
/// When there is nothing, or nothing that is known.
pub fn identify(path: &Utf8Path) -> Result<SourceLocation, Failure> {
    let what = || format!("cannot tell what {path} is");
    let found = |kind, weights: Utf8PathBuf| Ok(SourceLocation { path: path.to_owned(), kind, weights });
    if !path.exists() {
        return Err(Failure::new(ErrorCode::NotFound, what(), "there is no such file or folder", "check the path"));
    }
    if !path.is_dir() {
        if TORCH_ENDS.iter().any(|end| path.as_str().ends_with(end)) {
            return found(SourceKind::Torch, path.to_owned());
        }
        if !path.as_str().ends_with(".safetensors") && !path.as_str().ends_with(".json") {
            let fix = "give a .safetensors, .pt or .pth file, the index of one in shards, or a folder";
            return Err(Failure::new(
                ErrorCode::UnsupportedModel,
                what(),
                "it is not a kind of file that is understood",
                fix,
            ));
        }
        if path.as_str().ends_with(".safetensors") && Header::read(path).is_ok_and(|h| is_lora(h.tensors.keys())) {
            return found(SourceKind::Lora, path.to_owned());
        }
        let beside = path.parent().unwrap_or(Utf8Path::new("")).join(CONFIG_FILE);
        return found(if beside.is_file() { SourceKind::Diffusers } else { SourceKind::Safetensors }, path.to_owned());
    }
    let has = |name: &str| path.join(name).exists();
    if RunDir::new(path).run_toml().exists() {
        return found(SourceKind::Run, path.to_owned());
    }
    if has("manifest.toml") || path.file_name().is_some_and(|name| name.starts_with("step-")) {
        return found(SourceKind::Checkpoint, path.to_owned());
    }
    if has(dcp::METADATA) {
        return found(SourceKind::Dcp, path.to_owned());
    }
    if has("model_index.json") || path.join("transformer").join(CONFIG_FILE).exists() {
        return found(SourceKind::Pipeline, path.join("transformer"));
    }
    if has(lora::PEFT_CONFIG) || has(lora::DIFFUSERS_FILE) || has(lora::KOHYA_FILE) {
        return found(SourceKind::Lora, path.to_owned());
    }
    if has(CONFIG_FILE) {
        return found(SourceKind::Diffusers, path.to_owned());
    }
    let mut names = path.read_dir_utf8().into_iter().flatten().flatten().map(|e| e.file_name().to_owned());
    if names.any(|name| name.ends_with(".safetensors") || name.contains(".safetensors.index.")) {
        return found(SourceKind::Safetensors, path.to_owned());
    }
    let why =
        "it holds neither model_index.json, config.json, manifest.toml, run.toml, .metadata nor a .safetensors file";
    Err(Failure::new(
        ErrorCode::UnsupportedModel,
        what(),
        why,
        "give a diffusers model or pipeline, a checkpoint, a run, or a .safetensors file",
    ))
}

impl Source {
    /// Opens weights and checks that all of them are there. Reads headers only.
    ///
    /// # Errors
    /// Names the file and what is wrong with it.
    pub fn open(path: &Utf8Path) -> Result<Self, Failure> {
        Self::open_location(identify(path)?)
    }

    /// Opens what was identified.
    ///
    /// # Errors
    /// As [`Source::open`].
    pub fn open_location(location: SourceLocation) -> Result<Self, Failure> {
        match location.kind {
            SourceKind::Run => {
                let run = RunDir::new(&location.weights);
                let newest = adapters::latest_for_sure(&run)?.ok_or_else(|| {
                    let fix = format!("let it save one first: vidtui resume {}", run.name());
                    Failure::new(
                        ErrorCode::NoCheckpoint,
                        format!("cannot read weights of {}", location.path),
                        "it has no complete checkpoint",
                        fix,
                    )
                })?;
                Self::of_checkpoint(location, &newest.dir)
            }
            SourceKind::Checkpoint => {
                let dir = location.weights.clone();
                Self::of_checkpoint(location, &dir)
            }
            SourceKind::Diffusers | SourceKind::Pipeline => Self::of_diffusers(location),
            SourceKind::Safetensors => {
                let shards = shards::open(&location.weights)?;
                let bytes = shards.files.iter().map(|file| file.bytes).sum();
                Ok(Self::by_names(location, shards.tensors, bytes))
            }
            SourceKind::Lora => {
                let lora = Lora::open_location(&location)?;
                let shards = Shards { tensors: lora.tensors(), files: Vec::new() };
                let bytes = shards.tensors.values().map(StoredTensor::bytes).sum();
                Ok(Self { bytes, ..Self::new(location, Names::Unknown, shards) })
            }
            SourceKind::Torch => {
                let tensors = torch_file::open(&location.weights)?;
                let bytes = tensors.values().map(StoredTensor::bytes).sum();
                Ok(Self::by_names(location, tensors, bytes))
            }
            SourceKind::Dcp => {
                let tensors = dcp::open(&location.weights)?;
                let bytes = tensors.values().map(StoredTensor::bytes).sum();
                Ok(Self::by_names(location, tensors, bytes))
            }
        }
    }

    /// The model of the weights.
    ///
    /// # Errors
    /// When it is not known, or the trainer cannot hold it.
    pub fn model(&self) -> Result<&Model, Failure> {
        match &self.model {
            Some(Ok(model)) => Ok(model),
            Some(Err(failure)) => Err(failure.clone()),
            None => {
                let why = match self.location.kind {
                    SourceKind::Checkpoint => "it lies outside of its run, and has no model.toml",
                    SourceKind::Torch | SourceKind::Dcp => "the names of its tensors are not those of ttt-video-dit",
                    _ => "there is no config.json beside it",
                };
                let fix = "give the folder that holds the configuration too: a diffusers model, or a run";
                Err(Failure::new(
                    ErrorCode::UnsupportedModel,
                    format!("the shape of the model in {} is not known", self.location.path),
                    why,
                    fix,
                ))
            }
        }
    }

    /// The name that a parameter has here.
    pub(crate) fn name_of(&self, spec: &ParamSpec) -> String {
        match self.names {
            Names::Diffusers => spec.diffusers.clone(),
            Names::TttVideo => spec.ttt_video(),
            Names::Internal | Names::Unknown => None,
        }
        .unwrap_or_else(|| spec.name.clone())
    }

    /// Weights without a configuration: whose they are, and the shape of the model as far as it shows, follow from the
    /// names and shapes of their tensors.
    fn by_names(location: SourceLocation, tensors: Tensors, bytes: u64) -> Self {
        let Recognized { names, tensors, others } = naming::recognize(tensors);
        let model = (names == Names::TttVideo).then(|| naming::model_of_ttt_video(&tensors));
        let mut source = Self::new(location, names, Shards { tensors, files: Vec::new() });
        source.optimizer = others;
        source.family = model.as_ref().and_then(|model| model.as_ref().ok()).map(Family::of);
        source.model = model;
        source.bytes = bytes;
        source
    }

    fn new(location: SourceLocation, names: Names, shards: Shards) -> Self {
        let bytes = shards.files.iter().map(|file| file.bytes).sum();
        Self {
            location,
            names,
            family: None,
            model: None,
            config: None,
            latent_scale_known: false,
            tensors: shards.tensors,
            optimizer: Tensors::new(),
            checkpoint: None,
            bytes,
        }
    }

    fn of_diffusers(location: SourceLocation) -> Result<Self, Failure> {
        let folder = match location.weights.is_dir() {
            true => location.weights.clone(),
            false => location.weights.parent().unwrap_or(Utf8Path::new("")).to_owned(),
        };
        let path = folder.join(CONFIG_FILE);
        let text = read_text(&path)?;
        let config = Config::parse(&path, &text)?;
        let mut source = Self::new(location.clone(), Names::Diffusers, shards::open(&location.weights)?);
        source.family = Some(config.family());
        let mut model = model_from_diffusers(&config);
        if let Some(scale) = vae_scale(&folder)? {
            source.latent_scale_known = true;
            model = model.map(|model| Model { latent_scale: scale, ..model });
        }
        let ttt = folder.join(TTT_FILE);
        if ttt.is_file() && ttt != location.weights {
            let header = Header::read(&ttt)?;
            model = model.and_then(|model| with_ttt(&model, &header));
            source.bytes += header.bytes;
            source.tensors.extend(crate::tensor_spans::of_header(&header));
        }
        source.model = Some(model);
        source.config = Some(text);
        Ok(source)
    }

    fn of_checkpoint(location: SourceLocation, dir: &Utf8Path) -> Result<Self, Failure> {
        let checkpoint = Checkpoint::open(dir)?;
        let tensors = checkpoint_tensors(&checkpoint)?;
        let (optimizer, tensors) = tensors.into_iter().partition(|(name, _)| name.contains('/'));
        let model = checkpoint_model(dir)?;
        Ok(Self {
            location,
            names: Names::Internal,
            family: model.as_ref().map(|(model, _)| Family::of(model)),
            latent_scale_known: model.as_ref().is_some_and(|(_, known)| *known),
            model: model.map(|(model, _)| Ok(model)),
            config: rundir::model_config(dir).as_deref().map(read_text).transpose()?,
            tensors,
            optimizer,
            bytes: checkpoint.bytes,
            checkpoint: Some(checkpoint),
        })
    }
}

/// The scaling factor of the VAE that lies beside the transformer of a pipeline. Either the pipeline or its transformer may
/// be a link to elsewhere.
fn vae_scale(folder: &Utf8Path) -> Result<Option<f64>, Failure> {
    let places = [camino::absolute_utf8(folder).ok(), folder.canonicalize_utf8().ok()].into_iter().flatten();
    let pipelines = places.filter(|place| place.file_name() == Some("transformer"));
    let vae = |place: Utf8PathBuf| Some(place.parent()?.join("vae").join(CONFIG_FILE));
    let Some(vae) = pipelines.filter_map(vae).find(|vae| vae.is_file()) else { return Ok(None) };
    match read_json(&vae)?["scaling_factor"].as_f64() {
        Some(scale) if scale > 0.0 && scale.is_finite() => Ok(Some(scale)),
        found => {
            let why = format!("its scaling_factor is {found:?}, not a number above 0");
            Err(Failure::new(
                ErrorCode::Malformed,
                format!("cannot use {vae}"),
                why,
                "copy it again from where the weights came",
            ))
        }
    }
}

/// The model with the TTT layers that [`TTT_FILE`] says it has.
fn with_ttt(model: &Model, header: &Header) -> Result<Model, Failure> {
    let bad = |why: String| {
        Failure::new(
            ErrorCode::Malformed,
            format!("cannot use {}", header.path),
            why,
            "convert the model again, or move that file away",
        )
    };
    let text = header.metadata.get(TTT_MODEL).ok_or_else(|| bad("it does not say what model it belongs to".into()))?;
    let table: toml::Table = text.parse().map_err(|e: toml::de::Error| bad(e.to_string()))?;
    let ttt = Model::from_table(&table).map_err(|e| bad(e.why))?;
    let same = Model {
        layer: ttt.layer,
        segments: ttt.segments,
        latent_scale: ttt.latent_scale,
        ttt_mini_batch: ttt.ttt_mini_batch,
        ttt_base_lr: ttt.ttt_base_lr,
        ttt_lr_alignment: ttt.ttt_lr_alignment,
        ..model.clone()
    };
    let shape = |m: &Model| (m.num_layers, m.num_heads, m.head_dim);
    if shape(&ttt) != shape(model) {
        return Err(bad(format!(
            "it belongs to a model of {:?} layers, heads and head width, config.json says {:?}",
            shape(&ttt),
            shape(model)
        )));
    }
    Ok(same)
}

/// The model of a checkpoint, from the file beside it or from the run around it, and whether its latent scale is known.
fn checkpoint_model(dir: &Utf8Path) -> Result<Option<(Model, bool)>, Failure> {
    let beside = dir.join(MODEL_FILE);
    if beside.is_file() {
        let bad = |why: String| {
            Failure::new(ErrorCode::Malformed, format!("cannot use {beside}"), why, "convert the weights again")
        };
        let text = std::fs::read_to_string(&beside).map_err(|e| bad(e.to_string()))?;
        let table: toml::Table = text.parse().map_err(|e: toml::de::Error| bad(e.to_string()))?;
        let section =
            table.get("model").and_then(toml::Value::as_table).ok_or_else(|| bad("it has no [model]".into()))?;
        let known = section.contains_key("latent_scale");
        return Model::from_table(section).map(|model| Some((model, known))).map_err(|e| bad(e.why));
    }
    let real = dir.canonicalize_utf8().unwrap_or(dir.to_owned());
    let Some(run) = real.parent().and_then(Utf8Path::parent).map(RunDir::new) else { return Ok(None) };
    if !run.run_toml().exists() || run.checkpoints() != real.parent().unwrap_or(&real) {
        return Ok(None);
    }
    Ok(Some((run.read_run()?.recipe()?.model, true)))
}

/// The tensors of a checkpoint, each with the ranges of its slices in order.
fn checkpoint_tensors(checkpoint: &Checkpoint) -> Result<Tensors, Failure> {
    let mut headers: BTreeMap<&str, (Header, Arc<Utf8Path>)> = BTreeMap::new();
    let mut tensors = Tensors::new();
    for tensor in &checkpoint.manifest.tensors {
        for slice in &tensor.slices {
            if !headers.contains_key(slice.file.as_str()) {
                let path = checkpoint.dir.join(&slice.file);
                headers.insert(&slice.file, (Header::read(&path)?, Arc::from(path.as_path())));
            }
        }
        tensors.insert(tensor.name.clone(), checkpoint_tensor(checkpoint, tensor, &headers)?);
    }
    Ok(tensors)
}

fn checkpoint_tensor(
    checkpoint: &Checkpoint,
    tensor: &LogicalTensor,
    headers: &BTreeMap<&str, (Header, Arc<Utf8Path>)>,
) -> Result<StoredTensor, Failure> {
    let bad = |why: String| {
        let fix = "use another checkpoint; this one was not written by vidtui, or was changed since";
        Failure::new(
            ErrorCode::Malformed,
            format!("tensor {} of {} is not valid", tensor.name, checkpoint.dir),
            why,
            fix,
        )
    };
    let dtype = Dtype::parse(&tensor.dtype).ok_or_else(|| bad(format!("its type '{}' is unknown", tensor.dtype)))?;
    let whole = TensorBox::whole(&tensor.shape);
    let all = 0..tensor.elements().unwrap_or(0);
    // A box of some columns lies in the tensor as one run for each row.
    let mut runs: Vec<(u64, Span)> = Vec::with_capacity(tensor.slices.len());
    for slice in &tensor.slices {
        let (header, file) = &headers[slice.file.as_str()];
        let info = header.tensor(&slice.key)?;
        if info.dtype != dtype || info.elements() != slice.len {
            return Err(bad(format!(
                "{} holds {} elements of {} for it, the manifest says {} of {dtype}",
                slice.file,
                info.elements(),
                info.dtype,
                slice.len
            )));
        }
        let size = dtype.size() as u64;
        let common = whole.overlaps(all.clone(), &slice.within(&tensor.shape), slice.range());
        runs.extend(common.into_iter().map(|run| {
            (run.here, Span { file: file.clone(), begin: info.begin + run.there * size, len: run.len * size })
        }));
    }
    runs.sort_by_key(|(first, _)| *first);
    let spans = runs.into_iter().map(|(_, span)| span).collect();
    Ok(StoredTensor { dtype, shape: tensor.shape.clone(), spans })
}
