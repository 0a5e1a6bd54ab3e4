//! Compares the bytes that a step sends with the forecast of `vidtui check`. The ranks of a mesh are threads, over gloo.

use crate::families::cogvideox;
use crate::init;
use crate::optim::OptimizerState;
use crate::parallelize::{fsdp, unit_tables};
use crate::requests::SaveStopRequests;
use crate::step::{Step, compute_kind};
use crate::tests::support::{on_ranks, plan, recipe};
use c10d::Sent;
use dit::diffusion::Noised;
use dit::family::Inputs;
use dit::objective::VPrediction;
use recipe::{Recipe, Traffic};
use sharding::fsdp::Fsdp;
use sharding::mesh::MeshGroups;
use std::ops::Range;
use tch::{Device, Kind, Tensor};

const MESHES: [[usize; 3]; 4] = [[1, 2, 1], [2, 2, 1], [1, 1, 2], [1, 2, 2]];

/// Two segments of 8 + 13 × 4 tokens that share a frame, in mini-batches of 4.
const SEGMENTS: [&str; 5] =
    ["model.layer=ttt_mlp", "model.ttt_mini_batch=4", "model.segments=2", "model.text_len=8", "model.latent_frames=25"];

// On CPUs without bfloat16 instructions, libtorch multiplies bfloat16 so slowly that a width of 64 per head took 80 s.
const SIZES: [&str; 9] = [
    "model.num_layers=4",
    "model.head_dim=16",
    "model.num_heads=4",
    "model.time_embed_dim=32",
    "model.text_dim=16",
    "model.latent_height=4",
    "model.latent_width=4",
    "train.global_batch=8",
    "train.threads=1",
];

/// Runs a step as a rank of a mesh and returns the bytes that the step sent, and the collectives of its TP group. If blocks stay gathered, an
/// earlier step gathers them.
fn sent(recipe: &Recipe, groups: MeshGroups) -> (Traffic, u64) {
    let (m, tables, compute) = (&recipe.model, unit_tables(recipe), compute_kind(recipe.train.dtype));
    let mut fsdp = fsdp(recipe, &tables, groups, None).unwrap();
    let (network, objective) = (cogvideox(recipe), VPrediction::new(m, &recipe.loss));
    init::randomize(&fsdp, &tables, network.family(), 1).unwrap();
    let mut moments = OptimizerState::new(&fsdp, &tables, &recipe.optimizer).unwrap();
    let step = Step { recipe, network: &network, objective: &objective, seed: 0 };
    let ones = |shape: &[usize]| {
        Tensor::ones(shape.iter().map(|&size| size as i64).collect::<Vec<_>>(), (compute, Device::Cpu))
    };
    let read = |places: Range<u64>| {
        let samples = (places.end - places.start) as usize;
        let latent = ones(&[samples, m.latent_frames, m.in_channels, m.latent_height, m.latent_width]);
        let text = ones(&[samples, m.text_tokens(), m.text_dim]);
        let timestep = Tensor::full([samples as i64], 500, (Kind::Int64, Device::Cpu));
        let target = Noised { latent: latent.shallow_clone(), velocity: latent.shallow_clone() };
        Ok((Inputs { latent, text, timestep, conditions: Vec::new() }, target.into()))
    };
    let sent = |fsdp: &Fsdp| {
        let groups = fsdp.groups();
        [&groups.shard, &groups.replicate, &groups.tp].map(|group| group.sent())
    };
    let mut run = |fsdp: &mut Fsdp, number| {
        let (plan, requests) = (plan(recipe, number), SaveStopRequests::default());
        step.run_on(fsdp, &mut moments, number, &plan, requests, read).unwrap();
    };
    if recipe.memory.keep_gathered > 0 {
        run(&mut fsdp, 0);
    }
    let before = sent(&fsdp);
    run(&mut fsdp, 1);
    let [shard, replicate, tp] = [0, 1, 2].map(|axis| since(sent(&fsdp)[axis], before[axis]));
    assert_eq!((replicate.gathered, replicate.scattered), (0, 0));
    // The forecast omits the norms of gradients and weights, one double each.
    let ranks = recipe.mesh.tp as f64;
    let norms = 2.0 * 2.0 * (ranks - 1.0) / ranks * 8.0;
    let traffic = Traffic {
        all_gather: shard.gathered as f64,
        reduce_scatter: shard.scattered as f64,
        all_reduce: replicate.summed as f64,
        tensor_parallel: (tp.gathered + tp.scattered + tp.summed) as f64 - norms,
    };
    (traffic, tp.launches)
}

/// Returns the difference of two counts.
fn since(now: Sent, before: Sent) -> Sent {
    Sent {
        gathered: now.gathered - before.gathered,
        scattered: now.scattered - before.scattered,
        summed: now.summed - before.summed,
        launches: now.launches - before.launches,
    }
}

/// Runs one step on a mesh; returns the bytes that each rank sent, which must be equal.
fn sent_on(recipe: &Recipe) -> Traffic {
    let sent = on_ranks(recipe.mesh, |groups| sent(recipe, groups).0);
    assert!(sent.iter().all(|of_rank| *of_rank == sent[0]), "ranks differ: {sent:?}");
    sent[0]
}

#[test]
fn a_step_sends_exactly_the_forecast_bytes() {
    let kinds: [&[&str]; 5] = [
        &["train.dtype=float32"],
        &["remat.mode=none", "train.grad_accum=2"],
        &["train.trainable=qkvo", "remat.group=2"],
        &["train.trainable=lora", "lora.rank=4", "lora.targets=[\"attention\", \"blocks.1.mlp.*\"]"],
        &SEGMENTS,
    ];
    // Settings that need several shards.
    let of_shards: [&[&str]; 2] = [
        &["train.grad_accum=2", "train.accumulate=sharded"],
        &["train.trainable=lora", "lora.rank=4", "memory.keep_gathered=3", "train.grad_accum=2"],
    ];
    let everywhere = kinds.into_iter().map(|sets| (&MESHES[..], sets));
    for (meshes, sets) in everywhere.chain(of_shards.into_iter().map(|sets| (&MESHES[..2], sets))) {
        for &mesh in meshes {
            let recipe = recipe(mesh, &[&SIZES, sets].concat());
            let foreseen = recipe.cost().traffic;
            assert!(foreseen.total() > 0.0);
            assert_eq!(sent_on(&recipe), foreseen, "{sets:?} on {mesh:?}");
        }
    }
}

#[test]
fn tokens_in_pieces_are_more_collectives_of_the_same_bytes() {
    // A gather and a reduction of attention and of the MLP, and two of TTT layers, in the forward pass of a block, its recomputation and its
    // backward pass. The last block is not recomputed.
    for (sets, exchanges) in [(&[][..], 4), (&SEGMENTS, 8)] {
        let [(whole, launches), (pieces, more)] = [1, 3].map(|n| {
            let recipe = recipe([1, 1, 2], &[&SIZES, sets, &[&format!("train.tp_pieces={n}")]].concat());
            on_ranks(recipe.mesh, |groups| sent(&recipe, groups))[0]
        });
        assert_eq!(whole, pieces, "{sets:?}");
        assert_eq!(more - launches, 2 * exchanges * (4 + 3 + 4), "{sets:?}");
    }
}
