//! Which processes of this machine are a run's: the question to answer before any signal.
//!
//! A process number alone may by now be somebody else's. Four things must agree: the boot id of the machine, the start
//! time of the process, its group, and `VIDTUI_RUN` in its environment.

use std::io;

use plan::NodeKill;

use crate::proc::{self, Stat};
use crate::{Group, Process, Role};

/// The variable that every process of a run carries.
pub(crate) const RUN_VARIABLE: &str = "VIDTUI_RUN";

/// Finds the live processes that `target` names on this machine.
pub(crate) fn look(target: &NodeKill, boot_id: &str) -> io::Result<Group> {
    // -1, 0 and 1 mean "everybody", "my own group" and "the whole machine" to kill(2).
    if target.pid <= 1 || target.pgid <= 1 {
        return Ok(Group::NotOurs(format!("its process file names process {}, group {}", target.pid, target.pgid)));
    }
    if target.boot_id != boot_id {
        return Ok(Group::Gone);
    }
    let live = proc::live_processes()?;
    let own_group = live.iter().find(|process| process.pid == std::process::id() as i32).map(|process| process.pgid);
    if own_group == Some(target.pgid) {
        return Ok(Group::NotOurs(format!("group {} is that of this program", target.pgid)));
    }
    let named: Vec<&Stat> = live.iter().filter(|process| is_named(process, target)).collect();
    // Somebody else with the supervisor's number means that the group of old is gone: Linux gives a number to a new
    // process only when no group and no session has it.
    let reused = named.iter().any(|process| process.pid == target.pid && process.start_ticks != target.start_ticks);
    let (mut ours, mut ending, mut doubts) = (Vec::new(), Vec::new(), Vec::new());
    for process in &named {
        match judge(process, target) {
            Verdict::Ours => ours.push(*process),
            Verdict::Ending => ending.push(*process),
            Verdict::NotOurs(why) => doubts.push(why),
        }
    }
    if reused || (ours.is_empty() && !doubts.is_empty()) {
        return Ok(Group::NotOurs(doubts.join("; ")));
    }
    // One process that is the run's for certain makes its group and its session the run's.
    let group = ours.iter().any(|process| process.pgid == target.pgid);
    let session = ours.iter().any(|process| process.session == target.pid);
    let members: Vec<Process> = named
        .iter()
        .filter(|process| {
            ours.contains(process)
                || ending.contains(process)
                || (group && process.pgid == target.pgid)
                || (session && process.session == target.pid)
        })
        .map(|process| describe(process, target))
        .collect();
    Ok(if members.is_empty() { Group::Gone } else { Group::Ours(members) })
}

/// Whether a process has a number, a group or a session that the target names. A rank's number in other hands is left
/// out: that rank is gone. The supervisor's is not, since the group is named after it.
fn is_named(process: &Stat, target: &NodeKill) -> bool {
    process.pgid == target.pgid
        || process.session == target.pid
        || process.pid == target.pid
        || target.ranks.iter().any(|rank| rank.pid == process.pid && rank.start_ticks == process.start_ticks)
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

fn judge(process: &Stat, target: &NodeKill) -> Verdict {
    let pid = process.pid;
    if pid == target.pid && process.start_ticks != target.start_ticks {
        return Verdict::NotOurs(format!(
            "process {pid} started at tick {}, the process file says {}: its number was given to another process ({})",
            process.start_ticks,
            target.start_ticks,
            proc::command(pid)
        ));
    }
    if process.start_ticks < target.start_ticks {
        return Verdict::NotOurs(format!("process {pid} ({}) is older than the supervisor", proc::command(pid)));
    }
    let why = match proc::environment(pid, RUN_VARIABLE) {
        Ok(Some(run)) if run == target.run.as_str() => return Verdict::Ours,
        _ if !proc::has_command_line(pid) => return Verdict::Ending,
        Ok(Some(run)) => format!("process {pid} has {RUN_VARIABLE}={run}, not {}", target.run),
        Ok(None) => format!("process {pid} ({}) has no {RUN_VARIABLE} in its environment", proc::command(pid)),
        Err(error) => format!("the environment of process {pid} ({}) cannot be read: {error}", proc::command(pid)),
    };
    Verdict::NotOurs(why)
}

fn describe(process: &Stat, target: &NodeKill) -> Process {
    let rank = target.ranks.iter().find(|rank| rank.pid == process.pid);
    let role = match rank {
        _ if process.pid == target.pid => Role::Supervisor,
        Some(rank) => Role::Rank(rank.rank),
        None => Role::Other,
    };
    Process { pid: process.pid, pgid: process.pgid, role, state: process.state, command: proc::command(process.pid) }
}
