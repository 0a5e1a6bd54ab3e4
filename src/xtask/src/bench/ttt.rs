//! The inner loop of a TTT-MLP layer, ours against PyTorch's.

use serde_json::Value;

use super::python;
use super::table::{Row, median};
use crate::failure::{Failure, Result};
use crate::process::{cargo, command, output, run as run_command, shown};
use crate::workspace::{release_dir, root};

const ROUNDS: usize = 3;
const THREADS: &str = "2";
/// Passes of one round; the first, which warms up, does not count.
const PASSES: &str = "5";

/// Seconds of the median pass, and the growth of peak memory in GiB.
type Figures = (f64, f64);

/// Measures forward plus backward: 8 heads of width 64, 64 mini-batches of 64 tokens, fp32.
pub fn rows() -> Result<Vec<Row>> {
    let bin = python::environment()?;
    run_command(
        &mut cargo(["build", "--release", "--package", "kernels", "--example", "ttt_speed"]),
        "see the compiler's errors above",
    )?;
    let script = root().join("tests/bench/ttt.py");
    let mut rounds = Vec::new();
    for round in 1..=ROUNDS {
        println!("TTT-MLP inner loop: round {round} of {ROUNDS}");
        let ours = figures(&mut command(release_dir().join("examples/ttt_speed"), [THREADS, PASSES]))?;
        let theirs = figures(&mut command(bin.join("python"), [script.as_str(), THREADS, PASSES]))?;
        rounds.push((ours, theirs));
    }
    let row = |what: &str, unit: &'static str, pick: fn(&Figures) -> f64| {
        let each = |side: fn(&(Figures, Figures)) -> Figures| {
            median(&rounds.iter().map(|round| pick(&side(round))).collect::<Vec<_>>())
        };
        Row {
            what: format!("TTT-MLP inner loop, 2 threads: {what}"),
            unit: "×",
            rounds: rounds.iter().map(|(ours, theirs)| pick(ours) / pick(theirs)).collect(),
            at_most: 0.5,
            note: format!("ours {:.3} {unit}, theirs {:.3} {unit}", each(|r| r.0), each(|r| r.1)),
        }
    };
    Ok(vec![row("time", "s", |f| f.0), row("growth of peak memory", "GiB", |f| f.1)])
}

fn figures(program: &mut std::process::Command) -> Result<Figures> {
    let printed = output(program, "run it by hand")?.stdout;
    let said: Value = serde_json::from_slice(&printed)
        .map_err(|e| Failure::new(format!("`{}` gave no figures", shown(program)), e, "run it by hand"))?;
    let seconds: Vec<f64> = said["step_s"].as_array().into_iter().flatten().skip(1).filter_map(Value::as_f64).collect();
    Ok((median(&seconds), said["peak_gib"].as_f64().unwrap_or(f64::NAN)))
}
