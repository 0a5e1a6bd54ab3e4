//! Where everything in a run lies. Only this file builds paths inside a run.

use crate::RunId;
use camino::{Utf8Path, Utf8PathBuf};
use cluster::NodeId;

/// The folder of one run.
///
/// ```text
/// 2026-11-20T0340-demo-2s-k7f2/
/// ├── run.toml  config.json            what is trained; written once, by whoever launches. The latter is that of the
/// │                                    diffusers model that the weights come from, where they come from one
/// ├── metrics.jsonl  events.jsonl      rank 0 appends
/// ├── stop  save                       their existence asks the run to save and stop, or only to save
/// ├── attempts/0001/attempt.toml       one launch or resume
/// │   ├── launch/<node>.sh             exactly what was run there
/// │   ├── stacks/1795146012/<node>.txt where its processes were at that second, if somebody asked
/// │   └── job.sbatch  job.toml  allocation.toml  job.log     what was submitted, as which job, where it runs, what it says
/// ├── nodes/<node>/                    only that node's supervisor writes here
/// │   ├── 0001.pid.toml  0001.exit.toml  events.jsonl  gpu.jsonl
/// │   └── logs/0001-rank-00000.log
/// └── checkpoints/step-00000500/       complete when manifest.toml is in it
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct RunDir {
    /// The folder itself.
    pub root: Utf8PathBuf,
}

