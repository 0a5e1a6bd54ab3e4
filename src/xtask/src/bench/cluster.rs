//! Measures the monitoring of 64 nodes of a rig, compared with pdsh and clush, and of 1,024 simulated nodes. Measures launch and
//! kill on 16 nodes, compared with loops of `ssh`, and how long a run takes to continue after it lost a node.

use serde_json::Value;

use super::table::Row;
use crate::failure::{Failure, Result};
use crate::process::{cargo, command, output, run, works};
use crate::workspace::{release_dir, root};

/// Nodes of the rig to monitor.
const NODES: &str = "64";
/// Nodes of the rig to launch on.
const LAUNCHED: &str = "16";
/// Simulated nodes.
const SIMULATED: &str = "1024";
/// The seconds that the console runs: ten frames of each node. A longer run uses no more memory, because nearly all memory is
/// for the newest frame of each node.
const SECONDS: &str = "20";
/// The other programs and their Debian packages.
const THEIRS: [(&str, &str); 2] = [("pdsh", "pdsh"), ("clush", "clustershell")];

/// Measures simulated nodes and, where a rig can start, launch, healing and monitoring on its nodes.
pub fn rows() -> Result<Vec<Row>> {
    let mut rows = simulated()?;
    let script = root().join("tests/rig/rig");
    if works(script.as_str(), &["possible"]) {
        rows.extend(launched()?);
        rows.extend(healed()?);
        rows.extend(real()?);
    } else {
        println!(
            "skipped: {LAUNCHED} and {NODES} real nodes; a rig needs root and namespaces; `cargo xtask rig up 2` prints why it cannot start"
        );
    }
    Ok(rows)
}

fn row(what: String, unit: &'static str, rounds: Vec<f64>, at_most: f64, note: String) -> Row {
    Row { what, unit, rounds, at_most, note }
}

fn simulated() -> Result<Vec<Row>> {
    let script = root().join("tests/bench/nodes.py");
    let program = release_dir().join("vidtui");
    let (mut cpu, mut peak) = (Vec::new(), Vec::new());
    for round in 1..=2 {
        println!("the console on {SIMULATED} simulated nodes: round {round} of 2");
        let args = [script.as_str(), SECONDS, program.as_str(), "--simulate", SIMULATED];
        let printed = output(&mut command("python3", args), "run it by hand")?.stdout;
        let results = read(&printed)?;
        cpu.push(figure(&results["cpu"]) * 100.0);
        peak.push(figure(&results["peak_mib"]));
    }
    let what = |of: &str| format!("console, {SIMULATED} simulated nodes × 8 GPUs: {of}");
    Ok(vec![
        row(
            what("CPU"),
            "%",
            cpu,
            25.0,
            "of one core, a frame of each node every 2 s, with the cost of the simulation".into(),
        ),
        row(what("memory"), "MiB", peak, 300.0, String::new()),
    ])
}

fn launched() -> Result<Vec<Row>> {
    println!("launching on {LAUNCHED} nodes of a rig and killing the run");
    let program = release_dir().join("vidtui");
    let words = ["run", "--quiet", "--release", "-p", "remote", "--example", "launch_speed", "--", LAUNCHED];
    let mut example = cargo(words);
    let results = read(&output(example.arg(program), "run it by hand")?.stdout)?;
    let ratio = |what: &str, key: &str, at_most: f64, does: &str, theirs_does: &str| {
        let (ours, theirs) = (figures(&results["ours"][key]), figures(&results["theirs"][key]));
        let rounds = ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).collect();
        let (ours, theirs) = (super::table::median(&ours), super::table::median(&theirs));
        let note = format!("ours {ours:.2} s, {does}; theirs {theirs:.2} s, {theirs_does}");
        row(format!("{LAUNCHED} nodes: {what}"), "×", rounds, at_most, note)
    };
    let launch = "one `ssh` after the other, unchecked";
    let kill = "`ssh $h pkill &` for all at once, without verification";
    Ok(vec![
        ratio("launch to the first step of all ranks", "launch_s", 1.0, "checked, with a supervisor on each", launch),
        ratio("kill of all ranks", "kill_s", f64::INFINITY, "verified on each", kill),
    ])
}

