//! For each key that accepts 0, tests that 0 has the effect that the documentation of the key states.

use camino::Utf8Path;
use recipe::{Bounds, FamilyName, JobKind, Key, Kind, Length, Recipe, SCHEMA, SampleSpec, load};
use std::collections::BTreeSet;

/// Keys for which 0 has no special meaning.
const PLAIN: [&str; 12] = [
    "run.spares",
    "objective.min_level",
    "objective.max_level",
    "encode.seed",
    "train.seed",
    "sample.seed",
    "model.beta_end",
    "ema.min_decay",
    "optimizer.lr_end",
    "optimizer.warmup_lr",
    "optimizer.beta1",
    "optimizer.beta2",
];

/// Returns whether a recipe has the feature that 0 turns off.
type Has = fn(&Recipe) -> bool;

/// Keys whose 0 this crate interprets: the key, another value, and whether a recipe has the feature that 0 turns off.
const HERE: [(&str, &str, Has); 31] = [
    ("train.epochs", "3", |r| r.train.length == Length::Epochs(3)),
    ("train.collective_timeout_s", "60", |r| r.train.collective_timeout(Some(1.0)).as_secs() == 60),
    ("train.tp_pieces", "3", |r| r.train.tp_pieces.of(1 << 30, true) != 4),
    ("train.drift_check", "3", |r| (1..1000).any(|step| r.train.checks_drift_at(step))),
    ("model.base_frames", "5", |r| r.model.base()[0] != r.model.latent_frames),
    ("model.base_height", "16", |r| r.model.base()[1] != r.model.latent_height),
    ("model.base_width", "16", |r| r.model.base()[2] != r.model.latent_width),
    ("encode.fps", "8", |r| r.encode.rate().is_some()),
    ("encode.decoders", "1", |r| [1, 7].map(|threads| r.encode.decoders_of_rank(threads)) != [2, 7]),
    ("optimizer.warmup_steps", "4", |r| lr(r, 0) < 1.0),
    ("optimizer.schedule_steps", "10", |r| lr(r, 12) == 0.0),
    ("optimizer.schedule_start", "4", |r| lr(r, 2) == 1.0),
    ("optimizer.cycles", "3", |r| lr(r, 10) != 0.5),
    ("optimizer.cooldown_steps", "4", |r| lr(r, 18) == 0.5),
    ("optimizer.beta1_low", "0.5", |r| r.optimizer.beta1_at(4, 20) != r.optimizer.beta1),
    ("optimizer.clip_start_steps", "4", |r| r.optimizer.clip_limit(0, 0.0) != r.optimizer.clip_norm),
    ("ema.decay", "0.99", |r| r.ema.is_used()),
    ("ema.after_step", "3", |r| r.ema.decay_at(3) == 0.0),
    ("memory.block_swap", "1", |r| r.memory.is_used()),
    ("memory.keep_gathered", "1", |r| r.memory.kept(2).contains(&true)),
    ("checkpoint.interval", "3", |r| (1..100).any(|step| r.checkpoint.is_due(step))),
    ("checkpoint.max_failures", "3", |r| (1..100).any(|failed| r.checkpoint.gives_up_after(failed))),
    ("log.peak_tflops", "989", |r| r.log.mfu(300.0).is_some()),
    ("lora.rank", "4", |r| r.lora.is_used()),
    ("lora.alpha", "8", |r| r.lora.alpha() != r.lora.rank as f64),
    ("sample.every", "3", |r| (0..100).any(|step| r.sample.is_due(step, 100))),
    ("sample.frames", "49", |r| sample(r).frames != (r.model.latent_frames - 1) * 4 + 1),
    ("sample.height", "128", |r| sample(r).height != r.model.latent_height * 8),
    ("sample.width", "128", |r| sample(r).width != r.model.latent_width * 8),
    ("sample.fps", "24", |r| sample(r).fps != 8.0),
    ("data.fps", "24", |r| sample(r).fps != 8.0),
];

