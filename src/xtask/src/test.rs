//! `cargo xtask test`: gets what the tests need, and runs all of them.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::failure::{Failure, Result};
use crate::libtorch::{self, system, system::Need};
use crate::process::{cargo, command, not_started, run as run_command};
use crate::workspace::root;

/// What the tests need besides libtorch.
pub const NEEDS: &[&[Need]] = &[system::OPENSSL, system::DECODER, system::CLOCK];

const SEE_ABOVE: &str = "the first failure above says why";

/// Runs the command: `test [FILTER]`.
pub fn run(args: &[String]) -> Result<()> {
    libtorch::ensure(NEEDS)?;
    install_nodes();
    // One profile for everything, so that torch-sys is compiled once; and first the binaries, which tests start.
    let mut build = cargo(["build", "--release", "--workspace", "--bins"]);
    run_command(&mut build, "see the compiler's errors above")?;
    let mut test = cargo(["test", "--release", "--workspace", "--no-fail-fast"]);
    test.args(args).args(["--", "--show-output"]).stdout(Stdio::piped());
    let mut child = test.spawn().map_err(|e| not_started(&test, &e))?;
    let mut report = Report::default();
    for line in BufReader::new(child.stdout.take().expect("stdout was asked for")).lines().map_while(|line| line.ok()) {
        if let Some(line) = report.read(&line) {
            println!("{line}");
        }
    }
    let status = child.wait().map_err(|e| not_started(&test, &e))?;
    println!("\n{} passed, {} failed, {} skipped", report.passed, report.failed, report.skipped);
    if status.success() {
        return Ok(());
    }
    let why = if report.failed == 0 { status.to_string() } else { format!("{} tests failed", report.failed) };
    Err(Failure::new("the tests do not pass", why, SEE_ABOVE))
}

/// Installs what the tests on nodes of this machine need, when that is allowed. Where it is not, those tests say aloud
/// that they were skipped.
fn install_nodes() {
    let rig = root().join("tests/rig/rig");
    if let Err(failure) = run_command(&mut command(&rig, ["install", "--slurm"]), "see the message above") {
        println!("{failure}\ntests on real nodes will be skipped");
    }
}

/// The counts of all test binaries, read from what they print.
///
/// A test that lacks something prints a line that begins with `skipped` and passes. The harness shows what passing
/// tests print only all at once, so everything else of that is dropped here.
#[derive(Debug, Default, PartialEq)]
struct Report {
    passed: u64,
    failed: u64,
    skipped: u64,
    in_successes: bool,
}

impl Report {
    /// Reads a line; returns it when it is to be shown.
    fn read<'a>(&mut self, line: &'a str) -> Option<&'a str> {
        if line == "successes:" {
            self.in_successes = true;
        } else if line == "failures:" {
            self.in_successes = false;
        } else if let Some(counts) = line.strip_prefix("test result: ") {
            self.in_successes = false;
            self.count(counts);
        } else if self.in_successes && line.to_ascii_lowercase().starts_with("skipped") {
            self.skipped += 1;
            return Some(line);
        }
        (!self.in_successes).then_some(line)
    }

    /// Reads `ok. 5 passed; 0 failed; 1 ignored; …`.
    fn count(&mut self, counts: &str) {
        let counts = counts.split_once(". ").map_or("", |(_, counts)| counts);
        for (number, what) in counts.split("; ").filter_map(|count| count.split_once(' ')) {
            let number: u64 = number.parse().unwrap_or(0);
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.skipped += number,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passing_tests_print_is_hidden_but_for_what_they_skipped() {
        let output = "\
running 3 tests
test a ... ok

successes:

---- a stdout ----
chatter
SKIPPED: no ffmpeg


successes:
    a
    b

failures:

---- c stdout ----
it broke

test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 4 filtered out; finished in 0.00s";
        let mut report = Report::default();
        let shown: Vec<&str> = output.lines().filter_map(|line| report.read(line)).collect();
        assert!(shown.contains(&"SKIPPED: no ffmpeg") && shown.contains(&"it broke"), "{shown:?}");
        assert!(!shown.contains(&"chatter") && !shown.contains(&"    a"), "{shown:?}");
        assert_eq!(report, Report { passed: 5, failed: 1, skipped: 2, in_successes: false });
    }
}
