//! Compares AdamW with recorded steps of a network of two layers, in fp32 and with bf16 copies of fp32 master weights.
//!
//! Reads `optim/adamw*.safetensors` of the oracle. A file has the inputs, and the results of several ways to round; the number of steps
//! and the sizes come from the file.

use super::*;
use sharding::clip::{clip_factor, grad_norm_squared};

/// A way to round, and the largest deviations from its recorded results.
struct Rounding {
    /// The prefix of the results in the file.
    name: &'static str,
    /// The dtype of gathered weights.
    compute: Kind,
    /// The largest relative difference of the losses.
    loss: f64,
    /// The largest relative difference of the gradient norms.
    norm: f64,
    /// The norm of the difference of the first gradients, relative to the norm of the gradient.
    gradient: f64,
    /// The largest difference of the final weights, relative to the largest distance that a weight moved.
    weights: f64,
}

const FP32: Rounding =
    Rounding { name: "f32", compute: Kind::Float, loss: 1e-5, norm: 1e-5, gradient: 1e-5, weights: 1e-3 };

/// One rounding to bf16 more in each layer gives 1.3e-3, 2.7e-3, 7e-3 and 0.13.
const MASTER: Rounding =
    Rounding { name: "master", compute: Kind::BFloat16, loss: 3e-3, norm: 5e-3, gradient: 1e-2, weights: 0.3 };

/// PyTorch's autocast, which rounds at the same places.
const AUTOCAST: Rounding = Rounding { name: "autocast", ..MASTER };

/// The results of a run.
struct Results {
    losses: Vec<f64>,
    norms: Vec<f64>,
    /// The gradients of the first step before clipping, in the order of the parameters.
    gradients: Vec<Tensor>,
    /// The weights after the last step.
    weights: Vec<Tensor>,
}

/// Trains the recorded network as a run of one rank does.
fn train(recorded: &Recorded, tables: &[Vec<ParamSpec>], compute: Kind) -> Results {
    let place = |spec: &ParamSpec| {
        let shape: Vec<i64> = spec.shape.iter().map(|&size| size as i64).collect();
        (shape, ParamKind::Trained, TpLayout::Replicated)
    };
    let mut fsdp = Fsdp::new(vec![Layout::new(tables[0].iter().map(place), 1)], MeshGroups::alone(), compute);
    for mut owned in fsdp.owned() {
        let start = &recorded.tensors[&format!("param.init.{}", tables[0][owned.range.slot].name)];
        tch::no_grad(|| owned.values.copy_(&start.flatten(0, -1)));
    }
    let o = recorded.optimizer(OptimizerKind::Adamw);
    let mut state = OptimizerState::new(&fsdp, tables, &o).unwrap();
    let limit = recorded.number("clip_grad_norm").unwrap_or(0.0);
    let mut results = Results { losses: Vec::new(), norms: Vec::new(), gradients: Vec::new(), weights: Vec::new() };
    let steps = recorded.tensors["in.x"].size()[0];
    for step in 0..steps {
        let [x, y] = ["in.x", "in.y"].map(|name| recorded.tensors[name].get(step));
        let weights = fsdp.gather(0, None).unwrap();
        let [b1, b2, w1, w2] = &weights[..] else { panic!("the network has two layers") };
        let hidden = x.to_kind(compute).linear(w1, Some(b1)).gelu("tanh");
        let output = hidden.linear(w2, Some(b2)).to_kind(Kind::Float);
        let loss = (output - y).square().mean(Kind::Float);
        let grads = Tensor::run_backward(&[&loss], &weights, false, false);
        fsdp.reduce(0, grads.iter().map(Tensor::contiguous).enumerate().collect()).unwrap();
        fsdp.finish_reduce().unwrap();
        let norm = grad_norm_squared(&fsdp).unwrap().double_value(&[0]).sqrt();
        results.losses.push(loss.double_value(&[]));
        results.norms.push(norm);
        if step == 0 {
            let shard = fsdp.shards().next().unwrap();
            let part = |owned: OwnedRange| shard.grad.narrow(0, owned.range.shard_start, owned.range.len).copy();
            results.gradients = fsdp.owned().into_iter().map(part).collect();
        }
        let rates = LearningRates::at(&o, step as u64, steps as u64);
        state.step(&fsdp, &o, rates, clip_factor(norm, limit)).unwrap();
    }
    results.weights = fsdp.owned().into_iter().map(|owned| owned.values).collect();
    results
}

/// Trains a recorded network and compares the results.
fn compare(path: &Utf8Path, recorded: &Recorded, rounding: &Rounding) {
    let Rounding { name, compute, loss, norm, gradient, weights } = rounding;
    let tables = [recorded.specs("param.init.")];
    let got = train(recorded, &tables, *compute);
    for (what, got, limit) in [("loss", &got.losses, loss), ("grad_norm_before_clip", &got.norms, norm)] {
        let theirs = recorded.tensors[&format!("{name}.{what}")].to_kind(Kind::Double);
        let off = (Tensor::from_slice(got) / theirs - 1.0).abs().max().double_value(&[]);
        assert!(off < *limit, "{path} {name}: {what} is off by {off:e}");
        println!("{path} {name}: {what} {off:e}");
    }
    // The tensors of all parameters, one after another.
    let joined = |prefix: &str| {
        let theirs = tables[0].iter().map(|spec| recorded.tensors[&format!("{prefix}.{}", spec.name)].flatten(0, -1));
        Tensor::cat(&theirs.collect::<Vec<_>>(), 0).to_kind(Kind::Double)
    };
    let theirs = joined(&format!("{name}.grad.step0"));
    let off = ((Tensor::cat(&got.gradients, 0) - &theirs).norm() / theirs.norm()).double_value(&[]);
    assert!(off < *gradient, "{path} {name}: the first gradient is off by {off:e}");
    println!("{path} {name}: first gradient {off:e}");
    let theirs = joined(&format!("{name}.param.final"));
    let moved = (&theirs - joined("param.init")).abs().max();
    let off = ((Tensor::cat(&got.weights, 0) - &theirs).abs().max() / moved).double_value(&[]);
    assert!(off < *weights, "{path} {name}: the final weights are off by {off:e}");
    println!("{path} {name}: final weights {off:e}");
}

#[test]
fn oracle_adamw_with_bf16_copies_of_master_weights() {
    for path in Recorded::files("adamw") {
        let recorded = Recorded::read(&path);
        let has = |name: &str| recorded.tensors.contains_key(&format!("{name}.loss"));
        for rounding in [FP32, MASTER, AUTOCAST] {
            match has(rounding.name) {
                true => compare(&path, &recorded, &rounding),
                false => println!("not compared: {path} has no {}.loss", rounding.name),
            }
        }
        if has("bf16") {
            println!("not compared: bf16.* of {path}, because master weights and moments are always fp32");
        }
    }
}
