//! Finds the layers of an adapter by the names of its tensors. If the file is no LoRA of a transformer of CogVideoX or
//! Wan, names what it is.
//!
//! Sources of the names: PEFT, diffusers, kohya's sd-scripts, musubi-tuner, LyCORIS, ComfyUI, VideoX-Fun and CogVideo's SAT trainer.

use crate::naming::WRAPPERS;
use crate::tensor_spans::Tensors;
use crate::wan;
use camino::Utf8Path;
use recipe::{FamilyName, Model, param_specs};
use rundir::{ErrorCode, Failure};
use std::collections::{BTreeMap, BTreeSet};
use units::counted;

/// The layers of an adapter.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Names {
    /// The begin of the names of all layers, such as `base_model.model.` or `lora_unet__`.
    pub prefix: String,
    /// The names of the tensors of each layer, by its module in diffusers.
    pub layers: BTreeMap<String, LayerNames>,
}

/// The names of the tensors of a layer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LayerNames {
    pub down: String,
    pub up: String,
    pub alpha: Option<String>,
}

/// The reason why an adapter is refused, and a hint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub why: String,
    pub fix: String,
}

impl Refusal {
    pub fn new(why: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { why: why.into(), fix: fix.into() }
    }

    /// Makes the failure of an adapter.
    pub fn of(self, adapter: &Utf8Path) -> Failure {
        let what = format!("cannot read the adapter {adapter}");
        Failure::new(ErrorCode::UnsupportedModel, what, self.why, self.fix)
    }
}

/// The hint for adapters of other models and for files that are no adapters.
pub(super) const OTHER_MODEL: &str =
    "use an adapter (LoRA) of a transformer of CogVideoX with the layer names of diffusers, or of Wan";
/// The hint for a file with two adapters.
const SEVERAL: &str = "save each adapter to a file of its own";
/// The hint for adapters that only PEFT can apply.
pub(super) const MERGE_WITH_PEFT: &str = "merge it with PEFT (merge_and_unload) and convert the merged model";

/// Finds the layers of an adapter. `None` if no tensor has a name as those of adapters.
pub(super) fn find(tensors: &Tensors) -> Result<Option<Names>, Refusal> {
    let (mut factors, mut alphas, mut rest) = (Vec::new(), Vec::new(), Vec::new());
    let (mut foreign, mut ambiguous) = (Vec::new(), Vec::new());
    for name in tensors.keys().map(String::as_str) {
        if let Some(kind) = foreign_kind(name) {
            foreign.push((kind, name));
        } else if let Some(factor) = Factor::parse(name) {
            factors.push(factor);
        } else if let Some(layer) = name.strip_suffix(".alpha").or_else(|| name.strip_suffix(".lora_alpha")) {
            alphas.push((layer, name));
        } else if let Some(kind) = sign(name, AMBIGUOUS) {
            ambiguous.push((kind, name));
        } else {
            rest.push(name);
        }
    }
    // Other models may have tensors with an ambiguous name, besides tensors with other names.
    let of_blocks = rest.is_empty() && ambiguous.iter().any(|(_, name)| name.contains("transformer_blocks"));
    if factors.is_empty() && foreign.is_empty() && !of_blocks {
        return Ok(None);
    }
    foreign.extend(ambiguous);
    if !factors.is_empty() {
        foreign.extend(rest.into_iter().map(|name| (kind_of_rest(name), name)));
    }
    match refusal(&foreign, !factors.is_empty()) {
        Some(refusal) => Err(refusal),
        None => layers(&factors, &alphas).map(Some),
    }
}

/// Returns the reason to refuse the weights of a model that have the factors of an adapter beside them. `None` if they have none.
pub(super) fn unmerged(tensors: &Tensors) -> Option<Refusal> {
    let (factors, others): (Vec<&String>, Vec<&String>) =
        tensors.keys().partition(|name| Factor::parse(name).is_some());
    let foreign: Vec<(Foreign, &str)> = others.iter().map(|name| (Foreign::Unmerged, name.as_str())).collect();
    refusal(&foreign, true).filter(|_| !factors.is_empty())
}

/// The role of a factor in a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Down,
    Up,
}

