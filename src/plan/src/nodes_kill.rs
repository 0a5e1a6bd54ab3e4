//! The plan to end the training on some nodes: runs, orphan processes of runs, and processes of other trainers.

use std::collections::BTreeSet;

use cluster::NodeId;
use rundir::{Failure, RunId};

use crate::orphans::{Ancestry, DetectedRun, KillScope, ListedProcess, NodeOrphans, NodeProcesses, OrphanKill};
use crate::{KillPlan, RunKill, detect_runs, select_orphans};

/// Identifies a process of a node. A process id alone may be reused.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct ProcessKey {
    /// The node.
    pub node: NodeId,
    /// Process id.
    pub pid: i32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
}

/// The processes on some nodes that will be ended, and those that will not.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct NodesKill {
    /// The users whose processes may be ended.
    pub scope: KillScope,
    /// The listed processes that will be ended. Nodes without such a process are in the list too.
    pub nodes: Vec<NodeOrphans>,
    /// The plans that end them, in order. The plan of a run may include nodes that were not listed.
    pub plans: Vec<KillPlan>,
    /// The processes that train or use GPUs and will not be signalled.
    pub spared: Vec<SparedProcess>,
    /// The nodes whose processes are unknown, each with the reason.
    pub unreachable: Vec<(NodeId, Failure)>,
}

/// A process that will not be signalled.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SparedProcess {
    /// The node.
    pub node: NodeId,
    /// The process.
    pub process: ListedProcess,
    /// Why the process is not signalled.
    pub why: Spared,
}

/// Why a process is not signalled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Spared {
    /// The process belongs to another user.
    OtherUser,
    /// The process is this program, or one of its ancestors.
    ThisProgram,
}

impl NodesKill {
    /// Counts the listed processes that will be ended.
    pub fn count(&self) -> usize {
        self.nodes.iter().map(|node| node.processes.len()).sum()
    }
}

impl ListedProcess {
    /// Returns the identity of the process.
    pub fn key(&self, node: &NodeId) -> ProcessKey {
        ProcessKey { node: node.clone(), pid: self.pid, start_ticks: self.start_ticks }
    }

    /// Returns whether the process is on a GPU or belongs to training: its environment has `VIDTUI_RUN` or `RANK`, or it
    /// is a launcher.
    pub fn trains(&self) -> bool {
        let is_marked = self.on_gpu || self.run.is_some() || self.rank.is_some();
        is_marked || is_launcher(&self.command)
    }

    /// Returns whether the process is alive, not a zombie.
    pub fn is_live(&self) -> bool {
        !matches!(self.state, 'Z' | 'X')
    }
}

/// Programs and Python modules that start the ranks of trainers. Their own environment has no `RANK`.
const LAUNCHERS: [&str; 7] = [
    "torchrun",
    "deepspeed",
    "accelerate",
    "vidtui-train",
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
];

/// Returns whether a command line starts a launcher, by itself or with Python.
fn is_launcher(command: &str) -> bool {
    let mut words = command.split_whitespace().map(|word| word.rsplit('/').next().unwrap_or(word));
    let Some(program) = words.next() else { return false };
    let script = words.find(|word| program.starts_with("python") && !word.starts_with('-'));
    LAUNCHERS.contains(&program) || script.is_some_and(|script| LAUNCHERS.contains(&script))
}

/// Plans to end the chosen processes, or everything that trains on the listed nodes.
///
/// Without a choice, the runs of the user are ended as runs (`plans_of`), on all of their nodes. The other processes are
/// ended one by one.
pub fn kill_on_nodes(
    listed: &[NodeProcesses],
    unreachable: Vec<(NodeId, Failure)>,
    scope: KillScope,
    own: &Ancestry,
    chosen: Option<&BTreeSet<ProcessKey>>,
    plans_of: &mut dyn FnMut(DetectedRun) -> Vec<RunKill>,
) -> NodesKill {
    let is_wanted = |node: &NodeProcesses, process: &ListedProcess| match chosen {
        Some(chosen) => chosen.contains(&process.key(&node.node)),
        None => process.trains(),
    };
    let mut kill = NodesKill { scope, nodes: Vec::new(), plans: Vec::new(), spared: Vec::new(), unreachable };
    let mut orphans = OrphanKill { scope, nodes: Vec::new() };
    for node in listed {
        let mut selected = select_orphans(node, scope, own, &|_| true);
        selected.processes.retain(|process| is_wanted(node, process));
        let is_selected = |process: &&ListedProcess| selected.processes.contains(process);
        let others = node.processes.iter().filter(|process| process.is_live() && is_wanted(node, process));
        kill.spared.extend(others.filter(|process| !is_selected(process)).map(|process| SparedProcess {
            node: node.node.clone(),
            process: process.clone(),
            why: if own.contains(node, process) { Spared::ThisProgram } else { Spared::OtherUser },
        }));
        let mut alone = selected.clone();
        alone.processes.retain(|process| chosen.is_some() || !is_of_run(node, process));
        orphans.nodes.extend((!alone.processes.is_empty()).then_some(alone));
        kill.nodes.push(selected);
    }
    if chosen.is_none() {
        let runs = detect_runs(listed).into_iter().flat_map(plans_of);
        kill.plans.extend(runs.map(KillPlan::Run));
    }
    kill.plans.extend((!orphans.nodes.is_empty()).then_some(KillPlan::Orphans(orphans)));
    kill
}

