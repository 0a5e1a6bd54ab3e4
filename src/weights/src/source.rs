//! Identifies weights and opens them in any supported format.

use crate::checkpoint_tensors::{checkpoint_tensors, use_average};
use crate::config::{Config, ModelFamily, json_of, model_from_diffusers, read_json, read_text};
use crate::location::{SourceKind, SourceLocation, TTT_FILE};
use crate::lora::{self, LoraFile};
use crate::naming::{self, Names, Recognized};
use crate::scheduler::SchedulerConfig;
use crate::tensor_spans::{StoredTensor, Tensors, tensors_of_header};
use crate::{Header, dcp, shards, torch_file, wan};
use camino::{Utf8Path, Utf8PathBuf};
use recipe::{Model, ParamSpec, UseEma};
use rundir::{Checkpoint, ErrorCode, Failure, RunDir};
use serde_json::Value;

/// The metadata key of [`TTT_FILE`] with the `[model]` section of a recipe as TOML.
pub(crate) const TTT_MODEL: &str = "model";
/// The file of converted weights with the `[model]` section of a recipe.
pub(crate) const MODEL_FILE: &str = "model.toml";
/// The configuration file of a diffusers model.
pub(crate) const CONFIG_FILE: &str = "config.json";
/// The configuration file of the scheduler of a diffusers pipeline.
const SCHEDULER_FILE: &str = "scheduler_config.json";

/// The file name stem that diffusers uses for a model.
pub(crate) const DIFFUSERS_STEM: &str = "diffusion_pytorch_model";

/// Weights, ready to be read.
#[derive(Debug, Clone)]
pub struct WeightsSource {
    /// The kind and the paths of the weights.
    pub location: SourceLocation,
    /// The naming scheme of the tensors.
    pub names: Names,
    /// The model family, if known.
    pub family: Option<ModelFamily>,
    /// The model, or the reason why the trainer does not support it; `None` without a configuration.
    pub model: Option<Result<Model, Failure>>,
    /// The original text of the `config.json` of the weights.
    pub config: Option<String>,
    /// Whether the latent scale is known. Otherwise the model has the default.
    pub latent_scale_known: bool,
    /// Whether the noise schedule is known. Otherwise the model has the schedule of the published model.
    pub schedule_known: bool,
    /// The parameters.
    pub tensors: Tensors,
    /// The tensors of the training state: the optimizer and averages.
    pub optimizer: Tensors,
    /// The number of parameters that were replaced by their moving averages (EMA).
    pub averages: usize,
    /// The checkpoint, if the source is one.
    pub checkpoint: Option<Checkpoint>,
    /// The total size of the tensor files in bytes.
    pub bytes: u64,
    /// Whether the files have other names of tensors than `tensors`, with the prefixes of wrappers.
    pub(crate) renamed: bool,
}

