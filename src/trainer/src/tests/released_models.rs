//! Trains each recipe in `configs/cogvideox` and `configs/fun` at toy width, on a data set with every tensor and shape that it needs.

use crate::batches::Batches;
use crate::data::Data;
use crate::families::cogvideox;
use crate::init;
use crate::optim::OptimizerState;
use crate::parallelize::{layouts, unit_tables};
use crate::requests::SaveStopRequests;
use crate::step::{Step, compute_kind};
use c10d::Group;
use camino::{Utf8Path, Utf8PathBuf};
use dataset::{IMAGE, KNOWN, MASKED, MOMENTS, TEXT};
use dit::objective::VPrediction;
use recipe::{ConditionKind, Recipe};
use safetensors::tensor::TensorView;
use sharding::fsdp::Fsdp;
use sharding::mesh::MeshGroups;
use std::collections::BTreeSet;

/// Overrides of sizes; everything else is the recipe's own.
const SIZES: [&str; 17] = [
    "model.num_layers=2",
    "model.num_heads=2",
    "model.head_dim=16",
    "model.time_embed_dim=32",
    "model.text_dim=8",
    "model.text_len=4",
    "model.out_channels=4",
    "model.latent_frames=3",
    "model.latent_height=4",
    "model.latent_width=6",
    "model.base_frames=3",
    "model.base_height=4",
    "model.base_width=6",
    "train.global_batch=2",
    "train.grad_accum=2",
    "optimizer.warmup_steps=1",
    "mesh.dp_shard=1",
];

/// Writes tensors of small numbers that differ from each other.
fn write(path: &Utf8Path, tensors: &[(String, Vec<usize>)]) {
    let bytes: Vec<Vec<u8>> = tensors
        .iter()
        .map(|(_, shape)| {
            let count = shape.iter().product::<usize>();
            (0..count).flat_map(|i| (((i * 7919) % 97) as f32 / 97.0 - 0.5).to_le_bytes()).collect()
        })
        .collect();
    let views = tensors.iter().zip(&bytes).map(|((name, shape), bytes)| {
        (name.as_str(), TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes).unwrap())
    });
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

/// A token budget for small clips, which replaces the budget of a recipe.
const SMALL_BUDGET: &str = "data.buckets=[{ frames = 9, side = 64, min_side = 32, max_side = 96 }]";

/// Returns the recipe `name` at toy width for `steps` steps, with a data set of two clips of each of its [`shapes`].
fn toy(name: &str, steps: u64, folder: &Utf8Path) -> Recipe {
    let path = Utf8PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs/cogvideox")).join(name);
    let index = folder.join("index.jsonl");
    let full = recipe::load(&path, &[]).unwrap_or_else(|e| panic!("{e}")).recipe;
    let (kind, rank) = (full.condition.kind, full.lora.rank.min(4));
    let sets = SIZES.iter().map(|set| (*set).to_owned()).chain([
        format!("lora.rank={rank}"),
        format!("model.in_channels={}", kind.in_channels(4)),
        format!("data.index={index}"),
        format!("train.steps={steps}"),
        "train.device=cpu".into(),
    ]);
    let sets = sets.chain(full.buckets().map(|_| SMALL_BUDGET.to_owned()));
    let recipe = recipe::load(&path, &sets.collect::<Vec<_>>()).unwrap_or_else(|e| panic!("{e}")).recipe;
    let mut lines = String::new();
    for (clip, [frames, height, width]) in shapes(&recipe).into_iter().flat_map(|shape| [shape; 2]).enumerate() {
        let latent = |frames, channels| vec![frames, channels, height, width];
        let mut tensors = vec![(MOMENTS, latent(frames, 8))];
        match kind {
            ConditionKind::None => {}
            ConditionKind::Image => tensors.push((IMAGE, latent(1, 8))),
            ConditionKind::Inpaint => tensors.extend([(KNOWN, latent(frames, 1)), (MASKED, latent(frames, 8))]),
            other => unreachable!("CogVideoX has no condition {other:?}"),
        }
        let mut drawn = vec![];
        for draw in 0..recipe.condition.draws().max(1) {
            let names = tensors.iter().filter(|(name, _)| draw == 0 || *name != MOMENTS);
            drawn.extend(names.map(|(name, shape)| (dataset::drawn_role(name, draw), shape.clone())));
        }
        write(&folder.join(format!("{clip}")), &drawn);
        write(&folder.join(format!("{clip}.text")), &[(TEXT.to_owned(), vec![4, 8])]);
        lines += &format!("{{\"vid_emb\": \"{clip}\", \"text_chunk_emb\": [\"{clip}.text\"]}}\n");
    }
    std::fs::write(&index, lines).unwrap();
    recipe
}

/// Returns the frames, rows and columns of the latents that a recipe trains on: at most three shapes.
fn shapes(recipe: &Recipe) -> Vec<[usize; 3]> {
    let Some(buckets) = recipe.buckets() else { return vec![[3, 4, 6]] };
    let latents: BTreeSet<_> = buckets.all().into_iter().map(|bucket| recipe.latent_of(bucket)).collect();
    let every = latents.len().div_ceil(3);
    latents.into_iter().step_by(every).map(|shape| [shape.frames, shape.height, shape.width]).collect()
}

