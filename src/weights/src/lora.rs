//! Reads LoRA adapters of CogVideoX and Wan in the formats of diffusers, PEFT and kohya, and in those of programs with similar names.

mod alpha;
mod apply;
mod files;
mod names;

pub use apply::Factors;
pub(crate) use files::{is_adapter, open as open_files};

use crate::cast::{self, values};
use crate::checkpoint_tensors::{checkpoint_tensors, use_average};
use crate::location::SourceLocation;
use crate::merge::Merge;
use crate::source::checkpoint_model;
use crate::tensor_spans::{Files, StoredTensor, Tensors};
use alpha::Alphas;
use camino::{Utf8Path, Utf8PathBuf};
use files::Opened;
use names::{LayerNames, Modules, Names, OTHER_MODEL, Refusal};
use recipe::{FamilyName, ParamSpec, UseEma, param_specs};
use rundir::{BaseWeights, Checkpoint, ErrorCode, Failure, RunDir};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The file name of an adapter that diffusers saved.
pub(crate) const DIFFUSERS_FILE: &str = "pytorch_lora_weights.safetensors";
/// The file names of an adapter that PEFT saved.
pub(crate) const PEFT_FILE: &str = "adapter_model.safetensors";
pub(crate) const PEFT_CONFIG: &str = "adapter_config.json";
/// The file name for new adapters in kohya's format, which defines no name.
pub(crate) const KOHYA_FILE: &str = "lora.safetensors";
/// The file names of adapters that diffusers, PEFT and this program save.
const FILES: [&str; 3] = [DIFFUSERS_FILE, PEFT_FILE, KOHYA_FILE];
/// The metadata key of a diffusers adapter with rank and alpha as JSON.
pub(crate) const METADATA: &str = "lora_adapter_metadata";
/// The metadata key of the rotary positions that an adapter was trained with: a value of `model.rotary`.
pub(crate) const ROTARY: &str = "vidtui_rotary";

/// The format of an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LoraForm {
    /// `transformer.MODULE.lora_A.weight` in `pytorch_lora_weights.safetensors`.
    Diffusers,
    /// `base_model.model.MODULE.lora_A.weight` in `adapter_model.safetensors`, with `adapter_config.json`.
    Peft,
    /// `lora_unet__MODULE_WITH_UNDERSCORES.lora_down.weight`; for Wan `lora_unet_` and the original name of the layer.
    Kohya,
}

impl LoraForm {
    /// Returns the tensor names of the two factors of a module: down, then up.
    pub(crate) fn names(self, module: &str) -> [String; 2] {
        match self {
            Self::Diffusers => ["A", "B"].map(|factor| format!("transformer.{module}.lora_{factor}.weight")),
            Self::Peft => ["A", "B"].map(|factor| format!("base_model.model.{module}.lora_{factor}.weight")),
            Self::Kohya => {
                let name = names::in_kohya(module);
                ["down", "up"].map(|factor| format!("lora_unet{name}.lora_{factor}.weight"))
            }
        }
    }
}

impl fmt::Display for LoraForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Diffusers => "diffusers",
            Self::Peft => "PEFT",
            Self::Kohya => "kohya",
        })
    }
}

/// The prefix of all names in a model of PEFT.
const PEFT_PREFIX: &str = "base_model.model.";

/// An adapter.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraFile {
    /// The path of the adapter: its file, its folder, a checkpoint or a run.
    pub path: Utf8PathBuf,
    /// The format; `None` for a checkpoint of this trainer.
    pub form: Option<LoraForm>,
    /// The weights that the adapter was trained on. Only a checkpoint of this trainer names them.
    pub base: Option<BaseWeights>,
    /// The layers by their diffusers module name, such as `transformer_blocks.0.attn1.to_q`, or `blocks.0.attn1.to_q` of Wan. Layers that diffusers does not have
    /// (TTT) have this trainer's name, such as `blocks.0.ttt.q`.
    pub layers: BTreeMap<String, LoraLayer>,
    /// Tensors of a checkpoint that belong to no layer. Files with such tensors are refused.
    pub unused: Vec<String>,
    /// A note about layers without an alpha.
    note: Option<String>,
}

/// One layer of an adapter.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraLayer {
    /// The down projection, `[rank, in]`.
    pub down: StoredTensor,
    /// The up projection, `[out, rank]`.
    pub up: StoredTensor,
    /// Alpha: the product of the factors is scaled by alpha / rank.
    pub alpha: f64,
    /// The names of the down and the up projection in the file.
    pub names: [String; 2],
}

