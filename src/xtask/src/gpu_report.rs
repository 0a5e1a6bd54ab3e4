//! `cargo xtask gpu-report`: runs the commands of `docs/gpu-first-run.md` and writes what they print into one file.
//!
//! A command that fails does not end the report: each later one shows more about the machine. Presets run at one layer on latents that
//! the report makes, and their peak memory is compared with the plan of `vidtui check`. PyTorch and diffusers run the same work beside.

mod latents;

use std::fmt::Write;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::Value;

use crate::bench::python::{environment as python, nvcc, packages_with_cuda};
use crate::failure::{Failure, Result};
use crate::process::{command, shown};
use crate::workspace::root;

/// The folder of the report and of its runs.
const FOLDER: &str = "target/gpu-report";
/// The recipe of the runs. Its data is in the repository.
const RECIPE: &str = "configs/demo/2s.toml";
/// Bytes of the workspace of cuBLAS (`recipe::cost::overhead`).
const CUBLAS_WORKSPACE: f64 = 64.0 * 1024.0 * 1024.0;
/// The number of lines of a command's output that the report keeps: the last ones.
const LINES: usize = 120;

/// A recipe that runs with one layer, or few, with the sizes of its latents.
struct Stage {
    name: &'static str,
    /// Latent frames, rows and columns.
    frames: usize,
    rows: usize,
    columns: usize,
    /// The number of segments, the text tokens of each, and the width of a token.
    segments: usize,
    text_len: usize,
    text_dim: usize,
}

impl Stage {
    const fn of_5b(name: &'static str, frames: usize, segments: usize, text_len: usize) -> Self {
        Stage { name, frames, rows: 60, columns: 90, segments, text_len, text_dim: 4096 }
    }
}

/// The recipes that fit one GPU: TTT-MLP's first stages and CogVideoX-5B with one layer, and the network of the training benchmark.
const STAGES: [Stage; 4] = [
    Stage::of_5b("3s", 13, 1, 498),
    Stage::of_5b("9s", 37, 3, 502),
    Stage::of_5b("5b", 13, 1, 226),
    Stage { name: "52m", frames: 13, rows: 16, columns: 24, segments: 1, text_len: 64, text_dim: 512 },
];

/// A command of the report.
struct Step {
    /// The title of the command in the report.
    shows: &'static str,
    words: Vec<String>,
    /// The name of the run that the command starts, if it starts one.
    run: Option<&'static str>,
}

impl Step {
    /// Returns the launch without `--wait`, so that the next commands run during the run.
    fn in_background(mut self) -> Self {
        self.words.retain(|word| word != "--wait");
        Step { run: None, ..self }
    }
}

/// Runs the command.
pub fn run(args: &[String]) -> Result<()> {
    if let [first, ..] = args {
        return Err(Failure::request("cannot report", format!("{first:?} is not known"), "give no arguments"));
    }
    let folder = root().join(FOLDER);
    fs::create_dir_all(&folder).map_err(|e| Failure::new(format!("cannot create {folder}"), e, "check the disk"))?;
    let gpus = gpus();
    let environment = environment();
    let mut report = format!("{} found\n", if gpus == 1 { "1 GPU".to_owned() } else { format!("{gpus} GPUs") });
    if let Err(failure) = &environment {
        let _ = writeln!(report, "{failure}");
    }
    let mut variables = environment.unwrap_or_default();
    if let Ok(bin) = python() {
        let others = std::env::var("PATH").unwrap_or_default();
        variables.push(("PATH", format!("{bin}:{others}").into()));
    }
    let file = folder.join("report.txt");
    for stage in STAGES {
        if let Err(error) = latents::make(&folder, &stage) {
            let _ = writeln!(report, "cannot make the latents of {}: {error}", stage.name);
        }
    }
    for step in steps(gpus.max(1)) {
        println!("{}: {}", step.shows, step.words.join(" "));
        report += &section(&step, &variables);
        // Written after each command, so that a machine that stops leaves a report.
        fs::write(&file, &report).map_err(|e| Failure::new(format!("cannot write {file}"), e, "check the disk"))?;
    }
    println!("{file}");
    Ok(())
}

