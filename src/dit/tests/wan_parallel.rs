//! Splits the blocks of Wan over the ranks of a TP group, and compares outputs and gradients with those of one rank.

mod support;

use dit::family::{Family, Tokens};
use dit::mixers::Mixers;
use dit::parallel::{Alone, TensorParallel, own_tokens};
use dit::params::{Adapters, UnitParams};
use dit::wan::{Wan, unit_specs};
use kernels::gradients::gradients;
use recipe::families::wan::{ImageKeys, Release, WanModel};
use recipe::{FsdpUnit, Lora, ParamRole, ParamSpec, Shape, Split};
use support::{ranks, relative};
use tch::{Device, Kind, Tensor};

const F32: (Kind, Device) = (Kind::Float, Device::Cpu);

fn model() -> WanModel {
    WanModel {
        num_layers: 1,
        num_heads: 4,
        head_dim: 6,
        ffn_dim: 20,
        text_dim: 5,
        text_len: 7,
        image: Some(ImageKeys { dim: 9, positions: None }),
        ..Release::TextToVideo1_3B.model()
    }
}

/// Adds adapters to the layers of a block, split as the trainer splits them.
fn with_adapters(specs: Vec<ParamSpec>) -> Vec<ParamSpec> {
    let layers = specs.iter().filter(|spec| spec.shape.len() == 2 && spec.name.ends_with(".weight"));
    let factors = layers.flat_map(|weight| {
        let [a_split, b_split] = match weight.split {
            Split::Dim(0) => [Split::Summed, Split::Dim(0)],
            _ => [Split::Dim(1), Split::Summed],
        };
        let layer = weight.name.strip_suffix(".weight").expect("a weight");
        let spec = |name: &str, shape: [usize; 2], split| ParamSpec {
            name: format!("{layer}.{name}"),
            shape: shape.to_vec(),
            role: ParamRole::Adapter,
            split,
            ..weight.clone()
        };
        [spec("lora_a", [2, weight.shape[1]], a_split), spec("lora_b", [weight.shape[0], 2], b_split)]
    });
    let factors: Vec<_> = factors.collect();
    specs.into_iter().chain(factors).collect()
}

/// The leaves of a rank: parameters, stream and shared tensors.
struct Leaves {
    params: Vec<Tensor>,
    stream: Tensor,
    shared: Vec<Tensor>,
}

impl Leaves {
    fn new(params: Vec<Tensor>, stream: Tensor, shared: &[Tensor]) -> Self {
        let leaf = |tensor: &Tensor| tensor.detach().copy().set_requires_grad(true);
        Leaves {
            params: params.iter().map(leaf).collect(),
            stream: leaf(&stream),
            shared: shared.iter().map(leaf).collect(),
        }
    }

    fn all(&self) -> impl Iterator<Item = &Tensor> {
        self.params.iter().chain([&self.stream]).chain(&self.shared)
    }

    fn block(&self, model: &WanModel, shape: Shape, adapters: &Adapters, tp: &dyn TensorParallel) -> Tensor {
        let family = Wan::new(model);
        let copies = |tensors: &[Tensor]| tensors.iter().map(Tensor::shallow_clone).collect::<Vec<_>>();
        let params = UnitParams::new(copies(&self.params)).with_adapters(adapters);
        let tokens = Tokens { streams: vec![self.stream.shallow_clone()], shared: copies(&self.shared) };
        let grid = family.grid(shape, Device::Cpu);
        family.block(&grid, 0, &params, &tokens, &Mixers::default(), tp).expect("no rank fails").remove(0)
    }
}

/// Returns the gradient of each leaf; zeros for those that no output depends on.
fn gradients_of(outputs: &[(&Tensor, &Tensor)], leaves: &[&Tensor]) -> Vec<Tensor> {
    let grads = gradients(outputs, leaves).expect("no rank fails");
    grads.into_iter().zip(leaves).map(|(grad, leaf)| grad.unwrap_or_else(|| leaf.zeros_like())).collect()
}

