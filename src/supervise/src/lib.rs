//! The supervisor: starts the ranks of one node, watches them, and writes down how they ended.
//!
//! It is the only writer under `nodes/<node>/`. Ranks are its children and share its process group, so that a kill
//! reaches all of them; when one fails, the others cannot go on, and are ended too.

/// Says something in the supervisor's log. `eprintln!` would panic where that cannot be written, as on a full disk.
macro_rules! note {
    ($($words:tt)*) => {{
        let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("{}\n", format_args!($($words)*)));
    }};
}

mod follow;
mod job;
mod peers;
mod ranks;
mod samples;
mod strays;
mod verdict;

#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use cluster::NodeId;
use rundir::{Attempt, Error, Event, EventKind, ExitFile, ExitReason, Failure, LineAppender, RunDir, SCHEMA, now_s};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGKILL, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use self::follow::Follower;
use self::job::Job;
pub use self::job::{STORE_VARIABLE, threads};
use self::peers::{Loss, Peers, STOP};
use self::ranks::Ranks;
use self::samples::Samples;

/// What a supervisor waits for, and how long.
struct Waits {
    /// How long ranks have to end by themselves after another one failed: a rank that waits for the dead one notices at
    /// once, and nothing it could still save would be consistent.
    grace: Duration,
    /// How long to wait for another node to say why it failed, or for a stop that another node's ranks ended by.
    hearsay: Duration,
}

const WAITS: Waits = Waits { grace: Duration::from_secs(10), hearsay: Duration::from_secs(3) };
/// The grace where another node is gone: nothing that needs it can be saved, so there is little to wait for.
const LOST_GRACE: Duration = Duration::from_secs(2);
/// How long a supervisor whose ranks have ended tries to write down how: a disk that is full may be cleared.
const WRITING: Duration = Duration::from_secs(600);
/// How often the stop file is looked for.
const LOOK: Duration = Duration::from_secs(1);

/// Runs one node's ranks of an attempt to their end; `trainer` finds the program that trains as one rank, where
/// the recipe does not name one of its own.
///
/// TERM and INT become TERM for every rank, which saves and stops; USR1 is passed on, which saves; HUP is ignored,
/// because a run outlives the terminal it was started from. The run's stop file becomes TERM for commands.
///
/// # Errors
/// When the ranks cannot be started, fail, or are killed; all of that is in the node's exit file as well.
pub fn supervise(
    run_dir: Utf8PathBuf,
    attempt: u32,
    node: NodeId,
    trainer: &dyn Fn() -> Result<Utf8PathBuf, Failure>,
) -> Result<(), Failure> {
    let run = RunDir::new(run_dir);
    let job = Job::read(&run, attempt, &node).inspect_err(|failure| {
        // Others may wait for this node. If the request itself is wrong, or somebody was here before, nothing is written.
        if is_expected(&run, attempt, &node) {
            record_failure(&run, attempt, &node, failure);
        }
    })?;
    let log_dir = run.log_dir(&node);
    fs::create_dir_all(&log_dir).map_err(|source| Error::Io { action: "create", path: log_dir, source })?;
    // A process that already leads a group, as a shell's job does, cannot start a session; its group serves as well.
    let _ = nix::unistd::setsid();
    let ended = wakes().and_then(|(wake, wakes)| {
        let spans = job.attempt.placement.by_node().len() > 1;
        let peers = spans.then(|| Peers::watch(&job, wake.clone())).transpose()?;
        if job.is_command() && job.has_first_rank() {
            heed_stop_file(&job.run, wake, peers.clone());
        }
        let _samples = Samples::start(&job);
        let ended = if job.is_command() {
            supervise_with(&job, |place| job.own_command(place), &wakes, peers.as_ref(), &WAITS)
        } else {
            trainer().and_then(|trainer| {
                supervise_with(&job, |_| job.rank_command(trainer.as_std_path()), &wakes, peers.as_ref(), &WAITS)
            })
        };
        if let (Err(failure), Some(peers)) = (&ended, &peers) {
            peers.tell(failure);
        }
        ended
    });
    let exit = match ended {
        Ok(exit) => exit,
        Err(failure) => {
            record_failure(&job.run, attempt, &node, &failure);
            return Err(failure);
        }
    };
    match exit.reason {
        ExitReason::Finished | ExitReason::Stopped => Ok(()),
        ExitReason::Failed | ExitReason::Killed => Err(exit.failure.unwrap_or_else(|| killed(&node))),
    }
}

