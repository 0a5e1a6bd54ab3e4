//! Tests of every decision of a supervisor, without processes or waiting.

use std::collections::{BTreeMap, BTreeSet};

use rundir::RunDir;
use runstate::START_GRACE;

use super::peers::TIMEOUT;
use super::*;

pub(super) const WAITS: Waits =
    Waits { grace: Duration::from_secs(10), lost_grace: Duration::from_secs(2), reason: Duration::from_secs(3) };

pub(super) fn node(number: usize) -> NodeId {
    NodeId::new(format!("node{number:02}")).unwrap()
}

fn secs(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

pub(super) fn rank_failure(rank: usize) -> Failure {
    Failure::new(ErrorCode::RankFailed, format!("rank {rank} failed"), "exit code 9", "read its log")
}

fn peer_lost() -> Failure {
    Failure::peer_lost(None, "connection reset", "")
}

fn exited(rank: usize, code: i32) -> RankEnd {
    RankEnd { rank, code: Some(code), signal: None, failure: rank_failure(rank) }
}

fn signaled(rank: usize, signal: i32) -> RankEnd {
    RankEnd { code: None, signal: Some(signal), ..exited(rank, 0) }
}

fn lost_contact(rank: usize) -> RankEnd {
    RankEnd { failure: peer_lost(), ..exited(rank, 1) }
}

pub(super) fn rendezvous(this: usize, nodes: usize) -> Rendezvous {
    Rendezvous {
        run: RunDir::new("/runs/demo"),
        attempt: 1,
        this: node(this),
        first: node(1),
        others: (2..=nodes).map(node).collect::<BTreeSet<_>>(),
        address: "10.0.0.1".into(),
        port: 29501,
        is_job: false,
        dependence: Dependence::Mutual,
    }
}

/// A supervisor that a test drives. Checks of another node's files return `files`, and attempts to connect fail.
struct Supervisor {
    state: State,
    now: Duration,
    files: BTreeMap<NodeId, PeerFiles>,
    done: Vec<Action>,
}

impl Supervisor {
    fn new(state: State) -> Self {
        let mut new = Self { state, now: Duration::ZERO, files: BTreeMap::new(), done: Vec::new() };
        new.event(Event::Started);
        new
    }

    fn alone(is_command: bool, ranks: usize) -> Self {
        Self::new(State::new(node(1), is_command, Dependence::Mutual, ranks, None, WAITS))
    }

    /// Makes one of several nodes, each with two ranks of the embedded trainer.
    fn of(this: usize, nodes: usize) -> Self {
        Self::with(this, nodes, false, Dependence::Mutual)
    }

    /// Makes one of several nodes, each with two ranks of a command.
    fn command(this: usize, nodes: usize) -> Self {
        Self::with(this, nodes, true, Dependence::Mutual)
    }

    /// Makes one of several nodes, each with two ranks that do not need each other.
    fn independent(this: usize, nodes: usize) -> Self {
        Self::with(this, nodes, false, Dependence::None)
    }

    fn with(this: usize, nodes: usize, is_command: bool, dependence: Dependence) -> Self {
        let peers = Peers::new(Rendezvous { dependence, ..rendezvous(this, nodes) });
        Self::new(State::new(node(this), is_command, dependence, 2, Some(peers), WAITS))
    }

    /// Connects all supervisors that this one watches.
    fn connected(mut self) -> Self {
        let peers = self.state.peers.as_ref().unwrap();
        let watched: Vec<NodeId> = peers.links.keys().cloned().collect();
        for node in watched {
            self.event(Event::Connected { node, connection: 1 });
        }
        self.done.clear();
        self
    }

    /// Returns the actions that an event causes.
    fn event(&mut self, event: Event) -> Vec<Action> {
        let mut events = vec![event];
        let mut all = Vec::new();
        while !events.is_empty() {
            for event in std::mem::take(&mut events) {
                let actions = decide(&mut self.state, self.now, event);
                for action in &actions {
                    match action {
                        Action::Look(node) => events.push(Event::PeerFiles {
                            node: node.clone(),
                            files: self.files.get(node).cloned().unwrap_or_default(),
                        }),
                        Action::Dial => events.push(Event::DialFailed("Connection refused".into())),
                        _ => {}
                    }
                }
                all.extend(actions);
            }
        }
        self.done.extend(all.clone());
        all
    }

    fn message(&mut self, from: usize, message: Message) -> Vec<Action> {
        self.event(Event::Message { node: node(from), connection: 1, message })
    }

    fn disconnected(&mut self, from: usize, how: Disconnect) -> Vec<Action> {
        self.event(Event::Disconnected { node: node(from), connection: 1, how })
    }

    fn exits(&mut self, ranks: impl Into<Vec<RankEnd>>) -> Vec<Action> {
        self.event(Event::RanksExited { ranks: ranks.into(), is_run_finished: false })
    }

    /// Lets time pass, and returns the actions that this causes.
    fn pass(&mut self, time: Duration) -> Vec<Action> {
        let until = self.now + time;
        let mut all = Vec::new();
        while let Some(due) = self.state.deadline().filter(|due| *due <= until) {
            self.now = self.now.max(due);
            all.extend(self.event(Event::Deadline));
        }
        self.now = until;
        all
    }

    /// Lets time pass while these nodes send heartbeats.
    fn pass_with(&mut self, seconds: u32, alive: &[usize]) {
        for _ in 0..seconds {
            self.pass(secs(1.0));
            alive.iter().for_each(|from| drop(self.message(*from, Message::Heartbeat)));
        }
    }

    fn verdict(&self) -> Option<&Verdict> {
        self.done.iter().find_map(|action| match action {
            Action::Exit(verdict) => Some(verdict),
            _ => None,
        })
    }

    fn failure(&self) -> &Failure {
        self.verdict().and_then(|verdict| verdict.failure.as_ref()).expect("it has failed")
    }

    /// Returns why this node cannot continue, if another node is the cause.
    fn loss(&self) -> Option<&Failure> {
        self.state.lost.as_ref()
    }

    fn reason(&self) -> ExitReason {
        self.verdict().expect("it has ended").reason
    }

    fn signals(&self) -> Vec<i32> {
        let signals = self.done.iter().filter_map(|action| match action {
            Action::SignalRanks(signal) => Some(*signal),
            _ => None,
        });
        signals.collect()
    }

    fn has_sent(&self, message: &Message) -> bool {
        self.done.iter().any(|action| matches!(action, Action::Send(None, sent) if sent == message))
    }
}

#[test]
fn ranks_that_end_in_order_finish_the_attempt_or_stop_it() {
    for (is_command, is_run_finished, reason) in
        [(false, true, ExitReason::Finished), (false, false, ExitReason::Stopped), (true, false, ExitReason::Finished)]
    {
        let mut sut = Supervisor::alone(is_command, 2);
        sut.exits([exited(0, 0)]);
        assert_eq!(sut.verdict(), None);
        let ranks = vec![exited(1, 0)];
        let actions = sut.event(Event::RanksExited { ranks, is_run_finished });
        assert_eq!((sut.reason(), &sut.verdict().unwrap().failure), (reason, &None));
        assert_eq!(actions.contains(&Action::EndOrphans), is_command);
    }
}

#[test]
fn when_a_rank_fails_the_others_get_term_at_once_and_kill_after_the_grace() {
    let mut sut = Supervisor::alone(false, 3);
    let actions = sut.exits([exited(1, 9)]);
    let [Action::Record(EventKind::RankDied { rank: 1, code: Some(9), .. }), Action::SignalRanks(SIGTERM)] =
        &actions[..]
    else {
        panic!("{actions:?}")
    };
    assert_eq!(sut.pass(secs(9.9)), []);
    assert_eq!(sut.pass(secs(0.1)), [Action::SignalRanks(SIGKILL)]);
    sut.exits([signaled(0, SIGKILL), signaled(2, SIGKILL)]);
    let failure = Some(rank_failure(1));
    assert_eq!(sut.verdict(), Some(&Verdict { reason: ExitReason::Failed, first_failure: Some(1), failure }));
}

#[test]
fn the_first_cause_is_a_killed_rank_then_the_lowest_one_that_did_not_lose_contact() {
    let first = |ranks: &[RankEnd]| {
        let mut sut = Supervisor::alone(false, ranks.len());
        sut.exits(ranks);
        sut.verdict().unwrap().first_failure
    };
    assert_eq!(first(&[lost_contact(0), exited(1, 9), exited(2, 9), lost_contact(3)]), Some(1));
    assert_eq!(first(&[lost_contact(0), exited(1, 9), signaled(2, SIGKILL)]), Some(2));
    assert_eq!(first(&[exited(0, 0), lost_contact(1)]), Some(1));
}

#[test]
fn a_stop_signal_reaches_all_ranks_which_may_save_for_any_time() {
    for signal in [SIGTERM, SIGINT] {
        let mut sut = Supervisor::alone(false, 2);
        sut.event(Event::Signal(signal));
        sut.pass(secs(3600.0));
        assert_eq!(sut.signals(), [SIGTERM]);
        sut.exits([exited(0, 0), exited(1, 0)]);
        assert_eq!(sut.reason(), ExitReason::Stopped);
    }
}

#[test]
fn ranks_that_a_stop_ends_before_they_save_count_as_killed_and_failed_saves_as_failed() {
    let ended = |is_command, rank| {
        let mut sut = Supervisor::alone(is_command, 1);
        sut.event(Event::Signal(SIGTERM));
        sut.exits([rank]);
        sut.reason()
    };
    for is_command in [false, true] {
        assert_eq!(ended(is_command, signaled(0, SIGTERM)), ExitReason::Killed);
    }
    assert_eq!(ended(false, exited(0, 1)), ExitReason::Failed);
    assert_eq!(ended(true, exited(0, 143)), ExitReason::Killed, "a launcher reports the signal by its code");
}

#[test]
fn a_command_that_term_ends_before_the_supervisor_has_received_it_was_stopped() {
    for rank in [signaled(0, SIGTERM), exited(0, 143)] {
        let mut sut = Supervisor::alone(true, 1);
        sut.exits([rank.clone()]);
        assert_eq!(sut.verdict(), None, "TERM may come a moment later");
        sut.pass(secs(0.1));
        sut.event(Event::Signal(SIGTERM));
        assert_eq!((sut.reason(), sut.verdict().unwrap().failure.clone()), (ExitReason::Killed, None));
        // Without a TERM, another program has signalled the rank.
        let mut sut = Supervisor::alone(true, 2);
        sut.exits([rank]);
        sut.pass(WAITS.reason - secs(0.1));
        assert_eq!(sut.signals(), [0; 0]);
        sut.pass(secs(0.1));
        assert_eq!(sut.signals(), [SIGTERM], "the other rank is ended");
        sut.exits([signaled(1, SIGTERM)]);
        assert_eq!((sut.reason(), sut.failure()), (ExitReason::Failed, &rank_failure(0)));
    }
    let mut trainer = Supervisor::alone(false, 1);
    trainer.exits([signaled(0, SIGTERM)]);
    assert_eq!(trainer.reason(), ExitReason::Failed);
}

#[test]
fn a_save_signal_is_passed_on() {
    let mut sut = Supervisor::alone(false, 1);
    sut.event(Event::Signal(SIGUSR1));
    assert_eq!(sut.signals(), [SIGUSR1]);
}

#[test]
fn a_stop_file_and_a_term_are_one_stop_request_in_either_order() {
    let mut sut = Supervisor::alone(true, 1);
    sut.event(Event::StopFile);
    sut.event(Event::Signal(SIGTERM));
    assert_eq!(sut.signals(), [SIGTERM]);
    sut.event(Event::Signal(SIGTERM));
    assert_eq!(sut.signals(), [SIGTERM, SIGTERM], "a second TERM is a second request");
    let mut sut = Supervisor::alone(true, 1);
    sut.event(Event::Signal(SIGTERM));
    sut.event(Event::StopFile);
    assert_eq!(sut.signals(), [SIGTERM]);
}

#[test]
fn a_stop_file_stops_all_nodes_including_those_that_connect_later() {
    let mut first = Supervisor::command(1, 2);
    first.event(Event::StopFile);
    assert!(first.has_sent(&Message::Stop));
    let actions = first.event(Event::Connected { node: node(2), connection: 1 });
    assert!(actions.contains(&Action::Send(Some(node(2)), Message::Stop)));
    let mut other = Supervisor::command(2, 2).connected();
    other.message(1, Message::Stop);
    other.message(1, Message::Stop);
    assert_eq!(other.signals(), [SIGTERM]);
    other.exits([exited(0, 0), exited(1, 0)]);
    assert_eq!(other.reason(), ExitReason::Stopped);
}

#[test]
fn a_stop_file_stops_a_node_that_could_not_connect_before_the_first_node_ended() {
    for exit in [PeerExit::Stopped, PeerExit::Done] {
        let mut other = Supervisor::command(2, 2);
        let files = PeerFiles { exit: Some(exit), has_stop_file: true, ..PeerFiles::default() };
        other.event(Event::PeerFiles { node: node(1), files });
        assert_eq!(other.signals(), [SIGTERM]);
        other.exits([exited(0, 0), exited(1, 0)]);
        assert_eq!(other.reason(), ExitReason::Stopped);
    }
}

#[test]
fn a_node_that_cannot_start_its_ranks_sends_the_reason() {
    let mut sut = Supervisor::of(2, 2).connected();
    let failure = Failure::new(ErrorCode::StartFailed, "cannot start rank 2", "no such file", "");
    sut.event(Event::StartFailed(failure.clone()));
    assert!(sut.has_sent(&Message::Failed(failure.clone())));
    assert_eq!(sut.failure(), &failure);
}

#[test]
fn a_failure_is_sent_to_all_and_ends_the_others_with_that_cause() {
    let mut failing = Supervisor::of(3, 3).connected();
    failing.exits([exited(4, 9)]);
    assert!(failing.has_sent(&Message::Failed(rank_failure(4))));

    let mut first = Supervisor::of(1, 3).connected();
    let actions = first.message(3, Message::Failed(rank_failure(4)));
    let loss = first.loss().unwrap().clone();
    assert_eq!((loss.code, &loss.cause), (ErrorCode::PeerLost, &Cause::Peer(Some(node(3)))));
    assert!(actions.contains(&Action::Send(None, Message::Failed(loss.clone()))));
    assert!(actions.contains(&Action::Record(EventKind::Failed { failure: loss.clone() })));
    assert_eq!(first.pass(secs(1.9)), []);
    first.pass(secs(0.1));
    assert_eq!(first.signals(), [SIGTERM, SIGKILL], "a lost node has a grace of 2 s");

    let mut other = Supervisor::of(2, 3).connected();
    other.message(1, Message::Failed(loss.clone()));
    other.exits([lost_contact(2), signaled(3, SIGTERM)]);
    assert_eq!(
        other.verdict(),
        Some(&Verdict { reason: ExitReason::Failed, first_failure: None, failure: Some(loss) })
    );
}

#[test]
fn a_failure_of_the_first_node_ends_the_others_with_that_cause() {
    let mut other = Supervisor::of(2, 2).connected();
    other.message(1, Message::Failed(rank_failure(0)));
    assert_eq!(other.loss().unwrap().cause, Cause::Peer(Some(node(1))));
}

#[test]
fn ranks_that_lost_contact_wait_for_the_reason_that_a_supervisor_sends() {
    let ended = || {
        let mut sut = Supervisor::of(2, 3).connected();
        sut.exits([lost_contact(2), lost_contact(3)]);
        assert_eq!(sut.verdict(), None);
        assert!(!sut.done.iter().any(|action| matches!(action, Action::Send(None, Message::Failed(_)))));
        sut
    };
    let reason = Failure::new(ErrorCode::NodeLost, "node node03 was lost", "no heartbeat", "");
    let mut sut = ended();
    sut.pass(secs(2.9));
    sut.message(1, Message::Failed(reason.clone()));
    assert_eq!((sut.failure(), sut.verdict().unwrap().first_failure), (&reason, None));

    let mut sut = ended();
    sut.pass(secs(3.0));
    assert_eq!((sut.failure().cause.clone(), sut.verdict().unwrap().first_failure), (Cause::Peer(None), Some(2)));
    assert!(sut.has_sent(&Message::Failed(peer_lost())));
}

#[test]
fn a_rank_that_caused_the_end_of_others_is_the_first_cause_although_it_ends_after_them() {
    let device = Failure::new(ErrorCode::DeviceFailed, "the GPU of this rank failed", "uncorrectable ECC error", "");
    let with_device = |rank| RankEnd { failure: device.clone(), ..exited(rank, 1) };
    let mut sut = Supervisor::alone(false, 3);
    sut.exits([lost_contact(0)]);
    sut.exits([with_device(1)]);
    // The supervisor ends the rank that is left.
    sut.exits([signaled(2, SIGKILL)]);
    assert_eq!((sut.failure(), sut.verdict().unwrap().first_failure), (&device, Some(1)));

    // A rank whose device failed comes first among ranks that are found dead at the same time.
    let mut sut = Supervisor::alone(false, 3);
    sut.exits([exited(0, 1), with_device(2), signaled(1, 11)]);
    assert_eq!(sut.verdict().unwrap().first_failure, Some(2));

    // A rank that this supervisor killed is no cause.
    let mut sut = Supervisor::alone(false, 2);
    sut.exits([lost_contact(0)]);
    sut.exits([signaled(1, SIGKILL)]);
    assert_eq!(sut.verdict().unwrap().first_failure, Some(0));

    // Other nodes receive the cause.
    let mut sut = Supervisor::of(1, 2).connected();
    sut.exits([lost_contact(0)]);
    sut.exits([with_device(1)]);
    assert!(sut.has_sent(&Message::Failed(device.clone())));
}

#[test]
fn a_node_that_misses_heartbeats_is_lost() {
    let mut first = Supervisor::of(1, 3).connected();
    first.pass_with(9, &[2]);
    assert_eq!(first.loss(), None);
    first.pass_with(1, &[2]);
    let loss = first.loss().unwrap();
    assert_eq!((loss.code, &loss.cause), (ErrorCode::NodeLost, &Cause::Root));
    assert!(loss.what.contains("node03"), "{loss}");
    // A node that was cut off together with its ranks is lost, although a rank recorded that it lost contact.
    let mut first = Supervisor::of(1, 3).connected();
    first.files.insert(node(3), PeerFiles { exit: Some(PeerExit::Failed(peer_lost())), ..PeerFiles::default() });
    first.pass_with(10, &[2]);
    assert_eq!(first.loss().unwrap().code, ErrorCode::NodeLost);
    // The other nodes accept the reason of the first node unchanged.
    let mut other = Supervisor::of(2, 3).connected();
    other.message(1, Message::Failed(loss.clone()));
    assert_eq!(other.loss(), Some(loss));
}

#[test]
fn a_first_node_that_misses_heartbeats_is_lost_to_the_others() {
    let mut other = Supervisor::of(2, 2).connected();
    other.pass(TIMEOUT);
    let loss = other.loss().unwrap();
    assert_eq!((loss.code, &loss.cause), (ErrorCode::PeerLost, &Cause::Peer(Some(node(1)))));
}

#[test]
fn a_node_that_misses_heartbeats_is_not_lost_while_steps_advance() {
    let mut first = Supervisor::of(1, 2).connected();
    for step in 1..100 {
        first.files.insert(node(2), PeerFiles { steps_bytes: step, ..PeerFiles::default() });
        first.pass(secs(1.0));
    }
    assert_eq!(first.loss(), None);
    first.pass(TIMEOUT);
    assert_eq!(first.loss().unwrap().code, ErrorCode::NodeLost, "the run makes no more steps");
}

#[test]
fn a_node_whose_messages_were_only_late_is_not_lost() {
    // This node itself was suspended: the first check happens late, and the messages arrive before the second.
    let mut first = Supervisor::of(1, 2).connected();
    first.now = secs(60.0);
    first.event(Event::Deadline);
    first.message(2, Message::Heartbeat);
    first.pass(secs(9.0));
    assert_eq!(first.loss(), None);
}

#[test]
fn a_first_node_that_receives_no_heartbeats_at_all_blames_none_of_the_others() {
    let after = |nodes: usize, alive: &[usize]| {
        let mut first = Supervisor::of(1, nodes).connected();
        first.pass_with(10, alive);
        first.loss().unwrap().clone()
    };
    let is_lost = |failure: Failure, node| failure.code == ErrorCode::NodeLost && failure.what.contains(node);
    assert!(is_lost(after(4, &[2, 4]), "node03"));
    assert!(is_lost(after(2, &[]), "node02"), "with two nodes, either may be cut off");
    let alone = after(4, &[]);
    assert_eq!((alone.code, alone.cause), (ErrorCode::PeerLost, Cause::Peer(None)));

    // The same happens if the node was cut off before the others had connected, or before only one of them had.
    let started = |connected: &[usize]| {
        let mut first = Supervisor::of(1, 4);
        let files = PeerFiles { has_started: true, ..PeerFiles::default() };
        first.files = (2..=4).map(|number| (node(number), files.clone())).collect();
        for number in connected {
            first.event(Event::Connected { node: node(*number), connection: 1 });
        }
        first.pass_with(12, connected);
        first.loss().unwrap().clone()
    };
    assert_eq!((started(&[]).code, started(&[]).cause), (ErrorCode::PeerLost, Cause::Peer(None)));
    assert!(is_lost(started(&[2, 4]), "node03"));
}

#[test]
fn a_node_that_closes_its_connection_without_a_reason_is_lost_and_one_that_is_done_is_not() {
    let mut first = Supervisor::of(1, 2).connected();
    first.disconnected(2, Disconnect::Closed);
    assert_eq!(first.loss().unwrap().code, ErrorCode::NodeLost);
    let mut other = Supervisor::of(2, 2).connected();
    other.disconnected(1, Disconnect::Closed);
    assert_eq!(other.loss().unwrap().cause, Cause::Peer(Some(node(1))));
    for (this, from) in [(1, 2), (2, 1)] {
        let mut sut = Supervisor::of(this, 2).connected();
        sut.message(from, Message::Done);
        sut.disconnected(from, Disconnect::Closed);
        sut.pass(START_GRACE);
        assert_eq!(sut.loss(), None);
    }
}

#[test]
fn the_exit_file_of_a_node_that_closed_its_connection_is_evidence() {
    let after = |this, from, exit| {
        let mut sut = Supervisor::of(this, 3).connected();
        sut.files.insert(node(from), PeerFiles { exit: Some(exit), ..PeerFiles::default() });
        sut.disconnected(from, Disconnect::Closed);
        sut.loss().cloned()
    };
    assert_eq!(after(1, 2, PeerExit::Done), None);
    assert_eq!(after(1, 2, PeerExit::Failed(rank_failure(2))).unwrap().cause, Cause::Peer(Some(node(2))));
    assert_eq!(after(1, 2, PeerExit::Stopped).unwrap().cause, Cause::Peer(Some(node(2))));
    // A node that was cut off is lost, even if it can still write an exit file about that.
    let misses_first = Failure::peer_lost(Some(node(1)), "no heartbeat of its supervisor", "");
    assert_eq!(after(1, 2, PeerExit::Failed(misses_first)).unwrap().code, ErrorCode::NodeLost);
    // A node that closed the connection normally, because one of its ranks lost contact with an unknown node, is not lost.
    assert_eq!(after(1, 2, PeerExit::Failed(peer_lost())).unwrap().cause, Cause::Peer(None));
    // A node that only lost contact is not the origin.
    let mut first = Supervisor::of(1, 3).connected();
    first.message(2, Message::Failed(peer_lost()));
    assert_eq!(first.loss().unwrap().cause, Cause::Peer(None));
    // The first node reports the failure of a third node as the reason.
    let third = Failure::peer_lost(Some(node(3)), "node node03 failed: rank 2 failed", "");
    assert_eq!(after(2, 1, PeerExit::Failed(third.clone())), Some(third));
}

#[test]
fn an_exit_file_that_an_earlier_check_missed_is_read_before_a_node_is_lost() {
    let mut first = Supervisor::of(1, 2).connected();
    first.now = secs(5.0);
    let looked = decide(&mut first.state, first.now, Event::Deadline);
    assert_eq!(looked, [Action::Look(node(2))]);
    decide(&mut first.state, first.now, Event::Disconnected { node: node(2), connection: 1, how: Disconnect::Closed });
    let files = |exit| Event::PeerFiles { node: node(2), files: PeerFiles { exit, ..PeerFiles::default() } };
    decide(&mut first.state, first.now, files(None));
    assert_eq!(first.loss(), None);
    decide(&mut first.state, first.now, files(Some(PeerExit::Done)));
    assert_eq!(first.loss(), None);
}

#[test]
fn a_broken_connection_is_reconnected_and_messages_sent_meanwhile_arrive() {
    let mut other = Supervisor::of(2, 2).connected();
    other.disconnected(1, Disconnect::Broken("reset".into()));
    let actions = other.pass(secs(0.5));
    assert!(actions.contains(&Action::Dial));
    other.exits([exited(2, 9)]);
    let actions = other.event(Event::Connected { node: node(1), connection: 2 });
    assert!(actions.contains(&Action::Send(Some(node(1)), Message::Failed(rank_failure(2)))));
    assert_eq!(other.loss(), None);

    let mut first = Supervisor::of(1, 2).connected();
    first.disconnected(2, Disconnect::Broken("reset".into()));
    first.pass(secs(1.9));
    first.event(Event::Connected { node: node(2), connection: 2 });
    first.event(Event::Disconnected { node: node(2), connection: 1, how: Disconnect::Closed });
    first.pass(secs(5.0));
    assert_eq!(first.loss(), None);
}

#[test]
fn a_node_that_does_not_reconnect_after_its_connection_broke_is_lost() {
    let mut first = Supervisor::of(1, 2).connected();
    first.disconnected(2, Disconnect::Broken("reset".into()));
    first.pass(secs(2.0));
    assert_eq!(first.loss().unwrap().code, ErrorCode::NodeLost);
    let mut other = Supervisor::of(2, 2).connected();
    other.disconnected(1, Disconnect::Broken("reset".into()));
    other.pass(secs(3.0));
    assert_eq!(other.loss().unwrap().cause, Cause::Peer(Some(node(1))));
}

#[test]
fn a_node_that_never_connects_is_lost_sooner_when_it_has_started() {
    for this in [1, 2] {
        for (has_started, patience) in [(false, START_GRACE), (true, TIMEOUT)] {
            let mut sut = Supervisor::of(this, 2);
            let files = PeerFiles { has_started, ..PeerFiles::default() };
            sut.files = [1, 2].map(|number| (node(number), files.clone())).into();
            sut.pass(patience - secs(1.0));
            assert_eq!(sut.loss(), None);
            sut.pass(secs(3.0));
            let code = if this == 1 { ErrorCode::NodeLost } else { ErrorCode::PeerLost };
            assert_eq!(sut.loss().unwrap().code, code);
        }
    }
}

#[test]
fn the_exit_file_of_a_node_that_ended_before_it_connected_is_evidence() {
    let after = |this, other: usize, exit| {
        let mut sut = Supervisor::of(this, 2);
        sut.files.insert(node(other), PeerFiles { exit: Some(exit), ..PeerFiles::default() });
        sut.pass(secs(1.0));
        sut.loss().cloned()
    };
    for (this, other) in [(1, 2), (2, 1)] {
        let failed = after(this, other, PeerExit::Failed(rank_failure(2)));
        assert_eq!(failed.unwrap().cause, Cause::Peer(Some(node(other))));
        assert_eq!(after(this, other, PeerExit::Done), None);
    }
    assert!(after(1, 2, PeerExit::Stopped).is_some());
}

#[test]
fn a_node_that_a_stop_reaches_earlier_is_not_lost() {
    for this in [1, 2] {
        let mut late = Supervisor::command(this, 2).connected();
        late.message(3 - this, Message::Stopped(node(3 - this)));
        late.pass(secs(2.9));
        late.event(Event::Signal(SIGTERM));
        late.exits([signaled(0, SIGTERM), signaled(1, SIGTERM)]);
        assert_eq!((late.reason(), &late.verdict().unwrap().failure), (ExitReason::Killed, &None));
    }
}

#[test]
fn a_failure_after_the_stop_of_another_node_and_before_the_own_stop_counts_as_that_stop() {
    let mut first = Supervisor::command(1, 2).connected();
    first.message(2, Message::Stopped(node(2)));
    first.exits([exited(0, 1), exited(1, 1)]);
    assert_eq!((first.reason(), &first.verdict().unwrap().failure), (ExitReason::Killed, &None));
    assert!(first.has_sent(&Message::Stopped(node(1))));
}

#[test]
fn a_node_that_is_stopped_alone_is_lost_to_the_others() {
    let mut first = Supervisor::command(1, 2).connected();
    first.message(2, Message::Stopped(node(2)));
    first.pass(secs(3.0));
    assert_eq!(first.loss().unwrap().cause, Cause::Peer(Some(node(2))));
    // The embedded trainer saves on all nodes together.
    let mut first = Supervisor::of(1, 2).connected();
    first.message(2, Message::Stopped(node(2)));
    assert_eq!(first.loss().unwrap().cause, Cause::Peer(Some(node(2))));
}

#[test]
fn a_stopped_command_may_save_although_other_nodes_ended_at_once() {
    let mut first = Supervisor::command(1, 2).connected();
    first.event(Event::Signal(SIGTERM));
    first.message(2, Message::Stopped(node(2)));
    first.message(2, Message::Done);
    first.pass(secs(600.0));
    assert_eq!(first.signals(), [SIGTERM]);
    first.exits([exited(0, 0), exited(1, 0)]);
    assert_eq!(first.reason(), ExitReason::Stopped);
}

#[test]
fn a_failure_counts_more_than_a_stop_that_was_reported_before() {
    let mut first = Supervisor::command(1, 3).connected();
    first.message(2, Message::Stopped(node(2)));
    first.message(3, Message::Failed(rank_failure(4)));
    assert_eq!(first.loss().unwrap().cause, Cause::Peer(Some(node(3))));
}

#[test]
fn the_first_reason_is_not_replaced_by_its_consequences() {
    let mut first = Supervisor::of(1, 3).connected();
    first.message(3, Message::Failed(rank_failure(4)));
    let reason = first.loss().cloned();
    first.message(2, Message::Failed(peer_lost()));
    first.disconnected(2, Disconnect::Closed);
    first.exits([lost_contact(0), lost_contact(1)]);
    assert_eq!(Some(first.failure()), reason.as_ref());
}

#[test]
fn a_node_that_has_ended_normally_reports_it_and_records_no_later_loss() {
    let mut first = Supervisor::of(1, 2).connected();
    first.event(Event::RanksExited { ranks: vec![exited(0, 0), exited(1, 0)], is_run_finished: true });
    assert!(first.has_sent(&Message::Done) && first.done.contains(&Action::Leave));
    assert_eq!(first.disconnected(2, Disconnect::Closed), []);
    assert_eq!(first.reason(), ExitReason::Finished);
}

#[test]
fn a_rank_that_dies_does_not_end_ranks_that_do_not_need_it() {
    let mut first = Supervisor::independent(1, 2).connected();
    let ranks = vec![signaled(0, SIGKILL)];
    let actions = first.event(Event::RanksExited { ranks, is_run_finished: false });
    let [Action::Record(EventKind::RankDied { rank: 0, .. })] = &actions[..] else { panic!("{actions:?}") };
    let actions = first.event(Event::RanksExited { ranks: vec![exited(1, 0)], is_run_finished: true });
    let verdict = Verdict { reason: ExitReason::Finished, first_failure: Some(0), failure: None };
    assert_eq!(actions, [Action::Send(None, Message::Done), Action::Leave, Action::Exit(verdict)]);
}

#[test]
fn a_node_without_ranks_has_failed_only_if_the_work_is_not_done() {
    let end = |ranks: Vec<RankEnd>, is_run_finished, stop: bool| {
        let mut alone = Supervisor::independent(1, 2).connected();
        if stop {
            alone.event(Event::Signal(SIGTERM));
        }
        let actions = alone.event(Event::RanksExited { ranks, is_run_finished });
        let Some(Action::Exit(verdict)) = actions.last() else { panic!("{actions:?}") };
        (verdict.reason, verdict.first_failure)
    };
    let both = |first, second| vec![first, second];
    assert_eq!(end(both(exited(0, 1), exited(1, 9)), false, false), (ExitReason::Failed, Some(0)));
    assert_eq!(end(both(exited(0, 1), exited(1, 9)), true, false), (ExitReason::Finished, Some(0)));
    assert_eq!(end(both(exited(0, 0), exited(1, 9)), false, false), (ExitReason::Failed, Some(1)));
    assert_eq!(end(both(exited(0, 0), exited(1, 9)), false, true), (ExitReason::Stopped, Some(1)));
    assert_eq!(end(both(exited(0, 0), exited(1, 0)), false, true), (ExitReason::Stopped, None));
    assert_eq!(end(both(signaled(0, SIGTERM), signaled(1, SIGTERM)), false, true), (ExitReason::Killed, None));
}

#[test]
fn a_lost_node_is_recorded_once_and_ends_no_rank_that_does_not_need_it() {
    let mut first = Supervisor::independent(1, 3).connected();
    let lost = node(2);
    let actions = first.event(Event::Disconnected { node: lost.clone(), connection: 1, how: Disconnect::Closed });
    let recorded: Vec<_> = actions.iter().filter(|action| matches!(action, Action::Record(_))).collect();
    let [Action::Record(EventKind::NodeLost { node, failure })] = &recorded[..] else { panic!("{actions:?}") };
    assert_eq!((node, failure.code), (&lost, ErrorCode::NodeLost));
    let is_end = |action: &Action| matches!(action, Action::SignalRanks(_) | Action::Exit(_) | Action::Send(..));
    assert!(!first.done.iter().any(is_end), "{:?}", first.done);
    // The same holds if the first node is lost: the other ranks do not need its ranks either.
    let mut other = Supervisor::independent(2, 3).connected();
    let gone = super::tests::node(1);
    other.event(Event::Disconnected { node: gone.clone(), connection: 1, how: Disconnect::Closed });
    assert!(!other.done.iter().any(is_end), "{:?}", other.done);
    assert!(
        other
            .done
            .iter()
            .any(|action| matches!(action, Action::Record(EventKind::NodeLost { node, .. }) if *node == gone))
    );
}
