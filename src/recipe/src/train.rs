//! The sections `[data]`, `[train]`, `[loss]`, `[remat]`, `[checkpoint]` and `[log]`.

use std::fmt;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use regex::Regex;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

use crate::schema::REMOVED;
use crate::{BucketRule, BucketSpec, ParamGroup, ParamRole, ParamSpec};

/// The data sets, and the shares and shapes of their items.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Data {
    /// The folder of a store of latents and texts, or an index, one JSON object per line. Empty if `sets` has the data sets.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub index: Utf8PathBuf,
    /// Several data sets, instead of `index`.
    pub sets: Vec<DataSet>,
    /// The share of samples with one latent frame; 0: as in the data sets.
    pub image_share: f64,
    /// The shapes of latents, and their order.
    pub shapes: Shapes,
    /// Frames per second of the videos; 0: those of the data set.
    pub fps: f64,
    /// The share of items that a run may leave unused because their shape cannot fill a step.
    pub max_unused: f64,
    /// Threads with which each rank reads the samples of a batch.
    pub readers: usize,
    /// The file of the encoded empty caption, which replaces dropped texts. Empty: the file in the store, or zeros if it has none.
    pub null_text: Utf8PathBuf,
    /// The rule by which clips are assigned to buckets.
    pub bucket_rule: BucketRule,
    /// The sizes that clips are cut to. Empty: one size, that of the model.
    pub buckets: Vec<BucketSpec>,
}

impl Default for Data {
    fn default() -> Self {
        Data {
            index: Utf8PathBuf::new(),
            sets: Vec::new(),
            image_share: 0.0,
            shapes: Shapes::default(),
            fps: 0.0,
            max_unused: 0.0,
            readers: 1,
            null_text: Utf8PathBuf::new(),
            bucket_rule: BucketRule::default(),
            buckets: Vec::new(),
        }
    }
}

impl Data {
    /// Returns the file of the encoded empty caption, if the recipe sets one.
    pub fn null_text(&self) -> Option<&Utf8Path> {
        Some(self.null_text.as_path()).filter(|path| !path.as_str().is_empty())
    }

    /// Returns the data sets: `sets`, or the data set at `index`.
    pub fn all(&self) -> Vec<DataSet> {
        match self.sets.is_empty() {
            true => vec![DataSet { index: self.index.clone(), weight: None, repeats: None }],
            false => self.sets.clone(),
        }
    }

    /// Returns the same settings for a single data set.
    pub fn of(&self, index: &Utf8Path) -> Self {
        Data { index: index.to_owned(), sets: Vec::new(), image_share: 0.0, ..self.clone() }
    }

    /// Formats the paths of the data sets for display.
    pub fn in_words(&self) -> String {
        let of = |set: DataSet| match (set.weight, set.repeats) {
            (Some(weight), _) => format!("{} (weight {weight})", set.index),
            (_, Some(repeats)) => format!("{} ({repeats} times)", set.index),
            _ => set.index.into_string(),
        };
        self.all().into_iter().map(of).collect::<Vec<_>>().join(" + ")
    }
}

fn is_empty(path: &Utf8PathBuf) -> bool {
    path.as_str().is_empty()
}

/// One of several data sets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataSet {
    /// The folder of a store, or an index.
    pub index: Utf8PathBuf,
    /// The share of its samples, in proportion to the weights of the other sets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
    /// The number of times that each of its items is used in an epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats: Option<u64>,
}

/// The shapes that latents may have, and the shapes that the ranks have in a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shapes {
    /// `Grouped` if the recipe has several buckets, otherwise `One`.
    #[default]
    Auto,
    /// All latents have the shape of the model.
    One,
    /// Latents have any shape that the model can take. All samples of a step have the same shape.
    Grouped,
    /// Latents have any shape that the model can take. The micro-batches of a step have nearly the same cost.
    Balanced,
}

