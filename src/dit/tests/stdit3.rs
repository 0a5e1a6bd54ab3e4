//! Properties of STDiT3 that no recorded numbers show: tensor parallelism, adapters, bf16 and texts without tokens.

mod support;

use dit::family::{Family, Inputs, Tokens};
use dit::mixers::Mixers;
use dit::parallel::{Alone, own_tokens};
use dit::params::{Adapters, UnitParams};
use dit::stdit3::{self, SpaceTime};
use recipe::families::stdit3::{Stdit3, param_specs};
use recipe::{FsdpUnit, ParamSpec};
use support::{Tensors, ranks, relative};
use tch::{Device, Kind, Tensor};

const CPU: (Kind, Device) = (Kind::Float, Device::Cpu);

fn model() -> Stdit3 {
    Stdit3 { num_heads: 4, head_dim: 8, depth: 1, text_dim: 6, text_len: 5, ..Stdit3::xl() }
}

/// Returns numbers with a mean of 0 and a variance of 1. Tests run in parallel, so they do not share libtorch's generator.
fn noise(size: &[i64], seed: u64) -> Tensor {
    let count: i64 = size.iter().product();
    let angles = Tensor::arange(count, (Kind::Double, Device::Cpu)) * 0.713 + 1.37 * seed as f64;
    let uniform = (angles.sin() * 43_758.545).frac();
    (uniform * 3f64.sqrt()).view(size).to_kind(Kind::Float)
}

fn random(model: &Stdit3) -> Tensors {
    let shape = |spec: &ParamSpec| spec.shape.iter().map(|&side| side as i64).collect::<Vec<_>>();
    let weight = |(seed, spec): (usize, &ParamSpec)| (spec.name.clone(), noise(&shape(spec), seed as u64) * 0.1);
    param_specs(model).iter().enumerate().map(weight).collect()
}

fn specs(model: &Stdit3, unit: FsdpUnit) -> Vec<ParamSpec> {
    param_specs(model).into_iter().filter(|spec| spec.unit == unit).collect()
}

/// Returns the parameters of a unit that a rank of a TP group has, each with a gradient.
fn params(model: &Stdit3, weights: &Tensors, unit: FsdpUnit, rank: usize, tp: usize) -> UnitParams {
    let own =
        |spec: &ParamSpec| ranks::part(spec, &weights[&spec.name], rank, tp).detach().copy().set_requires_grad(true);
    UnitParams::new(specs(model, unit).iter().map(own).collect())
}

/// Returns a batch of two samples of 3 frames with these sides.
fn inputs([rows, columns]: [i64; 2], frame_mask: Option<[u8; 6]>, text_mask: [u8; 10]) -> Inputs {
    let numbers = |values: [f32; 2]| Tensor::from_slice(&values);
    let mut conditions = vec![
        (stdit3::FPS, numbers([24.0, 30.0])),
        (stdit3::HEIGHT, numbers([40.0, 40.0])),
        (stdit3::WIDTH, numbers([48.0, 48.0])),
        (stdit3::TEXT_MASK, Tensor::from_slice(&text_mask).view([2, 5])),
    ];
    conditions.extend(frame_mask.map(|mask| (stdit3::FRAME_MASK, Tensor::from_slice(&mask).view([2, 3]))));
    Inputs {
        latent: noise(&[2, 3, 4, rows, columns], 1),
        text: noise(&[2, 5, 6], 2),
        timestep: numbers([700.0, 20.0]),
        conditions,
    }
}

/// The result of a block on one rank and all gradients: of the stream, of the shared tensors and of the parameters.
struct Pass {
    out: Tensor,
    stream: Tensor,
    shared: Vec<Tensor>,
    params: Vec<Tensor>,
}

/// The tensors of a rank before the backward pass.
struct Forward {
    tokens: Tokens,
    params: UnitParams,
    out: Tensor,
    loss: Tensor,
}

