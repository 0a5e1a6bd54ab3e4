//! Saving and loading a checkpoint of about a gigabyte.

use std::fs;
use std::time::Instant;

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::Value;

use super::table::{Row, median};
use super::train::Scratch;
use crate::failure::{Failure, Result};
use crate::process::{command, output};
use crate::workspace::{release_dir, root};

const ROUNDS: usize = 3;
/// A model of 96 million parameters, with two moments each. With 144 tokens, a forward and backward pass takes about a second
/// on two cores: longer than the copy that the update waits for, and short compared with the steps of real training.
const SHAPE: [&str; 7] = [
    "model.num_layers=5",
    "model.num_heads=16",
    "model.text_len=16",
    "model.text_dim=64",
    "model.latent_frames=1",
    "model.latent_height=16",
    "model.latent_width=32",
];
/// Steps between checkpoints. The first save copies to new memory, the second to the same memory; both are written during
/// training. The third save, of the last step, is synchronous.
const INTERVAL: u64 = 6;
const LAST: u64 = 3 * INTERVAL;

/// Seconds of one round.
#[derive(Debug, Clone, Copy)]
struct Round {
    /// How long the first asynchronous save stopped training.
    first_stall: f64,
    /// How long the second one stopped training.
    stall: f64,
    /// The extra time of all steps while the second save was copied and written, including the stall.
    lost: f64,
    /// How long the synchronous save took.
    save: f64,
    /// How long loading on resume took, with checksums.
    load: f64,
    /// How long `cat` of the same files took.
    cat: f64,
}

/// Measures saves and loads. The files are dropped from the page cache before each load and each `cat`.
pub fn rows() -> Result<Vec<Row>> {
    let mut rounds = Vec::new();
    for round in 1..=ROUNDS {
        println!("checkpoint of a gigabyte: round {round} of {ROUNDS}");
        rounds.push(one_round(&Scratch::new(&[1, 16, 16, 32], &[16, 64], 1)?)?);
    }
    let ratios = |f: fn(&Round) -> f64| rounds.iter().map(f).collect::<Vec<f64>>();
    let note = |a: &str, x: fn(&Round) -> f64, b: &str, y: fn(&Round) -> f64| {
        format!("{a} {:.2} s, {b} {:.2} s", median(&ratios(x)), median(&ratios(y)))
    };
    let stall = |what: &str, of: fn(&Round) -> f64| Row {
        what: format!("checkpoint of 1 GB: {what} / synchronous save"),
        unit: "×",
        rounds: rounds.iter().map(|round| of(round) / round.save).collect(),
        at_most: 0.10,
        note: note("stall", of, "save", |r| r.save),
    };
    Ok(vec![
        stall("first stall", |r| r.first_stall),
        stall("stall", |r| r.stall),
        // This row has no limit: the save takes CPU from training unless the machine has more cores than training uses.
        Row {
            what: "checkpoint of 1 GB: lost time / synchronous save".into(),
            unit: "×",
            rounds: ratios(|r| r.lost / r.save),
            at_most: f64::INFINITY,
            note: note("lost", |r| r.lost, "save", |r| r.save),
        },
        Row {
            what: "checkpoint of 1 GB: load / cat".into(),
            unit: "×",
            rounds: ratios(|r| r.load / r.cat),
            at_most: 1.25,
            note: note("load", |r| r.load, "cat", |r| r.cat),
        },
    ])
}

