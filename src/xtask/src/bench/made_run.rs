//! Runs that the console benches open: many logged steps, without training.

use std::fmt::Write;
use std::fs::{self, File};
use std::io::{BufWriter, Write as _};

use camino::{Utf8Path, Utf8PathBuf};

use crate::failure::{Failure, Result};
use crate::process::{command, output};
use crate::workspace::{release_dir, root};

/// The id of the run.
pub const ID: &str = "2026-11-20T0340-long-k7f2";

/// Values in each logged step of [`with_points`].
pub const METRICS: u64 = 10;

/// Writes a run of `steps` logged steps with as many metrics as the trainer writes, and a video as its sample. It has finished.
pub fn finished(runs: &Utf8Path, steps: u64) -> Result<()> {
    let dir = begun(runs, steps)?;
    let mut metrics = BufWriter::new(File::create(dir.join("metrics.jsonl")).map_err(failed(&dir))?);
    for step in 1..=steps {
        let (t, loss) = (1.7636e9 + step as f64, loss(step));
        let line = format!(
            "{{\"v\":1,\"attempt\":1,\"step\":{step},\"t\":{t},\"loss\":{loss},\"grad_norm\":0.08,\"lr\":1e-5,\
             \"step_s\":0.9{:02},\"data_s\":0.01,\"forward_s\":0.3,\"backward_s\":0.6,\"optimizer_s\":0.02,\
             \"samples_per_s\":2.0,\"tokens_per_s\":2600.0,\"mem_gib_by_rank\":[1.0,1.01],\
             \"mem_peak_gib_by_rank\":[1.2,1.21],\"step_s_by_rank\":[0.91,0.92]}}",
            step % 100
        );
        writeln!(metrics, "{line}").map_err(failed(&dir))?;
    }
    metrics.flush().map_err(failed(&dir))?;
    sample(&dir, steps)?;
    end(&dir, steps)
}

/// Writes a finished run with this number of points: one point is the value of one of ten metrics at one step.
pub fn with_points(runs: &Utf8Path, points: u64) -> Result<()> {
    let steps = points / METRICS;
    let dir = begun(runs, steps)?;
    let mut metrics = BufWriter::new(File::create(dir.join("metrics.jsonl")).map_err(failed(&dir))?);
    for step in 1..=steps {
        writeln!(metrics, "{}", line(step, 1.7636e9 + step as f64)).map_err(failed(&dir))?;
    }
    metrics.flush().map_err(failed(&dir))?;
    end(&dir, steps)
}

/// Values in each logged step of [`with_all_charts`].
const ALL_METRICS: u64 = 30;

/// Writes a finished run with about this number of points, in which every chart of a training run has values: also validation losses, weight norm,
/// MFU, memory of two ranks, and samples of two nodes of eight GPUs.
pub fn with_all_charts(runs: &Utf8Path, points: u64) -> Result<()> {
    let steps = points / ALL_METRICS;
    let dir = begun(runs, steps)?;
    let mut metrics = BufWriter::new(File::create(dir.join("metrics.jsonl")).map_err(failed(&dir))?);
    for step in 1..=steps {
        let line = line(step, 1.7636e9 + step as f64);
        let loss = loss(step);
        let more = format!(
            "\"mem_gib_by_rank\":[1.0,1.0{:02}],\"mem_peak_gib_by_rank\":[1.2,1.21],\"step_s_by_rank\":[0.91,0.92],\
             \"busy_s_by_rank\":[0.8,0.8{:02}],\"weight_norm\":{},\"mfu\":0.4{:02},\"validation_loss\":{loss},\
             \"validation_loss_by_level\":[{loss},0.2,0.3,0.4,0.5,0.6,0.7,0.8,{loss}]}}",
            step % 100,
            step % 10,
            10.0 + loss,
            step % 50,
        );
        writeln!(metrics, "{},{more}", line.trim_end_matches('}')).map_err(failed(&dir))?;
    }
    metrics.flush().map_err(failed(&dir))?;
    for node in ["bench-1", "bench-2"] {
        let folder = dir.join("nodes").join(node);
        fs::create_dir_all(&folder).map_err(failed(&dir))?;
        let mut samples = BufWriter::new(File::create(folder.join("gpu.jsonl")).map_err(failed(&dir))?);
        for at in 0..steps / 5 {
            writeln!(samples, "{}", node_line(1.7636e9 + 5.0 * at as f64, at)).map_err(failed(&dir))?;
        }
        samples.flush().map_err(failed(&dir))?;
    }
    end(&dir, steps)
}

/// Returns a line of `gpu.jsonl` with eight GPUs.
pub fn node_line(t: f64, number: u64) -> String {
    let column = |base: u64| {
        let values: Vec<String> = (0..8).map(|gpu| (base + (number + gpu) % 50).to_string()).collect();
        values.join(",")
    };
    format!(
        "{{\"v\":1,\"attempt\":1,\"t\":{t},\"took_s\":0.1,\"cpu_pct\":12.5,\"mem_used_mib\":200000,\"mem_total_mib\":2000000,\
         \"gpus\":{{\"index\":[0,1,2,3,4,5,6,7],\"power_w\":[{}],\"mem_used_mib\":[{}],\"util_pct\":[{}]}}}}",
        column(600),
        column(70_000),
        column(50)
    )
}