/// Keys whose 0 another test covers: the key, the file and the test.
const ELSEWHERE: [(&str, &str, &str); 21] = [
    ("encode.frames", "recipe/src/encode.rs", "an_encode_has_one_size_or_buckets"),
    ("encode.height", "recipe/src/encode.rs", "an_encode_has_one_size_or_buckets"),
    ("encode.width", "recipe/src/encode.rs", "an_encode_has_one_size_or_buckets"),
    ("data.image_share", "dataset/src/order/tests.rs", "images_get_their_share_by_repeats_of_images_or_of_videos"),
    ("data.max_unused", "dataset/src/order/tests.rs", "a_shape_that_cannot_fill_a_step_is_found_before_the_start"),
    ("train.threads", "supervise/src/job.rs", "with_zero_threads_the_ranks_of_a_node_share_its_cores"),
    ("train.text_dropout", "dataset/src/seeds.rs", "probability_a_quarter_is_true_in_a_quarter_of_draws_and_0_never"),
    ("condition.image_dropout", "trainer/src/conditions.rs", "all_images_of_a_batch_are_dropped_together"),
    ("condition.mask_dropout", "trainer/src/conditions.rs", "a_mask_is_dropped_only_if_it_covers_all"),
    (
        "lora.dropout",
        "../tests/trainer/adapters.rs",
        "dropout_draws_the_same_masks_on_every_mesh_in_recomputed_blocks_and_after_a_resume",
    ),
    ("loss.motion", "dit/src/diffusion.rs", "a_motion_share_of_zero_is_the_plain_loss"),
    ("optimizer.weight_decay", "c10d/tests/numbers.rs", "the_fused_step_equals_the_textbook_step"),
    ("optimizer.clip_norm", "trainer/src/tests/released_models.rs", "a_clip_norm_of_zero_does_not_clip"),
    ("optimizer.prodigy_growth", "trainer/src/optim/tests.rs", "oracle_prodigy"),
    ("optimizer.prodigy_beta3", "trainer/src/optim/tests.rs", "oracle_prodigy"),
    ("checkpoint.keep_last", "rundir/src/listing.rs", "the_newest_few_are_kept"),
    ("checkpoint.keep_every", "rundir/src/listing.rs", "checkpoints_at_multiples_of_keep_every_are_kept"),
    ("log.spike", "health/src/spikes.rs", "the_warm_up_and_a_threshold_of_zero_report_nothing"),
    ("encode.max_dropped", "dataset/src/manifest.rs", "more_dropped_clips_than_accepted_are_refused"),
    ("sample.guidance", "dit/src/sampler.rs", "guidance_of_one_or_less_needs_no_second_text"),
    (
        "model.ttt_mini_batch",
        "recipe/tests/zeros.rs",
        "mini_batches_divide_the_sequence_of_models_with_ttt_layers_only",
    ),
];

/// Returns the share of the peak in the learning rate of a step.
fn lr(recipe: &Recipe, step: u64) -> f64 {
    let o = &recipe.optimizer;
    o.lr_at(o.schedule, 1.0, step, 20)
}

/// The settings without which a key has no effect.
const NEEDS: [(&str, &[&str]); 7] = [
    ("data.fps", &["sample.prompts=[\"a rabbit\"]", "encoders.folder=/model"]),
    ("ema.after_step", &["ema.decay=0.99"]),
    ("optimizer.cycles", &["optimizer.schedule=cosine"]),
    ("optimizer.cooldown_steps", &["optimizer.schedule=wsd", "optimizer.anneal=linear"]),
    ("optimizer.beta1_low", &["optimizer.schedule=one_cycle", "optimizer.warmup_steps=5"]),
    ("optimizer.clip_start_steps", &["optimizer.clip_rule=decaying"]),
    ("memory.keep_gathered", &["mesh.dp_shard=2", "lora.rank=4", "train.trainable=lora"]),
];

