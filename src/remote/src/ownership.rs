//! Which processes of this machine are a run's: the question to answer before any signal.
//!
//! A process number alone may by now be somebody else's. Four things must agree: the boot id of the machine, the start
//! time of the process, its group, and `VIDTUI_RUN` in its environment. What a command starts in sessions of its own, as
//! torchrun does, has no group that anything names: there the environment must name run, attempt and node.

use cluster::NodeId;
use plan::NodeKill;
use rundir::RunId;
use runstate::Liveness;

use crate::proc::{self, Stat};
use crate::{Process, Recipient, Role, RunProcesses};

/// The variable that every process of a run carries.
pub(crate) const RUN_VARIABLE: &str = "VIDTUI_RUN";

/// What the environment of everything holds that an attempt starts on a node.
pub(crate) fn marks(run: &RunId, attempt: u32, node: &NodeId) -> [String; 3] {
    [format!("{RUN_VARIABLE}={run}"), format!("VIDTUI_ATTEMPT={attempt}"), format!("VIDTUI_NODE={node}")]
}

/// What was seen on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProcessSnapshot {
    pub boot_id: String,
    /// The group of the program that looks, if that runs there too.
    pub own_group: Option<i32>,
    /// The live processes that the target names, or more, by number.
    pub processes: Vec<ObservedProcess>,
}

/// What was seen of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedProcess {
    pub stat: Stat,
    /// `VIDTUI_RUN` in its environment, or why that cannot be read.
    pub run: Result<Option<String>, String>,
    /// Whether its environment names the run, the attempt and the node.
    pub is_marked: bool,
    /// Kernel threads have none, nor have processes that are ending.
    pub has_command_line: bool,
    pub command: String,
}

/// Looks at this machine's processes.
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

/// Finds those that are the target's among the processes that were seen.
pub(crate) fn judge_all(target: &NodeKill, seen: &ProcessSnapshot) -> RunProcesses {
    // -1, 0 and 1 mean "everybody", "my own group" and "the whole machine" to kill(2).
    if target.pid <= 1 || target.pgid <= 1 {
        return RunProcesses::NotOwned(format!("its process file names process {}, group {}", target.pid, target.pgid));
    }
    if target.boot_id != seen.boot_id {
        return RunProcesses::Gone;
    }
    if seen.own_group == Some(target.pgid) {
        return RunProcesses::NotOwned(format!("group {} is that of this program", target.pgid));
    }
    // This program may have been started from within the run.
    let is_own = |process: &ObservedProcess| seen.own_group == Some(process.stat.pgid);
    let is_stray = |process: &ObservedProcess| process.is_marked && process.stat.pid > 1 && !is_own(process);
    let is_meant = |process: &&ObservedProcess| is_named(&process.stat, target) || is_stray(process);
    let named: Vec<&ObservedProcess> = seen.processes.iter().filter(is_meant).collect();
    // Somebody else with the supervisor's number means that the group of old is gone: Linux gives a number to a new
    // process only when no group and no session has it.
    let is_other = |stat: &Stat| stat.pid == target.pid && stat.start_ticks != target.start_ticks;
    let reused = named.iter().any(|process| is_other(&process.stat));
    let (mut ours, mut ending, mut doubts) = (Vec::new(), Vec::new(), Vec::new());
    for process in &named {
        match judge(process, target) {
            Verdict::Ours => ours.push(*process),
            Verdict::Ending => ending.push(*process),
            // What has nothing but the session from the run, and is of no run, is no reason to doubt the rest.
            Verdict::NotOurs(_) if process.run == Ok(None) && !is_in_group_or_named(&process.stat, target) => {}
            Verdict::NotOurs(why) => doubts.push(why),
        }
    }
    if reused {
        ours.retain(|process| is_stray(process));
        ending.clear();
    }
    if ours.is_empty() && !doubts.is_empty() {
        return RunProcesses::NotOwned(doubts.join("; "));
    }
    // One process that is the run's for certain makes its group and its session the run's.
    let group = !reused && ours.iter().any(|process| process.stat.pgid == target.pgid);
    let session = !reused && ours.iter().any(|process| process.stat.session == target.pid);
    let members: Vec<Process> = named
        .iter()
        .filter(|process| {
            ours.contains(process)
                || ending.contains(process)
                || (group && process.stat.pgid == target.pgid)
                || (session && process.stat.session == target.pid)
        })
        .map(|process| describe(process, target))
        .collect();
    if members.is_empty() { RunProcesses::Gone } else { RunProcesses::Owned(members) }
}

