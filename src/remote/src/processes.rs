//! Lists the processes of nodes with their owners. Signals a process only if its id has not been reused.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cluster::NodeId;
use plan::{Ancestry, KillScope, ListedProcess, NodeOrphans, NodeProcesses, quote};

use crate::command::Command;
use crate::parallel::on_nodes;
use crate::script::SIGNAL;
use crate::transport::{Process, ProcessRole, Signal};
use crate::{RemoteError, Transport, proc, this_node};

const LIST: &str = concat!(include_str!("scripts/proc.sh"), include_str!("scripts/processes.sh"));

/// Time limit for a command. On a node under load, a command takes seconds.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Lists the processes of several nodes in parallel.
pub fn list_processes(
    nodes: &[NodeId],
    transports: &mut [Box<dyn Transport>],
) -> Vec<(NodeId, Result<NodeProcesses, RemoteError>)> {
    let nodes = nodes.iter().map(|node| (node.clone(), node.clone())).collect();
    on_nodes(nodes, transports, |node, transport| {
        let listed = list(transport);
        (node, listed)
    })
}

/// Returns this process and its ancestors, which a kill must not signal.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn own_ancestry() -> Result<Ancestry, RemoteError> {
    let here = this_node()?;
    let cannot = |error| RemoteError::io(&here.node, "read its own processes", error);
    let mut processes = Vec::new();
    let mut pid = i32::try_from(std::process::id()).unwrap_or(0);
    while pid > 0 {
        processes.extend(proc::stat(pid).map_err(cannot)?.map(|stat| (pid, stat.start_ticks)));
        pid = proc::parent(pid);
    }
    Ok(Ancestry { boot_id: here.boot_id, processes })
}

fn list(transport: &mut dyn Transport) -> Result<NodeProcesses, RemoteError> {
    let command = Command::new("list its processes", LIST, TIMEOUT);
    let node = transport.node().clone();
    let text = transport.run(&command)?.text(&node, &command)?;
    read(&node, &text).ok_or_else(|| RemoteError::unexpected(&node, command.action, &text))
}

/// Reads the output of the script. Returns `None` if it is truncated.
fn read(node: &NodeId, text: &str) -> Option<NodeProcesses> {
    let mut lines: Vec<&str> = text.lines().collect();
    (lines.pop()? == "end").then_some(())?;
    let (mut boot_id, mut user, mut own) = (String::new(), (0, String::new()), 0);
    let mut stats: BTreeMap<i32, (char, i32, i32, i32, u64)> = BTreeMap::new();
    let mut processes: BTreeMap<i32, ListedProcess> = BTreeMap::new();
    for line in lines {
        let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
        match kind {
            "boot" => boot_id = rest.to_owned(),
            "user" => user = rest.split_once(' ').and_then(|(id, name)| Some((id.parse().ok()?, name.to_owned())))?,
            "self" => own = rest.parse().ok()?,
            "stat" => {
                let words: Vec<&str> = rest.split(' ').collect();
                let [pid, state, parent, pgid, session, ticks] = words[..] else { return None };
                let numbers = (parent.parse().ok()?, pgid.parse().ok()?, session.parse().ok()?);
                let state = state.chars().next()?;
                stats.insert(pid.parse().ok()?, (state, numbers.0, numbers.1, numbers.2, ticks.parse().ok()?));
            }
            "ps" => {
                let mut words = rest.split_whitespace();
                let mut word = || words.next();
                let (Some(pid), Some(uid), Some(name), Some(age)) = (word(), word(), word(), word()) else { continue };
                let (Ok(pid), Ok(uid)) = (pid.parse(), uid.parse()) else { continue };
                // A process that is in only one of the lists started or ended between them.
                let Some((state, parent, pgid, session, start_ticks)) = stats.get(&pid).copied() else { continue };
                processes.insert(
                    pid,
                    ListedProcess {
                        pid,
                        parent,
                        pgid,
                        session,
                        start_ticks,
                        state,
                        uid,
                        user: name.to_owned(),
                        age_s: age.parse().unwrap_or(0),
                        run: None,
                        rank: None,
                        on_gpu: false,
                        gpu_mib: None,
                        command: words.collect::<Vec<_>>().join(" "),
                    },
                );
            }
            // A process may overwrite the memory of its environment: an unreadable line is not an error.
            "env" => {
                let variable = rest.split_once("/environ:").and_then(|(pid, set)| Some((pid, set.split_once('=')?)));
                let found = variable
                    .and_then(|(pid, (name, value))| Some((processes.get_mut(&pid.parse().ok()?)?, name, value)));
                match found {
                    Some((process, "VIDTUI_RUN", run)) => {
                        process.run.get_or_insert_with(|| run.to_owned());
                    }
                    Some((process, "RANK", rank)) => process.rank = rank.parse().ok(),
                    _ => {}
                }
            }
            "gpu" => {
                let found = rest.split_once(',').and_then(|(pid, mib)| Some((pid.trim().parse().ok()?, mib)));
                if let Some(process) = found.and_then(|(pid, _): (i32, _)| processes.get_mut(&pid)) {
                    let mib = rest.split_once(',').and_then(|(_, mib)| mib.trim().parse::<u64>().ok());
                    // The sum over its GPUs is unknown if one of them is.
                    let before = if process.on_gpu { process.gpu_mib } else { Some(0) };
                    process.gpu_mib = before.zip(mib).map(|(before, mib)| before.saturating_add(mib));
                    process.on_gpu = true;
                }
            }
            _ => {}
        }
    }
    let own_ancestry = ancestry(own, &stats);
    // The pipelines of the listing are its children.
    let is_own =
        |process: &ListedProcess| own_ancestry.contains(&process.pid) || ancestry(process.pid, &stats).contains(&own);
    let processes = processes.into_values().filter(|process| !is_own(process)).collect();
    Some(NodeProcesses { node: node.clone(), boot_id, uid: user.0, user: user.1, processes })
}

