//! Measures training with all blocks in a backing store on disk, compared with all blocks in memory.

use super::table::Row;
use super::train::{Figures, Scratch, launch};
use crate::failure::Result;

const ROUNDS: usize = 3;

/// A frozen model of 700 MB with adapters: 24 blocks of width 768.
const SETS: [&str; 14] = [
    "model.num_layers=24",
    "model.num_heads=12",
    "model.head_dim=64",
    "model.time_embed_dim=64",
    "model.layer=none",
    "train.dtype=float32",
    "train.trainable=lora",
    "lora.rank=16",
    "mesh.dp_shard=1",
    "train.global_batch=1",
    "train.steps=4",
    "train.threads=2",
    "remat.keep_attention=false",
    "checkpoint.interval=0",
];

/// The limits: half the memory, and at most 1.3 times the time.
const MEMORY_BAR: f64 = 0.5;
const TIME_BAR: f64 = 1.3;

/// Trains adapters of a frozen model alternately with and without swapped blocks.
pub fn rows() -> Result<Vec<Row>> {
    let scratch = Scratch::new(&[13, 16, 16, 24], &[64, 512], 1)?;
    let folder = format!("memory.folder={}", scratch.0);
    let measure = |memory: &[&str]| {
        let sets = SETS.iter().copied().chain([folder.as_str()]).chain(memory.iter().copied());
        launch(&scratch, "cogvideox-52m-lora.toml", "1", sets.map(str::to_owned).collect())
    };
    let mut rounds: Vec<(Figures, Figures)> = Vec::new();
    for round in 1..=ROUNDS {
        println!("swap: round {round} of {ROUNDS}");
        let none = measure(&[])?;
        let swap = measure(&["memory.block_swap=24", "memory.activation_offload=true"])?;
        rounds.push((swap, none));
    }
    let row = |what: &str, at_most: f64, pick: fn(&Figures) -> f64| {
        let last =
            rounds.last().map_or(String::new(), |(swap, none)| format!("{:.2} and {:.2}", pick(swap), pick(none)));
        Row {
            what: format!("24 of 24 blocks swapped to a file: {what}"),
            unit: "×",
            rounds: rounds.iter().map(|(swap, none)| pick(swap) / pick(none)).collect(),
            at_most,
            note: last,
        }
    };
    Ok(vec![row("peak memory, GiB", MEMORY_BAR, |f| f.peak_gib), row("time of a step, s", TIME_BAR, |f| f.step_s)])
}