/// The ends of the names of factors, before the name of a PEFT adapter and before `.weight`. Names may lack both.
const FACTORS: [(&str, Role); 10] = [
    (".lora_A", Role::Down),
    (".lora_B", Role::Up),
    (".lora_down", Role::Down),
    (".lora_up", Role::Up),
    (".lora.down", Role::Down),
    (".lora.up", Role::Up),
    ("_lora.down", Role::Down),
    ("_lora.up", Role::Up),
    (".lora_linear_layer.down", Role::Down),
    (".lora_linear_layer.up", Role::Up),
];

/// A factor as its name describes it.
#[derive(Debug, Clone, Copy)]
struct Factor<'a> {
    name: &'a str,
    /// The name of the layer, with all prefixes.
    layer: &'a str,
    role: Role,
    /// The name of the adapter in a PEFT model, such as `default`.
    adapter: Option<&'a str>,
}

impl<'a> Factor<'a> {
    fn parse(name: &'a str) -> Option<Self> {
        let bare = name.strip_suffix(".weight").unwrap_or(name);
        if let Some((layer, role)) = layer_and_role(bare) {
            return Some(Self { name, layer, role, adapter: None });
        }
        let (rest, adapter) = bare.rsplit_once('.').filter(|(_, adapter)| *adapter != "bias")?;
        let (layer, role) = layer_and_role(rest)?;
        Some(Self { name, layer, role, adapter: Some(adapter) })
    }
}

fn layer_and_role(text: &str) -> Option<(&str, Role)> {
    FACTORS.iter().find_map(|(end, role)| Some((text.strip_suffix(*end)?, *role)))
}

/// A kind of tensor that LoRA files cannot have. The first kind that a file has is the reason of its refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Foreign {
    /// A weight of the model itself, beside the factors of a PEFT model.
    Unmerged,
    /// A factor of CogVideo's SAT trainer.
    Sat,
    /// A tensor of another method.
    Method(&'static str),
    /// A scale of DoRA.
    Dora,
    /// The middle factor of a convolution.
    Convolution,
    /// A difference of a weight or a bias.
    Difference,
    /// A weight that replaces one of the model.
    Weight,
    /// A bias.
    Bias,
    /// Anything else.
    Unknown,
}

/// Parts of the names of tensors that belong to no LoRA. A `*` at the end matches any suffix.
const FOREIGN: &[(&str, Foreign)] = &[
    ("matrix_A", Foreign::Sat),
    ("matrix_B", Foreign::Sat),
    ("hada_*", Foreign::Method("LoHa")),
    ("lokr_*", Foreign::Method("LoKr")),
    ("oft_*", Foreign::Method("OFT")),
    ("boft_*", Foreign::Method("BOFT")),
    ("ia3_l", Foreign::Method("IA3")),
    ("on_input", Foreign::Method("IA3")),
    ("lora_E", Foreign::Method("AdaLoRA")),
    ("ranknum", Foreign::Method("AdaLoRA")),
    ("vera_*", Foreign::Method("VeRA")),
    ("randlora_*", Foreign::Method("RandLora")),
    ("vblora_*", Foreign::Method("VB-LoRA")),
    ("fourierft_*", Foreign::Method("FourierFT")),
    ("hra_u", Foreign::Method("HRA")),
    ("c3a_kernel", Foreign::Method("C3A")),
    ("bone_block", Foreign::Method("Bone")),
    ("miss_block", Foreign::Method("MiSS")),
    ("road_*", Foreign::Method("RoAd")),
    ("shira_weight", Foreign::Method("SHiRA")),
    ("ln_tuning_layers", Foreign::Method("LN tuning")),
    ("lora_magnitude_vector", Foreign::Dora),
    ("dora_scale", Foreign::Dora),
    ("lora_mid", Foreign::Convolution),
];

/// The same for parts that the names of other models may have too.
const AMBIGUOUS: &[(&str, Foreign)] = &[
    ("a1", Foreign::Method("GLoRA")),
    ("a2", Foreign::Method("GLoRA")),
    ("b1", Foreign::Method("GLoRA")),
    ("b2", Foreign::Method("GLoRA")),
    ("bm", Foreign::Method("GLoRA")),
    ("rescale", Foreign::Method("OFT")),
    ("magnitude", Foreign::Dora),
    ("diff", Foreign::Difference),
    ("diff_b", Foreign::Difference),
    ("w_norm", Foreign::Difference),
    ("b_norm", Foreign::Difference),
    ("set_weight", Foreign::Difference),
    ("reshape_weight", Foreign::Difference),
];

