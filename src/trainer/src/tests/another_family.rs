//! Trains a small family of networks that differs from CogVideoX in everything that a family may choose, with the trainer's code.
//!
//! * Three kinds of blocks: two streams that attend to each other (MMDiT), a block that attends to the text (STDiT3, Wan), and
//!   one joined stream (MMDiT).
//! * Blocks share the time embedding, the text, and a mask of tokens, which has no gradient.
//! * Conditions: a vector that joins the time embedding, and a mask of frames that stay clean.
//! * Flow matching at fractional timesteps, whose distribution depends on the shape.

use crate::checkpoint::{self, Restore, SaveInfo, StagingMemory, TrainingState};
use crate::data::Batch;
use crate::parallelize::{Sharded, by_unit, network_of};
use crate::step::Step;
use crate::tests::support::{Rank, assert_same_losses, on_ranks, random_batch, recipe};
use camino::Utf8Path;
use dit::diffusion::{Noised, Target};
use dit::family::{Conditions, Family, Inputs, Tokens};
use dit::mixers::Mixers;
use dit::network::Units;
use dit::objective::Objective;
use dit::parallel::TensorParallel;
use dit::params::{Slots, UnitParams};
use recipe::{FsdpUnit, ParamGroup, ParamInit, ParamRole, ParamSpec, Recipe, Shape, Split};
use rundir::{RunDir, RunId, TrainState};
use sharding::mesh::MeshGroups;
use std::collections::BTreeMap;
use std::f64::consts::SQRT_2;
use std::ops::Range;
use tch::{Device, Kind, Tensor};
use torch_error::TorchError;

const D: usize = 16;
const HEADS: i64 = 2;
const CHANNELS: usize = 4;
const TEXT_DIM: usize = 6;
const VECTOR_DIM: usize = 5;
const TEXT_LEN: i64 = 3;

/// A kind of block, and the layers of its table: names, rows and columns.
#[derive(Debug, Clone, Copy, PartialEq)]
enum BlockKind {
    TwoStreams,
    Text,
    OneStream,
}

const BLOCKS: [BlockKind; 5] =
    [BlockKind::TwoStreams, BlockKind::TwoStreams, BlockKind::OneStream, BlockKind::Text, BlockKind::OneStream];

const ROOT: &[(&str, usize, usize)] = &[
    ("video_in", D, CHANNELS),
    ("text_in", D, TEXT_DIM),
    ("time_in", D, D),
    ("vector_in", D, VECTOR_DIM),
    ("unused", D, 1),
    ("final", CHANNELS, D),
];

impl BlockKind {
    fn layers(self) -> &'static [(&'static str, usize, usize)] {
        match self {
            BlockKind::TwoStreams => &[
                ("video.modulation", 3 * D, D),
                ("video.qkv", 3 * D, D),
                ("video.proj", D, D),
                ("text.modulation", 3 * D, D),
                ("text.qkv", 3 * D, D),
                ("text.proj", D, D),
            ],
            BlockKind::Text => &[("q", D, D), ("kv", 2 * D, D), ("proj", D, D)],
            BlockKind::OneStream => &[("modulation", 3 * D, D), ("qkv", 3 * D, D), ("proj", D, D)],
        }
    }
}

/// Returns the table of all units.
fn specs() -> Vec<ParamSpec> {
    let mut specs = Vec::new();
    let mut unit = |unit: FsdpUnit, prefix: String, layers: &[(&str, usize, usize)]| {
        for (name, rows, columns) in layers {
            for (part, shape) in [("weight", vec![*rows, *columns]), ("bias", vec![*rows])] {
                specs.push(ParamSpec {
                    name: format!("{prefix}{name}.{part}"),
                    diffusers: None,
                    shape,
                    unit,
                    init: ParamInit::Linear { fan_in: *columns },
                    role: ParamRole::Trained,
                    group: ParamGroup::Rest,
                    decay: part == "weight",
                    split: Split::None,
                });
            }
        }
    };
    unit(FsdpUnit::Root, String::new(), ROOT);
    for (number, kind) in BLOCKS.into_iter().enumerate() {
        unit(FsdpUnit::Block(number), prefix(number), kind.layers());
    }
    specs
}

fn prefix(block: usize) -> String {
    format!("blocks.{block}.")
}

struct Another {
    /// The slots of every unit, the root first.
    slots: Vec<Slots>,
}

impl Another {
    fn new() -> Self {
        let specs = specs();
        let units = std::iter::once(FsdpUnit::Root).chain((0..BLOCKS.len()).map(FsdpUnit::Block));
        Another { slots: units.map(|unit| Slots::of(&specs, unit)).collect() }
    }
}

/// A shape and the positions of its tokens, `[N, D]`.
struct Positions {
    shape: Shape,
    table: Tensor,
}

