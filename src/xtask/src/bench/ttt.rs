//! Measures a TTT-MLP layer, compared with PyTorch.

use super::figures::{Figures, ratio, same_results};
use super::python;
use super::table::Row;
use crate::failure::Result;
use crate::process::{cargo, command, run as run_command};
use crate::workspace::{release_dir, root};

const ROUNDS: usize = 3;
const THREADS: &str = "2";
/// Passes of one round. The first is a warm-up and is not counted.
const PASSES: &str = "5";

/// The largest relative difference of norms: both sides add in fp32, in different orders.
const APART: f64 = 1e-3;

/// Measures a whole layer, forward plus backward: 8 heads of width 64, 64 mini-batches of 64 tokens, fp32.
pub fn rows() -> Result<Vec<Row>> {
    let bin = python::environment()?;
    run_command(
        &mut cargo(["build", "--release", "--package", "dit", "--example", "layer_speed"]),
        "see the compiler's errors above",
    )?;
    let (recipe, script) = (root().join("tests/bench/ttt-47m.toml"), root().join("tests/bench/ttt.py"));
    // The text is long enough for 64 mini-batches. The data is never read.
    let ours_args = [recipe.as_str(), THREADS, PASSES, "model.text_len=576", "data.index=none"];
    let mut rounds = Vec::new();
    for round in 1..=ROUNDS {
        println!("TTT-MLP layer: round {round} of {ROUNDS}");
        let ours = Figures::of(&mut command(release_dir().join("examples/layer_speed"), ours_args))?;
        let theirs = Figures::of(&mut command(bin.join("python"), [script.as_str(), THREADS, PASSES]))?;
        let compare = "compare src/dit/src/ttt.rs with tests/bench/ttt_layer.py";
        same_results(&ours.norms, &theirs.norms, APART, compare)?;
        rounds.push((ours, theirs));
    }
    let row = |what: &str, unit, pick: fn(&Figures) -> f64| {
        ratio(&rounds, format!("TTT-MLP layer, 2 threads: {what}"), unit, 0.5, pick)
    };
    Ok(vec![row("time", "s", |f| f.step_s), row("growth of peak memory", "GiB", |f| f.peak_gib)])
}
