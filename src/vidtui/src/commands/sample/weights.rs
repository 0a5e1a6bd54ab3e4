//! Finds the weights to sample: those of a run or a checkpoint, or other weights, which are converted once.

use crate::command_error::CommandError;
use crate::commands::transfer::Transfer;
use crate::output::note;
use crate::workspace::Workspace;
use camino::{Utf8Path, Utf8PathBuf};
use recipe::{ComputeDtype, SampleScheduler};
use rundir::{ErrorCode, Failure, now_s};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::time::UNIX_EPOCH;
use weights::{ConvertPlan, ConvertRequest, Form, SchedulerConfig, SourceKind, WeightsSource};

/// The folder of converted weights, beside the runs.
const FOLDER: &str = "weights";

/// The weights to sample, the conversion that they need, and the sampling defaults of their folder.
pub struct SampledWeights {
    /// A run, a checkpoint, or the weights that `conversion` will convert.
    pub source: WeightsSource,
    /// The conversion that must run first; `None` if the trainer can load `source`.
    pub conversion: Option<ConvertPlan>,
    /// The sampling defaults beside the weights; `None` for a run or a checkpoint.
    pub pipeline: Option<Pipeline>,
}

/// Sampling defaults from the files of a diffusers folder.
pub struct Pipeline {
    /// The folder, if it contains the VAE, the text encoder and the tokenizer.
    pub encoders: Option<Utf8PathBuf>,
    /// The sampler for the class in `scheduler_config.json`; `Auto` if there is none or it is unknown.
    pub scheduler: SampleScheduler,
    /// Whether condition images and known pixels get noise: `add_noise_in_inpaint_model` in the config of the transformer.
    pub image_noise: bool,
}

impl SampledWeights {
    /// Finds weights. Weights of diffusers and of other trainers need a conversion, unless they were converted earlier.
    pub fn find(workspace: &Workspace, given: &str) -> Result<Self, CommandError> {
        let source = WeightsSource::open(&workspace.find_weights(given)?)?;
        let kind = source.location.kind;
        if matches!(kind, SourceKind::Checkpoint | SourceKind::Run) {
            return Ok(Self { source, conversion: None, pipeline: None });
        }
        if kind == SourceKind::Lora {
            let path = &source.location.path;
            return Err(CommandError::request(Failure::new(
                ErrorCode::UnsupportedModel,
                format!("cannot sample {path}"),
                "it is an adapter, not a model",
                format!("sample its model with it: vidtui sample MODEL --lora {path} --prompt TEXT"),
            )));
        }
        source.model()?;
        let pipeline = Some(Pipeline::of(&source)?);
        let target = workspace.runs.join(FOLDER).join(name(&source)?);
        if let Ok(source) = WeightsSource::open(&target) {
            return Ok(Self { source, conversion: None, pipeline });
        }
        let link = matches!(kind, SourceKind::Diffusers | SourceKind::Pipeline);
        let request =
            |link| ConvertRequest { link, ..ConvertRequest::new(&source.location.path, &target, Form::Internal) };
        let mut plan = weights::plan_conversion(&request(link))?;
        if link && !same_disk(&source, &workspace.runs) {
            plan = weights::plan_conversion(&request(false))?;
        }
        plan.check(false)?;
        Ok(Self { source, conversion: Some(plan), pipeline })
    }

    /// Returns the dtype for sampling weights that no run of this console trained: bfloat16 if they have a bfloat16 tensor, otherwise
    /// float32. float16 has more significant bits than bfloat16, so float16 weights are sampled in float32.
    pub fn dtype(&self) -> ComputeDtype {
        let is_bfloat16 = self.source.tensors.values().any(|tensor| tensor.dtype == weights::Dtype::BF16);
        if is_bfloat16 { ComputeDtype::Bfloat16 } else { ComputeDtype::Float32 }
    }

    /// Runs the conversion, if there is one, and makes its result the source.
    pub fn convert(&mut self) -> Result<(), CommandError> {
        let Some(plan) = self.conversion.take() else { return Ok(()) };
        if let Some(folder) = plan.target.parent() {
            std::fs::create_dir_all(folder).map_err(|error| rundir::Error::io("create", folder, error))?;
        }
        let (from, to, bytes) = (&plan.source.location.path, &plan.target, units::short_size(plan.bytes()));
        note!("converting {from} to {to} ({bytes} to write, once)");
        let mut transfer = Transfer::begin();
        let random = RandomState::new().hash_one(std::process::id()) as u32;
        let done = plan.execute(false, now_s(), random, &mut |progress| transfer.step(progress));
        transfer.end();
        done?;
        self.source = WeightsSource::open(&plan.target)?;
        Ok(())
    }
}

impl Pipeline {
    fn of(source: &WeightsSource) -> Result<Self, Failure> {
        let weights = &source.location.weights;
        let transformer = if weights.is_dir() { weights } else { weights.parent().unwrap_or(weights) };
        let folder = transformer.parent().unwrap_or(transformer);
        let config = folder.join("scheduler/scheduler_config.json");
        let scheduler = match config.is_file() {
            true => match SchedulerConfig::read(&config)?.class_name.as_str() {
                "CogVideoXDDIMScheduler" => SampleScheduler::Ddim,
                "CogVideoXDPMScheduler" => SampleScheduler::Dpm,
                _ => SampleScheduler::Auto,
            },
            false => SampleScheduler::Auto,
        };
        let encoders = dataset::check_folder(folder).is_ok().then(|| folder.to_owned());
        // Only a diffusers transformer has a config.json beside its weights.
        let config = rundir::read_text(&transformer.join("config.json")).ok();
        let config: Option<Value> = config.and_then(|text| serde_json::from_str(&text).ok());
        let image_noise = config.is_some_and(|config| config["add_noise_in_inpaint_model"] == true);
        Ok(Self { encoders, scheduler, image_noise })
    }
}

/// Returns the folder name of the converted weights: the name of the model, and a hash of the path, the model and its files.
fn name(source: &WeightsSource) -> Result<String, Failure> {
    let path = &source.location.path;
    let real = path.canonicalize_utf8().map_err(|error| rundir::Error::io("find", path, error))?;
    let mut files = BTreeMap::new();
    for span in source.tensors.values().flat_map(|tensor| &tensor.spans) {
        let file = &*span.file;
        if !files.contains_key(file) {
            let about = file.metadata().map_err(|error| rundir::Error::io("read", file, error))?;
            let changed = about.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            files.insert(file, (about.len(), changed));
        }
    }
    let hash = rundir::xxh3_hex(format!("{real} {files:?} {:?}", source.model()?.to_table()).as_bytes());
    // A snapshot in the cache of the Hub is named after its commit; the folder above `snapshots` has the name of the model.
    let model = real.as_str().rsplit_once("/snapshots/").map_or(real.as_str(), |(model, _)| model);
    let model = model.rsplit('/').next().unwrap_or_default().rsplit("--").next().unwrap_or_default();
    Ok(format!("{}-{}", model.trim_end_matches(".safetensors"), &hash[..8]))
}

/// Returns whether the weights are on the file system of a folder, so that hard links are possible.
fn same_disk(source: &WeightsSource, folder: &Utf8Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let disk = |path: &Utf8Path| path.ancestors().find_map(|path| path.metadata().ok()).map(|about| about.dev());
    let files = source.tensors.values().flat_map(|tensor| &tensor.spans);
    let disks: BTreeSet<_> = files.map(|span| disk(&span.file)).collect();
    disks.len() == 1 && disks.contains(&disk(folder))
}
