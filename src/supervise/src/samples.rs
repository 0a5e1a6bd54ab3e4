//! Samples of the node and its GPUs while its ranks run, appended to the node's `gpu.jsonl`.
//!
//! A shell script makes the samples; the console uses the same script. It runs in its own process group, so that a
//! fault of it does not affect the ranks. It ends when its standard input closes, even if this process is killed, and
//! is restarted if it ends earlier. Because nvidia-smi may hang, the script's environment contains the id of the run,
//! by which a kill of the run finds the script.

use std::collections::BTreeSet;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cluster::nvidia_smi::{GpuQuery, SmiError};
use cluster::probe::{Frame, Frames, Pace, script_until_input_ends};
use cluster::{GpuSample, Xid};
use rundir::{GpuUsage, LineAppender, NodeSample, SAMPLE_EVERY_S, last_usage, log};

use crate::environment::EnvironmentFile;
use crate::job::Job;

/// The shortest and the longest pause before the script is restarted.
const RESTART: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));
/// The variable that selects the GPUs of a process.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// The sampling of a node. Dropping it ends the script.
pub(crate) struct Samples {
    lifeline: Arc<Mutex<Lifeline>>,
}

enum Lifeline {
    /// The script's standard input, once the script runs. Dropping it ends the script.
    Held(Option<ChildStdin>),
    Cut,
}

impl Samples {
    /// Starts sampling. Errors go to the supervisor's log and do not affect the ranks.
    pub(crate) fn start(job: &Job) -> Self {
        Self::start_with(job, SAMPLE_EVERY_S, |_| {})
    }

    fn start_with(job: &Job, every_s: f64, change: impl Fn(&mut Command) + Send + 'static) -> Self {
        let lifeline = Arc::new(Mutex::new(Lifeline::Held(None)));
        let (held, path, attempt) = (lifeline.clone(), job.run.gpu_samples(&job.node), job.attempt.number);
        let (run, ranks, visible) = (job.id.to_string(), job.local_world, visible_gpus(job));
        let watches = job.meta.attached.is_some();
        let environment = EnvironmentFile::start(job);
        thread::spawn(move || match LineAppender::open(&path) {
            Ok(file) => {
                let mut sampler = Sampler {
                    usage: last_usage(&path).unwrap_or_default(),
                    last_s: None,
                    watches,
                    file,
                    environment,
                    run,
                    attempt,
                    ranks,
                    visible,
                    used: Vec::new(),
                    every_s,
                    change,
                    query: GpuQuery::default(),
                    began_s: None,
                    xids: BTreeSet::new(),
                    logged: BTreeSet::new(),
                };
                sampler.live(&held);
            }
            Err(error) => log!("there will be no samples in {path}: {error}"),
        });
        Self { lifeline }
    }
}

impl Drop for Samples {
    fn drop(&mut self) {
        *self.lifeline.lock().unwrap_or_else(PoisonError::into_inner) = Lifeline::Cut;
    }
}

struct Sampler<C> {
    /// The usage of the run on this node, with that of earlier attempts.
    usage: GpuUsage,
    /// The time of the last frame.
    last_s: Option<f64>,
    /// Whether another process started the program, which may use any GPU.
    watches: bool,
    file: LineAppender,
    environment: EnvironmentFile,
    run: String,
    attempt: u32,
    /// The number of ranks on this node.
    ranks: usize,
    /// The GPUs that the ranks can use, as in `CUDA_VISIBLE_DEVICES`; `None`: all.
    visible: Option<String>,
    /// The indices of the GPUs that the ranks use; empty while they are not known.
    used: Vec<u32>,
    every_s: f64,
    /// Changes the script's command before it is started, for tests.
    change: C,
    query: GpuQuery,
    /// The time of the first frame, by the node's clock.
    began_s: Option<f64>,
    /// The Xid errors of the kernel's log that were written already.
    xids: BTreeSet<Xid>,
    /// The messages that were logged already. Each is logged once.
    logged: BTreeSet<String>,
}