/// Runs a block on ranks that share its heads and tokens.
fn run(family: &SpaceTime, weights: &Tensors, number: usize, inputs: &Inputs, tp: usize) -> Vec<Pass> {
    let model = model();
    let root = params(&model, weights, FsdpUnit::Root, 0, 1);
    let embedded = tch::no_grad(|| family.embed(&family.grid(inputs.shape(), Device::Cpu), &root, inputs));
    let pull = noise(&embedded.streams[0].size(), 3);
    let of_rank = |rank: usize| {
        let copies = |tensors: &[Tensor]| tensors.iter().map(Tensor::copy).collect::<Vec<_>>();
        let tokens = Tokens { streams: copies(&embedded.streams), shared: copies(&embedded.shared) };
        (tokens, pull.copy(), params(&model, weights, FsdpUnit::Block(number), rank, tp))
    };
    let shape = inputs.shape();
    let forward = |(whole, pull, params): (Tokens, Tensor, UnitParams), rank: &ranks::Rank| {
        let leaf = |x: Tensor| if x.is_floating_point() { x.copy().set_requires_grad(true) } else { x };
        let streams = vec![leaf(own_tokens(&whole.streams[0], rank))];
        let tokens = Tokens { streams, shared: whole.shared.into_iter().map(leaf).collect() };
        let grid = family.grid(shape, Device::Cpu);
        let out = family.block(&grid, number, &params, &tokens, &Mixers::default(), rank);
        let out = out.expect("no rank exits").remove(0);
        let loss = (&out * own_tokens(&pull, rank)).sum(Kind::Float);
        Forward { tokens, params, out, loss }
    };
    let passes = ranks::run((0..tp).map(of_rank).collect(), 2, forward);
    passes.iter().map(|pass| &pass.loss).fold(Tensor::zeros([], CPU), |sum, loss| sum + loss).backward();
    let grad = |x: &Tensor| if x.grad().defined() { x.grad() } else { x.zeros_like() };
    let pass = |forward: Forward| Pass {
        out: forward.out.detach(),
        stream: grad(&forward.tokens.streams[0]),
        shared: forward.tokens.shared.iter().filter(|x| x.is_floating_point()).map(grad).collect(),
        params: forward.params.tensors().iter().map(grad).collect(),
    };
    passes.into_iter().map(pass).collect()
}

#[test]
fn ranks_that_share_a_block_have_the_results_and_gradients_of_one_rank() {
    let (model, weights) = (model(), random(&model()));
    let family = SpaceTime::new(&model);
    let mask = Some([0, 1, 1, 1, 1, 0]);
    // With 27 tokens the last rank has padding; 24 tokens are exchanged in pieces.
    for (number, mask, sides) in [(0, None, [5, 6]), (1, None, [5, 6]), (0, mask, [5, 6]), (1, mask, [4, 8])] {
        let inputs = inputs(sides, mask, [1, 1, 1, 0, 0, 1, 0, 1, 1, 1]);
        let [whole] = &run(&family, &weights, number, &inputs, 1)[..] else { unreachable!("one rank has one pass") };
        for tp in [2, 4] {
            let passes = run(&family, &weights, number, &inputs, tp);
            let case = format!("block {number}, {mask:?}, {tp} ranks");
            let same = |got: &Tensor, want: &Tensor, what: &str| {
                // Key biases have a gradient of zero up to rounding; the others have norms of about 1.
                let error = relative(got, want, 1e-1);
                assert!(error < 1e-4, "{case}: {what} differs by {error:e}");
            };
            let joined = |of: fn(&Pass) -> &Tensor| Tensor::cat(&passes.iter().map(of).collect::<Vec<_>>(), 1);
            let len = whole.out.size()[1];
            same(&joined(|pass| &pass.out).narrow(1, 0, len), &whole.out, "the output");
            same(&joined(|pass| &pass.stream).narrow(1, 0, len), &whole.stream, "the gradient of the stream");
            for (rank, pass) in passes.iter().enumerate() {
                for (i, (got, want)) in pass.shared.iter().zip(&whole.shared).enumerate() {
                    same(got, want, &format!("the gradient of shared tensor {i} on rank {rank}"));
                }
                let specs = specs(&model, FsdpUnit::Block(number));
                for ((spec, got), want) in specs.iter().zip(&pass.params).zip(&whole.params) {
                    let name = format!("the gradient of {} on rank {rank}", spec.name);
                    same(got, &ranks::part(spec, want, rank, tp), &name);
                }
            }
        }
    }
}

#[test]
fn a_text_without_tokens_changes_nothing_and_padding_is_not_read() {
    let (model, weights) = (model(), random(&model()));
    let family = SpaceTime::new(&model);
    let out = |text_mask, change: f64| {
        let inputs = inputs([5, 6], None, text_mask);
        // The padding of the first sample.
        let padding = inputs.text.get(0).narrow(0, 3, 2);
        inputs.text.get(0).narrow(0, 3, 2).copy_(&(padding + change));
        let [pass] = <[Pass; 1]>::try_from(run(&family, &weights, 0, &inputs, 1)).ok().expect("one rank");
        assert!(pass.stream.isfinite().all().int64_value(&[]) == 1);
        pass.out
    };
    let padded = [1, 1, 1, 0, 0, 1, 1, 1, 1, 1];
    assert_eq!(out(padded, 0.0), out(padded, 100.0));
    let none = [0, 0, 0, 0, 0, 1, 1, 1, 1, 1];
    let empty = out(none, 0.0);
    assert!(empty.isfinite().all().int64_value(&[]) == 1);
    assert_ne!(empty.get(0), out(padded, 0.0).get(0));
    assert_eq!(empty.get(1), out(padded, 0.0).get(1));
}

