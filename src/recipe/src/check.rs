//! The rules that compare several keys of a recipe. The ranges of single keys are in [`SCHEMA`](crate::SCHEMA).

use crate::buckets::BadBuckets;
use crate::command::{OF_WEIGHTS, Placeholders};
use crate::nearest::{by_likeness, nearest};
use crate::{
    Buckets, ComputeDtype, ConditionKind, Device, FrameMode, Key, LATENT_FRAMES, Layer, LrSchedule, NoSuchLayer,
    OffloadStore, OptimizerKind, OtherTrainer, PIXELS, ParamRole, ParamSpec, Pattern, Positions, Recipe,
    SEGMENT_FRAMES, Shapes, Task, Trainable, TrainerKind, TttScan, UseEma, VIDEO_FRAMES, nearest_clip_frames,
    param_specs,
};

/// A rule that a recipe breaks.
#[derive(Debug)]
pub(crate) struct Broken {
    /// The keys that the rule compares.
    pub keys: &'static [&'static str],
    pub why: String,
    pub fix: String,
}

/// The rules of the embedded trainer, each with the keys that it compares.
const RULES: &[(&[&str], Rule)] = &[
    (&["model.latent_height", "model.patch_size"], |r| whole_patches("latent_height", r.model.latent_height, r)),
    (&["model.latent_width", "model.patch_size"], |r| whole_patches("latent_width", r.model.latent_width, r)),
    (&["model.base_height", "model.base_width", "model.patch_size"], whole_base_patches),
    (&["model.patch_size_t", "model.positions"], patches_in_time_have_rope),
    (&["model.head_dim", "model.num_heads", "model.positions"], positions_fit),
    (
        &["model.latent_height", "model.latent_width", "model.base_height", "model.base_width", "model.patch_size_t"],
        within_the_position_table,
    ),
    (
        &["model.positions", "model.latent_height", "model.latent_width", "model.base_height", "model.base_width"],
        learned_positions_have_one_size,
    ),
    (&["model.beta_start", "model.beta_end"], noise_grows),
    (&["condition.kind", "model.in_channels", "model.out_channels"], channels_fit_the_condition),
    (&["condition.masks"], masks_have_probabilities),
    (&["data.bucket_rule", "data.buckets"], buckets_are_sound),
    (&["data.buckets", "model.patch_size"], buckets_fit_the_model),
    (&["model.segments", "model.patch_size_t"], segments_share_a_frame),
    (&["model.segments", "model.latent_frames"], whole_segments),
    (&["model.layer", "model.ttt_mini_batch"], ttt_has_mini_batches),
    (
        &["model.text_len", "model.segments", "model.latent_frames", "model.layer", "model.ttt_mini_batch"],
        whole_mini_batches,
    ),
    (&["train.global_batch", "train.grad_accum", "mesh.dp_replicate", "mesh.dp_shard"], equal_shares),
    (&["model.num_heads", "mesh.tp"], whole_heads),
    (&["data.index", "data.sets"], one_way_to_name_data),
    (&["data.sets"], sets_agree),
    (&["data.image_share", "data.sets"], one_share_of_images),
    (&["data.image_share", "data.shapes", "data.buckets"], images_have_their_own_shape),
    (&["train.steps", "train.epochs"], one_length),
    (&["optimizer.warmup_steps", "train.steps"], warmup_ends),
    (&["optimizer.lr", "optimizer.lr_end"], |r| falls("lr", r.optimizer.schedule, r.optimizer.lr, r)),
    (&["optimizer.lr_ttt", "optimizer.lr_end"], |r| falls("lr_ttt", r.optimizer.schedule_ttt, r.optimizer.lr_ttt, r)),
    (&["optimizer.lr", "optimizer.lr_ttt", "optimizer.warmup_lr"], warmup_rises),
    (&["optimizer.schedule", "optimizer.schedule_ttt", "optimizer.warmup_steps"], cycles_rise),
    (
        &[
            "optimizer.schedule",
            "optimizer.schedule_ttt",
            "optimizer.cooldown_steps",
            "optimizer.warmup_steps",
            "train.steps",
        ],
        cooldown_fits,
    ),
    (&["optimizer.beta1", "optimizer.beta1_low", "optimizer.schedule"], momentum_cycles),
    (&["ema.decay", "ema.min_decay"], average_decays),
    (&["ema.decay", "sample.ema"], samples_have_an_average),
    (&["optimizer.kind", "optimizer.lr", "optimizer.lr_ttt", "model.layer", "optimizer.groups"], prodigy_has_one_rate),
    (&["optimizer.kind", "optimizer.beta1_low"], only_adamw_cycles_momentum),
    (&["train.collective_timeout_s"], collectives_have_time),
    (
        &["train.ttt_scan", "train.device", "train.dtype", "model.layer", "model.head_dim", "model.ttt_mini_batch"],
        kernel_fits_the_scan,
    ),
    (&["train.trainable"], patterns_match),
    (&["train.frozen"], frozen_patterns_match),
    (&["train.trainable", "train.frozen"], something_is_trained),
    (&["optimizer.groups"], groups_match),
    (&["lora.rank", "lora.targets"], adapters_have_layers),
    (&["lora.rank", "lora.targets"], rank_fits),
    (&["lora.rank", "train.trainable"], adapters_are_trained_alone),
    (&["lora.dropout"], something_is_kept),
    (&["memory.block_swap", "model.num_layers"], blocks_can_be_swapped),
    (&["memory.optimizer_offload", "optimizer.kind"], state_can_be_offloaded),
    (&["memory.activation_offload", "remat.mode", "remat.group", "model.num_layers"], inputs_are_saved),
    (&["memory.store", "train.device"], store_fits_the_device),
    (&["sample.lora"], merged_adapters_have_absolute_paths),
    (&["sample.every", "sample.prompts", "sample.validation_index"], samples_have_prompts),
    (&["sample.prompts", "encoders.folder"], samples_have_encoders),
    (&["sample.prompts"], prompts_can_be_sampled),
];

