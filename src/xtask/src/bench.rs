//! `cargo xtask bench`: ratios against PyTorch and the console's own figures, each measured in one run.
//!
//! Machines are noisy, so ours and theirs take turns and every row is the median of the rounds' ratios, with the
//! lowest and highest beside it.

mod checkpoint;
mod cluster;
mod console;
pub mod python;
mod scaling;
mod table;
mod train;
mod ttt;
mod weights;

use crate::build;
use crate::failure::{Failure, Result};
use table::{Row, print};

/// Measures something in several rounds.
type Measure = fn() -> Result<Vec<Row>>;

/// What can be measured, by name.
const PARTS: &[(&str, Measure)] = &[
    ("train", train::rows),
    ("ttt", ttt::rows),
    ("weights", weights::rows),
    ("checkpoint", checkpoint::rows),
    ("console", console::rows),
    ("scaling", scaling::rows),
    ("cluster", cluster::rows),
];

/// Runs the command: `bench [PART]…`; all parts when none is named.
pub fn run(args: &[String]) -> Result<()> {
    if let Some(unknown) = args.iter().find(|arg| !PARTS.iter().any(|(name, _)| name == arg)) {
        let names: Vec<&str> = PARTS.iter().map(|(name, _)| *name).collect();
        let fix = format!("the parts are {}", names.join(", "));
        return Err(Failure::request("cannot bench", format!("there is no part {unknown:?}"), fix));
    }
    build::run(&[])?;
    let mut rows: Vec<Row> = Vec::new();
    for (_, measure) in PARTS.iter().filter(|(name, _)| args.is_empty() || args.iter().any(|arg| arg == name)) {
        rows.extend(measure()?);
    }
    print(&rows)
}