/// Steps, batch and trained parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Train {
    /// Optimizer steps of the whole run; 0 until the data set is opened, if `epochs` is set.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub steps: u64,
    /// Passes over the data instead of `steps`; 0: `steps` is set.
    pub epochs: u64,
    /// Samples per optimizer step, over all ranks.
    pub global_batch: usize,
    /// Micro-batches per step on each rank.
    pub grad_accum: usize,
    /// Seed of initial weights, data order, noise and text dropout.
    pub seed: u64,
    /// The parameters that are trained; the others keep their initial weights.
    pub trainable: Trainable,
    /// Parameters that are not trained although `trainable` selects them. Adapters are always trained.
    pub frozen: Vec<Pattern>,
    /// The dtype in which frozen parameters are kept.
    pub frozen_dtype: FrozenDtype,
    /// Probability that a sample is trained without its text, for classifier-free guidance.
    pub text_dropout: f64,
    /// The dtype of the computation; master weights and optimizer state are always float32.
    pub dtype: ComputeDtype,
    /// The device of the ranks.
    pub device: Device,
    /// CPU threads per rank; 0: `OMP_NUM_THREADS`, or the node's cores divided by its ranks.
    pub threads: usize,
    /// The number of skipped steps after which the run ends, in a row or within ten times as many steps. A step is skipped if its loss or
    /// gradient is not finite.
    pub max_bad_steps: u64,
    /// The scan of TTT layers on GPUs.
    pub ttt_scan: TttScan,
    /// The norms with modulation, gates and rotary embeddings on GPUs.
    pub fused: Fused,
    /// The pieces in which the ranks of a TP group exchange tokens.
    pub tp_pieces: TokenPieces,
    /// Seconds that a rank waits for the others in a step; 0: derived from the longest step.
    pub collective_timeout_s: u64,
    /// Steps between comparisons of the weights of replicas and TP ranks; 0: never.
    pub drift_check: u64,
    /// Which gradients a rank accumulates over micro-batches.
    pub accumulate: Accumulate,
}

/// The time that a rank waits for the others in the first step of an attempt, and while they load weights, save or make samples.
pub const WAIT_OUTSIDE_STEPS: Duration = Duration::from_secs(1800);
/// The shortest timeout of a step that is derived from the longest step. A step includes waiting for a rank that still writes files of the
/// step before, and a file system may stall for minutes.
const SHORTEST_WAIT: Duration = Duration::from_secs(600);
/// The derived timeout is the longest step multiplied by this number.
const STEPS_OF_WAIT: f64 = 20.0;

impl Train {
    /// Returns the time that a rank waits for the others in a step, given the longest step of the attempt so far on any rank, in seconds.
    pub fn collective_timeout(&self, longest_step_s: Option<f64>) -> Duration {
        match (longest_step_s, self.collective_timeout_s) {
            (None, seconds) => WAIT_OUTSIDE_STEPS.max(Duration::from_secs(seconds)),
            (Some(longest), 0) => {
                let wait = Duration::try_from_secs_f64(longest * STEPS_OF_WAIT).unwrap_or(WAIT_OUTSIDE_STEPS);
                wait.clamp(SHORTEST_WAIT, WAIT_OUTSIDE_STEPS)
            }
            (Some(_), seconds) => Duration::from_secs(seconds),
        }
    }

    /// Returns whether the weights are compared after `step`.
    pub fn checks_drift_at(&self, step: u64) -> bool {
        self.drift_check > 0 && step.is_multiple_of(self.drift_check)
    }
}