/// Compares a block on `ranks` ranks with one rank. `groups` is the number of groups of tokens with a timestep of their own.
fn compare(ranks: usize, shape: Shape, groups: i64) {
    tch::manual_seed(7);
    let model = model();
    let specs = with_adapters(unit_specs(&model, FsdpUnit::Block(0)));
    let adapters = Adapters::of(&specs, Lora { rank: 2, alpha: 3.0, ..Lora::default() }.scale());
    let normal = |spec: &ParamSpec| {
        let shape: Vec<i64> = spec.shape.iter().map(|&size| size as i64).collect();
        Tensor::randn(&shape, F32) * 0.5
    };
    let whole: Vec<Tensor> = specs.iter().map(normal).collect();
    let (dim, len) = (model.dim() as i64, model.tokens(shape) as i64);
    let shared = [[2, groups, dim], [2, groups, 6 * dim], [2, model.text_len as i64 + 3, dim]]
        .map(|size| Tensor::randn(size, F32));
    let (stream, cotangent) = (Tensor::randn([2, len, dim], F32), Tensor::randn([2, len, dim], F32));

    let one = Leaves::new(whole.iter().map(Tensor::shallow_clone).collect(), stream.shallow_clone(), &shared);
    let out = one.block(&model, shape, &adapters, &Alone);
    let leaves: Vec<&Tensor> = one.all().collect();
    let want = gradients_of(&[(&out, &cotangent)], &leaves);

    let given = |rank: usize| {
        let params: Vec<Tensor> =
            specs.iter().zip(&whole).map(|(spec, whole)| ranks::part(spec, whole, rank, ranks)).collect();
        let copies: Vec<Tensor> = shared.iter().map(Tensor::copy).collect();
        (params, stream.copy(), copies, cotangent.copy())
    };
    let done = ranks::run((0..ranks).map(given).collect(), 2, |(params, stream, shared, cotangent), tp| {
        let leaves = Leaves::new(params, own_tokens(&stream, tp), &shared);
        let out = leaves.block(&model, shape, &adapters, tp);
        (leaves, out, own_tokens(&cotangent, tp))
    });

    let parts: Vec<&Tensor> = done.iter().map(|(_, out, _)| out).collect();
    let joined = Tensor::cat(&parts, 1).narrow(1, 0, len);
    assert!(relative(&joined, &out, 0.0) < 1e-5, "{ranks} ranks, {shape:?}");
    let outputs: Vec<_> = done.iter().map(|(_, out, cotangent)| (out, cotangent)).collect();
    let leaves: Vec<&Tensor> = done.iter().flat_map(|(leaves, ..)| leaves.all()).collect();
    let mut got = gradients_of(&outputs, &leaves).into_iter();

    let mut sums: Vec<Option<Tensor>> = specs.iter().map(|_| None).collect();
    let same = |got: &Tensor, want: &Tensor, what: &str| {
        let error = relative(got, want, 1e-6);
        assert!(error < 1e-4, "{ranks} ranks, {shape:?}, {groups} groups: the gradient of {what} differs by {error:e}");
    };
    let grad_of_stream = &want[specs.len()];
    for rank in 0..ranks {
        for ((spec, sum), want) in specs.iter().zip(&mut sums).zip(&want) {
            let got = got.next().expect("a gradient of each parameter");
            match spec.split {
                Split::Summed => *sum = Some(sum.take().map_or_else(|| got.shallow_clone(), |sum| sum + &got)),
                _ => same(&got, &ranks::part(spec, want, rank, ranks), &spec.name),
            }
        }
        let of_tokens = got.next().expect("the gradient of the stream");
        let rows = of_tokens.size()[1];
        let own = (len - rank as i64 * rows).clamp(0, rows);
        same(&of_tokens.narrow(1, 0, own), &grad_of_stream.narrow(1, rank as i64 * rows, own), "the stream");
        for (i, want) in want[specs.len() + 1..].iter().enumerate() {
            same(&got.next().expect("the gradient of a shared tensor"), want, &format!("shared tensor {i}"));
        }
    }
    for ((spec, sum), want) in specs.iter().zip(&sums).zip(&want) {
        if let Some(sum) = sum {
            same(sum, want, &spec.name);
        }
    }
}

#[test]
fn a_block_on_two_ranks_has_the_output_and_gradients_of_one_rank() {
    compare(2, Shape { frames: 3, height: 4, width: 8 }, 1);
}

#[test]
fn ranks_with_padding_have_the_output_and_gradients_of_one_rank() {
    compare(2, Shape { frames: 3, height: 2, width: 6 }, 1);
    compare(4, Shape { frames: 3, height: 6, width: 6 }, 1);
}

#[test]
fn frames_with_times_of_their_own_are_split_over_ranks() {
    // 9 and 27 tokens: the ranks' parts end within a frame.
    compare(2, Shape { frames: 3, height: 2, width: 6 }, 3);
    compare(4, Shape { frames: 3, height: 6, width: 6 }, 3);
}