impl Family for Another {
    type Grid = Positions;

    fn num_blocks(&self) -> usize {
        BLOCKS.len()
    }

    fn grid(&self, shape: Shape, device: Device) -> Positions {
        let [t, h, w] = [shape.frames, shape.height, shape.width].map(|size| size as i64);
        let options = (Kind::Float, device);
        let frame = Tensor::arange(t, options).view([t, 1, 1]);
        let place = frame + Tensor::arange(h * w, options).view([1, h, w]) * 0.1;
        let waves = Tensor::linspace(0.1, 1.0, D as i64, options).view([1, -1]);
        Positions { shape, table: place.view([-1, 1]).matmul(&waves).sin() }
    }

    fn embed(&self, grid: &Positions, root: &UnitParams, inputs: &Inputs) -> Tokens {
        let layer = |name: &str, x: &Tensor| root.affine(self.slots[0].affine(name)).linear(x);
        let video = inputs.latent.permute([0, 1, 3, 4, 2]).flatten(1, 3);
        let frequency = Tensor::linspace(1.0, 10.0, D as i64, (Kind::Float, video.device()));
        let waves = (inputs.timestep.unsqueeze(1) * frequency).cos();
        let vector = inputs.condition("vector").expect("every batch has it");
        let time = layer("time_in", &waves) + layer("vector_in", vector);
        // The mask of frames becomes one of tokens, [B, N, 1].
        let made = inputs.condition("made").expect("every batch has it").ne(0.0);
        let pixels = inputs.latent.size()[3] * inputs.latent.size()[4];
        let made = made.repeat_interleave_self_int(pixels, 1, None::<i64>).unsqueeze(2);
        let text = layer("text_in", &inputs.text);
        Tokens {
            streams: vec![layer("video_in", &video) + &grid.table, text.shallow_clone()],
            shared: vec![time.silu(), text, made],
        }
    }

    fn block(
        &self,
        _: &Positions,
        number: usize,
        params: &UnitParams,
        tokens: &Tokens,
        mixers: &Mixers,
        _: &dyn TensorParallel,
    ) -> Result<Vec<Tensor>, TorchError> {
        let layer = |name: &str, x: &Tensor| params.affine(self.slots[number + 1].affine(name)).linear(x);
        let [time, text, made] = &tokens.shared[..] else { panic!("three shared tensors") };
        let heads = |x: &Tensor| x.unflatten(-1, [HEADS, -1]).transpose(1, 2);
        let attention_of = |q: &Tensor, k: &Tensor, v: &Tensor| {
            mixers.scaled_dot_product(&heads(q), &heads(k), &heads(v)).transpose(1, 2).flatten(2, 3)
        };
        let modulated = |prefix: &str, x: &Tensor| {
            let [shift, scale, gate]: [Tensor; 3] =
                layer(&format!("{prefix}modulation"), time).unsqueeze(1).chunk(3, -1).try_into().unwrap();
            let norm = x.layer_norm([D as i64], None::<Tensor>, None::<Tensor>, 1e-6, true);
            (layer(&format!("{prefix}qkv"), &(norm * (scale + 1.0) + shift)).chunk(3, -1), gate)
        };
        Ok(match BLOCKS[number] {
            BlockKind::TwoStreams => {
                let names = ["video.", "text."];
                let (of_video, gate) = modulated(names[0], &tokens.streams[0]);
                let (of_text, text_gate) = modulated(names[1], &tokens.streams[1]);
                let joint = |part: usize| Tensor::cat(&[&of_video[part], &of_text[part]], 1);
                let mixed = attention_of(&joint(0), &joint(1), &joint(2));
                let video = tokens.streams[0].size()[1];
                let update = |name: &str, start: i64, len: i64, gate: Tensor| {
                    gate * layer(&format!("{name}proj"), &mixed.narrow(1, start, len))
                };
                vec![
                    &tokens.streams[0] + update(names[0], 0, video, gate),
                    &tokens.streams[1] + update(names[1], video, mixed.size()[1] - video, text_gate),
                ]
            }
            BlockKind::Text => {
                let x = &tokens.streams[0];
                let kv = layer("kv", text).chunk(2, -1);
                let update = layer("proj", &attention_of(&layer("q", x), &kv[0], &kv[1]));
                // Update only the tokens of generated frames. The text tokens at the end do not change.
                let text = Tensor::zeros([x.size()[0], TEXT_LEN, 1], (Kind::Bool, x.device()));
                vec![x + update * Tensor::cat(&[made, &text], 1)]
            }
            BlockKind::OneStream => {
                let x = Tensor::cat(&tokens.streams, 1);
                let (qkv, gate) = modulated("", &x);
                vec![&x + gate * layer("proj", &attention_of(&qkv[0], &qkv[1], &qkv[2]))]
            }
        })
    }

