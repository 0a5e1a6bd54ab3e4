//! `cargo xtask bench`: measures the speed and memory of the trainer and of the console, most as ratios to PyTorch and other
//! programs.
//!
//! Timings vary between rounds. So both programs run alternately, and a row shows the median, the lowest and the highest round.

mod buckets;
mod checkpoint;
mod cluster;
mod console;
mod data;
mod encoders;
mod figures;
mod goodput;
mod logs;
mod made_run;
mod optimizer;
pub mod python;
mod sample;
mod scaling;
mod swap;
mod table;
mod train;
mod ttt;
mod video;
mod weights;

use crate::build;
use crate::failure::{Failure, Result};
use table::{Row, print};

/// Measures one part and returns its rows.
type Measure = fn() -> Result<Vec<Row>>;

/// The parts by name.
const PARTS: &[(&str, Measure)] = &[
    ("train", train::rows),
    ("lora", train::lora_rows),
    ("optimizer", optimizer::rows),
    ("swap", swap::rows),
    ("ttt", ttt::rows),
    ("encoders", encoders::rows),
    ("sample", sample::rows),
    ("weights", weights::rows),
    ("data", data::rows),
    ("buckets", buckets::rows),
    ("video", video::rows),
    ("checkpoint", checkpoint::rows),
    ("console", console::rows),
    ("long-runs", console::long_run_rows),
    ("live", console::live_rows),
    ("logs", logs::rows),
    ("scaling", scaling::rows),
    ("cluster", cluster::rows),
    ("goodput", goodput::rows),
];

/// The parts that are measured only if they are named, because they take long.
const LONG_PARTS: &[(&str, Measure)] = &[("day", console::day_rows)];

/// Runs the command `bench [PART]…`. Without a part, measures all parts that do not take long.
pub fn run(args: &[String]) -> Result<()> {
    let all = || PARTS.iter().chain(LONG_PARTS);
    if let Some(unknown) = args.iter().find(|arg| !all().any(|(name, _)| name == arg)) {
        let names: Vec<&str> = all().map(|(name, _)| *name).collect();
        let fix = format!("the parts are {}", names.join(", "));
        return Err(Failure::request("cannot bench", format!("there is no part {unknown:?}"), fix));
    }
    build::run(&[])?;
    let mut rows: Vec<Row> = Vec::new();
    let before = load();
    let chosen: Vec<Measure> = match args {
        [] => PARTS.iter().map(|(_, measure)| *measure).collect(),
        args => all().filter(|(name, _)| args.iter().any(|arg| arg == name)).map(|(_, measure)| *measure).collect(),
    };
    for measure in chosen {
        rows.extend(measure()?);
    }
    println!("\nload of the machine: {before} before, {} after (averages of 1, 5 and 15 minutes)", load());
    print(&rows)
}

/// Returns the load averages of the machine.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let averages: Vec<&str> = text.split(' ').take(3).collect();
    if averages.len() == 3 { averages.join(" ") } else { "unknown".into() }
}