/// Returns the kind of a tensor that no LoRA file can have.
fn foreign_kind(name: &str) -> Option<Foreign> {
    let is_bias_of_factor = name.strip_suffix(".bias").is_some_and(|factor| Factor::parse(factor).is_some());
    if is_bias_of_factor { Some(Foreign::Bias) } else { sign(name, FOREIGN) }
}

fn sign(name: &str, signs: &[(&str, Foreign)]) -> Option<Foreign> {
    let of_part = |part: &str| signs.iter().find(|(sign, _)| is_part(sign, part)).map(|(_, kind)| *kind);
    name.split('.').skip(1).find_map(of_part)
}

fn is_part(sign: &str, part: &str) -> bool {
    match sign.strip_suffix('*') {
        Some(begin) => part.starts_with(begin),
        None => part == sign,
    }
}

/// Returns the kind of a tensor that has no other kind, in a file that has factors.
fn kind_of_rest(name: &str) -> Foreign {
    match name.rsplit_once('.') {
        Some((_, "bias")) => Foreign::Bias,
        Some((layer, "weight")) if layer.ends_with(".base_layer") => Foreign::Unmerged,
        Some((_, "weight")) => Foreign::Weight,
        _ => Foreign::Unknown,
    }
}

/// Returns the reason to refuse a file with tensors that LoRA files cannot have. `None` if it has none.
fn refusal(foreign: &[(Foreign, &str)], has_factors: bool) -> Option<Refusal> {
    let (kind, first) = *foreign.iter().min()?;
    let tensors = counted(foreign.iter().filter(|(other, _)| *other == kind).count(), "tensor");
    let (why, fix) = match kind {
        Foreign::Unmerged => (
            format!(
                "it is a model with an adapter that is not merged: besides the factors, it has {} of the model",
                counted(foreign.len(), "tensor")
            ),
            "save the adapter alone (PEFT: save_pretrained), or merge it and convert the model",
        ),
        Foreign::Sat => (
            format!("it is a checkpoint of CogVideo's SAT trainer: {tensors} such as {first}"),
            "export it with CogVideo's tools/export_sat_lora_weight.py, and give 1 / rank as its weight",
        ),
        Foreign::Method(method) => (
            format!("its method is {method}, not LoRA: {tensors} such as {first}"),
            match method {
                "LoHa" | "LoKr" | "GLoRA" => {
                    "merge it into the model with ComfyUI or LyCORIS and convert the result, or extract a LoRA of it"
                }
                _ => "merge it with the program that trained it, and convert the merged model",
            },
        ),
        Foreign::Dora => (
            format!("it is a DoRA adapter, which also scales the merged weights: {tensors} such as {first}"),
            "merge it with PEFT (merge_and_unload) and convert the merged model, or train it again without use_dora",
        ),
        Foreign::Convolution => (
            format!("it adapts convolutions: {tensors} such as {first}; only linear layers are supported"),
            "train it again without convolutions",
        ),
        Foreign::Difference if !has_factors => (
            format!("it has differences of whole weights and no LoRA factors: {tensors} such as {first}"),
            "merge it into the model with ComfyUI, or extract it again as LoRA without biases",
        ),
        Foreign::Difference => (
            format!("besides LoRA factors, it has differences of whole weights and biases: {tensors} such as {first}"),
            "merge it into the model with ComfyUI, or extract it again as LoRA without biases",
        ),
        Foreign::Weight => {
            (format!("it also replaces whole weights (modules_to_save): {tensors} such as {first}"), MERGE_WITH_PEFT)
        }
        Foreign::Bias => (format!("it also trains biases: {tensors} such as {first}"), MERGE_WITH_PEFT),
        Foreign::Unknown => (
            format!("besides LoRA factors, it has tensors that are not supported: {tensors} such as {first}"),
            "merge it with the program that trained it, and convert the merged model",
        ),
    };
    Some(Refusal::new(why, fix))
}

/// The tensors of a layer found so far.
#[derive(Default)]
struct Found<'a> {
    down: Option<&'a str>,
    up: Option<&'a str>,
    alpha: Option<&'a str>,
}