/// Returns the number of GPUs that nvidia-smi lists.
fn gpus() -> usize {
    let listed = Command::new("nvidia-smi").arg("-L").output();
    listed.map_or(0, |out| String::from_utf8_lossy(&out.stdout).lines().filter(|line| line.starts_with("GPU ")).count())
}

/// Returns the variables with which the commands find libtorch, nvcc and the trainer for GPUs.
fn environment() -> Result<Vec<(&'static str, Utf8PathBuf)>> {
    let trainer = root().join("target/cuda/release/vidtui-train");
    Ok(vec![("LIBTORCH", packages_with_cuda()?.join("torch")), ("NVCC", nvcc()?), ("VIDTUI_TRAIN", trainer)])
}

/// Returns the titles of the commands.
#[cfg(test)]
pub fn titles() -> Vec<&'static str> {
    steps(1).iter().map(|step| step.shows).collect()
}

/// Returns the commands for a machine with this number of GPUs.
fn steps(gpus: usize) -> Vec<Step> {
    let step = |shows, line: &str| Step { shows, words: line.split(' ').map(str::to_owned).collect(), run: None };
    let launch_for = |steps: u32, shows, name: &'static str, ranks: usize, sets: &str| {
        let line = format!(
            "target/release/vidtui --runs {FOLDER}/runs launch {RECIPE} --name {name} --fit {ranks} --local {ranks} --wait --set train.steps={steps} {sets}"
        );
        Step { run: Some(name), ..step(shows, &line) }
    };
    let launch = |shows, name, ranks, sets: &str| launch_for(20, shows, name, ranks, sets);
    // The recipe's batch has four samples.
    let all = if gpus >= 4 { 4 } else { gpus };
    let example = |package: &str, name: &str, args: &str| {
        format!("cargo run --release -p {package} --features cuda --target-dir target/cuda --example {name} -- {args}")
    };
    // One sample, whose heads and tokens are split over the ranks.
    let one_sample = |shows, name: &'static str, recipe: &str, stage: &Stage, ranks: usize, steps: u32, sets: &str| {
        let line = format!(
            "target/release/vidtui --runs {FOLDER}/runs launch {recipe} --name {name} --local {ranks} --wait \
             --set data.index={FOLDER}/latents/{}/index.jsonl --set mesh.dp_replicate=1 --set mesh.dp_shard=1 --set train.global_batch=1 \
             --set train.steps={steps} --set train.text_dropout=0 --set optimizer.warmup_steps=0 --set log.interval=1 --set train.device=cuda \
             --set train.dtype=bfloat16 {sets}",
            stage.name
        );
        Step { run: Some(name), ..step(shows, &line) }
    };
    let alone = |shows, name, recipe: &str, stage: &Stage, steps, sets: &str| {
        one_sample(shows, name, recipe, stage, 1, steps, sets)
    };
    let layer = "--set model.num_layers=1 --set train.ttt_scan=kernel --set train.fused=kernel";
    let of_ttt = |shows, name: &'static str, stage: &Stage| {
        alone(shows, name, &format!("configs/ttt-mlp/{}.toml", stage.name), stage, 4, layer)
    };
    let of_5b = |shows, name: &'static str, layers: u32, stage: &Stage| {
        let sets = format!("--set model.num_layers={layers} --set remat.mode=none");
        alone(shows, name, "configs/cogvideox/5b.toml", stage, 14, &sets)
    };
    let tensor_parallel = |shows, name: &'static str, stage: &Stage, sets: &str| {
        one_sample(shows, name, "configs/ttt-mlp/9s.toml", stage, all, 4, &format!("--set mesh.tp={all} {layer}{sets}"))
    };
    let [first, second, five, small] = &STAGES;
    vec![
        step("driver and GPUs", "nvidia-smi"),
        step("links between GPUs", "nvidia-smi topo -m"),
        step("the trainer for GPUs", "cargo xtask check-cuda"),
        step("the console", "cargo build --release -p vidtui"),
        step("libtorch sees the GPUs", "target/cuda/release/vidtui-train version --json"),
        step(
            "the CUDA kernels against the CPU",
            "cargo test --release -p kernels --features cuda --target-dir target/cuda -- --nocapture",
        ),
        step(
            "the recorded numbers of other programs, on a GPU",
            "env VIDTUI_ORACLE_DEVICE=cuda cargo test --release -p trainer -p dit --features trainer/cuda,dit/cuda --target-dir target/cuda \
             --bins --tests -- oracle_ttt oracle_cogvideox oracle_steps oracle_sampling oracle_one_rank",
        ),
        launch("losses of the CPU", "on-the-cpu", 1, "--set train.device=cpu"),
        launch(
            "losses of a GPU, libtorch's operators",
            "on-a-gpu",
            1,
            "--set train.device=cuda --set train.ttt_scan=operators --set train.fused=operators",
        ),
        launch(
            "losses of a GPU, the CUDA kernels",
            "by-the-kernel",
            1,
            "--set train.device=cuda --set train.dtype=bfloat16 --set train.ttt_scan=kernel --set train.fused=kernel",
        ),
        launch("losses of several GPUs, NCCL", "on-all-gpus", all, "--set train.device=cuda"),
        step("scans against the peak", &example("kernels", "scan_speed", "cuda")),
        step("the scans in PyTorch, eager and compiled", "python tests/bench/gpu_scan.py"),
        step("collectives by size", &example("c10d", "collective_speed", &format!("cuda {gpus}"))),
        of_ttt("a layer of the 3 s stage, memory against the plan", "one-layer-3s", first),
        of_ttt("a layer of the 9 s stage, memory against the plan", "one-layer-9s", second),
        of_5b("a step of CogVideoX-5B with one block", "one-block", 1, five),
        of_5b("a step of CogVideoX-5B with three blocks", "three-blocks", 3, five),
        step("a step of diffusers with one block", "python tests/bench/gpu_step.py 5b 1 14"),
        alone(
            "a step of 52 million parameters",
            "52m",
            "tests/bench/cogvideox-52m.toml",
            small,
            40,
            "--set remat.mode=none",
        ),
        step("a step of diffusers with 52 million parameters", "python tests/bench/gpu_step.py 52m 8 40"),
        launch_for(2000, "a run to profile", "profiled", 1, "--set train.device=cuda").in_background(),
        step("a profile", &format!("target/release/vidtui --runs {FOLDER}/runs profile latest --steps 3")),
        step("time for the profile", "sleep 60"),
        step("the end of the profiled run", &format!("target/release/vidtui --runs {FOLDER}/runs stop latest --wait")),
        tensor_parallel("a layer of the 9 s stage, tensor parallel", "one-layer-tp", second, ""),
        tensor_parallel("the same, tokens exchanged at once", "exchanged-at-once", second, " --set train.tp_pieces=1"),
    ]
}

