//! Reads LoRA adapters of CogVideoX in the formats of diffusers, PEFT and kohya.

mod apply;

pub use apply::Factors;

use crate::cast::values;
use crate::checkpoint_tensors::{checkpoint_tensors, use_average};
use crate::config::read_json;
use crate::location::SourceLocation;
use crate::merge::Merge;
use crate::tensor_spans::{Files, StoredTensor, Tensors};
use crate::{Header, cast, tensor_spans};
use camino::{Utf8Path, Utf8PathBuf};
use recipe::{Model, ParamSpec, UseEma, param_specs};
use regex::Regex;
use rundir::{BaseWeights, Checkpoint, ErrorCode, Failure, RunDir};
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The file name of an adapter that diffusers saved.
pub(crate) const DIFFUSERS_FILE: &str = "pytorch_lora_weights.safetensors";
/// The file names of an adapter that PEFT saved.
pub(crate) const PEFT_FILE: &str = "adapter_model.safetensors";
pub(crate) const PEFT_CONFIG: &str = "adapter_config.json";
/// The file name for new adapters in kohya's format, which defines no name.
pub(crate) const KOHYA_FILE: &str = "lora.safetensors";
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
    /// `lora_unet__MODULE_WITH_UNDERSCORES.lora_down.weight`.
    Kohya,
}

