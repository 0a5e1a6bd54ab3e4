//! Opening a store of a million made-up clips, as rank 0 does at the start of a run, and receiving its table, as the others do.

use serde_json::Value;

use super::table::Row;
use crate::failure::{Failure, Result};
use crate::process::{cargo, output};

/// Runs the measuring test of the crate `dataset`, which makes the store.
pub fn rows() -> Result<Vec<Row>> {
    println!("opening a store of a million clips");
    let mut test = cargo(["test", "--release", "--quiet", "--package", "dataset", "--lib", "--", "--ignored"]);
    test.args(["--nocapture", "a_million_clips"]);
    let printed = output(&mut test, "run it by hand; it needs 2 GB of disk in the folder of temporary files")?.stdout;
    let text = String::from_utf8_lossy(&printed);
    let rounds: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let rounds: Vec<&Value> = rounds.iter().filter(|round| round["open_s"].is_number()).collect();
    if rounds.is_empty() {
        return Err(Failure::new("the bench of a million clips gave no figures", text, "run the test by hand"));
    }
    let values = |key: &str| -> Vec<f64> { rounds.iter().filter_map(|round| round[key].as_f64()).collect() };
    let shared = values("shared_mib").first().copied().unwrap_or(f64::NAN);
    let row =
        |what: &str, unit, key, at_most, note| Row { what: what.into(), unit, rounds: values(key), at_most, note };
    Ok(vec![
        row("a million clips: open and check the store (rank 0)", "s", "open_s", 5.0, String::new()),
        row("a million clips: peak memory of rank 0", "MiB", "peak_mib", 1024.0, String::new()),
        row(
            "a million clips: read the table of rank 0",
            "s",
            "receive_s",
            5.0,
            format!("{shared:.0} MiB to each rank"),
        ),
    ])
}