/// Runs the ranks as `command` starts them; `wakes` carries the signals that this process gets, SIGCHLD among them.
fn supervise_with(
    job: &Job,
    command: impl Fn(&cluster::RankPlace) -> std::process::Command,
    wakes: &Receiver<i32>,
    peers: Option<&Peers>,
    waits: &Waits,
) -> Result<ExitFile, Failure> {
    let mut events = NodeEvents::open(job);
    let ooms_before = verdict::oom_kills();
    let mut ranks = Ranks::start(job, command)?;
    if let Err(error) = ranks.pid_file(job).and_then(|pids| Ok(job.run.write_pid(&pids)?)) {
        // Nobody could find these processes to stop them.
        ranks.signal(SIGKILL);
        ranks.wait_all();
        return Err(error);
    }
    let mut follower = (job.is_command() && job.has_first_rank()).then(|| Follower::start(job));
    let mut stop_asked = false;
    let mut by_file = false;
    let mut first = None;
    let mut lost: Option<Failure> = None;
    let mut kill_at: Option<Instant> = None;
    // Until when the stop that another node's ranks ended by may reach this one. What fails here meanwhile fails of that.
    let mut stop_due: Option<Instant> = None;
    while ranks.any_alive() {
        for signal in arrived(wakes, kill_at.into_iter().chain(stop_due).min()) {
            match signal {
                STOP if stop_asked => {}
                STOP => {
                    (stop_asked, by_file) = (true, true);
                    follower.iter().for_each(|follower| follower.stopping("a file in the run directory asks for it"));
                    ranks.signal(SIGTERM);
                }
                // Who makes the file may send TERM as well: that is one wish, and some programs take two for haste.
                SIGTERM if by_file => by_file = false,
                SIGTERM | SIGINT => {
                    stop_asked = true;
                    follower.iter().for_each(|follower| follower.stopping("a signal to the supervisor"));
                    events.append(EventKind::SignalReceived { signal });
                    ranks.signal(SIGTERM);
                }
                SIGUSR1 => {
                    events.append(EventKind::SignalReceived { signal });
                    ranks.signal(SIGUSR1);
                }
                _ => {}
            }
        }
        ranks.collect();
        if first.is_none() && lost.is_none() {
            lost = match peers.and_then(Peers::loss) {
                Some(Loss::Stopped(_)) if job.is_command() && stop_asked => None,
                // A stop of all nodes reaches one before the other, and a command that cannot save ends by it at once. Ours save,
                // all together: of them, one that did not is lost.
                Some(Loss::Stopped(_)) if job.is_command() && stop_due.is_none_or(|due| Instant::now() < due) => {
                    stop_due.get_or_insert_with(|| Instant::now() + waits.hearsay);
                    None
                }
                loss => loss.map(Loss::failure),
            };
            if stop_asked || lost.is_some() {
                stop_due = None;
            }
            if let Some(failure) = &lost {
                events.append(EventKind::Failed { failure: failure.clone() });
                ranks.signal(SIGTERM);
                kill_at = Some(Instant::now() + LOST_GRACE.min(waits.grace));
            }
        }
        if first.is_none() && lost.is_none() && stop_due.is_none() {
            first = verdict::first_failure(job, &ranks.ended(), stop_asked);
            if let Some(dead) = &first {
                let (rank, how) = (dead.rank, dead.how);
                let failure = verdict::explain(dead, job, ooms_before);
                let message = format!("{}: {}", failure.what, failure.why);
                if let Some(peers) = peers.filter(|_| !failure.is_consequence()) {
                    peers.tell(&failure);
                }
                events.append(EventKind::RankDied {
                    rank,
                    code: how.code,
                    signal: how.signal,
                    message,
                    cause: failure.cause,
                });
                ranks.signal(SIGTERM);
                kill_at = Some(Instant::now() + waits.grace);
            }
        }
        if kill_at.is_some_and(|at| at <= Instant::now()) {
            ranks.signal(SIGKILL);
            kill_at = None;
        }
    }
    if job.is_command() {
        strays::end(job);
    }
    let mut exit = verdict::exit_file(job, &ranks.ended(), first.as_ref(), stop_asked, ooms_before);
    if let Some(follower) = follower.take() {
        follower.end(exit.reason == ExitReason::Finished && lost.is_none());
    }
    if let Some(peers) = peers {
        let is_consequence = exit.failure.as_ref().is_some_and(Failure::is_consequence);
        if is_consequence && lost.is_none() {
            // Ranks notice at once that one is gone; why it is gone, its supervisor tells a moment later.
            lost = peers.wait_for_loss(waits.hearsay).map(Loss::failure);
        }
        match (&lost, exit.reason) {
            (None, ExitReason::Finished | ExitReason::Stopped) => peers.leave(),
            (None, ExitReason::Killed) => peers.leave_stopped(),
            (None, ExitReason::Failed) => peers.tell(exit.failure.as_ref().unwrap_or(&killed(&job.node))),
            (Some(_), _) => {}
        }
    }
    if let Some(failure) = lost {
        (exit.reason, exit.failure, exit.first_failure) = (ExitReason::Failed, Some(failure), None);
    }
    if let Some(store) = &job.store {
        // Normally gone with the last rank; one that was killed leaves it.
        let _ = fs::remove_file(store);
    }
    write_exit(job, &exit, wakes);
    Ok(exit)
}

