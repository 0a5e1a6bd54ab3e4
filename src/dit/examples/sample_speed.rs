//! The Rust side of the sampling benchmark (`cargo xtask bench sample`): 10 steps of DDIM with guidance on one rank.
//!
//! usage: sample_speed FOLDER THREADS SAMPLES. FOLDER has the transformer and the inputs that `tests/bench/sample.py make` wrote. Prints one
//! JSON object: seconds and CPU seconds of each sample after a warm-up of one step, the peak resident memory and its growth from before
//! the model is loaded in GiB, and the norm of the last latent, which must equal that of `tests/bench/sample.py`.

use camino::Utf8Path;
use dit::block::ActivationCheckpointing;
use dit::diffusion::NoiseSchedule;
use dit::family::Inputs;
use dit::network::{Network, Units};
use dit::params::{SlotGrad, UnitParams, unit_specs};
use dit::sampler::{Guidance, Prediction, Sampler};
use recipe::{FsdpUnit, Model, TimestepSpacing};
use safetensors::SafeTensors;
use std::collections::HashMap;
use std::time::Instant;
use tch::{Device, Kind, Tensor};
use torch_error::TorchError;

const STEPS: usize = 10;
const GUIDANCE: f64 = 6.0;

/// The unsharded parameters of all units: the root, then the blocks.
struct Whole(Vec<Vec<Tensor>>);

impl Units for Whole {
    type Error = TorchError;

    fn gather(&mut self, unit: FsdpUnit, _: Option<FsdpUnit>) -> Result<UnitParams, TorchError> {
        let number = if let FsdpUnit::Block(block) = unit { block + 1 } else { 0 };
        Ok(UnitParams::new(self.0[number].iter().map(Tensor::shallow_clone).collect()))
    }

    fn reduce(&mut self, _: FsdpUnit, _: Vec<SlotGrad>) -> Result<(), TorchError> {
        unreachable!("sampling has no gradients")
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [folder, threads, samples] = args.as_slice() else { panic!("usage: sample_speed FOLDER THREADS SAMPLES") };
    let number = |text: &str| text.parse::<i32>().unwrap_or_else(|e| panic!("{text:?} is not a number: {e}"));
    tch::set_num_threads(number(threads));
    let folder = Utf8Path::new(folder);
    let config = weights::Config::read(&folder.join("transformer/config.json")).unwrap_or_else(|f| panic!("{f}"));
    let model = weights::model_from_diffusers(&config).unwrap_or_else(|f| panic!("{f}"));
    let inputs = tensors(&folder.join("inputs.safetensors"));
    let start = &inputs["latent"];
    let size = start.size();
    let model = Model {
        text_len: inputs["texts"].size()[1] as usize,
        ..model.resized(size[1] as usize, size[3] as usize, size[4] as usize)
    };
    let before = peak_gib();
    let mut units = whole(&model, &folder.join("transformer/diffusion_pytorch_model.safetensors"));
    let network = Network::new(&model, ActivationCheckpointing::Full, 1);
    let (mut seconds, mut cpu, mut norm) = (Vec::new(), Vec::new(), 0.0);
    let many = std::iter::repeat_n(STEPS, number(samples) as usize);
    for steps in std::iter::once(1).chain(many) {
        let sampler =
            Sampler::ddim(&NoiseSchedule::default(), TimestepSpacing::Trailing, steps, Guidance::Constant(GUIDANCE));
        let (began, busy) = (Instant::now(), cpu_s());
        let predict = |x: &Tensor, timestep: i64| {
            let inputs = Inputs {
                latent: x.repeat([2, 1, 1, 1, 1]),
                text: inputs["texts"].shallow_clone(),
                timestep: Tensor::full([2], timestep, (Kind::Int64, Device::Cpu)),
                conditions: Vec::new(),
            };
            let velocity = network.forward(&mut units, &inputs)?;
            let half = |half| velocity.narrow(0, half, 1);
            Ok::<_, TorchError>(Prediction { with_text: half(1), without_text: Some(half(0)) })
        };
        let none = |_: usize| unreachable!("DDIM draws no noise");
        let latent = sampler.sample(start, predict, none, |_| Ok(())).expect("no peer can be lost");
        seconds.push(began.elapsed().as_secs_f64());
        cpu.push(cpu_s() - busy);
        norm = latent.norm().double_value(&[]);
    }
    let (peak, growth) = (peak_gib(), peak_gib() - before);
    println!(
        "{{\"step_s\":{seconds:?},\"cpu_s\":{cpu:?},\"peak_gib\":{peak},\"growth_gib\":{growth},\"norms\":[{norm:?}]}}"
    );
}

/// Reads the parameters of a transformer.
fn whole(model: &Model, path: &Utf8Path) -> Whole {
    let tensors = tensors(path);
    let units = std::iter::once(FsdpUnit::Root).chain((0..model.num_layers).map(FsdpUnit::Block));
    let tensor = |spec: &recipe::ParamSpec| {
        tensors[spec.diffusers.as_deref().expect("diffusers has every tensor")].shallow_clone()
    };
    Whole(units.map(|unit| unit_specs(model, unit).iter().map(tensor).collect()).collect())
}

fn tensors(path: &Utf8Path) -> HashMap<String, Tensor> {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let file = SafeTensors::deserialize(&bytes).unwrap_or_else(|e| panic!("{path}: {e}"));
    let read = |(name, view): (&str, safetensors::tensor::TensorView<'_>)| {
        let shape: Vec<i64> = view.shape().iter().map(|&size| size as i64).collect();
        (name.to_owned(), Tensor::from_data_size(view.data(), &shape, Kind::Float))
    };
    file.iter().map(read).collect()
}

/// Returns the CPU seconds of this process so far.
fn cpu_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the program may contain spaces and ends with a parenthesis; user and system time are fields 14 and 15.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |field: usize| fields.get(field - 3).and_then(|text| text.parse::<f64>().ok()).unwrap_or(f64::NAN);
    (ticks(14) + ticks(15)) / 100.0
}

/// Returns the peak resident memory so far.
fn peak_gib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    kib.unwrap_or(f64::NAN) / (1024.0 * 1024.0)
}
