//! The supervisor: starts the ranks of one node, watches them and the other nodes' supervisors, and records how they ended.
//!
//! Only the supervisor and its ranks write under `nodes/<node>/`. Ranks are children of the supervisor and share its
//! process group, so that a kill reaches all of them. When a rank fails, the supervisor ends the ranks that need it;
//! ranks that work independently continue. All decisions are in `decide`; the other modules produce events for it and
//! execute its actions.

// A line that cannot be written, for instance on a full disk, must not panic: see `rundir::log!`.
#![cfg_attr(not(test), warn(clippy::print_stderr))]

mod alerting;
mod decide;
mod environment;
mod event_loop;
mod events;
mod exporting;
mod follow;
mod handshake;
mod job;
mod message;
mod network;
mod orphans;
mod peer_files;
mod progress;
mod rank_end;
mod ranks;
mod samples;

#[cfg(test)]
mod network_tests;
#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::thread;
use std::time::Duration;

use alerts::Limits;
use camino::Utf8PathBuf;
use cluster::NodeId;
use rundir::{Attempt, Error, ErrorCode, ExitFile, ExitReason, Failure, RunDir, SCHEMA, log, now_s};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGXFSZ};
use signal_hook::iterator::Signals;

use self::alerting::Alerting;
use self::decide::{Dependence, Event, Peers, Rendezvous, State, Waits, killed};
use self::event_loop::{Outside, start_ranks};
use self::events::Events;
use self::exporting::Exporting;
pub use self::exporting::export_tensorboard;
use self::handshake::Secret;
use self::job::Job;
pub use self::job::{STORE_VARIABLE, threads};
use self::network::PeerConnections;
pub use self::ranks::start_ticks;
use self::samples::Samples;

const WAITS: Waits =
    Waits { grace: Duration::from_secs(10), lost_grace: Duration::from_secs(2), reason: Duration::from_secs(3) };
/// The interval at which the supervisor checks for the stop file.
const STOP_FILE_EVERY: Duration = Duration::from_secs(1);

/// Runs one node's ranks of an attempt to their end. `trainer` returns the path of the embedded trainer; it is not
/// called if the recipe has a command.
///
/// On TERM or INT, sends TERM to every rank, so that ranks save and stop. Passes on USR1, so that ranks save. Ignores HUP,
/// because a run outlives the terminal in which it was started. If the run's stop file exists, sends TERM to commands.
///
/// # Errors
/// If the ranks cannot be started, fail, or are killed. The node's exit file records the same failure.
pub fn supervise(
    run_dir: Utf8PathBuf,
    attempt: u32,
    node: NodeId,
    trainer: &dyn Fn() -> Result<Utf8PathBuf, Failure>,
) -> Result<(), Failure> {
    let run = RunDir::new(run_dir);
    let job = Job::read(&run, attempt, &node).inspect_err(|failure| {
        // Write an exit file, because other nodes may wait for this one. If the request is invalid or the attempt has
        // already begun here, write nothing.
        if is_expected(&run, attempt, &node) {
            record_failure(&run, attempt, &node, failure);
        }
    })?;
    let log_dir = run.log_dir(&node);
    fs::create_dir_all(&log_dir).map_err(|source| Error::io("create", &log_dir, source))?;
    // A process that already leads a group, such as a shell's job, cannot start a session. Its group serves as well.
    let _ = nix::unistd::setsid();
    let alerting = Alerting::start(&job, Limits::default());
    let exporting = Exporting::start(&job);
    let exit = run_attempt(&job, trainer).inspect_err(|failure| record_failure(&job.run, attempt, &node, failure));
    exporting.iter().for_each(Exporting::request_end);
    if let Some(alerting) = alerting {
        alerting.end();
    }
    if let Some(exporting) = exporting {
        exporting.wait();
    }
    let exit = exit?;
    match exit.reason {
        ExitReason::Finished | ExitReason::Stopped => Ok(()),
        ExitReason::Failed | ExitReason::Killed => Err(exit.failure.unwrap_or_else(|| killed(&node))),
    }
}

fn run_attempt(job: &Job, trainer: &dyn Fn() -> Result<Utf8PathBuf, Failure>) -> Result<ExitFile, Failure> {
    let (events, inputs) = events::events();
    catch_signals(events.clone())?;
    let spans_nodes = job.attempt.placement.by_node().len() > 1;
    let outside = spans_nodes.then(|| connect(job, &events)).transpose()?;
    if job.is_command() && job.has_first_rank() {
        watch_stop_file(&job.run, events);
    }
    let _samples = Samples::start(job);
    let start = || match job.is_command() {
        true => start_ranks(job, |place| job.own_command(place)),
        false => trainer().and_then(|trainer| start_ranks(job, |_| job.rank_command(trainer.as_std_path()))),
    };
    Ok(event_loop::run(job, start, &inputs, outside.as_ref(), state(job, WAITS)))
}