impl LoraLayer {
    /// Returns the down and the up projection with their names.
    pub fn factors(&self) -> impl Iterator<Item = (&String, &StoredTensor)> {
        self.names.iter().zip([&self.down, &self.up])
    }

    /// Returns the rank.
    pub fn rank(&self) -> usize {
        self.down.shape[0]
    }
}

/// Returns whether tensors have the names of those of an adapter, which may be one of another method or model.
pub(crate) fn has_adapter_names(tensors: &Tensors) -> bool {
    !matches!(names::find(tensors), Ok(None))
}

/// Returns whether diffusers, PEFT or this program saves adapters under a file name.
pub(crate) fn is_adapter_name(name: &str) -> bool {
    FILES.contains(&name) || FILES.iter().any(|own| own.replace(".safetensors", ".bin") == name)
}

/// Checks that the weights of a model have no factors of an adapter beside them.
pub(crate) fn check_merged(model: &Utf8Path, tensors: &Tensors) -> Result<(), Failure> {
    match names::unmerged(tensors) {
        Some(Refusal { why, fix }) => {
            Err(Failure::new(ErrorCode::UnsupportedModel, format!("cannot read the model {model}"), why, fix))
        }
        None => Ok(()),
    }
}

/// Returns the name of a weight's layer: the diffusers name if there is one, otherwise this trainer's name.
fn module(weight: &ParamSpec) -> Option<&str> {
    weight.diffusers.as_ref().unwrap_or(&weight.name).strip_suffix(".weight")
}

/// Returns the family of the model that adapters of a checkpoint belong to. Outside of its run, a checkpoint does not name it.
fn family_of_adapters(checkpoint: &Checkpoint, tensors: &Tensors) -> FamilyName {
    if let Ok(Some((model, _))) = checkpoint_model(&checkpoint.dir) {
        return model.family.name();
    }
    // CogVideoX has no attention to a text of its own, and four times as many hidden units as its width.
    let is_wan = |(name, up): (&String, &StoredTensor)| {
        let down = || tensors.get(&name.replace(".lora_b", ".lora_a"));
        let is_not_four = |down: &StoredTensor| up.shape.first() != down.shape.get(1).map(|width| 4 * width).as_ref();
        name.contains(".cross_attn.") || name.ends_with(".mlp.up.lora_b") && down().is_some_and(is_not_four)
    };
    if tensors.iter().any(is_wan) { FamilyName::Wan } else { FamilyName::CogVideoX }
}

/// Opens a checkpoint, or the newest checkpoint of a run. `None` if it is not a checkpoint of adapters.
fn adapter_checkpoint(path: &Utf8Path) -> Option<Checkpoint> {
    let run = RunDir::new(path);
    let checkpoint = match run.run_toml().exists() {
        true => Checkpoint::open(&other_trainers::latest_strict(&run).ok()??.dir).ok()?,
        false => Checkpoint::open(path).ok()?,
    };
    checkpoint.manifest.base.is_some().then_some(checkpoint)
}

/// The layers of a block by their names here and in diffusers, with a 0 for the number of the block.
struct OwnNames(Vec<(String, String)>);

impl OwnNames {
    /// Returns the names of a family.
    fn new(family: FamilyName) -> Self {
        let layer = |spec: ParamSpec| {
            let ours = spec.name.strip_prefix("blocks.0.")?.strip_suffix(".weight")?.to_owned();
            Some((ours, spec.diffusers?.strip_suffix(".weight")?.to_owned()))
        };
        Self(param_specs(&names::any_model(family)).into_iter().filter_map(layer).collect())
    }

    /// Returns the diffusers module of a layer such as `blocks.3.attn.q`.
    fn diffusers(&self, layer: &str) -> Option<String> {
        let (block, layer) = layer.strip_prefix("blocks.")?.split_once('.')?;
        let (_, module) = self.0.iter().find(|(ours, _)| ours == layer)?;
        Some(module.replacen("blocks.0.", &format!("blocks.{block}."), 1))
    }
}

impl LoraFile {
    /// Opens an adapter: a file, its folder, a checkpoint or a run. If a checkpoint has moving averages (EMA), opens these.
    ///
    /// # Errors
    /// The files are damaged, or are not an adapter of a CogVideoX transformer.
    pub fn open(path: &Utf8Path) -> Result<Self, Failure> {
        Self::open_average(path, UseEma::Auto)
    }

