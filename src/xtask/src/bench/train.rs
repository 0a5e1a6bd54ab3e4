//! A training step, ours against PyTorch's.

use std::fs;
use std::process::Command;

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::Value;

use super::python;
use super::table::{Row, median};
use crate::failure::{Failure, Result};
use crate::fixtures::tensor_file::TensorFile;
use crate::process::{command, output};
use crate::workspace::{release_dir, root};

const ROUNDS: usize = 3;
/// Steps of one round; the first, which warms up, does not count.
const STEPS: usize = 6;

/// Seconds of a step and peak memory of rank 0.
#[derive(Debug, Clone, Copy)]
struct Figures {
    step_s: f64,
    peak_gib: f64,
}

/// How the work is shared out.
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

/// Measures one process of two threads, and two of one thread under FSDP and under TP.
pub fn rows() -> Result<Vec<Row>> {
    let bin = python::environment()?;
    let scratch = Scratch::new([vec![13, 16, 16, 24], vec![64, 512]])?;
    let mut rows = Vec::new();
    for (what, share, time_bar, memory_bar) in [
        ("1 process, 2 threads", Share::Alone, 1.0, 0.8),
        ("FSDP, 2 processes of 1 thread", Share::Fsdp, 0.9, 0.8),
        ("TP, 2 processes of 1 thread", Share::Tp, 0.9, 0.9),
    ] {
        let mut rounds = Vec::new();
        for round in 1..=ROUNDS {
            println!("training step, {what}: round {round} of {ROUNDS}");
            rounds.push((ours(&scratch, share)?, theirs(&bin, share)?));
        }
        let values = |f: fn(&Figures) -> f64| rounds.iter().map(|(o, t)| f(o) / f(t)).collect();
        let note = |f: fn(&Figures) -> f64, unit| {
            let each = |side: fn(&(Figures, Figures)) -> Figures| {
                median(&rounds.iter().map(|r| f(&side(r))).collect::<Vec<_>>())
            };
            format!("ours {:.2} {unit}, theirs {:.2} {unit}", each(|r| r.0), each(|r| r.1))
        };
        rows.push(Row {
            what: format!("training step, {what}: time"),
            unit: "×",
            rounds: values(|f| f.step_s),
            at_most: time_bar,
            note: note(|f| f.step_s, "s"),
        });
        rows.push(Row {
            what: format!("training step, {what}: peak memory"),
            unit: "×",
            rounds: values(|f| f.peak_gib),
            at_most: memory_bar,
            note: note(|f| f.peak_gib, "GiB"),
        });
    }
    Ok(rows)
}

fn theirs(bin: &Utf8Path, share: Share) -> Result<Figures> {
    let ranks = share.ranks();
    let script = root().join("tests/bench/train.py");
    let threads = (2 / ranks).to_string();
    let mut run = command::<&str>(bin.join("python"), []);
    if ranks > 1 {
        run.args(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", &ranks.to_string()]);
    }
    run.args([script.as_str(), &threads, &STEPS.to_string(), if share == Share::Tp { "tp" } else { "fsdp" }]);
    let printed = output(&mut run, "see PyTorch's message")?.stdout;
    let said: Value = parse(&printed, &run)?;
    let steps: Vec<f64> = said["step_s"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
    figures(&steps, said["peak_gib"].as_f64(), &run)
}

fn ours(scratch: &Scratch, share: Share) -> Result<Figures> {
    let ranks = share.ranks();
    let (shards, tp) = if share == Share::Tp { (1, ranks) } else { (ranks, 1) };
    let (n, runs) = (ranks.to_string(), scratch.0.join("runs"));
    let recipe = root().join("tests/bench/cogvideox-52m.toml");
    let mut run = command(
        release_dir().join("vidtui"),
        ["--runs", runs.as_str(), "launch", recipe.as_str(), "--local", &n, "--wait", "--json"],
    );
    for set in [
        format!("mesh.dp_shard={shards}"),
        format!("mesh.tp={tp}"),
        format!("train.global_batch={shards}"),
        format!("train.steps={STEPS}"),
        format!("train.threads={}", 2 / ranks),
        format!("data.index={}", scratch.0.join("index.jsonl")),
    ] {
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
    // A round's checkpoint is 600 MB, and the next round's run must be the only one.
    fs::remove_dir_all(&runs).map_err(|e| Failure::new(format!("cannot remove {runs}"), e, "remove it by hand"))?;
    Ok(figures)
}

fn figures(steps: &[f64], peak_gib: Option<f64>, run: &Command) -> Result<Figures> {
    match (steps, peak_gib) {
        ([_, rest @ ..], Some(peak_gib)) if !rest.is_empty() => Ok(Figures { step_s: median(rest), peak_gib }),
        _ => Err(Failure::new(
            format!("`{}` gave no figures", crate::process::shown(run)),
            "too few steps",
            "see its logs",
        )),
    }
}

fn parse(printed: &[u8], run: &Command) -> Result<Value> {
    serde_json::from_slice(printed)
        .map_err(|e| Failure::new(format!("`{}` gave no figures", crate::process::shown(run)), e, "run it by hand"))
}

/// A folder with data of the benchmark's shape, removed at the end.
pub struct Scratch(pub Utf8PathBuf);

impl Scratch {
    /// Makes one whose samples have a latent and a text of these shapes.
    pub fn new([latent, text]: [Vec<usize>; 2]) -> Result<Self> {
        let dir = crate::workspace::cache_dir()?.join(format!("bench-{}", std::process::id()));
        let failed = |e| Failure::new(format!("cannot write to {dir}"), e, "check the disk");
        fs::create_dir_all(&dir).map_err(failed)?;
        let scratch = Scratch(dir.clone());
        for (file, name, shape) in [("latent.safetensors", "latent", latent), ("text.safetensors", "text", text)] {
            let values = (0..shape.iter().product()).map(|i: usize| (i as f32 * 0.37).sin()).collect();
            let tensor = TensorFile { name: name.into(), shape, values, metadata: Vec::new() };
            fs::write(dir.join(file), tensor.to_bytes()).map_err(failed)?;
        }
        let line = "{\"vid_emb\":\"latent.safetensors\",\"text_chunk_emb\":[\"text.safetensors\"]}\n";
        fs::write(dir.join("index.jsonl"), line.repeat(4)).map_err(failed)?;
        Ok(scratch)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Left-overs in a cache folder harm nobody.
        let _ = fs::remove_dir_all(&self.0);
    }
}
