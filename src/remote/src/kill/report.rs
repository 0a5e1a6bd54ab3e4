//! The report of a kill: the processes that are gone, those that remain, and those that could not be verified.

use std::fmt;

use cluster::NodeId;
use plan::KillHow;
use rundir::{ErrorCode, Failure};
use units::counted;

use crate::gpu_memory::GpuMemory;
use crate::proc;
use crate::transport::{Process, ProcessRole, Signal};

/// The result of a kill, node by node.
#[derive(Debug, Clone, PartialEq)]
pub struct KillReport {
    /// The requested way to end: stop or kill.
    pub how: KillHow,
    /// One report for each node of the plan.
    pub nodes: Vec<NodeReport>,
    /// The result of ending the Slurm job in one line, or why that failed; `None` without a job.
    pub job: Option<Result<String, Failure>>,
}

/// A signal that was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentSignal {
    /// The signal.
    pub signal: Signal,
    /// The processes that received it.
    pub pids: Vec<i32>,
}

impl fmt::Display for SentSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.signal {
            Signal::Term => "TERM",
            Signal::Kill => "KILL",
        };
        let pids: Vec<String> = self.pids.iter().map(i32::to_string).collect();
        write!(f, "{name} sent to {}: {}", counted(pids.len(), "process"), pids.join(", "))
    }
}

/// The result of a kill on one node.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeReport {
    /// The node.
    pub node: NodeId,
    /// The signals that were sent, in order.
    pub signals: Vec<SentSignal>,
    /// The number of processes that were signalled.
    pub signalled: usize,
    /// The processes that remain.
    pub left: Vec<Process>,
    /// Whether the memory of its GPUs was released.
    pub gpu_memory: GpuMemory,
    /// Why the kill failed on the node.
    pub failure: Option<Failure>,
    /// Whether the kill failed because the node does not answer. The state of its processes is then unknown.
    pub is_unreachable: bool,
}

impl NodeReport {
    pub(super) fn new(node: NodeId) -> Self {
        let (signals, left, gpu_memory) = (Vec::new(), Vec::new(), GpuMemory::NotChecked);
        Self { node, signals, signalled: 0, left, gpu_memory, failure: None, is_unreachable: false }
    }

    /// Whether every process is verified to be gone, and no GPU memory is known to be held. GPU memory may be unverified:
    /// [`Self::unverified`].
    pub fn all_gone(&self) -> bool {
        self.left.is_empty() && self.failure.is_none() && !matches!(self.gpu_memory, GpuMemory::Held(_))
    }

    /// Returns the result in one line.
    pub fn summary(&self) -> String {
        match (&self.failure, self.left.len()) {
            (Some(failure), _) => failure.why.clone(),
            (None, 0) if self.gpu_memory == GpuMemory::NotChecked => "all processes ended".to_owned(),
            (None, 0) => format!("all processes ended; {}", self.gpu_memory.in_words()),
            (None, left) => format!("{} still running", counted(left, "process")),
        }
    }

    /// Returns a line if it is unknown whether GPU memory was released, though all processes ended.
    pub fn unverified(&self) -> Option<String> {
        matches!(self.gpu_memory, GpuMemory::Unknown(_)).then(|| format!("node {}: {}", self.node, self.summary()))
    }

    /// Lists what remains: processes and GPU memory.
    pub fn survivors(&self) -> Vec<String> {
        let processes = self.left.iter().map(|process| survivor(&self.node, process));
        let held = matches!(self.gpu_memory, GpuMemory::Held(_));
        processes.chain(held.then(|| format!("node {}: {}", self.node, self.gpu_memory.in_words()))).collect()
    }
}

impl KillReport {
    /// Whether every process is verified to be gone.
    pub fn all_gone(&self) -> bool {
        self.job.as_ref().is_none_or(Result::is_ok) && self.nodes.iter().all(NodeReport::all_gone)
    }

    /// Whether all processes had ended before a signal was sent. Slurm reports the end of a job by itself.
    pub fn has_ended(&self) -> bool {
        self.job.is_none() && self.nodes.iter().all(|node| node.all_gone() && node.signalled == 0)
    }