fn one_round(scratch: &Scratch) -> Result<Round> {
    let runs = scratch.0.join("runs");
    let recipe = root().join("tests/bench/cogvideox-52m.toml");
    let sets = [
        format!("train.steps={LAST}"),
        format!("checkpoint.interval={INTERVAL}"),
        "checkpoint.keep_last=1".into(),
        "train.threads=2".into(),
        format!("data.index={}", scratch.0.join("index.jsonl")),
    ];
    let mut launch = vidtui(&runs, &["launch", recipe.as_str(), "--local", "1", "--wait", "--json"]);
    launch.args(SHAPE.into_iter().chain(sets.iter().map(String::as_str)).flat_map(|set| ["--set", set]));
    output(&mut launch, "see the run's logs")?;
    let run = fs::read_dir(&runs).into_iter().flatten().filter_map(|e| e.ok()).map(|e| e.path()).max();
    let run = run.and_then(|path| Utf8PathBuf::from_path_buf(path).ok()).unwrap_or_default();

    // `checkpoint_s` of a sample is the stall since the previous sample. The stall of a save is the sum up to the next save.
    let samples = lines(&run.join("metrics.jsonl"))?;
    let number = |line: &Value, key: &str| line[key].as_f64().unwrap_or(0.0);
    let after =
        |save: u64| samples.iter().filter(move |l| l["step"].as_u64().is_some_and(|s| (s - 1) / INTERVAL == save));
    let stall = |save: u64| -> f64 { after(save).map(|l| number(l, "checkpoint_s")).sum() };
    let (first_stall, stall) = (stall(1), stall(2));
    let usual = median(&samples.iter().map(|l| number(l, "step_s")).collect::<Vec<f64>>());
    let written = events(&run, "checkpoint_saved", "t")?.get(1).copied().unwrap_or(0.0);
    let during = after(2).filter(|l| number(l, "t") - number(l, "step_s") < written);
    let lost = during.map(|l| number(l, "step_s") + number(l, "checkpoint_s") - usual).sum();
    let saves = events(&run, "checkpoint_saved", "seconds")?;
    let Some(save) = saves.last().filter(|_| first_stall > 0.0 && stall > 0.0) else { return Err(none(&run)) };

    let files = checkpoint_files(&run)?;
    evict(&files)?;
    let start = Instant::now();
    output(command::<&str>("sh", ["-c", "cat \"$@\" > /dev/null", "sh"]).args(&files), "check the disk")?;
    let cat = start.elapsed().as_secs_f64();
    evict(&files)?;
    let steps = format!("train.steps={}", LAST + 1);
    output(&mut vidtui(&runs, &["resume", "latest", "--set", &steps, "--wait", "--json"]), "see the run's logs")?;
    let loads = events(&run, "restored", "seconds")?;
    let Some(load) = loads.last() else { return Err(none(&run)) };
    Ok(Round { first_stall, stall, lost, save: *save, load: *load, cat })
}

fn vidtui(runs: &Utf8Path, args: &[&str]) -> std::process::Command {
    let mut vidtui = command(release_dir().join("vidtui"), ["--runs", runs.as_str()]);
    vidtui.args(args);
    vidtui
}

fn none(run: &Utf8Path) -> Failure {
    Failure::new("cannot measure checkpoints", format!("{run} has no event of a save or load"), "see the run's logs")
}

fn lines(path: &Utf8Path) -> Result<Vec<Value>> {
    let text =
        fs::read_to_string(path).map_err(|e| Failure::new(format!("cannot read {path}"), e, "see the run's logs"))?;
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

/// Returns the number `key` of every event of a kind.
fn events(run: &Utf8Path, kind: &str, key: &str) -> Result<Vec<f64>> {
    let events = lines(&run.join("events.jsonl"))?;
    Ok(events.iter().filter(|e| e["event"] == kind).filter_map(|e| e[key].as_f64()).collect())
}

/// Returns the tensor files of the run's only checkpoint.
fn checkpoint_files(run: &Utf8Path) -> Result<Vec<Utf8PathBuf>> {
    let folder = run.join("checkpoints").join(format!("step-{LAST:08}"));
    let failed = |e| Failure::new(format!("cannot list {folder}"), e, "see the run's logs");
    let names: std::io::Result<Vec<_>> = folder.read_dir_utf8().map_err(failed)?.map(|e| Ok(e?.into_path())).collect();
    Ok(names.map_err(failed)?.into_iter().filter(|path| path.extension() == Some("safetensors")).collect())
}

/// Drops files from the page cache.
fn evict(files: &[Utf8PathBuf]) -> Result<()> {
    for file in files {
        let of = format!("if={file}");
        output(&mut command("dd", [of.as_str(), "iflag=nocache", "count=0"]), "install coreutils")?;
    }
    Ok(())
}