/// Identifies a file or folder.
///
/// # Errors
/// Fails when the path does not exist or its kind is unknown.
pub fn identify(path: &Utf8Path) -> Result<SourceLocation, Failure> {
    let what = || format!("cannot identify {path}");
    let found = |kind, weights: Utf8PathBuf| Ok(SourceLocation { path: path.to_owned(), kind, weights });
    if !path.exists() {
        return Err(Failure::new(ErrorCode::NotFound, what(), "the path does not exist", "check the path"));
    }
    if !path.is_dir() {
        let has_config = path.parent().unwrap_or(Utf8Path::new("")).join(CONFIG_FILE).is_file();
        if torch_file::has_torch_name(path) {
            let kind = match torch_file::open_torch_file(path) {
                Ok(tensors) if lora::has_adapter_names(&tensors) => SourceKind::Lora,
                Ok(tensors) if has_config && naming::is_diffusers(&tensors) => SourceKind::Diffusers,
                _ => SourceKind::Torch,
            };
            return found(kind, path.to_owned());
        }
        if !path.as_str().ends_with(".safetensors") && !path.as_str().ends_with(".json") {
            let fix = "give a .safetensors, .pt or .pth file, the index of a sharded model, or a folder";
            return Err(Failure::new(ErrorCode::UnsupportedModel, what(), "the file type is not supported", fix));
        }
        if lora::is_adapter(path) {
            return found(SourceKind::Lora, path.to_owned());
        }
        return found(if has_config { SourceKind::Diffusers } else { SourceKind::Safetensors }, path.to_owned());
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
    let names = shards::names(path).unwrap_or_default();
    if has(CONFIG_FILE) && has_model_weights(path, &names) {
        return found(SourceKind::Diffusers, path.to_owned());
    }
    if lora::is_adapter(path) {
        return found(SourceKind::Lora, path.to_owned());
    }
    if has(CONFIG_FILE) {
        return found(SourceKind::Diffusers, path.to_owned());
    }
    if names.iter().any(|name| name.ends_with(".safetensors") || name.contains(".safetensors.index.")) {
        return found(SourceKind::Safetensors, path.to_owned());
    }
    let why = "it has no model_index.json, config.json, manifest.toml, run.toml, .metadata or .safetensors file";
    Err(Failure::new(
        ErrorCode::UnsupportedModel,
        what(),
        why,
        "give a diffusers model or pipeline, a checkpoint, a run, or a .safetensors file",
    ))
}

/// Returns whether a folder has the weights of a model, and not only those of adapters.
fn has_model_weights(folder: &Utf8Path, names: &[String]) -> bool {
    let is_model = |name: &String| {
        let header = || Header::read(&folder.join(name)).ok();
        name.ends_with(".safetensors")
            && name != TTT_FILE
            && !lora::is_adapter_name(name)
            && header().is_some_and(|header| !lora::has_adapter_names(&tensors_of_header(&header)))
    };
    names.iter().any(|name| name.starts_with(DIFFUSERS_STEM)) || names.iter().any(is_model)
}

impl WeightsSource {
    /// Opens weights and checks that they are complete. Reads only headers.
    ///
    /// # Errors
    /// The files are missing, damaged or contradict each other. The failure names the file.
    pub fn open(path: &Utf8Path) -> Result<Self, Failure> {
        Self::open_location(identify(path)?)
    }

    /// Opens weights, or their moving average (EMA) if there is one and `ema` allows it.
    ///
    /// # Errors
    /// As [`WeightsSource::open`]; or `ema` requires a moving average, and there is none.
    pub fn open_average(path: &Utf8Path, ema: UseEma) -> Result<Self, Failure> {
        let mut source = Self::open(path)?;
        source.averages = use_average(path, &mut source.tensors, &source.optimizer, ema)?;
        Ok(source)
    }

    /// Opens identified weights.
    ///
    /// # Errors
    /// Fails as [`WeightsSource::open`] does.
    pub fn open_location(location: SourceLocation) -> Result<Self, Failure> {
        match location.kind {
            SourceKind::Run => {
                let run = RunDir::new(&location.weights);
                if let Ok(meta) = run.read_run() {
                    meta.refuse_if_attached(format!("cannot read the weights of {}", location.path))?;
                }
                let newest = other_trainers::latest_strict(&run)?.ok_or_else(|| {
                    let fix = format!("resume the run until it saves a checkpoint: vidtui resume {}", run.name());
                    Failure::new(
                        ErrorCode::NoCheckpoint,
                        format!("cannot read the weights of {}", location.path),
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
                Ok(Self::by_names(location, shards.tensors, shards.bytes))
            }
            SourceKind::Lora => {
                LoraFile::open_location(&location, UseEma::Auto)?;
                let opened = lora::open_files(&location.weights)?;
                Ok(Self::new(location, Names::Unknown, opened.tensors, opened.bytes))
            }
            SourceKind::Torch => {
                let tensors = torch_file::open_torch_file(&location.weights)?;
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

    /// Returns the model of the weights.
    ///
    /// # Errors
    /// The model is unknown, or the trainer does not support it.
    pub fn model(&self) -> Result<&Model, Failure> {
        match &self.model {
            Some(Ok(model)) => Ok(model),
            Some(Err(failure)) => Err(failure.clone()),
            None => {
                let why = match self.location.kind {
                    SourceKind::Checkpoint => "the checkpoint is outside of its run and has no model.toml",
                    SourceKind::Torch | SourceKind::Dcp if self.names != Names::Diffusers => {
                        "its tensor names are not those of ttt-video-dit"
                    }
                    _ => "it has no config.json",
                };
                let fix = "give a folder with the configuration: a diffusers model, or a run";
                Err(Failure::new(
                    ErrorCode::UnsupportedModel,
                    format!("cannot determine the model of {}", self.location.path),
                    why,
                    fix,
                ))
            }
        }
    }

    /// Returns the name of a parameter in this source.
    pub(crate) fn name_of(&self, spec: &ParamSpec) -> String {
        match self.names {
            Names::Diffusers => spec.diffusers.clone(),
            Names::TttVideo => spec.ttt_video(),
            Names::Wan => wan::name_in_release(&spec.name),
            Names::Internal | Names::Unknown => None,
        }
        .unwrap_or_else(|| spec.name.clone())
    }

    /// Creates a source without a configuration, with the naming scheme and the model that tensor names and shapes imply.
    fn by_names(location: SourceLocation, tensors: Tensors, bytes: u64) -> Self {
        let Recognized { names, tensors, others } = naming::recognize(tensors);
        let model = match names {
            Names::TttVideo => Some(naming::model_of_ttt_video(&tensors)),
            Names::Wan => Some(wan::model_of_release(&tensors)),
            Names::Diffusers | Names::Internal | Names::Unknown => None,
        };
        let mut source = Self::new(location, names, tensors, bytes);
        source.optimizer = others;
        source.family = model.as_ref().and_then(|model| model.as_ref().ok()).map(ModelFamily::of);
        let is_wan = names == Names::Wan;
        (source.latent_scale_known, source.schedule_known) = (is_wan, is_wan);
        source.model = model;
        source
    }

    fn new(location: SourceLocation, names: Names, tensors: Tensors, bytes: u64) -> Self {
        Self {
            location,
            names,
            family: None,
            model: None,
            config: None,
            latent_scale_known: false,
            schedule_known: false,
            tensors,
            optimizer: Tensors::new(),
            averages: 0,
            checkpoint: None,
            bytes,
            renamed: false,
        }
    }

    fn of_diffusers(location: SourceLocation) -> Result<Self, Failure> {
        let folder = match location.weights.is_dir() {
            true => location.weights.clone(),
            false => location.weights.parent().unwrap_or(Utf8Path::new("")).to_owned(),
        };
        let path = folder.join(CONFIG_FILE);
        let text = read_text(&path)?;
        let json = json_of(&path, &text)?;
        if wan::is_config(&json) {
            return Self::of_wan(location, &folder, &json, text);
        }
        let config = Config::parse(&path, &text)?;
        let shards = shards::open_any(&location.weights)?;
        lora::check_merged(&location.path, &shards.tensors)?;
        let (tensors, renamed) = naming::unwrapped(shards.tensors);
        let mut source = Self::new(location.clone(), Names::Diffusers, tensors, shards.bytes);
        source.renamed = renamed;
        source.family = Some(config.family());
        let mut model = model_from_diffusers(&config);
        if let Some(vae) = beside(&folder, "vae", CONFIG_FILE) {
            let (latent_scale, invert_image_scale) = vae_scale(&vae)?;
            source.latent_scale_known = true;
            model = model.map(|model| {
                Model { latent_scale, ..model }.with_cogvideox(|keys| keys.invert_image_scale = invert_image_scale)
            });
        }
        if let Some(path) = beside(&folder, "scheduler", SCHEDULER_FILE) {
            source.schedule_known = true;
            let scheduler = SchedulerConfig::read(&path)?;
            model = model.and_then(|model| scheduler.apply(&path, &model));
        }
        if let Some(table) = model_table(&folder)? {
            source.schedule_known |= table.contains_key("snr_shift_scale");
            source.latent_scale_known |= table.contains_key("latent_scale");
            model = model.and_then(|model| with_keys(&model, &table, &folder.join(MODEL_FILE)));
        }
        let ttt = folder.join(TTT_FILE);
        if ttt.is_file() && ttt != location.weights {
            let header = Header::read(&ttt)?;
            model = model.and_then(|model| with_ttt(&model, &header));
            source.bytes += header.bytes;
            source.tensors.extend(tensors_of_header(&header));
        }
        source.model = Some(model);
        source.config = Some(text);
        Ok(source)
    }

    /// Opens a folder of diffusers with a network of Wan. Its latents need no factor, and flow matching has no noise schedule.
    fn of_wan(location: SourceLocation, folder: &Utf8Path, config: &Value, text: String) -> Result<Self, Failure> {
        let shards = shards::open_any(&location.weights)?;
        lora::check_merged(&location.path, &shards.tensors)?;
        let (tensors, renamed) = naming::unwrapped(shards.tensors);
        let mut model = wan::model_of_config(&folder.join(CONFIG_FILE), config);
        if let Some(table) = model_table(folder)? {
            model = model.and_then(|model| with_keys(&model, &table, &folder.join(MODEL_FILE)));
        }
        Ok(Self {
            family: model.as_ref().ok().map(ModelFamily::of),
            model: Some(model),
            config: Some(text),
            latent_scale_known: true,
            schedule_known: true,
            renamed,
            ..Self::new(location, Names::Diffusers, tensors, shards.bytes)
        })
    }

    fn of_checkpoint(location: SourceLocation, dir: &Utf8Path) -> Result<Self, Failure> {
        let checkpoint = Checkpoint::open(dir)?;
        let tensors = checkpoint_tensors(&checkpoint)?;
        let (optimizer, tensors) = tensors.into_iter().partition(|(name, _)| name.contains('/'));
        let model = checkpoint_model(dir)?;
        Ok(Self {
            location,
            names: Names::Internal,
            family: model.as_ref().map(|(model, _)| ModelFamily::of(model)),
            latent_scale_known: model.as_ref().is_some_and(|(_, known)| *known),
            schedule_known: true,
            model: model.map(|(model, _)| Ok(model)),
            config: rundir::model_config(dir).as_deref().map(read_text).transpose()?,
            tensors,
            optimizer,
            averages: 0,
            bytes: checkpoint.bytes,
            checkpoint: Some(checkpoint),
            renamed: false,
        })
    }
}

/// Returns the path of a file in another folder of the pipeline that a transformer belongs to. The pipeline and the transformer
/// may be symbolic links.
fn beside(transformer: &Utf8Path, folder: &str, file: &str) -> Option<Utf8PathBuf> {
    let places = [camino::absolute_utf8(transformer).ok(), transformer.canonicalize_utf8().ok()].into_iter().flatten();
    let pipelines = places.filter(|place| place.file_name() == Some("transformer"));
    pipelines.filter_map(|place| Some(place.parent()?.join(folder).join(file))).find(|path| path.is_file())
}

/// Returns the scaling factor of a VAE, and whether image latents are divided by it.
fn vae_scale(vae: &Utf8Path) -> Result<(f64, bool), Failure> {
    let config = read_json(vae)?;
    let bad = |why: String| {
        let fix = "copy it again from the source of the weights";
        Failure::new(ErrorCode::Malformed, format!("cannot use {vae}"), why, fix)
    };
    let scale = match &config["scaling_factor"] {
        Value::Null => return Err(bad("it has no scaling_factor".into())),
        given => given
            .as_f64()
            .filter(|scale| *scale > 0.0 && scale.is_finite())
            .ok_or_else(|| bad(format!("its scaling_factor is {given}, expected a number above 0")))?,
    };
    let invert = match &config["invert_scale_latents"] {
        Value::Null => false,
        given => given
            .as_bool()
            .ok_or_else(|| bad(format!("its invert_scale_latents is {given}, expected true or false")))?,
    };
    Ok((scale, invert))
}

/// The keys of `[model]` that a diffusers `config.json` cannot express, besides those of TTT layers.
pub(crate) const OWN_KEYS: [&str; 12] = [
    "latent_scale",
    "rotary",
    "ignore_learned_positions",
    "resize_positions",
    "timesteps",
    "beta_start",
    "beta_end",
    "beta_schedule",
    "snr_shift_scale",
    "zero_terminal_snr",
    "timestep_spacing",
    "invert_image_scale",
];

/// Returns a model with the [`OWN_KEYS`] in the file at `path`.
fn with_keys(model: &Model, table: &toml::Table, path: &Utf8Path) -> Result<Model, Failure> {
    let mut keys = model.to_table();
    keys.extend(OWN_KEYS.iter().filter_map(|key| Some(((*key).to_owned(), table.get(*key)?.clone()))));
    Model::from_table(&keys).map_err(|e| {
        let fix = "convert the model again, or move the file away";
        Failure::new(ErrorCode::Malformed, format!("cannot use {path}"), e.why, fix)
    })
}

/// Returns the `[model]` section of a folder's [`MODEL_FILE`]; `None` without the file.
fn model_table(folder: &Utf8Path) -> Result<Option<toml::Table>, Failure> {
    let path = folder.join(MODEL_FILE);
    if !path.is_file() {
        return Ok(None);
    }
    let bad = |why: String| {
        Failure::new(ErrorCode::Malformed, format!("cannot use {path}"), why, "convert the weights again")
    };
    let text = rundir::read_text(&path)?;
    let table: toml::Table = text.parse().map_err(|e: toml::de::Error| bad(e.to_string()))?;
    match table.get("model") {
        Some(toml::Value::Table(section)) => Ok(Some(section.clone())),
        _ => Err(bad("it has no [model] section".into())),
    }
}

/// Adds the TTT layers of [`TTT_FILE`] to a model.
fn with_ttt(model: &Model, header: &Header) -> Result<Model, Failure> {
    let bad = |why: String| {
        Failure::new(
            ErrorCode::Malformed,
            format!("cannot use {}", header.path),
            why,
            "convert the model again, or move the file away",
        )
    };
    let text = header.metadata.get(TTT_MODEL).ok_or_else(|| bad("its header has no model".into()))?;
    let table: toml::Table = text.parse().map_err(|e: toml::de::Error| bad(e.to_string()))?;
    let ttt = Model::from_table(&table).map_err(|e| bad(e.why))?;
    let model = &with_keys(model, &table, &header.path)?;
    let same = Model { latent_scale: ttt.latent_scale, ..model.clone() }.with_cogvideox(|keys| {
        keys.layer = ttt.cogvideox().layer;
        keys.segments = ttt.segments();
        keys.ttt_mini_batch = ttt.cogvideox().ttt_mini_batch;
        keys.ttt_base_lr = ttt.cogvideox().ttt_base_lr;
        keys.ttt_lr_alignment = ttt.cogvideox().ttt_lr_alignment;
    });
    let shape = |m: &Model| (m.num_layers, m.num_heads, m.head_dim);
    if shape(&ttt) != shape(model) {
        return Err(bad(format!(
            "its model has {:?} layers, heads and head_dim, config.json has {:?}",
            shape(&ttt),
            shape(model)
        )));
    }
    Ok(same)
}

/// Returns the model of a checkpoint from its model file or its run, and whether the latent scale is known. `None` if the checkpoint
/// has no model file and is outside of a run.
pub(crate) fn checkpoint_model(dir: &Utf8Path) -> Result<Option<(Model, bool)>, Failure> {
    if let Some(section) = model_table(dir)? {
        let known = section.contains_key("latent_scale");
        let path = dir.join(MODEL_FILE);
        let bad = |e: recipe::RecipeError| {
            Failure::new(ErrorCode::Malformed, format!("cannot use {path}"), e.why, "convert the weights again")
        };
        return Model::from_table(&section).map(|model| Some((model, known))).map_err(bad);
    }
    let real = dir.canonicalize_utf8().unwrap_or(dir.to_owned());
    let Some(run) = real.parent().and_then(Utf8Path::parent).map(RunDir::new) else { return Ok(None) };
    if !run.run_toml().exists() || run.checkpoints() != real.parent().unwrap_or(&real) {
        return Ok(None);
    }
    Ok(Some((run.read_run()?.recipe()?.model, true)))
}