impl<C: Fn(&mut Command)> Sampler<C> {
    /// Samples until the lifeline is cut, and restarts the script if it ends.
    fn live(&mut self, lifeline: &Mutex<Lifeline>) {
        let mut pause = RESTART.0;
        loop {
            let began = Instant::now();
            match self.sample(lifeline) {
                Ok(true) => continue,
                Ok(false) => self.log_once("the script that samples the node has ended; restarting it".into()),
                Err(error) => self.log_once(format!("cannot sample the node: {error}; retrying")),
            }
            if matches!(*lifeline.lock().unwrap_or_else(PoisonError::into_inner), Lifeline::Cut) {
                return;
            }
            pause = if began.elapsed() > RESTART.1 { RESTART.0 } else { (pause * 2).min(RESTART.1) };
            thread::sleep(pause);
        }
    }

    /// Samples until the script ends. Returns true if another query must start at once.
    fn sample(&mut self, lifeline: &Mutex<Lifeline>) -> std::io::Result<bool> {
        let mut command = Command::new("sh");
        command.args(["-c", &script_until_input_ends(&self.query, Pace::every_s(self.every_s))]);
        // The environment has the run but no node, because a process with VIDTUI_NODE counts as a training process that
        // keeps the run alive.
        command.env("VIDTUI_RUN", &self.run).env_remove("VIDTUI_NODE").env_remove("RANK").env_remove("LOCAL_RANK");
        command.process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        (self.change)(&mut command);
        let mut child = command.spawn()?;
        let mut stdout = child.stdout.take().ok_or_else(|| std::io::Error::other("it has no output"))?;
        {
            let mut lifeline = lifeline.lock().unwrap_or_else(PoisonError::into_inner);
            match &mut *lifeline {
                Lifeline::Held(input) => *input = child.stdin.take(),
                Lifeline::Cut => drop(child.stdin.take()),
            }
        }
        let (mut frames, mut before, mut bytes) = (Frames::new(self.query.clone()), None, [0; 16 * 1024]);
        loop {
            let read = stdout.read(&mut bytes)?;
            if read == 0 {
                child.wait()?;
                return Ok(false);
            }
            for frame in frames.push(&bytes[..read]) {
                let unknown = frame.smi_errors.iter().find_map(|error| match error {
                    SmiError::UnknownField(field) => self.query.without(field),
                    _ => None,
                });
                if let Some(other) = unknown {
                    self.query = other;
                    return Ok(true);
                }
                self.write(&frame, before.as_ref());
                before = Some(frame);
            }
        }
    }

    fn write(&mut self, frame: &Frame, before: Option<&Frame>) {
        self.environment.see(&frame.gpus);
        let mut sample = NodeSample::new(self.attempt, frame, before);
        let began_s = *self.began_s.get_or_insert(frame.t);
        // Older errors belong to programs that ran before.
        sample.xids.retain(|at| at.t >= began_s && self.xids.insert(at.xid.clone()));
        // An error that is reported again after its end is written again.
        for at in &sample.xids {
            self.xids.retain(|known| *known == at.xid || !at.xid.ends(known));
        }
        if self.used.is_empty() && !self.watches {
            self.used = used_gpus(self.visible.as_deref(), self.ranks, &frame.gpus);
        }
        if sample.gpus.index.iter().any(|gpu| !self.used.contains(gpu)) {
            sample.gpus.used.clone_from(&self.used);
        }
        if let Some(last_s) = self.last_s.replace(frame.t) {
            self.usage.count(sample.gpus.of_ranks(&sample.gpus.power_w), frame.t - last_s);
        }
        sample.usage = (!sample.gpus.is_empty()).then(|| self.usage.rounded());
        if frame.xids_denied {
            self.log_once("GPU errors (Xid) are not recorded: this user may not read the kernel's log (dmesg)".into());
        }
        // The next sample retries, because space may be freed on a full disk.
        if let Err(error) = self.file.append(&sample) {
            self.log_once(format!("cannot write samples to {}: {error}", self.file.path()));
        }
    }

