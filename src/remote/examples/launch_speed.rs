//! Measures the time from a launch over many nodes to the first step of all ranks, and the time to kill them. Compares it with
//! a sequential start over `ssh` and a shell loop of `ssh $node pkill` on the same nodes. Prints one JSON object.
//! `cargo run --release -p remote --example launch_speed -- 16 target/release/vidtui`
//!
//! The nodes are simulated by `rig` on this machine, so their servers and programs share its CPU with the measured program. The
//! trainer is a shell script that creates a file as its first step, so that only the launch is measured.

use std::error::Error;
use std::fs;
use std::process::{Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use rig::{Options, Rig};
use serde_json::json;

const ROUNDS: usize = 3;
const TIMEOUT: Duration = Duration::from_secs(120);
/// The trainer. Its second argument is the rank, which names the file that it creates.
const TRAINER: &str = "#!/bin/sh\nmkdir -p \"$1\" && : >\"$1/$2\"\nexec sleep 4711\n";

struct Bench {
    rig: Rig,
    vidtui: Utf8PathBuf,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let nodes: usize = args.next().map_or(Ok(16), |text| text.parse())?;
    let vidtui = args.next().unwrap_or_else(|| "target/release/vidtui".into());
    let vidtui = Utf8PathBuf::from(vidtui).canonicalize_utf8()?;
    let bench = Bench { rig: Options::new(nodes).gpus(1).up()?, vidtui };
    bench.write(nodes)?;
    let (mut vidtui, mut ssh_loop) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        vidtui.push(bench.vidtui(round)?);
        ssh_loop.push(bench.ssh_loop(round)?);
    }
    let figures = |rounds: &[[f64; 2]]| {
        json!({
            "launch_s": rounds.iter().map(|round| round[0]).collect::<Vec<_>>(),
            "kill_s": rounds.iter().map(|round| round[1]).collect::<Vec<_>>(),
        })
    };
    println!("{}", json!({ "nodes": nodes, "ours": figures(&vidtui), "theirs": figures(&ssh_loop) }));
    Ok(())
}

impl Bench {
    fn write(&self, nodes: usize) -> Result<(), Box<dyn Error>> {
        let share = self.rig.share();
        fs::write(share.join("trainer.sh"), TRAINER)?;
        let hosts: Vec<String> = self.rig.nodes().iter().map(|node| format!("{node} slots=1\n")).collect();
        fs::write(share.join("hosts"), hosts.concat())?;
        let run = format!("['sh', '{share}/trainer.sh', '{{output}}', '{{node_rank}}']");
        let recipe = format!(
            "trainer = 'command'\n[command]\nrun = {run}\n[train]\nsteps = 9\n[mesh]\ndp_replicate = {nodes}\n"
        );
        Ok(fs::write(share.join("bench.toml"), recipe)?)
    }

    /// Launches with every check and a supervisor on each node, then kills and verifies.
    fn vidtui(&self, round: usize) -> Result<[f64; 2], Box<dyn Error>> {
        let share = self.rig.share();
        let runs = share.join(format!("runs{round}"));
        let (recipe, hosts) = (share.join("bench.toml"), share.join("hosts"));
        let began = Instant::now();
        let launched = self.on_head(
            self.vidtui.as_str(),
            &["--runs", runs.as_str(), "launch", recipe.as_str(), "--hostfile", hosts.as_str()],
        )?;
        let id = String::from_utf8(launched.stdout)?.trim().to_owned();
        self.wait_for_steps(&runs.join(&id).join("output"))?;
        let launch_s = began.elapsed().as_secs_f64();
        let began = Instant::now();
        self.on_head(self.vidtui.as_str(), &["--runs", runs.as_str(), "kill", &id, "--yes"])?;
        let kill_s = began.elapsed().as_secs_f64();
        self.all_gone()?;
        Ok([launch_s, kill_s])
    }

    /// Starts the nodes one after the other, each over its own connection and without checks, like a launcher that loops over
    /// hosts. Then kills them in parallel without verification. A later check that they are gone is not timed.
    fn ssh_loop(&self, round: usize) -> Result<[f64; 2], Box<dyn Error>> {
        let share = self.rig.share();
        let steps = share.join(format!("steps{round}"));
        fs::create_dir_all(&steps)?;
        let nodes = self.rig.nodes().join(" ");
        let start = format!(
            "rank=0; for h in {nodes}; do ssh $h \"RANK=$rank setsid sh {share}/trainer.sh {steps} $rank >/dev/null 2>&1 </dev/null &\" || exit 1; rank=$((rank + 1)); done"
        );
        let began = Instant::now();
        self.on_head("bash", &["-c", &start])?;
        self.wait_for_steps(&steps)?;
        let launch_s = began.elapsed().as_secs_f64();
        let end = format!("for h in {nodes}; do ssh $h \"pkill -fx 'sleep 4711'\" & done; wait");
        let began = Instant::now();
        self.on_head("bash", &["-c", &end])?;
        let kill_s = began.elapsed().as_secs_f64();
        self.all_gone()?;
        Ok([launch_s, kill_s])
    }

    fn on_head(&self, program: &str, args: &[&str]) -> Result<Output, Box<dyn Error>> {
        let output = self.rig.command(program).args(args).stdin(Stdio::null()).output()?;
        if output.status.success() {
            return Ok(output);
        }
        Err(format!("{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr)).into())
    }

    /// Waits until each rank has created its file.
    fn wait_for_steps(&self, folder: &Utf8Path) -> Result<(), Box<dyn Error>> {
        let ranks = self.rig.nodes().len();
        until(&format!("a first step of all {ranks} ranks in {folder}"), || {
            (0..ranks).all(|rank| folder.join(rank.to_string()).exists())
        })
    }

    fn all_gone(&self) -> Result<(), Box<dyn Error>> {
        let is_gone = |node: &String| {
            let found = self.rig.command_on(node, "pgrep").args(["-fx", "sleep 4711"]).stdout(Stdio::null()).status();
            found.is_ok_and(|status| status.code() == Some(1))
        };
        until("every trainer is gone", || self.rig.nodes().iter().all(is_gone))
    }
}

fn until(what: &str, holds: impl Fn() -> bool) -> Result<(), Box<dyn Error>> {
    let deadline = Instant::now() + TIMEOUT;
    while !holds() {
        if Instant::now() > deadline {
            return Err(format!("never: {what}").into());
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
