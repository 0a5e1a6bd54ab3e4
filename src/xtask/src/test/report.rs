//! The output of `cargo xtask test`: a line for each job, failures in full, the longest jobs, and the counts.

use std::time::Duration;

use super::schedule::Ended;

/// The number of the longest jobs that are listed.
const LONGEST: usize = 15;

/// The results of all jobs so far.
#[derive(Default)]
pub struct Report {
    pub passed: u64,
    pub failed: u64,
    pub skipped: u64,
    /// The output of failed jobs.
    failures: String,
    times: Vec<Time>,
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
    /// Everything except the output of passing tests.
    shown: String,
    in_successes: bool,
}

impl Report {
    /// Adds a job, and returns the lines that report it.
    pub fn add(&mut self, job: Ended) -> String {
        let mut read = Reading::of(&job.output);
        let success = job.status.is_some_and(|status| status.success());
        if !success && read.failed == 0 {
            // The process itself failed: it crashed, was killed or could not be started.
            read.failed = 1;
        }
        self.passed += read.passed;
        self.failed += read.failed;
        self.skipped += read.ignored + read.skipped.len() as u64;
        let (wall, cpu) = (job.took.as_secs_f64(), job.cpu.as_secs_f64());
        let mut line =
            format!("{wall:>7.1} s {cpu:>6.1} s CPU  {}  {}", if success { "ok    " } else { "FAILED" }, job.name);
        if read.passed + read.failed != 1 {
            line += &format!(", {} tests", read.passed + read.failed);
        }
        for skipped in &read.skipped {
            line += &format!("\n                         {skipped}");
        }
        if !success {
            let status = job.status.map_or("not started".into(), |status| status.to_string());
            self.failures += &format!("\n==== {} ({status})\n{}", job.name, read.shown);
        }
        self.times.push(Time { job: job.name, wall: job.took, cpu: job.cpu });
        line
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
        text + &format!("\n{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }

    /// Returns how long each job took.
    pub fn times(&self) -> &[Time] {
        &self.times
    }
}

impl Reading {
    fn of(output: &str) -> Self {
        let mut reading = Self::default();
        output.lines().for_each(|line| reading.line(line));
        reading
    }

    fn line(&mut self, line: &str) {
        if line == "successes:" {
            self.in_successes = true;
        } else if line == "failures:" {
            self.in_successes = false;
        } else if let Some(counts) = line.strip_prefix("test result: ") {
            self.in_successes = false;
            self.count(counts);
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
    use std::process::ExitStatus;

    fn ended(name: &str, seconds: u64, status: i32, output: &str) -> Ended {
        let status = Some(ExitStatus::from_raw(status));
        Ended {
            name: name.into(),
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
        let line = report.add(ended("plan", 2, 101 << 8, output));
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
        assert_eq!((report.passed, report.failed), (0, 1));
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