    fn log_once(&mut self, what: String) {
        if !self.logged.contains(&what) {
            log!("{what}");
            self.logged.insert(what);
        }
    }
}

/// Returns the value of `CUDA_VISIBLE_DEVICES` for the ranks of a job.
fn visible_gpus(job: &Job) -> Option<String> {
    let variables = job.places.first().map_or_else(Vec::new, |place| job.environment(place));
    let set = variables.into_iter().rev().find(|(name, _)| name == VISIBLE).map(|(_, value)| value);
    set.or_else(|| std::env::var(VISIBLE).ok())
}

/// Returns the indices of the GPUs that the ranks of a node use, one per rank: those that `CUDA_VISIBLE_DEVICES` names, or the first of
/// the node. Returns none if a name is neither an index nor the UUID of a listed GPU, such as that of a MIG instance.
fn used_gpus(visible: Option<&str>, ranks: usize, listed: &[GpuSample]) -> Vec<u32> {
    let Some(visible) = visible else { return (0..).take(ranks).collect() };
    let index = |name: &str| {
        let is_named = |gpu: &&GpuSample| gpu.uuid.as_ref().is_some_and(|uuid| uuid.starts_with(name));
        let by_uuid = || listed.iter().find(is_named).filter(|_| name.starts_with("GPU-"));
        name.parse().ok().or_else(|| by_uuid().map(|gpu| gpu.index))
    };
    visible.split(',').take(ranks).map(|name| index(name.trim())).collect::<Option<_>>().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::job;
    use rundir::{RunDir, Tail};
    use std::fs;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Samples with this script in place of nvidia-smi until `enough` holds, and returns the samples.
    fn sampled(nvidia_smi: &str, enough: impl Fn(&[NodeSample]) -> bool) -> Vec<NodeSample> {
        let (keep, job) = job();
        let bin = keep.path().join("bin");
        fs::create_dir_all(&bin).unwrap();
        // Another process writes the file: a process that another test starts at the same time could inherit the open
        // file, and a file that is open for writing cannot be executed.
        let write = Command::new("sh")
            .args(["-c", "printf '#!/bin/sh\n%s\n' \"$1\" >\"$0\" && chmod 755 \"$0\""])
            .arg(bin.join("nvidia-smi"))
            .arg(nvidia_smi)
            .status();
        assert!(write.unwrap().success());
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
    fn the_node_is_sampled_with_its_gpus_and_cpus() {
        let row = "0, GPU-a, H100, 00000000:19:00.0, 631.95, 700.00, 70210, 81559, 100, 59, 1980, 0, 0x0, Disabled, [N/A], 5, 16";
        let smi = format!("case $1 in --query-gpu*) echo '{row}' ;; esac");
        let all = sampled(&smi, |all| all.len() >= 3 && all.iter().any(|sample| sample.cpu_pct.is_some()));
        assert_eq!((all[0].gpus.index.len(), all[0].gpus()[0].power_w.value()), (1, Some(632.0)));
        assert!(all[0].mem_total_mib.is_some() && all.is_sorted_by(|a, b| a.t <= b.t));
        let (usage, seconds) = (all[all.len() - 1].usage.unwrap(), all[all.len() - 1].t - all[0].t);
        assert!((usage.gpu_s - seconds).abs() < 0.1 && (usage.energy_j - 632.0 * seconds).abs() < 5.0, "{usage:?}");
    }

    #[test]
    fn the_ranks_use_the_gpus_that_cuda_visible_devices_names_or_else_the_first_ones() {
        let rows = "0, GPU-1b, 00000000:19:00.0, 0, 81559, 0\n1, GPU-9d, 00000000:2D:00.0, 0, 81559, 0\n";
        let listed = GpuQuery::of_use().read(rows, Some(0), 5.0).rows;
        for (visible, ranks, expected) in [
            (None, 1, &[0][..]),
            (None, 3, &[0, 1, 2]),
            (Some("7, 4"), 1, &[7]),
            (Some("7,4"), 2, &[7, 4]),
            (Some("GPU-9d,GPU-1b"), 1, &[1]),
            (Some("MIG-51"), 1, &[]),
            (Some(""), 1, &[]),
        ] {
            assert_eq!(used_gpus(visible, ranks, &listed), expected, "{visible:?}, {ranks}");
        }
    }

    #[test]
    fn the_gpus_of_the_ranks_are_recorded_if_the_node_has_others() {
        let cells = "600, 700.00, 70210, 81559, 100, 59, 1980, 0, 0x0, Disabled, [N/A], 5, 16";
        let row = |n: u8| format!("{n}, GPU-{n}, H100, 00000000:1{n}:00.0, {cells}");
        let smi = format!("case $1 in --query-gpu*) printf '%s\\n' '{}' '{}' ;; esac", row(0), row(1));
        let all = sampled(&smi, |all| !all.is_empty());
        assert_eq!((&all[0].gpus.index[..], all[0].gpus.used.len()), (&[0, 1][..], 1));
    }

    #[test]
    fn a_node_without_nvidia_smi_or_with_a_broken_one_is_sampled_too() {
        let all = sampled("exit 127", |all| all.len() >= 2);
        assert!(all[0].gpus.is_empty() && all[0].smi_errors.is_empty() && all[0].mem_used_mib.is_some());
        let all = sampled("echo 'Failed to initialize NVML: Unknown Error'; exit 255", |all| all.len() >= 2);
        assert_eq!(all[0].smi_errors, [SmiError::NvmlFailed("Unknown Error".into()).to_string()]);
    }

    #[test]
    fn bytes_that_are_not_text_do_not_end_sampling() {
        let all = sampled("printf '\\377\\376 no text\\n'; exit 3", |all| all.len() >= 3);
        assert_eq!(all[0].smi_errors, [SmiError::Reported("\u{fffd}\u{fffd} no text".into()).to_string()]);
    }

    #[test]
    fn sampling_continues_after_the_script_was_killed() {
        // The parent is `timeout`, whose parent is in the script's group. The mark is made first, because no command
        // runs after the kill.
        let once = "[ -e $0.killed ] && exit 127\n: >$0.killed\n\
            set -- $(ps -o pgid= -p $(ps -o ppid= -p $PPID))\nkill -s KILL -- -$1";
        let all = sampled(once, |all| all.len() >= 2);
        assert!(all[0].smi_errors.is_empty() && all[0].mem_total_mib.is_some(), "{all:?}");
    }

    #[test]
    fn errors_in_the_kernels_log_are_written_once_and_earlier_ones_not_at_all() {
        let row = "0, GPU-a, H100, 00000000:19:00.0, 631.95, 700.00, 70210, 81559, 100, 59, 1980, 0, 0x0, Disabled, [N/A], 5, 16";
        let log = "#!/bin/sh\nread -r up _ </proc/uptime\necho \"[ 1.5] NVRM: Xid (PCI:0000:19:00): 13, pid=1\"\n\
            echo \"[ $((${up%.*} + 3)).5] NVRM: Xid (PCI:0000:19:00): 79, pid=1\"";
        let smi = format!(
            "printf '%s\\n' '{log}' >${{0%/*}}/dmesg; chmod +x ${{0%/*}}/dmesg; case $1 in --query-gpu*) echo '{row}' ;; esac"
        );
        // The kernel's log is read in the first and the thirteenth frame.
        let all = sampled(&smi, |all| all.len() >= 14);
        let numbers: Vec<u32> = all.iter().flat_map(|sample| &sample.xids).map(|at| at.xid.number).collect();
        assert_eq!(numbers, [79]);
    }

    #[test]
    fn an_nvidia_smi_that_hangs_does_not_delay_the_end() {
        let (_keep, job) = job();
        let began = Instant::now();
        drop(Samples::start_with(&job, 0.05, |command| {
            command.env("PATH", "/nowhere");
        }));
        assert!(began.elapsed() < PATIENCE, "ending does not wait for it");
    }
}
