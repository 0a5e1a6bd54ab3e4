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
    ("scaling", scaling::rows),
    ("cluster", cluster::rows),
    ("goodput", goodput::rows),
];

/// Runs the command `bench [PART]…`. Without a part, it measures all parts.
pub fn run(args: &[String]) -> Result<()> {
    if let Some(unknown) = args.iter().find(|arg| !PARTS.iter().any(|(name, _)| name == arg)) {
        let names: Vec<&str> = PARTS.iter().map(|(name, _)| *name).collect();
        let fix = format!("the parts are {}", names.join(", "));
        return Err(Failure::request("cannot bench", format!("there is no part {unknown:?}"), fix));
    }
    build::run(&[])?;
    let mut rows: Vec<Row> = Vec::new();
    let before = load();
    for (_, measure) in PARTS.iter().filter(|(name, _)| args.is_empty() || args.iter().any(|arg| arg == name)) {
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
