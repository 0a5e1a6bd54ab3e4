//! VAE and text encoder, compared with diffusers and transformers.

use camino::Utf8Path;
use serde_json::Value;

use super::python;
use super::table::{Row, median};
use crate::failure::{Failure, Result};
use crate::process::{cargo, command, output, run as run_command, shown};
use crate::workspace::{cache_dir, release_dir, root};

const ROUNDS: usize = 3;
const THREADS: &str = "2";
/// Passes of one round. The first is a warm-up and is not counted.
const PASSES: &str = "4";
/// The largest relative difference of norms: both sides add in fp32, in different orders.
const APART: f64 = 1e-4;
const TIME: f64 = 0.9;
const MEMORY: f64 = 0.8;

/// A measured task: its name in `tests/bench/encoders.py` and its name in the table.
const CASES: [(&str, &str); 3] = [
    ("encode", "VAE encode, 17 frames of 128x192"),
    ("decode", "VAE decode, 17 frames of 128x192"),
    ("t5", "T5 encode, 226 tokens, size of T5-base"),
];

/// The measurements of one side.
#[derive(Debug)]
struct Figures {
    /// Seconds of the median pass.
    step_s: f64,
    /// Peak memory of the process, as for training steps.
    peak_gib: f64,
    /// Its growth from before the model is loaded.
    growth_gib: f64,
    /// The norms of the results.
    norms: Vec<f64>,
}

/// Measures VAE encode and decode at a quarter of the real channel widths, and T5 encode at the size of T5-base, fp32.
pub fn rows() -> Result<Vec<Row>> {
    let bin = python::environment_with_text()?;
    run_command(
        &mut cargo(["build", "--release", "--package", "encoders", "--example", "speed"]),
        "see the compiler's errors above",
    )?;
    let (script, folder) = (root().join("tests/bench/encoders.py"), cache_dir()?.join("bench-encoders"));
    std::fs::create_dir_all(&folder)
        .map_err(|e| Failure::new(format!("cannot create {folder}"), e, "check the disk"))?;
    let python = bin.join("python");
    output(&mut command(&python, [script.as_str(), "make", folder.as_str()]), "see Python's message")?;
    let mut rows = Vec::new();
    for (case, what) in CASES {
        rows.extend(measure(case, what, &folder, &python, &script)?);
    }
    Ok(rows)
}

fn measure(case: &str, what: &str, folder: &Utf8Path, python: &Utf8Path, script: &Utf8Path) -> Result<[Row; 3]> {
    let args = [case, folder.as_str(), THREADS, PASSES];
    let mut rounds = Vec::new();
    for round in 1..=ROUNDS {
        println!("{what}: round {round} of {ROUNDS}");
        let ours = figures(&mut command(release_dir().join("examples/speed"), args))?;
        let theirs = figures(command(python, [script.as_str()]).args(args))?;
        same_results(&ours.norms, &theirs.norms)?;
        rounds.push((ours, theirs));
    }
    let row = |of: &str, unit: &'static str, at_most: f64, pick: fn(&Figures) -> f64| {
        let each = |side: fn(&(Figures, Figures)) -> &Figures| {
            median(&rounds.iter().map(|round| pick(side(round))).collect::<Vec<_>>())
        };
        Row {
            what: format!("{what}: {of}"),
            unit: "×",
            rounds: rounds.iter().map(|(ours, theirs)| pick(ours) / pick(theirs)).collect(),
            at_most,
            note: format!("ours {:.3} {unit}, theirs {:.3} {unit}", each(|r| &r.0), each(|r| &r.1)),
        }
    };
    Ok([
        row("time", "s", TIME, |f| f.step_s),
        row("peak memory", "GiB", MEMORY, |f| f.peak_gib),
        row("its growth from before the model", "GiB", f64::INFINITY, |f| f.growth_gib),
    ])
}

/// Checks that both sides computed the same.
fn same_results(ours: &[f64], theirs: &[f64]) -> Result<()> {
    let close = |(a, b): (&f64, &f64)| (a - b).abs() <= APART * b.abs();
    if !ours.is_empty() && ours.len() == theirs.len() && ours.iter().zip(theirs).all(close) {
        return Ok(());
    }
    Err(Failure::new(
        "the two encoders compute different results",
        format!("norms of the results are {ours:?} here and {theirs:?} in Python"),
        "run `cargo test -p encoders oracle`",
    ))
}

fn figures(program: &mut std::process::Command) -> Result<Figures> {
    let printed = output(program, "run it by hand")?.stdout;
    let said: Value = serde_json::from_slice(&printed)
        .map_err(|e| Failure::new(format!("`{}` gave no figures", shown(program)), e, "run it by hand"))?;
    let numbers = |key: &str| said[key].as_array().into_iter().flatten().filter_map(Value::as_f64).collect::<Vec<_>>();
    let seconds: Vec<f64> = numbers("step_s").into_iter().skip(1).collect();
    Ok(Figures {
        step_s: median(&seconds),
        peak_gib: said["peak_gib"].as_f64().unwrap_or(f64::NAN),
        growth_gib: said["growth_gib"].as_f64().unwrap_or(f64::NAN),
        norms: numbers("norms"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoders_that_give_other_numbers_are_not_compared() {
        assert!(same_results(&[10.0, 2.0], &[10.0001, 2.0]).is_ok());
        assert!(same_results(&[10.0, 2.0], &[10.0, 2.1]).is_err());
        assert!(same_results(&[10.0], &[10.0, 2.0]).is_err());
        assert!(same_results(&[f64::NAN], &[f64::NAN]).is_err());
    }
}