/// Writes how the node ended. Where that fails, as on a full disk, it is tried again for a while, unless somebody asks to end:
/// nothing else tells it to whoever looks later.
fn write_exit(job: &Job, exit: &ExitFile, wakes: &Receiver<i32>) {
    let deadline = Instant::now() + WRITING;
    let mut is_told = false;
    loop {
        let Err(error) = job.run.write_exit(exit) else { return };
        if !is_told {
            note!("{error}; tried again for {} s", WRITING.as_secs());
        }
        is_told = true;
        let pause = Instant::now() + Duration::from_secs(1);
        while Instant::now() < pause {
            if arrived(wakes, Some(pause)).iter().any(|signal| [SIGTERM, SIGINT].contains(signal)) {
                return;
            }
        }
        if Instant::now() >= deadline {
            return;
        }
    }
}

/// Waits for a signal, or until `deadline`, and returns all there are.
fn arrived(wakes: &Receiver<i32>, deadline: Option<Instant>) -> Vec<i32> {
    let first = match deadline {
        None => wakes.recv().ok(),
        Some(deadline) => wakes.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok(),
    };
    first.into_iter().chain(wakes.try_iter()).collect()
}

/// What is told of ranks that a person ended.
fn killed(node: &NodeId) -> Failure {
    Failure::new(
        rundir::ErrorCode::Unclassified,
        format!("the ranks of node {node} were killed"),
        "somebody ended them",
        "resume from the last checkpoint",
    )
}

/// Turns signals into messages. The thread lives as long as the process; others may send messages as well.
fn wakes() -> Result<(Sender<i32>, Receiver<i32>), Failure> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGUSR1, SIGHUP, SIGCHLD]).map_err(|error| {
        Failure::new(
            rundir::ErrorCode::Unclassified,
            "cannot start the supervisor",
            format!("signals cannot be caught: {error}"),
            "report this as a bug",
        )
    })?;
    let (tell, wakes) = mpsc::channel();
    let others = tell.clone();
    thread::spawn(move || {
        for signal in signals.forever() {
            if tell.send(signal).is_err() {
                return;
            }
        }
    });
    Ok((others, wakes))
}

/// Wakes the supervisors when somebody makes the run's stop file, which reaches a run where no signal does, as under a Slurm
/// whose controller is away. A program of the user's own does not know it.
///
/// Only the first node looks, as only rank 0 of ours does, and tells the others: all stop at once, however late a file server
/// would show it to each.
fn heed_stop_file(run: &RunDir, wake: Sender<i32>, peers: Option<Peers>) {
    let file = run.stop_file();
    thread::spawn(move || {
        // A file server is asked anew when a file is opened; what it said before may be of the attempt before.
        while File::open(&file).is_err() {
            thread::sleep(LOOK);
        }
        peers.iter().for_each(Peers::ask_to_stop);
        // The loop has ended when nobody listens.
        let _ = wake.send(STOP);
    });
}

/// Tells whether a node has a part in an attempt that nobody has begun there.
fn is_expected(run: &RunDir, attempt: u32, node: &NodeId) -> bool {
    let names = |attempt: Attempt| attempt.placement.ranks.iter().any(|place| place.node == *node);
    run.read_attempt(attempt).is_ok_and(names)
        && !run.pid_toml(node, attempt).exists()
        && !run.exit_toml(node, attempt).exists()
}

/// Leaves word of an attempt that did not get as far as its ranks, for whoever looks later.
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
        note!("{error}");
    }
}

/// The node's `events.jsonl`.
struct NodeEvents<'a> {
    job: &'a Job,
    file: Option<LineAppender>,
}

impl<'a> NodeEvents<'a> {
    fn open(job: &'a Job) -> Self {
        let path = job.run.node_events(&job.node);
        let file = LineAppender::open(&path).inspect_err(|error| note!("cannot open {path}: {error}")).ok();
        Self { job, file }
    }

    /// A lost event does not end a run: standard error, which is the supervisor's log, says so.
    fn append(&mut self, kind: EventKind) {
        let Some(file) = &mut self.file else { return };
        let event = Event::new(now_s(), self.job.attempt.number, None, kind).by_node(self.job.node.clone());
        if let Err(error) = file.append(&event) {
            note!("cannot log an event to {}: {error}", file.path());
        }
    }
}
