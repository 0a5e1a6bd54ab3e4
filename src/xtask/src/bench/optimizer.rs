//! Measures a step of AdamW with 8-bit moments, compared with torchao.

use super::figures::{Figures, ratio, same_results};
use super::python;
use super::table::Row;
use crate::failure::Result;
use crate::process::{cargo, command, run as run_command};
use crate::workspace::{release_dir, root};

const ROUNDS: usize = 3;
const THREADS: &str = "2";
/// Steps of one round. The first is a warm-up and is not counted; torchao compiles in it.
const STEPS: &str = "8";

/// The largest relative difference of norms. The two programs round some 8-bit codes differently, which changes updates.
const APART: f64 = 1e-3;

/// Measures 50.3 M parameters in 12 matrices: the time of a step, the bytes of the moments, and the time with fp32 moments.
pub fn rows() -> Result<Vec<Row>> {
    let bin = python::environment_with_torchao()?;
    run_command(
        &mut cargo(["build", "--release", "--package", "c10d", "--example", "adamw8_speed"]),
        "see the compiler's errors above",
    )?;
    let (program, script) = (release_dir().join("examples/adamw8_speed"), root().join("tests/bench/optimizer.py"));
    let (mut rounds, mut full) = (Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        println!("8-bit AdamW: round {round} of {ROUNDS}");
        let ours = Figures::of(&mut command(&program, ["8", THREADS, STEPS]))?;
        let theirs = Figures::of(&mut command(bin.join("python"), [script.as_str(), THREADS, STEPS]))?;
        same_results(&ours.norms, &theirs.norms, APART, "compare src/c10d/src/adamw8.rs with torchao's optim")?;
        full.push(Figures::of(&mut command(&program, ["32", THREADS, STEPS]))?.step_s / ours.step_s);
        rounds.push((ours, theirs));
    }
    let time = ratio(&rounds, "8-bit AdamW, 50 M parameters: time".into(), "s", 1.0, |f| f.step_s);
    let state = Row {
        what: "8-bit AdamW: moments of a parameter".into(),
        unit: "B",
        rounds: rounds.iter().map(|(ours, _)| ours.bytes_per_parameter).collect(),
        at_most: 2.2,
        note: format!("theirs {:.2} B, fp32 8.00 B", rounds[0].1.bytes_per_parameter),
    };
    let full = Row {
        what: "AdamW: time with fp32 moments / with 8-bit ones".into(),
        unit: "×",
        rounds: full,
        at_most: f64::INFINITY,
        note: String::new(),
    };
    Ok(vec![time, state, full])
}
