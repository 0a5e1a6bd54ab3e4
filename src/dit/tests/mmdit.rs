//! Runs MMDiTs on the ranks of a TP group and with adapters, and compares with one rank and with merged weights.

mod support;

use dit::block::ActivationCheckpointing;
use dit::family::{Family, Inputs, Tokens};
use dit::mixers::Mixers;
use dit::mmdit::{GIVEN, Mmdit, POOLED};
use dit::network::Network;
use dit::parallel::{Alone, own_tokens};
use dit::params::{Adapters, UnitParams};
use recipe::families::mmdit::{Mmdit as Sizes, param_specs};
use recipe::{FsdpUnit, ParamRole, ParamSpec, Shape};
use support::mmdit::Parameters;
use support::{Tensors, ranks, relative};
use tch::{Device, Kind, Tensor};

/// Returns a network with four heads, and text and video tokens that four ranks share with and without padding.
fn network(text_tokens: usize) -> Sizes {
    Sizes {
        latent_channels: 3,
        patch_size: 2,
        num_heads: 4,
        axes: [2, 2, 4],
        theta: 100.0,
        two_stream_blocks: 2,
        one_stream_blocks: 3,
        hidden: 48,
        text_tokens,
        text_dim: 6,
        pooled_dim: 5,
        qkv_bias: false,
        guidance: false,
        condition: true,
    }
}

/// Two samples of 2 × 2 × 2 = 8 or 3 × 1 × 3 = 9 video tokens.
const SHAPES: [Shape; 2] = [Shape { frames: 2, height: 4, width: 4 }, Shape { frames: 3, height: 2, width: 6 }];

fn random(size: &[i64]) -> Tensor {
    Tensor::randn(size, (Kind::Double, Device::Cpu))
}

/// Returns random parameters of a network, in fp64.
fn parameters(sizes: &Sizes) -> Parameters<'static> {
    let tensor = |shape: &[usize]| random(&shape.iter().map(|&size| size as i64).collect::<Vec<_>>()) * 0.3;
    let tensors = param_specs(sizes).into_iter().map(|spec| {
        let tensor = tensor(&spec.shape);
        (spec, tensor)
    });
    Parameters { tensors: tensors.collect(), grads: Tensors::new(), tp: &Alone }
}

/// The results of all blocks of one rank, with their graph.
struct Ran {
    streams: Vec<Tensor>,
    leaves: Vec<Tensor>,
    shared: Tensor,
    units: Vec<UnitParams>,
}

/// Applies all blocks to a rank's parts of the streams.
fn run(sizes: &Sizes, shape: Shape, params: &Parameters<'_>, streams: &[Tensor], shared: &Tensor) -> Ran {
    let family = Mmdit::new(sizes);
    let grid = family.grid(shape, Device::Cpu);
    let leaf = |x: &Tensor| x.detach().set_requires_grad(true);
    let leaves: Vec<Tensor> = streams.iter().map(|stream| leaf(&own_tokens(stream, params.tp))).collect();
    let shared = leaf(shared);
    let units: Vec<UnitParams> = (0..sizes.num_blocks()).map(|i| params.of(FsdpUnit::Block(i))).collect();
    let mut tokens =
        Tokens { streams: leaves.iter().map(Tensor::shallow_clone).collect(), shared: vec![shared.shallow_clone()] };
    for (number, unit) in units.iter().enumerate() {
        tokens.streams = family
            .block(&grid, number, unit, &tokens, &Mixers::default(), params.tp)
            .expect("threads are no peers that exit");
    }
    Ran { streams: tokens.streams, leaves, shared, units }
}

