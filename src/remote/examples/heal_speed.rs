//! Measures the time from the failure of a node to the next training step, for a run with automatic resume. Prints one JSON object.
//! `cargo run --release -p remote --example heal_speed -- target/release`
//!
//! `rig` simulates four nodes on this machine. A run trains with one rank on each of two nodes, with 1 s per step; the other two
//! nodes are spares. The second node panics, and the healer resumes the run on a spare node. The nodes share this machine's CPU.

use std::error::Error;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use rig::Options;
use rundir::{EventKind, MetricSample, RunDir, Tail, now_s, read_events};
use serde_json::json;

const ROUNDS: usize = 3;
const TIMEOUT: Duration = Duration::from_secs(180);

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| "target/release".into());
    let folder = Utf8PathBuf::from(folder).canonicalize_utf8()?;
    let rounds: Vec<_> = (0..ROUNDS).map(|_| round(&folder)).collect::<Result<_, _>>()?;
    println!("{}", json!({ "rounds": rounds }));
    Ok(())
}

fn round(programs: &Utf8PathBuf) -> Result<serde_json::Value, Box<dyn Error>> {
    let rig = Options::new(4).gpus(2).up()?;
    let runs = rig.share().join("runs");
    let words = "launch configs/demo/2s.toml --hostfile hostfiles/rig.txt --set model.num_layers=1 --set model.num_heads=2 --set model.head_dim=16 \
         --set mesh.dp_shard=2 --set train.threads=1 --set train.steps=200 --set checkpoint.interval=5 \
         --set optimizer.warmup_steps=1 --set run.on_failure=resume --set run.spares=2 --set env.variables.TRAIN_PACE_S=1";
    let vidtui = |words: &str| -> Result<String, Box<dyn Error>> {
        let mut command = rig.command(programs.join("vidtui").as_str());
        command.args(["--runs", runs.as_str()]).args(words.split_whitespace()).stdin(Stdio::null());
        let output = command.env("VIDTUI_TRAIN", programs.join("vidtui-train")).output()?;
        if output.status.success() {
            return Ok(String::from_utf8(output.stdout)?.trim().to_owned());
        }
        Err(format!("vidtui {words}: {}", String::from_utf8_lossy(&output.stderr)).into())
    };
    let id = vidtui(words)?;
    let run = RunDir::new(runs.join(&id));
    let first_step = |attempt: u32, from: u64| {
        let samples = Tail::<MetricSample>::new(run.metrics()).poll_all().map(|(samples, _)| samples);
        samples.unwrap_or_default().into_iter().find(|sample| sample.attempt == attempt && sample.step >= from)
    };
    until("step 7, after the first checkpoint", || first_step(1, 7).is_some())?;
    rig.verb("panic node02")?;
    let died_s = now_s();
    until("a step of the second attempt", || first_step(2, 0).is_some())?;
    let stepped_s = first_step(2, 0).map_or(f64::NAN, |sample| sample.t);
    let events = read_events(&run)?;
    let failed_s = events.iter().find(|event| matches!(event.kind, EventKind::HealStarted { .. })).map(|event| event.t);
    let failed_s = failed_s.ok_or("the run has no event of its healer")?;
    let started_s = run.read_attempt(2)?.started_s;
    vidtui(&format!("kill {id} --yes"))?;
    Ok(json!({
        "healed_s": stepped_s - died_s,
        "noticed_s": failed_s - died_s,
        "planned_s": started_s - failed_s,
        "loaded_s": stepped_s - started_s,
    }))
}

fn until(what: &str, holds: impl Fn() -> bool) -> Result<(), Box<dyn Error>> {
    let deadline = Instant::now() + TIMEOUT;
    while !holds() {
        if Instant::now() > deadline {
            return Err(format!("never: {what}").into());
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