impl Train {
    /// Returns whether a parameter is trained.
    pub fn trains(&self, spec: &ParamSpec) -> bool {
        match (spec.role, &self.trainable) {
            (ParamRole::Buffer, _) => false,
            (ParamRole::Adapter, _) => true,
            (ParamRole::Trained, _) if self.frozen.iter().any(|pattern| pattern.matches(&spec.name)) => false,
            (ParamRole::Trained, Trainable::All) => true,
            (ParamRole::Trained, Trainable::Lora) => false,
            (ParamRole::Trained, Trainable::Qkvo) => spec.group == ParamGroup::Ttt || is_attention(&spec.name),
            (ParamRole::Trained, Trainable::Patterns(patterns)) => {
                patterns.iter().any(|pattern| pattern.matches(&spec.name))
            }
        }
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The dtype in which frozen parameters are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FrozenDtype {
    /// The dtype of the computation.
    Compute,
    /// 32-bit floats, which are cast when they are gathered.
    Float32,
}

impl Train {
    /// Returns the dtype in which frozen parameters are kept.
    pub fn frozen_dtype(&self) -> ComputeDtype {
        match self.frozen_dtype {
            FrozenDtype::Compute => self.dtype,
            FrozenDtype::Float32 => ComputeDtype::Float32,
        }
    }
}

/// The loss of a sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loss {
    /// The weight of each sample.
    pub weighting: LossWeighting,
    /// The largest signal-to-noise ratio that counts with [`LossWeighting::MinSnr`].
    pub min_snr_gamma: f64,
    /// The share of the loss that is the error of differences between adjacent latent frames; 0: none.
    pub motion: f64,
}

impl Default for Loss {
    /// Returns the plain mean squared error.
    fn default() -> Self {
        Loss { weighting: LossWeighting::None, min_snr_gamma: 5.0, motion: 0.0 }
    }
}

/// The weight of each sample in the loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossWeighting {
    /// 1, of the velocity's error.
    None,
    /// `1 / (1 - ᾱ)`, of the clean latent's error.
    Snr,
    /// `min(SNR, γ) / (SNR + 1)`, of the velocity's error.
    MinSnr,
}

/// Returns whether a parameter is a projection of attention or a norm of its queries or keys.
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
    /// The projections and norms of attention, and all parameters of TTT layers.
    Qkvo,
    /// The adapters alone.
    Lora,
    /// Every parameter whose name matches one of the patterns.
    Patterns(Vec<Pattern>),
}

/// A regular expression that matches anywhere in parameter names.
#[derive(Debug, Clone)]
pub struct Pattern(Regex);

impl Pattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// If `text` is not a regular expression.
    pub fn new(text: &str) -> Result<Self, regex::Error> {
        Regex::new(text).map(Pattern)
    }

    /// Returns the pattern as it was written.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// Returns whether the pattern matches a name.
    pub fn matches(&self, name: &str) -> bool {
        self.0.is_match(name)
    }
}

impl Serialize for Pattern {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Pattern::new(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

/// The words that `train.trainable` can be, besides a list of patterns.
pub(crate) const TRAINABLE: [&str; 3] = ["all", "qkvo", "lora"];

/// A word of [`TRAINABLE`] or a list of patterns, as it is written in a recipe.
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
            Trainable::Lora => Written::Word("lora".into()),
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
            Written::Word(word) if word == "lora" => Ok(Trainable::Lora),
            Written::Word(word) => Err(D::Error::unknown_variant(&word, &TRAINABLE)),
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
            Trainable::Lora => f.write_str("lora"),
            Trainable::Patterns(patterns) => {
                f.write_str(&patterns.iter().map(Pattern::as_str).collect::<Vec<_>>().join(", "))
            }
        }
    }
}

/// The dtype of the computation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ComputeDtype {
    /// 32-bit floats.
    Float32,
    /// 16-bit floats with the range of 32-bit ones.
    Bfloat16,
}

impl ComputeDtype {
    /// Returns the name in recipes.
    pub fn name(self) -> &'static str {
        match self {
            ComputeDtype::Float32 => "float32",
            ComputeDtype::Bfloat16 => "bfloat16",
        }
    }

    /// Returns the size of one number in bytes.
    pub fn bytes(self) -> u64 {
        match self {
            ComputeDtype::Float32 => 4,
            ComputeDtype::Bfloat16 => 2,
        }
    }
}

/// In how many pieces the ranks of a TP group exchange tokens, so that a piece is on its way while another is computed; 0: by the
/// size on GPUs, 1 on CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TokenPieces(pub usize);

impl TokenPieces {
    /// Returns the number of pieces for a rank's part of the tokens of so many bytes. Four pieces hide three quarters of an exchange,
    /// if the computation takes as long, and a fifth would hide a twentieth more. Pieces of 16 MiB are assumed to reach the rate of the links.
    pub fn of(self, bytes: u64, on_gpu: bool) -> u64 {
        const LEAST: u64 = 16 << 20;
        const MOST: u64 = 4;
        match self.0 as u64 {
            0 if on_gpu => (bytes / LEAST).clamp(1, MOST),
            0 => 1,
            pieces => pieces,
        }
    }
}

