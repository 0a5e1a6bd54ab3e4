//! Simulates the steps of 64 ranks on 500 clips of mixed shapes, with the batches of this trainer and with those of Open-Sora.
//!
//! Open-Sora's batches are recorded from its own code (`tests/fixtures/open_sora`); the costs are the FLOPs of CogVideoX-5B.

use serde_json::Value;

use super::table::Row;
use crate::failure::{Failure, Result};
use crate::process::{cargo, output};

/// Runs the test of the crate `dataset` that prints the figures.
pub fn rows() -> Result<Vec<Row>> {
    println!("simulating 64 ranks on 500 clips of mixed shapes");
    let mut test = cargo(["test", "--release", "--quiet", "--package", "dataset", "--lib", "--", "--nocapture"]);
    let printed = output(test.arg("on_64_ranks"), "run it by hand")?.stdout;
    let text = String::from_utf8_lossy(&printed);
    // The first line begins with the progress of the test.
    let samplers: Vec<Value> =
        text.lines().filter_map(|line| serde_json::from_str(&line[line.find('{')?..]).ok()).collect();
    let of = |name: &str| {
        samplers.iter().find(|sampler| sampler["sampler"] == name).cloned().ok_or_else(|| {
            Failure::new(format!("the simulation printed no figures of {name}"), text.clone(), "run the test by hand")
        })
    };
    let theirs = of("open_sora")?;
    let waste = |sampler: &Value| {
        let share = |key: &str| sampler[key].as_f64().unwrap_or(f64::NAN);
        share("waiting") + share("padding")
    };
    let row = |name: &str| {
        let ours = of(name)?;
        let unused = |sampler: &Value| sampler["unused"].as_f64().unwrap_or(f64::NAN);
        Ok(Row {
            what: format!("64 ranks, 500 clips, {name}: padding and waiting"),
            unit: "%",
            rounds: vec![waste(&ours)],
            at_most: 5.0,
            note: format!(
                "of the ranks' time; Open-Sora's sampler {:.1} %. {:.1} % of 200 epochs wait for later ones, Open-Sora drops {:.1} %",
                waste(&theirs),
                unused(&ours),
                unused(&theirs)
            ),
        })
    };
    ["grouped", "balanced"].into_iter().map(row).collect()
}
