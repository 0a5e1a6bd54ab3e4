use std::fmt;

use camino::{Utf8Path, Utf8PathBuf};
use regex::Regex;
use serde::{Deserialize, Serialize};

use crate::{Family, ParamSpec, Role};

/// What to train on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Data {
    /// Index of precomputed latents and text embeddings, one JSON object per line.
    pub index: Utf8PathBuf,
    /// The text embedding that stands for no text, the one that sampling uses; empty for zeros.
    pub null_text: Utf8PathBuf,
}

impl Data {
    /// Returns the file that stands for no text; none for zeros.
    pub fn null_text(&self) -> Option<&Utf8Path> {
        Some(self.null_text.as_path()).filter(|path| !path.as_str().is_empty())
    }
}

/// How long, how much at once, and which parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Train {
    /// Optimizer steps of the whole run.
    pub steps: u64,
    /// Samples per step, over all ranks.
    pub global_batch: usize,
    /// Parts that a rank's share of the batch is computed in, one after another.
    pub grad_accum: usize,
    /// Seed of initial weights, data order, noise and text dropout.
    pub seed: u64,
    /// The parameters that are trained; the others keep the weights that the run starts from.
    pub trainable: Trainable,
    /// Chance that a sample is trained without its text, for classifier-free guidance.
    pub text_dropout: f64,
    /// Type that blocks compute in; master weights and optimizer state are always float32.
    pub dtype: Dtype,
    /// What ranks compute on.
    pub device: Device,
    /// CPU threads per rank; 0 shares the cores of a node among its ranks.
    pub threads: usize,
    /// Consecutive steps with a loss or gradient that is not finite before the run stops; each is skipped.
    pub max_bad_steps: u64,
}

impl Train {
    /// Tells whether a parameter is trained.
    pub fn trains(&self, spec: &ParamSpec) -> bool {
        spec.role == Role::Trained
            && match &self.trainable {
                Trainable::All => true,
                Trainable::Qkvo => spec.family == Family::Ttt || is_attention(&spec.name),
                Trainable::Patterns(patterns) => patterns.iter().any(|pattern| pattern.matches(&spec.name)),
            }
    }
}

/// The projections of attention and the norms of its queries and keys.
fn is_attention(name: &str) -> bool {
    const LAYERS: [&str; 6] = ["q", "k", "v", "o", "q_norm", "k_norm"];
    let mut parts = name.rsplit('.');
    let (_kind, layer, owner) = (parts.next(), parts.next(), parts.next());
    owner == Some("attn") && layer.is_some_and(|layer| LAYERS.contains(&layer))
}

/// The parameters that are trained.
#[derive(Debug, Clone, PartialEq)]
pub enum Trainable {
    /// Every parameter.
    All,
    /// Attention projections and norms, and everything of TTT layers.
    Qkvo,
    /// Every parameter whose name one of the patterns is found in.
    Patterns(Vec<Pattern>),
}

/// A regular expression that is searched in parameter names.
#[derive(Debug, Clone)]
pub struct Pattern(Regex);

impl Pattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// When it is not a regular expression.
    pub fn new(text: &str) -> Result<Self, regex::Error> {
        Regex::new(text).map(Pattern)
    }

    /// Returns the pattern as it was written.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// Tells whether the pattern is found in a name.
    pub fn matches(&self, name: &str) -> bool {
        self.0.is_match(name)
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

/// `"all"`, `"qkvo"` or a list of patterns, as it is written in a recipe.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Word(String),
    Patterns(Vec<String>),
}

impl Serialize for Trainable {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Trainable::All => Written::Word("all".into()),
            Trainable::Qkvo => Written::Word("qkvo".into()),
            Trainable::Patterns(patterns) => {
                Written::Patterns(patterns.iter().map(|pattern| pattern.as_str().to_owned()).collect())
            }
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Trainable {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        match Written::deserialize(deserializer)? {
            Written::Word(word) if word == "all" => Ok(Trainable::All),
            Written::Word(word) if word == "qkvo" => Ok(Trainable::Qkvo),
            Written::Word(word) => Err(D::Error::unknown_variant(&word, &["all", "qkvo"])),
            Written::Patterns(patterns) => {
                let compiled: Result<_, _> = patterns.iter().map(|pattern| Pattern::new(pattern)).collect();
                Ok(Trainable::Patterns(compiled.map_err(D::Error::custom)?))
            }
        }
    }
}

/// Shows `all`, `qkvo` or the patterns.
impl fmt::Display for Trainable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trainable::All => f.write_str("all"),
            Trainable::Qkvo => f.write_str("qkvo"),
            Trainable::Patterns(patterns) => {
                f.write_str(&patterns.iter().map(Pattern::as_str).collect::<Vec<_>>().join(", "))
            }
        }
    }
}

/// Type that blocks compute in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// 32-bit floats.
    Float32,
    /// 16-bit floats with the range of 32-bit ones.
    Bfloat16,
}