/// Tells whether what a process file names exists, whoever looks: number and start time name one process of a boot for good,
/// also where its environment is another user's secret.
///
/// What samples the node lives on for moments, or hangs in nvidia-smi, and keeps no run alive.
pub(crate) fn liveness(target: &NodeKill, seen: &ProcessSnapshot) -> Liveness {
    if target.boot_id != seen.boot_id {
        return Liveness::Dead;
    }
    let young = || seen.processes.iter().filter(|process| process.stat.start_ticks >= target.start_ticks);
    let is_exact = |process: &ObservedProcess| is_exactly(&process.stat, target);
    if young().any(|process| is_exact(process) || process.is_marked) {
        return Liveness::Alive;
    }
    // The supervisor's number is in other hands only when its group and its session are empty.
    if seen.processes.iter().any(|process| process.stat.pid == target.pid) {
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

/// Picks those of a run's processes who are to be signalled.
pub(crate) fn recipients(members: Vec<Process>, to: Recipient) -> Vec<Process> {
    let has_supervisor = members.iter().any(|process| process.role == Role::Supervisor);
    let has_rank = members.iter().any(|process| matches!(process.role, Role::Rank(_)));
    let is_meant = |process: &Process| match (to, process.role) {
        (Recipient::All, _) | (Recipient::Supervisor, Role::Supervisor) => true,
        (Recipient::Supervisor, Role::Rank(_)) => !has_supervisor,
        (Recipient::Supervisor, Role::Other) => !has_supervisor && !has_rank,
    };
    members.into_iter().filter(is_meant).collect()
}

/// Whether a process has a number, a group or a session that the target names. A rank's number in other hands is left
/// out: that rank is gone. The supervisor's is not, since the group is named after it.
fn is_named(process: &Stat, target: &NodeKill) -> bool {
    process.session == target.pid || is_in_group_or_named(process, target)
}

fn is_in_group_or_named(process: &Stat, target: &NodeKill) -> bool {
    process.pgid == target.pgid || process.pid == target.pid || is_exactly(process, target)
}

/// Whether it is the supervisor or a rank, by what names it for good during a boot.
fn is_exactly(process: &Stat, target: &NodeKill) -> bool {
    let ranks = target.ranks.iter().map(|rank| (rank.pid, rank.start_ticks));
    std::iter::once((target.pid, target.start_ticks)).chain(ranks).any(|one| one == (process.pid, process.start_ticks))
}

/// What is known about a process that the target names.
enum Verdict {
    /// All agrees.
    Ours,
    /// It has given its memory back, and its environment with it, but is not gone. It may hang there, in a driver that
    /// closes its files, so it counts as left; a signal no longer matters to it.
    Ending,
    /// Something does not agree.
    NotOurs(String),
}

fn judge(process: &ObservedProcess, target: &NodeKill) -> Verdict {
    let (Stat { pid, start_ticks, .. }, command) = (process.stat, &process.command);
    if pid == target.pid && start_ticks != target.start_ticks {
        return Verdict::NotOurs(format!(
            "process {pid} started at tick {start_ticks}, the process file says {}: its number was given to another process ({command})",
            target.start_ticks,
        ));
    }
    if start_ticks < target.start_ticks {
        return Verdict::NotOurs(format!("process {pid} ({command}) is older than the supervisor"));
    }
    let why = match &process.run {
        Ok(Some(run)) if run == target.run.as_str() => return Verdict::Ours,
        _ if !process.has_command_line => return Verdict::Ending,
        Ok(Some(run)) => format!("process {pid} has {RUN_VARIABLE}={run}, not {}", target.run),
        Ok(None) => format!("process {pid} ({command}) has no {RUN_VARIABLE} in its environment"),
        Err(error) => format!("the environment of process {pid} ({command}) cannot be read: {error}"),
    };
    Verdict::NotOurs(why)
}

fn describe(process: &ObservedProcess, target: &NodeKill) -> Process {
    let Stat { pid, pgid, state, start_ticks, .. } = process.stat;
    let rank = target.ranks.iter().find(|rank| rank.pid == pid);
    let role = match rank {
        _ if pid == target.pid => Role::Supervisor,
        Some(rank) => Role::Rank(rank.rank),
        None => Role::Other,
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

    /// A process of the supervisor's session; another user cannot read what it is started with.
    fn seen(pid: i32, pgid: i32, start_ticks: u64, run: Result<Option<&str>, &str>) -> ObservedProcess {
        ObservedProcess {
            stat: Stat { pid, state: 'S', pgid, session: 4100, start_ticks },
            run: run.map(|run| run.map(str::to_owned)).map_err(str::to_owned),
            is_marked: false,
            has_command_line: true,
            command: "vidtui-train".into(),
        }
    }

    fn alive(processes: &[ObservedProcess]) -> Liveness {
        let seen = ProcessSnapshot { boot_id: BOOT.into(), own_group: None, processes: processes.to_vec() };
        liveness(&target(), &seen)
    }

    #[test]
    fn another_users_look_sees_that_a_run_lives_although_it_may_not_signal_it() {
        let hidden = Err("permission denied");
        let supervisor = seen(4100, 4100, 77, hidden);
        assert_eq!(alive(&[supervisor.clone(), seen(4101, 4100, 80, hidden)]), Liveness::Alive);
        assert_eq!(alive(&[seen(4101, 4100, 80, hidden)]), Liveness::Alive, "a rank that outlives its supervisor");
        assert_eq!(alive(&[seen(4177, 4177, 90, hidden)]), Liveness::Unknown, "it may be the run's");
        let seen = ProcessSnapshot { boot_id: BOOT.into(), own_group: None, processes: vec![supervisor] };
        let RunProcesses::NotOwned(why) = judge_all(&target(), &seen) else { panic!("it would be signalled") };
        assert_eq!(why, "the environment of process 4100 (vidtui-train) cannot be read: permission denied");
    }

    #[test]
    fn a_number_in_other_hands_or_another_boot_means_that_the_run_is_gone() {
        for hidden in [Err("permission denied"), Ok(None), Ok(Some("2026-11-20T0340-demo-k7f2"))] {
            assert_eq!(alive(&[seen(4100, 4100, 78, hidden)]), alive(&[]), "{hidden:?}");
        }
    }
}
