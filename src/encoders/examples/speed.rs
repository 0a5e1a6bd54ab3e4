//! The Rust side of the encoders' benchmark (`cargo xtask bench encoders`): VAE encode, VAE decode, or T5 encode.
//!
//! Usage: `speed encode|decode|t5 FOLDER THREADS PASSES`. `tests/bench/encoders.py make` writes the models and inputs to FOLDER.
//!
//! Prints one JSON object: wall and CPU seconds of each pass, the peak resident memory in GiB and its growth since before the
//! model was loaded, and the norms of the results, which must equal those of `tests/bench/encoders.py`.

use camino::Utf8Path;
use encoders::{T5Encoder, Vae};
use safetensors::SafeTensors;
use std::time::Instant;
use tch::{Device, Kind, Tensor};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [what, folder, threads, passes] = args.as_slice() else {
        panic!("usage: speed encode|decode|t5 FOLDER THREADS PASSES")
    };
    let number = |text: &str| text.parse::<i32>().unwrap_or_else(|e| panic!("{text:?} is not a number: {e}"));
    tch::set_num_threads(number(threads));
    let folder = Utf8Path::new(folder);
    let input = input(folder, what);
    let open_vae =
        || Vae::open(&folder.join("vae"), Kind::Float, Device::Cpu).unwrap_or_else(|failure| panic!("{failure}"));
    let before = peak_gib();
    let compute: Box<dyn Fn() -> Vec<Tensor>> = match what.as_str() {
        "encode" => {
            let vae = open_vae();
            Box::new(move || {
                let moments = vae.encode(&input).unwrap_or_else(|failure| panic!("{failure}"));
                vec![moments.mean, moments.logvar]
            })
        }
        "decode" => {
            let vae = open_vae();
            Box::new(move || vec![vae.decode(&input).unwrap_or_else(|failure| panic!("{failure}"))])
        }
        _ => {
            let t5 = T5Encoder::open(&folder.join("text_encoder"), Kind::Float, Device::Cpu);
            let t5 = t5.unwrap_or_else(|failure| panic!("{failure}"));
            Box::new(move || vec![t5.encode(&input).unwrap_or_else(|failure| panic!("{failure}"))])
        }
    };
    let (mut seconds, mut cpu, mut norms) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..number(passes) {
        let (start, cpu_start) = (Instant::now(), cpu_s());
        let results = compute();
        seconds.push(start.elapsed().as_secs_f64());
        cpu.push(cpu_s() - cpu_start);
        norms = results.iter().map(|tensor| tensor.norm().double_value(&[])).collect();
    }
    let peak = peak_gib();
    println!(
        "{{\"step_s\":{seconds:?},\"cpu_s\":{cpu:?},\"peak_gib\":{peak},\"growth_gib\":{},\"norms\":{norms:?}}}",
        peak - before
    );
}

/// Reads the input of the benchmark.
fn input(folder: &Utf8Path, name: &str) -> Tensor {
    let bytes = std::fs::read(folder.join("inputs.safetensors")).expect("`encoders.py make` wrote the inputs");
    let file = SafeTensors::deserialize(&bytes).expect("the inputs are safetensors");
    let view = file.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
    let shape: Vec<i64> = view.shape().iter().map(|&size| size as i64).collect();
    let kind = if view.dtype() == safetensors::Dtype::I64 { Kind::Int64 } else { Kind::Float };
    Tensor::from_data_size(view.data(), &shape, kind)
}

/// Returns the seconds of CPU that this process has used.
fn cpu_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The fields after the process name in brackets: user and system time are fields 14 and 15, in hundredths of a second.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    fields.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// Returns the peak resident memory so far.
fn peak_gib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    kib.unwrap_or(f64::NAN) / (1024.0 * 1024.0)
}
