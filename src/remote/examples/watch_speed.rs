//! Measures the cost of watching many nodes, compared with `pdsh` and `clush` that run nvidia-smi on the same nodes:
//! `cargo run --release -p remote --example watch_speed -- 64`. Prints one JSON object.
//!
//! The nodes belong to a rig, so their servers and programs share this machine's CPU with the measured program. The
//! duration of a round of the streams is the age of its oldest frame: from the time that the node reads its clock until the frame
//! is read here. The duration of a round of the other programs is that of their command.

use std::error::Error;
use std::ops::ControlFlow;
use std::process::Stdio;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use cluster::NodeId;
use nix::sys::resource::{UsageWho, getrusage};
use remote::{Connections, NodeUpdate, SshOptions};
use rig::{Options, Rig};
use rundir::{Login, now_s};
use serde_json::{Value, json};

const EVERY: Duration = Duration::from_secs(2);
/// The number of measurements of connecting to all nodes.
const CONNECTIONS: usize = 3;
/// The rounds before the measurement, because the nodes start one after the other.
const WARM_UP: u64 = 4;
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
    let connect = || -> Result<(Connections, f64), Box<dyn Error>> {
        let connections = Connections::new(SshOptions { config: Some(rig.ssh_config()), ..SshOptions::default() })?;
        let began = Instant::now();
        let reached = connections.reach(&logins);
        let took_s = began.elapsed().as_secs_f64();
        match reached.into_iter().find(|(_, result)| result.is_err()) {
            Some((node, Err(error))) => Err(format!("{node}: {error}").into()),
            _ => Ok((connections, took_s)),
        }
    };
    let (mut connections, took_s) = connect()?;
    let mut connected_s = vec![took_s];
    for _ in 1..CONNECTIONS {
        drop(connections);
        let (next, took_s) = connect()?;
        connections = next;
        connected_s.push(took_s);
    }

    let (sender, frames) = mpsc::channel();
    let watch = |login: &Login| {
        let sender = sender.clone();
        let on_update = move |update| match update {
            NodeUpdate::Frame(frame) => match sender.send((now_s(), frame)) {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            },
            NodeUpdate::Unreachable(_) => ControlFlow::Continue(()),
        };
        connections.watch(login, EVERY, Box::new(on_update))
    };
    let watches: Vec<_> = logins.iter().map(watch).collect();
    read_ages(&frames, EVERY * u32::try_from(WARM_UP)?);
    let before = cpu_ms(UsageWho::RUSAGE_SELF)?;
    let ages = read_ages(&frames, EVERY * u32::try_from(ROUNDS)?);
    let stream_cpu_ms = (cpu_ms(UsageWho::RUSAGE_SELF)? - before) / ROUNDS as f64;
    let slowest = |round: &[f64]| round.iter().copied().fold(0.0, f64::max);
    // A round of N nodes is N frames, from any of the nodes.
    let walls: Vec<f64> = ages.chunks(nodes).filter(|round| round.len() == nodes).map(slowest).collect();
    let expected = nodes as f64 * ROUNDS as f64;
    drop(watches);

    let mut others = serde_json::Map::new();
    for (program, args) in [("pdsh", vec!["-R", "ssh", "-f", "64", "-w"]), ("clush", vec!["-q", "-f", "64", "-w"])] {
        others.insert(program.into(), other(&rig, program, &args, &names)?);
    }
    let figures = json!({
        "nodes": nodes,
        "connected_s": connected_s,
        "frames_of_expected": ages.len() as f64 / expected,
        "round_s": walls,
        "round_cpu_ms": stream_cpu_ms,
        "others": others,
    });
    println!("{figures}");
    Ok(())
}

/// Reads frames for some time and returns the age of each when it arrived.
fn read_ages(frames: &mpsc::Receiver<(f64, Box<cluster::probe::Frame>)>, time: Duration) -> Vec<f64> {
    let deadline = Instant::now() + time;
    let mut ages = Vec::new();
    while let Ok((now, frame)) = frames.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        ages.push(now - frame.t);
    }
    ages
}

/// Measures a query of all nodes with another program; null if it is not installed.
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
            let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(format!("{program} printed {rows} of {} rows: {stderr}", 8 * names.len()).into());
        }
        rounds.push(json!({ "wall_s": wall_s, "cpu_ms": cpu_ms(UsageWho::RUSAGE_CHILDREN)? - before }));
    }
    Ok(Value::Array(rounds))
}

/// Returns the CPU time of this program, or of the child processes that it has waited for.
fn cpu_ms(who: UsageWho) -> Result<f64, nix::Error> {
    let used = getrusage(who)?;
    let ms = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 * 1e3 + time.tv_usec() as f64 / 1e3;
    Ok(ms(used.user_time()) + ms(used.system_time()))
}