impl Dtype {
    /// Returns the size of one number.
    pub fn bytes(self) -> u64 {
        match self {
            Dtype::Float32 => 4,
            Dtype::Bfloat16 => 2,
        }
    }
}

/// What ranks compute on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// A GPU for each rank of a node where the trainer sees any, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// A GPU for each rank of a node; a node without them is an error.
    Cuda,
}

impl Device {
    /// Tells whether ranks use GPUs, where the trainer `finds` some or not.
    pub fn on_gpus(self, finds: bool) -> bool {
        match self {
            Device::Auto => finds,
            Device::Cpu => false,
            Device::Cuda => true,
        }
    }

    /// Returns its name in recipes.
    pub fn name(self) -> &'static str {
        match self {
            Device::Auto => "auto",
            Device::Cpu => "cpu",
            Device::Cuda => "cuda",
        }
    }
}

/// What is kept between forward and backward instead of computed again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remat {
    /// Whether blocks run again for their backward pass.
    pub mode: RematMode,
    /// Blocks that run again together, from one saved input: more saves less, and computes as much.
    pub group: usize,
    /// Keeps the attention output of each block; costs memory, saves the dearest part of the second forward pass.
    pub keep_attention: bool,
    /// Mini-batches of a TTT layer between inner states that are saved for the backward pass.
    pub scan_group: usize,
    /// Keeps the inputs of blocks shared out over the ranks of a TP group; costs a gather for each in the backward pass.
    pub shard_inputs: bool,
}

impl Remat {
    /// Returns how many of `blocks` blocks share a saved input: all of them when nothing runs again, because the last group
    /// keeps what its forward pass made.
    pub fn blocks_per_input(&self, blocks: usize) -> usize {
        match self.mode {
            RematMode::None => blocks,
            RematMode::Block => self.group.min(blocks),
        }
    }
}

/// Whether blocks run again for their backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RematMode {
    /// Nothing runs again: everything is kept, the weights of every block too.
    None,
    /// Blocks run again from saved inputs, each once.
    Block,
}

/// When checkpoints are written and how many stay.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointPolicy {
    /// Steps between checkpoints; 0 writes one only when the run stops or ends.
    pub interval: u64,
    /// Newest checkpoints that stay; 0 keeps all.
    pub keep_last: u64,
    /// Checkpoints whose step is a multiple of this stay for good; 0 means none does.
    pub keep_every: u64,
    /// Saves that fail in a row before the run stops; 0 goes on without checkpoints, however many.
    pub max_failures: u64,
}

/// What is written while training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log {
    /// Steps between lines of metrics.
    pub interval: u64,
    /// What a device can do at most in the recipe's dtype, TFLOP per second, for MFU; 0 where nobody knows.
    pub peak_tflops: f64,
    /// A loss so many times the usual scatter above the median of the steps before is told as a spike; 0 tells none.
    pub spike: f64,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{Recipe, load, param_specs};

    fn recipe(trainable: Trainable) -> Recipe {
        let path = "../../tests/fixtures/configs/valid/minimal.toml";
        let mut recipe = load(path.into(), &[]).unwrap().recipe;
        recipe.train.trainable = trainable;
        recipe
    }

    fn trained(recipe: &Recipe) -> BTreeSet<String> {
        let specs = param_specs(&recipe.model);
        specs.into_iter().filter(|spec| recipe.train.trains(spec)).map(|spec| spec.name).collect()
    }

    #[test]
    fn qkvo_trains_attention_and_nothing_else() {
        let wanted = (0..2).flat_map(|block| {
            let layers = ["q", "k", "v", "o", "q_norm", "k_norm"];
            layers
                .into_iter()
                .flat_map(move |layer| ["weight", "bias"].map(|kind| format!("blocks.{block}.attn.{layer}.{kind}")))
        });
        assert_eq!(trained(&recipe(Trainable::Qkvo)), wanted.collect());
    }

    #[test]
    fn patterns_train_every_name_they_are_found_in() {
        let patterns = [r"^blocks\.1\.attn\.[qk]\.weight$", "final.proj"].map(|text| Pattern::new(text).unwrap());
        let names = trained(&recipe(Trainable::Patterns(patterns.into())));
        let wanted = ["blocks.1.attn.k.weight", "blocks.1.attn.q.weight", "final.proj.bias", "final.proj.weight"];
        assert_eq!(names.into_iter().collect::<Vec<_>>(), wanted);
    }

    #[test]
    fn a_stored_table_of_positions_is_never_trained() {
        let mut recipe = recipe(Trainable::All);
        recipe.model.positions = crate::Positions::Learned;
        let frozen: Vec<_> = param_specs(&recipe.model).into_iter().filter(|spec| !recipe.train.trains(spec)).collect();
        assert_eq!(frozen.iter().map(|spec| spec.name.as_str()).collect::<Vec<_>>(), ["patch_embed.positions"]);
    }
}
