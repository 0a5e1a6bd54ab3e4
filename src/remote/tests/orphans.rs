//! Tests that a kill by command line signals only matching processes, and only if their ids have not been reused.

#![expect(clippy::unwrap_used, reason = "an unwrap that panics shows where the test failed")]

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use plan::{KillScope, NodeOrphans, NodeProcesses, OrphanKill};
use remote::{
    GpuMemory, NodeReport, Patience, SentSignal, Signal, execute_kill, list_processes, local_transports, own_ancestry,
    this_node,
};

/// Long enough for a busy machine. Only a failing test waits that long.
const LONG: Duration = Duration::from_secs(60);
const PATIENCE: Patience = Patience { stop: LONG, term: LONG, kill: LONG };

/// A child process, which is killed on drop.
struct Orphan(Child);

impl Orphan {
    fn start(program: &str, words: &[&str]) -> Self {
        Self(Command::new(program).args(words).spawn().unwrap())
    }

    fn pid(&self) -> i32 {
        self.0.id() as i32
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        // The process has not been reaped, so its id is not reused. An error means that it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns an argument of `sleep` that no process of another run of these tests has.
fn seconds(number: u32) -> String {
    format!("31415.{number}{}", std::process::id())
}

fn listed() -> NodeProcesses {
    let mut listed = list_processes(&[this_node().unwrap().node], &mut local_transports().unwrap());
    listed.remove(0).1.unwrap()
}

/// Lists processes until one has this command line.
fn select(command: &str) -> NodeOrphans {
    let deadline = Instant::now() + LONG;
    loop {
        let orphans =
            plan::select_orphans(&listed(), KillScope::Own, &own_ancestry().unwrap(), &|line| line == command);
        if !orphans.processes.is_empty() {
            return orphans;
        }
        assert!(Instant::now() < deadline, "{command} is not listed");
    }
}

fn end(orphans: NodeOrphans) -> NodeReport {
    end_with(orphans, &PATIENCE)
}

fn end_with(orphans: NodeOrphans, patience: &Patience) -> NodeReport {
    let plan = OrphanKill { scope: KillScope::Own, nodes: vec![orphans] };
    execute_kill(&plan.into(), &mut local_transports().unwrap(), patience, &mut |_| {}).nodes.remove(0)
}

#[test]
fn matching_processes_are_killed_and_verified_and_others_are_left_alone() {
    let mut orphan = Orphan::start("sleep", &[&seconds(5)]);
    let mut other = Orphan::start("sleep", &[&seconds(6)]);
    let orphans = select(&format!("sleep {}", seconds(5)));
    assert_eq!(orphans.processes.iter().map(|p| p.pid).collect::<Vec<_>>(), [orphan.pid()]);
    let report = end(orphans);
    assert!(report.all_gone(), "{report:?}");
    assert_eq!(report.signals, [SentSignal { signal: Signal::Term, pids: vec![orphan.pid()] }]);
    assert_ne!(report.gpu_memory, GpuMemory::NotChecked);
    assert_eq!(orphan.0.wait().unwrap().signal(), Some(15));
    assert!(other.0.try_wait().unwrap().is_none());
}

#[test]
fn this_process_and_its_ancestors_are_never_selected() {
    let own = own_ancestry().unwrap();
    assert_eq!(own.boot_id, listed().boot_id);
    let pids: Vec<i32> = own.processes.iter().map(|(pid, _)| *pid).collect();
    let parent = std::os::unix::process::parent_id() as i32;
    assert_eq!(pids[..2], [std::process::id() as i32, parent]);
    let selected = plan::select_orphans(&listed(), KillScope::AllUsers, &own, &|_| true);
    assert!(selected.processes.iter().all(|process| !pids.contains(&process.pid)));
}

#[test]
fn a_process_that_ignores_term_is_killed() {
    let temp = tempfile::tempdir().unwrap();
    let ready = temp.path().join("ready");
    let script = format!("trap '' TERM; touch {}; while :; do sleep 1; done", ready.display());
    let mut orphan = Orphan::start("bash", &["-c", &script]);
    let deadline = Instant::now() + LONG;
    while !ready.exists() {
        assert!(Instant::now() < deadline, "it did not start");
        thread::sleep(Duration::from_millis(5));
    }
    let patience = Patience { term: Duration::from_millis(300), ..PATIENCE };
    let report = end_with(select(&format!("bash -c {script}")), &patience);
    assert!(report.all_gone(), "{report:?}");
    assert_eq!(report.signals.len(), 2, "{:?}", report.signals);
    assert_eq!(orphan.0.wait().unwrap().signal(), Some(9));
}

#[test]
fn names_and_environments_of_processes_cannot_imitate_those_of_others() {
    let temp = tempfile::tempdir().unwrap();
    let odd = temp.path().join(") S 1 1 1\nx");
    std::fs::copy("/bin/sleep", &odd).unwrap();
    let victim = Orphan::start("sleep", &[&seconds(1)]);
    let _named = Orphan(Command::new(&odd).arg(seconds(2)).spawn().unwrap());
    let rank = format!("1\n{}/environ:RANK=0\nenv {0}/environ:RANK=0", victim.pid());
    let liar = Orphan(Command::new("sleep").arg(seconds(3)).env("RANK", rank).spawn().unwrap());
    assert_eq!(select(&format!("sleep {}", seconds(3))).processes[0].pid, liar.pid());
    let found = select(&format!("sleep {}", seconds(1))).processes.remove(0);
    assert_eq!((found.pid, found.rank), (victim.pid(), None));
    let deadline = Instant::now() + LONG;
    while !listed().processes.iter().any(|process| process.command.ends_with(&format!("x {}", seconds(2)))) {
        assert!(Instant::now() < deadline, "the process with the odd name is not listed");
    }
}

#[test]
fn a_process_whose_id_was_reused_is_not_signalled() {
    let mut orphan = Orphan::start("sleep", &[&seconds(8)]);
    let mut orphans = select(&format!("sleep {}", seconds(8)));
    orphans.processes[0].start_ticks -= 1;
    assert!(end(orphans.clone()).left.is_empty(), "the selected process is gone");
    orphans.processes[0].start_ticks += 1;
    orphans.boot_id = "an-earlier-boot".into();
    assert!(end(orphans).left.is_empty());
    assert!(orphan.0.try_wait().unwrap().is_none(), "this process was signalled");
}