    fn head(&self, grid: &Positions, root: &UnitParams, tokens: &Tokens) -> Tensor {
        let video = tokens.streams[0].narrow(1, 0, grid.table.size()[0]);
        let [frames, height, width] = [grid.shape.frames, grid.shape.height, grid.shape.width].map(|size| size as i64);
        let pixels = root.affine(self.slots[0].affine("final")).linear(&video);
        pixels.view([-1, frames, height, width, CHANNELS as i64]).permute([0, 1, 4, 2, 3])
    }

    fn positions(&self, spec: &ParamSpec) -> Tensor {
        panic!("{} is no table of positions", spec.name)
    }
}

/// Flow matching with the timesteps of Open-Sora v2: logit-normal, shifted by the size of the latent.
#[derive(Clone)]
struct FlowMatching;

impl Objective for FlowMatching {
    fn timesteps(&self, quantiles: &[f64], Shape { frames, height, width }: Shape) -> Tensor {
        let shift = (1.0 + (height * width) as f64 / 16.0) * (frames as f64).sqrt();
        let normal = (Tensor::from_slice(quantiles) * 2.0 - 1.0).erfinv() * SQRT_2;
        let plain = normal.sigmoid();
        (&plain * shift / (&plain * (shift - 1.0) + 1.0)).to_kind(Kind::Float)
    }

    fn on(&self, _: Device) -> Self {
        FlowMatching
    }

    fn noised(&self, clean: &Tensor, noise: &Tensor, timestep: &Tensor, conditions: &Conditions) -> (Tensor, Target) {
        let made = conditions.iter().find(|(name, _)| *name == "made").expect("every batch has it").1.ne(0.0);
        let made = made.view([made.size()[0], -1, 1, 1, 1]);
        let t = timestep.view([-1, 1, 1, 1, 1]);
        let mixed: Tensor = clean * (1.0 - &t) + noise * &t;
        let latent = mixed.where_self(&made, clean);
        let target = Noised { latent: latent.shallow_clone(), velocity: noise - clean };
        (latent, target.into())
    }
}

const SHAPES: [[i64; 3]; 2] = [[2, 3, 4], [1, 2, 5]];

/// Returns the samples of a step. The shape alternates from step to step.
fn batch(step: u64, samples: Range<u64>) -> Batch {
    let [frames, height, width] = SHAPES[step as usize % SHAPES.len()];
    let latent = [frames, CHANNELS as i64, height, width];
    let random = random_batch(samples.clone(), &latent, &[TEXT_LEN, TEXT_DIM as i64]);
    let vector = random_batch(samples, &[1], &[VECTOR_DIM as i64]).text;
    let made = Tensor::ones([vector.size()[0], frames], (Kind::Float, Device::Cpu));
    if frames > 1 {
        let _ = made.select(1, 0).zero_();
    }
    Batch { conditions: vec![("vector", vector), ("made", made)], ..random }
}

fn recipe_on(mesh: [usize; 3], sets: &[&str]) -> Recipe {
    let common = ["train.dtype=float32", "train.threads=1", "optimizer.lr=0.01", "optimizer.warmup_steps=0"];
    recipe(mesh, &[&common, sets].concat())
}

/// Trains steps on one rank of a mesh, from the checkpoint in `from` if there is one, and saves a checkpoint. Returns the losses.
fn train(recipe: &Recipe, groups: MeshGroups, steps: Range<u64>, from: Option<&RunDir>, to: &RunDir) -> Vec<f64> {
    let network = network_of(Another::new(), recipe);
    let mut rank = Rank::new(recipe, by_unit(specs()), network.family(), groups);
    if let Some(run) = from {
        let mut state =
            TrainingState { fsdp: &rank.fsdp, moments: &mut rank.moments, ema: None, tables: &rank.tables, base: None };
        let loaded = checkpoint::load(&mut state, &run.step_dir(steps.start), Restore::Everything).unwrap();
        assert!(matches!(loaded, checkpoint::Loaded::Intact(_)), "{loaded:?}");
        rank.moments.steps = steps.start;
    }
    let step = Step { recipe, network: &network, objective: &FlowMatching, seed: 3 };
    let losses = rank.train(&step, steps.clone(), batch);
    let mut spare = StagingMemory::default();
    let mut state =
        TrainingState { fsdp: &rank.fsdp, moments: &mut rank.moments, ema: None, tables: &rank.tables, base: None };
    let at = TrainState {
        step: steps.end,
        samples_seen: steps.end * recipe.train.global_batch as u64,
        epoch: 0,
        position: 0,
        seed: 3,
        adam_step: steps.end,
        global_batch: recipe.train.global_batch,
        data_fingerprint: "none".into(),
        data_order: String::new(),
        bad_steps: 0,
        ..TrainState::default()
    };
    let writing = checkpoint::begin(&mut state, to, at, &mut spare).unwrap();
    let id = RunId::parse("2026-11-20T0340-another-test").unwrap();
    let saved = SaveInfo { id: &id, attempt: 1, mesh: recipe.mesh, saved_s: 0.0 };
    checkpoint::finish(&rank.fsdp, writing, &saved, &mut spare).unwrap();
    losses
}