/// Returns a process and its ancestors.
fn ancestry(pid: i32, stats: &BTreeMap<i32, (char, i32, i32, i32, u64)>) -> BTreeSet<i32> {
    let mut own = BTreeSet::new();
    let mut at = pid;
    while at > 0 && own.insert(at) {
        at = stats.get(&at).map_or(0, |(_, parent, ..)| *parent);
    }
    own
}

/// Lists the orphans that still run. A process that reuses the id of an orphan is not listed.
pub(crate) fn remaining(orphans: &NodeOrphans, transport: &mut dyn Transport) -> Result<Vec<Process>, RemoteError> {
    let now = list(transport)?;
    if now.boot_id != orphans.boot_id {
        return Ok(Vec::new());
    }
    let is_same = |process: &&ListedProcess| {
        let same = |orphan: &ListedProcess| (orphan.pid, orphan.start_ticks) == (process.pid, process.start_ticks);
        !matches!(process.state, 'Z' | 'X') && orphans.processes.iter().any(same)
    };
    Ok(now.processes.iter().filter(is_same).map(as_process).collect())
}

fn as_process(process: &ListedProcess) -> Process {
    let ListedProcess { pid, pgid, start_ticks, state, command, .. } = process.clone();
    Process { pid, pgid, start_ticks, role: ProcessRole::Other, state, command }
}

