//! Reads the files of another node in the run's folder, which all nodes share.

use std::fs::File;
use std::sync::mpsc::{self, Sender};
use std::thread;

use cluster::NodeId;
use rundir::{ExitReason, RunDir};

use crate::decide::{Event, PeerExit, PeerFiles, killed};
use crate::events::Events;
use crate::job::Job;

/// Starts a thread that reads the files of other nodes, because a file server may be slow. Returns the channel on which
/// nodes are requested.
pub fn start(job: &Job, events: Events) -> Sender<NodeId> {
    let (requests, requested) = mpsc::channel();
    let steps_take_all = !job.is_command() && job.recipe.task.ranks_depend_on_each_other();
    let (run, attempt) = (job.run.clone(), job.attempt.number);
    thread::spawn(move || {
        for node in requested {
            let files = look(&run, attempt, &node, steps_take_all);
            events.send(Event::PeerFiles { node, files });
        }
    });
    requests
}

/// Reads the exit file, the process file and the logged steps. Steps of a command, and of ranks that do not need each
/// other, do not prove that other nodes are alive.
fn look(run: &RunDir, attempt: u32, node: &NodeId, steps_take_all: bool) -> PeerFiles {
    let exit = run.read_exit(node, attempt).ok().flatten().map(|exit| match exit.reason {
        ExitReason::Finished | ExitReason::Stopped => PeerExit::Done,
        ExitReason::Killed => PeerExit::Stopped,
        ExitReason::Failed => PeerExit::Failed(exit.failure.unwrap_or_else(|| killed(node))),
    });
    // A file server returns the current length of a file only when it is opened.
    let bytes = || File::open(run.metrics()).and_then(|file| file.metadata()).map_or(0, |meta| meta.len());
    PeerFiles {
        exit,
        has_started: run.pid_toml(node, attempt).exists(),
        has_stop_file: run.stop_file().exists(),
        steps_bytes: if steps_take_all { bytes() } else { 0 },
    }
}