    /// Opens an adapter as [`LoraFile::open`] does, or its moving average.
    ///
    /// # Errors
    /// As [`LoraFile::open`]; or `ema` requires a moving average, and there is none.
    pub fn open_average(path: &Utf8Path, ema: UseEma) -> Result<Self, Failure> {
        if let Some(checkpoint) = adapter_checkpoint(path) {
            return Self::of_checkpoint(path, &checkpoint, ema);
        }
        // Files of other programs have no averages.
        use_average(path, &mut Tensors::new(), &Tensors::new(), ema)?;
        Self::of_files(path, &files::open(path)?)
    }

    /// Opens an identified adapter.
    pub(crate) fn open_location(location: &SourceLocation, ema: UseEma) -> Result<Self, Failure> {
        Self::open_average(&location.weights, ema)
    }

    /// Opens the adapters of a checkpoint.
    fn of_checkpoint(path: &Utf8Path, checkpoint: &Checkpoint, ema: UseEma) -> Result<Self, Failure> {
        let scale = checkpoint.manifest.base.as_ref().map_or(1.0, |base| base.scale);
        let all = checkpoint_tensors(checkpoint)?;
        let (state, mut tensors): (Tensors, Tensors) = all.into_iter().partition(|(name, _)| name.contains('/'));
        use_average(path, &mut tensors, &state, ema)?;
        let family = family_of_adapters(checkpoint, &tensors);
        let (mut layers, modules) = (BTreeMap::new(), OwnNames::new(family));
        for name in tensors.keys() {
            let Some(layer) = name.strip_suffix(".lora_a") else { continue };
            let other = format!("{layer}.lora_b");
            let (Some(down), Some(up)) = (tensors.get(name), tensors.get(&other)) else { continue };
            let module = modules.diffusers(layer).unwrap_or_else(|| layer.to_owned());
            let alpha = scale * down.shape[0] as f64;
            let names = [name.clone(), other];
            layers.insert(module, LoraLayer { down: down.clone(), up: up.clone(), alpha, names });
        }
        let used: BTreeSet<&String> = layers.values().flat_map(|layer: &LoraLayer| &layer.names).collect();
        let unused = tensors.keys().filter(|name| !used.contains(name)).cloned().collect();
        let base = checkpoint.manifest.base.clone();
        Ok(Self { path: path.to_owned(), form: None, base, layers, unused, note: None })
    }

    /// Opens the adapter in the files of another program.
    fn of_files(path: &Utf8Path, opened: &Opened) -> Result<Self, Failure> {
        let refuse = |refusal: Refusal| refusal.of(path);
        let none = || Refusal::new("it has no LoRA tensor", OTHER_MODEL);
        let names = names::find(&opened.tensors).and_then(|names| names.ok_or_else(none)).map_err(refuse)?;
        let Names { prefix, layers: named } = names;
        let alphas = Alphas::read(path, opened)?;
        let (mut layers, mut files, mut without_alpha) = (BTreeMap::new(), Files::default(), 0);
        for (module, LayerNames { down, up, alpha }) in named {
            let names = [down, up];
            let [down, up] = names.each_ref().map(|name| opened.tensors[name].clone());
            check_factors(&module, &down, &up).map_err(refuse)?;
            let own = alpha.map(|name| {
                let value = scalar(&mut files, &opened.tensors[&name]);
                value.ok_or_else(|| Refusal::new(format!("{name} is not a number"), "set a number there"))
            });
            let own = own.transpose().map_err(refuse)?;
            let rank = down.shape[0];
            let in_model = format!("{}{module}", prefix.strip_prefix(PEFT_PREFIX).unwrap_or(&prefix));
            let alpha = alphas.of(&module, &in_model, rank, own).map_err(refuse)?;
            without_alpha += usize::from(alpha.is_none());
            layers.insert(module, LoraLayer { down, up, alpha: alpha.unwrap_or(rank as f64), names });
        }
        let form = match &prefix {
            prefix if prefix.ends_with('_') => LoraForm::Kohya,
            prefix if prefix.contains(PEFT_PREFIX) => LoraForm::Peft,
            _ => LoraForm::Diffusers,
        };
        let note = (without_alpha > 0).then(|| alpha_note(path, without_alpha, &layers, &prefix, opened));
        Ok(Self { path: path.to_owned(), form: Some(form), base: None, layers, unused: Vec::new(), note })
    }

