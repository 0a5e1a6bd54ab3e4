//! A TTT-MLP layer, compared with PyTorch.

use serde_json::Value;

use super::python;
use super::table::{Row, median};
use crate::failure::{Failure, Result};
use crate::process::{cargo, command, output, run as run_command, shown};
use crate::workspace::{release_dir, root};

const ROUNDS: usize = 3;
const THREADS: &str = "2";
/// Passes of one round. The first is a warm-up and is not counted.
const PASSES: &str = "5";

/// The largest relative difference of norms: both sides add in fp32, in different orders.
const APART: f64 = 1e-3;

/// The measurements of one side.
#[derive(Debug)]
struct Figures {
    /// Seconds of the median pass.
    step_s: f64,
    /// Growth of peak memory.
    peak_gib: f64,
    /// The norms of the output and of the gradients of the input and of each parameter.
    norms: Vec<f64>,
}

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
        let ours = figures(&mut command(release_dir().join("examples/layer_speed"), ours_args))?;
        let theirs = figures(&mut command(bin.join("python"), [script.as_str(), THREADS, PASSES]))?;
        same_layer(&ours.norms, &theirs.norms)?;
        rounds.push((ours, theirs));
    }
    let row = |what: &str, unit: &'static str, pick: fn(&Figures) -> f64| {
        let each = |side: fn(&(Figures, Figures)) -> &Figures| {
            median(&rounds.iter().map(|round| pick(side(round))).collect::<Vec<_>>())
        };
        Row {
            what: format!("TTT-MLP layer, 2 threads: {what}"),
            unit: "×",
            rounds: rounds.iter().map(|(ours, theirs)| pick(ours) / pick(theirs)).collect(),
            at_most: 0.5,
            note: format!("ours {:.3} {unit}, theirs {:.3} {unit}", each(|r| &r.0), each(|r| &r.1)),
        }
    };
    Ok(vec![row("time", "s", |f| f.step_s), row("growth of peak memory", "GiB", |f| f.peak_gib)])
}

/// Checks that both layers computed the same.
fn same_layer(ours: &[f64], theirs: &[f64]) -> Result<()> {
    let close = |(a, b): (&f64, &f64)| (a - b).abs() <= APART * b.abs();
    if !ours.is_empty() && ours.len() == theirs.len() && ours.iter().zip(theirs).all(close) {
        return Ok(());
    }
    Err(Failure::new(
        "the two layers compute different results",
        format!("norms of output and gradients are {ours:?} here and {theirs:?} in PyTorch"),
        "compare src/dit/src/ttt.rs with tests/bench/ttt_layer.py",
    ))
}

fn figures(program: &mut std::process::Command) -> Result<Figures> {
    let printed = output(program, "run it by hand")?.stdout;
    let said: Value = serde_json::from_slice(&printed)
        .map_err(|e| Failure::new(format!("`{}` gave no figures", shown(program)), e, "run it by hand"))?;
    let numbers = |key: &str| said[key].as_array().into_iter().flatten().filter_map(Value::as_f64).collect::<Vec<_>>();
    let seconds: Vec<f64> = numbers("step_s").into_iter().skip(1).collect();
    Ok(Figures {
        step_s: median(&seconds),
        peak_gib: said["peak_gib"].as_f64().unwrap_or(f64::NAN),
        norms: numbers("norms"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_that_give_other_numbers_are_not_compared() {
        assert!(same_layer(&[10.0, 2.0], &[10.001, 2.0]).is_ok());
        assert!(same_layer(&[10.0, 2.0], &[10.0, 2.1]).is_err());
        assert!(same_layer(&[10.0], &[10.0, 2.0]).is_err());
        assert!(same_layer(&[f64::NAN], &[f64::NAN]).is_err());
    }
}