fn state(job: &Job, waits: Waits) -> State {
    let spans_nodes = job.attempt.placement.by_node().len() > 1;
    let peers = spans_nodes.then(|| Peers::new(rendezvous(job)));
    State::new(job.node.clone(), job.is_command(), dependence(job), job.places.len(), peers, waits)
}

/// Returns whether the ranks of an attempt need each other. The ranks of a command are assumed to.
fn dependence(job: &Job) -> Dependence {
    if job.recipe.task.ranks_depend_on_each_other() { Dependence::Mutual } else { Dependence::None }
}

/// Returns the nodes of an attempt, and the address at which their supervisors connect.
fn rendezvous(job: &Job) -> Rendezvous {
    let mut nodes = job.attempt.placement.by_node().into_iter().map(|(node, _)| node.clone());
    Rendezvous {
        run: job.run.clone(),
        attempt: job.attempt.number,
        this: job.node.clone(),
        first: nodes.next().unwrap_or_else(|| job.node.clone()),
        others: nodes.collect(),
        address: job.master.0.clone(),
        port: job.master.1.saturating_add(1),
        is_job: job.attempt.slurm.is_some(),
        dependence: dependence(job),
    }
}

/// Begins to connect to the supervisors of the other nodes, in threads that live as long as the process.
fn connect(job: &Job, events: &Events) -> Result<Outside, Failure> {
    let attempt = job.attempt.number;
    let token = job.run.read_peer_token(attempt).map_err(|error| {
        let path = job.run.peer_token(attempt);
        let why = format!("the token by which they recognize each other cannot be read: {error}");
        let fix = format!("all nodes must see {path} and run as its owner; a resume makes a new one");
        Failure::new(ErrorCode::StartFailed, "cannot connect to the supervisors of the other nodes", why, fix)
    })?;
    if job.run.is_peer_token_exposed(attempt) {
        log!("warning: {} is accessible to other users; run chmod 600", job.run.peer_token(attempt));
    }
    let secret = Secret { token, subject: format!("{} {attempt}", job.id) };
    let network = PeerConnections::start(rendezvous(job), secret, events.clone())?;
    Ok(Outside { network, looks: peer_files::start(job, events.clone()) })
}

/// Turns signals into events. The thread lives as long as the process.
fn catch_signals(events: Events) -> Result<(), Failure> {
    // A write beyond the limit of file sizes then returns an error.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGUSR1, SIGHUP, SIGCHLD, SIGXFSZ]).map_err(|error| {
        let why = format!("signals cannot be caught: {error}");
        Failure::new(ErrorCode::Internal, "cannot start the supervisor", why, "report this as a bug")
    })?;
    thread::spawn(move || {
        for signal in signals.forever() {
            match signal {
                SIGCHLD => events.child_exited(),
                SIGXFSZ => {}
                signal => events.send(Event::Signal(signal)),
            }
        }
    });
    Ok(())
}

/// Produces an event when the run's stop file exists. The file stops a run that cannot be signalled, for example while
/// Slurm's controller is down. A command of the user does not read the file.
///
/// Only the first node checks, like rank 0 of the embedded trainer, and informs the others. So all nodes stop at the same
/// time, even if a file server shows the file to some nodes late.
fn watch_stop_file(run: &RunDir, events: Events) {
    let file = run.stop_file();
    thread::spawn(move || {
        // Open the file, because an open revalidates the cache of NFS. The cached file may be that of the previous
        // attempt.
        while File::open(&file).is_err() {
            thread::sleep(STOP_FILE_EVERY);
        }
        events.send(Event::StopFile);
    });
}

/// Returns true if a node belongs to an attempt that has not begun there.
fn is_expected(run: &RunDir, attempt: u32, node: &NodeId) -> bool {
    let names = |attempt: Attempt| attempt.placement.ranks.iter().any(|place| place.node == *node);
    run.read_attempt(attempt).is_ok_and(names)
        && !run.pid_toml(node, attempt).exists()
        && !run.exit_toml(node, attempt).exists()
}

/// Writes the exit file of an attempt that ended before its ranks were started.
fn record_failure(run: &RunDir, attempt: u32, node: &NodeId, failure: &Failure) {
    let exit = ExitFile {
        schema: SCHEMA,
        attempt,
        node: node.clone(),
        ended_s: now_s(),
        reason: ExitReason::Failed,
        first_failure: None,
        failure: Some(failure.clone()),
        ranks: Vec::new(),
    };
    if let Err(error) = run.write_exit(&exit) {
        log!("{error}");
    }
}
