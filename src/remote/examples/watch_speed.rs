//! What it costs to watch many nodes, beside `pdsh` and `clush` that run nvidia-smi on the same nodes in the same minute:
//! `cargo run --release -p remote --example watch_speed -- 64`. Prints one JSON object.
//!
//! The nodes are a rig's, so their servers and programs share this machine's processors with what is measured. A round of the
//! streams is as long as its slowest node takes from reading its clock to being read here; those of the others are as long as
//! the command takes.

use std::error::Error;
use std::ops::ControlFlow;
use std::process::Stdio;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use cluster::NodeId;
use nix::sys::resource::{UsageWho, getrusage};
use remote::{Fleet, NodeUpdate, SshOptions};
use rig::{Options, Rig};
use rundir::{Login, now_s};
use serde_json::{Value, json};

const EVERY: Duration = Duration::from_secs(2);
/// How often all nodes are connected to.
const CONNECTIONS: usize = 3;
/// Rounds that are let pass: the nodes begin one after the other.
const SETTLE: u64 = 4;
const ROUNDS: u64 = 5;
const QUERY: &str = "nvidia-smi --query-gpu=index,uuid,power.draw,memory.used,utilization.gpu,temperature.gpu --format=csv,noheader,nounits";

fn main() -> Result<(), Box<dyn Error>> {
    let nodes: usize = std::env::args().nth(1).map_or(Ok(64), |text| text.parse())?;
    let rig = Options::new(nodes).up()?;
    rig.join_network()?;
    let names = rig.nodes();
    let logins: Vec<Login> = names
        .iter()
        .map(|name| Ok(Login { node: NodeId::new(name)?, user: None, port: None }))
        .collect::<Result<_, Box<dyn Error>>>()?;
    let connect = || -> Result<(Fleet, f64), Box<dyn Error>> {
        let fleet = Fleet::new(SshOptions { config: Some(rig.ssh_config()), ..SshOptions::default() })?;
        let began = Instant::now();
        let reached = fleet.reach(&logins);
        let took_s = began.elapsed().as_secs_f64();
        match reached.into_iter().find(|(_, result)| result.is_err()) {
            Some((node, Err(error))) => Err(format!("{node}: {error}").into()),
            _ => Ok((fleet, took_s)),
        }
    };
    let (mut fleet, took_s) = connect()?;
    let mut connected_s = vec![took_s];
    for _ in 1..CONNECTIONS {
        drop(fleet);
        let again = connect()?;
        fleet = again.0;
        connected_s.push(again.1);
    }

    let (tell, seen) = mpsc::channel();
    let watch = |login: &Login| {
        let tell = tell.clone();
        let see = move |sight| match sight {
            NodeUpdate::Frame(frame) => match tell.send((now_s(), frame)) {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            },
            NodeUpdate::Unreachable(_) => ControlFlow::Continue(()),
        };
        fleet.watch(login, EVERY, Box::new(see))
    };
    let watching: Vec<_> = logins.iter().map(watch).collect();
    wait(&seen, EVERY * u32::try_from(SETTLE)?);
    let before = cpu_ms(UsageWho::RUSAGE_SELF)?;
    let frames = wait(&seen, EVERY * u32::try_from(ROUNDS)?);
    let stream_cpu_ms = (cpu_ms(UsageWho::RUSAGE_SELF)? - before) / ROUNDS as f64;
    let slowest = |round: &[f64]| round.iter().copied().fold(0.0, f64::max);
    // As many ages as there are nodes make a round, whichever node they are of.
    let walls: Vec<f64> = frames.chunks(nodes).filter(|round| round.len() == nodes).map(slowest).collect();
    let expected = nodes as f64 * ROUNDS as f64;
    drop(watching);

    let mut others = serde_json::Map::new();
    for (program, args) in [("pdsh", vec!["-R", "ssh", "-f", "64", "-w"]), ("clush", vec!["-q", "-f", "64", "-w"])] {
        others.insert(program.into(), other(&rig, program, &args, &names)?);
    }
    let figures = json!({
        "nodes": nodes,
        "connected_s": connected_s,
        "frames_of_expected": frames.len() as f64 / expected,
        "round_s": walls,
        "round_cpu_ms": stream_cpu_ms,
        "others": others,
    });
    println!("{figures}");
    Ok(())
}

/// Takes in frames for so long; returns how old each was.
fn wait(seen: &mpsc::Receiver<(f64, Box<cluster::probe::Frame>)>, time: Duration) -> Vec<f64> {
    let deadline = Instant::now() + time;
    let mut ages = Vec::new();
    while let Ok((now, frame)) = seen.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        ages.push(now - frame.t);
    }
    ages
}

/// Asks all nodes once, with another program; nothing where it is not installed.
fn other(rig: &Rig, program: &str, args: &[&str], names: &[String]) -> Result<Value, Box<dyn Error>> {
    let installed = std::process::Command::new("which").arg(program).stdout(Stdio::null()).status()?.success();
    if !installed {
        return Ok(Value::Null);
    }
    let mut rounds = Vec::new();
    for _ in 0..2 {
        let before = cpu_ms(UsageWho::RUSAGE_CHILDREN)?;
        let began = Instant::now();
        let mut command = rig.command(program);
        let output = command.args(args).arg(names.join(",")).arg(QUERY).stdin(Stdio::null()).output()?;
        let wall_s = began.elapsed().as_secs_f64();
        let rows = String::from_utf8_lossy(&output.stdout).lines().filter(|line| line.contains("GPU-")).count();
        if rows != 8 * names.len() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(format!("{program} gave {rows} rows of {}: {said}", 8 * names.len()).into());
        }
        rounds.push(json!({ "wall_s": wall_s, "cpu_ms": cpu_ms(UsageWho::RUSAGE_CHILDREN)? - before }));
    }
    Ok(Value::Array(rounds))
}

/// Processor time so far: of this program, or of those that it has waited for.
fn cpu_ms(who: UsageWho) -> Result<f64, nix::Error> {
    let used = getrusage(who)?;
    let ms = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 * 1e3 + time.tv_usec() as f64 / 1e3;
    Ok(ms(used.user_time()) + ms(used.system_time()))
}