/// The rules of a recipe that encodes.
const ENCODE_RULES: &[(&[&str], Rule)] = &[
    (&["data.bucket_rule", "data.buckets"], buckets_are_sound),
    (&["encode.frames", "encode.height", "encode.width", "data.buckets"], one_size_or_buckets),
    (&["encode.frames"], whole_latent_frames),
    (&["encode.height"], |r| whole_latent_pixels("height", r.encode.height)),
    (&["encode.width"], |r| whole_latent_pixels("width", r.encode.width)),
    (&["encode.mode", "encode.fps"], rate_fits_mode),
    (&["encode.mode", "encode.stride"], stride_fits_mode),
    (&["condition.masks"], masks_have_probabilities),
];

/// The rules of a recipe for a command.
const COMMAND_RULES: &[(&[&str], Rule)] = &[
    (&["command.run"], has_program),
    (&["command.run", "command.per"], |r| known_placeholders("run", &r.command.run, r)),
    (&["command.output"], |r| known_placeholders("output", std::slice::from_ref(&r.command.output), r)),
    (&["command.start", "command.per"], |r| known_placeholders("start", &r.command.start, r)),
    (&["command.start", "command.run"], start_passes_weights),
    (&["command.resume", "command.per"], |r| known_placeholders("resume", &r.command.resume, r)),
    (&["command.resume", "command.adapter"], resume_finds_checkpoints),
    (&["command.fresh_data", "command.per"], |r| known_placeholders("fresh_data", &r.command.fresh_data, r)),
    (&["command.fresh_data", "command.resume"], fresh_data_follows_a_resume),
];

/// The rules of every recipe.
const COMMON_RULES: &[(&[&str], Rule)] =
    &[(&["env.variables"], |r| r.env.bad_name().map_or(Ok(()), |(why, fix)| Err(Advice { why, fix })))];

type Rule = fn(&Recipe) -> Result<(), Advice>;

/// The reason why a rule does not hold, and the change that makes it hold.
struct Advice {
    why: String,
    fix: String,
}

/// Returns the first rule that does not hold.
pub(crate) fn first_broken(recipe: &Recipe) -> Option<Broken> {
    let rules = match (recipe.trainer, recipe.task) {
        (TrainerKind::Command, _) => COMMAND_RULES,
        (TrainerKind::Embedded, Task::Encode) => ENCODE_RULES,
        (TrainerKind::Embedded, Task::Train | Task::Sample) => RULES,
    };
    first_of(rules.iter().chain(COMMON_RULES), recipe)
}

/// Returns the first rule about the model alone that does not hold.
pub(crate) fn broken_model(recipe: &Recipe) -> Option<Broken> {
    let of_the_model = |keys: &[&str]| keys.iter().all(|key| key.starts_with("model."));
    first_of(RULES.iter().filter(|(keys, _)| of_the_model(keys)), recipe)
}

/// Returns the first of these rules that does not hold. Skips rules about keys of another task.
fn first_of<'a>(rules: impl Iterator<Item = &'a (&'static [&'static str], Rule)>, recipe: &Recipe) -> Option<Broken> {
    let applies = |key: &&str| Key::find(key).is_some_and(|key| key.is_for(recipe.task, recipe.trainer));
    rules.filter(|(keys, _)| keys.iter().all(applies)).find_map(|(keys, rule)| {
        let Advice { why, fix } = rule(recipe).err()?;
        Some(Broken { keys, why, fix })
    })
}

fn whole_patches(key: &str, size: usize, recipe: &Recipe) -> Result<(), Advice> {
    multiple(key, size, "patch_size", recipe.model.patch_size)
}

fn whole_base_patches(recipe: &Recipe) -> Result<(), Advice> {
    multiple("base_height", recipe.model.base_height, "patch_size", recipe.model.patch_size)?;
    multiple("base_width", recipe.model.base_width, "patch_size", recipe.model.patch_size)
}

fn multiple(key: &str, size: usize, of: &str, patch: usize) -> Result<(), Advice> {
    if size.is_multiple_of(patch) {
        return Ok(());
    }
    Err(Advice {
        why: format!("model.{key} {size} is not a multiple of model.{of} {patch}: {}", division(size, patch)),
        fix: format!("set model.{key} = {}", around(size, patch)),
    })
}

/// CogVideoX 1.5 has rotary positions only; a table of positions has one entry per latent frame.
fn patches_in_time_have_rope(recipe: &Recipe) -> Result<(), Advice> {
    let model = &recipe.model;
    if model.patch_size_t == 1 || model.positions == Positions::Rope {
        return Ok(());
    }
    Err(Advice {
        why: format!("model.patch_size_t {} needs rotary positions", model.patch_size_t),
        fix: "set model.positions = \"rope\", or model.patch_size_t = 1".into(),
    })
}

/// Neighbouring segments share one latent frame, which a patch of several frames would split.
fn segments_share_a_frame(recipe: &Recipe) -> Result<(), Advice> {
    let model = &recipe.model;
    if model.segments == 1 || model.patch_size_t == 1 {
        return Ok(());
    }
    Err(Advice {
        why: format!(
            "each of model.segments {} shares one latent frame with its neighbour, and model.patch_size_t {} merges several frames into one token",
            model.segments, model.patch_size_t
        ),
        fix: "set model.segments = 1, or train a model with model.patch_size_t = 1".into(),
    })
}

/// Positions divide a head's width into pairs: a quarter for frames, three eighths each for rows and columns.
///
/// Tables of sines and cosines divide the width of the model in the same way.
fn positions_fit(recipe: &Recipe) -> Result<(), Advice> {
    let model = &recipe.model;
    let (what, width) = match model.positions {
        Positions::Rope | Positions::Learned => (format!("model.head_dim {}", model.head_dim), model.head_dim),
        Positions::SinCos => (
            format!("model.num_heads {} × model.head_dim {} = {}", model.num_heads, model.head_dim, model.dim()),
            model.dim(),
        ),
    };
    if width.is_multiple_of(16) {
        return Ok(());
    }
    let part = |eighths: f64| width as f64 * eighths / 8.0;
    Err(Advice {
        why: format!(
            "{what} cannot be divided among positions: frames take {}, rows and columns {} each, and each must be even",
            part(2.0),
            part(3.0)
        ),
        fix: format!("set model.head_dim = {}", around(model.head_dim, 16)),
    })
}

