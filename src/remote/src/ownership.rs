//! Decides which processes of a node belong to a run, before any signal is sent.
//!
//! A process id may have been reused. Four things must match: the boot id of the machine, the start time of the process, its
//! group, and `VIDTUI_RUN` in its environment. Processes that a command starts in their own sessions, as torchrun does, are in
//! no group that the process file names: their environment must name the run, the attempt and the node.

use cluster::NodeId;
use plan::NodeKill;
use rundir::RunId;
use runstate::Liveness;

use crate::proc::{self, Stat};
use crate::{Process, ProcessRole, Recipient, RunProcesses};

/// The variable in the environment of every process of a run.
pub(crate) const RUN_VARIABLE: &str = "VIDTUI_RUN";

/// Returns the variables in the environment of every process that an attempt starts on a node.
pub(crate) fn marks(run: &RunId, attempt: u32, node: &NodeId) -> [String; 3] {
    [format!("{RUN_VARIABLE}={run}"), format!("VIDTUI_ATTEMPT={attempt}"), format!("VIDTUI_NODE={node}")]
}

/// The processes of a node at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProcessSnapshot {
    pub boot_id: String,
    /// The process group of this program, if it runs on the node.
    pub own_group: Option<i32>,
    /// The live processes that the target names, and maybe others, ordered by process id.
    pub processes: Vec<ObservedProcess>,
}

/// A process of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedProcess {
    pub stat: Stat,
    /// `VIDTUI_RUN` in its environment, or why the environment cannot be read.
    pub run: Result<Option<String>, String>,
    /// Whether the environment of the process names the run, the attempt and the node.
    pub is_marked: bool,
    /// False for kernel threads and for processes that are ending.
    pub has_command_line: bool,
    pub command: String,
}

/// Reads the processes of this machine that a target names.
pub(crate) fn read_processes(target: &NodeKill, boot_id: &str) -> std::io::Result<ProcessSnapshot> {
    let live = proc::live_processes()?;
    let own = std::process::id() as i32;
    let own_group = live.iter().find(|process| process.pid == own).map(|process| process.pgid);
    let marks = marks(&target.run, target.attempt, &target.node);
    let processes = live.into_iter().filter_map(|stat| {
        let is_marked = proc::has_variables(stat.pid, &marks);
        (is_marked || is_named(&stat, target)).then(|| ObservedProcess {
            stat,
            run: proc::environment(stat.pid, RUN_VARIABLE).map_err(|error| error.to_string()),
            is_marked,
            has_command_line: proc::has_command_line(stat.pid),
            command: proc::command(stat.pid),
        })
    });
    Ok(ProcessSnapshot { boot_id: boot_id.to_owned(), own_group, processes: processes.collect() })
}

/// Finds the processes of a target in a snapshot.
pub(crate) fn identify(target: &NodeKill, snapshot: &ProcessSnapshot) -> RunProcesses {
    // kill(2) takes -1 for all processes, 0 for the caller's group; 1 is the init process.
    if target.pid <= 1 || target.pgid <= 1 {
        return RunProcesses::NotOwned(format!("its process file names process {}, group {}", target.pid, target.pgid));
    }
    if target.boot_id != snapshot.boot_id {
        return RunProcesses::Gone;
    }
    if snapshot.own_group == Some(target.pgid) {
        return RunProcesses::NotOwned(format!("group {} is the group of this program", target.pgid));
    }
    // This program may have been started from within the run.
    let is_own = |process: &ObservedProcess| snapshot.own_group == Some(process.stat.pgid);
    let is_worker = |process: &ObservedProcess| process.is_marked && process.stat.pid > 1 && !is_own(process);
    let is_candidate = |process: &&ObservedProcess| is_named(&process.stat, target) || is_worker(process);
    let named: Vec<&ObservedProcess> = snapshot.processes.iter().filter(is_candidate).collect();
    // If another process has the supervisor's id, the supervisor's group is gone: Linux reuses an id only when no process,
    // group or session has it.
    let is_other = |stat: &Stat| stat.pid == target.pid && stat.start_ticks != target.start_ticks;
    let reused = named.iter().any(|process| is_other(&process.stat));
    let (mut owned, mut ending, mut doubts) = (Vec::new(), Vec::new(), Vec::new());
    for process in &named {
        match classify(process, target) {
            Verdict::Owned => owned.push(*process),
            Verdict::Ending => ending.push(*process),
            // A process without `VIDTUI_RUN` that only shares the session does not prevent signals to the others.
            Verdict::NotOwned(_) if process.run == Ok(None) && !is_in_group_or_named(&process.stat, target) => {}
            Verdict::NotOwned(why) => doubts.push(why),
        }
    }
    if reused {
        owned.retain(|process| is_worker(process));
        ending.clear();
    }
    if owned.is_empty() && !doubts.is_empty() {
        return RunProcesses::NotOwned(doubts.join("; "));
    }
    // If one process certainly belongs to the run, its group and its session also belong to it.
    let group = !reused && owned.iter().any(|process| process.stat.pgid == target.pgid);
    let session = !reused && owned.iter().any(|process| process.stat.session == target.pid);
    let members: Vec<Process> = named
        .iter()
        .filter(|process| {
            owned.contains(process)
                || ending.contains(process)
                || (group && process.stat.pgid == target.pgid)
                || (session && process.stat.session == target.pid)
        })
        .map(|process| describe(process, target))
        .collect();
    if members.is_empty() { RunProcesses::Gone } else { RunProcesses::Owned(members) }
}

