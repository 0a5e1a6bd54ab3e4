//! The decisions of a node's supervisor: a pure function of its state and one event.
//!
//! Threads only produce events, and the event loop only executes actions. No function here reads a file, a clock or a socket;
//! the time comes with each event, counted from the start of the supervisor.

mod peers;

#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod tests;

use std::time::Duration;

use cluster::NodeId;
use rundir::{Cause, ErrorCode, EventKind, ExitReason, Failure, RequestSource};
use signal_hook::consts::{SIGINT, SIGKILL, SIGTERM, SIGUSR1};

use self::peers::PeerLoss;
pub use self::peers::{HEARTBEAT, PeerExit, Peers, Rendezvous};
use crate::message::Message;

/// Whether the ranks of an attempt need each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dependence {
    /// Ranks exchange tensors in every step. If one ends, the others cannot continue.
    Mutual,
    /// Each rank works independently and takes over the work of lost ranks. Only a stop ends ranks that can work.
    None,
}

/// The time limits of a supervisor.
#[derive(Debug, Clone, Copy)]
pub struct Waits {
    /// The time in which ranks may end by themselves after another rank of this node failed. It can be short: a rank
    /// that waits for the dead rank notices at once, and no consistent checkpoint could be saved.
    pub grace: Duration,
    /// The time in which ranks may end by themselves after another node was lost. They cannot save without that node.
    pub lost_grace: Duration,
    /// The time to wait for the reason of another node's failure, or for a stop that already ended another node's ranks.
    pub reason: Duration,
}

/// An event for a supervisor.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The ranks of this node were started.
    Started,
    /// The ranks could not be started. None is alive.
    StartFailed(Failure),
    /// A signal other than SIGCHLD.
    Signal(i32),
    /// The stop file of the run exists.
    StopFile,
    /// Ranks of this node have ended.
    RanksExited {
        /// All ranks that were found dead at the same time.
        ranks: Vec<RankEnd>,
        /// Whether the embedded trainer has logged that all steps of the run are done.
        is_run_finished: bool,
    },
    /// Another node's supervisor is connected and has proved that it belongs to this attempt.
    Connected { node: NodeId, connection: u64 },
    /// A message was received.
    Message { node: NodeId, connection: u64, message: Message },
    /// A connection ended.
    Disconnected { node: NodeId, connection: u64, how: Disconnect },
    /// Connections that do not belong to this attempt were refused, `count` so far.
    Refused { port: u16, count: u64, from: Option<String>, why: String },
    /// An attempt to connect to the first node's supervisor failed.
    DialFailed(String),
    /// The files of another node in the run's folder were read, as [`Action::Look`] requested.
    PeerFiles { node: NodeId, files: PeerFiles },
    /// The time of [`State::deadline`] was reached.
    Deadline,
}

/// The end of one rank.
#[derive(Debug, Clone, PartialEq)]
pub struct RankEnd {
    pub rank: usize,
    /// The exit code, if the rank exited.
    pub code: Option<i32>,
    /// The signal that ended the rank, if any.
    pub signal: Option<i32>,
    /// The failure, if the rank failed: the one it recorded, or one derived from its log and the kernel's counters.
    pub failure: Failure,
}

/// The end of a connection.
#[derive(Debug, Clone, PartialEq)]
pub enum Disconnect {
    /// The other side closed it.
    Closed,
    /// The connection broke, for example because a firewall reset it. When a process ends, its connections are closed
    /// in order.
    Broken(String),
}

/// The files of another node in the run's folder, which all nodes share.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PeerFiles {
    /// The end of the node, from its exit file.
    pub exit: Option<PeerExit>,
    /// Whether its process file exists.
    pub has_started: bool,
    /// Whether the run's stop file exists.
    pub has_stop_file: bool,
    /// The size of `metrics.jsonl`, which grows only while every node is alive; 0 if ranks can make steps alone.
    pub steps_bytes: u64,
}

