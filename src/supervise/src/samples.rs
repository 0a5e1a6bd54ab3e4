//! Samples of the node while its ranks run: what it and its GPUs do, for whoever looks later.
//!
//! The same script as the console's own stream runs here, in a process group of its own and without the run's environment: it
//! is no part of the run, and nothing that happens to it happens to the ranks. It ends when its input does, so also when this
//! process is killed.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use cluster::nvidia_smi::{GpuQuery, SmiTrouble};
use cluster::probe::{Frames, Pace, script_until_input_ends};
use rundir::{LineAppender, NodeSample};

use crate::job::Job;

/// Seconds between two samples: a day of eight GPUs takes 8 MB.
const EVERY_S: f64 = 5.0;

/// The sampling of a node; it ends when this is dropped.
pub(crate) struct Samples {
    lifeline: Arc<Mutex<Lifeline>>,
}

enum Lifeline {
    /// The script's input: it lives for as long as this is held.
    Held(Option<ChildStdin>),
    Cut,
}

impl Samples {
    /// Begins. What goes wrong is said on standard error, which is the supervisor's log, and disturbs nothing.
    pub(crate) fn start(job: &Job) -> Self {
        Self::start_with(job, EVERY_S, |_| {})
    }

    fn start_with(job: &Job, every_s: f64, change: impl Fn(&mut Command) + Send + 'static) -> Self {
        let lifeline = Arc::new(Mutex::new(Lifeline::Held(None)));
        let (held, path, attempt) = (lifeline.clone(), job.run.gpu_samples(&job.node), job.attempt.number);
        thread::spawn(move || {
            let sampled =
                LineAppender::open(&path).and_then(|mut file| sample(&mut file, attempt, every_s, &held, &change));
            if let Err(error) = sampled {
                eprintln!("no more samples in {path}: {error}");
            }
        });
        Self { lifeline }
    }
}

impl Drop for Samples {
    fn drop(&mut self) {
        *self.lifeline.lock().unwrap_or_else(PoisonError::into_inner) = Lifeline::Cut;
    }
}

/// Samples until the lifeline is cut, or nothing more comes.
fn sample(
    file: &mut LineAppender,
    attempt: u32,
    every_s: f64,
    lifeline: &Mutex<Lifeline>,
    change: &dyn Fn(&mut Command),
) -> std::io::Result<()> {
    let mut query = GpuQuery::default();
    let mut said = false;
    'asked: loop {
        let mut command = Command::new("sh");
        command.args(["-c", &script_until_input_ends(&query, Pace::every_s(every_s))]);
        // Nobody who looks for the run's processes shall find these.
        command.env_remove("VIDTUI_RUN").env_remove("RANK").env_remove("LOCAL_RANK").process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        change(&mut command);
        let mut child = command.spawn()?;
        let stdout = child.stdout.take();
        {
            let mut lifeline = lifeline.lock().unwrap_or_else(PoisonError::into_inner);
            match &mut *lifeline {
                Lifeline::Held(input) => *input = child.stdin.take(),
                Lifeline::Cut => drop(child.stdin.take()),
            }
        }
        let mut frames = Frames::new(query.clone());
        let mut before = None;
        for line in BufReader::new(stdout.ok_or_else(|| std::io::Error::other("it has no output"))?).lines() {
            let Some(frame) = frames.push_line(&line?) else { continue };
            let unknown = frame.troubles.iter().find_map(|trouble| match trouble {
                SmiTrouble::UnknownField(field) => query.without(field),
                _ => None,
            });
            if let Some(other) = unknown {
                query = other;
                continue 'asked;
            }
            // A full disk may be emptied again.
            if let Err(error) = file.append(&NodeSample::new(attempt, &frame, before))
                && !std::mem::replace(&mut said, true)
            {
                eprintln!("cannot write samples to {}: {error}", file.path());
            }
            before = frame.host.cpu;
        }
        child.wait()?;
        return Ok(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::job;
    use rundir::{RunDir, Tail};
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::time::{Duration, Instant};

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Samples with this in place of nvidia-smi until the samples are as they should be.
    fn sampled(nvidia_smi: &str, enough: impl Fn(&[NodeSample]) -> bool) -> Vec<NodeSample> {
        let (keep, job) = job();
        let bin = keep.path().join("bin");
        fs::create_dir_all(&bin).unwrap();
        fs::write(bin.join("nvidia-smi"), format!("#!/bin/sh\n{nvidia_smi}\n")).unwrap();
        fs::set_permissions(bin.join("nvidia-smi"), fs::Permissions::from_mode(0o755)).unwrap();
        let path = format!("{}:/usr/bin:/bin", bin.display());
        let samples = Samples::start_with(&job, 0.05, move |command| {
            command.env("PATH", &path);
        });
        let read = |run: &RunDir| {
            let path = run.gpu_samples(&job.node);
            if path.exists() { Tail::<NodeSample>::new(path).poll().unwrap().items } else { Vec::new() }
        };
        let deadline = Instant::now() + PATIENCE;
        while !enough(&read(&job.run)) {
            assert!(Instant::now() < deadline, "{:?}", read(&job.run));
            thread::sleep(Duration::from_millis(10));
        }
        drop(samples);
        read(&job.run)
    }

    #[test]
    fn the_node_is_sampled_with_its_gpus_and_processors() {
        let row = "0, GPU-a, H100, 00000000:19:00.0, 631.95, 700.00, 70210, 81559, 100, 59, 1980, 0, 0x0, Disabled";
        let smi = format!("case $1 in --query-gpu*) echo '{row}' ;; esac");
        let all = sampled(&smi, |all| all.len() >= 3 && all.iter().any(|sample| sample.cpu_pct.is_some()));
        assert_eq!((all[0].gpus.index.len(), all[0].gpus()[0].power_w.value()), (1, Some(632.0)));
        assert!(all[0].mem_total_mib.is_some() && all.is_sorted_by(|a, b| a.t <= b.t));
    }

    #[test]
    fn a_node_without_nvidia_smi_or_with_a_broken_one_is_sampled_too() {
        let all = sampled("exit 127", |all| all.len() >= 2);
        assert!(all[0].gpus.is_empty() && all[0].troubles.is_empty() && all[0].mem_used_mib.is_some());
        let all = sampled("echo 'Failed to initialize NVML: Unknown Error'; exit 255", |all| all.len() >= 2);
        assert_eq!(all[0].troubles, ["NVML does not start: Unknown Error"]);
    }

    #[test]
    fn an_nvidia_smi_that_hangs_holds_nobody_up() {
        let (_keep, job) = job();
        let began = Instant::now();
        drop(Samples::start_with(&job, 0.05, |command| {
            command.env("PATH", "/nowhere");
        }));
        assert!(began.elapsed() < PATIENCE, "ending does not wait for it");
    }
}