/// Assigns factors and alphas to the layers of a transformer.
///
/// * `alphas` — the name of the layer and the name of the tensor.
fn layers<'a>(factors: &[Factor<'a>], alphas: &[(&'a str, &'a str)]) -> Result<Names, Refusal> {
    let of_text: Vec<&Factor<'a>> = factors.iter().filter(|factor| is_of_text_encoder(factor.layer)).collect();
    if let [first, ..] = of_text[..] {
        let also = if of_text.len() < factors.len() { "also " } else { "" };
        let tensors = counted(of_text.len(), "tensor");
        return Err(Refusal::new(
            format!("it {also}adapts a text encoder, which is not supported: {tensors} such as {}", first.name),
            "train it again without the text encoder",
        ));
    }
    let all: BTreeSet<&str> = factors.iter().map(|factor| factor.layer).collect();
    let modules = Modules::of_layers(&all);
    let named = || factors.iter().map(|factor| (factor.layer, factor.name)).chain(alphas.iter().copied());
    let places: BTreeMap<&'a str, (String, String)> =
        named().filter_map(|(layer, _)| Some((layer, modules.split(layer)?))).collect();
    let others: Vec<&str> = all.iter().filter(|layer| !places.contains_key(**layer)).copied().collect();
    if let [first, ..] = others[..] {
        let why = match others.len() == all.len() {
            true => {
                format!("its layers are not those of CogVideoX or Wan: {} such as {first}", counted(all.len(), "layer"))
            }
            false => {
                format!(
                    "{} of its {} layers are not those of CogVideoX or Wan, such as {first}",
                    others.len(),
                    all.len()
                )
            }
        };
        return Err(Refusal::new(why, OTHER_MODEL));
    }
    one_adapter(factors)?;
    let mut found: BTreeMap<&str, Found<'a>> = BTreeMap::new();
    for factor in factors {
        let module = places[factor.layer].1.as_str();
        let layer = found.entry(module).or_default();
        let slot = match factor.role {
            Role::Down => &mut layer.down,
            Role::Up => &mut layer.up,
        };
        if let Some(other) = slot.replace(factor.name) {
            return Err(twice(module, other, factor.name));
        }
    }
    for (layer, name) in alphas {
        let module = places.get(layer).map(|(_, module)| module.as_str());
        let Some((module, found)) = module.and_then(|module| Some((module, found.get_mut(module)?))) else {
            let why = format!("it has an alpha without factors: {name}");
            return Err(Refusal::new(why, "save it again, or copy it again from its source"));
        };
        if let Some(other) = found.alpha.replace(*name) {
            return Err(twice(module, other, name));
        }
    }
    let prefix = one_prefix(&places, named())?;
    let layers = found.into_iter().map(|(module, found)| match (found.down, found.up) {
        (Some(down), Some(up)) => {
            let [down, up] = [down, up].map(str::to_owned);
            Ok((module.to_owned(), LayerNames { down, up, alpha: found.alpha.map(str::to_owned) }))
        }
        _ => {
            let why = format!("{module} has only one of its two factors");
            Err(Refusal::new(why, "save it again, or copy it again from its source"))
        }
    });
    Ok(Names { prefix, layers: layers.collect::<Result<_, _>>()? })
}

fn twice(module: &str, one: &str, other: &str) -> Refusal {
    Refusal::new(format!("it has {module} twice: {one} and {other}"), SEVERAL)
}

/// Checks that all factors belong to the same adapter of a PEFT model.
fn one_adapter(factors: &[Factor<'_>]) -> Result<(), Refusal> {
    let names: BTreeSet<Option<&str>> = factors.iter().map(|factor| factor.adapter).collect();
    let words = |name: &Option<&str>| name.map_or_else(|| "one without a name".to_owned(), str::to_owned);
    match names.iter().collect::<Vec<_>>()[..] {
        [one, other, ..] => {
            Err(Refusal::new(format!("it holds several adapters: {} and {}", words(one), words(other)), SEVERAL))
        }
        _ => Ok(()),
    }
}

/// Returns the prefix that all layers have.
///
/// * `named` — the name of each layer, and the name of a tensor of it.
fn one_prefix<'a>(
    places: &BTreeMap<&'a str, (String, String)>,
    named: impl Iterator<Item = (&'a str, &'a str)>,
) -> Result<String, Refusal> {
    let mut first: Option<(&str, &str)> = None;
    for (layer, name) in named {
        let Some(prefix) = places.get(layer).map(|(prefix, _)| prefix.as_str()) else { continue };
        match first {
            None => first = Some((prefix, name)),
            Some((own, _)) if own == prefix => {}
            Some((_, other)) => {
                return Err(Refusal::new(format!("its names have several prefixes: {other} and {name}"), SEVERAL));
            }
        }
    }
    Ok(first.map_or_else(String::new, |(prefix, _)| prefix.to_owned()))
}

