//! The Rust side of the TTT benchmark (`cargo xtask bench ttt`): a TTT-MLP layer, forward and backward.
//!
//! usage: layer_speed RECIPE THREADS ROUNDS [KEY=VALUE]…. The recipe sets the layer's sizes. Prints one JSON object: seconds of each round,
//! the growth of peak resident memory in GiB, and the norms of the output and of the gradients of the input and of
//! every parameter, which must equal those of `tests/bench/ttt.py`.

use dit::cogvideox::Scan;
use dit::cogvideox::ttt::Ttt;
use dit::mixers::Mixers;
use dit::params::{UnitParams, unit_specs};
use recipe::{FsdpUnit, ParamInit, ParamSpec};
use std::time::Instant;
use tch::{Device, Kind, Tensor};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [recipe, threads, rounds, sets @ ..] = args.as_slice() else {
        panic!("usage: layer_speed RECIPE THREADS ROUNDS [KEY=VALUE]…")
    };
    let number = |text: &str| text.parse::<i32>().unwrap_or_else(|e| panic!("{text:?} is not a number: {e}"));
    tch::set_num_threads(number(threads));
    let recipe = recipe::load(recipe.as_str().into(), sets).unwrap_or_else(|e| panic!("{e}")).recipe;
    let model = &recipe.model;
    let layer = Ttt::new(model, recipe.remat.scan_group).expect("the recipe's blocks have a TTT layer");
    let order = Scan::new(model);

    let sequence = [1, model.seq_len() as i64, model.dim() as i64];
    let (x, pull) = (hashed(&sequence, 0, 2.0, 0.0).set_requires_grad(true), hashed(&sequence, 1, 2.0, 0.0));
    // The layer's own parameters; the other parameters of the block stay empty.
    let mut numbers = 2..;
    let parameter = |spec: &ParamSpec| {
        if !spec.name.contains(".ttt.") || spec.name.contains(".gate.") {
            return Tensor::empty([0], (Kind::Float, Device::Cpu));
        }
        let shape: Vec<i64> = spec.shape.iter().map(|&size| size as i64).collect();
        let centre = if spec.init == ParamInit::Ones { 1.0 } else { 0.0 };
        let number = numbers.next().expect("the iterator is endless");
        hashed(&shape, number, 0.07, centre).set_requires_grad(true)
    };
    let params = UnitParams::new(unit_specs(model, FsdpUnit::Block(0)).iter().map(parameter).collect());
    let mut leaves = vec![&x];
    leaves.extend(params.tensors().iter().filter(|tensor| tensor.requires_grad()));

    let before = peak_gib();
    let (mut seconds, mut norms) = (Vec::new(), Vec::new());
    for _ in 0..number(rounds) {
        let start = Instant::now();
        let out = layer.layer(&order, &params, &x, &Mixers::default()).expect("no peer can be lost");
        let grads = Tensor::run_backward(&[(&out * &pull).sum(Kind::Float)], &leaves, false, false);
        seconds.push(start.elapsed().as_secs_f64());
        norms = std::iter::once(&out).chain(&grads).map(|tensor| tensor.norm().double_value(&[])).collect();
    }
    println!("{{\"step_s\":{seconds:?},\"peak_gib\":{},\"norms\":{norms:?}}}", peak_gib() - before);
}

/// Returns numbers that Python can reproduce: hashes of their indices, spread evenly around a centre.
fn hashed(shape: &[i64], number: i64, width: f64, centre: f64) -> Tensor {
    let tensor = Tensor::empty(shape, (Kind::Float, Device::Cpu));
    let mut first = number * 10_000_019;
    // Filled in small parts, because temporary memory here would raise the peak that is measured before the first pass.
    for mut part in tensor.view(-1).split(1 << 16, 0) {
        let i = Tensor::arange_start(first, first + part.size()[0], (Kind::Int64, Device::Cpu));
        let hash = (&i * &i * 2_654_435_761i64).remainder(1i64 << 32).to_kind(Kind::Double);
        part.copy_(&(hash / (1i64 << 32) * width + (centre - width / 2.0)));
        first += part.size()[0];
    }
    tensor
}

/// Returns the peak resident memory so far.
fn peak_gib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    kib.unwrap_or(f64::NAN) / (1024.0 * 1024.0)
}