/// An action that the event loop executes for a supervisor.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Signals every rank of this node that is alive.
    SignalRanks(i32),
    /// Sends a message to one node or to all connected nodes.
    Send(Option<NodeId>, Message),
    /// Appends to the node's events.
    Record(EventKind),
    /// Writes to the supervisor's log.
    Log(String),
    /// Records that a command was requested to stop, and the origin of the request.
    RecordStop(RequestSource),
    /// Tries once to connect to the first node's supervisor.
    Dial,
    /// Reads the files of a node in the run's folder.
    Look(NodeId),
    /// Ends the orphan processes of a command.
    EndOrphans,
    /// Stops sending heartbeats.
    Leave,
    /// Ends the supervisor.
    Exit(Verdict),
}

/// The end of the attempt on this node.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    pub reason: ExitReason,
    /// The rank that failed first.
    pub first_failure: Option<usize>,
    pub failure: Option<Failure>,
}

/// The state of a supervisor's decisions.
#[derive(Debug)]
pub struct State {
    node: NodeId,
    /// Whether the ranks are a command of the user and not the embedded trainer.
    is_command: bool,
    dependence: Dependence,
    waits: Waits,
    /// The number of ranks that were started.
    ranks: usize,
    ended: Vec<RankEnd>,
    /// The number of ended ranks that were processed already, if ranks do not need each other.
    judged: usize,
    is_run_finished: bool,
    stop_requested: bool,
    /// Whether the stop was requested by file. The TERM that may follow is then not a second request.
    by_file: bool,
    /// The rank of this node that failed first.
    first: Option<RankEnd>,
    /// The reason why this node cannot continue, if another node is the cause.
    lost: Option<Failure>,
    /// Whether the failure of this node was sent to the other nodes.
    is_reported: bool,
    /// The time at which living ranks are killed.
    kill_at: Option<Duration>,
    /// The time until which a stop that ended another node's ranks may reach this node. The failure of a rank before that
    /// time is attributed to the stop.
    stop_due: Option<Duration>,
    /// The time until which TERM, which has ended a rank of a command, may reach this supervisor too.
    term_due: Option<Duration>,
    /// The time until which the reason of another node's failure may arrive, after all ranks have ended.
    reason_due: Option<Duration>,
    peers: Option<Peers>,
    has_ended: bool,
}

/// Processes an event that happened at the time `at`, and returns the actions to execute.
pub fn decide(state: &mut State, at: Duration, event: Event) -> Vec<Action> {
    let mut actions = Vec::new();
    if state.has_ended {
        return actions;
    }
    if let Some(peers) = &mut state.peers {
        peers.take(at, &event, &mut actions);
    }
    match event {
        Event::StartFailed(failure) => {
            state.send(Message::Failed(failure.clone()), &mut actions);
            state.exit(ExitReason::Failed, None, Some(failure), &mut actions);
            return actions;
        }
        Event::Signal(signal) => state.signal(signal, &mut actions),
        Event::StopFile => {
            state.send(Message::Stop, &mut actions);
            state.stop_by_file(&mut actions);
        }
        Event::Message { message: Message::Stop, .. } => state.stop_by_file(&mut actions),
        // The other node stopped because of the stop file, and ended before it had connected.
        Event::PeerFiles { files, .. } if state.is_command && files.has_stop_file && files.exit.is_some() => {
            state.stop_by_file(&mut actions);
        }
        Event::RanksExited { ranks, is_run_finished } => {
            state.ended.extend(ranks);
            state.is_run_finished |= is_run_finished;
            if state.is_command && !state.any_alive() {
                actions.push(Action::EndOrphans);
            }
        }
        Event::Refused { port, count, from, why } => {
            actions.push(Action::Record(EventKind::ConnectionsRefused { port, count, from, why }));
        }
        // The remaining events concern other nodes, or only the time.
        _ => {}
    }
    state.judge(at, &mut actions);
    actions
}

