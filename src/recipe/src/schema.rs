use crate::TrainerKind;

/// One key of a recipe: its type, default and meaning.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// Section and key, such as `optimizer.lr`.
    pub path: &'static str,
    /// What values it takes.
    pub kind: Kind,
    /// Value when no file sets it; without one the key must be set.
    pub default: Option<Preset>,
    /// What it means, in one line.
    pub doc: &'static str,
}

/// What values a key takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// Letters, digits and `-`.
    Name,
    /// A path; relative ones start at the file that sets them.
    Path,
    /// A path like it, or an empty text for none.
    OptionalPath,
    /// A whole number.
    Int {
        /// Smallest allowed.
        min: i64,
        /// Largest allowed; keeps products of sizes within 64 bits.
        max: i64,
    },
    /// A number; whole ones are taken too.
    Float(Bounds),
    /// `true` or `false`.
    Bool,
    /// One of some words.
    OneOf(&'static [&'static str]),
    /// `"all"`, `"qkvo"` or a list of regular expressions.
    Trainable,
    /// A time with its units, such as `"1h30m"`, or `"none"`.
    Time,
    /// Any text.
    Text,
    /// A list of texts.
    Words,
    /// A list of some words.
    ListOf(&'static [&'static str]),
    /// Names with a text each; files that build on each other, and flags, add to it name by name.
    Variables,
}

/// The range of a number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bounds {
    /// Above 0.
    Positive,
    /// 0 or above.
    NotNegative,
    /// From 0 up to, but not including, 1.
    Fraction,
}

/// A default value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Preset {
    /// A word.
    Str(&'static str),
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
    /// `true` or `false`.
    Bool(bool),
    /// An empty list.
    Nothing,
    /// No names.
    NoNames,
}

impl Preset {
    /// Returns the default as TOML.
    pub fn value(self) -> toml::Value {
        match self {
            Preset::Str(text) => toml::Value::String(text.to_owned()),
            Preset::Int(number) => toml::Value::Integer(number),
            Preset::Float(number) => toml::Value::Float(number),
            Preset::Bool(flag) => toml::Value::Boolean(flag),
            Preset::Nothing => toml::Value::Array(Vec::new()),
            Preset::NoNames => toml::Value::Table(toml::Table::new()),
        }
    }
}

impl Key {
    /// Returns the section, empty for keys above all sections, and the key within it.
    pub fn parts(&self) -> (&'static str, &'static str) {
        self.path.split_once('.').unwrap_or(("", self.path))
    }

    /// Tells whether the key means something to a trainer.
    pub fn is_for(&self, trainer: TrainerKind) -> bool {
        let section = self.parts().0;
        match trainer {
            TrainerKind::Embedded => section != "command",
            TrainerKind::Command => {
                ["", "command", "env", "mesh"].contains(&section)
                    || ["train.steps", "train.grad_accum", "checkpoint.interval"].contains(&self.path)
            }
        }
    }

    /// Finds a key by its path.
    pub fn find(path: &str) -> Option<&'static Key> {
        SCHEMA.iter().find(|key| key.path == path)
    }
}

const POSITIVE: Kind = Kind::Float(Bounds::Positive);
const NOT_NEGATIVE: Kind = Kind::Float(Bounds::NotNegative);
const FRACTION: Kind = Kind::Float(Bounds::Fraction);

const fn int(min: i64, max: i64) -> Kind {
    Kind::Int { min, max }
}

const fn needed(path: &'static str, kind: Kind, doc: &'static str) -> Key {
    Key { path, kind, default: None, doc }
}

const fn preset(path: &'static str, kind: Kind, default: Preset, doc: &'static str) -> Key {
    Key { path, kind, default: Some(default), doc }
}

const SCHEDULES: Kind = Kind::OneOf(&["constant", "linear", "cosine"]);
/// Above this a count is as good as unlimited.
pub(crate) const MANY: i64 = 1_000_000_000_000;