fn is_of_text_encoder(layer: &str) -> bool {
    const BEGINS: [&str; 5] = ["lora_te_", "lora_te1_", "lora_te2_", "lora_te3_", "conditioner."];
    BEGINS.iter().any(|begin| layer.starts_with(begin)) || layer.contains("text_encoder")
}

/// Returns a model with all the linear layers that a block of any model of a family has.
pub(super) fn any_model(family: FamilyName) -> Model {
    let needed = [
        ("num_layers", 1),
        ("num_heads", 1),
        ("text_len", 1),
        ("latent_frames", 1),
        ("latent_height", 2),
        ("latent_width", 2),
    ];
    let mut table = toml::Table::from_iter(needed.map(|(key, value)| (key.to_owned(), value.into())));
    table.insert("family".into(), family.name().into());
    match family {
        // CogVideoX 1.5 image-to-video has all the linear layers that any CogVideoX model has.
        FamilyName::CogVideoX => {
            table.extend([("patch_size_t".to_owned(), 2.into()), ("ofs_embedding".to_owned(), true.into())]);
        }
        FamilyName::Wan => drop(table.insert("ffn_dim".into(), 1.into())),
    }
    Model::from_table(&table).expect("the keys without defaults are set")
}

/// The linear layers of the transformers of a family, by their names in files of adapters.
pub(super) struct Modules {
    /// What stands before the number of a block in the names of diffusers: `transformer_blocks.`.
    blocks: &'static str,
    /// The layers of a block without the prefix and the number, such as `attn1.to_q`: the names in files, and the modules in diffusers.
    of_block: BTreeMap<String, String>,
    /// The layers outside of blocks, in the same way.
    outer: BTreeMap<String, String>,
}

impl Modules {
    /// Returns the layers of a family.
    pub fn new(family: FamilyName) -> Self {
        let blocks = match family {
            FamilyName::CogVideoX => "transformer_blocks.",
            FamilyName::Wan => "blocks.",
        };
        let mut modules = Self { blocks, of_block: BTreeMap::new(), outer: BTreeMap::new() };
        let matrices = param_specs(&any_model(family)).into_iter().filter(|spec| spec.shape.len() == 2);
        for spec in matrices {
            let Some(module) = spec.diffusers.as_deref().and_then(|name| name.strip_suffix(".weight")) else {
                continue;
            };
            // Other programs have the original names of Wan.
            let original = wan::name_in_release(&spec.name).filter(|_| family == FamilyName::Wan);
            let names = [Some(module), original.as_deref().and_then(|name| name.strip_suffix(".weight"))];
            let first = format!("{blocks}0.");
            for name in names.into_iter().flatten() {
                match (name.strip_prefix(&first), module.strip_prefix(&first)) {
                    (Some(name), Some(module)) => modules.of_block.insert(name.to_owned(), module.to_owned()),
                    _ => modules.outer.insert(name.to_owned(), module.to_owned()),
                };
            }
        }
        modules
    }

    /// Returns the family of which all these layers are, CogVideoX if there is none.
    pub fn of_layers(layers: &BTreeSet<&str>) -> Self {
        let families = FamilyName::ALL.into_iter().map(Self::new);
        let has_all = |modules: &Self| layers.iter().all(|layer| modules.split(layer).is_some());
        families.into_iter().find(has_all).unwrap_or_else(|| Self::new(FamilyName::CogVideoX))
    }

    /// Returns whether diffusers has a module in the transformers of the family.
    pub fn contains(&self, module: &str) -> bool {
        match module.strip_prefix(self.blocks).and_then(|rest| rest.split_once('.')) {
            Some((block, rest)) => block.parse::<u32>().is_ok() && self.of_block.values().any(|own| own == rest),
            None => self.outer.values().any(|own| own == module),
        }
    }

