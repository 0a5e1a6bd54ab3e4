//! The paths of the files in a run. Only `items.rs` and `sample.rs` add others: progress of an encode, and samples.

use crate::{AlertWriter, RunId};
use camino::{Utf8Path, Utf8PathBuf};
use cluster::NodeId;

/// The folder of one run.
///
/// ```text
/// 2026-11-20T0340-demo-2s-k7f2/
/// ├── run.toml  config.json            what is trained, written once by the launch; the configuration of the diffusers
/// │                                    model that the weights come from, if they do
/// ├── note                             one line by users; its words that begin with # are tags
/// ├── metrics.jsonl  events.jsonl      rank 0 appends
/// ├── stop  save  sample  profile      requests: save and stop, save and continue, make samples, trace steps
/// ├── healer  healer-events.jsonl  healer.log    the program that resumes the run after failures, if there is one
/// ├── alerts/supervisor.jsonl          alerts by the first node's supervisor; healer.jsonl: by the healer;
/// │                                    users.jsonl: which alerts users acknowledged or snoozed
/// ├── attempts/0001/attempt.toml       one launch or resume
/// │   ├── peer-token                   the secret by which supervisors authenticate each other; only its owner can read it
/// │   ├── alert-channels.json          the channels of alerts with their secrets; only its owner can read it
/// │   ├── launch/<node>.sh             the script that was run there
/// │   ├── stacks/1795146012/<node>.txt stacks of its processes at that second, if a user collected them
/// │   └── job.sbatch  job.toml  allocation.toml  job.log     the script, number, nodes and output of a Slurm job
/// ├── nodes/<node>/                    only the supervisor and the ranks of that node write here
/// │   ├── 0001.pid.toml  0001.exit.toml  0001.environment.toml  events.jsonl  gpu.jsonl
/// │   ├── 0001-rank-00000.failure.json the error of a rank; the rank writes this file and the next three
/// │   ├── 0001-rank-00000.heartbeat.json     its step and phase
/// │   ├── 0001-rank-00000.collectives.json   the collectives that it waits for, if one phase takes long
/// │   ├── 0001-nccl-rank-0             libtorch's own record of collectives, a pickle, if NCCL timed out
/// │   └── logs/0001-rank-00000.log
/// ├── tensorboard/                     event files for TensorBoard, if log.tensorboard is true; by the first node's supervisor
/// ├── wandb/                           offline runs of W&B, one per attempt, if log.wandb is "offline"; by the first node's supervisor
/// ├── samples/step-00000500/000.mp4    a video of the first prompt, complete once 000.json describes it
/// └── checkpoints/step-00000500/       complete once it has a manifest.toml; kept while it has the file pinned
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct RunDir {
    /// The folder itself.
    pub root: Utf8PathBuf,
}

