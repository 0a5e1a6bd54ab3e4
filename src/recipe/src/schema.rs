//! The table of a recipe's keys: path, type, default and meaning.

use crate::train::TRAINABLE;
use crate::{BucketRule, Task, TrainerKind};

/// One key of a recipe: its type, default and meaning.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// The section and the key, such as `optimizer.lr`.
    pub path: &'static str,
    /// The values that it takes.
    pub kind: Kind,
    /// The default; a key without a default must be set.
    pub default: Option<DefaultValue>,
    /// The meaning, with its unit, in one line. `vidtui recipe` and error messages show it.
    pub doc: &'static str,
}

/// The values that a key takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// Letters, digits and `-`.
    Name,
    /// A path; relative to the folder of the file that sets it.
    Path,
    /// A path as `Path`, or an empty string for none.
    OptionalPath,
    /// A whole number.
    Int {
        /// The minimum.
        min: i64,
        /// The maximum, which keeps products of sizes within 64 bits.
        max: i64,
    },
    /// A number; integers are accepted.
    Float(Bounds),
    /// `true` or `false`.
    Bool,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// `"all"`, `"qkvo"`, `"lora"` or a list of regular expressions.
    Trainable,
    /// A duration, such as `"1h30m"`, or `"none"`.
    Time,
    /// A list of regular expressions.
    Patterns,
    /// A list of tables with `match`, `lr` and `weight_decay`.
    Groups,
    /// A list of tables, the entries of `data.buckets`.
    Buckets,
    /// A list of tables with `index`, `weight` and `repeats`.
    Sets,
    /// Any string.
    Text,
    /// A list of strings.
    Words,
    /// A list of these words.
    ListOf(&'static [&'static str]),
    /// A table of strings. Bases, files and flags each add their names to it.
    Variables,
}

impl Kind {
    /// Returns the words that a value may be; empty if there are too many to list.
    pub fn words(self) -> &'static [&'static str] {
        match self {
            Kind::OneOf(words) => words,
            Kind::Bool => &["true", "false"],
            Kind::Trainable => &TRAINABLE,
            _ => &[],
        }
    }
}

/// The range of a number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bounds {
    /// Above 0.
    Positive,
    /// 0 or above.
    NotNegative,
    /// At least 0 and less than 1.
    Fraction,
    /// From 0 to 1.
    Share,
}

/// A default value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum DefaultValue {
    /// A word.
    Str(&'static str),
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
    /// `true` or `false`.
    Bool(bool),
    /// An empty list.
    EmptyList,
    /// An empty table.
    EmptyTable,
}

impl DefaultValue {
    /// Returns the default as TOML.
    pub fn value(self) -> toml::Value {
        match self {
            DefaultValue::Str(text) => toml::Value::String(text.to_owned()),
            DefaultValue::Int(number) => toml::Value::Integer(number),
            DefaultValue::Float(number) => toml::Value::Float(number),
            DefaultValue::Bool(flag) => toml::Value::Boolean(flag),
            DefaultValue::EmptyList => toml::Value::Array(Vec::new()),
            DefaultValue::EmptyTable => toml::Value::Table(toml::Table::new()),
        }
    }
}

impl Key {
    /// Returns the section, which is empty for keys above all sections, and the key within it.
    pub fn parts(&self) -> (&'static str, &'static str) {
        self.path.split_once('.').unwrap_or(("", self.path))
    }

    /// Returns whether a trainer reads the key for a task.
    pub fn is_for(&self, task: Task, trainer: TrainerKind) -> bool {
        match trainer {
            TrainerKind::Embedded => self.tasks().contains(&task),
            TrainerKind::Command => {
                ["name", "trainer", "train.steps", "train.grad_accum", "checkpoint.interval"].contains(&self.path)
                    || EXPORTS.contains(&self.path)
                    || ["command", "env", "mesh"].contains(&self.parts().0)
            }
        }
    }

    /// Returns the tasks of the embedded trainer that read the key.
    pub fn tasks(&self) -> &'static [Task] {
        match self.parts().0 {
            "command" => &[],
            "" | "env" | "run" | "condition" => &Task::ALL,
            "encode" => &[Task::Encode],
            _ if BUCKETS.contains(&self.path) => &[Task::Train, Task::Encode],
            "encoders" => &Task::ALL,
            _ if EXPORTS.contains(&self.path) => &Task::ALL,
            _ if ["lora.dropout", "lora.from"].contains(&self.path) => &[Task::Train],
            _ if self.path == "sample.lora" => &[Task::Sample],
            _ if ["train.device", "train.threads", "mesh.dp_replicate"].contains(&self.path) => &Task::ALL,
            "mesh" | "model" | "lora" | "sample" => &[Task::Train, Task::Sample],
            _ if ["train.dtype", "train.ttt_scan", "train.fused", "train.tp_pieces"].contains(&self.path) => {
                &[Task::Train, Task::Sample]
            }
            _ => &[Task::Train],
        }
    }

    /// Returns whether a recipe with this task has to set the key.
    pub fn is_needed(&self, task: Task) -> bool {
        self.default.is_none() || (self.path == "encoders.folder" && task != Task::Train)
    }

    /// Returns the key that can be set instead of this one.
    pub fn alternative(&self) -> Option<&'static str> {
        const PAIRS: [(&str, &str); 2] = [("data.index", "data.sets"), ("train.steps", "train.epochs")];
        let other = |(one, other): &(&'static str, &'static str)| match self.path {
            path if path == *one => Some(*other),
            path if path == *other => Some(*one),
            _ => None,
        };
        PAIRS.iter().find_map(other)
    }

    /// Finds a key by its path.
    pub fn find(path: &str) -> Option<&'static Key> {
        SCHEMA.iter().find(|key| key.path == path)
    }
}

/// Keys of earlier versions that are read and ignored: what they chose is always done now.
pub(crate) const REMOVED: &[&str] = &["remat.shard_inputs"];

