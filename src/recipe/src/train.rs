//! The sections `[data]`, `[train]`, `[loss]`, `[remat]`, `[checkpoint]` and `[log]`.

use std::fmt;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use regex::Regex;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

use crate::resume::TENSORS;
use crate::schema::REMOVED;
use crate::schema::{
    BOOL, EMBEDDED, EVERY_JOB, FRACTION, Kind, MANY, NOT_NEGATIVE, OPTIONAL_PATH, PATH, POSITIVE, Spec, TRAIN,
    TRAIN_AND_COMMAND, TRAIN_AND_ENCODE, TRAIN_AND_SAMPLE, int, word,
};
use crate::{BucketRule, BucketSpec, FamilyName, Length, ParamGroup, ParamRole, ParamSpec, ResumeEffect};

section! {
    /// The data sets, and the shares and shapes of their items.
    pub struct Data("data", TRAIN, ResumeEffect::Data) with Default {
        /// folder of latents and texts that `vidtui data` made, or an index, one JSON object per line
        #[serde(default, skip_serializing_if = "is_empty")]
        pub index: Utf8PathBuf => PATH.or("data.sets");
        /// several data sets instead of data.index: [[data.sets]] with index and, as needed, repeats (uses of each item in an epoch) or
        /// weight (share of the samples; the set with the fewest samples for its weight is repeated)
        pub sets: Vec<DataSet> = Vec::new() => Spec::of(Kind::Sets).or("data.index");
        /// share of samples with one latent frame (images), from 0 to below 1; images or videos are repeated to reach it; 0: as in the
        /// data sets
        pub image_share: f64 = 0.0 => FRACTION;
        /// shapes of latents; auto: grouped if data.buckets has several, otherwise one; one: all have that of [model]; grouped: any that
        /// the model can take, and all samples of a step have the same; balanced: any, and the micro-batches of a step differ by at most
        /// 5 % in cost
        pub shapes: Shapes = Shapes::default() => word::<Shapes>();
        /// frames per second of the videos that the model learns, for `vidtui data encode` with --for, and for samples; a data set of
        /// another rate is refused; 0: the rate of the data set
        pub fps: f64 = 0.0 => NOT_NEGATIVE.on_resume(ResumeEffect::None);
        /// share of the items that a run of an epoch or more may leave unused, from 0 to below 1; items are left when too few of their
        /// shape fill a step; 0: none
        pub max_unused: f64 = 0.05 => FRACTION.on_resume(ResumeEffect::None);
        /// threads with which each rank reads the samples of a batch ahead; more help on network file systems with several samples in a
        /// batch
        pub readers: usize = 1 => int(1, 256).on_resume(ResumeEffect::None);
        /// file with the encoded empty caption, which replaces dropped texts; default: the one in the folder of data.index, otherwise
        /// zeros
        pub null_text: Utf8PathBuf = Utf8PathBuf::new() => OPTIONAL_PATH;
        /// choice of a bucket for each clip; list: the nearest ratio of height to width, then the most frames; open_sora_1_2 and
        /// open_sora_2: probabilities of resolutions and lengths; token_budget: VideoX-Fun's, larger frames and fewer of them
        pub bucket_rule: BucketRule = BucketRule::default() => word::<BucketRule>().read_by(TRAIN_AND_ENCODE);
        /// sizes that clips are cut to, [[data.buckets]]; list: frames, height, width; open_sora: size ("256px"), frames, accept, and
        /// stay (1.2) or skip (2); token_budget: frames and side, min_side, max_side; each with batch, the samples of a rank at a time
        /// (default: as in train); empty: one size
        pub buckets: Vec<BucketSpec> = Vec::new() => Spec::of(Kind::Buckets).read_by(TRAIN_AND_ENCODE);
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

words! {
    /// The shapes that latents may have, and the shapes that the ranks have in a step.
    #[derive(Default)]
    pub enum Shapes {
        /// `Grouped` if the recipe has several buckets, otherwise `One`.
        #[default]
        Auto = "auto",
        /// All latents have the shape of the model.
        One = "one",
        /// Latents have any shape that the model can take. All samples of a step have the same shape.
        Grouped = "grouped",
        /// Latents have any shape that the model can take. The micro-batches of a step have nearly the same cost.
        Balanced = "balanced",
    }
}

section! {
    /// Steps, batch and trained parameters.
    pub struct Train("train", TRAIN, ResumeEffect::None) {
        "The length of the run." flatten length: Length;
        /// samples per optimizer step, over all ranks
        pub global_batch: usize => int(1, 1_000_000).on_resume(ResumeEffect::Data);
        /// micro-batches per step on each rank; gradients are accumulated over them
        pub grad_accum: usize = 1 => int(1, 1_000_000).read_by(TRAIN_AND_COMMAND).on_resume(ResumeEffect::Rounding);
        /// seed of initial weights, data order, noise and text dropout
        pub seed: u64 = 42
            => int(0, i64::MAX).on_resume(ResumeEffect::Refused("the seed is in the checkpoint, and --fresh-data draws a new one"));
        /// parameters that are trained: all, qkvo (attention and TTT layers), lora (the adapters of [lora] alone), or a list of regular
        /// expressions of parameter names
        pub trainable: Trainable = Trainable::All => Spec::of(Kind::Trainable).on_resume(TENSORS);
        /// regular expressions of parameter names that are not trained although train.trainable selects them; adapters are always
        /// trained
        pub frozen: Vec<Pattern> = Vec::new() => Spec::of(Kind::Patterns).on_resume(TENSORS);
        /// dtype in which frozen parameters are kept and saved; compute: that of train.dtype; float32: cast when they are gathered, as
        /// trained ones are
        pub frozen_dtype: FrozenDtype = FrozenDtype::Compute => word::<FrozenDtype>().on_resume(TENSORS);
        /// probability that a sample is trained without its text, from 0 to below 1; 0: never
        pub text_dropout: f64 = 0.1 => FRACTION.on_resume(ResumeEffect::Training);
        /// dtype of the computation; master weights and optimizer state are always float32
        pub dtype: ComputeDtype = ComputeDtype::Bfloat16
            => word::<ComputeDtype>().read_by(TRAIN_AND_SAMPLE).on_resume(TENSORS);
        /// device of the ranks; auto: one GPU per rank if the trainer finds GPUs, else the CPU
        pub device: Device = Device::Auto => word::<Device>().read_by(EMBEDDED).on_resume(ResumeEffect::Rounding);
        /// CPU threads per rank; 0: OMP_NUM_THREADS, or the node's cores divided by its ranks
        pub threads: usize = 0 => int(0, 4096).read_by(EMBEDDED).on_resume(ResumeEffect::Rounding);
        /// skipped steps after which the run ends, in a row or within ten times as many steps; a step is skipped if its loss or gradient
        /// is not finite
        pub max_bad_steps: u64 = 10 => int(1, MANY);
        /// scan of TTT layers on GPUs; auto: a CUDA kernel in bfloat16 where it can run, else libtorch's operators; operators: those;
        /// kernel: the CUDA kernel, or the run does not start; kernel_without_clusters: as kernel, with one thread block for each head;
        /// the CPU has a kernel of its own
        pub ttt_scan: TttScan = TttScan::Auto
            => word::<TttScan>().read_by(TRAIN_AND_SAMPLE).on_resume(ResumeEffect::Rounding).of_family(FamilyName::CogVideoX);
        /// norms, gates and rotary embeddings on GPUs; auto: CUDA kernels, which round once, where they can run, else libtorch's
        /// operators; operators: those; kernel: CUDA kernels, or the run does not start
        pub fused: Fused = Fused::Auto
            => word::<Fused>().read_by(TRAIN_AND_SAMPLE).on_resume(ResumeEffect::Rounding).of_family(FamilyName::CogVideoX);
        /// pieces in which the ranks of a TP group exchange tokens, so that a piece is on its way while another is computed; 1: all at
        /// once; 0: on GPUs up to 4 of at least 16 MiB, on CPUs 1. Always 1 with LoRA dropout, or if the number of tokens is not a
        /// multiple of mesh.tp
        pub tp_pieces: TokenPieces = TokenPieces(0)
            => int(0, 64).read_by(TRAIN_AND_SAMPLE).on_resume(ResumeEffect::Rounding);
        /// seconds that a rank waits for the others in a step before it fails; 0: 20 times the longest step, 10 to 30 minutes. The first
        /// step of an attempt and saves have at least 30 minutes
        pub collective_timeout_s: u64 = 0 => int(0, 86_400);
        /// steps between comparisons of the weights of all replicas, and of the TP ranks of one node on the CPU, which must have the
        /// same bits; a difference ends the run; 0: never
        pub drift_check: u64 = 100 => int(0, MANY);
        /// gradient that a rank accumulates over micro-batches with mesh.dp_shard > 1; whole: unsharded in float32, reduced once a step;
        /// sharded: that of its shard, reduced in every micro-batch, in less memory
        pub accumulate: Accumulate = Accumulate::Whole => word::<Accumulate>().on_resume(ResumeEffect::Rounding);
    }
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

    /// Returns the number of steps of a run whose length is in steps. That of an attempt always is, once its data sets are open.
    ///
    /// # Panics
    /// If the length is in epochs.
    pub fn steps(&self) -> u64 {
        self.length.steps().expect("the number of steps is known when the data sets are open")
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

words! {
    /// The dtype in which frozen parameters are kept.
    pub enum FrozenDtype {
        /// The dtype of the computation.
        Compute = "compute",
        /// 32-bit floats, which are cast when they are gathered.
        Float32 = "float32",
    }
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

section! {
    /// The loss of a sample.
    pub struct Loss("loss", TRAIN, ResumeEffect::Training, FamilyName::CogVideoX) with Default {
        /// weight of each sample in the loss; none: mean squared error of the velocity; snr: cogvideox-factory's form, the same loss up
        /// to rounding; min_snr: min(SNR, gamma) / (SNR + 1)
        pub weighting: LossWeighting = LossWeighting::None => word::<LossWeighting>();
        /// largest signal-to-noise ratio that counts with loss.weighting = "min_snr"
        pub min_snr_gamma: f64 = 5.0 => POSITIVE;
        /// share of the loss that is the error of differences between adjacent latent frames, with more than 2 latent frames
        /// (VideoX-Fun: 0.25); 0: none
        pub motion: f64 = 0.0 => FRACTION;
    }
}

words! {
    /// The weight of each sample in the loss.
    pub enum LossWeighting {
        /// 1, of the velocity's error.
        None = "none",
        /// `1 / (1 - ᾱ)`, of the clean latent's error.
        Snr = "snr",
        /// `min(SNR, γ) / (SNR + 1)`, of the velocity's error.
        MinSnr = "min_snr",
    }
}

/// Returns whether a parameter is a projection of attention or a norm of its queries or keys.
fn is_attention(name: &str) -> bool {
    const LAYERS: [&str; 6] = ["q", "k", "v", "o", "q_norm", "k_norm"];
    let mut parts = name.rsplit('.');
    let (_kind, layer, owner) = (parts.next(), parts.next(), parts.next());
    matches!(owner, Some("attn" | "cross_attn")) && layer.is_some_and(|layer| LAYERS.contains(&layer))
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

/// A regular expression that matches anywhere in a text, such as the name of a parameter or a line of a log.
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

    /// Lists the names of the named groups.
    pub fn groups(&self) -> impl Iterator<Item = &str> {
        self.0.capture_names().flatten()
    }

    /// Returns the named groups with their texts; `None` if the pattern does not match. A group that takes no part in the match is left
    /// out.
    pub fn captures<'a>(&'a self, text: &'a str) -> Option<Vec<(&'a str, &'a str)>> {
        let captures = self.0.captures(text)?;
        Some(self.groups().filter_map(|name| Some((name, captures.name(name)?.as_str()))).collect())
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

words! {
    /// The dtype of the computation.
    pub enum ComputeDtype {
        /// 32-bit floats.
        Float32 = "float32",
        /// 16-bit floats with the range of 32-bit ones.
        Bfloat16 = "bfloat16",
    }
}

impl ComputeDtype {
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

words! {
    /// The implementation of the scan of TTT layers on GPUs.
    pub enum TttScan {
        /// The CUDA kernel where it can run, else libtorch's operators.
        Auto = "auto",
        /// libtorch's operators, mini-batch by mini-batch.
        Operators = "operators",
        /// The CUDA kernel, in bfloat16.
        Kernel = "kernel",
        /// The CUDA kernel with one thread block for each head, also where clusters of blocks could share its hidden units.
        KernelWithoutClusters = "kernel_without_clusters",
    }
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

words! {
    /// Which gradients a rank accumulates over the micro-batches of a step, with `mesh.dp_shard` > 1.
    pub enum Accumulate {
        /// The unsharded gradient of every unit, which is reduced once a step.
        Whole = "whole",
        /// The gradient of the rank's shard: every unit is reduced in every micro-batch.
        Sharded = "sharded",
    }
}

words! {
    /// The implementation of norms with modulation, gates and rotary embeddings on GPUs.
    pub enum Fused {
        /// CUDA kernels for the tensors that they support, and libtorch's operators for the others and on older GPUs.
        Auto = "auto",
        /// libtorch's operators.
        Operators = "operators",
        /// As `Auto`; a rank whose GPU has no kernels for the model does not start.
        Kernel = "kernel",
    }
}

words! {
    /// The device of the ranks.
    pub enum Device {
        /// One GPU per rank if the trainer finds GPUs, else the CPU.
        Auto = "auto",
        /// The CPU.
        Cpu = "cpu",
        /// One GPU per rank; a node without enough GPUs is an error.
        Cuda = "cuda",
    }
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
}

section! {
    /// Activation checkpointing: which activations are kept for the backward pass, and which are recomputed.
    pub struct Remat("remat", TRAIN, ResumeEffect::Rounding) {
        /// activation checkpointing; block: blocks are recomputed in the backward pass; none: all activations are kept
        pub mode: RematMode = RematMode::Block => word::<RematMode>();
        // A larger group keeps fewer inputs, and needs memory for the activations of all its blocks.
        /// blocks that are recomputed together, from one saved input
        pub group: usize = 1 => int(1, 10_000);
        /// keeps attention outputs for the backward pass instead of recomputing them
        pub keep_attention: bool = true => BOOL;
        /// keeps outputs and inner states of the scans of TTT layers for the backward pass instead of recomputing them
        pub keep_scan: bool = false => BOOL.of_family(FamilyName::CogVideoX);
        /// mini-batches of a TTT layer between saved inner states
        pub scan_group: usize = 16 => int(1, 1_000_000).of_family(FamilyName::CogVideoX);
    }
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

words! {
    /// Whether blocks are recomputed in the backward pass.
    pub enum RematMode {
        /// Each block is recomputed once, from saved inputs.
        Block = "block",
        /// All activations are kept, and the gathered weights of every block.
        None = "none",
    }
}

section! {
    /// When checkpoints are written and how many are kept.
    pub struct CheckpointPolicy("checkpoint", TRAIN, ResumeEffect::None) {
        /// steps between checkpoints; 0: only when the run stops or ends
        pub interval: u64 = 0 => int(0, MANY).read_by(TRAIN_AND_COMMAND);
        /// number of newest checkpoints that are kept; 0: all
        pub keep_last: u64 = 0 => int(0, MANY);
        /// keeps checkpoints at multiples of this step permanently; 0: none
        pub keep_every: u64 = 0 => int(0, MANY);
        /// consecutive failed saves after which the run stops; 0: no limit
        pub max_failures: u64 = 0 => int(0, MANY);
    }
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

section! {
    /// Metrics while training.
    pub struct Log("log", TRAIN, ResumeEffect::None) {
        /// steps between lines of metrics
        pub interval: u64 = 1 => int(1, MANY);
        /// peak of one device in the recipe's dtype, in TFLOP/s, for MFU: 989 for an H100 or H200, 312 for an A100; 0: no MFU
        pub peak_tflops: f64 = 0.0 => NOT_NEGATIVE;
        /// reports a loss spike when the loss exceeds the recent median by this many times the usual spread; 0: never
        pub spike: f64 = 10.0 => NOT_NEGATIVE;
        /// also writes TensorBoard's event files to tensorboard/ in the run directory: metrics, recipe, samples
        pub tensorboard: bool = false => BOOL.read_by(EVERY_JOB);
        /// offline: also writes an offline run of W&B to wandb/ in the run directory: metrics and recipe; wandb sync uploads it
        pub wandb: WandbMode = WandbMode::Off => word::<WandbMode>().read_by(EVERY_JOB);
        /// folder of node_exporter's textfile collector on the first node, to which the newest metrics are written as a .prom file;
        /// default: none
        pub prometheus: Utf8PathBuf = Utf8PathBuf::new() => OPTIONAL_PATH.read_by(EVERY_JOB);
    }
}

words! {
    /// Which files are written for W&B.
    pub enum WandbMode {
        /// Nothing.
        Off = "off",
        /// An offline run, which `wandb sync` uploads.
        Offline = "offline",
    }
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
        recipe.model = recipe.model.with_cogvideox(|keys| keys.positions = crate::Positions::Learned);
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
