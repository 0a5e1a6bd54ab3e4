//! Measures a training step, compared with PyTorch.

use std::fs;
use std::process::Command;

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::{Value, json};

use super::python;
use super::table::{Row, median};
use crate::failure::{Failure, Result};
use crate::fixtures::tensor_file::TensorFile;
use crate::process::{command, output};
use crate::workspace::{release_dir, root};

const ROUNDS: usize = 3;
/// Steps of one round. The first is a warm-up and is not counted.
const STEPS: usize = 6;

/// Seconds of a step and peak memory of rank 0.
#[derive(Debug, Clone, Copy)]
pub struct Figures {
    pub step_s: f64,
    pub peak_gib: f64,
}

/// One comparison: the model that both sides train, and the distribution of the work.
#[derive(Debug)]
struct Case {
    what: &'static str,
    /// The recipe of this trainer in `tests/bench`, the shape of its latent and the number of segments.
    recipe: &'static str,
    latent: [usize; 4],
    segments: usize,
    /// The PyTorch script in `tests/bench`.
    script: &'static str,
    share: Share,
    time_bar: f64,
    memory_bar: f64,
}

/// The distribution of the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Share {
    /// One process of two threads.
    Alone,
    /// Two processes of one thread, each with a sample.
    Fsdp,
    /// Two processes of one thread, with one sample.
    Tp,
}

impl Share {
    fn ranks(self) -> usize {
        if self == Share::Alone { 1 } else { 2 }
    }
}

const COGVIDEOX: Case = Case {
    what: "1 process, 2 threads",
    recipe: "cogvideox-52m.toml",
    latent: [13, 16, 16, 24],
    segments: 1,
    script: "train.py",
    share: Share::Alone,
    time_bar: 1.0,
    memory_bar: 0.8,
};

const CASES: [Case; 4] = [
    COGVIDEOX,
    Case { what: "FSDP, 2 processes of 1 thread", share: Share::Fsdp, time_bar: 0.9, ..COGVIDEOX },
    Case { what: "TP, 2 processes of 1 thread", share: Share::Tp, time_bar: 0.9, memory_bar: 0.9, ..COGVIDEOX },
    Case {
        what: "TTT-MLP, 3 segments, 2 threads",
        recipe: "ttt-47m.toml",
        latent: [37, 16, 16, 16],
        segments: 3,
        script: "network.py",
        time_bar: 0.7,
        ..COGVIDEOX
    },
];

/// Adapters, compared with diffusers and PEFT in eager mode with activation checkpointing.
const LORA: Case = Case {
    what: "LoRA of rank 64, 2 threads",
    recipe: "cogvideox-52m-lora.toml",
    script: "lora.py",
    time_bar: 0.8,
    memory_bar: 0.6,
    ..COGVIDEOX
};

/// Measures one process of two threads, two of one thread under FSDP and under TP, and a network with TTT layers.
pub fn rows() -> Result<Vec<Row>> {
    measured(&python::environment()?, &CASES)
}

/// Measures a step that trains adapters of rank 64 on attention, in one process of two threads.
pub fn lora_rows() -> Result<Vec<Row>> {
    measured(&python::environment_with_lora()?, &[LORA])
}

fn measured(bin: &Utf8Path, cases: &[Case]) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for case in cases {
        let scratch = Scratch::new(&case.latent, &[64, 512], case.segments)?;
        let mut rounds = Vec::new();
        for round in 1..=ROUNDS {
            println!("training step, {}: round {round} of {ROUNDS}", case.what);
            rounds.push((ours(&scratch, case)?, theirs(bin, case)?));
        }
        let mut row = |of: &str, unit, figure: fn(&Figures) -> f64, at_most| {
            let each = |side: fn(&(Figures, Figures)) -> Figures| {
                median(&rounds.iter().map(|r| figure(&side(r))).collect::<Vec<_>>())
            };
            rows.push(Row {
                what: format!("training step, {}: {of}", case.what),
                unit: "×",
                rounds: rounds.iter().map(|(o, t)| figure(o) / figure(t)).collect(),
                at_most,
                note: format!("ours {:.2} {unit}, theirs {:.2} {unit}", each(|r| r.0), each(|r| r.1)),
            });
        };
        row("time", "s", |f| f.step_s, case.time_bar);
        row("peak memory", "GiB", |f| f.peak_gib, case.memory_bar);
    }
    Ok(rows)
}