/// The positions of CogVideoX 1.5 are plain indices into a table of the base size.
fn within_the_position_table(recipe: &Recipe) -> Result<(), Advice> {
    let model = &recipe.model;
    let [_, rows, columns] = model.base();
    let (height, width) = (model.latent_height, model.latent_width);
    if model.patch_size_t == 1 || (height <= rows && width <= columns) {
        return Ok(());
    }
    Err(Advice {
        why: format!(
            "a latent of {height} × {width} is larger than {rows} × {columns}, the largest that the positions of CogVideoX 1.5 support"
        ),
        fix: format!(
            "set model.latent_height and model.latent_width to {rows} and {columns} or less, or model.base_height and model.base_width as in the config.json of the weights"
        ),
    })
}

/// A learned table has one entry per token. If the number of frames differs, the sine and cosine table replaces it, as in diffusers.
fn learned_positions_have_one_size(recipe: &Recipe) -> Result<(), Advice> {
    let model = &recipe.model;
    let [_, rows, columns] = model.base();
    let (height, width) = (model.latent_height, model.latent_width);
    if model.positions != Positions::Learned || model.ignore_learned_positions || (height, width) == (rows, columns) {
        return Ok(());
    }
    Err(Advice {
        why: format!("the learned positions are for a latent of {rows} × {columns}, not {height} × {width}"),
        fix: format!(
            "set model.latent_height = {rows} and model.latent_width = {columns}, or model.ignore_learned_positions = true to train with rotary positions alone"
        ),
    })
}

fn noise_grows(recipe: &Recipe) -> Result<(), Advice> {
    let (start, end) = (recipe.model.beta_start, recipe.model.beta_end);
    if start < end {
        return Ok(());
    }
    Err(Advice {
        why: format!("model.beta_start {start} is not below model.beta_end {end}: later timesteps add more noise"),
        fix: "set model.beta_start = 0.00085 and model.beta_end = 0.012, as in CogVideoX".into(),
    })
}

/// The network receives the noised latent, which has as many channels as the prediction, and the condition.
fn channels_fit_the_condition(recipe: &Recipe) -> Result<(), Advice> {
    let (kind, input, output) = (recipe.condition.kind, recipe.model.in_channels, recipe.model.out_channels);
    let wanted = kind.in_channels(output);
    if input == wanted {
        return Ok(());
    }
    let (word, sum) = (
        kind.name(),
        match kind {
            ConditionKind::None => "the noised latent".to_owned(),
            ConditionKind::Image => format!("{output} noised latent + {output} image latent"),
            ConditionKind::Inpaint => format!("{output} noised latent + 1 mask + {output} masked latent"),
        },
    );
    let kinds = [ConditionKind::None, ConditionKind::Image, ConditionKind::Inpaint];
    let other = kinds.into_iter().find(|other| other.in_channels(output) == input);
    Err(Advice {
        why: format!(
            "condition.kind \"{word}\" needs {wanted} input channels ({sum}), and model.in_channels is {input}"
        ),
        fix: match other {
            Some(other) => format!("set condition.kind = \"{}\", or model.in_channels = {wanted}", other.name()),
            None => format!("set model.in_channels = {wanted}"),
        },
    })
}

fn buckets_are_sound(recipe: &Recipe) -> Result<(), Advice> {
    match Buckets::new(recipe.data.bucket_rule, &recipe.data.buckets) {
        Ok(_) => Ok(()),
        Err(BadBuckets { why, fix }) => Err(Advice { why, fix }),
    }
}

/// Every rule about the model's own size holds for each bucket.
fn buckets_fit_the_model(recipe: &Recipe) -> Result<(), Advice> {
    for bucket in recipe.buckets().map_or_else(Vec::new, |buckets| buckets.all()) {
        let shape = bucket.latent();
        if let Err(why) = recipe.model_at(shape) {
            return Err(Advice {
                why: format!("latents of the bucket {bucket} do not fit the model: {why}"),
                fix: "give the bucket another size in data.buckets".into(),
            });
        }
    }
    Ok(())
}

/// The size of an encode is either one size or that of its buckets.
fn one_size_or_buckets(recipe: &Recipe) -> Result<(), Advice> {
    let encode = &recipe.encode;
    let sizes = [("frames", encode.frames), ("height", encode.height), ("width", encode.width)];
    match (recipe.data.buckets.is_empty(), sizes.into_iter().find(|(_, size)| *size > 0)) {
        (false, Some((key, size))) => Err(Advice {
            why: format!("encode.{key} is {size}, and data.buckets gives each clip its own size"),
            fix: "remove encode.frames, encode.height and encode.width, or remove data.buckets".into(),
        }),
        _ => Ok(()),
    }
}

fn masks_have_probabilities(recipe: &Recipe) -> Result<(), Advice> {
    let Err(why) = recipe.condition.mask_kinds() else { return Ok(()) };
    Err(Advice {
        why: format!("condition.masks cannot be used: {why}"),
        fix: "write masks = [\"all=0.5\", \"tail=0.5\"], or omit it for VideoX-Fun's kinds".into(),
    })
}

fn whole_segments(recipe: &Recipe) -> Result<(), Advice> {
    let (n, frames) = (recipe.model.segments, recipe.model.latent_frames);
    let wanted = SEGMENT_FRAMES * n + 1;
    if n == 1 || frames == wanted {
        return Ok(());
    }
    Err(Advice {
        why: format!(
            "model.segments {n} needs {n} × {SEGMENT_FRAMES} + 1 = {wanted} latent frames, and model.latent_frames is {frames}"
        ),
        fix: format!(
            "set model.latent_frames = {wanted}, or model.segments = {}",
            (frames.saturating_sub(1) / SEGMENT_FRAMES).max(1)
        ),
    })
}

fn ttt_has_mini_batches(recipe: &Recipe) -> Result<(), Advice> {
    if recipe.model.layer == Layer::None || recipe.model.ttt_mini_batch > 0 {
        return Ok(());
    }
    Err(Advice {
        why: "TTT layers need mini-batches of tokens, and model.ttt_mini_batch is 0".into(),
        fix: "set model.ttt_mini_batch = 64 for ttt_mlp, 16 for ttt_linear".into(),
    })
}