/// Every key of a recipe, in the order in which recipes are shown.
#[rustfmt::skip]
pub static SCHEMA: &[Key] = &[
    preset("name", Kind::Name, Preset::Str(""), "short name, part of the ids of its runs; the file's name when not set"),
    preset("trainer", Kind::OneOf(&["embedded", "command"]), Preset::Str("embedded"), "embedded: vidtui's own; command: any program, as [command] says"),

    needed("command.run", Kind::Words, "the program and its arguments, one word each, no shell; {master_addr} and the like are filled in"),
    preset("command.per", Kind::OneOf(&["node", "rank"]), Preset::Str("node"), "what it is started once for: node (torchrun, accelerate, colossalai) or rank (python)"),
    preset("command.folder", Kind::OptionalPath, Preset::Str(""), "working folder; the run's own when not set"),
    preset("command.adapter", Kind::OneOf(&["none", "open_sora", "finetrainers", "cogvideox_factory", "videox_fun", "ttt_video_dit"]), Preset::Str("none"), "whose log lines and checkpoint folders the command writes"),
    preset("command.output", Kind::Text, Preset::Str("{run_dir}/output"), "folder below which it saves checkpoints, {output} in its arguments"),
    preset("command.resume", Kind::Words, Preset::Nothing, "arguments added to continue from {checkpoint}, or from {checkpoint_step}"),

    preset("env.presets", Kind::ListOf(&["nccl_infiniband", "nccl_ethernet", "nccl_debug"]), Preset::Nothing, "sets of environment variables: nccl_infiniband, nccl_ethernet, nccl_debug"),
    preset("env.variables", Kind::Variables, Preset::NoNames, "environment variables of every rank; they win over those of the presets"),
    preset("env.secrets", Kind::OptionalPath, Preset::Str(""), "file of KEY=value lines for the environment that only its owner can read; the values are written nowhere"),

    preset("model.positions", Kind::OneOf(&["rope", "sincos", "learned"]), Preset::Str("rope"), "how tokens know where they are: rope (5B), sincos (2B) or learned (5B image-to-video)"),
    needed("model.num_layers", int(1, 10_000), "transformer blocks"),
    needed("model.num_heads", int(1, 1024), "attention heads per block"),
    preset("model.head_dim", int(1, 1024), Preset::Int(64), "width of one attention head"),
    preset("model.time_embed_dim", int(1, 65_536), Preset::Int(512), "width of the time embedding"),
    preset("model.text_dim", int(1, 65_536), Preset::Int(4096), "width of a text embedding (T5-XXL: 4096)"),
    needed("model.text_len", int(1, 1_000_000), "text tokens per segment"),
    preset("model.segments", int(1, 1000), Preset::Int(1), "parts of the video with a text each; attention stays within a segment of 12 latent frames and one shared"),
    preset("model.in_channels", int(1, 1024), Preset::Int(16), "channels of the latent that goes in"),
    preset("model.out_channels", int(1, 1024), Preset::Int(16), "channels of the prediction that comes out"),
    preset("model.patch_size", int(1, 64), Preset::Int(2), "side of the square of latent pixels that becomes one token"),
    preset("model.patch_size_t", int(1, 64), Preset::Int(1), "latent frames of that square: 1, or 2 in CogVideoX 1.5"),
    preset("model.ofs_embedding", Kind::Bool, Preset::Bool(false), "embeds the offset of the first image beside the time, as CogVideoX 1.5 image-to-video does"),
    needed("model.latent_frames", int(1, 10_000), "latent frames per sample: (video frames - 1) / 4 + 1"),
    needed("model.latent_height", int(1, 4096), "rows of a latent frame: video rows / 8"),
    needed("model.latent_width", int(1, 4096), "columns of a latent frame: video columns / 8"),
    preset("model.layer", Kind::OneOf(&["none", "ttt_linear", "ttt_mlp"]), Preset::Str("none"), "what carries information along the whole sequence besides attention"),
    preset("model.ttt_mini_batch", int(0, 65_536), Preset::Int(0), "the sequence must be a multiple of this, the mini-batch of TTT layers; 0 turns the rule off"),
    preset("model.ttt_base_lr", POSITIVE, Preset::Float(0.1), "peak learning rate of the inner loop: 0.1 for ttt_mlp, 1.0 for ttt_linear"),
    preset("model.ttt_lr_alignment", Kind::OneOf(&["aligned", "upstream"]), Preset::Str("aligned"), "aligned: each token keeps its own inner learning rate; upstream: as ttt-video-dit's kernels, for weights trained there"),
    preset("model.norm_eps", POSITIVE, Preset::Float(1e-5), "epsilon of the LayerNorms of blocks and final layer"),
    preset("model.qk_norm_eps", POSITIVE, Preset::Float(1e-6), "epsilon of the LayerNorms of queries and keys"),
    preset("model.latent_scale", POSITIVE, Preset::Float(1.0), "latents are multiplied by this when they are read"),
    preset("model.spatial_interpolation", POSITIVE, Preset::Float(1.875), "divides row and column positions (sincos only)"),
    preset("model.temporal_interpolation", POSITIVE, Preset::Float(1.0), "divides frame positions (sincos only)"),

    needed("data.index", Kind::Path, "index of latents and text embeddings, one JSON object per line"),
    preset("data.null_text", Kind::OptionalPath, Preset::Str(""), "file with the text embedding that stands for no text, as in sampling; empty: zeros"),

    needed("train.steps", int(1, MANY), "optimizer steps of the whole run"),
    needed("train.global_batch", int(1, 1_000_000), "samples per step, over all ranks"),
    preset("train.grad_accum", int(1, 1_000_000), Preset::Int(1), "parts a rank computes its share of the batch in"),
    preset("train.seed", int(0, i64::MAX), Preset::Int(42), "seed of weights, data order, noise and text dropout"),
    preset("train.trainable", Kind::Trainable, Preset::Str("all"), "what is trained: all, qkvo, or a list of patterns of parameter names"),
    preset("train.text_dropout", FRACTION, Preset::Float(0.1), "chance that a sample is trained without its text"),
    preset("train.dtype", Kind::OneOf(&["float32", "bfloat16"]), Preset::Str("bfloat16"), "type that blocks compute in; master weights are always float32"),
    preset("train.device", Kind::OneOf(&["auto", "cpu", "cuda"]), Preset::Str("auto"), "what ranks compute on; auto: a GPU each where the trainer finds GPUs, else the CPU"),
    preset("train.threads", int(0, 4096), Preset::Int(0), "CPU threads per rank; 0 shares a node's cores among its ranks"),
    preset("train.max_bad_steps", int(1, MANY), Preset::Int(10), "consecutive steps that are not finite before the run stops"),

    preset("optimizer.lr", POSITIVE, Preset::Float(1e-4), "peak learning rate of all but TTT layers"),
    preset("optimizer.lr_ttt", POSITIVE, Preset::Float(1e-4), "peak learning rate of TTT layers and their gates"),
    preset("optimizer.lr_end", NOT_NEGATIVE, Preset::Float(0.0), "learning rate that both schedules end at"),
    preset("optimizer.schedule", SCHEDULES, Preset::Str("linear"), "how lr moves after the warm-up: constant, linear or cosine"),
    preset("optimizer.schedule_ttt", SCHEDULES, Preset::Str("linear"), "how lr_ttt moves after the warm-up"),
    preset("optimizer.warmup_steps", int(0, MANY), Preset::Int(0), "steps over which the rates rise to their peaks"),
    preset("optimizer.beta1", FRACTION, Preset::Float(0.9), "AdamW: decay of the mean of gradients"),
    preset("optimizer.beta2", FRACTION, Preset::Float(0.95), "AdamW: decay of the mean of squared gradients"),
    preset("optimizer.eps", POSITIVE, Preset::Float(1e-8), "AdamW: added to the denominator"),
    preset("optimizer.weight_decay", NOT_NEGATIVE, Preset::Float(1e-4), "AdamW: decay of all but biases and norms"),
    preset("optimizer.decay_gates", Kind::Bool, Preset::Bool(false), "whether weight decay applies to the gates of TTT layers, as it does upstream"),
    preset("optimizer.clip_norm", NOT_NEGATIVE, Preset::Float(0.1), "largest norm of the whole gradient; 0 turns clipping off"),

    preset("mesh.dp_replicate", int(1, 100_000), Preset::Int(1), "copies of the model"),
    preset("mesh.dp_shard", int(1, 100_000), Preset::Int(1), "ranks that one copy is split over (FSDP)"),
    preset("mesh.tp", int(1, 1024), Preset::Int(1), "ranks that the heads and hidden units of every block are split over, on the same samples (TP)"),

    preset("remat.mode", Kind::OneOf(&["block", "none"]), Preset::Str("block"), "block: blocks run again for the backward pass; none: everything is kept"),
    preset("remat.group", int(1, 10_000), Preset::Int(1), "blocks that run again together, from one saved input"),
    preset("remat.keep_attention", Kind::Bool, Preset::Bool(true), "keeps attention outputs for the backward pass instead of computing them again"),
    preset("remat.scan_group", int(1, 1_000_000), Preset::Int(16), "mini-batches of a TTT layer between inner states that are saved for the backward pass"),
    preset("remat.shard_inputs", Kind::Bool, Preset::Bool(false), "shares the inputs of blocks, kept for the backward pass, out over the ranks of a TP group"),

    preset("checkpoint.interval", int(0, MANY), Preset::Int(0), "steps between checkpoints; 0 saves only when the run stops or ends"),
    preset("checkpoint.keep_last", int(0, MANY), Preset::Int(0), "newest checkpoints that stay; 0 keeps all"),
    preset("checkpoint.keep_every", int(0, MANY), Preset::Int(0), "checkpoints at multiples of this step stay for good; 0: none does"),
    preset("checkpoint.max_failures", int(0, MANY), Preset::Int(0), "failed saves in a row before the run stops; 0 goes on, however many"),

    preset("log.interval", int(1, MANY), Preset::Int(1), "steps between lines of metrics"),
    preset("log.peak_tflops", NOT_NEGATIVE, Preset::Float(0.0), "what a device can do in the recipe's dtype, for MFU: 989 for an H100 or H200, 312 for an A100; 0: unknown"),
    preset("log.spike", NOT_NEGATIVE, Preset::Float(10.0), "a loss this many times the usual scatter above the median is told as a spike; 0 tells none"),

    preset("run.time_limit", Kind::Time, Preset::Str("none"), "time that an attempt is given, such as 4h or 1d12h: it saves and stops before"),
    preset("run.push_trainer", Kind::Bool, Preset::Bool(false), "copies the trainer to nodes that have another one or none, as --push does"),
];