    /// Returns a note for the user if layers have no alpha, so that their scale is assumed to be 1.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// Returns the layer of a weight with its name; `None` if the layer has no adapter.
    fn layer_of<'a>(&'a self, weight: &'a ParamSpec) -> Option<(&'a str, &'a LoraLayer)> {
        let name = module(weight)?;
        Some((name, self.layers.get(name)?))
    }

    /// Moves the layers that diffusers does not have to the unused tensors.
    pub(crate) fn only_diffusers_layers(mut self) -> Self {
        let families = FamilyName::ALL.map(Modules::new);
        let is_known = |module: &str| families.iter().any(|known| known.contains(module));
        let (layers, others) = self.layers.into_iter().partition(|(module, _)| is_known(module));
        self.layers = layers;
        self.unused.extend(others.into_values().flat_map(|layer: LoraLayer| layer.names));
        self
    }

    /// Returns the product to add to a parameter, and adds the module to `used`. `None` if the parameter has no adapter.
    ///
    /// # Errors
    /// The product does not have the parameter's shape.
    pub(crate) fn for_parameter(
        &self,
        spec: &ParamSpec,
        scale: f64,
        used: &mut BTreeSet<String>,
    ) -> Result<Option<Merge>, Failure> {
        let Some((module, layer)) = self.layer_of(spec) else { return Ok(None) };
        if spec.shape != [layer.up.shape[0], layer.down.shape[1]] {
            return Err(Failure::new(
                ErrorCode::UnsupportedModel,
                format!("cannot merge {}", self.path),
                format!(
                    "its update of {module} has shape [{}, {}], the parameter has {:?}",
                    layer.up.shape[0], layer.down.shape[1], spec.shape
                ),
                "merge it into the base model that it was trained on",
            ));
        }
        used.insert(module.to_owned());
        let scale = scale * layer.alpha / layer.rank() as f64;
        Ok(Some(Merge { down: layer.down.clone(), up: layer.up.clone(), scale }))
    }
}

/// Checks that two factors are those of a linear layer.
fn check_factors(module: &str, down: &StoredTensor, up: &StoredTensor) -> Result<(), Refusal> {
    if let Some(tensor) = [down, up].into_iter().find(|tensor| tensor.shape.len() > 2) {
        let why = format!("its layer {module} is a convolution ({:?}); only linear layers are supported", tensor.shape);
        return Err(Refusal::new(why, "train it again without this layer"));
    }
    let is_matrix = |tensor: &StoredTensor| {
        tensor.shape.len() == 2 && cast::FLOATS.contains(&tensor.dtype) && tensor.elements() > 0
    };
    if is_matrix(down) && is_matrix(up) && down.shape[0] == up.shape[1] {
        return Ok(());
    }
    let words = |tensor: &StoredTensor| format!("{} {:?}", tensor.dtype, tensor.shape);
    Err(Refusal::new(
        format!("the factors of {module} are {} and {}", words(down), words(up)),
        "use factors [rank, in] and [out, rank] of F32, BF16 or F16",
    ))
}

/// Returns the note about layers without an alpha.
fn alpha_note(
    path: &Utf8Path,
    without_alpha: usize,
    layers: &BTreeMap<String, LoraLayer>,
    prefix: &str,
    opened: &Opened,
) -> String {
    let of = match without_alpha == layers.len() {
        true => String::new(),
        false => format!(" for {without_alpha} of its {} layers", layers.len()),
    };
    let ranks: BTreeSet<usize> = layers.values().map(LoraLayer::rank).collect();
    let rank = match ranks.first() {
        Some(rank) if ranks.len() == 1 => format!(" {rank}"),
        _ => String::new(),
    };
    let mut note = format!(
        "{path} has no alpha{of}: its scale is taken as 1 (alpha = rank{rank}). If it was trained with another alpha, give \
         alpha / rank as its weight"
    );
    if let Some(alpha) = opened.metadata.get("ss_network_alpha") {
        note += &format!(" (its header has ss_network_alpha = {})", alpha.escape_debug());
    }
    if prefix.is_empty() && layers.keys().all(|module| module.contains(".attn1.")) {
        note += "; adapters that CogVideo's SAT trainer exported have alpha 1";
    }
    note
}

fn scalar(files: &mut Files, tensor: &StoredTensor) -> Option<f64> {
    if tensor.elements() != 1 {
        return None;
    }
    let bytes = files.read_all(tensor).ok()?;
    values(tensor.dtype, &bytes).next().filter(|alpha| alpha.is_finite())
}

#[cfg(test)]
mod tests;