fn theirs(bin: &Utf8Path, case: &Case) -> Result<Figures> {
    let ranks = case.share.ranks();
    let script = root().join("tests/bench").join(case.script);
    let threads = (2 / ranks).to_string();
    let mut run = command::<&str>(bin.join("python"), []);
    if ranks > 1 {
        run.args(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", &ranks.to_string()]);
    }
    run.args([script.as_str(), &threads, &STEPS.to_string()]);
    match case.share {
        Share::Alone => {}
        Share::Fsdp => drop(run.arg("fsdp")),
        Share::Tp => drop(run.arg("tp")),
    }
    let printed = output(&mut run, "see PyTorch's message")?.stdout;
    let result: Value = parse(&printed, &run)?;
    let steps: Vec<f64> = result["step_s"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
    figures(&steps, result["peak_gib"].as_f64(), &run)
}

fn ours(scratch: &Scratch, case: &Case) -> Result<Figures> {
    let ranks = case.share.ranks();
    let (shards, tp) = if case.share == Share::Tp { (1, ranks) } else { (ranks, 1) };
    let sets = vec![
        format!("mesh.dp_shard={shards}"),
        format!("mesh.tp={tp}"),
        format!("train.global_batch={shards}"),
        format!("train.steps={STEPS}"),
        format!("train.threads={}", 2 / ranks),
    ];
    launch(scratch, case.recipe, &ranks.to_string(), sets)
}

/// Trains a recipe of `tests/bench` with some keys set.
pub fn launch(scratch: &Scratch, recipe: &str, ranks: &str, sets: Vec<String>) -> Result<Figures> {
    let runs = scratch.0.join("runs");
    let recipe = root().join("tests/bench").join(recipe);
    let mut run = command(
        release_dir().join("vidtui"),
        ["--runs", runs.as_str(), "launch", recipe.as_str(), "--local", ranks, "--wait", "--json"],
    );
    for set in sets.into_iter().chain([format!("data.index={}", scratch.0.join("index.jsonl"))]) {
        run.args(["--set", &set]);
    }
    output(&mut run, "see the run's logs")?;
    let latest = fs::read_dir(&runs).into_iter().flatten().filter_map(|e| e.ok()).map(|e| e.path()).max();
    let metrics = latest.map(|dir| dir.join("metrics.jsonl")).unwrap_or_default();
    let text = fs::read_to_string(&metrics)
        .map_err(|e| Failure::new(format!("cannot read {}", metrics.display()), e, "see the run's logs"))?;
    let lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let steps: Vec<f64> = lines.iter().filter_map(|line| line["step_s"].as_f64()).collect();
    let peak = lines.last().and_then(|line| line["mem_peak_gib_by_rank"][0].as_f64());
    let figures = figures(&steps, peak, &run)?;
    // A checkpoint is 600 MB, and the next round expects its run to be the only one.
    fs::remove_dir_all(&runs).map_err(|e| Failure::new(format!("cannot remove {runs}"), e, "remove it by hand"))?;
    Ok(figures)
}

fn figures(steps: &[f64], peak_gib: Option<f64>, run: &Command) -> Result<Figures> {
    match (steps, peak_gib) {
        ([_, rest @ ..], Some(peak_gib)) if !rest.is_empty() => Ok(Figures { step_s: median(rest), peak_gib }),
        _ => Err(Failure::new(
            format!("`{}` printed no numbers", crate::process::shown(run)),
            "too few steps",
            "see its logs",
        )),
    }
}

fn parse(printed: &[u8], run: &Command) -> Result<Value> {
    serde_json::from_slice(printed)
        .map_err(|e| Failure::new(format!("`{}` printed no numbers", crate::process::shown(run)), e, "run it by hand"))
}

/// A temporary folder with data of the benchmark's shape.
pub struct Scratch(pub Utf8PathBuf);

impl Scratch {
    /// Creates the folder. Each sample has a latent and, for each segment, a text; `latent` and `text` are their shapes.
    pub fn new(latent: &[usize], text: &[usize], segments: usize) -> Result<Self> {
        let dir = crate::workspace::cache_dir()?.join(format!("bench-{}", std::process::id()));
        let failed = |e| Failure::new(format!("cannot write to {dir}"), e, "check the disk");
        fs::create_dir_all(&dir).map_err(failed)?;
        let scratch = Scratch(dir.clone());
        for (file, name, shape) in [("latent.safetensors", "latent", latent), ("text.safetensors", "text", text)] {
            let values = (0..shape.iter().product()).map(|i: usize| (i as f32 * 0.37).sin()).collect();
            let tensor = TensorFile { name: name.into(), shape: shape.to_vec(), values, metadata: Vec::new() };
            fs::write(dir.join(file), tensor.to_bytes()).map_err(failed)?;
        }
        let line = json!({"vid_emb": "latent.safetensors", "text_chunk_emb": vec!["text.safetensors"; segments]});
        fs::write(dir.join("index.jsonl"), format!("{line}\n").repeat(4)).map_err(failed)?;
        Ok(scratch)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Files left in the cache folder do no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}