impl RunDir {
    /// Makes the paths of a run in a folder, which need not exist.
    pub fn new(root: impl Into<Utf8PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Makes the paths of the run `id` under `runs`.
    pub fn of(runs: &Utf8Path, id: &RunId) -> Self {
        Self { root: runs.join(id.as_str()) }
    }

    /// Returns the last part of the path: the run's id, unless a user renamed the folder.
    pub fn name(&self) -> &str {
        self.root.file_name().unwrap_or(self.root.as_str())
    }

    /// Returns the file that describes what is trained ([`crate::Run`]).
    pub fn run_toml(&self) -> Utf8PathBuf {
        self.root.join("run.toml")
    }

    /// Returns the configuration of the model that the weights come from; see [`crate::model_config`].
    pub fn model_config(&self) -> Utf8PathBuf {
        self.root.join(MODEL_CONFIG)
    }

    /// Returns the file of the note ([`crate::read_note`]).
    pub fn note_file(&self) -> Utf8PathBuf {
        self.root.join("note")
    }

    /// Returns the file with one [`crate::MetricSample`] per logged step.
    pub fn metrics(&self) -> Utf8PathBuf {
        self.root.join("metrics.jsonl")
    }

    /// Returns the file with one [`crate::Event`] per line, by rank 0.
    pub fn events(&self) -> Utf8PathBuf {
        self.root.join("events.jsonl")
    }

    /// Returns the file whose existence requests that all ranks save and stop; see [`RunDir::stop_request`].
    pub fn stop_file(&self) -> Utf8PathBuf {
        self.root.join("stop")
    }

    /// Returns the file whose existence requests that all ranks save and continue; rank 0 removes it.
    pub fn save_file(&self) -> Utf8PathBuf {
        self.root.join("save")
    }

    /// Returns the file whose existence requests that all ranks make the samples of the recipe now; rank 0 removes it.
    pub fn sample_file(&self) -> Utf8PathBuf {
        self.root.join("sample")
    }

    /// Returns the file that requests traces. It contains the number of steps that all ranks trace from the next step
    /// on; rank 0 removes it.
    pub fn profile_file(&self) -> Utf8PathBuf {
        self.root.join("profile")
    }

    /// Returns the folder of TensorBoard's event files.
    pub fn tensorboard(&self) -> Utf8PathBuf {
        self.root.join("tensorboard")
    }

    /// Returns the folder of the offline runs of W&B.
    pub fn wandb(&self) -> Utf8PathBuf {
        self.root.join("wandb")
    }

    /// Returns the file that describes the healer ([`crate::Healer`]). The healer's lock is a file beside it.
    pub fn healer_file(&self) -> Utf8PathBuf {
        self.root.join("healer")
    }

    /// Returns the file with one [`crate::Event`] per line, by the healer.
    pub fn healer_events(&self) -> Utf8PathBuf {
        self.root.join("healer-events.jsonl")
    }

    /// Returns the log of the healer.
    pub fn healer_log(&self) -> Utf8PathBuf {
        self.root.join("healer.log")
    }

    /// Returns the folder of alerts.
    pub fn alerts(&self) -> Utf8PathBuf {
        self.root.join("alerts")
    }

    /// Returns the file with one [`crate::AlertLine`] per line, by one kind of writer.
    pub fn alerts_file(&self, writer: AlertWriter) -> Utf8PathBuf {
        self.alerts().join(writer.file_name())
    }

    /// Returns the folder of all attempts.
    pub fn attempts(&self) -> Utf8PathBuf {
        self.root.join("attempts")
    }

    /// Returns the folder of an attempt. Creating it is the lock: if two consoles resume at once, one of them fails.
    pub fn attempt_dir(&self, attempt: u32) -> Utf8PathBuf {
        self.attempts().join(format!("{attempt:04}"))
    }

    /// Returns the file that describes an attempt ([`crate::Attempt`]).
    pub fn attempt_toml(&self, attempt: u32) -> Utf8PathBuf {
        self.attempt_dir(attempt).join("attempt.toml")
    }

    /// Returns the file of the token with which supervisors authenticate each other ([`crate::PeerToken`]).
    pub fn peer_token(&self, attempt: u32) -> Utf8PathBuf {
        self.attempt_dir(attempt).join("peer-token")
    }

    /// Returns the file of the channels that an attempt sends alerts to, with their secrets.
    pub fn alert_channels(&self, attempt: u32) -> Utf8PathBuf {
        self.attempt_dir(attempt).join("alert-channels.json")
    }

    /// Returns the script that started an attempt on a node.
    pub fn launch_script(&self, attempt: u32, node: &NodeId) -> Utf8PathBuf {
        self.attempt_dir(attempt).join("launch").join(format!("{}.sh", node.file_name()))
    }

    /// Returns the folder of the stacks that were collected at a time, in Unix seconds.
    pub fn stacks_dir(&self, attempt: u32, at_s: f64) -> Utf8PathBuf {
        self.attempt_dir(attempt).join("stacks").join(format!("{at_s:.0}"))
    }

    /// Returns the stacks of one node.
    pub fn stacks_file(&self, attempt: u32, at_s: f64, node: &NodeId) -> Utf8PathBuf {
        self.stacks_dir(attempt, at_s).join(format!("{}.txt", node.file_name()))
    }

    /// Returns the file beside the stacks with the phases of all ranks and the collectives that they wait for.
    pub fn stacks_summary(&self, attempt: u32, at_s: f64) -> Utf8PathBuf {
        self.stacks_dir(attempt, at_s).join("summary.txt")
    }

    /// Returns the batch script of a Slurm job.
    pub fn job_script(&self, attempt: u32) -> Utf8PathBuf {
        self.attempt_dir(attempt).join("job.sbatch")
    }

    /// Returns the output of the batch script.
    pub fn job_log(&self, attempt: u32) -> Utf8PathBuf {
        self.attempt_dir(attempt).join("job.log")
    }

    /// Returns the file with the job's number ([`crate::Submitted`]).
    pub fn job_toml(&self, attempt: u32) -> Utf8PathBuf {
        self.attempt_dir(attempt).join("job.toml")
    }

    /// Returns the file with the job's nodes ([`crate::Allocation`]).
    pub fn allocation_toml(&self, attempt: u32) -> Utf8PathBuf {
        self.attempt_dir(attempt).join("allocation.toml")
    }

    /// Returns the folder of all nodes.
    pub fn nodes(&self) -> Utf8PathBuf {
        self.root.join("nodes")
    }

    /// Returns the folder to which the supervisor and the ranks of a node write.
    pub fn node_dir(&self, node: &NodeId) -> Utf8PathBuf {
        self.nodes().join(node.file_name())
    }

    /// Returns the file with the ids of the node's processes ([`crate::PidFile`]).
    pub fn pid_toml(&self, node: &NodeId, attempt: u32) -> Utf8PathBuf {
        self.node_dir(node).join(format!("{attempt:04}.pid.toml"))
    }

    /// Returns the file that records how the node's processes ended ([`crate::ExitFile`]).
    pub fn exit_toml(&self, node: &NodeId, attempt: u32) -> Utf8PathBuf {
        self.node_dir(node).join(format!("{attempt:04}.exit.toml"))
    }

    /// Returns the file that records the node's software, CPUs and GPUs ([`crate::NodeEnvironment`]).
    pub fn environment_toml(&self, node: &NodeId, attempt: u32) -> Utf8PathBuf {
        self.node_dir(node).join(format!("{attempt:04}.environment.toml"))
    }

    /// Returns the file store for the rendezvous of ranks that are all on this node; removed when they end.
    pub fn store_file(&self, node: &NodeId, attempt: u32) -> Utf8PathBuf {
        self.node_dir(node).join(format!("{attempt:04}.store"))
    }

    /// Returns the file with one [`crate::Event`] per line, by the node's supervisor.
    pub fn node_events(&self, node: &NodeId) -> Utf8PathBuf {
        self.node_dir(node).join("events.jsonl")
    }

    /// Returns the file with one [`crate::NodeSample`] per line, by the node's supervisor.
    pub fn gpu_samples(&self, node: &NodeId) -> Utf8PathBuf {
        self.node_dir(node).join("gpu.jsonl")
    }

    /// Returns the folder of the node's logs.
    pub fn log_dir(&self, node: &NodeId) -> Utf8PathBuf {
        self.node_dir(node).join("logs")
    }

    /// Returns the log of a rank.
    pub fn rank_log(&self, node: &NodeId, attempt: u32, rank: usize) -> Utf8PathBuf {
        self.log_dir(node).join(format!("{attempt:04}-rank-{rank:05}.log"))
    }

    /// Returns the file in which a rank records its error ([`crate::Failure`]).
    pub fn rank_failure(&self, node: &NodeId, attempt: u32, rank: usize) -> Utf8PathBuf {
        self.node_dir(node).join(format!("{attempt:04}-rank-{rank:05}.failure.json"))
    }

    /// Returns the file in which a rank reports its step and phase ([`crate::Heartbeat`]).
    pub fn heartbeat(&self, node: &NodeId, attempt: u32, rank: usize) -> Utf8PathBuf {
        self.node_dir(node).join(format!("{attempt:04}-rank-{rank:05}.heartbeat.json"))
    }

    /// Returns the file in which a rank records the collectives that it waits for ([`crate::RankCollectives`]).
    pub fn rank_collectives(&self, node: &NodeId, attempt: u32, rank: usize) -> Utf8PathBuf {
        self.node_dir(node).join(format!("{attempt:04}-rank-{rank:05}.collectives.json"))
    }

    /// Returns the path prefix of libtorch's records of NCCL collectives. libtorch appends the rank.
    pub fn nccl_dump_prefix(&self, node: &NodeId, attempt: u32) -> Utf8PathBuf {
        self.node_dir(node).join(format!("{attempt:04}-nccl-rank-"))
    }

    /// Returns the Chrome trace of a rank that begins at a step.
    pub fn trace(&self, node: &NodeId, attempt: u32, rank: usize, step: u64) -> Utf8PathBuf {
        self.node_dir(node).join(format!("{attempt:04}-rank-{rank:05}-step-{step:08}.trace.json"))
    }

    /// Returns the memory snapshot that a rank writes when it runs out of memory.
    pub fn memory_snapshot(&self, node: &NodeId, attempt: u32, rank: usize) -> Utf8PathBuf {
        self.node_dir(node).join(format!("{attempt:04}-rank-{rank:05}.memory.json"))
    }

    /// Returns the log of the node's supervisor.
    pub fn supervisor_log(&self, node: &NodeId, attempt: u32) -> Utf8PathBuf {
        self.log_dir(node).join(format!("{attempt:04}-supervisor.log"))
    }

    /// Returns the folder of all checkpoints.
    pub fn checkpoints(&self) -> Utf8PathBuf {
        self.root.join("checkpoints")
    }

    /// Returns the step directory of a step.
    pub fn step_dir(&self, step: u64) -> Utf8PathBuf {
        self.checkpoints().join(format!("step-{step:08}"))
    }

    /// Returns the file whose existence keeps the checkpoint of a step when old ones are removed.
    pub fn pin_file(&self, step: u64) -> Utf8PathBuf {
        self.step_dir(step).join(step_files::PINNED)
    }
}

/// The beginning of the name of a step directory that is being removed.
pub(crate) const REMOVING: &str = "removing-";

/// The name that diffusers gives to the configuration of a model.
pub(crate) const MODEL_CONFIG: &str = "config.json";

/// The files of a step directory.
pub(crate) mod step_files {
    /// Written last; its existence makes a checkpoint complete.
    pub const MANIFEST: &str = "manifest.toml";
    /// The state of training besides tensors ([`crate::TrainState`]).
    pub const STATE: &str = "state.toml";
    /// The reason why the checkpoint must not be used: a file did not match its checksum.
    pub const DAMAGED: &str = "damaged";
    /// Its existence keeps the checkpoint when old ones are removed.
    pub const PINNED: &str = "pinned";
}

/// Parses the step in `step-00000500`.
pub(crate) fn parse_step_dir(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("step-")?;
    let plain = digits.len() >= 8 && digits.bytes().all(|b| b.is_ascii_digit());
    if plain { digits.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{node, run_id};

    #[test]
    fn paths_are_those_of_the_documented_tree() {
        let (run, node) = (RunDir::of("runs".into(), &run_id()), node("ml-1"));
        let inside = |path: Utf8PathBuf| path.strip_prefix(&run.root).unwrap().to_string();
        let paths = [
            run.run_toml(),
            run.model_config(),
            run.metrics(),
            run.events(),
            run.stop_file(),
            run.save_file(),
            run.sample_file(),
            run.profile_file(),
            run.tensorboard(),
            run.wandb(),
            run.alerts_file(AlertWriter::Supervisor),
            run.attempt_toml(1),
            run.alert_channels(1),
            run.launch_script(1, &node),
            run.stacks_file(1, 1_795_146_012.4, &node),
            run.pid_toml(&node, 1),
            run.exit_toml(&node, 12),
            run.environment_toml(&node, 2),
            run.node_events(&node),
            run.gpu_samples(&node),
            run.rank_log(&node, 1, 3),
            run.supervisor_log(&node, 1),
            run.step_dir(500),
            run.pin_file(500),
            run.trace(&node, 2, 3, 500),
            run.stacks_summary(1, 1_795_146_012.4),
            run.heartbeat(&node, 1, 3),
            run.rank_collectives(&node, 1, 3),
            run.nccl_dump_prefix(&node, 1),
        ];
        assert_eq!(
            paths.map(inside),
            [
                "run.toml",
                "config.json",
                "metrics.jsonl",
                "events.jsonl",
                "stop",
                "save",
                "sample",
                "profile",
                "tensorboard",
                "wandb",
                "alerts/supervisor.jsonl",
                "attempts/0001/attempt.toml",
                "attempts/0001/alert-channels.json",
                "attempts/0001/launch/ml-1.sh",
                "attempts/0001/stacks/1795146012/ml-1.txt",
                "nodes/ml-1/0001.pid.toml",
                "nodes/ml-1/0012.exit.toml",
                "nodes/ml-1/0002.environment.toml",
                "nodes/ml-1/events.jsonl",
                "nodes/ml-1/gpu.jsonl",
                "nodes/ml-1/logs/0001-rank-00003.log",
                "nodes/ml-1/logs/0001-supervisor.log",
                "checkpoints/step-00000500",
                "checkpoints/step-00000500/pinned",
                "nodes/ml-1/0002-rank-00003-step-00000500.trace.json",
                "attempts/0001/stacks/1795146012/summary.txt",
                "nodes/ml-1/0001-rank-00003.heartbeat.json",
                "nodes/ml-1/0001-rank-00003.collectives.json",
                "nodes/ml-1/0001-nccl-rank-",
            ]
        );
        assert_eq!(run.name(), "2026-11-20T0340-demo-2s-k7f2");
    }

    #[test]
    fn only_names_of_step_directories_parse_as_steps() {
        assert_eq!(parse_step_dir("step-00000500"), Some(500));
        assert_eq!(parse_step_dir("step-123456789012"), Some(123_456_789_012));
        for other in
            ["step-500", "step-", "step-0000050x", "step--0000050", "saving-00000500", "step-99999999999999999999"]
        {
            assert_eq!(parse_step_dir(other), None, "{other}");
        }
    }
}