/// Returns whether [`detect_runs`] finds a run by this process.
fn is_of_run(node: &NodeProcesses, process: &ListedProcess) -> bool {
    let run = process.run.as_deref().and_then(|run| RunId::parse(run).ok());
    process.uid == node.uid && process.pgid > 1 && run.is_some()
}

#[cfg(test)]
mod tests {
    use rundir::{ErrorCode, RunDir};

    use super::*;
    use crate::{KillHow, kill_detected};

    const RUN: &str = "2026-11-20T0340-demo-2s-k7f2";

    fn process(pid: i32, uid: u32, command: &str) -> ListedProcess {
        ListedProcess {
            pid,
            parent: 1,
            pgid: pid,
            session: pid,
            start_ticks: pid as u64,
            state: 'S',
            uid,
            user: format!("user{uid}"),
            age_s: 60,
            run: None,
            rank: None,
            on_gpu: false,
            gpu_mib: None,
            command: command.into(),
        }
    }

    fn node() -> NodeProcesses {
        let of_run = ListedProcess { run: Some(RUN.into()), ..process(4100, 1000, "vidtui-train rank") };
        NodeProcesses {
            node: NodeId::from_hostname("ml-1"),
            boot_id: "4f70".into(),
            uid: 1000,
            user: "user1000".into(),
            processes: vec![
                of_run,
                ListedProcess { rank: Some(3), ..process(4200, 1000, "python3 train.py") },
                process(4300, 1000, "/usr/bin/python3 -u -m torch.distributed.run train.py"),
                ListedProcess { on_gpu: true, gpu_mib: Some(100), ..process(4400, 1001, "python3 train.py") },
                ListedProcess { on_gpu: true, gpu_mib: Some(100), state: 'Z', ..process(4500, 1000, "python3") },
                process(4600, 1000, "vim torchrun"),
                ListedProcess { on_gpu: true, gpu_mib: None, ..process(4700, 1000, "vidtui") },
            ],
        }
    }

    fn plan(scope: KillScope, chosen: Option<&BTreeSet<ProcessKey>>) -> NodesKill {
        let own = Ancestry { boot_id: "4f70".into(), processes: vec![(4700, 4700)] };
        let away = Failure::new(ErrorCode::NodeUnreachable, "cannot list the processes of ml-2", "no answer", "wait");
        let away = vec![(NodeId::from_hostname("ml-2"), away)];
        let mut plans_of = |found| kill_detected(found, RunDir::new("/share/runs/a"), KillHow::Kill, None);
        kill_on_nodes(&[node()], away, scope, &own, chosen, &mut plans_of)
    }

    fn pids<'a>(processes: impl Iterator<Item = &'a ListedProcess>) -> Vec<i32> {
        processes.map(|process| process.pid).collect()
    }

    #[test]
    fn runs_end_as_runs_and_other_trainers_process_by_process() {
        let kill = plan(KillScope::Own, None);
        assert_eq!(pids(kill.nodes[0].processes.iter()), [4100, 4200, 4300]);
        let [KillPlan::Run(run), KillPlan::Orphans(orphans)] = &kill.plans[..] else { panic!("{:?}", kill.plans) };
        assert_eq!((run.run.as_str(), run.nodes[0].pgid), (RUN, 4100));
        assert_eq!(pids(orphans.nodes[0].processes.iter()), [4200, 4300]);
        assert_eq!(kill.unreachable[0].0, NodeId::from_hostname("ml-2"));
    }

    #[test]
    fn processes_of_other_users_and_this_program_are_left_alone() {
        let spared = |scope| plan(scope, None).spared.into_iter().map(|s| (s.process.pid, s.why)).collect::<Vec<_>>();
        assert_eq!(spared(KillScope::Own), [(4400, Spared::OtherUser), (4700, Spared::ThisProgram)]);
        assert_eq!(spared(KillScope::AllUsers), [(4700, Spared::ThisProgram)]);
    }

    #[test]
    fn chosen_processes_end_alone_even_if_they_belong_to_a_run() {
        let key = |pid| ProcessKey { node: NodeId::from_hostname("ml-1"), pid, start_ticks: pid as u64 };
        let kill = plan(KillScope::Own, Some(&BTreeSet::from([key(4100), key(4400), key(4999)])));
        let [KillPlan::Orphans(orphans)] = &kill.plans[..] else { panic!("{:?}", kill.plans) };
        assert_eq!(pids(orphans.nodes[0].processes.iter()), [4100]);
        assert_eq!(pids(kill.spared.iter().map(|spared| &spared.process)), [4400]);
    }
}