/// Trains all steps of a recipe on one rank; returns the losses and the gradient norms.
fn train(recipe: &Recipe) -> Vec<[f64; 2]> {
    let mut data = Data::open(recipe, &Group::alone()).unwrap_or_else(|failure| panic!("{failure}"));
    let tables = unit_tables(recipe);
    let mut fsdp = Fsdp::new(layouts(recipe, &tables), MeshGroups::alone(), compute_kind(recipe.train.dtype));
    let (network, objective) = (cogvideox(recipe), VPrediction::new(&recipe.model, &recipe.loss));
    init::randomize(&fsdp, &tables, network.family(), 1).unwrap();
    if recipe.saves_adapters_only() {
        // New gates are zero, so that no gradient reaches the layers behind them. The gates of a released model are not zero.
        for owned in fsdp.owned() {
            let added = tch::Tensor::arange(owned.range.len, (tch::Kind::Float, tch::Device::Cpu)).sin() * 0.05;
            tch::no_grad(|| drop(owned.values.shallow_clone().g_add_(&added.to_kind(owned.values.kind()))));
        }
    }
    let mut moments = OptimizerState::new(&fsdp, &tables, &recipe.optimizer).unwrap();
    let step = Step { recipe, network: &network, objective: &objective, seed: 1 };
    let (mut samples, mut batches) = (0, Batches::default());
    let steps = (0..recipe.train.steps()).map(|number| {
        let plan = data.step(samples);
        samples += plan.samples();
        let requests = SaveStopRequests::default();
        let outcome = step.run(&mut fsdp, &mut moments, (&mut data, &mut batches), number, &plan, requests).unwrap();
        assert!(outcome.applied);
        [outcome.loss, outcome.grad_norm]
    });
    steps.collect()
}

const LORA_RECIPES: [&str; 5] =
    ["2b-lora.toml", "5b-lora.toml", "5b-i2v-lora.toml", "1.5-5b-lora.toml", "../fun/5b-inp-lora.toml"];

const RECIPES: [&str; 6] = ["2b.toml", "5b.toml", "5b-i2v.toml", "1.5-5b.toml", "1.5-5b-i2v.toml", "fun-5b-inp.toml"];

const BUCKET_RECIPES: [&str; 3] = ["../fun/13k.toml", "../fun/30k.toml", "../fun/53k.toml"];

/// Trains a recipe at toy width and returns it.
fn train_toy(name: &str, steps: u64) -> Recipe {
    let keep = tempfile::tempdir().unwrap();
    let recipe = toy(name, steps, Utf8Path::from_path(keep.path()).unwrap());
    let numbers = train(&recipe);
    assert_eq!(numbers.len() as u64, steps, "{name}");
    assert!(numbers.iter().flatten().all(|number| number.is_finite() && *number > 0.0), "{name}: {numbers:?}");
    println!("{name}: {numbers:?}");
    recipe
}

#[test]
fn each_recipe_of_a_released_model_trains_at_toy_width() {
    for name in RECIPES {
        train_toy(name, 2);
    }
}

#[test]
fn each_lora_recipe_trains_its_adapters_alone_at_toy_width() {
    for name in LORA_RECIPES {
        assert!(train_toy(name, 20).saves_adapters_only(), "{name}");
    }
}

#[test]
fn each_recipe_with_a_token_budget_trains_clips_of_several_shapes_at_toy_width() {
    for name in BUCKET_RECIPES {
        let recipe = train_toy(name, 20);
        assert_eq!((recipe.shapes(), shapes(&recipe).len()), (recipe::Shapes::Grouped, 3), "{name}");
    }
}

#[test]
fn a_clip_norm_of_zero_does_not_clip() {
    let keep = tempfile::tempdir().unwrap();
    let mut recipe = toy("5b.toml", 2, Utf8Path::from_path(keep.path()).unwrap());
    let mut with = |clip_norm| {
        recipe.optimizer.clip_norm = clip_norm;
        train(&recipe)
    };
    let (off, never) = (with(0.0), with(1e9));
    assert_eq!(off, never);
    assert_ne!(off[1], off[0]);
}

#[test]
fn a_data_set_without_the_image_that_a_recipe_needs_is_refused() {
    let keep = tempfile::tempdir().unwrap();
    let folder = Utf8Path::from_path(keep.path()).unwrap();
    let recipe = toy("5b-i2v.toml", 2, folder);
    write(&folder.join("1"), &[(MOMENTS.to_owned(), vec![3, 8, 4, 6])]);
    let failure = Data::open(&recipe, &Group::alone()).unwrap_err();
    assert_eq!(failure.code, rundir::ErrorCode::InvalidDataset);
    assert!(failure.what.contains("line 2"), "{failure}");
    write(&folder.join("1"), &[(MOMENTS.to_owned(), vec![3, 8, 4, 6]), (IMAGE.to_owned(), vec![2, 8, 4, 6])]);
    assert_eq!(Data::open(&recipe, &Group::alone()).unwrap_err().code, rundir::ErrorCode::InvalidDataset);
}
