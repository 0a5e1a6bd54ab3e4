//! Measures the VAE and the text encoder, compared with diffusers and transformers.

use camino::{Utf8Path, Utf8PathBuf};

use super::figures::{Figures, ratio, same_results};
use super::python;
use super::table::Row;
use crate::failure::{Failure, Result};
use crate::process::{cargo, command, output, run as run_command};
use crate::workspace::{cache_dir, release_dir, root};

const SCRIPT: &str = "tests/bench/encoders.py";
const ROUNDS: usize = 3;
const THREADS: &str = "2";
/// The largest relative difference of norms: both sides add in fp32, in different orders.
const APART: f64 = 1e-4;
const TIME: f64 = 0.9;
const MEMORY: f64 = 0.8;

/// A measured task: its name in `tests/bench/encoders.py`, the passes of a round, and its name in the table. The first pass is a
/// warm-up and is not counted. A pass of T5 takes half a second, so it is repeated more often.
const CASES: [(&str, &str, &str); 3] = [
    ("encode", "4", "VAE encode, 17 frames of 128x192"),
    ("decode", "4", "VAE decode, 17 frames of 128x192"),
    ("t5", "16", "T5 encode, 226 tokens, size of T5-base"),
];

/// Measures VAE encode and decode at a quarter of the real channel widths, and T5 encode at the size of T5-base, fp32.
pub fn rows() -> Result<Vec<Row>> {
    let bin = python::environment_with_text()?;
    run_command(
        &mut cargo(["build", "--release", "--package", "encoders", "--example", "speed"]),
        "see the compiler's errors above",
    )?;
    let (script, folder, python) = (root().join(SCRIPT), models(&bin)?, bin.join("python"));
    let mut rows = Vec::new();
    for (case, passes, what) in CASES {
        let args = [case, folder.as_str(), THREADS, passes];
        rows.extend(measure(args, what, &python, &script)?);
    }
    Ok(rows)
}

/// Makes the models and their inputs, and returns their folder. `bin` is the `bin` folder of a Python environment with transformers.
pub fn models(bin: &Utf8Path) -> Result<Utf8PathBuf> {
    let folder = cache_dir()?.join("bench-encoders");
    std::fs::create_dir_all(&folder)
        .map_err(|e| Failure::new(format!("cannot create {folder}"), e, "check the disk"))?;
    let script = root().join(SCRIPT);
    output(&mut command(bin.join("python"), [script.as_str(), "make", folder.as_str()]), "see Python's message")?;
    Ok(folder)
}

fn measure(args: [&str; 4], what: &str, python: &Utf8Path, script: &Utf8Path) -> Result<[Row; 4]> {
    let mut rounds = Vec::new();
    for round in 1..=ROUNDS {
        println!("{what}: round {round} of {ROUNDS}");
        let ours = Figures::of(&mut command(release_dir().join("examples/speed"), args))?;
        let theirs = Figures::of(command(python, [script.as_str()]).args(args))?;
        same_results(&ours.norms, &theirs.norms, APART, "run `cargo test -p encoders oracle`")?;
        rounds.push((ours, theirs));
    }
    let row = |of: &str, unit, at_most, pick: fn(&Figures) -> f64| {
        ratio(&rounds, format!("{what}: {of}"), unit, at_most, pick)
    };
    Ok([
        row("time", "s", TIME, |f| f.step_s),
        row("CPU time", "s", f64::INFINITY, |f| f.cpu_s),
        row("peak memory", "GiB", MEMORY, |f| f.peak_gib),
        row("its growth from before the model", "GiB", f64::INFINITY, |f| f.growth_gib),
    ])
}