    /// Splits the name of a layer into its prefix and the module in diffusers. `None` if the transformers have no such module.
    pub fn split(&self, layer: &str) -> Option<(String, String)> {
        // `processor`: the attention processors of older versions of diffusers.
        let is_own = |part: &&str| *part != "processor" && !WRAPPERS.contains(part);
        let mut layer = layer.split('.').filter(is_own).collect::<Vec<&str>>().join(".");
        // The same versions and DiffSynth leave out the number of this layer.
        for (begin, end) in [("attn1.to_out", ".0"), ("attn1_to_out", "_0")] {
            if layer.ends_with(begin) {
                layer.push_str(end);
            }
        }
        self.with_dots(&layer).or_else(|| self.with_underscores(&layer))
    }

    fn with_dots(&self, layer: &str) -> Option<(String, String)> {
        // The prefix may contain the same word.
        if let Some(at) = layer.rfind(self.blocks)
            && ends_with_one_of(&layer[..at], &['.'])
            && let Some((block, rest)) = layer[at + self.blocks.len()..].split_once('.')
            && let Ok(block) = block.parse::<u32>()
            && let Some(module) = self.of_block.get(rest)
        {
            return Some((layer[..at].to_owned(), format!("{}{block}.{module}", self.blocks)));
        }
        self.outer.iter().find_map(|(name, module)| {
            let prefix = layer.strip_suffix(name.as_str())?;
            is_outer_prefix(prefix, &['.']).then(|| (prefix.to_owned(), module.clone()))
        })
    }

    fn with_underscores(&self, layer: &str) -> Option<(String, String)> {
        let begin = self.blocks.replace('.', "_");
        if let Some(at) = layer.rfind(&begin)
            && ends_with_one_of(&layer[..at], &['.', '_'])
            && !(begin == "blocks_" && OTHER_BLOCKS.iter().any(|other| layer[..at].ends_with(other)))
            && let Some((block, rest)) = layer[at + begin.len()..].split_once('_')
            && let Ok(block) = block.parse::<u32>()
            && let Some((_, module)) = self.of_block.iter().find(|(name, _)| name.replace('.', "_") == rest)
        {
            return Some((layer[..at].to_owned(), format!("{}{block}.{module}", self.blocks)));
        }
        // Names with dots have underscores within their parts.
        if layer.rsplit_once('.').is_some_and(|(_, last)| !last.starts_with("lora_")) {
            return None;
        }
        self.outer.iter().find_map(|(name, module)| {
            let prefix = layer.strip_suffix(name.replace('.', "_").as_str())?;
            is_outer_prefix(prefix, &['.', '_']).then(|| (prefix.to_owned(), module.clone()))
        })
    }
}

/// What stands before `blocks_` in the names of other models than Wan, such as `single_blocks_`.
const OTHER_BLOCKS: [&str; 4] = ["transformer_", "single_", "double_", "joint_"];

/// Returns the name of a module of diffusers in kohya's format, without `lora_unet`. Files of Wan have its original names there.
pub(super) fn in_kohya(module: &str) -> String {
    let wan = Modules::new(FamilyName::Wan);
    let original = module.strip_prefix(wan.blocks).and_then(|rest| rest.split_once('.')).and_then(|(block, own)| {
        // The name that is not that of diffusers; the norms, which have no adapter, share theirs.
        let (name, _) = wan.of_block.iter().find(|(name, of)| *of == own && *name != own)?;
        Some(format!("_{}{block}.{name}", wan.blocks))
    });
    original.unwrap_or_else(|| format!("__{module}")).replace('.', "_")
}

/// Returns whether a prefix is empty or ends with one of the separators.
fn ends_with_one_of(prefix: &str, separators: &[char]) -> bool {
    prefix.is_empty() || prefix.ends_with(separators)
}

/// Returns whether this can stand before a layer outside of blocks. With a number, it is a block, such as `single_transformer_blocks.7.`.
fn is_outer_prefix(prefix: &str, separators: &[char]) -> bool {
    ends_with_one_of(prefix, separators) && !prefix.split(separators).any(|part| part.parse::<u32>().is_ok())
}

#[cfg(test)]
mod tests;