#[test]
fn another_family_trains_on_two_ranks_as_on_one_and_resumes_on_another_mesh() {
    let keep = tempfile::tempdir().unwrap();
    let folder = Utf8Path::from_path(keep.path()).unwrap();
    let run = |name: &str| RunDir::new(folder.join(name));
    for remat in [&["remat.group=1", "remat.keep_attention=true"], &["remat.group=2", "remat.keep_attention=false"]] {
        let one = recipe_on([1, 1, 1], remat);
        let whole = train(&one, MeshGroups::alone(), 0..6, None, &run("one"));
        assert!(whole.iter().all(|loss| loss.is_finite()) && whole[4] < whole[0], "it learns nothing: {whole:?}");
        let two = recipe_on([1, 2, 1], remat);
        let begun = on_ranks(two.mesh, |groups| train(&two, groups, 0..3, None, &run("two")));
        begun.iter().for_each(|losses| assert_same_losses(&whole[..3], losses));
        let resumed = train(&one, MeshGroups::alone(), 3..6, Some(&run("two")), &run("resumed"));
        assert_same_losses(&whole[3..], &resumed);
        for name in ["one", "two", "resumed"] {
            std::fs::remove_dir_all(run(name).root).unwrap();
        }
    }
}

#[test]
fn gradients_of_every_parameter_are_those_of_one_graph_over_the_whole_network() {
    let remats = [
        ["remat.mode=none", "remat.keep_attention=true"],
        ["remat.group=1", "remat.keep_attention=true"],
        ["remat.group=2", "remat.keep_attention=false"],
    ];
    for remat in remats {
        let recipe = recipe_on([1, 1, 1], &remat);
        let network = network_of(Another::new(), &recipe);
        let mut rank = Rank::new(&recipe, by_unit(specs()), network.family(), MeshGroups::alone());
        let step = Step { recipe: &recipe, network: &network, objective: &FlowMatching, seed: 3 };
        let (inputs, target) = step.noised(batch(0, 0..4), 0..4, 0).unwrap();
        assert!(inputs.timestep.kind() == Kind::Float && inputs.timestep.fmod(1.0).min().double_value(&[]) > 0.0);
        let loss = |output: &Tensor| target.loss(output).mean(Kind::Float);

        let mut units = Sharded(&mut rank.fsdp);
        let all = std::iter::once(FsdpUnit::Root).chain((0..BLOCKS.len()).map(FsdpUnit::Block));
        let params: Vec<UnitParams> = all.map(|unit| units.gather(unit, None).unwrap()).collect();
        let family = network.family();
        let grid = family.grid(inputs.shape(), Device::Cpu);
        let mut tokens = family.embed(&grid, &params[0], &inputs);
        for number in 0..BLOCKS.len() {
            let (mixers, alone) = (Mixers::default(), dit::parallel::Alone);
            tokens.streams = family.block(&grid, number, &params[number + 1], &tokens, &mixers, &alone).unwrap();
        }
        let output = family.head(&grid, &params[0], &tokens);
        let leaves: Vec<&Tensor> = params.iter().flat_map(|unit| unit.tensors()).collect();
        let wanted = Tensor::run_backward(&[loss(&output)], &leaves, false, false);

        let walked = network.forward_backward(&mut units, &inputs, loss).unwrap();
        assert_eq!(walked.output, output.detach());
        rank.fsdp.finish_reduce().unwrap();
        let grads: BTreeMap<usize, Tensor> =
            rank.fsdp.shards().map(|shard| (shard.unit, shard.grad.shallow_clone())).collect();
        let owned = rank.fsdp.owned();
        assert_eq!(owned.len(), wanted.len());
        for (owned, wanted) in owned.iter().zip(wanted) {
            let name = &rank.tables[owned.unit][owned.range.slot].name;
            let got = grads[&owned.unit].narrow(0, owned.range.shard_start, owned.range.len);
            if name.starts_with("unused") {
                assert!(!wanted.defined() && got.abs().max().double_value(&[]) == 0.0);
                continue;
            }
            let off = (&got - wanted.view([-1])).norm() / wanted.norm();
            assert!(off.double_value(&[]) < 1e-5 && got.norm().double_value(&[]) > 0.0, "{name}: {off:?}");
        }
    }
}
