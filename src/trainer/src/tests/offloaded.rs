//! Trains with blocks, optimizer state and saved inputs in a backing store, and compares with training without a store.

use crate::ema::EmaWeights;
use crate::families::cogvideox;
use crate::parallelize::unit_tables;
use crate::step::Step;
use crate::tests::support::{Rank, on_ranks, random_batch, recipe};
use dit::objective::VPrediction;
use recipe::Recipe;
use sharding::fsdp::Access;
use sharding::mesh::MeshGroups;
use tch::Kind;

const SIZES: [&str; 10] = [
    "model.num_layers=5",
    "model.head_dim=16",
    "model.time_embed_dim=16",
    "model.text_dim=8",
    "train.dtype=float32",
    "train.threads=1",
    "train.global_batch=4",
    "optimizer.lr=0.01",
    "optimizer.warmup_steps=0",
    // The files must be on a disk, and /tmp may be a tmpfs.
    concat!("memory.folder=", env!("CARGO_MANIFEST_DIR")),
];

const ALL: [&str; 3] = ["memory.block_swap=5", "memory.optimizer_offload=true", "memory.activation_offload=true"];

/// The losses of a few steps, and the sums of the weights and of their average after the last step.
#[derive(Debug, PartialEq)]
struct Trained {
    losses: Vec<f64>,
    sums: Vec<f64>,
}

fn trained(recipe: &Recipe, groups: MeshGroups) -> Trained {
    let (network, objective) = (cogvideox(recipe), VPrediction::new(&recipe.model, &recipe.loss));
    let mut rank = Rank::new(recipe, unit_tables(recipe), network.family(), groups);
    let step = Step { recipe, network: &network, objective: &objective, seed: 3 };
    let mut ema = EmaWeights::new(&rank.fsdp, &recipe::Ema { decay: 0.9, ..recipe::Ema::default() }).unwrap().unwrap();
    let mut losses = Vec::new();
    for number in 0..3 {
        losses.extend(
            rank.train(&step, number..number + 1, |_, samples| random_batch(samples, &[3, 16, 8, 8], &[16, 8])),
        );
        ema.update(&rank.fsdp).unwrap();
    }
    let mut sums = Vec::new();
    let mut sum = |access| {
        rank.fsdp
            .visit(access, |shard| {
                sums.push(shard.master.sum(Kind::Double).double_value(&[]));
                Ok(())
            })
            .unwrap();
    };
    sum(Access::Read);
    ema.swap(&rank.fsdp).unwrap();
    sum(Access::Read);
    Trained { losses, sums }
}

/// Asserts that settings change no bit of the losses and weights on a mesh.
fn assert_same(mesh: [usize; 3], sets: &[&str], memory: &[&str]) {
    let run = |more: &[&str]| {
        let recipe = recipe(mesh, &[&SIZES[..], sets, more].concat());
        match recipe.mesh.world() {
            1 => vec![trained(&recipe, MeshGroups::alone())],
            _ => on_ranks(recipe.mesh, |groups| trained(&recipe, groups)),
        }
    };
    let (with, without) = (run(memory), run(&[]));
    assert!(without[0].losses.windows(2).all(|pair| pair[0] != pair[1]), "{without:?}");
    assert_eq!(with, without, "{mesh:?} {sets:?} {memory:?}");
}

#[test]
fn swap_and_offload_change_no_bit_of_losses_and_weights_on_any_mesh() {
    for mesh in [[1, 1, 1], [1, 2, 1], [2, 1, 1], [1, 1, 2]] {
        assert_same(mesh, &[], &ALL);
    }
}

#[test]
fn each_setting_alone_changes_no_bit() {
    for memory in [&["memory.block_swap=2"][..], &ALL[1..2], &ALL[2..]] {
        assert_same([1, 1, 1], &[], memory);
    }
}

#[test]
fn groups_accumulation_bfloat16_and_adapters_swap_without_a_change() {
    let lora = ["lora.rank=4", "train.trainable=lora"];
    for sets in [
        &["remat.group=2"][..],
        &["remat.keep_attention=false", "train.grad_accum=2"],
        &["train.dtype=bfloat16"],
        &lora,
        &[&lora[..], &["train.dtype=bfloat16", "train.grad_accum=4"]].concat(),
    ] {
        assert_same([1, 1, 1], sets, &ALL);
    }
    assert_same([1, 2, 1], &[&lora[..], &["train.grad_accum=2"]].concat(), &ALL);
    assert_same([1, 1, 2], &[], &ALL);
}

#[test]
fn every_optimizer_updates_swapped_blocks_without_a_change() {
    for kind in ["adamw8bit", "prodigy"] {
        assert_same([1, 1, 1], &[&format!("optimizer.kind={kind}"), "model.layer=none"], &ALL);
    }
    assert_same([1, 2, 1], &["optimizer.kind=adafactor"], &["memory.block_swap=3"]);
}
