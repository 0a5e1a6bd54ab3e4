//! The rules that compare several keys of a recipe. The ranges of single keys are in [`SCHEMA`](crate::SCHEMA).

mod data;
mod memory;
mod model;
mod optimizer;
mod parameters;
mod tasks;

use crate::{JobKind, Key, Recipe};
use data::{
    buckets_are_sound, buckets_fit_the_model, collectives_have_time, equal_shares, images_have_their_own_shape,
    one_share_of_images, one_size_or_buckets, one_way_to_name_data, sets_agree, whole_heads,
};
use memory::{
    blocks_can_be_swapped, blocks_can_stay_gathered, gradients_are_sharded, inputs_are_saved, state_can_be_offloaded,
    store_fits_the_device,
};
use model::{
    channels_fit_the_condition, fused_kernels_have_a_gpu, masks_have_probabilities, whole_base_patches, whole_patches,
};
use optimizer::{
    average_decays, cooldown_fits, cycles_rise, falls, momentum_cycles, only_adamw_cycles_momentum,
    prodigy_has_one_rate, samples_have_an_average, warmup_ends, warmup_rises,
};
use parameters::{
    adapters_are_trained_alone, adapters_have_layers, frozen_patterns_match, groups_match,
    merged_adapters_have_absolute_paths, patterns_match, rank_fits, something_is_kept, something_is_trained,
};
use tasks::{
    checkpoints_have_names, complete_has_checkpoints, fresh_data_follows_a_resume, has_program, known_placeholders,
    patterns_are_read, prompts_can_be_sampled, rate_fits_mode, resume_finds_checkpoints, sampler_is_of_the_family,
    samples_have_encoders, samples_have_prompts, start_passes_weights, stride_has_effect, whole_latent_frames,
    whole_latent_pixels,
};

/// A rule that a recipe breaks.
#[derive(Debug)]
pub(crate) struct Broken {
    /// The keys that the rule compares.
    pub keys: &'static [&'static str],
    pub why: String,
    pub fix: String,
}

