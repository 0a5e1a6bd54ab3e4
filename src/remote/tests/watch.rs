//! Watching nodes, on a rig of real SSH servers, and watching this machine.

#![expect(clippy::unwrap_used, reason = "a test that unwraps says where it broke")]

use std::ops::ControlFlow;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use cluster::NodeId;
use cluster::fault::faults;
use cluster::nvidia_smi::SmiTrouble;
use cluster::probe::Frame;
use remote::{Command, Fleet, NodeUpdate, NodeWatch, Shell, SshOptions};
use rig::{Options, Rig};
use rundir::Login;

/// Only a failing test waits so long.
const PATIENCE: Duration = Duration::from_secs(120);
const EVERY: Duration = Duration::from_millis(200);

/// Runs a test in the network of a rig's head; skips it aloud where there is no rig.
fn with_rig(nodes: usize, test: impl FnOnce(&Rig, &Fleet) + Send) {
    let Some(rig) = Options::new(nodes).gpus(2).up_or_skip() else { return };
    thread::scope(|scope| {
        let inside = scope.spawn(|| {
            rig.join_network().unwrap();
            let options = SshOptions { config: Some(rig.ssh_config()), ..SshOptions::default() };
            test(&rig, &Fleet::new(options).unwrap());
        });
        if let Err(panic) = inside.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

struct Watched {
    seen: Receiver<NodeUpdate>,
    _watching: NodeWatch,
}

fn watch(fleet: &Fleet, node: &NodeId) -> Watched {
    let (tell, seen) = mpsc::channel();
    let see = move |sight| if tell.send(sight).is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
    let login = Login { node: node.clone(), user: None, port: None };
    Watched { seen, _watching: fleet.watch(&login, EVERY, Box::new(see)) }
}

impl Watched {
    /// Waits for a frame that is as it should be; until then, `passing` must hold for everything that is seen.
    fn until(&self, wanted: impl Fn(&Frame) -> bool, passing: impl Fn(&NodeUpdate) -> bool) -> Frame {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let sight = self.seen.recv_timeout(deadline - Instant::now()).unwrap();
            assert!(passing(&sight), "{sight:?}");
            match sight {
                NodeUpdate::Frame(frame) if wanted(&frame) => return *frame,
                _ => {}
            }
        }
    }

    fn until_down(&self) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let NodeUpdate::Unreachable(error) = self.seen.recv_timeout(deadline - Instant::now()).unwrap() {
                return error.to_string();
            }
        }
    }
}

fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

fn is_whole(sight: &NodeUpdate) -> bool {
    match sight {
        NodeUpdate::Frame(frame) => frame.gpus.len() == 2 && frame.troubles.is_empty(),
        NodeUpdate::Unreachable(_) => true,
    }
}

#[test]
fn a_connection_that_is_reset_again_and_again_gives_whole_frames_only_and_the_others_do_not_notice() {
    with_rig(2, |rig, fleet| {
        let (cut, other) = (watch(fleet, &node("node01")), watch(fleet, &node("node02")));
        for _ in 0..3 {
            cut.until(|_| true, is_whole);
            rig.verb("reset node01").unwrap();
            let why = cut.until_down();
            assert!(why.contains("node01"), "{why}");
            rig.verb("heal node01").unwrap();
        }
        cut.until(|_| true, is_whole);
        // A busy machine may keep it silent for longer than is borne; nothing else may befall it.
        let undisturbed = |sight: NodeUpdate| match &sight {
            NodeUpdate::Frame(_) => is_whole(&sight),
            NodeUpdate::Unreachable(error) => error.to_string().contains("said nothing"),
        };
        assert!(other.seen.try_iter().all(undisturbed));
    });
}