fn whole_mini_batches(recipe: &Recipe) -> Result<(), Advice> {
    let model = &recipe.model;
    let (length, batch) = (model.seq_len(), model.ttt_mini_batch);
    // A model without TTT layers has no mini-batches.
    if model.layer == Layer::None || batch == 0 || length.is_multiple_of(batch) {
        return Ok(());
    }
    // The nearest text length that fits. With several segments, some multiples cannot be reached.
    let fits = |text_len: usize| (model.segments * text_len + model.video_tokens()).is_multiple_of(batch);
    let nearest = (1..=batch)
        .flat_map(|off| [model.text_len.checked_sub(off).filter(|&len| len > 0), model.text_len.checked_add(off)])
        .flatten()
        .find(|&text_len| fits(text_len));
    let text = match model.segments {
        1 => format!("{} text", model.text_len),
        n => format!("{n} × {} text", model.text_len),
    };
    Err(Advice {
        why: format!(
            "a sequence of {text} tokens + {} frames × {} = {length} tokens is not a multiple of model.ttt_mini_batch {batch}: {}",
            model.token_frames(),
            model.tokens_per_frame(),
            division(length, batch)
        ),
        fix: match nearest {
            Some(text_len) => {
                let length = model.segments * text_len + model.video_tokens();
                format!(
                    "set model.text_len = {text_len}, the nearest that fits ({length} = {} × {batch})",
                    length / batch
                )
            }
            None => "change model.latent_height or model.latent_width: no text length fits".into(),
        },
    })
}

/// The CUDA kernel of the scan works on tiles of 16 × 16 numbers in bfloat16; the state of a head fits the registers of one block up to a
/// width of 64.
fn kernel_fits_the_scan(recipe: &Recipe) -> Result<(), Advice> {
    const TILE: usize = 16;
    const MOST: usize = 64;
    let (train, model) = (&recipe.train, &recipe.model);
    if train.ttt_scan == TttScan::Operators || model.layer == Layer::None {
        return Ok(());
    }
    let or_operators = "or train.ttt_scan = \"operators\"";
    let refuse = |why: String, fix: String| Err(Advice { why, fix: format!("{fix}, {or_operators}") });
    if train.device == Device::Cpu {
        let why =
            "train.ttt_scan \"kernel\" is a CUDA kernel, and train.device is \"cpu\", which has a kernel of its own";
        return refuse(why.into(), "set train.device = \"cuda\"".into());
    }
    if train.dtype != ComputeDtype::Bfloat16 {
        let why = "train.ttt_scan \"kernel\" computes in bfloat16, and train.dtype is \"float32\"";
        return refuse(why.into(), "set train.dtype = \"bfloat16\"".into());
    }
    let sizes = [("model.head_dim", model.head_dim), ("model.ttt_mini_batch", model.ttt_mini_batch)];
    match sizes.into_iter().find(|(_, size)| !size.is_multiple_of(TILE) || *size > MOST) {
        None => Ok(()),
        Some((key, size)) => refuse(
            format!("train.ttt_scan \"kernel\" needs multiples of {TILE} up to {MOST}, and {key} is {size}"),
            format!("set {key} = {}", around(size.min(MOST), TILE)),
        ),
    }
}

/// The shortest timeout of a collective: a busy node may pause a rank for seconds.
const SHORTEST_TIMEOUT_S: u64 = 5;

fn collectives_have_time(recipe: &Recipe) -> Result<(), Advice> {
    let seconds = recipe.train.collective_timeout_s;
    if seconds == 0 || seconds >= SHORTEST_TIMEOUT_S {
        return Ok(());
    }
    Err(Advice {
        why: format!(
            "train.collective_timeout_s {seconds} is too short: a busy node can pause a rank for {SHORTEST_TIMEOUT_S} s"
        ),
        fix: "set train.collective_timeout_s to several times the longest step, or to 0 to derive it".into(),
    })
}

fn equal_shares(recipe: &Recipe) -> Result<(), Advice> {
    let (train, mesh) = (&recipe.train, &recipe.mesh);
    let parts = mesh.data_ranks() * train.grad_accum;
    if train.global_batch.is_multiple_of(parts) {
        return Ok(());
    }
    Err(Advice {
        why: format!(
            "train.global_batch {} is not a multiple of mesh.dp_replicate {} × mesh.dp_shard {} × train.grad_accum {} = {parts}: {}",
            train.global_batch,
            mesh.dp_replicate,
            mesh.dp_shard,
            train.grad_accum,
            division(train.global_batch, parts)
        ),
        fix: format!("set train.global_batch = {}", around(train.global_batch, parts)),
    })
}

/// Each rank of a TP group has whole heads. The hidden units of the MLP, four times the width, are then divisible too.
fn whole_heads(recipe: &Recipe) -> Result<(), Advice> {
    let (heads, tp) = (recipe.model.num_heads, recipe.mesh.tp);
    if heads.is_multiple_of(tp) {
        return Ok(());
    }
    let fits = (1..tp).rev().find(|&n| heads.is_multiple_of(n)).unwrap_or(1);
    Err(Advice {
        why: format!(
            "model.num_heads {heads} is not a multiple of mesh.tp {tp}, and a head cannot be split: {}",
            division(heads, tp)
        ),
        fix: format!("set mesh.tp = {fits}, the largest smaller size that fits"),
    })
}

fn one_way_to_name_data(recipe: &Recipe) -> Result<(), Advice> {
    if recipe.data.sets.is_empty() || recipe.data.index.as_str().is_empty() {
        return Ok(());
    }
    Err(Advice {
        why: "both data.index and [[data.sets]] name data sets".into(),
        fix: format!("write index = \"{}\" in one of the [[data.sets]], or remove data.index", recipe.data.index),
    })
}

fn sets_agree(recipe: &Recipe) -> Result<(), Advice> {
    let sets = &recipe.data.sets;
    let Some(weighted) = sets.iter().find(|set| set.weight.is_some()) else { return Ok(()) };
    if let Some(repeated) = sets.iter().find(|set| set.repeats.is_some()) {
        return Err(Advice {
            why: format!(
                "the data set {} has a weight and {} has repeats: both set how often an item is used",
                weighted.index, repeated.index
            ),
            fix: "give all sets a weight, or none".into(),
        });
    }
    match sets.iter().find(|set| set.weight.is_none()) {
        None => Ok(()),
        Some(other) => Err(Advice {
            why: format!("the data set {} has a weight, and {} has none", weighted.index, other.index),
            fix: "give each of the [[data.sets]] a weight, or none of them".into(),
        }),
    }
}