/// Returns gradients of all ranks: of the streams, of the shared vector and of the tensors of blocks, for cotangents of the outputs.
fn gradients(ran: &[Ran], pulls: &[Vec<Tensor>]) -> Vec<Vec<Tensor>> {
    let of = |rank: &Ran, pulls: &[Tensor]| {
        rank.streams.iter().zip(pulls).map(|(out, pull)| (out * pull).sum(Kind::Double)).sum::<Tensor>()
    };
    let loss = ran.iter().zip(pulls).map(|(rank, pulls)| of(rank, pulls)).sum::<Tensor>();
    let inputs: Vec<Vec<&Tensor>> = ran
        .iter()
        .map(|rank| {
            let units = rank.units.iter().flat_map(UnitParams::tensors);
            rank.leaves.iter().chain([&rank.shared]).chain(units).collect()
        })
        .collect();
    let mut all = Tensor::run_backward(&[loss], &inputs.concat(), false, false).into_iter();
    inputs.iter().map(|own| all.by_ref().take(own.len()).collect()).collect()
}

/// Rotary embeddings are computed in fp32, so the last bits of fp64 may change a rounding there.
fn assert_close(got: &Tensor, want: &Tensor, of: &str) {
    let error = relative(got, want, 1e-6);
    assert!(error < 1e-6, "{of} differs by {error:e}");
}

#[test]
fn blocks_of_both_kinds_have_the_outputs_and_gradients_of_one_rank_on_several() {
    tch::set_num_threads(1);
    for (size, pieces, text, shape) in
        [(2, 1, 6, SHAPES[0]), (2, 2, 6, SHAPES[0]), (2, 1, 5, SHAPES[1]), (4, 1, 5, SHAPES[1]), (4, 2, 8, SHAPES[0])]
    {
        let sizes = network(text);
        let params = parameters(&sizes);
        let streams = [sizes.video_tokens(shape), text].map(|len| random(&[2, len as i64, sizes.dim() as i64]));
        let (shared, pulls) = (random(&[2, sizes.dim() as i64]), streams.each_ref().map(Tensor::randn_like));
        let copy = |tensors: &[Tensor; 2]| tensors.each_ref().map(Tensor::shallow_clone);
        let one = run(&sizes, shape, &params, &streams, &shared);
        let want = gradients(std::slice::from_ref(&one), &[copy(&pulls).into()]).remove(0);

        let given = |rank| (params.parts(rank, size), copy(&streams), shared.shallow_clone(), copy(&pulls));
        let ran = ranks::run((0..size).map(given).collect(), pieces, |(tensors, streams, shared, pulls), tp| {
            let params = Parameters { tensors, grads: Tensors::new(), tp };
            (run(&sizes, shape, &params, &streams, &shared), pulls.map(|pull| own_tokens(&pull, tp)).into())
        });
        let (ran, own_pulls): (Vec<Ran>, Vec<_>) = ran.into_iter().unzip();
        let got = gradients(&ran, &own_pulls);

        let joined = |parts: Vec<&Tensor>, len: i64| Tensor::cat(&parts, 1).narrow(1, 0, len);
        for stream in 0..2 {
            let (of, len) = (format!("{size} ranks: stream {stream}"), streams[stream].size()[1]);
            assert_close(
                &joined(ran.iter().map(|rank| &rank.streams[stream]).collect(), len),
                &one.streams[stream],
                &of,
            );
            assert_close(&joined(got.iter().map(|grads| &grads[stream]).collect(), len), &want[stream], &of);
        }
        let specs: Vec<_> = params.tensors.iter().filter(|(spec, _)| spec.unit != FsdpUnit::Root).collect();
        for (rank, grads) in got.iter().enumerate() {
            assert_close(&grads[2], &want[2], &format!("{size} ranks: the shared vector of rank {rank}"));
            for (i, (spec, _)) in specs.iter().enumerate() {
                let part = ranks::part(spec, &want[i + 3], rank, size);
                assert_close(&grads[i + 3], &part, &format!("{size} ranks: {} of rank {rank}", spec.name));
            }
        }
    }
}

