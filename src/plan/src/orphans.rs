//! Orphan processes: processes of runs that were found on nodes, and processes that were selected by their command lines.

use std::collections::BTreeMap;

use camino::Utf8PathBuf;
use cluster::NodeId;
use rundir::{RunDir, RunId};

use crate::{KillHow, NodeKill, RunKill};

/// A process of a node when it was listed; it may be a zombie.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ListedProcess {
    /// Process id.
    pub pid: i32,
    /// Process id of the parent.
    pub parent: i32,
    /// Process group.
    pub pgid: i32,
    /// Session.
    pub session: i32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
    /// State letter of `/proc/PID/stat`.
    pub state: char,
    /// Id of its user.
    pub uid: u32,
    /// Name of its user.
    pub user: String,
    /// Seconds since it started.
    pub age_s: u64,
    /// `VIDTUI_RUN` in its environment, if the environment can be read.
    pub run: Option<String>,
    /// `RANK` in its environment, which launchers of distributed training set.
    #[serde(default)]
    pub rank: Option<usize>,
    /// Whether nvidia-smi lists it on a GPU.
    #[serde(default)]
    pub on_gpu: bool,
    /// GPU memory that it holds on all GPUs, if it is known.
    pub gpu_mib: Option<u64>,
    /// Command line.
    pub command: String,
}

/// The processes of a node, without the processes that made the list.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct NodeProcesses {
    /// The node.
    pub node: NodeId,
    /// The id of its current boot.
    pub boot_id: String,
    /// Id of the user that vidtui is logged in as.
    pub uid: u32,
    /// Name of that user.
    pub user: String,
    /// The processes, ordered by process id.
    pub processes: Vec<ListedProcess>,
}

/// Processes of a node that will be killed.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct NodeOrphans {
    /// The node.
    pub node: NodeId,
    /// The id of the boot during which they were listed.
    pub boot_id: String,
    /// The processes.
    pub processes: Vec<ListedProcess>,
}

/// Processes that were selected by their command lines, and will be killed.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct OrphanKill {
    /// The users whose processes may be killed.
    pub scope: KillScope,
    /// The processes, node by node.
    pub nodes: Vec<NodeOrphans>,
}

impl OrphanKill {
    /// Counts the processes of all nodes.
    pub fn count(&self) -> usize {
        self.nodes.iter().map(|node| node.processes.len()).sum()
    }
}

/// The users whose processes may be killed, and the permissions of the kill.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum KillScope {
    /// Processes of the user who is logged in.
    #[default]
    Own,
    /// Processes of all users, as far as that user may signal them.
    AllUsers,
    /// Processes of all users, signalled with `sudo`.
    Sudo,
}

/// This program and its ancestors, which are never selected. The shell that started this program may have the pattern
/// on its command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ancestry {
    /// The id of the boot of their node.
    pub boot_id: String,
    /// The process id and the start time of each, in clock ticks since boot.
    pub processes: Vec<(i32, u64)>,
}

impl Ancestry {
    /// Returns whether a process is one of them. Compares boots, because a node may have several names.
    pub(crate) fn contains(&self, listed: &NodeProcesses, process: &ListedProcess) -> bool {
        listed.boot_id == self.boot_id && self.processes.contains(&(process.pid, process.start_ticks))
    }
}

/// Selects the processes whose command line matches. Never selects process 1, a kernel thread, a zombie, or a process of
/// `own`.
pub fn select_orphans(
    listed: &NodeProcesses,
    scope: KillScope,
    own: &Ancestry,
    matches: &dyn Fn(&str) -> bool,
) -> NodeOrphans {
    let selected = listed.processes.iter().filter(|process| {
        // ps prints kernel threads, which have no command line, in brackets; a user's program may have such a name too.
        let is_kernel_thread = process.uid == 0 && (process.pid == 2 || process.parent == 2);
        let is_in_scope = scope != KillScope::Own || process.uid == listed.uid;
        let is_own = own.contains(listed, process);
        process.pid > 1
            && !is_kernel_thread
            && !is_own
            && is_in_scope
            && !matches!(process.state, 'Z' | 'X')
            && matches(&process.command)
    });
    NodeOrphans { node: listed.node.clone(), boot_id: listed.boot_id.clone(), processes: selected.cloned().collect() }
}

/// Command lines of programs that have nothing to do with training or with each other: of the system, of logins and of the kernel.
const UNRELATED: [&str; 10] = [
    "/sbin/init splash",
    "[kworker/0:1-events]",
    "[migration/3]",
    "/lib/systemd/systemd --user",
    "(sd-pam)",
    "sshd: ada@pts/0",
    "-bash",
    "/usr/bin/dbus-daemon --system",
    "slurmstepd: [42.batch]",
    "/sbin/agetty tty1",
];

/// Returns whether a pattern selects processes regardless of what they are: it matches the empty text, or at least half of ten unrelated
/// command lines. An unset variable in a pattern has this effect: `''`, `'train|'`, `'.*'`.
pub fn matches_anything(matches: &dyn Fn(&str) -> bool) -> bool {
    matches("") || 2 * UNRELATED.iter().filter(|command| matches(command)).count() >= UNRELATED.len()
}