fn one_share_of_images(recipe: &Recipe) -> Result<(), Advice> {
    if recipe.data.image_share == 0.0 || recipe.data.sets.iter().all(|set| set.weight.is_none()) {
        return Ok(());
    }
    Err(Advice {
        why: format!(
            "data.image_share {} and the weights of [[data.sets]] both set shares of the samples",
            recipe.data.image_share
        ),
        fix: "keep the images in a set of its own and give it a weight, or remove the weights".into(),
    })
}

fn images_have_their_own_shape(recipe: &Recipe) -> Result<(), Advice> {
    if recipe.data.image_share == 0.0 || recipe.shapes() != Shapes::One {
        return Ok(());
    }
    Err(Advice {
        why: format!(
            "data.image_share {} mixes images with videos, and with data.shapes = \"one\" all latents have {}",
            recipe.data.image_share,
            units::counted(recipe.model.latent_frames, "frame")
        ),
        fix: "set data.shapes = \"grouped\" or \"balanced\"".into(),
    })
}

fn one_length(recipe: &Recipe) -> Result<(), Advice> {
    let (steps, epochs) = (recipe.train.steps, recipe.train.epochs);
    match (steps, epochs) {
        (0, 0) => Err(Advice {
            why: "train.steps and train.epochs are both 0".into(),
            fix: "set train.steps or train.epochs".into(),
        }),
        (0, _) | (_, 0) => Ok(()),
        _ => Err(Advice {
            why: format!("train.steps {steps} and train.epochs {epochs} both set the length of the run"),
            fix: "remove one of them".into(),
        }),
    }
}

/// A run whose length is given in epochs is checked again when its steps are known.
fn warmup_ends(recipe: &Recipe) -> Result<(), Advice> {
    let (warmup, steps) = (recipe.optimizer.warmup_steps, recipe.train.steps);
    if warmup <= steps || recipe.train.epochs > 0 {
        return Ok(());
    }
    Err(Advice {
        why: format!(
            "optimizer.warmup_steps {warmup} is more than train.steps {steps}, so the learning rate never reaches its peak"
        ),
        fix: format!("set optimizer.warmup_steps to {steps} or less, or train.steps to {warmup} or more"),
    })
}

fn falls(key: &str, schedule: LrSchedule, peak: f64, recipe: &Recipe) -> Result<(), Advice> {
    let end = recipe.optimizer.lr_end;
    if schedule == LrSchedule::Constant || end <= peak {
        return Ok(());
    }
    Err(Advice {
        why: format!(
            "optimizer.lr_end {end:e} is above the peak optimizer.{key} {peak:e}, and schedules never rise after the warm-up"
        ),
        fix: format!("set optimizer.lr_end to {peak:e} or less, or optimizer.{key} to {end:e} or more"),
    })
}

fn warmup_rises(recipe: &Recipe) -> Result<(), Advice> {
    let o = &recipe.optimizer;
    let Some((key, peak)) = [("lr", o.lr), ("lr_ttt", o.lr_ttt)].into_iter().find(|(_, peak)| o.warmup_lr > *peak)
    else {
        return Ok(());
    };
    Err(Advice {
        why: format!("optimizer.warmup_lr {:e} is above the peak optimizer.{key} {peak:e}", o.warmup_lr),
        fix: format!("set optimizer.warmup_lr to {peak:e} or less"),
    })
}