/// Returns random inputs of two samples.
fn inputs(sizes: &Sizes, shape: Shape) -> Inputs {
    let [frames, height, width] = [shape.frames, shape.height, shape.width].map(|len| len as i64);
    let channels = sizes.latent_channels as i64;
    Inputs {
        latent: random(&[2, frames, channels, height, width]),
        text: random(&[2, sizes.text_tokens as i64, sizes.text_dim as i64]),
        timestep: random(&[2]).sigmoid(),
        conditions: vec![
            (POOLED, random(&[2, sizes.pooled_dim as i64])),
            (GIVEN, random(&[2, frames, channels + 1, height, width])),
        ],
    }
}

#[test]
fn the_network_has_the_output_of_one_rank_on_several() {
    for (size, text, shape) in [(2, 6, SHAPES[0]), (4, 5, SHAPES[1])] {
        let sizes = network(text);
        let mut params = parameters(&sizes);
        let inputs = inputs(&sizes, shape);
        let network = || Network::of(Mmdit::new(&sizes), ActivationCheckpointing::Full);
        let want = network().forward(&mut params, &inputs).unwrap();
        let given = |rank| (params.parts(rank, size), inputs.map(Tensor::shallow_clone));
        let outputs = ranks::run((0..size).map(given).collect(), 1, |(tensors, inputs), tp| {
            network().forward(&mut Parameters { tensors, grads: Tensors::new(), tp }, &inputs).unwrap()
        });
        outputs.iter().for_each(|got| assert_close(got, &want, &format!("{size} ranks: the output")));
    }
}

#[test]
fn adapters_change_every_layer_as_merged_weights_do() {
    const SCALE: f64 = 0.5;
    let (sizes, mut merged) = (network(5), parameters(&network(5)));
    let (mut adapted, mut layers) = (Vec::new(), 0);
    for block in 0..sizes.num_blocks() {
        let of_block = |(spec, _): &&mut (ParamSpec, Tensor)| spec.unit == FsdpUnit::Block(block);
        let mut adapters = Vec::new();
        for (spec, tensor) in merged.tensors.iter_mut().filter(of_block) {
            adapted.push((spec.clone(), tensor.copy()));
            if let (Some(layer), [rows, columns]) = (spec.name.strip_suffix(".weight"), &spec.shape[..]) {
                let factors = [("lora_a", [2, *columns]), ("lora_b", [*rows, 2])].map(|(name, shape)| {
                    let spec = ParamSpec {
                        name: format!("{layer}.{name}"),
                        shape: shape.to_vec(),
                        role: ParamRole::Adapter,
                        ..spec.clone()
                    };
                    (spec, random(&shape.map(|size| size as i64)) * 0.3)
                });
                *tensor += factors[1].1.matmul(&factors[0].1) * SCALE;
                adapters.extend(factors);
                layers += 1;
            }
        }
        adapted.extend(adapters);
    }
    // 14 layers in blocks with two streams, 7 in those with one: all but the norms.
    assert_eq!(layers, 14 * sizes.two_stream_blocks + 7 * sizes.one_stream_blocks);
    adapted.extend(
        merged.tensors.iter().filter(|(spec, _)| spec.unit == FsdpUnit::Root).map(|(spec, t)| (spec.clone(), t.copy())),
    );
    let of_block = |block| {
        let own = adapted.iter().filter(|(spec, _)| spec.unit == FsdpUnit::Block(block));
        Adapters::of(&own.map(|(spec, _)| spec.clone()).collect::<Vec<_>>(), SCALE)
    };
    let adapters = (0..sizes.num_blocks()).map(of_block).collect();
    let network = || Network::of(Mmdit::new(&sizes), ActivationCheckpointing::Full);
    let inputs = inputs(&sizes, SHAPES[0]);
    let want = network().forward(&mut merged, &inputs).unwrap();
    let mut units = Parameters { tensors: adapted, grads: Tensors::new(), tp: &Alone };
    let got = network().with_adapters(adapters).forward(&mut units, &inputs).unwrap();
    assert_close(&got, &want, "the output");
}