/// A run whose processes were found on nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetectedRun {
    /// The run, from the environment of its processes.
    pub run: RunId,
    /// The run directory, from the command line of a supervisor; `None` if no supervisor was found.
    pub dir: Option<Utf8PathBuf>,
    /// The process groups of the run, node by node.
    pub nodes: Vec<NodeKill>,
}

/// Finds the runs of the logged-in user among the processes of nodes, by `VIDTUI_RUN` in their environment.
pub fn detect_runs(listed: &[NodeProcesses]) -> Vec<DetectedRun> {
    let mut found: BTreeMap<RunId, DetectedRun> = BTreeMap::new();
    for node in listed {
        let mut groups: BTreeMap<(RunId, i32), Vec<&ListedProcess>> = BTreeMap::new();
        let own = || node.processes.iter().filter(|p| p.uid == node.uid && p.pgid > 1);
        for process in own() {
            if let Some(run) = process.run.as_deref().and_then(|run| RunId::parse(run).ok()) {
                // The sampler of a node has its own process group in the session of the supervisor.
                let has_leader = own().any(|leader| leader.pid == process.session && leader.run == process.run);
                let group = if has_leader { process.session } else { process.pgid };
                groups.entry((run, group)).or_default().push(process);
            }
        }
        for ((run, pgid), members) in groups {
            let kill = node_kill(&run, node, pgid, &members);
            let dir = members.iter().find_map(|process| after(&process.command, "--run-dir")).map(Utf8PathBuf::from);
            let entry = found.entry(run.clone()).or_insert_with(|| DetectedRun { run, dir: None, nodes: Vec::new() });
            entry.dir = entry.dir.take().or(dir);
            entry.nodes.push(kill);
        }
    }
    found.into_values().collect()
}

/// Plans to end a run whose processes were found. If some of them belong to its newest attempt, that attempt is ended on all
/// of its nodes, as its process files list them (`by_files`). Processes of earlier attempts are ended where they were found.
pub fn kill_detected(found: DetectedRun, dir: RunDir, how: KillHow, by_files: Option<RunKill>) -> Vec<RunKill> {
    let is_known = |kill: &NodeKill| {
        // A group without a supervisor has no attempt number. It contains workers, which have their own process groups.
        let same_attempt = |known: &NodeKill| kill.attempt == known.attempt || kill.attempt == 0;
        let same = |known: &NodeKill| known.node == kill.node && known.boot_id == kill.boot_id && same_attempt(known);
        by_files.as_ref().is_some_and(|plan| plan.nodes.iter().any(same))
    };
    let (known, left): (Vec<NodeKill>, Vec<NodeKill>) = found.nodes.into_iter().partition(is_known);
    let left = RunKill { run: found.run, dir, how, nodes: left, job: None };
    let newest = by_files.filter(|_| !known.is_empty());
    newest.into_iter().chain(Some(left).filter(|plan| !plan.nodes.is_empty())).collect()
}

/// Makes the target for a process group without a process file. The start time is that of its oldest process, because
/// the supervisor may have ended.
fn node_kill(run: &RunId, node: &NodeProcesses, pgid: i32, members: &[&ListedProcess]) -> NodeKill {
    let attempt = members.iter().find_map(|process| after(&process.command, "--attempt")?.parse().ok());
    let pids: Vec<String> = members.iter().map(|process| process.pid.to_string()).collect();
    NodeKill {
        run: run.clone(),
        node: node.node.clone(),
        attempt: attempt.unwrap_or(0),
        pid: pgid,
        pgid,
        boot_id: node.boot_id.clone(),
        start_ticks: members.iter().map(|process| process.start_ticks).min().unwrap_or(0),
        ranks: Vec::new(),
        why: format!(
            "process group {pgid}: {} ({}); VIDTUI_RUN={run} is in their environment",
            units::counted(pids.len(), "process"),
            pids.join(", ")
        ),
    }
}