impl RunDir {
    /// Names the folder of a run; touches nothing.
    pub fn new(root: impl Into<Utf8PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The folder of the run `id` under `runs`.
    pub fn of(runs: &Utf8Path, id: &RunId) -> Self {
        Self { root: runs.join(id.as_str()) }
    }

    /// The last part of the path: the run's id, unless somebody renamed the folder.
    pub fn name(&self) -> &str {
        self.root.file_name().unwrap_or(self.root.as_str())
    }

    /// What is trained ([`crate::Run`]).
    pub fn run_toml(&self) -> Utf8PathBuf {
        self.root.join("run.toml")
    }

    /// What the weights that the run starts from came with: see [`crate::model_config`].
    pub fn model_config(&self) -> Utf8PathBuf {
        self.root.join(MODEL_CONFIG)
    }

    /// One [`crate::MetricSample`] per logged step.
    pub fn metrics(&self) -> Utf8PathBuf {
        self.root.join("metrics.jsonl")
    }

    /// One [`crate::Event`] per line, by rank 0.
    pub fn events(&self) -> Utf8PathBuf {
        self.root.join("events.jsonl")
    }

    /// Its existence asks every rank to save and stop, where no signal reaches; see [`RunDir::stop_request`].
    pub fn stop_file(&self) -> Utf8PathBuf {
        self.root.join("stop")
    }

    /// Its existence asks every rank to save and go on; rank 0 removes it.
    pub fn save_file(&self) -> Utf8PathBuf {
        self.root.join("save")
    }

    /// The folder of all attempts.
    pub fn attempts(&self) -> Utf8PathBuf {
        self.root.join("attempts")
    }

    /// One attempt. Creating this folder is the lock: of two consoles that resume at once, one fails.
    pub fn attempt_dir(&self, attempt: u32) -> Utf8PathBuf {
        self.attempts().join(format!("{attempt:04}"))
    }

    /// What was started ([`crate::Attempt`]).
    pub fn attempt_toml(&self, attempt: u32) -> Utf8PathBuf {
        self.attempt_dir(attempt).join("attempt.toml")
    }

    /// The token by which the supervisors of an attempt recognize each other ([`crate::PeerToken`]).
    pub fn peer_token(&self, attempt: u32) -> Utf8PathBuf {
        self.attempt_dir(attempt).join("peer-token")
    }

    /// The script that started a node.
    pub fn launch_script(&self, attempt: u32, node: &NodeId) -> Utf8PathBuf {
        self.attempt_dir(attempt).join("launch").join(format!("{node}.sh"))
    }

    /// Where the processes of an attempt were at one moment, in Unix seconds; whoever asks writes it.
    pub fn stacks_dir(&self, attempt: u32, at_s: f64) -> Utf8PathBuf {
        self.attempt_dir(attempt).join("stacks").join(format!("{at_s:.0}"))
    }

    /// Where those of one node were.
    pub fn stacks_file(&self, attempt: u32, at_s: f64, node: &NodeId) -> Utf8PathBuf {
        self.stacks_dir(attempt, at_s).join(format!("{node}.txt"))
    }

    /// The batch script of a Slurm job.
    pub fn job_script(&self, attempt: u32) -> Utf8PathBuf {
        self.attempt_dir(attempt).join("job.sbatch")
    }

    /// What the batch script printed.
    pub fn job_log(&self, attempt: u32) -> Utf8PathBuf {
        self.attempt_dir(attempt).join("job.log")
    }

    /// The job's number ([`crate::Submitted`]).
    pub fn job_toml(&self, attempt: u32) -> Utf8PathBuf {
        self.attempt_dir(attempt).join("job.toml")
    }

    /// The job's nodes ([`crate::Allocation`]).
    pub fn allocation_toml(&self, attempt: u32) -> Utf8PathBuf {
        self.attempt_dir(attempt).join("allocation.toml")
    }

    /// The folder of all nodes.
    pub fn nodes(&self) -> Utf8PathBuf {
        self.root.join("nodes")
    }

    /// Everything a node's supervisor knows.
    pub fn node_dir(&self, node: &NodeId) -> Utf8PathBuf {
        self.nodes().join(node.as_str())
    }

    /// The node's processes ([`crate::PidFile`]).
    pub fn pid_toml(&self, node: &NodeId, attempt: u32) -> Utf8PathBuf {
        self.node_dir(node).join(format!("{attempt:04}.pid.toml"))
    }

    /// How the node's processes ended ([`crate::ExitFile`]).
    pub fn exit_toml(&self, node: &NodeId, attempt: u32) -> Utf8PathBuf {
        self.node_dir(node).join(format!("{attempt:04}.exit.toml"))
    }

    /// Where the ranks of an attempt find each other when all of them are on this node; gone when they are.
    pub fn store_file(&self, node: &NodeId, attempt: u32) -> Utf8PathBuf {
        self.node_dir(node).join(format!("{attempt:04}.store"))
    }

    /// One [`crate::Event`] per line, by the node's supervisor.
    pub fn node_events(&self, node: &NodeId) -> Utf8PathBuf {
        self.node_dir(node).join("events.jsonl")
    }

    /// One [`crate::NodeSample`] per line, by the node's supervisor.
    pub fn gpu_samples(&self, node: &NodeId) -> Utf8PathBuf {
        self.node_dir(node).join("gpu.jsonl")
    }

    /// The folder of the node's logs.
    pub fn log_dir(&self, node: &NodeId) -> Utf8PathBuf {
        self.node_dir(node).join("logs")
    }

    /// What a rank printed.
    pub fn rank_log(&self, node: &NodeId, attempt: u32, rank: usize) -> Utf8PathBuf {
        self.log_dir(node).join(format!("{attempt:04}-rank-{rank:05}.log"))
    }

    /// Why a rank gave up; the rank writes it ([`crate::Failure`]).
    pub fn rank_failure(&self, node: &NodeId, attempt: u32, rank: usize) -> Utf8PathBuf {
        self.node_dir(node).join(format!("{attempt:04}-rank-{rank:05}.failure.json"))
    }

    /// What the node's supervisor printed.
    pub fn supervisor_log(&self, node: &NodeId, attempt: u32) -> Utf8PathBuf {
        self.log_dir(node).join(format!("{attempt:04}-supervisor.log"))
    }

    /// The folder of all checkpoints.
    pub fn checkpoints(&self) -> Utf8PathBuf {
        self.root.join("checkpoints")
    }

    /// The checkpoint of one step.
    pub fn step_dir(&self, step: u64) -> Utf8PathBuf {
        self.checkpoints().join(format!("step-{step:08}"))
    }
}

/// How diffusers names the configuration of a model.
pub(crate) const MODEL_CONFIG: &str = "config.json";

/// The files of a step directory.
pub(crate) mod step_files {
    /// Written last; its existence is what makes a checkpoint complete.
    pub const MANIFEST: &str = "manifest.toml";
    /// [`crate::TrainState`].
    pub const STATE: &str = "state.toml";
    /// Why it must not be used, in words: somebody read it and found a file changed.
    pub const DAMAGED: &str = "damaged";
}

/// Reads the step out of `step-00000500`.
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
    fn every_path_is_where_the_tree_says() {
        let (run, node) = (RunDir::of("runs".into(), &run_id()), node("ml-1"));
        let inside = |path: Utf8PathBuf| path.strip_prefix(&run.root).unwrap().to_string();
        let paths = [
            run.run_toml(),
            run.model_config(),
            run.metrics(),
            run.events(),
            run.stop_file(),
            run.save_file(),
            run.attempt_toml(1),
            run.launch_script(1, &node),
            run.stacks_file(1, 1_795_146_012.4, &node),
            run.pid_toml(&node, 1),
            run.exit_toml(&node, 12),
            run.node_events(&node),
            run.gpu_samples(&node),
            run.rank_log(&node, 1, 3),
            run.supervisor_log(&node, 1),
            run.step_dir(500),
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
                "attempts/0001/attempt.toml",
                "attempts/0001/launch/ml-1.sh",
                "attempts/0001/stacks/1795146012/ml-1.txt",
                "nodes/ml-1/0001.pid.toml",
                "nodes/ml-1/0012.exit.toml",
                "nodes/ml-1/events.jsonl",
                "nodes/ml-1/gpu.jsonl",
                "nodes/ml-1/logs/0001-rank-00003.log",
                "nodes/ml-1/logs/0001-supervisor.log",
                "checkpoints/step-00000500",
            ]
        );
        assert_eq!(run.name(), "2026-11-20T0340-demo-2s-k7f2");
    }

    #[test]
    fn only_step_directories_are_read_as_steps() {
        assert_eq!(parse_step_dir("step-00000500"), Some(500));
        assert_eq!(parse_step_dir("step-123456789012"), Some(123_456_789_012));
        for other in
            ["step-500", "step-", "step-0000050x", "step--0000050", "saving-00000500", "step-99999999999999999999"]
        {
            assert_eq!(parse_step_dir(other), None, "{other}");
        }
    }
}