/// Writes a run that has begun, and returns its folder. [`line()`] makes its metrics.
pub fn begun(runs: &Utf8Path, steps: u64) -> Result<Utf8PathBuf> {
    begun_as(runs, ID, steps)
}

/// Writes a run with this id that has begun.
pub fn begun_as(runs: &Utf8Path, id: &str, steps: u64) -> Result<Utf8PathBuf> {
    let dir = runs.join(id);
    fs::create_dir_all(dir.join("attempts/0001")).map_err(failed(&dir))?;
    let recipe = root().join("tests/bench/cogvideox-52m.toml");
    let set = format!("train.steps={steps}");
    let mut show = command(release_dir().join("vidtui"), ["recipe", "show", recipe.as_str(), "--set", set.as_str()]);
    let index = format!("data.index={}", root().join("assets/demo/2s.jsonl"));
    let shown = output(show.args(["--set", index.as_str()]), "see its message")?.stdout;
    let recipe = String::from_utf8_lossy(&shown).lines().fold(String::new(), |mut text, line| {
        let line = line.strip_prefix('[').map_or_else(|| line.to_owned(), |section| format!("[recipe.{section}"));
        let _ = writeln!(text, "{line}");
        text
    });
    let run = format!(
        "schema = 1\nid = \"{id}\"\nname = \"long\"\ncreated_s = 1.7636e9\ntrainer_version = \"0\"\n\
         libtorch = \"2.11.0\"\n[start]\nkind = \"random\"\n[recipe]\n{recipe}"
    );
    fs::write(dir.join("run.toml"), run).map_err(failed(&dir))?;
    let attempt = "schema = 1\nnumber = 1\nwhy = \"launch\"\nby = \"bench\"\nstarted_s = 1.7636e9\nstart_step = 0\n\
                   [start]\nkind = \"random\"\n[mesh]\ndp_replicate = 1\ndp_shard = 1\n[placement]\n\
                   ranks = [{ rank = 0, node = \"bench\", local_rank = 0 }]\n";
    fs::write(dir.join("attempts/0001/attempt.toml"), attempt).map_err(failed(&dir))?;
    Ok(dir)
}

/// Returns a line of `metrics.jsonl` with [`METRICS`] values.
pub fn line(step: u64, t: f64) -> String {
    format!(
        "{{\"v\":1,\"attempt\":1,\"step\":{step},\"t\":{t},\"loss\":{},\"grad_norm\":0.08,\"lr\":1e-5,\"step_s\":0.9{:02},\
         \"data_s\":0.01,\"forward_s\":0.3,\"backward_s\":0.6,\"optimizer_s\":0.02,\"samples_per_s\":2.0,\"tokens_per_s\":2600.0}}",
        loss(step),
        step % 100
    )
}

fn loss(step: u64) -> f64 {
    1.0 / (1.0 + step as f64 / 9000.0) + 0.05 * (step as f64 * 0.7).sin()
}

/// Writes the end of a run.
pub fn end(dir: &Utf8Path, steps: u64) -> Result<()> {
    let event = format!("{{\"v\":1,\"t\":1763700001.0,\"attempt\":1,\"step\":{steps},\"event\":\"finished\"}}\n");
    fs::write(dir.join("events.jsonl"), event).map_err(failed(dir))
}

fn failed(dir: &Utf8Path) -> impl Fn(std::io::Error) -> Failure {
    move |error| Failure::new(format!("cannot write to {dir}"), error, "check the disk")
}

/// Writes a sample of the last step: a video of 30 frames a second in which every pixel changes.
fn sample(dir: &Utf8Path, steps: u64) -> Result<()> {
    let folder = dir.join(format!("samples/step-{steps:08}"));
    fs::create_dir_all(&folder).map_err(failed(&folder))?;
    let video = folder.join("000.mp4");
    let source = "testsrc2=size=720x480:rate=30:duration=4,noise=alls=40:allf=t";
    let args = ["-v", "error", "-f", "lavfi", "-i", source, "-pix_fmt", "yuv420p", "-y", video.as_str()];
    output(&mut command("ffmpeg", args), "install ffmpeg")?;
    let sidecar = format!(
        "{{\"v\":1,\"step\":{steps},\"index\":0,\"prompt\":\"a test pattern\",\"seed\":1,\"width\":720,\"height\":480,\
         \"frames\":120,\"fps\":30.0,\"sampling_steps\":1,\"scheduler\":\"ddim\",\"guidance\":1.0,\"dtype\":\"float32\",\
         \"weights\":\"bench\",\"weights_xxh3\":\"0\",\"trainer\":\"0\",\"took_s\":0.0,\"t\":1763700001.0}}"
    );
    fs::write(folder.join("000.json"), sidecar).map_err(failed(&folder))
}