#[test]
fn the_empty_text_replaces_those_of_samples_that_have_none() {
    let (model, weights) = (model(), random(&model()));
    let family = SpaceTime::new(&model);
    let embedded = |without: Option<[u8; 2]>, text: Option<&Tensor>| {
        let mut inputs = inputs([5, 6], None, [1; 10]);
        inputs.text = text.map_or(inputs.text, Tensor::shallow_clone);
        inputs.conditions.extend(without.map(|samples| (stdit3::NO_TEXT, Tensor::from_slice(&samples))));
        let grid = family.grid(inputs.shape(), Device::Cpu);
        family.embed(&grid, &params(&model, &weights, FsdpUnit::Root, 0, 1), &inputs).shared[1].detach()
    };
    let (both, second) = (embedded(None, None), embedded(Some([0, 1]), None));
    let empty = weights["text_embed.empty"].expand([2, 5, 6], false);
    assert_eq!(second.get(0), both.get(0));
    assert_eq!(second.get(1), embedded(None, Some(&empty)).get(1));
}

#[test]
fn a_network_in_bf16_has_the_output_of_fp32_up_to_rounding() {
    let (model, weights) = (model(), random(&model()));
    let family = SpaceTime::new(&model);
    let output = |kind: Kind| {
        let cast = |x: &Tensor| if x.is_floating_point() { x.to_kind(kind) } else { x.copy() };
        let mut inputs = inputs([5, 6], Some([0, 1, 1, 1, 1, 0]), [1, 1, 1, 0, 0, 1, 1, 1, 1, 1]).map(cast);
        inputs.conditions.push((stdit3::NO_TEXT, Tensor::from_slice(&[0u8, 1])));
        let params = |unit| {
            let weight = |spec: &ParamSpec| cast(&weights[&spec.name]);
            UnitParams::new(specs(&model, unit).iter().map(weight).collect())
        };
        let (grid, root) = (family.grid(inputs.shape(), Device::Cpu), params(FsdpUnit::Root));
        let mut tokens = family.embed(&grid, &root, &inputs);
        for number in 0..family.num_blocks() {
            let params = params(FsdpUnit::Block(number));
            let streams = family.block(&grid, number, &params, &tokens, &Mixers::default(), &Alone);
            tokens.streams = streams.expect("one rank has no peers");
        }
        family.head(&grid, &root, &tokens)
    };
    let (exact, rounded) = (output(Kind::Float), output(Kind::BFloat16));
    assert_eq!(rounded.kind(), Kind::BFloat16);
    let error = relative(&rounded, &exact, 0.0);
    // bf16 has 8 bits.
    assert!(error < 0.03, "{error}");
}

#[test]
fn adapters_of_every_layer_change_a_block_as_their_product_added_to_its_weight_does() {
    let (model, weights) = (model(), random(&model()));
    let family = SpaceTime::new(&model);
    let inputs = inputs([5, 6], None, [1; 10]);
    let grid = family.grid(inputs.shape(), Device::Cpu);
    let root = params(&model, &weights, FsdpUnit::Root, 0, 1);
    let tokens = tch::no_grad(|| family.embed(&grid, &root, &inputs));
    let own = specs(&model, FsdpUnit::Block(1));
    let layers: Vec<&ParamSpec> = own.iter().filter(|spec| spec.decay).collect();
    assert_eq!(layers.len(), 10);
    let out = |params: &UnitParams| {
        let streams = family.block(&grid, 1, params, &tokens, &Mixers::default(), &Alone);
        streams.expect("one rank has no peers").remove(0)
    };
    let plain = || own.iter().map(|spec| weights[&spec.name].copy()).collect::<Vec<_>>();
    let without = out(&UnitParams::new(plain()));
    for layer in layers {
        let (rows, columns) = (layer.shape[0] as i64, layer.shape[1] as i64);
        let (a, b) = (noise(&[3, columns], 4), noise(&[rows, 3], 5) * 0.1);
        let name = layer.name.strip_suffix(".weight").expect("a weight");
        let factor = |factor: &str| ParamSpec { name: format!("{name}.{factor}"), ..layer.clone() };
        let table: Vec<ParamSpec> = own.iter().cloned().chain([factor("lora_a"), factor("lora_b")]).collect();
        let mut tensors = plain();
        tensors.extend([a.copy(), b.copy()]);
        let adapted = out(&UnitParams::new(tensors).with_adapters(&Adapters::of(&table, 0.5)));
        let mut merged = plain();
        let slot = own.iter().position(|spec| spec.name == layer.name).expect("a layer of the block");
        merged[slot] += b.matmul(&a) * 0.5;
        let error = relative(&adapted, &out(&UnitParams::new(merged)), 0.0);
        assert!(error < 1e-5, "{name}: {error:e}");
        assert!(relative(&adapted, &without, 0.0) > 1e-4, "{name} has no effect");
    }
}