/// Returns the schedules of a recipe with their keys.
fn schedules(recipe: &Recipe) -> [(&'static str, LrSchedule); 2] {
    let o = &recipe.optimizer;
    [("optimizer.schedule", o.schedule), ("optimizer.schedule_ttt", o.schedule_ttt)]
}

fn cycles_rise(recipe: &Recipe) -> Result<(), Advice> {
    let rises = |schedule: LrSchedule| schedule.is_one_cycle() || schedule == LrSchedule::Bump;
    let Some((key, _)) = schedules(recipe).into_iter().find(|(_, schedule)| rises(*schedule)) else { return Ok(()) };
    if recipe.optimizer.warmup_steps > 0 {
        return Ok(());
    }
    Err(Advice {
        why: format!("the {key} begins with a rise to the peak, and optimizer.warmup_steps is 0"),
        fix: format!(
            "set optimizer.warmup_steps, for example to {}: PyTorch's pct_start is 0.3",
            (recipe.train.steps * 3).div_ceil(10)
        ),
    })
}

/// The rate of wsd and bump falls in a number of steps that must be given, and that no other schedule has.
fn cooldown_fits(recipe: &Recipe) -> Result<(), Advice> {
    let (cooldown, warmup, steps) =
        (recipe.optimizer.cooldown_steps, recipe.optimizer.warmup_steps, recipe.train.steps);
    match schedules(recipe).into_iter().find(|(_, schedule)| schedule.has_cooldown()) {
        None if cooldown > 0 => Err(Advice {
            why: format!("optimizer.cooldown_steps {cooldown} has no effect: no schedule is wsd or bump"),
            fix: "set optimizer.schedule = \"wsd\", or remove optimizer.cooldown_steps".into(),
        }),
        Some((key, _)) if cooldown == 0 => Err(Advice {
            why: format!("the {key} falls in optimizer.cooldown_steps, which is 0"),
            fix: format!("set optimizer.cooldown_steps, for example to {}", steps.div_ceil(10)),
        }),
        Some((key, _)) if warmup + cooldown > steps && recipe.train.epochs == 0 => Err(Advice {
            why: format!(
                "the {key} has optimizer.warmup_steps {warmup} + optimizer.cooldown_steps {cooldown} = {} steps, and train.steps is {steps}",
                warmup + cooldown
            ),
            fix: format!("set optimizer.cooldown_steps to {} or less", steps.saturating_sub(warmup)),
        }),
        _ => Ok(()),
    }
}

fn momentum_cycles(recipe: &Recipe) -> Result<(), Advice> {
    let o = &recipe.optimizer;
    if o.beta1_low > 0.0 && !o.schedule.is_one_cycle() {
        return Err(Advice {
            why: format!("optimizer.beta1_low {} has an effect on one-cycle schedules only", o.beta1_low),
            fix: "set optimizer.schedule = \"one_cycle\", or remove optimizer.beta1_low".into(),
        });
    }
    if o.beta1_low > o.beta1 {
        return Err(Advice {
            why: format!("optimizer.beta1_low {} is above optimizer.beta1 {}", o.beta1_low, o.beta1),
            fix: "set optimizer.beta1 = 0.95 and optimizer.beta1_low = 0.85, as in PyTorch".into(),
        });
    }
    Ok(())
}

fn average_decays(recipe: &Recipe) -> Result<(), Advice> {
    let ema = &recipe.ema;
    if !ema.is_used() || ema.min_decay <= ema.decay {
        return Ok(());
    }
    Err(Advice {
        why: format!("ema.min_decay {} is above ema.decay {}, the largest", ema.min_decay, ema.decay),
        fix: format!("set ema.min_decay to {} or less", ema.decay),
    })
}

/// The weights of a checkpoint may have an average whatever the recipe of the task `sample` has.
fn samples_have_an_average(recipe: &Recipe) -> Result<(), Advice> {
    if recipe.task != Task::Train || recipe.sample.ema != UseEma::On || recipe.ema.is_used() {
        return Ok(());
    }
    Err(Advice {
        why: "sample.ema is \"on\", and there is no average of the weights: ema.decay is 0".into(),
        fix: "set ema.decay, for example to 0.9999, or sample.ema = \"auto\"".into(),
    })
}

/// Prodigy estimates one distance for all parameters.
fn prodigy_has_one_rate(recipe: &Recipe) -> Result<(), Advice> {
    let o = &recipe.optimizer;
    if o.kind != OptimizerKind::Prodigy {
        return Ok(());
    }
    let why = "Prodigy estimates one distance, so all parameters have one learning rate";
    if recipe.model.layer != Layer::None && (o.lr_ttt, o.schedule_ttt) != (o.lr, o.schedule) {
        return Err(Advice {
            why: format!("{why}, and optimizer.lr_ttt or schedule_ttt differs from optimizer.lr or schedule"),
            fix: format!("set optimizer.lr_ttt = {} and the same schedules", o.lr),
        });
    }
    match o.groups.iter().find(|group| group.lr.is_some()) {
        None => Ok(()),
        Some(group) => Err(Advice {
            why: format!("{why}, and the group \"{}\" sets lr", group.pattern.as_str()),
            fix: "remove lr from the group, or set optimizer.kind = \"adamw\"".into(),
        }),
    }
}

fn only_adamw_cycles_momentum(recipe: &Recipe) -> Result<(), Advice> {
    let o = &recipe.optimizer;
    if o.beta1_low == 0.0 || o.kind != OptimizerKind::Adafactor {
        return Ok(());
    }
    Err(Advice {
        why: "Adafactor has no first moment, so optimizer.beta1_low has no effect".into(),
        fix: "remove optimizer.beta1_low".into(),
    })
}

/// Every pattern must match a parameter; one that matches none is a typing mistake.
fn patterns_match(recipe: &Recipe) -> Result<(), Advice> {
    let Trainable::Patterns(patterns) = &recipe.train.trainable else { return Ok(()) };
    match_one_each("train.trainable", patterns, &param_specs(&recipe.model), |spec| spec.role == ParamRole::Trained)
}

fn frozen_patterns_match(recipe: &Recipe) -> Result<(), Advice> {
    let patterns = &recipe.train.frozen;
    match_one_each("train.frozen", patterns, &param_specs(&recipe.model), |spec| spec.role == ParamRole::Trained)
}

/// A group must match a parameter that is trained, and that no group before it matches.
fn groups_match(recipe: &Recipe) -> Result<(), Advice> {
    let specs = recipe.param_specs();
    let patterns: Vec<Pattern> = recipe.optimizer.groups.iter().map(|group| group.pattern.clone()).collect();
    let is_trained = |spec: &ParamSpec| recipe.train.trains(spec);
    match_one_each("optimizer.groups", &patterns, &specs, is_trained)?;
    let first = |spec: &&ParamSpec| patterns.iter().position(|pattern| pattern.matches(&spec.name));
    let reached: std::collections::BTreeSet<usize> =
        specs.iter().filter(|spec| is_trained(spec)).filter_map(|spec| first(&spec)).collect();
    let Some(unused) = (0..patterns.len()).find(|number| !reached.contains(number)) else { return Ok(()) };
    Err(Advice {
        why: format!(
            "the group \"{}\" of optimizer.groups has no parameters: groups before it match all of them",
            patterns[unused].as_str()
        ),
        fix: "move the group to the front, or remove it: the first group that matches applies".into(),
    })
}

/// Refuses a pattern that matches none of the names that `may` be selected.
fn match_one_each(
    key: &str,
    patterns: &[Pattern],
    specs: &[ParamSpec],
    may: impl Fn(&ParamSpec) -> bool,
) -> Result<(), Advice> {
    let names: Vec<&str> = specs.iter().filter(|spec| may(spec)).map(|spec| spec.name.as_str()).collect();
    let has_no_match = |pattern: &&Pattern| !names.iter().any(|name| pattern.matches(name));
    let Some(unused) = patterns.iter().find(has_no_match) else { return Ok(()) };
    let wanted = unused.as_str().replace("\\.", ".");
    let near = by_likeness(wanted.trim_matches(['^', '$', '.']), names.iter().copied());
    let example = near.first().copied().unwrap_or_default();
    let which = if key == "optimizer.groups" { "trained parameter" } else { "parameter" };
    Err(Advice {
        why: format!("the pattern \"{}\" of {key} matches none of the {} {which} names", unused.as_str(), names.len()),
        fix: format!("correct or remove the pattern; a parameter is named {example}, for example"),
    })
}

fn something_is_trained(recipe: &Recipe) -> Result<(), Advice> {
    if recipe.train.frozen.is_empty() || recipe.param_specs().iter().any(|spec| recipe.train.trains(spec)) {
        return Ok(());
    }
    Err(Advice {
        why: "train.frozen freezes every parameter that train.trainable selects".into(),
        fix: "remove a pattern from train.frozen".into(),
    })
}

fn adapters_have_layers(recipe: &Recipe) -> Result<(), Advice> {
    if !recipe.lora.is_used() {
        return Ok(());
    }
    let Err(NoSuchLayer { target, near, layers }) = recipe.lora.layers(&recipe.model) else { return Ok(()) };
    Err(Advice {
        why: format!("\"{target}\" of lora.targets selects none of the {layers} linear layers of blocks"),
        fix: format!("did you mean {}? A regular expression has to match a whole name", near.join(", ")),
    })
}

/// An adapter whose rank is above a side of its layer has more values than the layer itself.
fn rank_fits(recipe: &Recipe) -> Result<(), Advice> {
    let rank = recipe.lora.rank;
    if rank == 0 {
        return Ok(());
    }
    let layers = recipe.lora.layers(&recipe.model).unwrap_or_default();
    let side = |spec: &ParamSpec| spec.shape.iter().copied().min().unwrap_or(0);
    let Some(small) = layers.iter().min_by_key(|spec| side(spec)).filter(|spec| rank > side(spec)) else {
        return Ok(());
    };
    Err(Advice {
        why: format!("lora.rank {rank} is above the smaller side of {}, of shape {:?}", small.name, small.shape),
        fix: format!("set lora.rank to {} or less, or leave this layer out of lora.targets", side(small)),
    })
}

fn something_is_kept(recipe: &Recipe) -> Result<(), Advice> {
    if recipe.lora.dropout < 1.0 {
        return Ok(());
    }
    Err(Advice {
        why: "lora.dropout is 1, which drops every input of the adapters".into(),
        fix: "set lora.dropout below 1, for example to 0.1, or to 0 for none".into(),
    })
}

fn merged_adapters_have_absolute_paths(recipe: &Recipe) -> Result<(), Advice> {
    match recipe.sample.merged().into_iter().find(|lora| !lora.path.is_absolute()) {
        None => Ok(()),
        Some(lora) => Err(Advice {
            why: format!("the path {} is relative, and ranks run in other folders", lora.path),
            fix: "write the absolute path of the adapter".into(),
        }),
    }
}

fn adapters_are_trained_alone(recipe: &Recipe) -> Result<(), Advice> {
    match (recipe.lora.is_used(), &recipe.train.trainable) {
        (true, Trainable::All) => Err(Advice {
            why: format!(
                "lora.rank is {}, and train.trainable \"all\" trains every weight beside the adapters",
                recipe.lora.rank
            ),
            fix: "set train.trainable = \"lora\" to train the adapters alone".into(),
        }),
        (false, Trainable::Lora) => Err(Advice {
            why: "train.trainable is \"lora\", and there are no adapters: lora.rank is 0".into(),
            fix: "set lora.rank, for example to 64".into(),
        }),
        _ => Ok(()),
    }
}

fn blocks_can_be_swapped(recipe: &Recipe) -> Result<(), Advice> {
    let (swap, blocks) = (recipe.memory.block_swap, recipe.model.num_layers);
    if swap <= blocks {
        return Ok(());
    }
    Err(Advice {
        why: format!("memory.block_swap is {swap}, and the model has {blocks} blocks"),
        fix: format!("set memory.block_swap = {blocks} to swap all blocks, or less"),
    })
}

fn state_can_be_offloaded(recipe: &Recipe) -> Result<(), Advice> {
    if !recipe.memory.optimizer_offload || recipe.optimizer.kind != OptimizerKind::Adafactor {
        return Ok(());
    }
    Err(Advice {
        why: "memory.optimizer_offload has no effect: Adafactor's state is rows and columns, which every update reads together".into(),
        fix: "remove memory.optimizer_offload, or set optimizer.kind = \"adamw\"".into(),
    })
}

fn inputs_are_saved(recipe: &Recipe) -> Result<(), Advice> {
    if !recipe.memory.activation_offload || recipe.remat.saves_inputs(recipe.model.num_layers) {
        return Ok(());
    }
    Err(Advice {
        why: "memory.activation_offload has no effect: one group holds all blocks, so that no block saves its input"
            .into(),
        fix: "set remat.mode = \"block\" and remat.group = 1, or remove memory.activation_offload".into(),
    })
}

fn store_fits_the_device(recipe: &Recipe) -> Result<(), Advice> {
    let (why, fix) = match (recipe.memory.store, recipe.train.device) {
        _ if !recipe.memory.is_used() => return Ok(()),
        (OffloadStore::Host, Device::Cpu) => {
            ("\"host\" has no effect on the CPU: it is the memory of the device", "file")
        }
        (OffloadStore::File, Device::Cuda) => ("\"file\" is for ranks on the CPU", "host"),
        _ => return Ok(()),
    };
    Err(Advice { why: format!("memory.store {why}"), fix: format!("set memory.store = \"{fix}\" or \"auto\"") })
}

fn whole_latent_frames(recipe: &Recipe) -> Result<(), Advice> {
    let frames = recipe.encode.frames;
    if frames == 0 {
        return Ok(());
    }
    let Some([below, above]) = nearest_clip_frames(frames) else { return Ok(()) };
    Err(Advice {
        why: format!("encode.frames {frames} is not {VIDEO_FRAMES}k + 1: {LATENT_FRAMES}"),
        fix: format!("set encode.frames = {below} or {above}"),
    })
}

fn whole_latent_pixels(key: &str, size: usize) -> Result<(), Advice> {
    if size.is_multiple_of(PIXELS) {
        return Ok(());
    }
    Err(Advice {
        why: format!(
            "encode.{key} {size} is not a multiple of {PIXELS}, the pixels of the VAE per latent pixel: {}",
            division(size, PIXELS)
        ),
        fix: format!("set encode.{key} = {}", around(size, PIXELS)),
    })
}

fn rate_fits_mode(recipe: &Recipe) -> Result<(), Advice> {
    let (mode, fps) = (recipe.encode.mode, recipe.encode.fps);
    let why = match mode {
        FrameMode::TimeFps if fps == 0.0 => "takes frames at the rate encode.fps, which is 0",
        FrameMode::Linspace if fps > 0.0 => "spreads the frames over the whole clip and ignores encode.fps",
        FrameMode::Stride if fps > 0.0 => "takes every n-th frame and ignores encode.fps",
        _ => return Ok(()),
    };
    Err(Advice {
        why: format!("encode.mode \"{}\" {why}", mode.name()),
        fix: match mode {
            FrameMode::TimeFps => "set encode.fps = 8 for CogVideoX, 16 for 1.5".into(),
            _ => "remove encode.fps, or set encode.mode = \"time@fps\"".into(),
        },
    })
}

fn stride_fits_mode(recipe: &Recipe) -> Result<(), Advice> {
    let (mode, stride) = (recipe.encode.mode, recipe.encode.stride);
    if stride == 1 || mode == FrameMode::Stride {
        return Ok(());
    }
    Err(Advice {
        why: format!("encode.stride {stride} has no effect with encode.mode \"{}\"", mode.name()),
        fix: "set encode.mode = \"stride\", or remove encode.stride".into(),
    })
}

fn samples_have_prompts(recipe: &Recipe) -> Result<(), Advice> {
    let sample = &recipe.sample;
    let has_some = !sample.prompts.is_empty() || (recipe.task == Task::Train && sample.validation_index().is_some());
    if has_some || (recipe.task == Task::Train && sample.every == 0) {
        return Ok(());
    }
    Err(Advice {
        why: match recipe.task {
            Task::Train => {
                format!("sample.every is {}, but sample.prompts and sample.validation_index are empty", sample.every)
            }
            _ => "there are no prompts to sample".into(),
        },
        fix: "set sample.prompts = [\"a rabbit on a meadow\"]".into(),
    })
}

fn samples_have_encoders(recipe: &Recipe) -> Result<(), Advice> {
    if recipe.sample.prompts.is_empty() || !recipe.encoders.folder.as_str().is_empty() {
        return Ok(());
    }
    Err(Advice {
        why: "sample.prompts needs a VAE, a text encoder and a tokenizer, and encoders.folder is not set".into(),
        fix: "set encoders.folder to a diffusers folder, such as one that `vidtui fetch zai-org/CogVideoX-5b` makes"
            .into(),
    })
}

fn prompts_can_be_sampled(recipe: &Recipe) -> Result<(), Advice> {
    let Err(bad) = recipe.samples() else { return Ok(()) };
    let flag = bad.flag.map(|flag| format!(", {flag}")).unwrap_or_default();
    Err(Advice { why: format!("prompt {} of sample.prompts{flag}: {}", bad.index + 1, bad.why), fix: bad.fix })
}

fn has_program(recipe: &Recipe) -> Result<(), Advice> {
    if recipe.command.run.first().is_some_and(|program| !program.is_empty()) {
        return Ok(());
    }
    Err(Advice {
        why: "command.run names no program".into(),
        fix: "write the program and its arguments: run = [\"torchrun\", \"--nnodes={nnodes}\", \"train.py\"]".into(),
    })
}

fn known_placeholders(key: &str, words: &[String], recipe: &Recipe) -> Result<(), Advice> {
    let known = Placeholders::of(key, recipe.command.per);
    let mut names = words.iter().flat_map(|word| crate::command::names(word));
    let Some(name) = names.find(|name| !known.contains(name)) else { return Ok(()) };
    let why = format!("{{{name}}} is not a placeholder of command.{key}");
    let fix = match (name, nearest(name, known.iter().copied())) {
        ("rank" | "local_rank", _) if key != "output" => {
            "a command that is started once per node has no rank; set command.per = \"rank\"".into()
        }
        ("weights" | "previous", _) => "move the arguments that pass weights to command.start".into(),
        ("checkpoint" | "checkpoint_step", _) => "move the arguments of a resume to command.resume".into(),
        (_, Some(meant)) => format!("did you mean {{{meant}}}? For the literal text {{{name}}}, write {{{{{name}}}}}"),
        (_, None) => {
            format!(
                "the placeholders are {{{}}}; for the literal text {{{name}}}, write {{{{{name}}}}}",
                known.join("}, {")
            )
        }
    };
    Err(Advice { why, fix })
}

fn resume_finds_checkpoints(recipe: &Recipe) -> Result<(), Advice> {
    if recipe.command.resume.is_empty() || recipe.command.trainer != OtherTrainer::None {
        return Ok(());
    }
    Err(Advice {
        why: "command.resume needs a checkpoint, and vidtui cannot find checkpoints with command.adapter \"none\""
            .into(),
        fix: "set command.adapter to the trainer that the command starts".into(),
    })
}

fn start_passes_weights(recipe: &Recipe) -> Result<(), Advice> {
    let command = &recipe.command;
    let mut names = command.start.iter().chain(&command.run).flat_map(|word| crate::command::names(word));
    if command.start.is_empty() || names.any(|name| OF_WEIGHTS.contains(&name)) {
        return Ok(());
    }
    Err(Advice {
        why: "command.start is added when a run starts from weights, and it does not contain {weights} or {previous}"
            .into(),
        fix: "pass their path: start = [\"--ckpt-path\", \"{weights}\"]".into(),
    })
}

fn fresh_data_follows_a_resume(recipe: &Recipe) -> Result<(), Advice> {
    if recipe.command.fresh_data.is_empty() || !recipe.command.resume.is_empty() {
        return Ok(());
    }
    Err(Advice {
        why: "command.fresh_data is added to the arguments of a resume, and command.resume is empty".into(),
        fix: "set command.resume, such as resume = [\"--load\", \"{checkpoint}\"]".into(),
    })
}

/// Formats a division with its remainder: `7 / 2 leaves 1`.
fn division(number: usize, by: usize) -> String {
    format!("{number} / {by} leaves {}", number % by)
}

/// Formats the multiples on both sides of a number: `6 or 8`.
fn around(number: usize, of: usize) -> String {
    let below = number / of * of;
    match below {
        0 => format!("{of}"),
        _ => format!("{below} or {}", below + of),
    }
}