/// Returns the only sample of a recipe.
fn sample(recipe: &Recipe) -> SampleSpec {
    recipe.samples().map(|samples| samples[0].clone()).expect("the prompt can be sampled")
}

fn recipe(of: &str, sets: &[String]) -> Result<Recipe, recipe::RecipeError> {
    let path = format!("../../tests/fixtures/configs/valid/{of}.toml");
    load(Utf8Path::new(&path), sets).map(|resolved| resolved.recipe)
}

fn with(key: &Key, value: &str) -> Recipe {
    let of = match key.family {
        Some(FamilyName::Wan) => "wan",
        _ if key.jobs.contains(&JobKind::Train) => "minimal",
        _ => "encode",
    };
    let mut sets = vec![format!("{}={value}", key.path)];
    if key.path.starts_with("sample.") {
        sets.extend(["sample.prompts=[\"a rabbit\"]".into(), "encoders.folder=/model".into()]);
    }
    // A wsd schedule without a cooldown is refused.
    let needs =
        NEEDS.iter().filter(|(path, _)| *path == key.path && !(value == "0" && *path == "optimizer.cooldown_steps"));
    sets.extend(needs.flat_map(|(_, sets)| sets.iter().map(|set| set.to_string())));
    if key.path == "lora.rank" && value != "0" {
        sets.push("train.trainable=lora".into());
    }
    recipe(of, &sets).unwrap_or_else(|error| panic!("{}={value}: {error}", key.path))
}

fn accepts_zero(key: &Key) -> bool {
    matches!(
        key.kind,
        Kind::Int { min: ..=0, .. } | Kind::Float(Bounds::NotNegative | Bounds::Fraction | Bounds::Share)
    )
}

#[test]
fn every_key_that_accepts_zero_documents_it_and_has_a_test() {
    let plain = BTreeSet::from(PLAIN);
    let tested: BTreeSet<&str> =
        HERE.iter().map(|(key, ..)| *key).chain(ELSEWHERE.iter().map(|(key, ..)| *key)).collect();
    for key in SCHEMA {
        let is_plain = plain.contains(key.path);
        assert_eq!(accepts_zero(key), is_plain || tested.contains(key.path), "{}", key.path);
        let documents = ["; 0: ", "1 or less: no guidance", "may be 0"].iter().any(|words| key.doc.contains(words));
        assert_eq!(documents, tested.contains(key.path), "{}: {}", key.path, key.doc);
    }
    for (key, file, test) in ELSEWHERE {
        let code = std::fs::read_to_string(Utf8Path::new("..").join(file)).unwrap();
        assert!(code.contains(&format!("fn {test}")) || code.contains(test), "{key}: {file} has no test {test}");
    }
}

#[test]
fn zero_turns_off_what_the_key_documents() {
    for (path, value, has) in HERE {
        let key = Key::find(path).unwrap();
        assert!(!has(&with(key, "0")), "{path}=0");
        assert!(has(&with(key, value)), "{path}={value}");
    }
}

#[test]
fn mini_batches_divide_the_sequence_of_models_with_ttt_layers_only() {
    // 16 text tokens and 3 frames of 4 x 4 tokens are 64 tokens.
    let with = |layer: &str, size: usize| {
        let sets = [format!("model.layer={layer}"), format!("model.ttt_mini_batch={size}")];
        recipe("minimal", &sets).map(|_| ()).map_err(|error| error.keys.join(" "))
    };
    for layer in ["ttt_mlp", "ttt_linear"] {
        assert_eq!(with(layer, 16), Ok(()));
        assert!(with(layer, 48).unwrap_err().ends_with("model.ttt_mini_batch"));
        assert_eq!(with(layer, 0).unwrap_err(), "model.layer model.ttt_mini_batch");
    }
    for size in [0, 16, 48] {
        assert_eq!(with("none", size), Ok(()));
    }
}
