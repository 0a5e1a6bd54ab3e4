//! `cargo xtask test`: installs what the tests need, builds them once and runs them side by side.

mod idle;
mod jobs;
mod report;
mod schedule;

use std::collections::BTreeMap;
use std::fs;
use std::time::Instant;

use camino::{Utf8Path, Utf8PathBuf};

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

/// If more tests fail, none is run again: so many do not fail by accident, and the second runs are one after the other.
const MOST_RETRIED: u64 = 10;

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
    let report = run_jobs(jobs, &logs(), Retry::Once, &print_line)?;
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
    // These tests wait for nothing: a retry could only hide a fault that is not always detected.
    succeeded(&run_jobs(jobs, &logs(), Retry::Never, &print_line)?)
}

/// Returns the folder of the tests' output.
fn logs() -> Utf8PathBuf {
    release_dir().with_file_name("xtask-test")
}

/// Whether jobs whose tests failed are run again.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Retry {
    Never,
    /// Once, one after the other, when all other jobs have ended and the machine is idle. Not if more than [`MOST_RETRIED`] tests failed.
    Once,
}

fn print_line(line: &str) {
    println!("{line}");
}

/// Runs jobs. `print` receives the lines of the report.
fn run_jobs(jobs: Vec<Job>, logs: &Utf8Path, retry: Retry, print: &dyn Fn(&str)) -> Result<Report> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (mut report, mut failed, began) = (Report::default(), Vec::new(), Instant::now());
    schedule::run(jobs, cores, logs, |ended| {
        let (line, failure) = report.add(ended);
        print(&line);
        failed.extend(failure);
    })?;
    let count = report.counts.failed;
    if retry == Retry::Once && count > MOST_RETRIED {
        print(&format!("{count} tests failed, which are too many to run again: at most {MOST_RETRIED}"));
    } else if retry == Retry::Once {
        for first in failed {
            let (job, first) = first.again();
            schedule::run(vec![job], 1, logs, |ended| print(&report.add_second(&first, &ended)))?;
        }
    }
    print(&report.end(began.elapsed()));
    Ok(report)
}