/// The implementation of the scan of TTT layers on GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TttScan {
    /// The CUDA kernel where it can run, else libtorch's operators.
    Auto,
    /// libtorch's operators, mini-batch by mini-batch.
    Operators,
    /// The CUDA kernel, in bfloat16.
    Kernel,
    /// The CUDA kernel with one thread block for each head, also where clusters of blocks could share its hidden units.
    #[serde(rename = "kernel_without_clusters")]
    KernelWithoutClusters,
}

impl TttScan {
    /// Returns whether only the CUDA kernel may compute.
    pub fn requires_kernel(self) -> bool {
        matches!(self, TttScan::Kernel | TttScan::KernelWithoutClusters)
    }

    /// Returns the setting as an error names it.
    pub fn setting(self) -> &'static str {
        match self {
            TttScan::Auto => "train.ttt_scan is \"auto\"",
            TttScan::Operators => "train.ttt_scan is \"operators\"",
            TttScan::Kernel => "train.ttt_scan is \"kernel\"",
            TttScan::KernelWithoutClusters => "train.ttt_scan is \"kernel_without_clusters\"",
        }
    }
}

/// Which gradients a rank accumulates over the micro-batches of a step, with `mesh.dp_shard` > 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accumulate {
    /// The unsharded gradient of every unit, which is reduced once a step.
    Whole,
    /// The gradient of the rank's shard: every unit is reduced in every micro-batch.
    Sharded,
}

/// The implementation of norms with modulation, gates and rotary embeddings on GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fused {
    /// CUDA kernels for the tensors that they support, and libtorch's operators for the others and on older GPUs.
    Auto,
    /// libtorch's operators.
    Operators,
    /// As `Auto`; a rank whose GPU has no kernels for the model does not start.
    Kernel,
}

/// The device of the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// One GPU per rank if the trainer finds GPUs, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// One GPU per rank; a node without enough GPUs is an error.
    Cuda,
}

impl Device {
    /// Returns whether ranks use GPUs, given whether the trainer `finds` some.
    pub fn on_gpus(self, finds: bool) -> bool {
        match self {
            Device::Auto => finds,
            Device::Cpu => false,
            Device::Cuda => true,
        }
    }

    /// Returns the name in recipes.
    pub fn name(self) -> &'static str {
        match self {
            Device::Auto => "auto",
            Device::Cpu => "cpu",
            Device::Cuda => "cuda",
        }
    }
}

/// Activation checkpointing: which activations are kept for the backward pass, and which are recomputed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remat {
    /// Whether blocks are recomputed in the backward pass.
    pub mode: RematMode,
    /// Blocks that are recomputed together from one saved input. A larger group keeps fewer inputs, and needs memory for
    /// the activations of all its blocks.
    pub group: usize,
    /// Keeps the attention output of each block: more memory, and no recomputation of attention.
    pub keep_attention: bool,
    /// Keeps the outputs and inner states of the scans of TTT layers: more memory, and no recomputation of the scans.
    pub keep_scan: bool,
    /// Mini-batches of a TTT layer between saved inner states.
    pub scan_group: usize,
}

impl Remat {
    /// Reads the section without the keys of [`REMOVED`], which the runs of earlier versions have.
    pub(crate) fn without_removed<'de, D: Deserializer<'de>>(section: D) -> Result<Self, D::Error> {
        let mut table = toml::Table::deserialize(section)?;
        REMOVED.iter().filter_map(|key| key.strip_prefix("remat.")).for_each(|key| drop(table.remove(key)));
        Self::deserialize(table).map_err(D::Error::custom)
    }

    /// Returns the number of consecutive blocks, of `blocks` in all, that share a saved input. All blocks share one if
    /// nothing is recomputed, because the last group keeps its activations.
    pub fn blocks_per_input(&self, blocks: usize) -> usize {
        match self.mode {
            RematMode::None => blocks,
            RematMode::Block => self.group.min(blocks),
        }
    }
}

/// Whether blocks are recomputed in the backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RematMode {
    /// All activations are kept, and the gathered weights of every block.
    None,
    /// Each block is recomputed once, from saved inputs.
    Block,
}

