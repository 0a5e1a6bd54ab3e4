//! The alphas of an adapter: the product of the factors of a layer is scaled by alpha / rank.
//!
//! A layer may have an alpha tensor. diffusers, finetrainers and PEFT write configurations with the keys of PEFT instead.

use super::files::Opened;
use super::names::{MERGE_WITH_PEFT, Refusal};
use super::{METADATA, PEFT_CONFIG};
use crate::config::read_json;
use camino::Utf8Path;
use regex::Regex;
use rundir::Failure;
use serde_json::{Map, Value};

/// The metadata key of an adapter of finetrainers with the keys of PEFT as JSON.
const FINETRAINERS: &str = "lora_config";

/// The begins of the values of `init_lora_weights` with which PEFT changes the weights of the model when it loads the adapter.
const CHANGED_BASES: [&str; 5] = ["pissa", "olora", "corda", "loftq", "lora_ga"];

/// Keys that change the formula of LoRA and have no tensors of their own, and DoRA.
const OTHER_FORMULAS: [&str; 8] = [
    "use_dora",
    "use_qalora",
    "use_bdlora",
    "alora_invocation_tokens",
    "kasa_config",
    "arrow_config",
    "layer_replication",
    "target_parameters",
];

/// The configurations of an adapter.
pub(super) struct Alphas {
    configs: Vec<Config>,
}

/// A configuration with the keys of PEFT.
struct Config {
    /// The file or the metadata key.
    source: &'static str,
    alpha: f64,
    /// The alphas of modules that match a pattern.
    alphas: Vec<Pattern>,
    rank: Option<f64>,
    /// The ranks of modules that match a pattern.
    ranks: Vec<Pattern>,
    /// Whether the scale is alpha / √rank (rsLoRA).
    by_root: bool,
}

struct Pattern {
    modules: Regex,
    value: f64,
}

impl Alphas {
    /// Reads the configurations in the header of an adapter and beside it.
    ///
    /// * `adapter` — the path for messages.
    ///
    /// # Errors
    /// A configuration is damaged, or is that of another method than LoRA.
    pub fn read(adapter: &Utf8Path, opened: &Opened) -> Result<Self, Failure> {
        let mut configs = Vec::new();
        let config = |source, keys: &Map<String, Value>| Config::new(source, keys).map_err(|no| no.of(adapter));
        let not_json = |source: &str| {
            Refusal::new(format!("{source} is not a JSON object"), "copy it again from its source").of(adapter)
        };
        if let Some(text) = opened.metadata.get(METADATA) {
            let keys = of_transformer(serde_json::from_str(text).map_err(|_| not_json(METADATA))?);
            // The metadata may be those of a text encoder alone.
            if ["lora_alpha", "r", "peft_type"].iter().any(|key| keys.contains_key(*key)) {
                configs.push(config(METADATA, &keys)?);
            }
        }
        // Other programs have other keys there.
        let of_finetrainers = opened.metadata.get(FINETRAINERS);
        if let Some(Ok(keys)) = of_finetrainers.map(|text| serde_json::from_str::<Map<String, Value>>(text))
            && keys.contains_key("lora_alpha")
        {
            configs.push(config(FINETRAINERS, &keys)?);
        }
        if let Some(path) = &opened.config {
            let Value::Object(keys) = read_json(path)? else { return Err(not_json(PEFT_CONFIG)) };
            configs.push(config(PEFT_CONFIG, &keys)?);
        }
        Ok(Self { configs })
    }

    /// Returns the alpha of a layer; `None` if the adapter has none.
    ///
    /// * `in_model` — the module with the prefix that it has in the model of PEFT.
    /// * `tensor` — the value of the layer's alpha tensor.
    ///
    /// # Errors
    /// Two sources contradict each other, or a configuration has another rank than the factors.
    pub fn of(&self, module: &str, in_model: &str, rank: usize, tensor: Option<f64>) -> Result<Option<f64>, Refusal> {
        let mut found = tensor.map(|alpha| (alpha, "alpha tensor"));
        for config in &self.configs {
            config.check_rank(module, in_model, rank)?;
            let alpha = config.alpha_of(module, in_model, rank)?;
            match found {
                None => found = Some((alpha, config.source)),
                // Some programs store alpha tensors in bfloat16, which has steps of 1/256.
                Some((other, source)) if (other - alpha).abs() > alpha.abs() / 100.0 => {
                    let why = format!("the alpha of {module} is {other} ({source}) and {alpha} ({})", config.source);
                    return Err(Refusal::new(why, "remove the one that does not belong to this file"));
                }
                Some(_) => {}
            }
        }
        Ok(found.map(|(alpha, _)| alpha))
    }
}

/// Returns the keys of a transformer in the metadata of diffusers, where they may have the prefix `transformer.`.
fn of_transformer(all: Map<String, Value>) -> Map<String, Value> {
    let own = |(key, value): (&String, &Value)| Some((key.strip_prefix("transformer.")?.to_owned(), value.clone()));
    let keys: Map<String, Value> = all.iter().filter_map(own).collect();
    if keys.is_empty() { all } else { keys }
}