/// Signals processes. Immediately before each signal, the script checks that boot id, start time and process group are unchanged.
pub(crate) fn signal(
    boot_id: &str,
    to: &[Process],
    signal: Signal,
    scope: KillScope,
    transport: &mut dyn Transport,
) -> Result<(), RemoteError> {
    if to.is_empty() {
        return Ok(());
    }
    let sends: Vec<String> = to
        .iter()
        .map(|Process { pid, pgid, start_ticks, .. }| format!("is_still {pid} {start_ticks} {pgid} && send {pid}"))
        .collect();
    let script = SIGNAL
        .replace("@BOOT", &quote(boot_id))
        .replace("@SIGNAL", if signal == Signal::Term { "TERM" } else { "KILL" })
        .replace("@KILL", if scope == KillScope::Sudo { "sudo -n kill" } else { "kill" })
        .replace("@SENDS", &sends.join("\n"));
    let command = Command::new("signal its processes", script, TIMEOUT);
    let node = transport.node().clone();
    let text = transport.run(&command)?.text(&node, &command)?;
    let (answer, action) = (text.trim(), command.action);
    if matches!(answer, "sent" | "booted") {
        return Ok(());
    }
    Err(match answer.strip_prefix("refused ") {
        Some(output) => {
            RemoteError::CommandFailed { node, action, status: "not permitted".into(), stderr: output.to_owned() }
        }
        None => RemoteError::unexpected(&node, action, answer),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &str = "boot 4f70\n\
        user 1000 ada\n\
        self 910\n\
        stat 1 S 0 1 1 5\n\
        stat 900 S 1 900 900 70\n\
        stat 905 S 900 905 905 80\n\
        stat 910 S 905 905 905 81\n\
        stat 911 R 910 905 905 81\n\
        stat 4100 S 1 4100 4100 77\n\
        stat 4101 D 4100 4100 4100 78\n\
        ps     1     0 root   100 /sbin/init\n\
        ps   900     0 root   100 sshd: ada\n\
        ps   905  1000 ada      1 sh -c list\n\
        ps   910  1000 ada      1 sh -c list\n\
        ps   911  1000 ada      0 ps -eww\n\
        ps  4100  1000 ada   7200 python3 train.py --config a b\n\
        ps  4101  1001 eve     60 python3 train.py\n\
        ps  4177  1001 eve     60 it came later\n\
        env 4100/environ:VIDTUI_RUN=a-1\n\
        env 4100/environ:RANK=12\n\
        gpu 4100, 18432\n\
        gpu 4100, 1024\n\
        gpu [Insufficient Permissions], [N/A]\n\
        gpu 4101, 2048\n\
        gpu 4101, [N/A]\n\
        gpu 4101, 1024\n\
        end\n";

    #[test]
    fn processes_are_listed_with_owner_age_run_and_gpu_memory_without_the_listing_itself() {
        let node = NodeId::new("ml-1").unwrap();
        let read = read(&node, ANSWER).unwrap();
        assert_eq!((read.uid, &read.user[..], &read.boot_id[..]), (1000, "ada", "4f70"));
        assert_eq!(read.processes.iter().map(|p| p.pid).collect::<Vec<_>>(), [4100, 4101]);
        let found = &read.processes[0];
        assert_eq!((found.run.as_deref(), found.rank), (Some("a-1"), Some(12)));
        assert_eq!((found.gpu_mib, found.age_s), (Some(19456), 7200));
        assert_eq!(found.command, "python3 train.py --config a b");
        let other = &read.processes[1];
        assert_eq!((other.on_gpu, other.gpu_mib), (true, None), "the memory on one GPU is not reported");
    }

    #[test]
    fn the_child_shells_of_the_listing_are_not_listed() {
        let nested = ANSWER.replace("stat 911 R 910", "stat 912 S 910 905 905 81\nstat 911 R 912");
        let nested = nested.replace("ps   911", "ps   912  1000 ada      0 sh -c list\nps   911");
        let read = read(&NodeId::new("ml-1").unwrap(), &nested).unwrap();
        assert_eq!(read.processes.iter().map(|p| p.pid).collect::<Vec<_>>(), [4100, 4101]);
    }

    #[test]
    fn an_odd_line_hides_no_other_process() {
        let odd = ANSWER.replace("ps  4101", "ps what\n\nenv 4100/environ\ngpu\nps  4101");
        let read = read(&NodeId::new("ml-1").unwrap(), &odd).unwrap();
        assert_eq!(read.processes.iter().map(|p| p.pid).collect::<Vec<_>>(), [4100, 4101]);
    }

    #[test]
    fn an_answer_that_is_cut_off_is_rejected() {
        let node = NodeId::new("ml-1").unwrap();
        assert!(read(&node, &ANSWER[..ANSWER.len() - 5]).is_none());
    }
}
