//! The event loop: passes events to [`decide`] and executes the actions that it returns.

use std::fs;
use std::sync::mpsc::Sender;
use std::time::Duration;

use cluster::NodeId;
use rundir::{EventKind, ExitFile, Failure, LineAppender, log, now_s, read_events};
use signal_hook::consts::{SIGINT, SIGKILL, SIGTERM};

use crate::decide::{Action, Event, State, Verdict, decide};
use crate::events::Inputs;
use crate::follow::Follower;
use crate::job::Job;
use crate::network::PeerConnections;
use crate::progress::ProgressWriter;
use crate::ranks::Ranks;
use crate::{orphans, rank_end};

/// The time for which a supervisor retries writing the exit file, because space may be freed on a full disk.
const WRITE_EXIT: Duration = Duration::from_secs(600);
/// The pause between these attempts.
const WRITE_EXIT_EVERY: Duration = Duration::from_secs(1);

/// The connections to the other nodes' supervisors, and the channel on which checks of these nodes' files are
/// requested.
pub struct Outside {
    pub network: PeerConnections,
    pub looks: Sender<NodeId>,
}

/// Starts ranks with `start`, runs them to their end, and returns the content of the node's exit file.
pub fn run(
    job: &Job,
    start: impl FnOnce() -> Result<Ranks, Failure>,
    inputs: &Inputs,
    outside: Option<&Outside>,
    state: State,
) -> ExitFile {
    let ooms_before = rank_end::oom_kills();
    let started = start();
    let (ranks, event) = match started {
        Ok(ranks) => (ranks, Event::Started),
        Err(failure) => (Ranks::default(), Event::StartFailed(failure)),
    };
    let follower = (job.is_command() && job.has_first_rank() && event == Event::Started).then(|| Follower::start(job));
    let is_independent = !job.recipe.task.ranks_depend_on_each_other();
    let progress = (is_independent && event == Event::Started).then(|| ProgressWriter::start(job));
    let events = NodeEvents::open(job);
    let mut node = Node { job, state, ranks, events, follower, outside, ooms_before, verdict: None };
    node.handle(inputs.elapsed(), event);
    let verdict = loop {
        if let Some(verdict) = node.verdict.take() {
            break verdict;
        }
        let deadline = node.state.deadline();
        for (at, event) in inputs.wait(deadline) {
            node.handle(at, event);
        }
        // Check ranks after signals: the end of a rank must not be processed before the stop that ended it.
        node.collect(inputs.elapsed());
        let now = inputs.elapsed();
        if node.state.deadline().is_some_and(|deadline| deadline <= now) {
            node.handle(now, Event::Deadline);
        }
    };
    let exit = rank_end::exit_file(job, &node.ranks.ended(), verdict);
    if let Some(follower) = node.follower.take() {
        follower.end(exit.reason == rundir::ExitReason::Finished);
    }
    if let Some(progress) = progress {
        progress.end();
    }
    if let Some(store) = &job.store {
        // The last rank normally removes the file; a rank that was killed leaves it.
        let _ = fs::remove_file(store);
    }
    write_exit(job, &exit, inputs);
    exit
}

/// Starts the ranks of a node and writes the process file. If it cannot be written, kills the ranks.
pub fn start_ranks(
    job: &Job,
    command: impl Fn(&cluster::RankPlace) -> std::process::Command,
) -> Result<Ranks, Failure> {
    let mut ranks = Ranks::start(job, command)?;
    let recorded = ranks.pid_file(job).and_then(|pids| Ok(job.run.write_pid(&pids)?));
    if recorded.is_err() {
        // Without the process file, a kill could not find these processes.
        ranks.signal(SIGKILL);
        ranks.wait_all();
    }
    recorded.map(|()| ranks)
}

/// The state of the loop: everything that actions use.
struct Node<'a> {
    job: &'a Job,
    state: State,
    ranks: Ranks,
    events: NodeEvents<'a>,
    follower: Option<Follower>,
    outside: Option<&'a Outside>,
    ooms_before: Option<u64>,
    verdict: Option<Verdict>,
}

impl Node<'_> {
    fn handle(&mut self, at: Duration, event: Event) {
        if let (Event::Connected { node, connection }, Some(outside)) = (&event, self.outside) {
            outside.network.connected(node, *connection);
        }
        for action in decide(&mut self.state, at, event) {
            self.execute(action);
        }
    }

    /// Handles the ranks that have ended since the last call.
    fn collect(&mut self, at: Duration) {
        let ended = self.ranks.collect();
        if ended.is_empty() {
            return;
        }
        let ranks = ended.iter().map(|rank| rank_end::read(rank, self.job, self.ooms_before)).collect();
        let is_run_finished = !self.ranks.any_alive() && !self.job.is_command() && is_run_finished(self.job);
        self.handle(at, Event::RanksExited { ranks, is_run_finished });
    }

    fn execute(&mut self, action: Action) {
        match action {
            Action::SignalRanks(signal) => self.ranks.signal(signal),
            Action::Record(kind) => self.events.append(kind),
            Action::Log(line) => log!("{line}"),
            Action::RecordStop(source) => self.follower.iter().for_each(|follower| follower.stopping(source)),
            Action::EndOrphans => orphans::end(self.job),
            Action::Exit(verdict) => self.verdict = Some(verdict),
            Action::Send(to, message) => self.outside.iter().for_each(|o| o.network.send(to.as_ref(), &message)),
            Action::Dial => self.outside.iter().for_each(|outside| outside.network.dial()),
            Action::Leave => self.outside.iter().for_each(|outside| outside.network.leave()),
            Action::Look(node) => self.outside.iter().for_each(|outside| {
                // The thread that receives requests lives as long as the process.
                let _ = outside.looks.send(node.clone());
            }),
        }
    }
}

/// Returns true if the embedded trainer has logged that all steps are done.
fn is_run_finished(job: &Job) -> bool {
    let events = read_events(&job.run).unwrap_or_default();
    events.iter().any(|event| event.attempt == job.attempt.number && event.kind == EventKind::Finished)
}

/// Writes the exit file. If that fails, for example on a full disk, retries for a while, unless the supervisor receives
/// TERM or INT. No other file records how the attempt ended here.
fn write_exit(job: &Job, exit: &ExitFile, inputs: &Inputs) {
    let give_up = inputs.elapsed() + WRITE_EXIT;
    let mut is_logged = false;
    while let Err(error) = job.run.write_exit(exit) {
        if !is_logged {
            log!("{error}; trying again for {} s", WRITE_EXIT.as_secs());
        }
        is_logged = true;
        let next = inputs.elapsed() + WRITE_EXIT_EVERY;
        while inputs.elapsed() < next {
            let is_end = |(_, event): &(Duration, Event)| matches!(event, Event::Signal(SIGTERM | SIGINT));
            if inputs.wait(Some(next)).iter().any(is_end) {
                return;
            }
        }
        if next >= give_up {
            return;
        }
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
        let file = LineAppender::open(&path).inspect_err(|error| log!("cannot open {path}: {error}")).ok();
        Self { job, file }
    }

    /// Appends an event. An error is only logged, because a missing event must not end the run.
    fn append(&mut self, kind: EventKind) {
        let Some(file) = &mut self.file else { return };
        let event = rundir::Event::new(now_s(), self.job.attempt.number, None, kind).by_node(self.job.node.clone());
        if let Err(error) = file.append(&event) {
            log!("cannot append an event to {}: {error}", file.path());
        }
    }
}
