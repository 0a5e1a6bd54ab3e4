//! `cargo xtask test`: gets what the tests need, builds them once and runs them side by side.

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
use jobs::Job;
use report::Report;

/// What the tests need besides libtorch.
pub const NEEDS: &[&[Need]] = &[system::OPENSSL, system::DECODER, system::CLOCK];

/// Runs the command: `test [FILTER]…`.
pub fn run(args: &[String]) -> Result<()> {
    if let Some(flag) = args.iter().find(|arg| arg.starts_with('-')) {
        let fix = "give parts of the names of tests, or run `cargo test --release` with cargo's own options";
        return Err(Failure::request("cannot test", format!("{flag:?} is not known"), fix));
    }
    libtorch::ensure(NEEDS)?;
    install_nodes();
    let mut jobs = jobs::plan(&jobs::build()?, args)?;
    let folder = release_dir().with_file_name("xtask-test");
    let mut seconds = Seconds::read(folder.join("seconds.json"));
    seconds.sort(&mut jobs);
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let (mut report, began) = (Report::default(), Instant::now());
    schedule::run(jobs, 100 * cores, &folder, |job| println!("{}", report.add(job)))?;
    println!("{}", report.end(began.elapsed()));
    seconds.write(&report);
    match report.failed {
        0 => Ok(()),
        failed => {
            Err(Failure::new("the tests do not pass", format!("{failed} tests failed"), "see the failures above"))
        }
    }
}

/// How long each job took when it last ran, so that the longest start first and none of them runs alone at the end.
struct Seconds {
    file: Utf8PathBuf,
    by_job: BTreeMap<String, f64>,
}

impl Seconds {
    /// Reads the file; without one, no time is known.
    fn read(file: Utf8PathBuf) -> Self {
        let text = fs::read_to_string(&file).unwrap_or_default();
        Self { file, by_job: serde_json::from_str(&text).unwrap_or_default() }
    }

    /// Puts jobs of unknown length first, then the longest.
    fn sort(&self, jobs: &mut [Job]) {
        let seconds = |job: &Job| self.by_job.get(&job.name).copied().unwrap_or(f64::INFINITY);
        jobs.sort_by(|a, b| seconds(b).total_cmp(&seconds(a)));
    }

    fn write(&mut self, report: &Report) {
        self.by_job.extend(report.times().map(|(name, took)| (name.to_owned(), took.as_secs_f64())));
        let text = serde_json::to_string_pretty(&self.by_job).expect("a map of names and numbers is JSON");
        // The next run is only less well packed without it.
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