impl Config {
    fn new(source: &'static str, keys: &Map<String, Value>) -> Result<Self, Refusal> {
        check_method(source, keys)?;
        let alpha = number(source, keys, "lora_alpha")?.ok_or_else(|| {
            Refusal::new(format!("{source} has no lora_alpha"), "set the alpha that the adapter was trained with there")
        })?;
        let by_root = match keys.get("use_rslora") {
            None | Some(Value::Null) => false,
            Some(Value::Bool(by_root)) => *by_root,
            Some(other) => return Err(wrong(source, "use_rslora", other, "true or false")),
        };
        Ok(Self {
            source,
            alpha,
            alphas: patterns(source, keys, "alpha_pattern")?,
            rank: number(source, keys, "r")?,
            ranks: patterns(source, keys, "rank_pattern")?,
            by_root,
        })
    }

    /// Checks that the factors of a layer have the rank of the configuration.
    fn check_rank(&self, module: &str, in_model: &str, rank: usize) -> Result<(), Refusal> {
        let mut wanted = matching(&self.ranks, [module, in_model]);
        if wanted.is_empty() {
            wanted.extend(self.rank);
        }
        match wanted.first() {
            Some(first) if !wanted.contains(&(rank as f64)) => Err(Refusal::new(
                format!("{} has rank {first} for {module}, and its factors have rank {rank}", self.source),
                "use the configuration that was saved with this file",
            )),
            _ => Ok(()),
        }
    }

    /// Returns the alpha of a layer.
    ///
    /// The JSON parser does not keep the order of patterns, so that several matching patterns must have the same alpha.
    fn alpha_of(&self, module: &str, in_model: &str, rank: usize) -> Result<f64, Refusal> {
        let own = matching(&self.alphas, [module, in_model]);
        let alpha = own.first().copied().unwrap_or(self.alpha);
        if let Some(other) = own.iter().find(|other| **other != alpha) {
            return Err(Refusal::new(
                format!("alpha_pattern of {} has both {alpha} and {other} for {module}", self.source),
                "remove one of the two patterns there",
            ));
        }
        Ok(if self.by_root { alpha * (rank as f64).sqrt() } else { alpha })
    }
}

/// Returns the values of the patterns that match one of two names.
fn matching(patterns: &[Pattern], names: [&str; 2]) -> Vec<f64> {
    let matches = |pattern: &&Pattern| names.iter().any(|name| pattern.modules.is_match(name));
    patterns.iter().filter(matches).map(|pattern| pattern.value).collect()
}

fn patterns(source: &str, keys: &Map<String, Value>, key: &str) -> Result<Vec<Pattern>, Refusal> {
    let all = match keys.get(key) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Object(all)) => all,
        Some(other) => return Err(wrong(source, key, other, "an object")),
    };
    let pattern = |(pattern, value): (&String, &Value)| -> Result<Pattern, Refusal> {
        // PEFT matches the pattern against the end of the module name, starting after a dot.
        let modules = Regex::new(&format!(r"^(?:.*\.)?(?:{pattern})$")).map_err(|e| {
            let why = format!("the key '{pattern}' of {key} in {source} is not a valid regular expression: {e}");
            Refusal::new(why, "replace the key with module names")
        })?;
        let value = value.as_f64().ok_or_else(|| wrong(source, &format!("{key} '{pattern}'"), value, "a number"))?;
        Ok(Pattern { modules, value })
    };
    all.iter().map(pattern).collect()
}

fn number(source: &str, keys: &Map<String, Value>, key: &str) -> Result<Option<f64>, Refusal> {
    match keys.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value.as_f64().map(Some).ok_or_else(|| wrong(source, key, value, "a number")),
    }
}

fn wrong(source: &str, key: &str, value: &Value, wanted: &str) -> Refusal {
    Refusal::new(format!("{key} of {source} is {value}, expected {wanted}"), format!("set {wanted} there"))
}

/// Checks that a configuration is that of plain LoRA, whose result is the product of the factors and the scale.
fn check_method(source: &str, keys: &Map<String, Value>) -> Result<(), Refusal> {
    if let Some(Value::String(method)) = keys.get("peft_type")
        && method != "LORA"
    {
        let why = format!("{source} has peft_type {method}, not LORA");
        return Err(Refusal::new(why, MERGE_WITH_PEFT));
    }
    if let Some(Value::String(init)) = keys.get("init_lora_weights")
        && CHANGED_BASES.iter().any(|begin| init.to_lowercase().starts_with(begin))
    {
        let why = format!(
            "init_lora_weights of {source} is \"{init}\": the adapter belongs to weights that PEFT changes when it loads it"
        );
        let fix = "save it as plain LoRA: save_pretrained(..., path_initial_model_for_weight_conversion=...)";
        return Err(Refusal::new(why, fix));
    }
    let is_set = |key: &&&str| match keys.get(**key) {
        None | Some(Value::Null | Value::Bool(false)) => false,
        Some(Value::Array(all)) => !all.is_empty(),
        Some(Value::Object(all)) => !all.is_empty(),
        Some(_) => true,
    };
    match OTHER_FORMULAS.iter().find(is_set) {
        Some(key) => {
            Err(Refusal::new(format!("{source} sets {key}, which changes the formula of LoRA"), MERGE_WITH_PEFT))
        }
        None => Ok(()),
    }
}
