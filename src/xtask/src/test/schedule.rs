//! Runs jobs side by side, as many as the cores allow.

use std::fs::{self, File};
use std::process::{ExitStatus, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};

use super::jobs::{Job, Load};
use crate::failure::{Failure, Result};

/// A job that takes longer is killed.
const LIMIT: Duration = Duration::from_secs(600);

/// A job that has ended.
pub struct Ended {
    /// The job's name.
    pub name: String,
    /// Wall time.
    pub took: Duration,
    /// User and system time of the job and its descendants.
    pub cpu: Duration,
    /// The exit status; `None` if the job could not be started.
    pub status: Option<ExitStatus>,
    /// The output of the job and its child processes.
    pub output: String,
}

/// Runs all jobs. Starts the first job in the list that fits on the free cores. Calls `report` when a job ends, and writes
/// outputs to files in `logs`.
pub fn run(jobs: Vec<Job>, cores: Load, logs: &Utf8Path, mut report: impl FnMut(Ended)) -> Result<()> {
    fs::create_dir_all(logs)
        .map_err(|e| Failure::new(format!("cannot create {logs}"), e, "check the folder's permissions"))?;
    let (mut waiting, (send, ended)) = (jobs, channel());
    let (mut free, mut running) = (cores, 0);
    while !waiting.is_empty() || running > 0 {
        while let Some(next) = waiting.iter().position(|job| job.load.min(cores) <= free) {
            let job = waiting.remove(next);
            let load = job.load.min(cores);
            (free, running) = (free - load, running + 1);
            let log = logs.join(format!("{}.log", job.name.replace(['/', ':', ' '], "-")));
            start(job, load, log, send.clone());
        }
        let (load, result) = ended.recv().expect("a sender is alive");
        (free, running) = (free + load, running - 1);
        report(result);
    }
    Ok(())
}

/// Runs a job in a thread. Its output goes to a file and not through a pipe, because a process that outlives the job would
/// keep the pipe open.
fn start(mut job: Job, load: Load, log: Utf8PathBuf, send: Sender<(Load, Ended)>) {
    thread::spawn(move || {
        let began = Instant::now();
        let (status, cpu, error) = match wait(&mut job, &log) {
            Ok((status, cpu)) => (Some(status), cpu, String::new()),
            Err(error) => (None, Duration::ZERO, format!("cannot run it: {error}\n")),
        };
        let printed = fs::read(&log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let output = printed.unwrap_or_default() + &error;
        // The receiver lives until all jobs have ended.
        let _ = send.send((load, Ended { name: job.name, took: began.elapsed(), cpu, status, output }));
    });
}

fn wait(job: &mut Job, log: &Utf8Path) -> std::io::Result<(ExitStatus, Duration)> {
    let file = File::create(log)?;
    let errors = file.try_clone()?;
    let mut child = job.command.stdin(Stdio::null()).stdout(file).stderr(errors).spawn()?;
    let deadline = Instant::now() + LIMIT;
    loop {
        // Linux reports the CPU time of a process until its parent waits for it.
        let cpu = cpu(child.id());
        if let Some(status) = child.try_wait()? {
            return Ok((status, cpu));
        }
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            return Err(std::io::Error::other(format!("it did not end within {} s and was killed", LIMIT.as_secs())));
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the CPU time of a process and of its descendants that have ended; zero where there is no `/proc`.
fn cpu(pid: u32) -> Duration {
    // Ticks of 10 ms: utime, stime, cutime and cstime are fields 14 to 17. The program's name, field 2, may hold spaces.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let (_, fields) = stat.rsplit_once(')').unwrap_or_default();
    Duration::from_millis(
        10 * fields.split_whitespace().skip(11).take(4).filter_map(|n| n.parse::<u64>().ok()).sum::<u64>(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::command;

    fn job(name: &str, load: Load, script: &str) -> Job {
        Job { name: name.into(), load, command: command("sh", ["-c", script]) }
    }

    fn ended(jobs: Vec<Job>, cores: Load) -> Vec<Ended> {
        let folder = tempfile::tempdir().unwrap();
        let mut ended = Vec::new();
        run(jobs, cores, Utf8Path::from_path(folder.path()).unwrap(), |job| ended.push(job)).unwrap();
        ended
    }

    #[test]
    fn jobs_that_wait_for_each_other_run_at_the_same_time() {
        let folder = tempfile::tempdir().unwrap();
        let wait = |own: &str, other: &str| {
            let (own, other) = (folder.path().join(own), folder.path().join(other));
            format!("touch {}; until [ -e {} ]; do sleep 0.01; done", own.display(), other.display())
        };
        let jobs = vec![job("a", 50, &wait("a", "b")), job("b", 50, &wait("b", "a"))];
        assert_eq!(ended(jobs, 100).len(), 2);
    }

    #[test]
    fn the_cpu_time_of_child_processes_counts() {
        let spins = "sh -c 'i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done'; sleep 0.05; true";
        let ended = ended(vec![job("spins", 100, spins), job("sleeps", 100, "sleep 0.05")], 200);
        let cpu = |name: &str| ended.iter().find(|job| job.name == name).unwrap().cpu;
        assert!(cpu("spins") > cpu("sleeps"), "{:?}, {:?}", cpu("spins"), cpu("sleeps"));
    }

    #[test]
    fn output_and_exit_status_are_kept() {
        let ended = ended(vec![job("x", 100, "echo out; echo err >&2; exit 3")], 100);
        assert_eq!(ended[0].output, "out\nerr\n");
        assert_eq!(ended[0].status.unwrap().code(), Some(3));
    }
}