#[test]
fn a_node_that_was_off_is_seen_again_with_another_boot_id() {
    with_rig(1, |rig, fleet| {
        let watched = watch(fleet, &node("node01"));
        let before = watched.until(|_| true, |_| true);
        rig.verb("panic node01").unwrap();
        watched.until_down();
        rig.verb("poweron node01").unwrap();
        let after = watched.until(|_| true, |_| true);
        assert_ne!(before.host.boot_id, after.host.boot_id);
    });
}

#[test]
fn whatever_nvidia_smi_does_the_node_is_watched_on() {
    with_rig(2, |rig, fleet| {
        let (odd, other) = (watch(fleet, &node("node01")), watch(fleet, &node("node02")));
        let no_down = |sight: &NodeUpdate| matches!(sight, NodeUpdate::Frame(_));
        odd.until(|frame| frame.gpus.len() == 2, no_down);
        rig.verb("smi node01 nodriver").unwrap();
        let frame = odd.until(|frame| !frame.troubles.is_empty(), no_down);
        assert_eq!(faults(&frame)[0].what, "the NVIDIA driver is not loaded");
        rig.verb("smi node01 missing").unwrap();
        let frame = odd.until(|frame| frame.troubles == [SmiTrouble::NotFound], no_down);
        assert!(frame.host.load.is_some() && faults(&frame).is_empty(), "it has no GPUs, which is no fault");
        // Another question is asked, over the same connection.
        rig.verb("smi node01 old").unwrap();
        odd.until(|frame| frame.gpus.len() == 2 && frame.gpus[0].throttle_reasons.value().is_some(), no_down);
        rig.verb("smi node01 slow 1").unwrap();
        let slow = odd.until(|_| true, no_down);
        odd.until(|frame| frame.t > slow.t + 1.0 && frame.gpus.len() == 2, no_down);
        rig.verb("smi node01 hang").unwrap();
        let count = other.seen.try_iter().inspect(|sight| assert!(is_whole(sight))).count();
        assert!(count > 0);
        other.until(|_| true, no_down);
    });
}

#[test]
fn an_nvidia_smi_that_cannot_be_ended_is_asked_once_and_the_node_is_watched_on_without_it() {
    with_rig(1, |rig, fleet| {
        let watched = watch(fleet, &node("node01"));
        let no_down = |sight: &NodeUpdate| matches!(sight, NodeUpdate::Frame(_));
        watched.until(|frame| frame.gpus.len() == 2, no_down);
        rig.verb("smi node01 stuck").unwrap();
        let first = watched.until(|frame| frame.troubles == [SmiTrouble::TimedOut], no_down);
        let later = watched.until(|frame| frame.number >= first.number + 5, no_down);
        assert!(later.host.mem_available_mib.is_some() && later.troubles == [SmiTrouble::TimedOut], "{later:?}");
        let login = Login { node: node("node01"), user: None, port: None };
        let output = fleet.ssh(&login).run(&Command::new("count them", "pgrep -fc '^sleep 7777'", PATIENCE)).unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "1");
        rig.verb("smi node01 ok").unwrap();
        watched.until(|frame| frame.gpus.len() == 2 && frame.troubles.is_empty(), no_down);
    });
}

#[test]
fn this_machine_is_watched_without_ssh_and_nothing_is_left_when_nobody_looks() {
    let fleet = Fleet::new(SshOptions::default()).unwrap();
    let watched = watch(&fleet, &fleet.this_node().node);
    let first = watched.until(|frame| frame.host.cpu.is_some(), |_| true);
    watched.until(|frame| frame.number > first.number, |_| true);
    let mine = || {
        let me = std::process::id().to_string();
        let list = std::process::Command::new("ps").args(["-o", "pid=,args=", "--ppid", &me]).output().unwrap();
        String::from_utf8_lossy(&list.stdout).contains("--query-gpu=")
    };
    assert!(mine());
    drop(watched);
    let deadline = Instant::now() + PATIENCE;
    while mine() {
        assert!(Instant::now() < deadline, "its script lives on");
        thread::sleep(Duration::from_millis(20));
    }
}