/// Determines whether the processes of a process file exist, for any user: process id and start time identify a process of a
/// boot even if its environment cannot be read.
///
/// The node's sampler is not counted, because it may end after the run, or hang in nvidia-smi.
pub(crate) fn liveness(target: &NodeKill, snapshot: &ProcessSnapshot) -> Liveness {
    if target.boot_id != snapshot.boot_id {
        return Liveness::Dead;
    }
    let young = || snapshot.processes.iter().filter(|process| process.stat.start_ticks >= target.start_ticks);
    let is_exact = |process: &ObservedProcess| is_exactly(&process.stat, target);
    if young().any(|process| is_exact(process) || process.is_marked) {
        return Liveness::Alive;
    }
    // The supervisor's id is reused only when its group and its session are empty.
    if snapshot.processes.iter().any(|process| process.stat.pid == target.pid) {
        return Liveness::Dead;
    }
    let is_of_run = |process: &ObservedProcess| matches!(&process.run, Ok(Some(run)) if run == target.run.as_str());
    if young().any(|process| process.stat.pgid == target.pgid && is_of_run(process)) {
        return Liveness::Alive;
    }
    if young().any(|process| process.run.is_err() && is_named(&process.stat, target)) {
        return Liveness::Unknown;
    }
    Liveness::Dead
}

/// Selects the processes of a run that receive a signal.
pub(crate) fn recipients(members: Vec<Process>, to: Recipient) -> Vec<Process> {
    let has_supervisor = members.iter().any(|process| process.role == ProcessRole::Supervisor);
    let has_rank = members.iter().any(|process| matches!(process.role, ProcessRole::Rank(_)));
    let is_recipient = |process: &Process| match (to, process.role) {
        (Recipient::All, _) | (Recipient::Supervisor, ProcessRole::Supervisor) => true,
        (Recipient::Supervisor, ProcessRole::Rank(_)) => !has_supervisor,
        (Recipient::Supervisor, ProcessRole::Other) => !has_supervisor && !has_rank,
    };
    members.into_iter().filter(is_recipient).collect()
}

/// Whether the target names the id, the group or the session of a process. The reused id of a rank does not count,
/// because that rank is gone. The reused id of the supervisor counts, because it is also the id of the group.
fn is_named(process: &Stat, target: &NodeKill) -> bool {
    process.session == target.pid || is_in_group_or_named(process, target)
}

fn is_in_group_or_named(process: &Stat, target: &NodeKill) -> bool {
    process.pgid == target.pgid || process.pid == target.pid || is_exactly(process, target)
}

/// Whether the process is the supervisor or a rank. Process id and start time are unique during a boot.
fn is_exactly(process: &Stat, target: &NodeKill) -> bool {
    let ranks = target.ranks.iter().map(|rank| (rank.pid, rank.start_ticks));
    std::iter::once((target.pid, target.start_ticks)).chain(ranks).any(|one| one == (process.pid, process.start_ticks))
}

/// Whether a process that the target names belongs to the run.
enum Verdict {
    /// All properties match.
    Owned,
    /// The process has released its memory and environment, but still exists. It may hang in a driver that closes its
    /// files, so it counts as remaining; signals have no effect on it.
    Ending,
    /// The named property does not match.
    NotOwned(String),
}