/// Measures a run with steps of 1 s on four nodes, one of which dies.
fn healed() -> Result<Vec<Row>> {
    println!("healing a run that loses a node of a rig");
    let words = ["run", "--quiet", "--release", "-p", "remote", "--example", "heal_speed", "--"];
    let mut example = cargo(words);
    let results = read(&output(example.arg(release_dir()), "run it by hand")?.stdout)?;
    let rounds = results["rounds"].as_array().cloned().unwrap_or_default();
    let all = |key: &str| rounds.iter().map(|round| figure(&round[key])).collect::<Vec<f64>>();
    let part = |key: &str| super::table::median(&all(key));
    let note = format!(
        "noticed after {:.1} s, planned and checked in {:.1} s, started and loaded in {:.1} s",
        part("noticed_s"),
        part("planned_s"),
        part("loaded_s")
    );
    Ok(vec![row("4 nodes: death of a node to the next step, healed".into(), "s", all("healed_s"), 45.0, note)])
}

fn real() -> Result<Vec<Row>> {
    for (program, package) in THEIRS {
        if !works("which", &[program]) && works("apt-get", &["--version"]) {
            // If this fails, the row is skipped below.
            let _ = run(&mut command("apt-get", ["install", "-y", "--no-install-recommends", package]), "install it");
        }
    }
    println!("monitoring {NODES} nodes of a rig");
    let mut example = cargo(["run", "--quiet", "--release", "-p", "remote", "--example", "watch_speed", "--", NODES]);
    let results = read(&output(&mut example, "run it by hand")?.stdout)?;
    let (walls, cpu) = (figures(&results["round_s"]), figure(&results["round_cpu_ms"]));
    let wall = super::table::median(&walls);
    let came = format!("{:.0} % of all frames arrived", figure(&results["frames_of_expected"]) * 100.0);
    let mut rows = vec![
        row(format!("{NODES} nodes: all connected"), "s", figures(&results["connected_s"]), 1.0, String::new()),
        row(format!("{NODES} nodes: a round of samples"), "s", walls, 0.5, came),
        row(format!("{NODES} nodes: a round of samples, CPU"), "ms", vec![cpu], 20.0, String::new()),
    ];
    for (program, package) in THEIRS {
        let Some(rounds) = results["others"][program].as_array() else {
            println!("skipped: {program} is not installed (Debian: apt-get install {package})");
            continue;
        };
        let theirs = |key: &str| rounds.iter().map(|round| figure(&round[key])).collect::<Vec<f64>>();
        let (their_wall, their_cpu) = (theirs("wall_s"), theirs("cpu_ms"));
        let note = |ours: String, theirs: String| format!("ours {ours}, theirs {theirs}");
        let median = super::table::median;
        let walls = note(format!("{wall:.3} s"), format!("{:.2} s", median(&their_wall)));
        let cpus = note(format!("{cpu:.1} ms"), format!("{:.0} ms", median(&their_cpu)));
        rows.push(row(
            format!("{NODES} nodes: a round, time of {program}"),
            "×",
            their_wall.iter().map(|theirs| wall / theirs).collect(),
            0.1,
            walls,
        ));
        rows.push(row(
            format!("{NODES} nodes: a round, CPU of {program}"),
            "×",
            their_cpu.iter().map(|theirs| cpu / theirs).collect(),
            0.05,
            cpus,
        ));
    }
    Ok(rows)
}

fn figures(value: &Value) -> Vec<f64> {
    value.as_array().into_iter().flatten().map(figure).collect()
}

fn figure(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

fn read(printed: &[u8]) -> Result<Value> {
    serde_json::from_slice(printed).map_err(|e| {
        Failure::new(
            "the output of the cluster bench is not JSON",
            e,
            "run its program by hand: tests/bench/nodes.py, or launch_speed or watch_speed in src/remote/examples",
        )
    })
}