impl LoraForm {
    /// Returns the tensor names of the two factors of a module: down, then up.
    pub(crate) fn names(self, module: &str) -> [String; 2] {
        match self {
            Self::Diffusers => ["A", "B"].map(|factor| format!("transformer.{module}.lora_{factor}.weight")),
            Self::Peft => ["A", "B"].map(|factor| format!("base_model.model.{module}.lora_{factor}.weight")),
            Self::Kohya => {
                ["down", "up"].map(|factor| format!("lora_unet__{}.lora_{factor}.weight", module.replace('.', "_")))
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

/// An adapter.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraFile {
    /// The path of the adapter: its file, its folder, a checkpoint or a run.
    pub path: Utf8PathBuf,
    /// The format; `None` for a checkpoint of this trainer.
    pub form: Option<LoraForm>,
    /// The weights that the adapter was trained on. Only a checkpoint of this trainer names them.
    pub base: Option<BaseWeights>,
    /// The layers by their diffusers module name, such as `transformer_blocks.0.attn1.to_q`. Layers that diffusers does not have
    /// (TTT) have this trainer's name, such as `blocks.0.ttt.q`.
    pub layers: BTreeMap<String, LoraLayer>,
    /// Tensors that belong to no layer.
    pub unused: Vec<String>,
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
    /// The names of the layer's tensors in the file.
    pub names: Vec<String>,
}

impl LoraLayer {
    /// Returns the down and the up projection with their names.
    pub fn factors(&self) -> impl Iterator<Item = (&String, &StoredTensor)> {
        // Sorted names: an alpha comes before the factors, and down before up.
        self.names.iter().filter(|name| !name.ends_with(".alpha")).zip([&self.down, &self.up])
    }

    /// Returns the rank.
    pub fn rank(&self) -> usize {
        self.down.shape[0]
    }
}

/// Returns whether tensor names are those of an adapter.
pub(crate) fn is_lora<'a>(mut names: impl Iterator<Item = &'a String>) -> bool {
    names.any(|name| name.contains(".lora_A.") || name.contains(".lora_down."))
}

/// Returns the name of a weight's layer: the diffusers name if there is one, otherwise this trainer's name.
fn module(weight: &ParamSpec) -> Option<&str> {
    weight.diffusers.as_ref().unwrap_or(&weight.name).strip_suffix(".weight")
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

/// The layers of a block by their names here and in diffusers.
struct OwnNames(Vec<(String, String)>);

impl OwnNames {
    fn new() -> Self {
        let layer = |spec: ParamSpec| {
            let ours = spec.name.strip_prefix("blocks.0.")?.strip_suffix(".weight")?.to_owned();
            Some((ours, spec.diffusers?.strip_prefix("transformer_blocks.0.")?.strip_suffix(".weight")?.to_owned()))
        };
        Self(param_specs(&any_model()).into_iter().filter_map(layer).collect())
    }

    /// Returns the diffusers module of a layer such as `blocks.3.attn.q`.
    fn diffusers(&self, layer: &str) -> Option<String> {
        let (block, layer) = layer.strip_prefix("blocks.")?.split_once('.')?;
        let (_, module) = self.0.iter().find(|(ours, _)| ours == layer)?;
        Some(format!("{BLOCKS}{block}.{module}"))
    }
}

/// The role of a tensor in a layer.
#[derive(PartialEq)]
enum LoraTensor {
    Down,
    Up,
    Alpha,
}

/// The suffixes of tensor names and the roles that they stand for.
const ENDS: [(&str, LoraTensor); 7] = [
    (".lora_A.weight", LoraTensor::Down),
    (".lora_B.weight", LoraTensor::Up),
    (".lora_A.default.weight", LoraTensor::Down),
    (".lora_B.default.weight", LoraTensor::Up),
    (".lora_down.weight", LoraTensor::Down),
    (".lora_up.weight", LoraTensor::Up),
    (".alpha", LoraTensor::Alpha),
];

/// The tensors of a layer read so far.
#[derive(Default)]
struct Parts {
    down: Option<StoredTensor>,
    up: Option<StoredTensor>,
    alpha: Option<f64>,
    names: Vec<String>,
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
        let file = match path.is_dir() {
            true => [DIFFUSERS_FILE, PEFT_FILE, KOHYA_FILE]
                .map(|name| path.join(name))
                .into_iter()
                .find(|file| file.is_file())
                .ok_or_else(|| {
                    let why = format!("the folder has no {DIFFUSERS_FILE}, {PEFT_FILE} or {KOHYA_FILE}");
                    Failure::new(
                        ErrorCode::UnsupportedModel,
                        format!("cannot read the adapter {path}"),
                        why,
                        "give the path of its .safetensors file",
                    )
                })?,
            false => path.to_owned(),
        };
        Self::tensors_of_header(path, &Header::read(&file)?)
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
        let (mut layers, modules) = (BTreeMap::new(), OwnNames::new());
        for name in tensors.keys() {
            let Some(layer) = name.strip_suffix(".lora_a") else { continue };
            let other = format!("{layer}.lora_b");
            let (Some(down), Some(up)) = (tensors.get(name), tensors.get(&other)) else { continue };
            let module = modules.diffusers(layer).unwrap_or_else(|| layer.to_owned());
            let alpha = scale * down.shape[0] as f64;
            let names = vec![name.clone(), other];
            layers.insert(module, LoraLayer { down: down.clone(), up: up.clone(), alpha, names });
        }
        let used: BTreeSet<&String> = layers.values().flat_map(|layer: &LoraLayer| &layer.names).collect();
        let unused = tensors.keys().filter(|name| !used.contains(name)).cloned().collect();
        let base = checkpoint.manifest.base.clone();
        Ok(Self { path: path.to_owned(), form: None, base, layers, unused })
    }

    fn tensors_of_header(path: &Utf8Path, header: &Header) -> Result<Self, Failure> {
        let bad = |why: String| {
            let fix = "use a LoRA of a CogVideoX transformer that diffusers, PEFT or kohya's scripts saved";
            Failure::new(ErrorCode::UnsupportedModel, format!("cannot read the adapter {path}"), why, fix)
        };
        let tensors = tensor_spans::tensors_of_header(header);
        let kohya = Underscored::new();
        let mut parts: BTreeMap<String, Parts> = BTreeMap::new();
        let (mut unused, mut files, mut form) = (Vec::new(), Files::default(), None);
        for (name, tensor) in tensors {
            let Some((own, module, part)) = split(&name, &kohya) else {
                unused.push(name);
                continue;
            };
            if form.is_some_and(|form| form != own) {
                return Err(bad(format!("it mixes formats: {name} is a {own} name, other names are not")));
            }
            form = Some(own);
            let layer = parts.entry(module).or_default();
            match part {
                LoraTensor::Alpha => {
                    layer.alpha =
                        Some(scalar(&mut files, &tensor).ok_or_else(|| bad(format!("{name} is not a number")))?)
                }
                LoraTensor::Down => layer.down = Some(tensor),
                LoraTensor::Up => layer.up = Some(tensor),
            }
            layer.names.push(name);
        }
        let form = form.ok_or_else(|| bad("it has no LoRA tensor".into()))?;
        let alphas = Alphas::read(&header.path, header, form)?;
        let mut layers = BTreeMap::new();
        for (module, parts) in parts {
            let (Some(down), Some(up)) = (parts.down, parts.up) else {
                return Err(bad(format!("{module} has only one of its two factors")));
            };
            let two = |tensor: &StoredTensor| {
                tensor.shape.len() == 2 && cast::FLOATS.contains(&tensor.dtype) && tensor.elements() > 0
            };
            if !two(&down) || !two(&up) || down.shape[0] != up.shape[1] {
                let words = |t: &StoredTensor| format!("{} {:?}", t.dtype, t.shape);
                return Err(bad(format!("the factors of {module} are {} and {}", words(&down), words(&up))));
            }
            let rank = down.shape[0] as f64;
            let alpha = parts
                .alpha
                .map_or_else(|| alphas.of(&module, rank), Ok)
                .map_err(|(one, other)| bad(format!("its alpha_pattern sets both {one} and {other} for {module}")))?;
            layers.insert(module, LoraLayer { down, up, alpha, names: parts.names });
        }
        Ok(Self { path: path.to_owned(), form: Some(form), base: None, layers, unused })
    }

    /// Returns the layer of a weight with its name; `None` if the layer has no adapter.
    fn layer_of<'a>(&'a self, weight: &'a ParamSpec) -> Option<(&'a str, &'a LoraLayer)> {
        let name = module(weight)?;
        Some((name, self.layers.get(name)?))
    }

    /// Moves the layers that diffusers does not have to the unused tensors.
    pub(crate) fn only_diffusers_layers(mut self) -> Self {
        let known = Underscored::new();
        let (layers, others) = self.layers.into_iter().partition(|(module, _)| known.contains(module));
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

    /// Returns the names of the tensors of layers that are not in `used`, and of tensors without a layer.
    pub(crate) fn names_except(&self, used: &BTreeSet<String>) -> Vec<String> {
        let layers = self.layers.iter().filter(|(module, _)| !used.contains(*module));
        layers.flat_map(|(_, layer)| layer.names.iter()).chain(&self.unused).cloned().collect()
    }

    /// Returns the factors of all layers by tensor name.
    pub(crate) fn tensors(&self) -> Tensors {
        let mut tensors = Tensors::new();
        for layer in self.layers.values() {
            tensors.extend(layer.factors().map(|(name, tensor)| (name.clone(), tensor.clone())));
        }
        tensors
    }
}

/// Splits a tensor name into its format, the diffusers module name and its role in the layer.
fn split(name: &str, kohya: &Underscored) -> Option<(LoraForm, String, LoraTensor)> {
    let (stem, part) = ENDS.into_iter().find_map(|(end, part)| Some((name.strip_suffix(end)?, part)))?;
    if let Some(path) = stem.strip_prefix("lora_unet_").or_else(|| stem.strip_prefix("lora_transformer_")) {
        return Some((LoraForm::Kohya, kohya.module(path.trim_start_matches('_'))?, part));
    }
    let (form, module) = match stem.strip_prefix("base_model.model.") {
        Some(module) => (LoraForm::Peft, module),
        None => (
            LoraForm::Diffusers,
            stem.strip_prefix("transformer.").or_else(|| stem.strip_prefix("diffusion_model.")).unwrap_or(stem),
        ),
    };
    kohya.contains(module).then(|| (form, module.to_owned(), part))
}

fn scalar(files: &mut Files, tensor: &StoredTensor) -> Option<f64> {
    if tensor.elements() != 1 {
        return None;
    }
    let bytes = files.read_all(tensor).ok()?;
    values(tensor.dtype, &bytes).next().filter(|alpha| alpha.is_finite())
}

/// The alphas of layers without an alpha tensor.
struct Alphas {
    default: Option<f64>,
    /// The alphas of the modules that match a pattern.
    patterns: Vec<(Regex, f64)>,
    /// Whether the scale is alpha / √rank (rsLoRA).
    by_root: bool,
}

impl Alphas {
    fn read(file: &Utf8Path, header: &Header, form: LoraForm) -> Result<Self, Failure> {
        let bad = |why: String, fix: &str| {
            Failure::new(ErrorCode::UnsupportedModel, format!("cannot read the adapter {file}"), why, fix)
        };
        let beside = file.parent().unwrap_or(Utf8Path::new("")).join(PEFT_CONFIG);
        let config = match (form, header.metadata.get(METADATA)) {
            (LoraForm::Peft, _) if beside.is_file() => read_json(&beside)?,
            (LoraForm::Diffusers, Some(text)) => {
                let all: BTreeMap<String, Value> = serde_json::from_str(text)
                    .map_err(|e| bad(format!("{METADATA}: {e}"), "copy it again from its source"))?;
                let bare = |key: String| key.strip_prefix("transformer.").map_or(key.clone(), str::to_owned);
                all.into_iter().map(|(key, value)| (bare(key), value)).collect()
            }
            _ => Value::Null,
        };
        let mut patterns = Vec::new();
        for (key, alpha) in config["alpha_pattern"].as_object().into_iter().flatten() {
            // PEFT matches the pattern against the end of the module name, starting after a dot.
            let pattern = Regex::new(&format!(r"^(?:.*\.)?(?:{key})$")).map_err(|e| {
                let why = format!("the key '{key}' of its alpha_pattern is not a valid regular expression: {e}");
                bad(why, "replace the key with module names")
            })?;
            let alpha = alpha.as_f64().ok_or_else(|| {
                bad(format!("its alpha_pattern has {alpha} for '{key}', which is not a number"), "set a number there")
            })?;
            patterns.push((pattern, alpha));
        }
        let by_root = config["use_rslora"].as_bool() == Some(true);
        Ok(Self { default: config["lora_alpha"].as_f64(), patterns, by_root })
    }

    /// Returns the alpha of a module.
    ///
    /// # Errors
    /// Returns both alphas if two patterns with different alphas match: the JSON parser does not keep the order of patterns.
    fn of(&self, module: &str, rank: f64) -> Result<f64, (f64, f64)> {
        let mut own = self.patterns.iter().filter(|(pattern, _)| pattern.is_match(module)).map(|(_, alpha)| *alpha);
        let first = own.next();
        if let Some((first, other)) = first.zip(own.find(|other| Some(*other) != first)) {
            return Err((first, other));
        }
        let alpha = first.or(self.default).unwrap_or(rank);
        Ok(if self.by_root { alpha * rank.sqrt() } else { alpha })
    }
}

/// The modules of a CogVideoX transformer by their names with underscores.
struct Underscored {
    /// The modules of a block without its prefix and number, and the modules outside of blocks.
    modules: BTreeMap<String, String>,
}

const BLOCKS: &str = "transformer_blocks.";

/// Returns a model with all the linear layers that a block of any CogVideoX model has.
fn any_model() -> Model {
    let needed = [
        ("num_layers", 1),
        ("num_heads", 1),
        ("text_len", 1),
        ("latent_frames", 1),
        ("latent_height", 2),
        ("latent_width", 2),
    ];
    let mut table = toml::Table::from_iter(needed.map(|(key, value)| (key.to_owned(), value.into())));
    // CogVideoX 1.5 image-to-video has all the linear layers that any CogVideoX model has.
    table.extend([("patch_size_t".to_owned(), 2.into()), ("ofs_embedding".to_owned(), true.into())]);
    Model::from_table(&table).expect("the keys without defaults are set")
}

impl Underscored {
    fn new() -> Self {
        let names = param_specs(&any_model())
            .into_iter()
            .filter(|spec| spec.shape.len() == 2)
            .filter_map(|spec| spec.diffusers);
        let bare = |name: String| {
            let module = name.strip_suffix(".weight")?;
            Some(module.strip_prefix("transformer_blocks.0.").unwrap_or(module).to_owned())
        };
        Self { modules: names.filter_map(bare).map(|module| (module.replace('.', "_"), module)).collect() }
    }

    /// Returns the module of a path with underscores instead of dots.
    fn module(&self, path: &str) -> Option<String> {
        match path.strip_prefix("transformer_blocks_").and_then(|rest| rest.split_once('_')) {
            Some((block, rest)) => {
                let block: u32 = block.parse().ok()?;
                Some(format!("{BLOCKS}{block}.{}", self.modules.get(rest)?))
            }
            None => self.modules.get(path).cloned(),
        }
    }

    /// Returns whether CogVideoX transformers have the module.
    fn contains(&self, module: &str) -> bool {
        let bare = match module.strip_prefix(BLOCKS).and_then(|rest| rest.split_once('.')) {
            Some((block, rest)) if block.parse::<u32>().is_ok() => rest,
            _ => module,
        };
        self.modules.values().any(|known| known == bare)
    }
}

#[cfg(test)]
mod tests;
