//! The output of `cargo xtask test`: a line for each job, failures in full, the longest jobs, and the counts.

use std::time::Duration;

use super::jobs::Job;
use super::schedule::Ended;

/// The number of the longest jobs that are listed.
const LONGEST: usize = 15;

/// The results of all jobs so far.
#[derive(Default)]
pub struct Report {
    pub counts: Counts,
    /// The tests that failed at the first try and passed at the second, and the binaries that crashed at the first try.
    pub flaky: Vec<String>,
    /// The output of failed jobs.
    failures: String,
    times: Vec<Time>,
}

/// Numbers of tests.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub struct Counts {
    pub passed: u64,
    pub failed: u64,
    pub skipped: u64,
}

/// A job whose tests failed at the first try.
pub struct Failed {
    job: Job,
    first: FirstTry,
}

/// The result of the first try of a job.
pub struct FirstTry {
    /// The tests of a whole binary that failed; empty if the job as a whole is tried again.
    tests: Vec<String>,
    counts: Counts,
}

/// The duration of a job.
pub struct Time {
    pub job: String,
    pub wall: Duration,
    /// User and system time.
    pub cpu: Duration,
}

/// A parser of the test harness's output, line by line.
///
/// A test that lacks something prints a line that begins with `skipped`, and passes. The rest of what passing tests
/// print is not shown.
#[derive(Default)]
struct Reading {
    passed: u64,
    failed: u64,
    skipped: Vec<String>,
    ignored: u64,
    /// The names of failed tests.
    failed_tests: Vec<String>,
    /// The names in the last list of failed tests that has begun.
    listed: Vec<String>,
    /// Everything except the output of passing tests.
    shown: String,
    in_successes: bool,
}

impl Failed {
    /// Returns the job for the second try, and the result of the first.
    pub fn again(self) -> (Job, FirstTry) {
        (self.job.again(&self.first.tests), self.first)
    }
}

impl Report {
    /// Adds a job. Returns the lines that report it, and the job if it failed.
    pub fn add(&mut self, ended: Ended) -> (String, Option<Failed>) {
        let read = Reading::of(&ended.output);
        let (success, counts) = (ended.success(), read.counts(ended.success()));
        self.counts.add(counts);
        let line = line(&ended, if success { "ok    " } else { "FAILED" }, &read, counts);
        self.times.push(Time { job: ended.job.name.clone(), wall: ended.took, cpu: ended.cpu });
        if success {
            return (line, None);
        }
        self.failures += &format!("\n==== {} ({})\n{}", ended.job.name, ended.shown_status(), read.shown);
        // A job of one test has its name. A list that does not have all failed tests is incomplete.
        let is_listed = ended.job.by_name.is_some() && read.failed_tests.len() as u64 == read.failed;
        let tests = if is_listed { read.failed_tests } else { Vec::new() };
        (line, Some(Failed { job: ended.job, first: FirstTry { tests, counts } }))
    }

    /// Adds the second try of a job, which replaces the failures of the first. Returns the lines that report it.
    pub fn add_second(&mut self, first: &FirstTry, ended: &Ended) -> String {
        let name = &ended.job.name;
        let read = Reading::of(&ended.output);
        let mut counts = read.counts(ended.success());
        if first.tests.is_empty() {
            self.counts.remove(first.counts);
            if ended.success() {
                self.flaky.push(name.clone());
            }
        } else {
            // A test that was not run again has failed.
            let is_complete =
                counts.passed + counts.failed == first.counts.failed && read.failed_tests.len() as u64 == counts.failed;
            if !is_complete {
                counts = Counts { failed: first.counts.failed, ..Counts::default() };
            } else {
                let passed = first.tests.iter().filter(|test| !read.failed_tests.contains(test));
                self.flaky.extend(passed.map(|test| format!("{name} {test}")));
            }
            self.counts.remove(Counts { failed: first.counts.failed, ..Counts::default() });
        }
        self.counts.add(counts);
        let result = if counts.failed == 0 { "flaky " } else { "FAILED" };
        if counts.failed > 0 {
            self.failures += &format!("\n==== {name}, second try ({})\n{}", ended.shown_status(), read.shown);
        }
        line(ended, result, &read, counts)
    }

    /// Returns the end of the report.
    pub fn end(&mut self, took: Duration) -> String {
        self.times.sort_by_key(|time| std::cmp::Reverse(time.wall));
        let sum = |of: fn(&Time) -> Duration| self.times.iter().map(of).sum::<Duration>().as_secs_f64();
        let mut text = self.failures.clone();
        text += &format!(
            "\n{:.0} s of tests, {:.0} s of CPU, took {:.0} s side by side; the longest:\n",
            sum(|time| time.wall),
            sum(|time| time.cpu),
            took.as_secs_f64()
        );
        for Time { job, wall, cpu } in self.times.iter().take(LONGEST) {
            text += &format!("{:>7.1} s {:>7.1} s CPU  {job}\n", wall.as_secs_f64(), cpu.as_secs_f64());
        }
        if !self.flaky.is_empty() {
            text +=
                &format!("\nfailed at the first try and passed at the second:\n    {}\n", self.flaky.join("\n    "));
        }
        let Counts { passed, failed, skipped } = self.counts;
        text += &format!("\n{passed} passed, {failed} failed, {skipped} skipped");
        if !self.flaky.is_empty() {
            text += &format!(", {} flaky", self.flaky.len());
        }
        text
    }

