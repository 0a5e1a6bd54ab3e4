//! `cargo xtask test`: installs what the tests need, builds them once and runs them side by side.

mod idle;
mod jobs;
mod report;
mod schedule;

use std::collections::BTreeMap;
use std::fs;
use std::time::Instant;

use camino::Utf8PathBuf;

use crate::failure::{Failure, Result};
use crate::libtorch::{self, system, system::Need};
use crate::process::{command, run as run_command};
use crate::workspace::{release_dir, root};
pub use jobs::build;
use jobs::{Binary, Job};
use report::Report;

/// The packages that the tests need besides libtorch.
pub const NEEDS: &[&[Need]] = &[system::OPENSSL, system::DECODER, system::CLOCK];

/// The profile of the tests.
pub const PROFILE: &str = "tests";

/// Runs the command: `test [FILTER]…`.
pub fn run(args: &[String]) -> Result<()> {
    if let Some(flag) = args.iter().find(|arg| arg.starts_with('-')) {
        let fix = "give parts of the names of tests, or run `cargo test --profile tests` with cargo's own options";
        return Err(Failure::request("cannot test", format!("{flag:?} is not known"), fix));
    }
    libtorch::ensure(NEEDS)?;
    run_built(build()?, args)
}

/// Runs the tests whose names contain one of the filters; without filters, all tests.
pub fn run_built(binaries: Vec<Binary>, filters: &[String]) -> Result<()> {
    install_nodes();
    let mut jobs = jobs::plan(binaries, filters)?;
    let mut history = History::read(logs().join("history.json"));
    history.order(&mut jobs);
    let report = run_jobs(jobs)?;
    // With filters, a binary runs only some of its tests, and its time says nothing about the next run.
    if filters.is_empty() {
        history.write(&report);
    }
    succeeded(&report)
}

/// Breaks the CUDA kernels of the TTT scan at each barrier, wait and index: tests that are too slow for `cargo xtask test`.
pub fn run_faults(binaries: &[Binary]) -> Result<()> {
    let jobs = jobs::ignored(binaries, "xtask/scan")?;
    if jobs.is_empty() {
        let fix = "look for its tests in tests/scan/faults.rs";
        return Err(Failure::new("cannot break the CUDA kernels", "xtask/scan has no ignored test", fix));
    }
    succeeded(&run_jobs(jobs)?)
}

/// Returns the folder of the tests' output.
fn logs() -> Utf8PathBuf {
    release_dir().with_file_name("xtask-test")
}

fn run_jobs(jobs: Vec<Job>) -> Result<Report> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (mut report, began) = (Report::default(), Instant::now());
    schedule::run(jobs, cores, &logs(), |job| println!("{}", report.add(job)))?;
    println!("{}", report.end(began.elapsed()));
    Ok(report)
}

fn succeeded(report: &Report) -> Result<()> {
    match report.failed {
        0 => Ok(()),
        failed => {
            Err(Failure::new("the tests do not pass", format!("{failed} tests failed"), "see the failures above"))
        }
    }
}

/// The duration of each job in earlier runs.
struct History {
    file: Utf8PathBuf,
    /// Seconds of the last run.
    by_job: BTreeMap<String, f64>,
}

impl History {
    /// Reads the file. If there is none, no job is known.
    fn read(file: Utf8PathBuf) -> Self {
        let text = fs::read_to_string(&file).unwrap_or_default();
        Self { file, by_job: serde_json::from_str(&text).unwrap_or_default() }
    }

    /// Puts the longest jobs first, so that none of them runs alone at the end. Unknown jobs come before them.
    fn order(&self, jobs: &mut [Job]) {
        let seconds = |job: &Job| self.by_job.get(&job.name).copied().unwrap_or(f64::INFINITY);
        jobs.sort_by(|a, b| seconds(b).total_cmp(&seconds(a)));
    }

    fn write(&mut self, report: &Report) {
        self.by_job.extend(report.times().iter().map(|time| (time.job.clone(), time.wall.as_secs_f64())));
        let text = serde_json::to_string_pretty(&self.by_job).expect("a map of names and numbers is JSON");
        // Without the file, the next run only takes longer.
        let _ = fs::write(&self.file, text);
    }
}

/// Installs what the tests on nodes of this machine need, when that is allowed. Otherwise those tests report that they
/// were skipped.
fn install_nodes() {
    let rig = root().join("tests/rig/rig");
    if let Err(failure) = run_command(&mut command(&rig, ["install", "--slurm"]), "see the message above") {
        println!("{failure}\ntests on real nodes will be skipped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::command;
    use std::time::Duration;

    #[test]
    fn the_longest_jobs_come_first_and_unknown_ones_before_them() {
        let folder = tempfile::tempdir().unwrap();
        let file = Utf8PathBuf::from_path_buf(folder.path().join("history.json")).unwrap();
        let mut report = Report::default();
        for (job, seconds) in [("short", 1), ("long", 2)] {
            let (took, cpu) = (Duration::from_secs(seconds), Duration::ZERO);
            report.add(schedule::Ended { name: job.into(), took, cpu, status: None, output: String::new() });
        }
        History::read(file.clone()).write(&report);
        let mut jobs =
            ["short", "new", "long"].map(|name| Job { name: name.into(), command: command("true", [""; 0]) });
        History::read(file).order(&mut jobs);
        assert_eq!(jobs.map(|job| job.name), ["new", "long", "short"]);
    }
}
