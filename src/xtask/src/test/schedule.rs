//! Runs jobs side by side, as many as keep the CPU busy.

use std::fs::{self, File};
use std::process::{ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use camino::Utf8Path;

use super::idle::IdleCpu;
use super::jobs::Job;
use crate::failure::{Failure, Result};
use crate::process::{command, state_and_cpu, with_variable};

/// A job that takes longer is killed with its processes.
const LIMIT: Duration = Duration::from_secs(600);
/// The variable that marks the processes of a job. A process group would miss supervisors, which have sessions of their own, and
/// Ctrl-C in the terminal would not reach it.
const MARK: &str = "XTASK_JOB";
/// The longest wait for killed processes to end.
const KILL: Duration = Duration::from_secs(10);
/// The interval at which a job is checked for its end. At 10 ms, the checks took 35 s of CPU in a run of all tests.
const POLL: Duration = Duration::from_millis(40);
/// The interval at which idle CPU is measured.
const MEASURE: Duration = Duration::from_millis(150);
/// Another job is started if more cores than this were idle.
const IDLE_CORES: f64 = 0.3;
/// The most jobs per core. The limit bounds memory, because each node of a rig takes some.
const MOST_PER_CORE: usize = 6;

/// A job that has ended.
pub struct Ended {
    /// The job, which can be run again.
    pub job: Job,
    /// Wall time.
    pub took: Duration,
    /// User and system time of the job and its descendants.
    pub cpu: Duration,
    /// The exit status; `None` if the job could not be started.
    pub status: Option<ExitStatus>,
    /// The output of the job and its child processes.
    pub output: String,
}

impl Ended {
    /// Returns whether all tests passed.
    pub fn success(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// Returns the exit status for people.
    pub fn shown_status(&self) -> String {
        self.status.map_or("not started".into(), |status| status.to_string())
    }
}

/// Runs all jobs, in their order. Runs at least one job per core, and starts another one whenever a part of a core was
/// idle, because many tests wait. Calls `report` when a job ends, and writes outputs to files in `logs`.
pub fn run(jobs: Vec<Job>, cores: usize, logs: &Utf8Path, mut report: impl FnMut(Ended)) -> Result<()> {
    fs::create_dir_all(logs)
        .map_err(|e| Failure::new(format!("cannot create {logs}"), e, "check the folder's permissions"))?;
    let (mut waiting, (send, ended)) = (jobs.into_iter().peekable(), channel());
    let (mut running, mut idle, mut measured) = (0, IdleCpu::start(), Instant::now());
    while waiting.peek().is_some() || running > 0 {
        let is_idle = measured.elapsed() >= MEASURE && {
            measured = Instant::now();
            idle.cores_since_last() > IDLE_CORES
        };
        while running < cores || (is_idle && running < MOST_PER_CORE * cores) {
            let Some(job) = waiting.next() else { break };
            running += 1;
            start(job, logs, send.clone());
            if running > cores {
                break;
            }
        }
        match ended.recv_timeout(MEASURE) {
            Ok(result) => {
                running -= 1;
                report(result);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => unreachable!("a sender is alive"),
        }
    }
    Ok(())
}

/// Runs a job in a thread. Its output goes to a file and not through a pipe, because a process that outlives the job would
/// keep the pipe open.
fn start(mut job: Job, logs: &Utf8Path, send: Sender<Ended>) {
    let log = logs.join(format!("{}.log", job.name.replace(['/', ':', ' '], "-")));
    thread::spawn(move || {
        let began = Instant::now();
        let (status, cpu, error) = match wait(&mut job, &log, LIMIT) {
            Ok((status, cpu)) => (Some(status), cpu, String::new()),
            Err(error) => (None, Duration::ZERO, format!("cannot run it: {error}\n")),
        };
        let printed = fs::read(&log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let output = printed.unwrap_or_default() + &error;
        // The receiver lives until all jobs have ended.
        let _ = send.send(Ended { job, took: began.elapsed(), cpu, status, output });
    });
}

fn wait(job: &mut Job, log: &Utf8Path, limit: Duration) -> std::io::Result<(ExitStatus, Duration)> {
    let file = File::create(log)?;
    let errors = file.try_clone()?;
    job.command.env(MARK, mark(&job.name));
    let mut child = job.command.stdin(Stdio::null()).stdout(file).stderr(errors).spawn()?;
    let deadline = Instant::now() + limit;
    loop {
        // Linux keeps the CPU time of a process that has ended until its parent waits for it.
        let (may_have_ended, cpu) = state_and_cpu(child.id());
        if may_have_ended && let Some(status) = child.try_wait()? {
            return Ok((status, cpu));
        }
        if Instant::now() > deadline {
            kill_marked(&mark(&job.name));
            child.kill()?;
            child.wait()?;
            return Err(std::io::Error::other(format!("it did not end within {} s and was killed", limit.as_secs())));
        }
        thread::sleep(POLL);
    }
}

/// Returns the value of [`MARK`] for a job of this process.
fn mark(name: &str) -> String {
    format!("{} {name}", std::process::id())
}

/// Kills the processes of a job and waits until they have ended. Without `/proc`, kills none.
fn kill_marked(mark: &str) {
    let began = Instant::now();
    // A process may have started another one after the list was read.
    while began.elapsed() < KILL {
        let pids = with_variable(&format!("{MARK}={mark}"));
        if pids.is_empty() {
            return;
        }
        let mut kill = command("sh", ["-c", "kill -KILL \"$@\"", "sh"]);
        // A process that has ended in the meantime is no error.
        let _ = kill.args(pids.iter().map(u32::to_string)).stdin(Stdio::null()).stderr(Stdio::null()).status();
        thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str, script: &str) -> Job {
        Job { name: name.into(), command: command("sh", ["-c", script]), by_name: None }
    }

    fn ended(jobs: Vec<Job>, cores: usize) -> Vec<Ended> {
        let folder = tempfile::tempdir().unwrap();
        let mut ended = Vec::new();
        run(jobs, cores, Utf8Path::from_path(folder.path()).unwrap(), |job| ended.push(job)).unwrap();
        ended
    }

    #[test]
    fn one_job_per_core_runs_even_on_a_busy_machine() {
        let folder = tempfile::tempdir().unwrap();
        let wait = |own: &str, other: &str| {
            let (own, other) = (folder.path().join(own), folder.path().join(other));
            format!("touch {}; until [ -e {} ]; do sleep 0.01; done", own.display(), other.display())
        };
        let jobs = vec![job("a", &wait("a", "b")), job("b", &wait("b", "a"))];
        assert_eq!(ended(jobs, 2).len(), 2);
    }

    #[test]
    fn the_cpu_time_of_child_processes_counts() {
        let spins = "sh -c 'i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done'; true";
        let ended = ended(vec![job("spins", spins), job("sleeps", "sleep 0.05")], 2);
        let cpu = |name: &str| ended.iter().find(|ended| ended.job.name == name).unwrap().cpu;
        assert!(cpu("spins") > cpu("sleeps"), "{:?}, {:?}", cpu("spins"), cpu("sleeps"));
    }

    #[test]
    fn a_job_that_exceeds_the_time_limit_is_killed_with_its_processes() {
        let folder = tempfile::tempdir().unwrap();
        let log = Utf8Path::from_path(folder.path()).unwrap().join("log");
        // One process has a session of its own, and the parent of another one has ended.
        let mut hangs = job("hangs", "setsid sleep 300 & (sleep 300 &); sleep 300");
        assert!(wait(&mut hangs, &log, Duration::from_secs(2)).is_err());
        assert_eq!(with_variable(&format!("{MARK}={}", mark("hangs"))), [0; 0]);
    }

    #[test]
    fn output_and_exit_status_are_kept() {
        let ended = ended(vec![job("x", "echo out; echo err >&2; exit 3")], 1);
        assert_eq!(ended[0].output, "out\nerr\n");
        assert_eq!(ended[0].status.unwrap().code(), Some(3));
    }
}
