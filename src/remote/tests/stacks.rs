//! Collects the stacks of real processes that hang, without disturbing them.

#![expect(clippy::unwrap_used, reason = "a failed unwrap shows its line")]

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use camino::Utf8Path;
use cluster::NodeId;
use remote::{collect_stacks, local_transports, this_node};
use rundir::{ErrorCode, PidFile, RankPid, RunDir, RunId, SCHEMA};

const RUN: &str = "2026-11-20T0340-demo-k7f2";

/// The leader of a process group, which waits for its children. Dropping it kills the group.
struct Leader(Child);

impl Leader {
    fn start(run: &str, script: &str) -> Self {
        let mut command = Command::new("bash");
        Self(command.args(["-c", script]).process_group(0).env("VIDTUI_RUN", run).spawn().unwrap())
    }

    fn pid(&self) -> i32 {
        self.0.id() as i32
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        // The kernel cannot have reused the id of the group, because this test has not waited for its leader yet.
        let _ = nix::sys::signal::killpg(nix::unistd::Pid::from_raw(self.pid()), nix::sys::signal::SIGKILL);
        let _ = self.0.wait();
    }
}

fn start_ticks(pid: i32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap().parse().unwrap()
}

fn pid_file(leader: i32, node: NodeId) -> PidFile {
    PidFile {
        schema: SCHEMA,
        attempt: 1,
        node,
        pid: leader,
        pgid: leader,
        boot_id: this_node().unwrap().boot_id,
        start_ticks: start_ticks(leader),
        started_s: 0.0,
        ranks: vec![RankPid { rank: 0, pid: leader, start_ticks: 0 }],
    }
}

/// Waits until a leader has a child, and returns the child's process id.
fn child_of(leader: i32) -> i32 {
    let mut child = None;
    until("the leader has a child", || {
        let children = fs::read_to_string(format!("/proc/{leader}/task/{leader}/children")).unwrap();
        child = children.split_whitespace().next().map(|child| child.parse().unwrap());
        child.is_some()
    });
    child.unwrap()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_stacks_of_a_hung_rank_are_written_and_the_rank_is_not_disturbed() {
    let temp = tempfile::tempdir().unwrap();
    let dir = RunDir::new(Utf8Path::from_path(temp.path()).unwrap().join(RUN));
    let leader = Leader::start(RUN, "RANK=3 sleep 1000 & wait");
    let rank = child_of(leader.pid());
    until("the rank sleeps", || {
        fs::read_to_string(format!("/proc/{rank}/cmdline")).unwrap_or_default() == "sleep\u{0}1000\u{0}"
            && fs::read_to_string(format!("/proc/{rank}/wchan")).unwrap_or_default().contains("nanosleep")
    });
    let began = start_ticks(rank);
    let run = RunId::parse(RUN).unwrap();
    let away = PidFile { node: NodeId::new("elsewhere").unwrap(), ..pid_file(leader.pid(), this_node().unwrap().node) };
    let files = [pid_file(leader.pid(), this_node().unwrap().node), away];
    let stacks = collect_stacks(&run, &dir, 1_795_146_012.0, &files, &mut local_transports().unwrap()).unwrap();

    let (path, count) = stacks[0].result.clone().unwrap();
    assert_eq!((path, count), (dir.stacks_file(1, 1_795_146_012.0, &this_node().unwrap().node), 2));
    let text = fs::read_to_string(dir.stacks_file(1, 1_795_146_012.0, &this_node().unwrap().node)).unwrap();
    assert!(text.contains(&format!("=== process {rank}, rank 3, state S: sleep 1000")), "{text}");
    assert!(text.contains(&format!("--- thread {rank} (sleep): state S, waits in ")), "{text}");
    assert!(text.contains("nanosleep"), "{text}");
    assert!(!text.contains("waits in ?"), "{text}");
    assert_eq!(start_ticks(rank), began, "the rank is not the same process");
    let failure = stacks[1].result.clone().unwrap_err();
    assert_eq!((stacks[1].node.as_str(), failure.code), ("elsewhere", ErrorCode::NodeUnreachable));
}

#[test]
fn processes_of_another_run_are_not_inspected() {
    let temp = tempfile::tempdir().unwrap();
    let dir = RunDir::new(Utf8Path::from_path(temp.path()).unwrap().join(RUN));
    let leader = Leader::start("another-run", "sleep 1000 & wait");
    child_of(leader.pid());
    let run = RunId::parse(RUN).unwrap();
    let file = pid_file(leader.pid(), this_node().unwrap().node);
    let stacks = collect_stacks(&run, &dir, 5.0, &[file], &mut local_transports().unwrap()).unwrap();
    let failure = stacks[0].result.clone().unwrap_err();
    assert_eq!(failure.code, ErrorCode::RunNotRunning);
    assert!(!dir.root.exists());
}