fn succeeded(report: &Report) -> Result<()> {
    match report.counts.failed {
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

    fn job(name: &str, script: &str) -> Job {
        Job { name: name.into(), command: command("sh", ["-c", script]), by_name: None }
    }

    /// Runs jobs in a folder of their own.
    fn ran(make: impl Fn(&Utf8Path) -> Vec<Job>, retry: Retry) -> Report {
        let folder = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(folder.path()).unwrap();
        // Not printed: the lines of these jobs would count as results of this binary.
        run_jobs(make(folder), &folder.join("logs"), retry, &|_| ()).unwrap()
    }

    /// Returns the numbers of passed, failed, skipped and flaky tests.
    fn counts(report: &Report) -> [u64; 4] {
        let report::Counts { passed, failed, skipped } = report.counts;
        [passed, failed, skipped, report.flaky.len() as u64]
    }

    /// A script that passes when it is run for the second time.
    fn passes_at_the_second_try(folder: &Utf8Path) -> String {
        format!(
            "if mkdir {folder}/tried; then echo broken; echo 'test result: FAILED. 0 passed; 1 failed'; exit 101; fi
             echo 'test result: ok. 1 passed; 0 failed'"
        )
    }

    #[test]
    fn a_test_that_passes_at_the_second_try_is_flaky_and_passed() {
        let mut report = ran(|folder| vec![job("rig a", &passes_at_the_second_try(folder))], Retry::Once);
        assert_eq!(counts(&report), [1, 0, 0, 1]);
        assert!(succeeded(&report).is_ok());
        assert_eq!(report.times().len(), 1, "the duration of a second try says nothing about the next run");
        let end = report.end(Duration::ZERO);
        assert!(end.contains("broken") && end.contains("\n    rig a\n"), "{end}");
        assert_eq!(end.lines().last(), Some("1 passed, 0 failed, 0 skipped, 1 flaky"));
    }

    #[test]
    fn a_test_that_fails_twice_fails() {
        let fails = "echo 'test result: FAILED. 0 passed; 1 failed'; exit 101";
        let report = ran(|_| vec![job("rig a", fails)], Retry::Once);
        assert_eq!(counts(&report), [0, 1, 0, 0]);
        assert!(succeeded(&report).is_err());
    }

    #[test]
    fn without_retries_a_test_that_fails_once_fails() {
        let report = ran(|folder| vec![job("xtask/scan a", &passes_at_the_second_try(folder))], Retry::Never);
        assert_eq!(counts(&report), [0, 1, 0, 0]);
    }

    #[test]
    fn up_to_10_failed_tests_run_again_and_of_more_tests_none() {
        let jobs = |count: usize| {
            move |folder: &Utf8Path| {
                let job = |name: usize| {
                    let folder = folder.join(name.to_string());
                    fs::create_dir(&folder).unwrap();
                    job(&format!("rig {name}"), &passes_at_the_second_try(&folder))
                };
                (0..count).map(job).collect()
            }
        };
        assert_eq!(counts(&ran(jobs(10), Retry::Once)), [10, 0, 0, 10]);
        assert_eq!(counts(&ran(jobs(11), Retry::Once)), [0, 11, 0, 0]);
    }

    #[test]
    fn of_a_binary_only_the_failed_tests_run_again_by_name() {
        let jobs = |folder: &Utf8Path| {
            let first = "printf 'failures:\\n    a::b\\n    c\\n\\n'; \
                echo 'test result: FAILED. 5 passed; 2 failed; 1 ignored'; exit 101";
            let second = format!(
                "echo \"$@\" >{folder}/names; [ \"$*\" = 'a::b c' ] || exit 1
                 printf 'failures:\\n    c\\n\\n'; echo 'test result: FAILED. 1 passed; 1 failed; 0 ignored'; exit 101"
            );
            vec![Job { by_name: Some(command("sh", ["-c", &second, "sh"])), ..job("plan", first) }]
        };
        let mut report = ran(jobs, Retry::Once);
        assert_eq!(counts(&report), [6, 1, 1, 1]);
        let end = report.end(Duration::ZERO);
        assert!(
            end.lines().any(|line| line == "    plan a::b") && !end.lines().any(|line| line == "    plan c"),
            "{end}"
        );
    }

    #[test]
    fn a_binary_that_crashed_runs_again_as_a_whole() {
        let jobs = |folder: &Utf8Path| {
            let script = format!(
                "if mkdir {folder}/tried; then echo 'terminate called'; kill -ABRT $$; fi
                 echo 'test result: ok. 7 passed; 0 failed; 1 ignored'"
            );
            vec![Job { by_name: Some(command("false", [""; 0])), ..job("c10d", &script) }]
        };
        assert_eq!(counts(&ran(jobs, Retry::Once)), [7, 0, 1, 1]);
    }

    #[test]
    fn jobs_run_again_one_at_a_time_when_all_others_have_ended() {
        let jobs = |folder: &Utf8Path| {
            // At the second try, each job fails unless it is alone and the long job has ended.
            let fails = format!(
                "if mkdir {folder}/tried-$0; then exit 101; fi
                 [ -e {folder}/ended ] && mkdir {folder}/alone && sleep 0.2 && rmdir {folder}/alone
                 [ $? = 0 ] && echo 'test result: ok. 1 passed; 0 failed'"
            );
            let long = format!(
                "until [ -e {folder}/tried-a ] && [ -e {folder}/tried-b ]; do sleep 0.01; done
                 sleep 0.2; touch {folder}/ended; echo 'test result: ok. 1 passed; 0 failed'"
            );
            let fails = |name: &str| Job { command: command("sh", ["-c", &fails, name]), ..job(name, "") };
            vec![fails("a"), fails("b"), job("long", &long)]
        };
        assert_eq!(counts(&ran(jobs, Retry::Once)), [3, 0, 0, 2]);
    }

    #[test]
    fn the_longest_jobs_come_first_and_unknown_ones_before_them() {
        let folder = tempfile::tempdir().unwrap();
        let file = Utf8PathBuf::from_path_buf(folder.path().join("history.json")).unwrap();
        let mut report = Report::default();
        for (job, seconds) in [("short", 1), ("long", 2)] {
            let (took, cpu) = (Duration::from_secs(seconds), Duration::ZERO);
            report.add(schedule::Ended { job: self::job(job, ""), took, cpu, status: None, output: String::new() });
        }
        History::read(file.clone()).write(&report);
        let mut jobs = ["short", "new", "long"].map(|name| job(name, ""));
        History::read(file).order(&mut jobs);
        assert_eq!(jobs.map(|job| job.name), ["new", "long", "short"]);
    }
}