impl State {
    /// Makes the state of a node with `ranks` ranks. `peers` is set if the attempt spans several nodes.
    pub fn new(
        node: NodeId,
        is_command: bool,
        dependence: Dependence,
        ranks: usize,
        peers: Option<Peers>,
        waits: Waits,
    ) -> Self {
        Self {
            node,
            is_command,
            dependence,
            waits,
            ranks,
            ended: Vec::new(),
            judged: 0,
            is_run_finished: false,
            stop_requested: false,
            by_file: false,
            first: None,
            lost: None,
            is_reported: false,
            kill_at: None,
            stop_due: None,
            term_due: None,
            reason_due: None,
            peers,
            has_ended: false,
        }
    }

    /// Returns when an [`Event::Deadline`] is due.
    pub fn deadline(&self) -> Option<Duration> {
        if self.has_ended {
            return None;
        }
        let term_due = self.term_due.filter(|_| self.can_continue() && !self.stop_requested);
        let own = [self.kill_at, self.stop_due, term_due, self.reason_due];
        own.into_iter().flatten().chain(self.peers.as_ref().and_then(Peers::deadline)).min()
    }

    fn any_alive(&self) -> bool {
        self.ended.len() < self.ranks
    }

    fn send(&mut self, message: Message, actions: &mut Vec<Action>) {
        if let Some(peers) = &mut self.peers {
            peers.send(message, actions);
        }
    }

    fn signal(&mut self, signal: i32, actions: &mut Vec<Action>) {
        match signal {
            // The program that creates the stop file may also send TERM. A second TERM makes some trainers abort the
            // save.
            SIGTERM if self.by_file => self.by_file = false,
            SIGTERM | SIGINT => {
                self.stop_requested = true;
                actions.push(Action::RecordStop(RequestSource::Term));
                actions.push(Action::Record(EventKind::SignalReceived { signal }));
                actions.push(Action::SignalRanks(SIGTERM));
            }
            SIGUSR1 => {
                actions.push(Action::Record(EventKind::SignalReceived { signal }));
                actions.push(Action::SignalRanks(SIGUSR1));
            }
            _ => {}
        }
    }

    fn stop_by_file(&mut self, actions: &mut Vec<Action>) {
        if !self.stop_requested {
            (self.stop_requested, self.by_file) = (true, true);
            actions.push(Action::RecordStop(RequestSource::File));
            actions.push(Action::SignalRanks(SIGTERM));
        }
    }

    /// Decides whether the ranks can continue, and ends when all have ended.
    fn judge(&mut self, at: Duration, actions: &mut Vec<Action>) {
        if self.dependence == Dependence::None {
            return self.judge_independent(actions);
        }
        if self.can_continue() {
            self.judge_loss(at, actions);
        }
        if self.expects_term(at) {
            return;
        }
        // A rank may fail because of a stop that has not reached this supervisor yet.
        if self.can_continue() && self.stop_due.is_none() {
            self.judge_ranks(at, actions);
        }
        if self.kill_at.is_some_and(|due| due <= at) {
            self.kill_at = None;
            actions.push(Action::SignalRanks(SIGKILL));
        }
        if !self.any_alive() {
            self.finish(at, actions);
        }
    }

    /// Returns whether TERM has ended a rank of a command and may reach this supervisor in a moment: Slurm signals all processes of a job, in any
    /// order. The embedded trainer handles TERM, so that it ends no rank.
    fn expects_term(&mut self, at: Duration) -> bool {
        let is_possible = self.is_command && self.can_continue() && !self.stop_requested;
        // A launcher reports the signal by its exit code.
        let ended = |rank: &RankEnd| rank.signal == Some(SIGTERM) || rank.code == Some(128 + SIGTERM);
        let by_term = is_possible && self.first_failure().is_some_and(ended);
        by_term && at < *self.term_due.get_or_insert(at + self.waits.reason)
    }

