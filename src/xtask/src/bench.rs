//! `cargo xtask bench`: ratios against PyTorch and the console's own figures, each measured in one run.
//!
//! Machines are noisy, so ours and theirs take turns and every row is the median of the rounds' ratios, with the
//! lowest and highest beside it.

mod console;
mod python;
mod table;
mod train;

use crate::build;
use crate::failure::{Failure, Result};
use table::{Row, print};

/// Runs the command: `bench [train|console]`.
pub fn run(args: &[String]) -> Result<()> {
    let (train, console) = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => (true, true),
        ["train"] => (true, false),
        ["console"] => (false, true),
        _ => {
            let given = args.join(" ");
            return Err(Failure::request("cannot bench", given, "usage: cargo xtask bench [train|console]"));
        }
    };
    build::run(&[])?;
    let mut rows: Vec<Row> = Vec::new();
    if train {
        rows.extend(train::rows()?);
    }
    if console {
        rows.extend(console::rows()?);
    }
    print(&rows)
}
