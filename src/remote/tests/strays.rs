//! Processes that are ended by what they are: only those, and only as long as they are the same.

#![expect(clippy::unwrap_used, reason = "a test that unwraps says where it broke")]

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};
use std::time::Duration;

use plan::{NodeProcesses, NodeStrays, Reach};
use remote::{GpuMemory, NodeReport, Patience, end_strays, here, list_processes, local_transports};

/// Long enough for a busy machine; only a failing test waits for it.
const PATIENCE: Patience =
    Patience { stop: Duration::ZERO, term: Duration::from_millis(500), kill: Duration::from_secs(60) };

/// A process, ended when the test is over.
struct Stray(Child);

impl Stray {
    fn start(program: &str, words: &[&str]) -> Self {
        Self(Command::new(program).args(words).spawn().unwrap())
    }

    fn pid(&self) -> i32 {
        self.0.id() as i32
    }
}

impl Drop for Stray {
    fn drop(&mut self) {
        // Not collected yet, so that its number is still its own; an error says that it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn listed() -> NodeProcesses {
    let mut listed = list_processes(&[here().unwrap().node], &mut local_transports().unwrap());
    listed.remove(0).1.unwrap()
}

/// Lists until the process is there under the command line that it was given.
fn picked(command: &str) -> NodeStrays {
    loop {
        let strays = plan::strays(&listed(), Reach::Own, &|line| line == command);
        if !strays.processes.is_empty() {
            return strays;
        }
    }
}

fn end(strays: NodeStrays) -> NodeReport {
    end_strays(&[strays], Reach::Own, &mut local_transports().unwrap(), &PATIENCE, &mut |_| {}).remove(0)
}

#[test]
fn what_fits_is_ended_and_verified_and_what_does_not_goes_on() {
    let mut stray = Stray::start("sleep", &["31415.5"]);
    let mut other = Stray::start("sleep", &["31415.6"]);
    let strays = picked("sleep 31415.5");
    assert_eq!(strays.processes.iter().map(|p| p.pid).collect::<Vec<_>>(), [stray.pid()]);
    let report = end(strays);
    assert!(report.all_gone(), "{report:?}");
    assert_eq!(report.signals, [format!("TERM sent to 1 process: {}", stray.pid())]);
    assert_ne!(report.gpu_memory, GpuMemory::Unasked);
    assert_eq!(stray.0.wait().unwrap().signal(), Some(15));
    assert!(other.0.try_wait().unwrap().is_none());
}

#[test]
fn one_that_ignores_term_is_killed() {
    let script = "trap '' TERM; : 31415.7; while :; do sleep 1; done";
    let mut stray = Stray::start("bash", &["-c", script]);
    let report = end(picked(&format!("bash -c {script}")));
    assert!(report.all_gone(), "{report:?}");
    assert_eq!(report.signals.len(), 2, "{:?}", report.signals);
    assert_eq!(stray.0.wait().unwrap().signal(), Some(9));
}

#[test]
fn a_number_that_was_given_to_another_process_is_not_signalled() {
    let mut stray = Stray::start("sleep", &["31415.8"]);
    let mut strays = picked("sleep 31415.8");
    strays.processes[0].start_ticks -= 1;
    assert!(end(strays.clone()).left.is_empty(), "the one that was meant is gone");
    strays.processes[0].start_ticks += 1;
    strays.boot_id = "an-earlier-boot".into();
    assert!(end(strays).left.is_empty());
    assert!(stray.0.try_wait().unwrap().is_none(), "and this one goes on");
}