    /// Records failed ranks and lost nodes. The other ranks take over their work.
    fn judge_independent(&mut self, actions: &mut Vec<Action>) {
        let losses = self.peers.as_mut().map(Peers::take_losses).unwrap_or_default();
        actions.extend(losses.into_iter().map(|(node, failure)| Action::Record(EventKind::NodeLost { node, failure })));
        let failed = self.ended[self.judged..].iter().filter(|rank| self.is_failure(rank));
        actions.extend(failed.map(|rank| Action::Record(died(rank))));
        self.judged = self.ended.len();
        if !self.any_alive() {
            self.finish_independent(actions);
        }
    }

    /// Ends this node, whose ranks have all ended. Other nodes continue to work.
    fn finish_independent(&mut self, actions: &mut Vec<Action>) {
        let first = self.ended.iter().find(|rank| self.is_failure(rank)).cloned();
        let is_stopped = self.ended.iter().any(|rank| rank.code == Some(0));
        let (reason, failure) = match &first {
            _ if self.is_run_finished => (ExitReason::Finished, None),
            // The remaining ranks have stopped as requested. A resume needs no other node.
            Some(first) if !(self.stop_requested && is_stopped) => (ExitReason::Failed, Some(first.failure.clone())),
            None if !is_stopped => (ExitReason::Killed, None),
            _ => (ExitReason::Stopped, None),
        };
        self.send(Message::Done, actions);
        actions.push(Action::Leave);
        self.exit(reason, first.map(|first| first.rank), failure, actions);
    }

    fn can_continue(&self) -> bool {
        self.first.is_none() && self.lost.is_none()
    }

    fn judge_loss(&mut self, at: Duration, actions: &mut Vec<Action>) {
        self.lost = match self.peers.as_ref().and_then(Peers::loss) {
            Some(PeerLoss::Stopped(_)) if self.is_command && self.stop_requested => None,
            // A stop reaches the nodes at different times, and a command that cannot save ends at once. The embedded
            // trainer saves on all nodes together, so a node that did not save is lost.
            Some(PeerLoss::Stopped(_)) if self.is_command && self.stop_due.is_none_or(|due| at < due) => {
                self.stop_due.get_or_insert(at + self.waits.reason);
                None
            }
            loss => loss.map(PeerLoss::failure),
        };
        if self.stop_requested || self.lost.is_some() {
            self.stop_due = None;
        }
        if let Some(failure) = self.lost.clone() {
            actions.push(Action::Record(EventKind::Failed { failure }));
            self.end_ranks(at + self.waits.lost_grace.min(self.waits.grace), actions);
        }
    }

    fn judge_ranks(&mut self, at: Duration, actions: &mut Vec<Action>) {
        self.first = self.first_failure().cloned();
        let Some(first) = self.first.clone() else { return };
        if !first.failure.is_consequence() {
            self.is_reported = true;
            self.send(Message::Failed(first.failure.clone()), actions);
        }
        actions.push(Action::Record(died(&first)));
        self.end_ranks(at + self.waits.grace, actions);
    }

    fn end_ranks(&mut self, kill_at: Duration, actions: &mut Vec<Action>) {
        if self.any_alive() {
            actions.push(Action::SignalRanks(SIGTERM));
            self.kill_at = Some(kill_at);
        }
    }

    /// Returns the rank with the first failure among all ranks that have ended so far.
    ///
    /// If several ranks are found dead at the same time, a rank that lost contact with another comes last, because its
    /// failure is a consequence. A rank whose device failed comes first, then one that a signal killed, then the lower rank.
    fn first_failure(&self) -> Option<&RankEnd> {
        if self.stop_requested && self.is_command {
            // The exit code of a launcher is not 0 after a stop request.
            return None;
        }
        let failed = self.ended.iter().filter(|rank| self.is_failure(rank));
        failed.min_by_key(|rank| {
            let of_device = rank.failure.code == ErrorCode::DeviceFailed;
            (rank.failure.is_consequence(), !of_device, rank.signal.is_none(), rank.rank)
        })
    }

