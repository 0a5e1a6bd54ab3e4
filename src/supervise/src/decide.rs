//! Decides what the supervisor of a node does: a pure function of its state and one event.
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
use rundir::{Cause, ErrorCode, EventKind, ExitReason, Failure};
use signal_hook::consts::{SIGINT, SIGKILL, SIGTERM, SIGUSR1};

use self::peers::PeerLoss;
pub use self::peers::{HEARTBEAT, PeerExit, Peers, Rendezvous};
use crate::message::Message;

/// Whether the ranks of an attempt need each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dependence {
    /// They exchange tensors in every step: where one ends, the others cannot continue.
    Mutual,
    /// Each works by itself, and takes over what another one leaves: only a stop ends those that can work.
    None,
}

/// How long a supervisor waits.
#[derive(Debug, Clone, Copy)]
pub struct Waits {
    /// How long ranks have to end by themselves after another one failed: a rank that waits for the dead one notices at
    /// once, and nothing it could still save would be consistent.
    pub grace: Duration,
    /// The same where another node is gone: no checkpoint that needs that node can be saved.
    pub lost_grace: Duration,
    /// How long to wait for the reason why another node failed, or for a stop by which the ranks of another node ended.
    pub reason: Duration,
}

/// What happens to a supervisor.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The ranks of this node were started.
    Started,
    /// They could not be started. None is alive.
    StartFailed(Failure),
    /// A signal other than SIGCHLD.
    Signal(i32),
    /// The stop file of the run exists.
    StopFile,
    /// Ranks of this node ended.
    RanksExited {
        /// All that were found dead together.
        ranks: Vec<RankEnd>,
        /// Whether the embedded trainer has logged that all steps of the run are done.
        is_run_finished: bool,
    },
    /// There is a connection to another node's supervisor, which has proved that it belongs to this attempt.
    Connected { node: NodeId, connection: u64 },
    /// A message came.
    Message { node: NodeId, connection: u64, message: Message },
    /// A connection ended.
    Disconnected { node: NodeId, connection: u64, how: Disconnect },
    /// The first node's supervisor could not be connected to.
    DialFailed(String),
    /// What the run's folder holds of another node, as requested by [`Action::Look`].
    Evidence { node: NodeId, evidence: Evidence },
    /// The time of [`State::deadline`] has come.
    Deadline,
}

/// How one rank ended.
#[derive(Debug, Clone, PartialEq)]
pub struct RankEnd {
    pub rank: usize,
    /// Its exit code, when it exited.
    pub code: Option<i32>,
    /// The signal that ended it, when one did.
    pub signal: Option<i32>,
    /// Why it failed, if it did: what it recorded, or what its log and the kernel show.
    pub failure: Failure,
}

/// How a connection ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Disconnect {
    /// The other side closed it.
    Closed,
    /// It broke, as by a firewall that resets it. The end of a process closes its connections in order.
    Broken(String),
}

/// What the run's folder, which all nodes share, holds of another node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Evidence {
    /// How the node ended, from its exit file.
    pub exit: Option<PeerExit>,
    /// Whether its process file exists.
    pub has_started: bool,
    /// Whether the run's stop file exists.
    pub has_stop_file: bool,
    /// How many bytes of steps are logged that take every rank. They grow only while every node is alive.
    pub steps_bytes: u64,
}

/// What the event loop does for a supervisor.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Signals every rank of this node that is alive.
    SignalRanks(i32),
    /// Sends a message, to one node or to all that are connected.
    Send(Option<NodeId>, Message),
    /// Appends to the node's events.
    Record(EventKind),
    /// Writes to the supervisor's log.
    Log(String),
    /// Records that a command was requested to stop, and by what.
    RecordStop(&'static str),
    /// Tries once to connect to the first node's supervisor.
    Dial,
    /// Reads what the run's folder holds of a node.
    Look(NodeId),
    /// Ends the processes that a command left behind.
    EndOrphans,
    /// Ends the heartbeats.
    Leave,
    /// Ends the supervisor.
    Exit(Verdict),
}

/// How the attempt ended on this node.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    pub reason: ExitReason,
    /// The rank that failed first.
    pub first_failure: Option<usize>,
    pub failure: Option<Failure>,
}

