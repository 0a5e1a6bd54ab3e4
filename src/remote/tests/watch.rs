//! Tests of watches: of the nodes of a rig, over real SSH servers, and of this machine.

#![expect(clippy::unwrap_used, reason = "a failed unwrap shows its line")]

use std::ops::ControlFlow;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use cluster::NodeId;
use cluster::fault::faults;
use cluster::nvidia_smi::SmiError;
use cluster::probe::Frame;
use remote::{Command, Connections, NodeUpdate, NodeWatch, RemoteError, Shell, SshOptions};
use rig::{Options, Rig};
use rundir::Login;

/// Long enough for a busy machine; only a failing test waits this long.
const TIMEOUT: Duration = Duration::from_secs(120);
const EVERY: Duration = Duration::from_millis(200);

/// Runs a test in the network of a rig's head. Prints a message and skips the test on a machine that cannot run a rig.
fn with_rig(nodes: usize, test: impl FnOnce(&Rig, &Connections) + Send) {
    let Some(rig) = Options::new(nodes).gpus(2).up_or_skip() else { return };
    thread::scope(|scope| {
        let inside = scope.spawn(|| {
            rig.join_network().unwrap();
            let options = SshOptions { config: Some(rig.ssh_config()), ..SshOptions::default() };
            test(&rig, &Connections::new(options).unwrap());
        });
        if let Err(panic) = inside.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

struct Watched {
    updates: Receiver<NodeUpdate>,
    _watch: NodeWatch,
}

fn watch(connections: &Connections, node: &NodeId) -> Watched {
    let (sender, updates) = mpsc::channel();
    let on_update =
        move |update| if sender.send(update).is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
    let login = Login { node: node.clone(), user: None, port: None };
    Watched { updates, _watch: connections.watch(&login, EVERY, Box::new(on_update)) }
}

impl Watched {
    /// Waits for a frame for which `wanted` holds, and returns it. `allowed` must hold for every update until then.
    fn until(&self, wanted: impl Fn(&Frame) -> bool, allowed: impl Fn(&NodeUpdate) -> bool) -> Frame {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let update = self.updates.recv_timeout(deadline - Instant::now()).unwrap();
            assert!(allowed(&update), "{update:?}");
            match update {
                NodeUpdate::Frame(frame) if wanted(&frame) => return *frame,
                _ => {}
            }
        }
    }

    fn until_unreachable(&self) -> RemoteError {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let NodeUpdate::Unreachable(error) = self.updates.recv_timeout(deadline - Instant::now()).unwrap() {
                return error;
            }
        }
    }
}

fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

fn is_complete(update: &NodeUpdate) -> bool {
    match update {
        NodeUpdate::Frame(frame) => frame.gpus.len() == 2 && frame.smi_errors.is_empty(),
        NodeUpdate::Unreachable(_) => true,
    }
}

/// Returns whether an update is no error. On a busy machine the node may time out. No other error is allowed.
fn is_undisturbed(update: &NodeUpdate) -> bool {
    matches!(update, NodeUpdate::Frame(_) | NodeUpdate::Unreachable(RemoteError::Timeout { .. }))
}

#[test]
fn a_connection_that_is_reset_repeatedly_sends_complete_frames_only_and_other_nodes_are_not_affected() {
    with_rig(2, |rig, connections| {
        let (cut, other) = (watch(connections, &node("node01")), watch(connections, &node("node02")));
        for _ in 0..3 {
            cut.until(|_| true, is_complete);
            rig.verb("reset node01").unwrap();
            let error = cut.until_unreachable();
            assert!(error.is_unreachable() && error.to_string().contains("node01"), "{error}");
            rig.verb("heal node01").unwrap();
        }
        cut.until(|_| true, is_complete);
        assert!(other.updates.try_iter().all(|update| is_undisturbed(&update) && is_complete(&update)));
    });
}

#[test]
fn a_node_that_was_off_is_watched_again_with_a_new_boot_id() {
    with_rig(1, |rig, connections| {
        let watched = watch(connections, &node("node01"));
        let before = watched.until(|_| true, |_| true);
        rig.verb("panic node01").unwrap();
        watched.until_unreachable();
        rig.verb("poweron node01").unwrap();
        let after = watched.until(|_| true, |_| true);
        assert_ne!(before.host.boot_id, after.host.boot_id);
    });
}

#[test]
fn errors_of_nvidia_smi_do_not_end_a_watch() {
    with_rig(2, |rig, connections| {
        let (odd, other) = (watch(connections, &node("node01")), watch(connections, &node("node02")));
        odd.until(|frame| frame.gpus.len() == 2, is_undisturbed);
        rig.verb("smi node01 nodriver").unwrap();
        let frame = odd.until(|frame| !frame.smi_errors.is_empty(), is_undisturbed);
        assert_eq!((&frame.smi_errors[..], faults(&frame).len()), (&[SmiError::NoDriver][..], 1));
        rig.verb("smi node01 missing").unwrap();
        let frame = odd.until(|frame| frame.smi_errors == [SmiError::NotFound], is_undisturbed);
        assert!(frame.host.load.is_some() && faults(&frame).is_empty(), "a node without GPUs has no fault");
        // An old driver does not know all fields. The watch sends a query without them over the same connection.
        rig.verb("smi node01 old").unwrap();
        odd.until(|frame| frame.gpus.len() == 2 && frame.gpus[0].throttle_reasons.value().is_some(), is_undisturbed);
        rig.verb("smi node01 slow 1").unwrap();
        let slow = odd.until(|_| true, is_undisturbed);
        odd.until(|frame| frame.t > slow.t + 1.0 && frame.gpus.len() == 2, is_undisturbed);
        rig.verb("smi node01 hang").unwrap();
        assert!(other.updates.try_iter().all(|update| is_undisturbed(&update) && is_complete(&update)));
        other.until(|_| true, |update| is_undisturbed(update) && is_complete(update));
    });
}

#[test]
fn a_watch_continues_without_an_nvidia_smi_that_cannot_be_killed_and_starts_no_other() {
    with_rig(1, |rig, connections| {
        let watched = watch(connections, &node("node01"));
        watched.until(|frame| frame.gpus.len() == 2, is_undisturbed);
        rig.verb("smi node01 stuck").unwrap();
        let first = watched.until(|frame| frame.smi_errors == [SmiError::TimedOut], is_undisturbed);
        let later = watched.until(|frame| frame.number >= first.number + 5, is_undisturbed);
        assert!(later.host.mem_available_mib.is_some() && later.smi_errors == [SmiError::TimedOut], "{later:?}");
        let login = Login { node: node("node01"), user: None, port: None };
        let output =
            connections.ssh(&login).run(&Command::new("count them", "pgrep -fc '^sleep 7777'", TIMEOUT)).unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "1");
        rig.verb("smi node01 ok").unwrap();
        watched.until(|frame| frame.gpus.len() == 2 && frame.smi_errors.is_empty(), is_undisturbed);
    });
}

#[test]
fn this_machine_is_watched_without_ssh_and_no_process_is_left_when_the_watch_ends() {
    let connections = Connections::new(SshOptions::default()).unwrap();
    let watched = watch(&connections, &connections.this_node().node);
    let first = watched.until(|frame| frame.host.cpu.is_some(), |_| true);
    watched.until(|frame| frame.number > first.number, |_| true);
    let mine = || {
        let me = std::process::id().to_string();
        let list = std::process::Command::new("ps").args(["-o", "pid=,args=", "--ppid", &me]).output().unwrap();
        String::from_utf8_lossy(&list.stdout).contains("--query-gpu=")
    };
    assert!(mine());
    drop(watched);
    let deadline = Instant::now() + TIMEOUT;
    while mine() {
        assert!(Instant::now() < deadline, "the script still runs");
        thread::sleep(Duration::from_millis(20));
    }
}