/// When checkpoints are written and how many are kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointPolicy {
    /// Steps between checkpoints; 0: only when the run stops or ends.
    pub interval: u64,
    /// Number of newest checkpoints that are kept; 0: all.
    pub keep_last: u64,
    /// Checkpoints at multiples of this step are kept permanently; 0: none.
    pub keep_every: u64,
    /// Consecutive failed saves after which the run stops; 0: no limit.
    pub max_failures: u64,
}

impl CheckpointPolicy {
    /// Returns whether a checkpoint is written after a step that does not end the run.
    pub fn is_due(&self, step: u64) -> bool {
        self.interval > 0 && step.is_multiple_of(self.interval)
    }

    /// Returns whether a run stops after so many failed saves in a row.
    pub fn gives_up_after(&self, failed_saves: u64) -> bool {
        self.max_failures > 0 && failed_saves >= self.max_failures
    }
}

/// Metrics while training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log {
    /// Steps between lines of metrics.
    pub interval: u64,
    /// Peak of one device in the recipe's dtype, in TFLOP/s, for MFU; 0: unknown.
    pub peak_tflops: f64,
    /// A loss that exceeds the recent median by this many times the usual spread is reported as a spike; 0: never.
    pub spike: f64,
    /// Whether TensorBoard's event files are written too.
    pub tensorboard: bool,
    /// Whether an offline run of W&B is written too.
    pub wandb: WandbMode,
    /// The folder of node_exporter's textfile collector, to which the newest metrics are written; empty: none.
    pub prometheus: Utf8PathBuf,
}

/// Which files are written for W&B.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WandbMode {
    /// Nothing.
    Off,
    /// An offline run, which `wandb sync` uploads.
    Offline,
}

impl Log {
    /// Returns the model FLOPs utilization (MFU) at this rate in TFLOP/s, if the peak is known.
    pub fn mfu(&self, tflops: f64) -> Option<f64> {
        (self.peak_tflops > 0.0).then(|| tflops / self.peak_tflops)
    }
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
    fn a_rank_waits_a_multiple_of_the_longest_step_within_bounds() {
        let mut train = recipe(Trainable::All).train;
        let minutes = |train: &Train, longest| train.collective_timeout(longest).as_secs_f64() / 60.0;
        assert_eq!([None, Some(0.1), Some(60.0), Some(1e300)].map(|s| minutes(&train, s)), [30.0, 10.0, 20.0, 30.0]);
        train.collective_timeout_s = 60;
        assert_eq!([None, Some(0.1), Some(1e300)].map(|s| minutes(&train, s)), [30.0, 1.0, 1.0]);
    }

    #[test]
    fn pieces_of_tokens_follow_their_size_on_gpus_unless_they_are_set() {
        let pieces = |set| {
            [(1, true), (40 << 20, true), (1 << 30, true), (1 << 30, false)]
                .map(|(bytes, gpu)| TokenPieces(set).of(bytes, gpu))
        };
        assert_eq!((pieces(0), pieces(1), pieces(3)), ([1, 2, 4, 1], [1; 4], [3; 4]));
    }

