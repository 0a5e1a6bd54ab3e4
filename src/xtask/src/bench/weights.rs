//! Measures converting weights, compared with `cp` and a straightforward Python script.

use std::fs;

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::Value;

use super::python;
use super::table::{Row, median};
use crate::failure::{Failure, Result};
use crate::process::{command, output, run};
use crate::workspace::{cache_dir, release_dir, root};

const ROUNDS: usize = 3;

/// Seconds and peak memory of one command.
#[derive(Debug, Clone, Copy)]
struct Figures {
    s: f64,
    peak_mib: f64,
}

/// One round: all programs do the same work in turn. `linked` is `convert --link`, which writes no tensors.
#[derive(Debug, Clone, Copy)]
struct Round {
    ours: Figures,
    linked: Figures,
    cp: Figures,
    script: Figures,
}

/// Converts 4 GB of weights with the shapes of CogVideoX-2B, with the source in the page cache and without.
pub fn rows() -> Result<Vec<Row>> {
    let bin = python::environment()?;
    let scratch = Scratch::new()?;
    let script = root().join("tests/bench/weights.py");
    println!("making 4 GB of weights in {}", scratch.0);
    let model = scratch.0.join("model");
    let make = [script.as_str(), "make", model.as_str()];
    run(&mut command(bin.join("python"), make), "check that the disk has 10 GB free")?;
    let mut rows = Vec::new();
    for cache in ["warm", "cold"] {
        let mut rounds = Vec::new();
        for round in 1..=ROUNDS {
            println!("converting weights, {cache} cache: round {round} of {ROUNDS}");
            rounds.push(one_round(&bin, &script, &scratch.0, cache)?);
        }
        rows.extend(judged(cache, &rounds));
    }
    Ok(rows)
}

fn one_round(bin: &Utf8Path, script: &Utf8Path, scratch: &Utf8Path, cache: &str) -> Result<Round> {
    let (model, target) = (scratch.join("model"), scratch.join("target"));
    let vidtui = release_dir().join("vidtui");
    // `vidtui convert` syncs its files before it ends, so the others must sync too.
    let synced = |command: &str| format!("{command} && sync -f '{target}'");
    let measured = |what: &[&str]| -> Result<Figures> {
        let mut args = vec![script.as_str(), "measure", cache, model.as_str(), "--"];
        args.extend(what);
        let mut run = command(bin.join("python"), args);
        let printed = output(&mut run, "run it by hand")?.stdout;
        fs::remove_dir_all(&target).map_err(|e| cannot_remove(&target, &e))?;
        let report: Value = serde_json::from_slice(&printed).map_err(|e| {
            Failure::new("the weights bench printed no numbers", e, "run tests/bench/weights.py by hand")
        })?;
        let figure = |key: &str| report[key].as_f64().unwrap_or(f64::NAN);
        Ok(Figures { s: figure("s"), peak_mib: figure("peak_mib") })
    };
    let python = bin.join("python");
    let convert = [vidtui.as_str(), "convert", model.as_str(), target.as_str(), "--to", "internal"];
    Ok(Round {
        cp: measured(&["sh", "-c", &synced(&format!("cp -r '{model}' '{target}'"))])?,
        ours: measured(&convert)?,
        linked: measured(&[&convert[..], &["--link"]].concat())?,
        script: measured(&["sh", "-c", &synced(&format!("'{python}' '{script}' convert '{model}' '{target}'"))])?,
    })
}

fn judged(cache: &str, rounds: &[Round]) -> [Row; 4] {
    let values = |of: fn(&Round) -> f64| -> Vec<f64> { rounds.iter().map(of).collect() };
    let middle = |of: fn(&Round) -> f64| median(&values(of));
    let row = |what: String, unit, rounds, at_most, note| Row { what, unit, rounds, at_most, note };
    [
        row(
            format!("convert 4 GB, {cache} cache: time of cp and sync"),
            "×",
            values(|r| r.ours.s / r.cp.s),
            1.3,
            format!("ours {:.2} s, theirs {:.2} s", middle(|r| r.ours.s), middle(|r| r.cp.s)),
        ),
        row(
            format!("convert 4 GB, {cache} cache: time of Python, sync"),
            "×",
            values(|r| r.ours.s / r.script.s),
            0.2,
            format!("ours {:.2} s, theirs {:.2} s", middle(|r| r.ours.s), middle(|r| r.script.s)),
        ),
        row(
            format!("convert --link 4 GB, {cache} cache: time of Python"),
            "×",
            values(|r| r.linked.s / r.script.s),
            0.2,
            format!(
                "ours {:.2} s and no bytes of tensors, theirs {:.2} s",
                middle(|r| r.linked.s),
                middle(|r| r.script.s)
            ),
        ),
        row(
            format!("convert 4 GB, {cache} cache: peak memory"),
            "MiB",
            values(|r| r.ours.peak_mib),
            300.0,
            format!("the Python script {:.0} MiB", middle(|r| r.script.peak_mib)),
        ),
    ]
}

fn cannot_remove(path: &Utf8Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("cannot remove {path}"), error, "remove it by hand")
}

/// A temporary folder for the weights.
struct Scratch(Utf8PathBuf);

impl Scratch {
    fn new() -> Result<Self> {
        let dir = cache_dir()?.join(format!("bench-weights-{}", std::process::id()));
        fs::create_dir_all(&dir).map_err(|e| Failure::new(format!("cannot write to {dir}"), e, "check the disk"))?;
        Ok(Scratch(dir))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Files left in the cache folder do no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}
