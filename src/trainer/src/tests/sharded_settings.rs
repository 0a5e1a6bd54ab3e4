//! Trains with settings that need several shards, and compares with training without these settings.

use crate::families::cogvideox;
use crate::parallelize::unit_tables;
use crate::step::Step;
use crate::tests::support::{Rank, assert_same_losses, on_ranks, random_batch, recipe};
use dit::objective::VPrediction;

const SIZES: [&str; 12] = [
    "model.num_layers=4",
    "model.latent_height=4",
    "model.latent_width=4",
    "model.head_dim=16",
    "model.time_embed_dim=16",
    "model.text_dim=8",
    "train.threads=1",
    "train.global_batch=8",
    "train.grad_accum=2",
    "optimizer.lr=0.01",
    "optimizer.warmup_steps=0",
    // The files must be on a disk, and /tmp may be a tmpfs.
    concat!("memory.folder=", env!("CARGO_MANIFEST_DIR")),
];

/// Returns the losses of a few steps on each rank of a mesh.
fn losses(mesh: [usize; 3], sets: &[&str]) -> Vec<Vec<f64>> {
    let recipe = recipe(mesh, &[&SIZES[..], sets].concat());
    on_ranks(recipe.mesh, |groups| {
        let (network, objective) = (cogvideox(&recipe), VPrediction::new(&recipe.model, &recipe.loss));
        let mut rank = Rank::new(&recipe, unit_tables(&recipe), network.family(), groups);
        let step = Step { recipe: &recipe, network: &network, objective: &objective, seed: 3 };
        rank.train(&step, 0..4, |_, samples| random_batch(samples, &[3, 16, 4, 4], &[16, 8]))
    })
}

#[test]
fn gradients_accumulate_in_shards_to_the_same_losses_as_unsharded_ones() {
    let float: &[&str] = &["train.dtype=float32"];
    let swapped: &[&str] = &["train.dtype=float32", "memory.block_swap=2"];
    for (mesh, sets) in [([1, 2, 1], float), ([2, 2, 1], float), ([1, 2, 2], float), ([1, 2, 1], swapped)] {
        let [whole, sharded] = ["whole", "sharded"]
            .map(|accumulate| losses(mesh, &[sets, &[&format!("train.accumulate={accumulate}")]].concat()));
        assert!(whole[0].windows(2).all(|pair| pair[0] != pair[1]), "{whole:?}");
        whole.iter().zip(&sharded).for_each(|(whole, sharded)| assert_same_losses(whole, sharded));
    }
}

/// Parts of 14 and 7 tokens, which are no multiples of the pieces.
#[test]
fn tokens_that_are_exchanged_in_pieces_train_to_the_same_losses() {
    let ttt: &[&str] = &["model.layer=ttt_mlp", "model.ttt_mini_batch=4", "remat.keep_scan=true"];
    let lora: &[&str] = &["train.trainable=lora", "lora.rank=4"];
    let dropout: &[&str] = &["train.trainable=lora", "lora.rank=4", "lora.dropout=0.1"];
    let runs = [
        ([1, 1, 2], ttt),
        ([1, 2, 2], ttt),
        ([1, 1, 4], ttt),
        ([1, 1, 2], lora),
        ([1, 1, 2], dropout),
        ([1, 1, 2], &["remat.mode=none"]),
    ];
    for (mesh, sets) in runs {
        let small = ["model.num_layers=2", "model.num_heads=4", "train.global_batch=2", "train.grad_accum=1"];
        let sets = [&["train.dtype=float32"], &small[..], sets].concat();
        let [whole, pieces] = [1, 3].map(|n| losses(mesh, &[&sets[..], &[&format!("train.tp_pieces={n}")]].concat()));
        assert!(whole[0].windows(2).all(|pair| pair[0] != pair[1]), "{whole:?}");
        whole.iter().zip(&pieces).for_each(|(whole, pieces)| assert_same_losses(whole, pieces));
    }
}

#[test]
fn frozen_blocks_that_stay_gathered_change_no_bit() {
    for (mesh, dtype) in [([1, 2, 1], "bfloat16"), ([2, 2, 1], "float32"), ([1, 2, 2], "bfloat16")] {
        let dtype = format!("train.dtype={dtype}");
        let lora = ["train.trainable=lora", "lora.rank=4", &dtype];
        let without = losses(mesh, &lora);
        assert!(without[0].windows(2).all(|pair| pair[0] != pair[1]), "{without:?}");
        for more in [&["memory.keep_gathered=4"][..], &["memory.keep_gathered=2", "memory.block_swap=2"]] {
            assert_eq!(losses(mesh, &[&lora[..], more].concat()), without, "{mesh:?} {more:?}");
        }
    }
}