    /// Replaces the first failure by that of the rank that caused it. A rank that fails closes its connections before its process ends, so
    /// that another rank may lose contact and end before it.
    fn find_cause(&mut self, actions: &mut Vec<Action>) {
        if !self.first.as_ref().is_some_and(|first| first.failure.is_consequence()) {
            return;
        }
        // A signal may be one of this supervisor, which ends the ranks that are left.
        let by_itself =
            |rank: &&RankEnd| self.is_failure(rank) && rank.code.is_some() && !rank.failure.is_consequence();
        let causes = self.ended.iter().filter(by_itself);
        let cause = causes.min_by_key(|rank| (rank.failure.code != ErrorCode::DeviceFailed, rank.rank)).cloned();
        if let Some(cause) = cause {
            actions.push(Action::Record(died(&cause)));
            self.first = Some(cause);
        }
    }

    /// Returns whether a rank failed. If TERM ended it before it had installed a handler, it stopped as requested.
    fn is_failure(&self, rank: &RankEnd) -> bool {
        rank.code != Some(0) && !(self.stop_requested && rank.signal == Some(SIGTERM))
    }

    /// Ends the supervisor after all ranks have ended, when the reason is known or the wait for it has timed out.
    fn finish(&mut self, at: Duration, actions: &mut Vec<Action>) {
        self.find_cause(actions);
        let (reason, failure) = match &self.first {
            Some(first) => (ExitReason::Failed, Some(first.failure.clone())),
            None if self.ended.iter().any(|rank| rank.code != Some(0)) => (ExitReason::Killed, None),
            // Only the embedded trainer logs that all steps are done.
            None if self.is_run_finished || (self.is_command && !self.stop_requested) => (ExitReason::Finished, None),
            None => (ExitReason::Stopped, None),
        };
        if let Some(peers) = &self.peers
            && self.lost.is_none()
            && failure.as_ref().is_some_and(Failure::is_consequence)
        {
            // Ranks notice at once that another rank is gone. That rank's supervisor reports the reason a moment later.
            self.lost = peers.loss().map(PeerLoss::failure);
            if self.lost.is_none() && at < *self.reason_due.get_or_insert(at + self.waits.reason) {
                return;
            }
        }
        if let Some(lost) = self.lost.take() {
            self.exit(ExitReason::Failed, None, Some(lost), actions);
            return;
        }
        match reason {
            ExitReason::Finished | ExitReason::Stopped => self.send(Message::Done, actions),
            ExitReason::Killed => {
                self.send(Message::Stopped(self.node.clone()), actions);
                self.send(Message::Done, actions);
            }
            ExitReason::Failed if self.is_reported => {}
            ExitReason::Failed => {
                let failure = failure.clone().unwrap_or_else(|| killed(&self.node));
                self.send(Message::Failed(failure), actions);
            }
        }
        if reason != ExitReason::Failed {
            actions.push(Action::Leave);
        }
        self.exit(reason, self.first.as_ref().map(|first| first.rank), failure, actions);
    }

    fn exit(
        &mut self,
        reason: ExitReason,
        first_failure: Option<usize>,
        failure: Option<Failure>,
        actions: &mut Vec<Action>,
    ) {
        self.has_ended = true;
        actions.push(Action::Exit(Verdict { reason, first_failure, failure }));
    }
}

/// Returns the event of a rank that failed.
fn died(rank: &RankEnd) -> EventKind {
    let RankEnd { rank, code, signal, failure } = rank.clone();
    let (message, cause) = (format!("{}: {}", failure.what, failure.why), failure.cause);
    EventKind::RankDied { rank, code, signal, message, cause }
}

/// Returns the failure of a node whose ranks were killed by a user.
pub fn killed(node: &NodeId) -> Failure {
    let what = format!("the ranks of node {node} were killed");
    let failure = Failure::new(ErrorCode::RanksKilled, what, "a signal ended them", "resume the run");
    Failure { cause: Cause::Stop, ..failure }
}