const POSITIVE: Kind = Kind::Float(Bounds::Positive);
const NOT_NEGATIVE: Kind = Kind::Float(Bounds::NotNegative);
const FRACTION: Kind = Kind::Float(Bounds::Fraction);

const fn int(min: i64, max: i64) -> Kind {
    Kind::Int { min, max }
}

const fn required(path: &'static str, kind: Kind, doc: &'static str) -> Key {
    Key { path, kind, default: None, doc }
}

const fn optional(path: &'static str, kind: Kind, default: DefaultValue, doc: &'static str) -> Key {
    Key { path, kind, default: Some(default), doc }
}

const SCHEDULES: Kind = Kind::OneOf(&[
    "constant",
    "linear",
    "cosine",
    "cosine_with_restarts",
    "polynomial",
    "wsd",
    "one_cycle",
    "one_cycle_three_phase",
    "bump",
]);
/// The keys that the supervisor reads, whichever trainer the recipe has.
const EXPORTS: [&str; 3] = ["log.tensorboard", "log.wandb", "log.prometheus"];
/// The keys that training and encoding read, and sampling does not.
const BUCKETS: [&str; 2] = ["data.bucket_rule", "data.buckets"];
/// The largest value of a count, such as steps.
pub(crate) const MANY: i64 = 1_000_000_000_000;
/// The largest number of steps of a run. Imported runs may count tokens, or nanoseconds since 1970, instead of steps.
pub const MOST_STEPS: i64 = 1 << 61;

/// The tasks that a recipe may have.
const TASKS: &[&str] = &["train", "encode", "sample"];