/// Returns the value of a flag.
fn after<'a>(command: &'a str, flag: &str) -> Option<&'a str> {
    let mut words = command.split_whitespace().skip_while(|word| *word != flag);
    words.next()?;
    words.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, uid: u32, run: Option<&str>, command: &str) -> ListedProcess {
        ListedProcess {
            pid,
            parent: if uid == 0 { 2 } else { 1 },
            pgid: 4100,
            session: 4100,
            start_ticks: pid as u64,
            state: 'S',
            uid,
            user: format!("user{uid}"),
            age_s: 60,
            run: run.map(str::to_owned),
            rank: None,
            on_gpu: false,
            gpu_mib: None,
            command: command.into(),
        }
    }

    fn node() -> NodeProcesses {
        let run = Some("2026-11-20T0340-demo-2s-k7f2");
        NodeProcesses {
            node: NodeId::from_hostname("ml-1"),
            boot_id: "4f70".into(),
            uid: 1000,
            user: "user1000".into(),
            processes: vec![
                process(1, 0, None, "python init"),
                process(44, 0, None, "[python-kworker]"),
                process(4100, 1000, run, "vidtui-train supervise --run-dir /share/runs/a --attempt 3 --node ml-1"),
                process(4101, 1000, run, "vidtui-train rank"),
                ListedProcess { pgid: 4150, ..process(4150, 1000, run, "sh -c query=…") },
                process(5000, 1000, None, "python3 train.py"),
                process(5001, 1001, run, "python3 train.py"),
            ],
        }
    }

    fn own(processes: &[(i32, u64)]) -> Ancestry {
        Ancestry { boot_id: "4f70".into(), processes: processes.to_vec() }
    }

    #[test]
    fn this_program_and_its_shell_are_never_selected_under_any_node_name() {
        let pattern = "vidtui kill --hostfile F --pattern python";
        let mut listed = node();
        listed.node = NodeId::from_hostname("10.99.0.1");
        listed.processes = vec![
            process(70, 1000, None, &format!("bash -c {pattern}")),
            process(71, 1000, None, pattern),
            process(5000, 1000, None, "python3 train.py"),
        ];
        let selected = |own: &Ancestry, listed: &NodeProcesses| {
            let selected = select_orphans(listed, KillScope::Own, own, &|command| command.contains("python"));
            selected.processes.iter().map(|process| process.pid).collect::<Vec<_>>()
        };
        assert_eq!(selected(&own(&[(71, 71), (70, 70), (1, 1)]), &listed), [5000]);
        assert_eq!(selected(&own(&[(71, 99), (70, 99)]), &listed), [70, 71, 5000], "the process ids were reused");
        listed.boot_id = "another".into();
        assert_eq!(selected(&own(&[(71, 71), (70, 70)]), &listed), [70, 71, 5000], "the processes of another machine");
    }

    #[test]
    fn a_pattern_that_matches_almost_anything_is_known_by_unrelated_commands() {
        let broad = |matches: fn(&str) -> bool| matches_anything(&matches);
        assert!(broad(|_| true));
        assert!(broad(str::is_empty));
        assert!(broad(|command| command.contains('/')));
        assert!(broad(|command| command.contains('a')));
        assert!(broad(|command| command.contains(|c: char| c.is_ascii_digit())));
        for word in ["python", "train.py", "vidtui-train", "sleep 333", "bash", "sshd", "systemd", "/usr/bin/"] {
            assert!(!matches_anything(&|command| command.contains(word)), "{word}");
        }
    }

    #[test]
    fn only_the_users_own_processes_are_selected_by_default() {
        let pids = |reach| {
            let selected = select_orphans(&node(), reach, &own(&[]), &|command| command.contains("python"));
            selected.processes.iter().map(|process| process.pid).collect::<Vec<_>>()
        };
        assert_eq!(pids(KillScope::Own), [5000]);
        assert_eq!(pids(KillScope::AllUsers), [5000, 5001]);
        assert_eq!(pids(KillScope::Sudo), [5000, 5001]);
    }

    #[test]
    fn processes_of_an_earlier_attempt_are_ended_where_they_are_and_the_newest_attempt_continues_elsewhere() {
        let found = || detect_runs(&[node()]).remove(0);
        let by_files = |node: &str, attempt| {
            let of_file = NodeKill { node: NodeId::from_hostname(node), attempt, ..found().nodes.remove(0) };
            let beside = NodeKill { node: NodeId::from_hostname("ml-9"), ..of_file.clone() };
            let dir = RunDir::new("/share/runs/a");
            RunKill { run: found().run, dir, how: KillHow::Stop, nodes: vec![of_file, beside], job: None }
        };
        let ended = |newest: Option<RunKill>| {
            let plans = kill_detected(found(), RunDir::new("/share/runs/a"), KillHow::Stop, newest);
            let nodes =
                |plan: RunKill| plan.nodes.iter().map(|n| format!("{} {}", n.node, n.attempt)).collect::<Vec<_>>();
            plans.into_iter().map(nodes).collect::<Vec<_>>()
        };
        assert_eq!(ended(None), [["ml-1 3"]]);
        assert_eq!(ended(Some(by_files("ml-1", 3))), [["ml-1 3", "ml-9 3"]], "all nodes of the newest attempt");
        assert_eq!(ended(Some(by_files("ml-1", 4))), [["ml-1 3"]]);
        assert_eq!(ended(Some(by_files("ml-7", 4))), [["ml-1 3"]]);
    }

    #[test]
    fn runs_are_detected_by_the_environment_of_the_users_own_processes() {
        let found = detect_runs(&[node()]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].dir.as_deref(), Some("/share/runs/a".into()));
        let NodeKill { attempt, pid, pgid, start_ticks, .. } = found[0].nodes[0];
        assert_eq!((found[0].nodes.len(), attempt, pid, pgid, start_ticks), (1, 3, 4100, 4100, 4100));
        assert!(
            ["4100", "4101", "4150"].iter().all(|pid| found[0].nodes[0].why.contains(pid)),
            "{}",
            found[0].nodes[0].why
        );
    }
}