    #[test]
    fn the_kernel_of_the_scan_is_refused_where_it_cannot_run() {
        let load = |scan: &'static str, sets: &[&str]| {
            let own = [scan, "model.layer=ttt_mlp", "model.ttt_mini_batch=16"];
            let sets: Vec<String> = own.iter().chain(sets).map(|set| (*set).to_owned()).collect();
            load("../../tests/fixtures/configs/valid/minimal.toml".into(), &sets)
        };
        let scans = [
            ("train.ttt_scan=kernel", TttScan::Kernel),
            ("train.ttt_scan=kernel_without_clusters", TttScan::KernelWithoutClusters),
        ];
        let refused: [&[&str]; 5] = [
            &["train.device=cpu"],
            &["train.dtype=float32"],
            &["model.ttt_mini_batch=8"],
            &["model.head_dim=128"],
            &["model.ttt_mini_batch=32", "model.head_dim=80"],
        ];
        for (scan, parsed) in scans {
            assert_eq!(load(scan, &[]).unwrap().recipe.train.ttt_scan, parsed);
        }
        for (sets, (scan, parsed)) in refused.into_iter().flat_map(|sets| scans.map(|scan| (sets, scan))) {
            let error = load(scan, sets).unwrap_err();
            assert!(error.to_string().contains(parsed.setting()), "{error}");
            assert_eq!(error.kind, crate::RecipeErrorKind::BrokenRule, "{sets:?}");
            assert!(error.keys.iter().any(|key| key == "train.ttt_scan"), "{error}");
        }
        let unused = load("train.ttt_scan=kernel", &["model.layer=none", "train.device=cpu"]);
        assert!(unused.is_ok(), "without TTT layers it is not used");
    }

    #[test]
    fn the_kernel_of_the_scan_proposes_widths_that_it_has() {
        let fix = |width: usize| {
            let own = ["train.ttt_scan=kernel", "model.layer=ttt_mlp", "model.ttt_mini_batch=16", "model.num_heads=2"];
            let sets =
                own.iter().map(|set| (*set).to_owned()).chain([format!("model.head_dim={width}")]).collect::<Vec<_>>();
            load("../../tests/fixtures/configs/valid/minimal.toml".into(), &sets).err().map(|error| error.fix)
        };
        let proposes_64 = |width| fix(width).is_some_and(|fix| fix.contains("= 64,"));
        assert!(proposes_64(128) && proposes_64(80));
        assert_eq!((fix(64), fix(48)), (None, None));
    }

    #[test]
    fn a_timeout_below_five_seconds_is_refused() {
        let load = |seconds: u64| {
            let set = format!("train.collective_timeout_s={seconds}");
            load("../../tests/fixtures/configs/valid/minimal.toml".into(), &[set])
        };
        assert!(load(0).is_ok() && load(5).is_ok());
        let error = load(4).unwrap_err();
        assert_eq!(error.kind, crate::RecipeErrorKind::BrokenRule);
        assert!(error.keys.iter().any(|key| key == "train.collective_timeout_s"), "{error}");
    }

    #[test]
    fn qkvo_trains_only_attention() {
        let wanted = (0..2).flat_map(|block| {
            let layers = ["q", "k", "v", "o", "q_norm", "k_norm"];
            layers
                .into_iter()
                .flat_map(move |layer| ["weight", "bias"].map(|kind| format!("blocks.{block}.attn.{layer}.{kind}")))
        });
        assert_eq!(trained(&recipe(Trainable::Qkvo)), wanted.collect());
    }

    #[test]
    fn patterns_train_every_parameter_that_they_match() {
        let patterns = [r"^blocks\.1\.attn\.[qk]\.weight$", "final.proj"].map(|text| Pattern::new(text).unwrap());
        let names = trained(&recipe(Trainable::Patterns(patterns.into())));
        let wanted = ["blocks.1.attn.k.weight", "blocks.1.attn.q.weight", "final.proj.bias", "final.proj.weight"];
        assert_eq!(names.into_iter().collect::<Vec<_>>(), wanted);
    }

    #[test]
    fn a_learned_position_table_is_never_trained() {
        let mut recipe = recipe(Trainable::All);
        recipe.model.positions = crate::Positions::Learned;
        let frozen: Vec<_> = param_specs(&recipe.model).into_iter().filter(|spec| !recipe.train.trains(spec)).collect();
        assert_eq!(frozen.iter().map(|spec| spec.name.as_str()).collect::<Vec<_>>(), ["patch_embed.positions"]);
    }

    #[test]
    fn removed_keys_of_flags_and_of_earlier_runs_are_ignored() {
        let path = "../../tests/fixtures/configs/valid/minimal.toml";
        let recipe = |sets: &[String]| load(path.into(), sets).unwrap().recipe;
        let flags: Vec<String> = REMOVED.iter().map(|key| format!("{key}=true")).collect();
        assert!(!flags.is_empty());
        assert_eq!(recipe(&flags), recipe(&[]));
        let mut of_run = toml::Table::try_from(recipe(&[])).unwrap();
        of_run["remat"].as_table_mut().unwrap().insert("shard_inputs".into(), true.into());
        assert_eq!(of_run.clone().try_into::<Recipe>().unwrap(), recipe(&[]));
        of_run["remat"].as_table_mut().unwrap().insert("unknown".into(), true.into());
        assert!(of_run.try_into::<Recipe>().is_err());
    }
}
