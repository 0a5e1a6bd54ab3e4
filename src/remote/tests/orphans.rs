//! Processes that are ended by what they are: only those, and only as long as they are the same.

#![expect(clippy::unwrap_used, reason = "a test that unwraps says where it broke")]

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use plan::{KillScope, NodeOrphans, NodeProcesses};
use remote::{
    GpuMemory, NodeReport, Patience, kill_orphans, list_processes, local_transports, own_ancestry, this_node,
};

/// Long enough for a busy machine; only a failing test waits for it.
const LONG: Duration = Duration::from_secs(60);
const PATIENCE: Patience = Patience { stop: LONG, term: LONG, kill: LONG };

/// A process, ended when the test is over.
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
        // Not collected yet, so that its number is still its own; an error says that it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn listed() -> NodeProcesses {
    let mut listed = list_processes(&[this_node().unwrap().node], &mut local_transports().unwrap());
    listed.remove(0).1.unwrap()
}

/// Lists until the process is there under the command line that it was given.
fn picked(command: &str) -> NodeOrphans {
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
    kill_orphans(&[orphans], KillScope::Own, &mut local_transports().unwrap(), patience, &mut |_| {}).remove(0)
}

#[test]
fn what_fits_is_ended_and_verified_and_what_does_not_goes_on() {
    let mut orphan = Orphan::start("sleep", &["31415.5"]);
    let mut other = Orphan::start("sleep", &["31415.6"]);
    let orphans = picked("sleep 31415.5");
    assert_eq!(orphans.processes.iter().map(|p| p.pid).collect::<Vec<_>>(), [orphan.pid()]);
    let report = end(orphans);
    assert!(report.all_gone(), "{report:?}");
    assert_eq!(report.signals, [format!("TERM sent to 1 process: {}", orphan.pid())]);
    assert_ne!(report.gpu_memory, GpuMemory::Unasked);
    assert_eq!(orphan.0.wait().unwrap().signal(), Some(15));
    assert!(other.0.try_wait().unwrap().is_none());
}

#[test]
fn this_process_and_those_that_started_it_are_spared() {
    let own = own_ancestry().unwrap();
    assert_eq!(own.boot_id, listed().boot_id);
    let pids: Vec<i32> = own.processes.iter().map(|(pid, _)| *pid).collect();
    let parent = std::os::unix::process::parent_id() as i32;
    assert_eq!(pids[..2], [std::process::id() as i32, parent]);
    let picked = plan::select_orphans(&listed(), KillScope::AllUsers, &own, &|_| true);
    assert!(picked.processes.iter().all(|process| !pids.contains(&process.pid)));
}

#[test]
fn one_that_ignores_term_is_killed() {
    let temp = tempfile::tempdir().unwrap();
    let ready = temp.path().join("ready");
    let script = format!("trap '' TERM; touch {}; while :; do sleep 1; done", ready.display());
    let mut orphan = Orphan::start("bash", &["-c", &script]);
    let deadline = Instant::now() + LONG;
    while !ready.exists() {
        assert!(Instant::now() < deadline, "it does not come up");
        thread::sleep(Duration::from_millis(5));
    }
    let patience = Patience { term: Duration::from_millis(300), ..PATIENCE };
    let report = end_with(picked(&format!("bash -c {script}")), &patience);
    assert!(report.all_gone(), "{report:?}");
    assert_eq!(report.signals.len(), 2, "{:?}", report.signals);
    assert_eq!(orphan.0.wait().unwrap().signal(), Some(9));
}

#[test]
fn a_number_that_was_given_to_another_process_is_not_signalled() {
    let mut orphan = Orphan::start("sleep", &["31415.8"]);
    let mut orphans = picked("sleep 31415.8");
    orphans.processes[0].start_ticks -= 1;
    assert!(end(orphans.clone()).left.is_empty(), "the one that was meant is gone");
    orphans.processes[0].start_ticks += 1;
    orphans.boot_id = "an-earlier-boot".into();
    assert!(end(orphans).left.is_empty());
    assert!(orphan.0.try_wait().unwrap().is_none(), "and this one goes on");
}
