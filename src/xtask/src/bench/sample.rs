//! Measures a sample of the 51.8 M model in 10 steps, compared with diffusers.

use super::figures::{Figures, Round, ratio, same_results};
use super::python;
use super::table::Row;
use crate::failure::{Failure, Result};
use crate::process::{cargo, command, output, run as run_command};
use crate::workspace::{cache_dir, release_dir, root};

const ROUNDS: usize = 3;
const THREADS: &str = "2";
/// Samples of one round, after a warm-up of one step.
const SAMPLES: &str = "1";
/// The largest relative difference of norms: both sides add in fp32, in different orders.
const APART: f64 = 1e-4;
const TIME: f64 = 0.9;

/// Measures the denoising of one latent with classifier-free guidance, fp32, without text encoder and VAE.
pub fn rows() -> Result<Vec<Row>> {
    let bin = python::environment()?;
    run_command(
        &mut cargo(["build", "--release", "--package", "dit", "--example", "sample_speed"]),
        "see the compiler's errors above",
    )?;
    let (script, folder) = (root().join("tests/bench/sample.py"), cache_dir()?.join("bench-sample"));
    std::fs::create_dir_all(&folder)
        .map_err(|e| Failure::new(format!("cannot create {folder}"), e, "check the disk"))?;
    let python = bin.join("python");
    output(&mut command(&python, [script.as_str(), "make", folder.as_str()]), "see Python's message")?;
    let args = [folder.as_str(), THREADS, SAMPLES];
    let mut rounds: Vec<Round> = Vec::new();
    for round in 1..=ROUNDS {
        println!("sample in 10 steps: round {round} of {ROUNDS}");
        let ours = Figures::of(&mut command(release_dir().join("examples/sample_speed"), args))?;
        let theirs = Figures::of(command(&python, [script.as_str(), "run"]).args(args))?;
        same_results(&ours.norms, &theirs.norms, APART, "run `cargo test -p dit oracle`")?;
        rounds.push((ours, theirs));
    }
    let what = |of: &str| format!("sample of 51.8 M parameters, 10 steps: {of}");
    let any = f64::INFINITY;
    Ok(vec![
        ratio(&rounds, what("time"), "s", TIME, |f| f.step_s),
        ratio(&rounds, what("peak memory"), "GiB", any, |f| f.peak_gib),
        ratio(&rounds, what("its growth from before the model"), "GiB", any, |f| f.growth_gib),
    ])
}