/// The state on which a supervisor decides.
#[derive(Debug)]
pub struct State {
    node: NodeId,
    /// Whether the ranks are a command of the user and not the embedded trainer.
    is_command: bool,
    dependence: Dependence,
    waits: Waits,
    /// How many ranks were started.
    ranks: usize,
    ended: Vec<RankEnd>,
    /// How many of them have been judged, where ranks do not need each other.
    judged: usize,
    is_run_finished: bool,
    stop_requested: bool,
    /// Whether a stop file was the request, so that the TERM that may come with it is not a second one.
    by_file: bool,
    /// The rank of this node that failed first.
    first: Option<RankEnd>,
    /// Why this node cannot continue, where that is another node.
    lost: Option<Failure>,
    /// Whether the other nodes have been sent the failure of this one.
    is_reported: bool,
    /// When ranks that are still alive are killed.
    kill_at: Option<Duration>,
    /// Until when the stop by which another node's ranks ended may reach this node. Ranks that fail before then fail by it.
    stop_due: Option<Duration>,
    /// Until when the reason for the failure of another node may come. All ranks have ended.
    reason_due: Option<Duration>,
    peers: Option<Peers>,
    has_ended: bool,
}

/// Takes in what happened `at` a time and returns what to do about it.
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
        // The other node stopped by the file and ended before it could be connected to.
        Event::Evidence { evidence, .. } if state.is_command && evidence.has_stop_file && evidence.exit.is_some() => {
            state.stop_by_file(&mut actions);
        }
        Event::RanksExited { ranks, is_run_finished } => {
            state.ended.extend(ranks);
            state.is_run_finished |= is_run_finished;
            if state.is_command && !state.any_alive() {
                actions.push(Action::EndOrphans);
            }
        }
        // The others are about other nodes, or only about the time.
        _ => {}
    }
    state.judge(at, &mut actions);
    actions
}

impl State {
    /// Makes the state of a node with so many ranks; `peers` where the attempt spans nodes.
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
        let own = [self.kill_at, self.stop_due, self.reason_due];
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
            // The program that makes the file may send TERM as well. A second TERM makes some programs give up saving.
            SIGTERM if self.by_file => self.by_file = false,
            SIGTERM | SIGINT => {
                self.stop_requested = true;
                actions.push(Action::RecordStop("a signal to the supervisor"));
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
            actions.push(Action::RecordStop("a stop file in the run directory"));
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
        // While a stop may be on its way, the failure of a rank may be its effect.
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

    /// Records ranks that failed and nodes that are gone. The other ranks take over their work.
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

    /// All ranks of this node have ended. Other nodes may work on, and are not concerned.
    fn finish_independent(&mut self, actions: &mut Vec<Action>) {
        let first = self.ended.iter().find(|rank| self.is_failure(rank)).cloned();
        let is_stopped = self.ended.iter().any(|rank| rank.code == Some(0));
        let (reason, failure) = match &first {
            _ if self.is_run_finished => (ExitReason::Finished, None),
            // The ranks that were left have stopped as requested; a resume needs no other node.
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
            // A stop of all nodes reaches one before the other, and a command that cannot save ends by it at once. The
            // embedded trainer saves on all nodes together: one that did not is lost.
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

    /// Returns the rank whose failure comes first, among all that have ended so far.
    ///
    /// Of ranks that are found dead together, the failure of one that lost contact with another is a consequence, and one
    /// that was killed did not choose the moment; then the lower rank counts.
    fn first_failure(&self) -> Option<&RankEnd> {
        if self.stop_requested && self.is_command {
            // A launcher that is requested to stop reports it by its exit code.
            return None;
        }
        let failed = self.ended.iter().filter(|rank| self.is_failure(rank));
        failed.min_by_key(|rank| (rank.failure.is_consequence(), rank.signal.is_none(), rank.rank))
    }

    /// A rank that ended by TERM, before it could catch it, did as it was requested.
    fn is_failure(&self, rank: &RankEnd) -> bool {
        rank.code != Some(0) && !(self.stop_requested && rank.signal == Some(SIGTERM))
    }

    /// All ranks have ended: sums up how, once the reason is known or has had its time.
    fn finish(&mut self, at: Duration, actions: &mut Vec<Action>) {
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
            // Ranks notice at once that another one is gone; its supervisor reports the reason a moment later.
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

/// Returns the failure of a node whose ranks a user ended.
pub fn killed(node: &NodeId) -> Failure {
    let what = format!("the ranks of node {node} were killed");
    let failure = Failure::new(ErrorCode::RanksKilled, what, "a signal ended them", "resume from the last checkpoint");
    Failure { cause: Cause::Stop, ..failure }
}