/// Rules, each with the keys that it compares.
pub(crate) type Rules = &'static [(&'static [&'static str], Rule)];

/// The rules about sizes, which the rules of a family build on.
const SIZE_RULES: Rules = &[
    (&["model.latent_height", "model.patch_size"], |r| whole_patches("latent_height", r.model.latent_height, r)),
    (&["model.latent_width", "model.patch_size"], |r| whole_patches("latent_width", r.model.latent_width, r)),
    (&["model.base_height", "model.base_width", "model.patch_size"], whole_base_patches),
];

/// The rules of the embedded trainer besides those of the model's family.
const RULES: Rules = &[
    (&["condition.kind", "model.in_channels", "model.out_channels"], channels_fit_the_condition),
    (&["condition.masks"], masks_have_probabilities),
    (&["data.bucket_rule", "data.buckets"], buckets_are_sound),
    (&["data.buckets", "model.patch_size"], buckets_fit_the_model),
    (&["train.global_batch", "train.grad_accum", "mesh.dp_replicate", "mesh.dp_shard"], equal_shares),
    (&["train.accumulate", "train.grad_accum", "mesh.dp_shard"], gradients_are_sharded),
    (&["model.num_heads", "mesh.tp"], whole_heads),
    (&["data.index", "data.sets"], one_way_to_name_data),
    (&["data.sets"], sets_agree),
    (&["data.image_share", "data.sets"], one_share_of_images),
    (&["data.image_share", "data.shapes", "data.buckets"], images_have_their_own_shape),
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
    (&["train.fused", "train.device"], fused_kernels_have_a_gpu),
    (&["train.trainable"], patterns_match),
    (&["train.frozen"], frozen_patterns_match),
    (&["train.trainable", "train.frozen"], something_is_trained),
    (&["optimizer.groups"], groups_match),
    (&["lora.rank", "lora.targets"], adapters_have_layers),
    (&["lora.rank", "lora.targets"], rank_fits),
    (&["lora.rank", "train.trainable"], adapters_are_trained_alone),
    (&["lora.dropout"], something_is_kept),
    (&["memory.block_swap", "model.num_layers"], blocks_can_be_swapped),
    (&["memory.keep_gathered", "memory.block_swap", "mesh.dp_shard", "train.trainable"], blocks_can_stay_gathered),
    (&["memory.optimizer_offload", "optimizer.kind"], state_can_be_offloaded),
    (&["memory.activation_offload", "remat.mode", "remat.group", "model.num_layers"], inputs_are_saved),
    (&["memory.store", "train.device"], store_fits_the_device),
    (&["sample.lora"], merged_adapters_have_absolute_paths),
    (&["sample.every", "sample.prompts", "sample.validation_index"], samples_have_prompts),
    (&["sample.prompts", "encoders.folder"], samples_have_encoders),
    (&["sample.scheduler", "model.family"], sampler_is_of_the_family),
    (&["sample.prompts"], prompts_can_be_sampled),
];

/// The rules of a recipe that encodes.
const ENCODE_RULES: Rules = &[
    (&["data.bucket_rule", "data.buckets"], buckets_are_sound),
    (&["encode.frames", "encode.height", "encode.width", "data.buckets"], one_size_or_buckets),
    (&["encode.frames"], whole_latent_frames),
    (&["encode.height"], |r| whole_latent_pixels("height", r.encode.height, r)),
    (&["encode.width"], |r| whole_latent_pixels("width", r.encode.width, r)),
    (&["encode.mode", "encode.fps"], rate_fits_mode),
    (&["encode.mode", "encode.fps", "encode.stride"], stride_has_effect),
    (&["condition.masks"], masks_have_probabilities),
];

/// The rules of a recipe for a command.
const COMMAND_RULES: Rules = &[
    (&["command.run"], has_program),
    (&["command.run", "command.per"], |r| known_placeholders("run", &r.command.run, r)),
    (&["command.output"], |r| known_placeholders("output", std::slice::from_ref(&r.command.output), r)),
    (&["command.start", "command.per"], |r| known_placeholders("start", &r.command.start, r)),
    (&["command.start", "command.run"], start_passes_weights),
    (&["command.resume", "command.per"], |r| known_placeholders("resume", &r.command.resume, r)),
    (&["command.resume", "command.adapter", "command.checkpoints"], resume_finds_checkpoints),
    (&["command.patterns", "command.adapter"], patterns_are_read),
    (&["command.checkpoints"], checkpoints_have_names),
    (&["command.complete", "command.checkpoints"], complete_has_checkpoints),
    (&["command.fresh_data", "command.per"], |r| known_placeholders("fresh_data", &r.command.fresh_data, r)),
    (&["command.fresh_data", "command.resume"], fresh_data_follows_a_resume),
];

/// The rules of every recipe.
const COMMON_RULES: Rules =
    &[(&["env.variables"], |r| r.env.bad_name().map_or(Ok(()), |(why, fix)| Err(Advice { why, fix })))];

pub(crate) type Rule = fn(&Recipe) -> Result<(), Advice>;

/// The reason why a rule does not hold, and the change that makes it hold.
pub(crate) struct Advice {
    pub why: String,
    pub fix: String,
}

/// Returns the rule that a recipe with both lengths of a run breaks. [`Length`](crate::Length) has one of them.
pub(crate) fn two_lengths(steps: i64, epochs: i64) -> Broken {
    Broken {
        keys: &["train.steps", "train.epochs"],
        why: format!("train.steps {steps} and train.epochs {epochs} both set the length of the run"),
        fix: "remove one of them".into(),
    }
}

/// Returns the first rule that does not hold.
pub(crate) fn first_broken(recipe: &Recipe) -> Option<Broken> {
    match recipe.job() {
        JobKind::Command => first_of(COMMAND_RULES.iter().chain(COMMON_RULES), recipe),
        JobKind::Encode => first_of(ENCODE_RULES.iter().chain(COMMON_RULES), recipe),
        JobKind::Train | JobKind::Sample => first_of(of_a_model(recipe).chain(COMMON_RULES), recipe),
    }
}

/// Returns the first rule about the model alone that does not hold.
pub(crate) fn broken_model(recipe: &Recipe) -> Option<Broken> {
    let of_the_model = |keys: &[&str]| keys.iter().all(|key| key.starts_with("model."));
    first_of(of_a_model(recipe).filter(|(keys, _)| of_the_model(keys)), recipe)
}

/// Returns the rules of a recipe with a model.
fn of_a_model(recipe: &Recipe) -> impl Iterator<Item = &'static (&'static [&'static str], Rule)> {
    SIZE_RULES.iter().chain(recipe.model.family().rules()).chain(RULES)
}

/// Returns the first of these rules that does not hold. Skips rules about keys of another job.
fn first_of<'a>(rules: impl Iterator<Item = &'a (&'static [&'static str], Rule)>, recipe: &Recipe) -> Option<Broken> {
    let applies = |key: &&str| Key::find(key).is_some_and(|key| key.is_for(recipe.reader()));
    rules.filter(|(keys, _)| keys.iter().all(applies)).find_map(|(keys, rule)| {
        let Advice { why, fix } = rule(recipe).err()?;
        Some(Broken { keys, why, fix })
    })
}

/// Formats a division with its remainder: `7 / 2 leaves 1`.
pub(crate) fn division(number: usize, by: usize) -> String {
    format!("{number} / {by} leaves {}", number % by)
}

/// Formats the multiples on both sides of a number: `6 or 8`.
pub(crate) fn around(number: usize, of: usize) -> String {
    let below = number / of * of;
    match below {
        0 => format!("{of}"),
        _ => format!("{below} or {}", below + of),
    }
}