    /// Returns the nodes that do not answer, so that their processes are unknown. Slurm reports the processes of a job.
    pub fn unreachable(&self) -> Vec<&NodeId> {
        self.nodes.iter().filter(|node| node.is_unreachable && self.job.is_none()).map(|node| &node.node).collect()
    }

    /// Returns why the kill of `subject` is incomplete, with each node that failed and each process that remains. A
    /// stop that was sent is complete even if processes still run.
    pub fn failure(&self, subject: &str) -> Option<Failure> {
        if let Some(Err(failure)) = &self.job {
            return Some(failure.clone());
        }
        // An unreachable node of a job does not count: many clusters accept logins only while a job of the user runs on the node.
        let counts = |node: &&NodeReport| self.job.is_none() || !node.is_unreachable;
        let failures: Vec<&Failure> =
            self.nodes.iter().filter(counts).filter_map(|node| node.failure.as_ref()).collect();
        let killed = || self.nodes.iter().filter(|_| self.how == KillHow::Kill);
        let left: Vec<String> = killed().flat_map(NodeReport::survivors).collect();
        let unverified: Vec<String> =
            killed().filter(|_| self.job.is_none()).filter_map(NodeReport::unverified).collect();
        let fix = match (&failures[..], &left[..]) {
            ([], []) if unverified.is_empty() => return None,
            ([], []) => {
                let what = format!("cannot verify that {subject} released its GPU memory");
                let fix =
                    "check whether nvidia-smi answers there: `vidtui smi NODE`; if its driver hangs, reboot the node";
                return Some(Failure::new(ErrorCode::KillIncomplete, what, unverified.join("; "), fix));
            }
            ([only], []) if unverified.is_empty() => return Some((*only).clone()),
            ([], _) => {
                "a process that waits for a device ends when the device answers; if it never does, reboot the node"
                    .into()
            }
            ([first, ..], _) if self.unreachable().is_empty() => first.fix.clone(),
            _ if self.how == KillHow::Stop => format!("check that these nodes are up, then stop {subject} again"),
            _ => "with --wait, `vidtui kill` retries these nodes until they answer".into(),
        };
        let whys = failures.iter().map(|failure| failure.why.clone()).chain(left).chain(unverified);
        let what = format!("cannot {} all of {subject}", self.how.verb());
        Some(Failure::new(ErrorCode::KillIncomplete, what, whys.collect::<Vec<_>>().join("; "), fix))
    }
}

/// Describes a process that did not end.
fn survivor(node: &NodeId, process: &Process) -> String {
    let role = match process.role {
        ProcessRole::Supervisor => "supervisor, ".to_owned(),
        ProcessRole::Rank(rank) => format!("rank {rank}, "),
        ProcessRole::Other => String::new(),
    };
    format!(
        "node {node}: {role}process {}, state {} ({}): {}",
        process.pid,
        process.state,
        proc::state_in_words(process.state),
        process.command
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kill_whose_gpu_memory_is_unknown_is_incomplete() {
        let node = |name: &str, gpu_memory| NodeReport { gpu_memory, ..NodeReport::new(NodeId::from_hostname(name)) };
        let report = |nodes| KillReport { how: KillHow::Kill, nodes, job: None };
        let unknown = || node("gpu02", GpuMemory::Unknown("nvidia-smi does not answer".into()));
        assert_eq!(report(vec![node("gpu01", GpuMemory::Released)]).failure("a-run"), None);
        let held = node("gpu01", GpuMemory::Held(vec![(12, None)]));
        let failures = [vec![node("gpu01", GpuMemory::Released), unknown()], vec![held, unknown()]]
            .map(|nodes| report(nodes).failure("a-run").unwrap());
        assert!(failures.iter().all(|failure| failure.code == ErrorCode::KillIncomplete));
        insta::assert_snapshot!(failures.map(|failure| failure.to_string()).join("\n\n"));
    }
}
