//! Measures the console on a long run: time to its first frame, CPU while it is idle, and CPU per frame of a video.

use std::fmt::Write;
use std::fs;

use serde_json::Value;

use super::table::Row;
use crate::failure::{Failure, Result};
use crate::process::{command, output};
use crate::workspace::{cache_dir, release_dir, root};

const STEPS: u64 = 100_000;
const ROUNDS: usize = 5;
const IDLE_S: &str = "10";

/// Measures the console in a pseudo-terminal on a finished run of 100,000 logged steps.
pub fn rows() -> Result<Vec<Row>> {
    let runs = cache_dir()?.join(format!("bench-runs-{}", std::process::id()));
    let measured = make_run(&runs).and_then(|()| measure(&runs));
    // Files left in the cache folder do no harm.
    let _ = fs::remove_dir_all(&runs);
    measured
}

fn measure(runs: &camino::Utf8Path) -> Result<Vec<Row>> {
    let script = root().join("tests/bench/console.py");
    let program = release_dir().join("vidtui");
    let (mut first, mut shown, mut idle, mut frame) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        println!("console on {STEPS} logged steps: round {round} of {ROUNDS}");
        let mut run = command("python3", [script.as_str(), IDLE_S, program.as_str(), "--runs", runs.as_str()]);
        let printed = output(&mut run, "run it by hand")?.stdout;
        let said: Value = serde_json::from_slice(&printed).map_err(|e| {
            Failure::new("the console bench printed no numbers", e, "run tests/bench/console.py by hand")
        })?;
        let figure = |key: &str| said[key].as_f64().unwrap_or(f64::NAN);
        first.push(figure("first_frame_s") * 1e3);
        shown.push(figure("run_shown_s") * 1e3);
        idle.push(figure("idle_cpu") * 100.0);
        frame.push(figure("frame_cpu_s") * 1e3);
    }
    let row = |what: &str, unit, rounds, at_most| Row { what: what.into(), unit, rounds, at_most, note: String::new() };
    Ok(vec![
        row("first frame of the console, 100,000 steps", "ms", first, 100.0),
        row("the run's last step on screen", "ms", shown, 100.0),
        row("CPU of the idle console", "%", idle, 0.5),
        row("CPU of a frame, a video of 30 fps in 150 × 44 cells", "ms", frame, 4.0),
    ])
}

/// Writes a finished run with many logged steps, based on the frozen run of the tests.
fn make_run(runs: &camino::Utf8Path) -> Result<()> {
    let failed = |e| Failure::new(format!("cannot write to {runs}"), e, "check the disk");
    let dir = runs.join("2026-11-20T0340-long-k7f2");
    fs::create_dir_all(dir.join("attempts/0001")).map_err(failed)?;
    let recipe = root().join("tests/bench/cogvideox-52m.toml");
    let set = format!("train.steps={STEPS}");
    let mut show = command(release_dir().join("vidtui"), ["recipe", "show", recipe.as_str(), "--set", set.as_str()]);
    let index = format!("data.index={}", root().join("assets/demo/2s.jsonl"));
    let shown = output(show.args(["--set", index.as_str()]), "see its message")?.stdout;
    let recipe = String::from_utf8_lossy(&shown).lines().fold(String::new(), |mut text, line| {
        let line = line.strip_prefix('[').map_or_else(|| line.to_owned(), |section| format!("[recipe.{section}"));
        let _ = writeln!(text, "{line}");
        text
    });
    let run = format!(
        "schema = 1\nid = \"2026-11-20T0340-long-k7f2\"\nname = \"long\"\ncreated_s = 1.7636e9\ntrainer_version = \"0\"\n\
         libtorch = \"2.11.0\"\n[start]\nkind = \"random\"\n[recipe]\n{recipe}"
    );
    fs::write(dir.join("run.toml"), run).map_err(failed)?;
    let attempt = "schema = 1\nnumber = 1\nwhy = \"launch\"\nby = \"bench\"\nstarted_s = 1.7636e9\nstart_step = 0\n\
                   [start]\nkind = \"random\"\n[mesh]\ndp_replicate = 1\ndp_shard = 1\n[placement]\n\
                   ranks = [{ rank = 0, node = \"bench\", local_rank = 0 }]\n";
    fs::write(dir.join("attempts/0001/attempt.toml"), attempt).map_err(failed)?;
    let mut metrics = String::new();
    for step in 1..=STEPS {
        let t = 1.7636e9 + step as f64;
        let loss = 1.0 / (1.0 + step as f64 / 9000.0) + 0.05 * (step as f64 * 0.7).sin();
        let _ = writeln!(
            metrics,
            "{{\"v\":1,\"attempt\":1,\"step\":{step},\"t\":{t},\"loss\":{loss},\"grad_norm\":0.08,\"lr\":1e-5,\
             \"step_s\":0.9{:02},\"data_s\":0.01,\"forward_s\":0.3,\"backward_s\":0.6,\"optimizer_s\":0.02,\
             \"samples_per_s\":2.0,\"tokens_per_s\":2600.0,\"mem_gib_by_rank\":[1.0,1.01],\
             \"mem_peak_gib_by_rank\":[1.2,1.21],\"step_s_by_rank\":[0.91,0.92]}}",
            step % 100
        );
    }
    fs::write(dir.join("metrics.jsonl"), metrics).map_err(failed)?;
    make_sample(&dir)?;
    let event = format!("{{\"v\":1,\"t\":1763700001.0,\"attempt\":1,\"step\":{STEPS},\"event\":\"finished\"}}\n");
    fs::write(dir.join("events.jsonl"), event).map_err(failed)
}

/// Writes a sample of the last step: a video of 30 frames a second in which every pixel changes.
fn make_sample(dir: &camino::Utf8Path) -> Result<()> {
    let folder = dir.join(format!("samples/step-{STEPS:08}"));
    let failed = |e| Failure::new(format!("cannot write to {folder}"), e, "check the disk");
    fs::create_dir_all(&folder).map_err(failed)?;
    let video = folder.join("000.mp4");
    let source = "testsrc2=size=720x480:rate=30:duration=4,noise=alls=40:allf=t";
    let args = ["-v", "error", "-f", "lavfi", "-i", source, "-pix_fmt", "yuv420p", "-y", video.as_str()];
    output(&mut command("ffmpeg", args), "install ffmpeg")?;
    let sidecar = format!(
        "{{\"v\":1,\"step\":{STEPS},\"index\":0,\"prompt\":\"a test pattern\",\"seed\":1,\"width\":720,\"height\":480,\
         \"frames\":120,\"fps\":30.0,\"sampling_steps\":1,\"scheduler\":\"ddim\",\"guidance\":1.0,\"dtype\":\"float32\",\
         \"weights\":\"bench\",\"weights_xxh3\":\"0\",\"trainer\":\"0\",\"took_s\":0.0,\"t\":1763700001.0}}"
    );
    fs::write(folder.join("000.json"), sidecar).map_err(failed)
}
