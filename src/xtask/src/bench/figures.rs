//! The figures of one computation, measured in this program and in a Python script.

use std::process::Command;
use std::time::Instant;

use serde_json::Value;

use super::table::{Row, median};
use crate::failure::{Failure, Result};
use crate::process::{output, shown};

/// The measurements of one program.
#[derive(Debug)]
pub struct Figures {
    /// Seconds of the fastest pass: other programs of the machine only make passes slower.
    pub step_s: f64,
    /// CPU seconds of all threads, in the pass with the lowest value; NaN if not measured.
    pub cpu_s: f64,
    /// Peak memory of the process, or its growth.
    pub peak_gib: f64,
    /// Growth of peak memory since before the model was loaded; NaN if not measured.
    pub growth_gib: f64,
    /// Bytes of optimizer state per parameter; NaN if not measured.
    pub bytes_per_parameter: f64,
    /// The norms of the results.
    pub norms: Vec<f64>,
}

/// The figures of one round: of this program, then of the Python script.
pub type Round = (Figures, Figures);

impl Figures {
    /// Runs a program that prints its figures. The first pass is a warm-up and is not counted.
    pub fn of(program: &mut Command) -> Result<Self> {
        let figures = printed(program)?;
        let numbers =
            |key: &str| figures[key].as_array().into_iter().flatten().filter_map(Value::as_f64).collect::<Vec<_>>();
        let least = |key: &str| numbers(key).into_iter().skip(1).fold(f64::NAN, f64::min);
        Ok(Self {
            step_s: least("step_s"),
            cpu_s: least("cpu_s"),
            peak_gib: figures["peak_gib"].as_f64().unwrap_or(f64::NAN),
            growth_gib: figures["growth_gib"].as_f64().unwrap_or(f64::NAN),
            bytes_per_parameter: figures["bytes_per_parameter"].as_f64().unwrap_or(f64::NAN),
            norms: numbers("norms"),
        })
    }
}

/// Runs a program that prints one JSON value.
pub fn printed(program: &mut Command) -> Result<Value> {
    let printed = output(program, "run it by hand")?.stdout;
    serde_json::from_slice(&printed)
        .map_err(|e| Failure::new(format!("`{}` printed no numbers", shown(program)), e, "run it by hand"))
}

/// Runs a program that prints one JSON value. Also returns its wall seconds, and the CPU seconds of the program and its child
/// processes.
pub fn timed(program: &mut Command) -> Result<(Value, f64, f64)> {
    let (began, cpu_before_s) = (Instant::now(), children_cpu_s());
    let printed = printed(program)?;
    Ok((printed, began.elapsed().as_secs_f64(), children_cpu_s() - cpu_before_s))
}

/// Returns the CPU seconds of all child processes that this process has waited for.
fn children_cpu_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The fields after the name in parentheses begin with field 3. User and system time of child processes are fields 16 and
    // 17, in hundredths of a second.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(13).take(2);
    fields.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// Checks that the norms of both sides agree within a relative tolerance.
pub fn same_results(ours: &[f64], theirs: &[f64], apart: f64, compare: &str) -> Result<()> {
    let close = |(a, b): (&f64, &f64)| (a - b).abs() <= apart * b.abs();
    if !ours.is_empty() && ours.len() == theirs.len() && ours.iter().zip(theirs).all(close) {
        return Ok(());
    }
    Err(Failure::new(
        "the two sides compute different results",
        format!("norms of the results are {ours:?} here and {theirs:?} in Python"),
        compare,
    ))
}

/// Returns the row of a figure: the value of this program divided by that of Python, in each round.
pub fn ratio(rounds: &[Round], what: String, unit: &str, at_most: f64, pick: fn(&Figures) -> f64) -> Row {
    let each = |side: fn(&Round) -> &Figures| median(&rounds.iter().map(|round| pick(side(round))).collect::<Vec<_>>());
    Row {
        what,
        unit: "×",
        rounds: rounds.iter().map(|(ours, theirs)| pick(ours) / pick(theirs)).collect(),
        at_most,
        note: format!("ours {:.3} {unit}, theirs {:.3} {unit}", each(|r| &r.0), each(|r| &r.1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_with_different_results_are_not_compared() {
        let same = |ours: &[f64], theirs: &[f64]| same_results(ours, theirs, 1e-4, "").is_ok();
        assert!(same(&[10.0, 2.0], &[10.0001, 2.0]));
        assert!(!same(&[10.0, 2.0], &[10.0, 2.1]));
        assert!(!same(&[10.0], &[10.0, 2.0]));
        assert!(!same(&[f64::NAN], &[f64::NAN]));
    }
}