    /// Returns how long each job took.
    pub fn times(&self) -> &[Time] {
        &self.times
    }
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }

    fn remove(&mut self, other: Self) {
        self.passed -= other.passed;
        self.failed -= other.failed;
        self.skipped -= other.skipped;
    }
}

/// Returns the lines that report a job.
fn line(ended: &Ended, result: &str, read: &Reading, counts: Counts) -> String {
    let (wall, cpu) = (ended.took.as_secs_f64(), ended.cpu.as_secs_f64());
    let mut line = format!("{wall:>7.1} s {cpu:>6.1} s CPU  {result}  {}", ended.job.name);
    if counts.passed + counts.failed != 1 {
        line += &format!(", {} tests", counts.passed + counts.failed);
    }
    for skipped in &read.skipped {
        line += &format!("\n                         {skipped}");
    }
    line
}

impl Reading {
    fn of(output: &str) -> Self {
        let mut reading = Self::default();
        output.lines().for_each(|line| reading.line(line));
        reading
    }

    /// Returns the numbers of tests. A process that fails without a failed test has crashed, was killed or could not be started,
    /// which counts as one failed test.
    fn counts(&self, success: bool) -> Counts {
        let failed = if success { self.failed } else { self.failed.max(1) };
        Counts { passed: self.passed, failed, skipped: self.ignored + self.skipped.len() as u64 }
    }

    fn line(&mut self, line: &str) {
        if line == "successes:" {
            self.in_successes = true;
        } else if line == "failures:" {
            self.in_successes = false;
            // The outputs of failed tests come first and the list of their names last, both below such a line.
            self.listed.clear();
        } else if let Some(counts) = line.strip_prefix("test result: ") {
            self.in_successes = false;
            self.failed_tests.append(&mut self.listed);
            self.count(counts);
        } else if let Some(name) = line.strip_prefix("    ").filter(|_| !self.in_successes) {
            self.listed.push(name.to_owned());
        } else if self.in_successes && line.to_ascii_lowercase().starts_with("skipped") {
            self.skipped.push(line.to_owned());
        }
        if !self.in_successes {
            self.shown += line;
            self.shown.push('\n');
        }
    }

    /// Reads `ok. 5 passed; 0 failed; 1 ignored; …`.
    fn count(&mut self, counts: &str) {
        let counts = counts.split_once(". ").map_or("", |(_, counts)| counts);
        for (number, what) in counts.split("; ").filter_map(|count| count.split_once(' ')) {
            let number: u64 = number.parse().unwrap_or(0);
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, ExitStatus};

    fn ended(name: &str, seconds: u64, status: i32, output: &str) -> Ended {
        let status = Some(ExitStatus::from_raw(status));
        Ended {
            job: Job { name: name.into(), command: Command::new("true"), by_name: None },
            took: Duration::from_secs(seconds),
            cpu: Duration::ZERO,
            status,
            output: output.into(),
        }
    }

    #[test]
    fn the_output_of_passing_tests_is_hidden_except_what_they_skipped() {
        let output = "\
running 4 tests
test a ... ok

successes:

---- a stdout ----
chatter
skipped: no ffmpeg


successes:
    a
    b

failures:

---- c stdout ----
it broke

test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 4 filtered out; finished in 0.00s";
        let mut report = Report::default();
        let (line, _) = report.add(ended("plan", 2, 101 << 8, output));
        assert!(
            line.contains("FAILED") && line.contains("plan, 6 tests") && line.contains("skipped: no ffmpeg"),
            "{line}"
        );
        let end = report.end(Duration::from_secs(2));
        assert!(end.contains("it broke") && !end.contains("chatter") && !end.contains("    a\n"), "{end}");
        assert_eq!(end.lines().last(), Some("5 passed, 1 failed, 2 skipped"));
    }

    #[test]
    fn a_process_that_crashes_counts_as_a_failed_test_and_shows_what_it_printed() {
        let mut report = Report::default();
        report.add(ended("c10d", 1, 6, "running 1 test\nterminate called\n"));
        let end = report.end(Duration::from_secs(1));
        assert!(end.contains("==== c10d (signal: 6") && end.contains("terminate called"), "{end}");
        assert_eq!((report.counts.passed, report.counts.failed), (0, 1));
    }

    #[test]
    fn the_longest_jobs_come_first() {
        let mut report = Report::default();
        for seconds in 1..=20 {
            report.add(ended(&format!("test-{seconds}"), seconds, 0, "test result: ok. 1 passed; 0 failed"));
        }
        let end = report.end(Duration::from_secs(100));
        let listed: Vec<&str> =
            end.lines().filter_map(|line| line.split_once("CPU  test-")).map(|(_, name)| name).collect();
        assert_eq!(listed, (6..=20).rev().map(|n| n.to_string()).collect::<Vec<_>>());
    }
}