fn classify(process: &ObservedProcess, target: &NodeKill) -> Verdict {
    let (Stat { pid, start_ticks, .. }, command) = (process.stat, &process.command);
    if pid == target.pid && start_ticks != target.start_ticks {
        return Verdict::NotOwned(format!(
            "process {pid} started at tick {start_ticks}, the process file has tick {}: its process id was reused ({command})",
            target.start_ticks,
        ));
    }
    if start_ticks < target.start_ticks {
        return Verdict::NotOwned(format!("process {pid} ({command}) is older than the supervisor"));
    }
    let why = match &process.run {
        Ok(Some(run)) if run == target.run.as_str() => return Verdict::Owned,
        _ if !process.has_command_line => return Verdict::Ending,
        Ok(Some(run)) => format!("process {pid} has {RUN_VARIABLE}={run}, not {}", target.run),
        Ok(None) => format!("process {pid} ({command}) has no {RUN_VARIABLE} in its environment"),
        Err(error) => format!("the environment of process {pid} ({command}) cannot be read: {error}"),
    };
    Verdict::NotOwned(why)
}

fn describe(process: &ObservedProcess, target: &NodeKill) -> Process {
    let Stat { pid, pgid, state, start_ticks, .. } = process.stat;
    let rank = target.ranks.iter().find(|rank| rank.pid == pid);
    let role = match rank {
        _ if pid == target.pid => ProcessRole::Supervisor,
        Some(rank) => ProcessRole::Rank(rank.rank),
        None => ProcessRole::Other,
    };
    Process { pid, pgid, start_ticks, role, state, command: process.command.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rundir::RankPid;

    const BOOT: &str = "4f70";

    /// Supervisor 4100, started at tick 77, with the rank 4101.
    fn target() -> NodeKill {
        NodeKill {
            run: RunId::parse("2026-11-20T0340-demo-k7f2").unwrap(),
            node: NodeId::new("ml-1").unwrap(),
            attempt: 1,
            pid: 4100,
            pgid: 4100,
            boot_id: BOOT.into(),
            start_ticks: 77,
            ranks: vec![RankPid { rank: 0, pid: 4101, start_ticks: 80 }],
            why: String::new(),
        }
    }

    /// A process in the supervisor's session; other users cannot read its environment.
    fn observed(pid: i32, pgid: i32, start_ticks: u64, run: Result<Option<&str>, &str>) -> ObservedProcess {
        ObservedProcess {
            stat: Stat { pid, state: 'S', pgid, session: 4100, start_ticks },
            run: run.map(|run| run.map(str::to_owned)).map_err(str::to_owned),
            is_marked: false,
            has_command_line: true,
            command: "vidtui-train".into(),
        }
    }

    fn alive(processes: &[ObservedProcess]) -> Liveness {
        let snapshot = ProcessSnapshot { boot_id: BOOT.into(), own_group: None, processes: processes.to_vec() };
        liveness(&target(), &snapshot)
    }

    #[test]
    fn another_user_can_see_that_a_run_is_alive_and_cannot_signal_it() {
        let hidden = Err("permission denied");
        let supervisor = observed(4100, 4100, 77, hidden);
        assert_eq!(alive(&[supervisor.clone(), observed(4101, 4100, 80, hidden)]), Liveness::Alive);
        assert_eq!(alive(&[observed(4101, 4100, 80, hidden)]), Liveness::Alive, "a rank that outlives its supervisor");
        assert_eq!(alive(&[observed(4177, 4177, 90, hidden)]), Liveness::Unknown, "it may belong to the run");
        let snapshot = ProcessSnapshot { boot_id: BOOT.into(), own_group: None, processes: vec![supervisor] };
        let RunProcesses::NotOwned(why) = identify(&target(), &snapshot) else { panic!("it would be signalled") };
        assert!(why.contains("4100") && why.contains("permission denied"), "{why}");
    }

    #[test]
    fn a_reused_process_id_means_that_the_run_is_gone() {
        for hidden in [Err("permission denied"), Ok(None), Ok(Some("2026-11-20T0340-demo-k7f2"))] {
            assert_eq!(alive(&[observed(4100, 4100, 78, hidden)]), alive(&[]), "{hidden:?}");
        }
    }
}