/// Runs a command and returns its part of the report.
fn section(step: &Step, variables: &[(&'static str, Utf8PathBuf)]) -> String {
    let (program, args) = step.words.split_first().expect("a step has a program");
    let mut command = command(program, args);
    command.current_dir(root()).envs(variables.iter().map(|(name, path)| (name, path.as_str())));
    let (began, started) = (SystemTime::now(), Instant::now());
    let (status, output) = match command.stdin(std::process::Stdio::null()).output() {
        Ok(out) => (out.status.to_string(), String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned()),
        Err(error) => (format!("cannot start: {error}"), String::new()),
    };
    let mut text = format!(
        "\n==== {}\n$ {}\n{status}, {:.1} s\n{}",
        step.shows,
        shown(&command),
        started.elapsed().as_secs_f64(),
        last_lines(&output)
    );
    if let Some(name) = step.run {
        let runs = root().join(FOLDER).join("runs");
        text += &files_of_run(&runs, name, began);
        text += &peak_against_plan(step, newest_run(&runs, name, began).as_deref());
    }
    text
}

/// Compares the peak memory of a run with the plan of its recipe.
fn peak_against_plan(step: &Step, run: Option<&Utf8Path>) -> String {
    let Some(words) = check_words(&step.words) else { return String::new() };
    let metrics = run.and_then(|run| fs::read_to_string(run.join("metrics.jsonl")).ok()).unwrap_or_default();
    let Some(measured) = peak_gib(&metrics) else { return String::new() };
    let (program, args) = words.split_first().expect("a command has a program");
    let out = command(program, args).current_dir(root()).output();
    let planned = out.ok().and_then(|out| planned_gib(&serde_json::from_slice(&out.stdout).ok()?));
    planned.map_or_else(String::new, |planned| {
        let share = 100.0 * measured / planned;
        format!("---- peak memory of tensors: measured {measured:.2} GiB, planned {planned:.2} GiB, {share:.0} %\n")
    })
}

/// Returns the command that checks the recipe of a launch, with the same settings.
fn check_words(launch: &[String]) -> Option<Vec<String>> {
    let at = launch.iter().position(|word| word == "launch")?;
    let (program, recipe) = (launch.first()?, launch.get(at + 1)?);
    let mut words = [program.as_str(), "check", recipe, "--json"].map(str::to_owned).to_vec();
    for pair in launch.windows(2).filter(|pair| pair[0] == "--set" || pair[0] == "--fit") {
        words.extend_from_slice(pair);
    }
    Some(words)
}

/// Returns the largest peak of any rank in a file of metrics.
fn peak_gib(metrics: &str) -> Option<f64> {
    let peaks = metrics.lines().filter_map(|line| {
        let sample: Value = serde_json::from_str(line).ok()?;
        let ranks = sample["mem_peak_gib_by_rank"].as_array()?;
        ranks.iter().filter_map(Value::as_f64).reduce(f64::max)
    });
    peaks.reduce(f64::max)
}

/// Returns the planned peak of the tensors of a rank: the state, the batches, the larger of the backward pass and the update, and cuBLAS's
/// workspace, which libtorch's allocator counts as a tensor.
fn planned_gib(check: &Value) -> Option<f64> {
    let memory = check.pointer("/cost/memory")?;
    let sum = |parts: &[&str]| parts.iter().map(|part| memory[*part].as_f64()).sum::<Option<f64>>();
    let lasting = sum(&["weights", "gradients", "optimizer", "ema", "batches"])?;
    let backward = sum(&["kept", "gathered", "accumulated", "scan_states", "workspace"])?;
    Some((lasting + backward.max(sum(&["update"])?) + CUBLAS_WORKSPACE) / f64::from(1 << 30))
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let left_out = lines.len().saturating_sub(LINES);
    let first = if left_out > 0 { format!("({left_out} lines left out)\n") } else { String::new() };
    lines[left_out..].iter().fold(first, |text, line| text + line + "\n")
}

/// Returns the metrics and events of the run with this name that started at `began` or later, and the failures, memory and logs that
/// its ranks recorded.
fn files_of_run(runs: &Utf8Path, name: &str, began: SystemTime) -> String {
    let Some(run) = newest_run(runs, name, began) else { return "(no run was started)\n".to_owned() };
    let mut files = vec![run.join("metrics.jsonl"), run.join("events.jsonl")];
    let nodes = run.join("nodes").read_dir_utf8().into_iter().flatten().flatten();
    for node in nodes {
        let below = [node.path().to_owned(), node.path().join("logs")];
        let mut found: Vec<Utf8PathBuf> = below
            .iter()
            .flat_map(|folder| folder.read_dir_utf8().into_iter().flatten().flatten())
            .map(|entry| entry.into_path())
            .filter(|path| {
                [".failure.json", ".memory.json", ".collectives.json", ".log"]
                    .iter()
                    .any(|end| path.as_str().ends_with(end))
            })
            .collect();
        found.sort();
        files.extend(found);
    }
    files.iter().fold(String::new(), |text, file| match fs::read_to_string(file) {
        Ok(content) if !content.is_empty() => text + "---- " + file.as_str() + "\n" + &last_lines(&content),
        _ => text,
    })
}

/// Returns the folder of the run with this name that started at `began` or later.
fn newest_run(runs: &Utf8Path, name: &str, began: SystemTime) -> Option<Utf8PathBuf> {
    let entries = runs.read_dir_utf8().into_iter().flatten().flatten();
    // The time stamps of files lag behind the clock by some milliseconds.
    let after = began - Duration::from_secs(1);
    let is_new = |path: &Utf8Path| path.metadata().and_then(|meta| meta.modified()).is_ok_and(|at| at >= after);
    let of_name = |path: &Utf8PathBuf| path.file_name().is_some_and(|file| file.contains(&format!("-{name}-")));
    let modified = |path: &Utf8PathBuf| path.metadata().and_then(|meta| meta.modified()).ok();
    entries.map(|entry| entry.into_path()).filter(of_name).filter(|path| is_new(path)).max_by_key(modified)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runbook_has_every_command_in_this_order() {
        let text = fs::read_to_string(root().join("docs/gpu-first-run.md")).unwrap();
        let commands: Vec<String> =
            text.lines().filter_map(|line| line.trim_start().strip_prefix("$ ").map(str::to_owned)).collect();
        let wanted: Vec<String> = steps(4).iter().map(|step| step.words.join(" ")).collect();
        assert_eq!(commands, wanted);
    }

    #[test]
    fn the_peak_of_a_run_is_compared_with_the_plan_of_its_settings() {
        let launch = steps(1).into_iter().find(|step| step.run == Some("one-layer-3s")).unwrap();
        let check = check_words(&launch.words).unwrap();
        assert_eq!(check[..3], ["target/release/vidtui", "check", "configs/ttt-mlp/3s.toml"]);
        assert!(check.windows(2).any(|pair| pair == ["--set", "model.num_layers=1"]));
        let demo = steps(1).into_iter().find(|step| step.run == Some("on-a-gpu")).unwrap();
        let check = check_words(&demo.words).unwrap();
        assert!(check.windows(2).any(|pair| pair == ["--fit", "1"]) && !check.contains(&"--wait".to_owned()));
        assert_eq!(check_words(&["nvidia-smi".to_owned()]), None);
        let metrics = "{\"mem_peak_gib_by_rank\":[1.5,2.5]}\n{\"mem_peak_gib_by_rank\":[3.5,2.5]}\n{\"torn";
        assert_eq!((peak_gib(metrics), peak_gib("")), (Some(3.5), None));
        let gib = |n: u64| n << 30;
        let plan = serde_json::json!({"cost": {"memory": {
            "weights": gib(1), "gradients": gib(1), "optimizer": gib(2), "ema": 0, "batches": gib(1), "kept": gib(3), "gathered": 0,
            "accumulated": 0, "scan_states": gib(1), "workspace": gib(1), "update": gib(2),
        }}});
        assert_eq!((planned_gib(&plan), planned_gib(&Value::Null)), (Some(10.0625), None));
    }

    #[test]
    fn a_section_has_the_end_of_the_output_and_the_status_also_of_a_program_that_is_missing() {
        let section = |line: &str| {
            let words = line.split(' ').map(str::to_owned).collect();
            section(&Step { shows: "a test", words, run: None }, &[])
        };
        let long = section("seq 300");
        assert!(
            long.contains("\n300\n") && long.contains("(180 lines left out)") && !long.contains("\n180\n"),
            "{long}"
        );
        assert!(section("false").contains("exit status: 1"));
        assert!(section("/no/such/program").contains("cannot start"));
    }

    #[test]
    fn a_run_is_shown_with_its_metrics_and_the_failures_of_its_ranks() {
        let folder = tempfile::tempdir().unwrap();
        let runs = Utf8Path::from_path(folder.path()).unwrap();
        let before = SystemTime::now();
        assert_eq!(files_of_run(runs, "by-the-kernel", before), "(no run was started)\n");
        let node = runs.join("2026-11-20T0340-by-the-kernel-k7f2/nodes/here");
        fs::create_dir_all(node.join("logs")).unwrap();
        fs::write(node.join("0001-rank-00000.failure.json"), "{\"code\":\"no-gpu\"}").unwrap();
        fs::write(node.join("../../metrics.jsonl"), "{\"loss\":1.5}\n").unwrap();
        let text = files_of_run(runs, "by-the-kernel", before);
        assert!(text.contains("{\"loss\":1.5}") && text.contains("{\"code\":\"no-gpu\"}"), "{text}");
    }
}