/// Every key of a recipe, in the order of `vidtui recipe show`.
#[rustfmt::skip]
pub static SCHEMA: &[Key] = &[
    optional("name", Kind::Name, DefaultValue::Str(""), "short name of the recipe, part of the ids of its runs; default: the file name"),
    optional("task", Kind::OneOf(TASKS), DefaultValue::Str("train"), "task of the embedded trainer; train: trains a model; encode: makes a data set of latents from videos; sample: makes videos from a checkpoint"),
    optional("trainer", Kind::OneOf(&["embedded", "command"]), DefaultValue::Str("embedded"), "embedded: vidtui's own trainer; command: the program in [command]"),

    required("command.run", Kind::Words, "the program and its arguments, one word each, started without a shell; placeholders such as {master_addr} are filled in"),
    optional("command.per", Kind::OneOf(&["node", "rank"]), DefaultValue::Str("node"), "starts the command once per node (torchrun, accelerate, colossalai) or once per rank (python)"),
    optional("command.folder", Kind::OptionalPath, DefaultValue::Str(""), "working folder of the command; default: the run directory"),
    optional("command.adapter", Kind::OneOf(&["none", "open_sora", "finetrainers", "cogvideox_factory", "videox_fun", "ttt_video_dit"]), DefaultValue::Str("none"), "training system of the command: decides how its log lines and checkpoint folders are read"),
    optional("command.output", Kind::Text, DefaultValue::Str("{run_dir}/output"), "folder in which the command saves checkpoints, {output} in its arguments"),
    optional("command.start", Kind::Words, DefaultValue::EmptyList, "arguments that are added when a run starts from weights (a stage after another one, --init); {weights} is their path, and {previous} too if another run saved them"),
    optional("command.resume", Kind::Words, DefaultValue::EmptyList, "arguments that are added on a resume; {checkpoint} is the folder and {checkpoint_step} the step to continue from"),
    optional("command.fresh_data", Kind::Words, DefaultValue::EmptyList, "arguments that follow those of command.resume on a resume with --fresh-data, which starts a new run at step 0"),

    optional("env.presets", Kind::ListOf(&["nccl_infiniband", "nccl_ethernet", "nccl_debug", "nccl_shared_gpus"]), DefaultValue::EmptyList, "sets of environment variables: nccl_infiniband, nccl_ethernet, nccl_debug, nccl_shared_gpus (several ranks on a GPU, to try a mesh)"),
    optional("env.variables", Kind::Variables, DefaultValue::EmptyTable, "environment variables of every rank; they override the presets"),
    optional("env.secrets", Kind::OptionalPath, DefaultValue::Str(""), "file of KEY=value lines for the environment, readable by its owner only (chmod 600); vidtui never writes or shows the values"),

    optional("model.positions", Kind::OneOf(&["rope", "sincos", "learned"]), DefaultValue::Str("rope"), "position encoding: rope (CogVideoX-5B), sincos (2B) or learned (5B image-to-video)"),
    required("model.num_layers", int(1, 10_000), "number of transformer blocks"),
    required("model.num_heads", int(1, 1024), "attention heads per block"),
    optional("model.head_dim", int(1, 1024), DefaultValue::Int(64), "width of one attention head, in features"),
    optional("model.time_embed_dim", int(1, 65_536), DefaultValue::Int(512), "width of the time embedding, in features"),
    optional("model.text_dim", int(1, 65_536), DefaultValue::Int(4096), "width of a text embedding, in features (T5-XXL: 4096)"),
    required("model.text_len", int(1, 1_000_000), "text tokens per segment"),
    optional("model.segments", int(1, 1000), DefaultValue::Int(1), "segments of a video, each with its own text; attention stays within a segment of 12 latent frames plus 1 shared frame"),
    optional("model.in_channels", int(1, 1024), DefaultValue::Int(16), "channels of the input latent"),
    optional("model.out_channels", int(1, 1024), DefaultValue::Int(16), "channels of the prediction"),
    optional("model.patch_size", int(1, 64), DefaultValue::Int(2), "rows and columns of latent pixels per token"),
    optional("model.patch_size_t", int(1, 64), DefaultValue::Int(1), "latent frames per token: 1, or 2 in CogVideoX 1.5"),
    optional("model.ofs_embedding", Kind::Bool, DefaultValue::Bool(false), "embeds the offset of the first image together with the time, as CogVideoX 1.5 image-to-video does"),
    required("model.latent_frames", int(1, 10_000), "latent frames per sample: (video frames - 1) / 4 + 1"),
    required("model.latent_height", int(1, 4096), "rows of a latent frame: video height in pixels / 8"),
    required("model.latent_width", int(1, 4096), "columns of a latent frame: video width in pixels / 8"),
    optional("model.layer", Kind::OneOf(&["none", "ttt_linear", "ttt_mlp"]), DefaultValue::Str("none"), "layer over the whole sequence besides attention: none, ttt_linear or ttt_mlp"),
    optional("model.ttt_mini_batch", int(0, 65_536), DefaultValue::Int(0), "tokens per mini-batch of a TTT layer; the sequence length must be a multiple; without TTT layers it is not used and may be 0"),
    optional("model.ttt_base_lr", POSITIVE, DefaultValue::Float(0.1), "peak learning rate of the inner loop of TTT layers: 0.1 for ttt_mlp, 1.0 for ttt_linear"),
    optional("model.ttt_lr_alignment", Kind::OneOf(&["aligned", "upstream"]), DefaultValue::Str("aligned"), "aligned: each token has its own inner learning rate; upstream: as in ttt-video-dit's kernels, for weights that were trained with them"),
    optional("model.norm_eps", POSITIVE, DefaultValue::Float(1e-5), "epsilon of the LayerNorms in blocks and in the final layer"),
    optional("model.qk_norm_eps", POSITIVE, DefaultValue::Float(1e-6), "epsilon of the LayerNorms of queries and keys"),
    optional("model.latent_scale", POSITIVE, DefaultValue::Float(1.0), "factor that multiplies latents when they are read"),
    optional("model.spatial_interpolation", POSITIVE, DefaultValue::Float(1.875), "divisor of row and column positions (sincos only)"),
    optional("model.temporal_interpolation", POSITIVE, DefaultValue::Float(1.0), "divisor of frame positions (sincos only)"),
    optional("model.rotary", Kind::OneOf(&["diffusers", "resize_crop", "slice"]), DefaultValue::Str("diffusers"), "rotary positions at other sizes than the base size; diffusers: as in current diffusers pipelines; resize_crop: as in VideoX-Fun and diffusers before 0.32; slice: plain indices, as in zai-org's trainer"),
    optional("model.base_frames", int(0, 10_000), DefaultValue::Int(0), "latent frames that the weights were made for, the length of a learned position table; 0: model.latent_frames"),
    optional("model.base_height", int(0, 4096), DefaultValue::Int(0), "rows of a latent frame that the weights were made for (sample_height in config.json): rotary positions are relative to it; 0: model.latent_height"),
    optional("model.base_width", int(0, 4096), DefaultValue::Int(0), "columns of a latent frame that the weights were made for (sample_width in config.json); 0: model.latent_width"),
    optional("model.ignore_learned_positions", Kind::Bool, DefaultValue::Bool(false), "leaves the learned position table out, to train such a model at another height or width (learned only)"),
    optional("model.resize_positions", Kind::Bool, DefaultValue::Bool(false), "resizes the sine and cosine table of the base size to other heights and widths, as VideoX-Fun does; false: computes it for each size, as diffusers does (sincos only)"),
    optional("model.timesteps", int(2, 1_000_000), DefaultValue::Int(1000), "timesteps of the noise schedule"),
    optional("model.beta_start", POSITIVE, DefaultValue::Float(0.00085), "variance of the noise that the first timestep adds"),
    optional("model.beta_end", FRACTION, DefaultValue::Float(0.012), "variance of the noise that the last timestep adds"),
    optional("model.beta_schedule", Kind::OneOf(&["scaled_linear", "linear"]), DefaultValue::Str("scaled_linear"), "quantity that grows linearly from beta_start to beta_end; scaled_linear: the standard deviation; linear: the variance"),
    optional("model.snr_shift_scale", POSITIVE, DefaultValue::Float(1.0), "divisor of the signal-to-noise ratio of all timesteps: 3.0 for CogVideoX-2B, 1.0 for 5B"),
    optional("model.zero_terminal_snr", Kind::Bool, DefaultValue::Bool(true), "rescales the noise schedule so that the last timestep has no signal"),
    optional("model.timestep_spacing", Kind::OneOf(&["trailing", "leading", "linspace"]), DefaultValue::Str("trailing"), "choice of the timesteps of sampling: trailing, leading or linspace, as in diffusers; training uses all timesteps"),
    optional("model.invert_image_scale", Kind::Bool, DefaultValue::Bool(false), "divides image latents by model.latent_scale instead of multiplying them, as the CogVideoX 1.5 image-to-video pipeline does; false: as cogvideox-factory and zai-org's trainer"),

    required("data.index", Kind::Path, "folder of latents and texts that `vidtui data` made, or an index, one JSON object per line"),
    optional("data.sets", Kind::Sets, DefaultValue::EmptyList, "several data sets instead of data.index: [[data.sets]] with index and, as needed, repeats (uses of each item in an epoch) or weight (share of the samples; the set with the fewest samples for its weight is repeated)"),
    optional("data.image_share", FRACTION, DefaultValue::Float(0.0), "share of samples with one latent frame (images), from 0 to below 1; images or videos are repeated to reach it; 0: as in the data sets"),
    optional("data.shapes", Kind::OneOf(&["auto", "one", "grouped", "balanced"]), DefaultValue::Str("auto"), "shapes of latents; auto: grouped if data.buckets has several, otherwise one; one: all have that of [model]; grouped: any that the model can take, and all samples of a step have the same; balanced: any, and the micro-batches of a step differ by at most 5 % in cost"),
    optional("data.fps", NOT_NEGATIVE, DefaultValue::Float(0.0), "frames per second of the videos that the model learns, for `vidtui data encode` with --for, and for samples; a data set of another rate is refused; 0: the rate of the data set"),
    optional("data.max_unused", FRACTION, DefaultValue::Float(0.05), "share of the items that a run of an epoch or more may leave unused, from 0 to below 1; items are left when too few of their shape fill a step; 0: none"),
    optional("data.readers", int(1, 256), DefaultValue::Int(1), "threads with which each rank reads the samples of a batch ahead; more help on network file systems with several samples in a batch"),
    optional("data.null_text", Kind::OptionalPath, DefaultValue::Str(""), "file with the encoded empty caption, which replaces dropped texts; default: the one in the folder of data.index, otherwise zeros"),
    optional("data.bucket_rule", Kind::OneOf(&BucketRule::NAMES), DefaultValue::Str("list"), "choice of a bucket for each clip; list: the nearest ratio of height to width, then the most frames; open_sora_1_2 and open_sora_2: probabilities of resolutions and lengths; token_budget: VideoX-Fun's, larger frames and fewer of them"),
    optional("data.buckets", Kind::Buckets, DefaultValue::EmptyList, "sizes that clips are cut to, [[data.buckets]]; list: frames, height, width; open_sora: size (\"256px\"), frames, accept, and stay (1.2) or skip (2); token_budget: frames and side, min_side, max_side; each with batch, the samples of a rank at a time (default: as in train); empty: one size"),

    optional("encoders.folder", Kind::OptionalPath, DefaultValue::Str(""), "diffusers folder with vae/, text_encoder/ and tokenizer/, such as one that `vidtui fetch zai-org/CogVideoX-5b` makes"),
    optional("encoders.dtype", Kind::OneOf(&["bfloat16", "float32"]), DefaultValue::Str("bfloat16"), "dtype of the weights and the computation of the VAE and the text encoder"),
    optional("encoders.scene_tokens", Kind::Bool, DefaultValue::Bool(false), "reads <start_scene> and <end_scene> in captions and prompts as one token each, as ttt-video-dit does; false: as any other text"),
    optional("encoders.tiling", Kind::OneOf(&["auto", "on", "off"]), DefaultValue::Str("auto"), "whether the VAE works on tiles of a frame, which need less memory; auto: only for clips that do not fit into memory as whole frames"),

    required("encode.manifest", Kind::Path, "manifest of the clips, which `vidtui data check` writes"),
    required("encode.out", Kind::Path, "folder of the data set: latents, texts and their index; existing latents and texts are reused"),
    optional("encode.frames", int(0, 100_001), DefaultValue::Int(0), "frames per clip: 4k + 1, which the VAE encodes to k + 1 latent frames; 49 for CogVideoX, 81 for 1.5; 0: those of data.buckets"),
    optional("encode.height", int(0, 16_384), DefaultValue::Int(0), "rows of a frame in pixels, a multiple of 8; 16 for models with 2 × 2 patches; 0: those of data.buckets"),
    optional("encode.width", int(0, 16_384), DefaultValue::Int(0), "columns of a frame in pixels, a multiple of 8; 16 for models with 2 × 2 patches; 0: those of data.buckets"),
    optional("encode.fps", NOT_NEGATIVE, DefaultValue::Float(0.0), "rate at which frames are taken, per second, and rate of folders of frames: 8 for CogVideoX, 16 for 1.5; 0: the rate of each clip"),
    optional("encode.mode", Kind::OneOf(&["head", "middle", "random", "stride", "linspace", "time@fps"]), DefaultValue::Str("head"), "frames of a clip that are taken, by their times: from its head, middle or a random start; every n-th (stride); evenly spread (linspace); nearest to the times of fps (time@fps)"),
    optional("encode.stride", int(1, 1000), DefaultValue::Int(1), "distance between taken frames, in frames, if fps = 0"),
    optional("encode.crop", Kind::OneOf(&["center", "random", "none"]), DefaultValue::Str("center"), "part of a picture with another aspect ratio that is kept; none: all of it, stretched"),
    optional("encode.seed", int(0, i64::MAX), DefaultValue::Int(42), "seed of random starts, random crops and the draws of buckets"),
    optional("encode.batch", int(1, 1024), DefaultValue::Int(1), "captions that the text encoder encodes together; halved where memory is short. The VAE encodes clips one by one"),
    optional("encode.text_len", int(1, 4096), DefaultValue::Int(226), "tokens of a caption; longer captions are cut, shorter ones padded"),
    optional("encode.decoders", int(0, 256), DefaultValue::Int(0), "clips that each rank decodes ahead of the VAE; each needs the memory of its frames; 0: the CPU threads of the rank, at least 2"),
    optional("encode.retry_failed", Kind::Bool, DefaultValue::Bool(false), "retries clips that failed in an earlier encode into the same folder"),
    optional("encode.max_dropped", Kind::Float(Bounds::Share), DefaultValue::Float(0.05), "share of the clips that may be dropped, from 0 to 1; an encode that would lose more, by its manifest or by clips that fail, is refused, and one without any clip always; 0: no clip may be dropped"),

    required("train.steps", int(1, MOST_STEPS), "optimizer steps of the whole run"),
    optional("train.epochs", int(0, 1_000_000), DefaultValue::Int(0), "passes over the data sets instead of train.steps; 0: train.steps is set"),
    required("train.global_batch", int(1, 1_000_000), "samples per optimizer step, over all ranks"),
    optional("train.grad_accum", int(1, 1_000_000), DefaultValue::Int(1), "micro-batches per step on each rank; gradients are accumulated over them"),
    optional("train.seed", int(0, i64::MAX), DefaultValue::Int(42), "seed of initial weights, data order, noise and text dropout"),
    optional("train.trainable", Kind::Trainable, DefaultValue::Str("all"), "parameters that are trained: all, qkvo (attention and TTT layers), lora (the adapters of [lora] alone), or a list of regular expressions of parameter names"),
    optional("train.frozen", Kind::Patterns, DefaultValue::EmptyList, "regular expressions of parameter names that are not trained although train.trainable selects them; adapters are always trained"),
    optional("train.frozen_dtype", Kind::OneOf(&["compute", "float32"]), DefaultValue::Str("compute"), "dtype in which frozen parameters are kept and saved; compute: that of train.dtype; float32: cast when they are gathered, as trained ones are"),
    optional("train.text_dropout", FRACTION, DefaultValue::Float(0.1), "probability that a sample is trained without its text, from 0 to below 1; 0: never"),
    optional("train.dtype", Kind::OneOf(&["float32", "bfloat16"]), DefaultValue::Str("bfloat16"), "dtype of the computation; master weights and optimizer state are always float32"),
    optional("train.device", Kind::OneOf(&["auto", "cpu", "cuda"]), DefaultValue::Str("auto"), "device of the ranks; auto: one GPU per rank if the trainer finds GPUs, else the CPU"),
    optional("train.threads", int(0, 4096), DefaultValue::Int(0), "CPU threads per rank; 0: OMP_NUM_THREADS, or the node's cores divided by its ranks"),
    optional("train.max_bad_steps", int(1, MANY), DefaultValue::Int(10), "skipped steps after which the run ends, in a row or within ten times as many steps; a step is skipped if its loss or gradient is not finite"),
    optional("train.ttt_scan", Kind::OneOf(&["auto", "operators", "kernel", "kernel_without_clusters"]), DefaultValue::Str("auto"), "scan of TTT layers on GPUs; auto: a CUDA kernel in bfloat16 where it can run, else libtorch's operators; operators: those; kernel: the CUDA kernel, or the run does not start; kernel_without_clusters: as kernel, with one thread block for each head; the CPU has a kernel of its own"),
    optional("train.fused", Kind::OneOf(&["auto", "operators", "kernel"]), DefaultValue::Str("auto"), "norms, gates and rotary embeddings on GPUs; auto: CUDA kernels, which round once, where they can run, else libtorch's operators; operators: those; kernel: CUDA kernels, or the run does not start"),
    optional("train.tp_pieces", int(0, 64), DefaultValue::Int(0), "pieces in which the ranks of a TP group exchange tokens, so that a piece is on its way while another is computed; 1: all at once; 0: on GPUs up to 4 of at least 16 MiB, on CPUs 1. Always 1 with LoRA dropout, or if the number of tokens is not a multiple of mesh.tp"),
    optional("train.collective_timeout_s", int(0, 86_400), DefaultValue::Int(0), "seconds that a rank waits for the others in a step before it fails; 0: 20 times the longest step, 10 to 30 minutes. The first step of an attempt and saves have at least 30 minutes"),
    optional("train.drift_check", int(0, MANY), DefaultValue::Int(100), "steps between comparisons of the weights of all replicas, and of the TP ranks of one node on the CPU, which must have the same bits; a difference ends the run; 0: never"),
    optional("train.accumulate", Kind::OneOf(&["whole", "sharded"]), DefaultValue::Str("whole"), "gradient that a rank accumulates over micro-batches with mesh.dp_shard > 1; whole: unsharded in float32, reduced once a step; sharded: that of its shard, reduced in every micro-batch, in less memory"),

    optional("lora.rank", int(0, 4096), DefaultValue::Int(0), "rank of the adapters (LoRA) that are trained beside the weights; 0: no adapters"),
    optional("lora.alpha", NOT_NEGATIVE, DefaultValue::Float(0.0), "adapters are scaled by alpha / rank; 0: the rank, which scales by 1"),
    optional("lora.targets", Kind::Words, DefaultValue::EmptyList, "layers with an adapter: attention, feed_forward, ttt, modulation, names of layers here or in diffusers (to_q), or regular expressions of whole names; default: attention"),
    optional("lora.dropout", FRACTION, DefaultValue::Float(0.0), "probability that an input of an adapter is dropped in training, as lora_dropout of PEFT; less than 1; 0: never"),
    optional("lora.rslora", Kind::Bool, DefaultValue::Bool(false), "scales adapters by alpha / sqrt(rank) instead (rsLoRA)"),
    optional("lora.init", Kind::OneOf(&["kaiming", "gaussian"]), DefaultValue::Str("kaiming"), "initial values of A, as in PEFT; kaiming: uniform within 1 / sqrt(inputs); gaussian: normal, 1 / rank; B starts at zero"),
    optional("lora.from", Kind::OptionalPath, DefaultValue::Str(""), "adapter that training starts from instead of lora.init: a file of diffusers, PEFT or kohya, or the folder of a run or a checkpoint of adapters"),

    optional("condition.kind", Kind::OneOf(&["none", "image", "inpaint"]), DefaultValue::Str("none"), "input of the network besides the noised latent; none: text to video; image: latent of the first image (2 x model.out_channels); inpaint: mask and latent of the masked video (2 x model.out_channels + 1)"),
    optional("condition.image_dropout", FRACTION, DefaultValue::Float(0.05), "probability that a step trains without its images, one draw for the global batch (image only); 0: never"),
    optional("condition.image_noise", Kind::Bool, DefaultValue::Bool(false), "adds noise to the image and to the known pixels of a masked video before they are encoded, log sigma from N(-3, 0.5) per clip; used by encode, never on latents"),
    optional("condition.masks", Kind::Words, DefaultValue::EmptyList, "kinds of masks that encode draws, as \"KIND=PROBABILITY\" (rectangle, all, tail, middle, window, pixels, boxes, ellipse, circle, frames); default: VideoX-Fun's probabilities"),
    optional("condition.draws", int(1, 1000), DefaultValue::Int(1), "conditions (mask and noise) that encode draws for each clip; epoch e trains with condition e modulo draws; VideoX-Fun draws new ones in each epoch"),
    optional("condition.mask_dropout", FRACTION, DefaultValue::Float(0.9), "probability that a wholly masked sample is trained without its mask and masked latent, as text to video (inpaint only); 0: never"),

    optional("loss.weighting", Kind::OneOf(&["none", "snr", "min_snr"]), DefaultValue::Str("none"), "weight of each sample in the loss; none: mean squared error of the velocity; snr: cogvideox-factory's form, the same loss up to rounding; min_snr: min(SNR, gamma) / (SNR + 1)"),
    optional("loss.min_snr_gamma", POSITIVE, DefaultValue::Float(5.0), "largest signal-to-noise ratio that counts with loss.weighting = \"min_snr\""),
    optional("loss.motion", FRACTION, DefaultValue::Float(0.0), "share of the loss that is the error of differences between adjacent latent frames, with more than 2 latent frames (VideoX-Fun: 0.25); 0: none"),

    optional("optimizer.kind", Kind::OneOf(&["adamw", "adamw8bit", "adafactor", "prodigy"]), DefaultValue::Str("adamw"), "optimizer, with the size of its state per trained parameter: adamw (8 bytes), adamw8bit (2.03 bytes), adafactor (rows and columns of matrices alone) or prodigy (16 bytes; finds the learning rate: set lr = 1)"),
    optional("optimizer.lr", POSITIVE, DefaultValue::Float(1e-4), "peak learning rate of all parameters outside TTT layers"),
    optional("optimizer.lr_ttt", POSITIVE, DefaultValue::Float(1e-4), "peak learning rate of TTT layers and their gates"),
    optional("optimizer.lr_end", NOT_NEGATIVE, DefaultValue::Float(0.0), "learning rate at the last step, for both schedules"),
    optional("optimizer.schedule", SCHEDULES, DefaultValue::Str("linear"), "schedule of lr after the warm-up: constant, linear, cosine, cosine_with_restarts, polynomial, wsd (constant, then a fall in the last cooldown_steps), one_cycle (PyTorch's OneCycleLR) or bump (Lambda's: a fall to lr_end in cooldown_steps, then constant)"),
    optional("optimizer.schedule_ttt", SCHEDULES, DefaultValue::Str("linear"), "schedule of lr_ttt, as optimizer.schedule"),
    optional("optimizer.warmup_steps", int(0, MANY), DefaultValue::Int(0), "steps of linear warm-up to the peak learning rates; 0: none"),
    optional("optimizer.warmup", Kind::OneOf(&["ttt_video", "diffusers", "open_sora"]), DefaultValue::Str("ttt_video"), "share of the peak in step k, from 0, of a warm-up of W steps; ttt_video: (k + 1) / W; diffusers: k / W, so the first step has rate 0; open_sora: (k + 1) / (W + 1)"),
    optional("optimizer.warmup_lr", NOT_NEGATIVE, DefaultValue::Float(0.0), "learning rate that the warm-up begins from"),
    optional("optimizer.cycles", NOT_NEGATIVE, DefaultValue::Float(0.0), "waves of a cosine schedule, half waves of cosine_with_restarts, as num_cycles in diffusers; 0: 0.5 waves, or 1 half wave"),
    optional("optimizer.power", POSITIVE, DefaultValue::Float(1.0), "exponent of a polynomial schedule"),
    optional("optimizer.cooldown_steps", int(0, MANY), DefaultValue::Int(0), "steps in which the rate falls from its peak to lr_end, for wsd (the last of the run) and bump (after the warm-up); 0: none"),
    optional("optimizer.anneal", Kind::OneOf(&["cosine", "linear", "sqrt"]), DefaultValue::Str("cosine"), "curve of one-cycle schedules and of a cooldown; sqrt: 1 - sqrt(progress)"),
    optional("optimizer.beta1", FRACTION, DefaultValue::Float(0.9), "decay rate of the first moment, in AdamW and Prodigy"),
    optional("optimizer.beta1_low", FRACTION, DefaultValue::Float(0.0), "beta1 at the peak of a one-cycle schedule, which moves from beta1 to it and back (PyTorch: 0.95 and 0.85); 0: beta1 is constant"),
    optional("optimizer.beta2", FRACTION, DefaultValue::Float(0.95), "decay rate of the second moment, in AdamW and Prodigy"),
    optional("optimizer.eps", POSITIVE, DefaultValue::Float(1e-8), "epsilon added to the denominator, in AdamW and Prodigy"),
    optional("optimizer.weight_decay", NOT_NEGATIVE, DefaultValue::Float(1e-4), "decoupled weight decay of all parameters except biases and norms; 0: none"),
    optional("optimizer.decay_gates", Kind::Bool, DefaultValue::Bool(false), "applies weight decay to the gates of TTT layers, as ttt-video-dit does"),
    optional("optimizer.clip_norm", NOT_NEGATIVE, DefaultValue::Float(0.1), "maximum norm of the gradient over all parameters; 0: no clipping"),
    optional("optimizer.clip_rule", Kind::OneOf(&["constant", "decaying"]), DefaultValue::Str("constant"), "decaying: VideoX-Fun's rule; the maximum falls to clip_norm in clip_start_steps, then a norm of r > 5 times the maximum divides it by r, at most 10"),
    optional("optimizer.clip_start_ratio", POSITIVE, DefaultValue::Float(5.0), "first maximum as a multiple of clip_norm, with clip_rule = \"decaying\""),
    optional("optimizer.clip_start_steps", int(0, MANY), DefaultValue::Int(1000), "steps in which the maximum falls to clip_norm, with clip_rule = \"decaying\"; 0: none"),

    optional("optimizer.adafactor_decay", POSITIVE, DefaultValue::Float(0.8), "Adafactor: exponent of the decay of the second moment, 1 - step^-decay"),
    optional("optimizer.adafactor_eps1", POSITIVE, DefaultValue::Float(f32::EPSILON as f64), "Adafactor: epsilon of the second moment"),
    optional("optimizer.adafactor_eps2", POSITIVE, DefaultValue::Float(1e-3), "Adafactor: smallest root mean square of a tensor's weights, which multiplies its learning rate"),
    optional("optimizer.adafactor_clip", POSITIVE, DefaultValue::Float(1.0), "Adafactor: largest root mean square of a tensor's update"),
    optional("optimizer.prodigy_d0", POSITIVE, DefaultValue::Float(1e-6), "Prodigy: first estimate of the distance, which multiplies the learning rate"),
    optional("optimizer.prodigy_d_coef", POSITIVE, DefaultValue::Float(1.0), "Prodigy: factor of the estimates"),
    optional("optimizer.prodigy_growth", NOT_NEGATIVE, DefaultValue::Float(0.0), "Prodigy: largest factor by which the estimate grows in a step; 0: no limit"),
    optional("optimizer.prodigy_beta3", FRACTION, DefaultValue::Float(0.0), "Prodigy: decay rate of the sums of the estimate; 0: the square root of beta2"),
    optional("optimizer.prodigy_bias_correction", Kind::Bool, DefaultValue::Bool(false), "Prodigy: corrects the bias of the moments, as Adam does"),
    optional("optimizer.prodigy_safeguard_warmup", Kind::Bool, DefaultValue::Bool(false), "Prodigy: leaves the learning rate out of the denominator of the estimate, for runs with a warm-up"),
    optional("optimizer.groups", Kind::Groups, DefaultValue::EmptyList, "learning rate and weight decay of parameters by name: [[optimizer.groups]] with match (a regular expression), lr and weight_decay (also of biases and norms); the first that matches applies"),

    optional("ema.decay", FRACTION, DefaultValue::Float(0.0), "weight of the moving average (EMA) of the trained weights in an update, for example 0.9999; 0: no average"),
    optional("ema.warmup", Kind::OneOf(&["none", "ratio", "power"]), DefaultValue::Str("ratio"), "rise of the decay over updates n = 0, 1, …, at most to ema.decay; none: constant; ratio: (1 + n) / (10 + n), diffusers' default; power: 1 - (1 + n / inv_gamma)^-power, its use_ema_warmup; the last two begin with a copy"),
    optional("ema.inv_gamma", POSITIVE, DefaultValue::Float(1.0), "divisor of the number of updates, with ema.warmup = \"power\""),
    optional("ema.power", POSITIVE, DefaultValue::Float(2.0 / 3.0), "exponent, with ema.warmup = \"power\": 2/3 for long runs, 3/4 for shorter ones"),
    optional("ema.min_decay", FRACTION, DefaultValue::Float(0.0), "smallest decay during the rise"),
    optional("ema.after_step", int(0, MANY), DefaultValue::Int(0), "updates in which the average is a copy of the weights; 0: none"),
    optional("ema.device", Kind::OneOf(&["weights", "cpu"]), DefaultValue::Str("weights"), "memory of the average; weights: of the device that has the weights, 4 bytes per trained parameter; cpu: of the node, with a copy of the weights from the GPU in each step"),

    optional("mesh.dp_replicate", int(1, 100_000), DefaultValue::Int(1), "replicas of the model (data parallel)"),
    optional("mesh.dp_shard", int(1, 100_000), DefaultValue::Int(1), "ranks that the parameters of one replica are sharded over (FSDP)"),
    optional("mesh.tp", int(1, 1024), DefaultValue::Int(1), "ranks that the heads and hidden units of every block are split over, on the same samples (tensor parallel)"),

    optional("remat.mode", Kind::OneOf(&["block", "none"]), DefaultValue::Str("block"), "activation checkpointing; block: blocks are recomputed in the backward pass; none: all activations are kept"),
    optional("remat.group", int(1, 10_000), DefaultValue::Int(1), "blocks that are recomputed together, from one saved input"),
    optional("remat.keep_attention", Kind::Bool, DefaultValue::Bool(true), "keeps attention outputs for the backward pass instead of recomputing them"),
    optional("remat.keep_scan", Kind::Bool, DefaultValue::Bool(false), "keeps outputs and inner states of the scans of TTT layers for the backward pass instead of recomputing them"),
    optional("remat.scan_group", int(1, 1_000_000), DefaultValue::Int(16), "mini-batches of a TTT layer between saved inner states"),

    optional("memory.block_swap", int(0, 10_000), DefaultValue::Int(0), "blocks whose weights and gradients are kept outside the memory of the device; each is fetched while the block before it computes; 0: none"),
    optional("memory.keep_gathered", int(0, 10_000), DefaultValue::Int(0), "blocks whose frozen weights stay gathered between uses, with mesh.dp_shard > 1, for example the base of adapters; takes their whole size on each rank; 0: none"),
    optional("memory.optimizer_offload", Kind::Bool, DefaultValue::Bool(false), "keeps the optimizer's state outside the memory of the device; the update fetches one block at a time"),
    optional("memory.activation_offload", Kind::Bool, DefaultValue::Bool(false), "keeps the saved inputs of blocks outside the memory of the device between the forward and the backward pass"),
    optional("memory.store", Kind::OneOf(&["auto", "host", "file"]), DefaultValue::Str("auto"), "memory beside that of the device; host: of the node, page-locked (GPUs only); file: files on a disk of the node, which end with the rank (CPU only); auto: host for ranks on GPUs, file for ranks on the CPU"),
    optional("memory.folder", Kind::OptionalPath, DefaultValue::Str(""), "folder of the files of memory.store, on a disk of each node, not on tmpfs; default: $TMPDIR or /tmp"),

    optional("checkpoint.interval", int(0, MANY), DefaultValue::Int(0), "steps between checkpoints; 0: only when the run stops or ends"),
    optional("checkpoint.keep_last", int(0, MANY), DefaultValue::Int(0), "number of newest checkpoints that are kept; 0: all"),
    optional("checkpoint.keep_every", int(0, MANY), DefaultValue::Int(0), "keeps checkpoints at multiples of this step permanently; 0: none"),
    optional("checkpoint.max_failures", int(0, MANY), DefaultValue::Int(0), "consecutive failed saves after which the run stops; 0: no limit"),

    optional("log.interval", int(1, MANY), DefaultValue::Int(1), "steps between lines of metrics"),
    optional("log.peak_tflops", NOT_NEGATIVE, DefaultValue::Float(0.0), "peak of one device in the recipe's dtype, in TFLOP/s, for MFU: 989 for an H100 or H200, 312 for an A100; 0: no MFU"),
    optional("log.spike", NOT_NEGATIVE, DefaultValue::Float(10.0), "reports a loss spike when the loss exceeds the recent median by this many times the usual spread; 0: never"),
    optional("log.tensorboard", Kind::Bool, DefaultValue::Bool(false), "also writes TensorBoard's event files to tensorboard/ in the run directory: metrics, recipe, samples"),
    optional("log.wandb", Kind::OneOf(&["off", "offline"]), DefaultValue::Str("off"), "offline: also writes an offline run of W&B to wandb/ in the run directory: metrics and recipe; wandb sync uploads it"),
    optional("log.prometheus", Kind::OptionalPath, DefaultValue::Str(""), "folder of node_exporter's textfile collector on the first node, to which the newest metrics are written as a .prom file; default: none"),

    optional("sample.prompts", Kind::Words, DefaultValue::EmptyList, "prompts, each with flags of its own as in musubi-tuner: \"a rabbit --w 720 --h 480 --f 49 --d 42 --s 50 --g 6 --i IMAGE\"; || separates the texts of segments"),
    optional("sample.every", int(0, MANY), DefaultValue::Int(0), "optimizer steps between the samples and validation losses of a training run, which also follow the last step; 0: none"),
    optional("sample.seed", int(0, i64::MAX), DefaultValue::Int(42), "seed of the noise of a sample, for prompts without --d"),
    optional("sample.steps", int(1, 1000), DefaultValue::Int(50), "sampling steps, for prompts without --s"),
    optional("sample.guidance", NOT_NEGATIVE, DefaultValue::Float(6.0), "scale of classifier-free guidance, for prompts without --g; 1 or less: no guidance"),
    optional("sample.dynamic_guidance", Kind::OneOf(&["auto", "on", "off"]), DefaultValue::Str("auto"), "guidance that depends on the timestep, as CogVideoX's use_dynamic_cfg; auto: with dpm and vpsde"),
    optional("sample.scheduler", Kind::OneOf(&["auto", "ddim", "dpm", "vpsde"]), DefaultValue::Str("auto"), "sampler; auto: vpsde (ttt-video-dit's) for models with TTT layers, ddim for sincos positions (CogVideoX-2B), dpm otherwise"),
    optional("sample.frames", int(0, 100_001), DefaultValue::Int(0), "frames of a video, for prompts without --f: 8k or 8k + 1; 0: those that model.latent_frames decode to"),
    optional("sample.height", int(0, 16_384), DefaultValue::Int(0), "rows of a video in pixels, for prompts without --h; 0: 8 x model.latent_height"),
    optional("sample.width", int(0, 16_384), DefaultValue::Int(0), "columns of a video in pixels, for prompts without --w; 0: 8 x model.latent_width"),
    optional("sample.fps", NOT_NEGATIVE, DefaultValue::Float(0.0), "frames per second of the mp4; 0: data.fps of the training recipe; if that is unknown, the rate of the published models: 16 for CogVideoX 1.5, 8 for the others"),
    optional("sample.image", Kind::OptionalPath, DefaultValue::Str(""), "first image of the videos of an image-to-video model, for prompts without --i"),
    optional("sample.image_end", Kind::OptionalPath, DefaultValue::Str(""), "last image of the videos of a model for inpainting, for prompts without --e"),
    optional("sample.video", Kind::OptionalPath, DefaultValue::Str(""), "video of which a model for inpainting replaces the masked pixels, for prompts without --v"),
    optional("sample.mask", Kind::OptionalPath, DefaultValue::Str(""), "image that is white (240 to 255) where the pixels of the video are replaced, in all frames, for prompts without --m"),
    optional("sample.out", Kind::OptionalPath, DefaultValue::Str(""), "folder of the videos; default: samples/ in the run directory"),
    optional("sample.png", Kind::Bool, DefaultValue::Bool(false), "also writes each frame as a PNG file"),
    optional("sample.lora", Kind::Words, DefaultValue::EmptyList, "adapters (LoRA) that are merged into the weights before sampling, as PATH or PATH:WEIGHT; files of diffusers, PEFT or kohya, or checkpoints of adapters"),
    optional("sample.ema", Kind::OneOf(&["auto", "on", "off"]), DefaultValue::Str("auto"), "makes samples from the moving average of the weights; auto: where there is one; on: otherwise an error; the validation loss is that of the same weights"),
    optional("sample.validation_index", Kind::OptionalPath, DefaultValue::Str(""), "index of held-out clips, in the form of data.index; every sample.every steps their loss is measured at nine noise levels; default: none"),
    optional("sample.validation_clips", int(1, MANY), DefaultValue::Int(32), "held-out clips whose loss is measured, from the start of sample.validation_index"),

    optional("run.time_limit", Kind::Time, DefaultValue::Str("none"), "time limit of an attempt, such as 90s, 4h or 1d12h; the attempt saves and stops before it"),
    optional("run.push_trainer", Kind::Bool, DefaultValue::Bool(false), "copies the trainer to nodes that lack it or have another version, as --push does"),
    optional("run.on_failure", Kind::OneOf(&["stop", "resume"]), DefaultValue::Str("stop"), "what happens when an attempt fails; resume: it continues from the newest checkpoint, without the node that failed if others can replace it"),
    optional("run.heals_per_hour", int(1, 1000), DefaultValue::Int(4), "maximum number of resumes after failures within an hour; run.on_failure = \"resume\""),
    optional("run.spares", int(0, MANY), DefaultValue::Int(0), "number of nodes at the end of the hostfile that are kept to replace failed nodes"),
    optional("run.shrink", Kind::Bool, DefaultValue::Bool(false), "resumes on fewer nodes after a failure, with the same global batch, if too few are left"),
];
