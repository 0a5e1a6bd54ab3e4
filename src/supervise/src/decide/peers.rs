//! Decisions about the supervisors of the other nodes: which node is lost, and why the run cannot continue.
//!
//! A collective waits for a lost node until its timeout of half an hour, and ranks of other nodes notice a failed rank
//! only at their next collective. So each supervisor keeps a connection to the first node's supervisor, on the port
//! after that of the ranks, and sends a heartbeat every second. A supervisor whose node fails sends the failure; one
//! whose ranks end normally sends [`Message::Done`]. A node is lost when its supervisor misses heartbeats, closes the
//! connection without a reason, or never connects; the first node's supervisor informs the others. A node that misses
//! heartbeats is not declared lost while training steps advance that need every rank, because the ranks may use another
//! network. A connection that breaks, for example because a firewall resets it, is reconnected. All nodes share the
//! run's folder, so the exit file shows how a node without a connection ended. If a stop ended the ranks of a node, the
//! other nodes are informed, because this message may arrive before their own stop signal.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cluster::NodeId;
use rundir::{Cause, ErrorCode, Failure, RunDir};
use runstate::START_GRACE;

use super::{Action, Dependence, Disconnect, Event, PeerFiles, killed};
use crate::message::Message;

/// The interval of heartbeats.
pub const HEARTBEAT: Duration = Duration::from_secs(1);
/// The time without heartbeats after which a node is lost, if the run makes no steps. A loaded node is late by a second
/// or two; a node that is late by ten could not train.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// The pause between two attempts to connect, and between two checks of a node that has not connected.
const RETRY: Duration = Duration::from_millis(500);

/// The nodes of an attempt, and the address at which their supervisors connect.
#[derive(Debug, Clone)]
pub struct Rendezvous {
    pub run: RunDir,
    pub attempt: u32,
    pub this: NodeId,
    /// The node that listens, where rank 0 is.
    pub first: NodeId,
    /// All nodes but the first.
    pub others: BTreeSet<NodeId>,
    pub address: String,
    pub port: u16,
    /// Whether the run is a Slurm job, whose nodes Slurm chooses.
    pub is_job: bool,
    /// Whether the loss of a node ends the others.
    pub dependence: Dependence,
}

impl Rendezvous {
    /// Returns true on the node that listens.
    pub fn is_first(&self) -> bool {
        self.this == self.first
    }
}

/// The end of a node from the view of another node.
#[derive(Debug, Clone, PartialEq)]
pub enum PeerExit {
    /// The ranks ended normally.
    Done,
    /// The node failed.
    Failed(Failure),
    /// A stop ended the ranks before they could save.
    Stopped,
    /// The node is lost. The text is the evidence.
    Lost(String),
}

/// The reason why the run cannot continue, if another node is the cause.
#[derive(Debug, Clone, PartialEq)]
pub enum PeerLoss {
    /// A node failed or was lost.
    Failed(Failure),
    /// A stop ended the ranks of this node.
    Stopped(NodeId),
}

impl PeerLoss {
    /// Returns the reason why this node ends.
    pub fn failure(self) -> Failure {
        match self {
            Self::Failed(failure) => failure,
            Self::Stopped(node) => consequence(&node, &killed(&node)),
        }
    }

    fn message(&self) -> Message {
        match self {
            Self::Failed(failure) => Message::Failed(failure.clone()),
            Self::Stopped(node) => Message::Stopped(node.clone()),
        }
    }
}

/// The supervisors that this supervisor watches: on the first node all others, on any other node the first.
#[derive(Debug)]
pub struct Peers {
    rendezvous: Rendezvous,
    pub(super) links: BTreeMap<NodeId, Link>,
    /// The time of the last message from each node that was connected and has not ended normally.
    last_message: BTreeMap<NodeId, Duration>,
    /// The number of checks of the files of each node that are in progress.
    looks: BTreeMap<NodeId, u32>,
    /// The messages that are also sent to a node that connects later.
    sent: Vec<Message>,
    loss: Option<PeerLoss>,
    /// The lost nodes that are not recorded yet, if ranks do not need each other.
    losses: Vec<(NodeId, Failure)>,
    /// Whether this node has ended normally. Then no other node counts as lost.
    is_done: bool,
}

/// The connection to one other supervisor.
#[derive(Debug)]
pub(super) enum Link {
    /// There is no connection yet, or it broke and this node reconnects.
    Absent(Wait),
    Connected {
        connection: u64,
        /// The time at which to check whether the run makes steps; `None` while a check is in progress.
        look_at: Option<Duration>,
        /// The size of `metrics.jsonl` after half of the timeout without a heartbeat.
        steps_at_half: Option<u64>,
    },
    /// On the first node: the connection broke, and the other node must reconnect before this time.
    Broken { until: Duration, error: String },
    /// The node seems lost; its exit file is being read.
    Settling(String),
    /// No more messages are expected.
    Over,
}

/// The state of a connection that is not made yet.
#[derive(Debug)]
pub(super) struct Wait {
    until: Duration,
    has_started: bool,
    /// The time of the next attempt; `None` while one is in progress.
    next: Option<Duration>,
    /// The error of the last attempt to connect.
    error: String,
}

impl Peers {
    /// Makes the state of a supervisor without connections.
    pub fn new(rendezvous: Rendezvous) -> Self {
        Self {
            rendezvous,
            links: BTreeMap::new(),
            last_message: BTreeMap::new(),
            looks: BTreeMap::new(),
            sent: Vec::new(),
            loss: None,
            losses: Vec::new(),
            is_done: false,
        }
    }

    /// Returns why the run cannot continue, if another node is the reason.
    pub fn loss(&self) -> Option<PeerLoss> {
        self.loss.clone()
    }

    /// Returns the nodes that were lost since the last call, if ranks do not need each other.
    pub fn take_losses(&mut self) -> Vec<(NodeId, Failure)> {
        std::mem::take(&mut self.losses)
    }

    /// Sends a message to all other nodes, including those that connect later.
    pub fn send(&mut self, message: Message, actions: &mut Vec<Action>) {
        self.is_done |= message == Message::Done;
        self.sent.push(message.clone());
        actions.push(Action::Send(None, message));
    }

    /// Returns the time of the next action that does not depend on an event.
    pub fn deadline(&self) -> Option<Duration> {
        let due = self.links.values().filter_map(|link| match link {
            Link::Absent(wait) => wait.next,
            Link::Connected { look_at, .. } => *look_at,
            Link::Broken { until, .. } => Some(*until),
            Link::Settling(_) | Link::Over => None,
        });
        due.min().filter(|_| !self.is_done)
    }

    /// Processes an event.
    pub fn take(&mut self, at: Duration, event: &Event, actions: &mut Vec<Action>) {
        match event {
            Event::Started => self.start(at, actions),
            Event::Connected { node, connection } => self.connected(at, node, *connection, actions),
            Event::Message { node, connection, message } => self.message(at, node, *connection, message, actions),
            Event::Disconnected { node, connection, how } => self.disconnected(at, node, *connection, how, actions),
            Event::DialFailed(error) => self.dial_failed(error, actions),
            Event::PeerFiles { node, files } => self.files(at, node, files, actions),
            _ => {}
        }
        self.do_what_is_due(at, actions);
    }

    fn start(&mut self, at: Duration, actions: &mut Vec<Action>) {
        let wait = |next| Link::Absent(Wait { next, ..Wait::new(at + START_GRACE) });
        if self.rendezvous.is_first() {
            // Exit files count from the first check on.
            self.links = self.rendezvous.others.iter().map(|node| (node.clone(), wait(Some(at + RETRY)))).collect();
        } else {
            self.links.insert(self.rendezvous.first.clone(), wait(None));
            actions.push(Action::Dial);
        }
    }

    fn connected(&mut self, at: Duration, node: &NodeId, connection: u64, actions: &mut Vec<Action>) {
        actions.extend(self.sent.iter().map(|message| Action::Send(Some(node.clone()), message.clone())));
        let Some(link) = self.links.get_mut(node).filter(|link| !matches!(link, Link::Over)) else { return };
        *link = Link::Connected { connection, look_at: Some(at + TIMEOUT / 2), steps_at_half: None };
        self.last_message.insert(node.clone(), at);
    }

    fn message(&mut self, at: Duration, node: &NodeId, from: u64, message: &Message, actions: &mut Vec<Action>) {
        match self.links.get_mut(node) {
            Some(Link::Connected { connection, look_at, steps_at_half }) if *connection == from => {
                (*look_at, *steps_at_half) = (Some(at + TIMEOUT / 2), None);
            }
            // A message of an earlier connection, or of a node that is already lost.
            _ => return,
        }
        self.last_message.insert(node.clone(), at);
        match message {
            Message::Done => self.conclude(at, node, PeerExit::Done, actions),
            Message::Failed(failure) => self.conclude(at, node, PeerExit::Failed(failure.clone()), actions),
            Message::Stopped(stopped) => self.lose(stopped, PeerLoss::Stopped(stopped.clone()), actions),
            // `State` processes the stop.
            Message::Heartbeat | Message::Stop => {}
        }
    }

    fn disconnected(&mut self, at: Duration, node: &NodeId, from: u64, how: &Disconnect, actions: &mut Vec<Action>) {
        let is_first = self.rendezvous.is_first();
        let Some(link) = self.links.get_mut(node) else { return };
        if !matches!(link, Link::Connected { connection, .. } if *connection == from) {
            return;
        }
        // Two seconds, which is shorter than `Waits::reason`.
        let until = at + TIMEOUT / 5;
        match how {
            Disconnect::Closed => {
                *link = Link::Settling("its supervisor closed the connection and sent no reason".into());
                look(&mut self.looks, node, actions);
            }
            Disconnect::Broken(error) if is_first => {
                actions.push(Action::Log(format!("the connection to the supervisor of node {node} broke: {error}")));
                *link = Link::Broken { until, error: error.clone() };
            }
            Disconnect::Broken(error) => {
                let first = format!("the supervisor of node {node}");
                actions.push(Action::Log(format!("the connection to {first} broke: {error}; reconnecting")));
                *link = Link::Absent(Wait { next: Some(at + RETRY), error: error.clone(), ..Wait::new(until) });
            }
        }
    }

    fn dial_failed(&mut self, why: &str, actions: &mut Vec<Action>) {
        let first = &self.rendezvous.first;
        if let Some(Link::Absent(Wait { error, .. })) = self.links.get_mut(first) {
            *error = why.to_owned();
            look(&mut self.looks, first, actions);
        }
    }

    fn files(&mut self, at: Duration, node: &NodeId, files: &PeerFiles, actions: &mut Vec<Action>) {
        let looks = self.looks.entry(node.clone()).or_default();
        *looks = looks.saturating_sub(1);
        let is_newest = *looks == 0;
        let Some(link) = self.links.get_mut(node) else { return };
        let exit = match (link, &files.exit) {
            // The node ended because one of its ranks lost contact with an unknown node, so this node is not the lost one. This
            // does not hold for a node that misses heartbeats, because its ranks may be cut off too.
            (
                Link::Absent(_) | Link::Settling(_),
                Some(exit @ PeerExit::Failed(Failure { cause: Cause::Peer(None), .. })),
            ) => exit.clone(),
            (Link::Absent(wait), _) => {
                wait.look(at, files.has_started);
                if files.exit.is_none() && at < wait.until {
                    return;
                }
                let (has_started, error) = (wait.has_started, wait.error.clone());
                self.settle(node, self.never_connected(node, has_started, &error), files)
            }
            (Link::Connected { look_at: look_at @ None, steps_at_half, .. }, _) => {
                let steps = files.steps_bytes;
                // If steps advance, the node is alive.
                if steps_at_half.replace(steps).is_none_or(|before| steps > before) {
                    *look_at = Some(at + TIMEOUT / 2);
                    return;
                }
                let timeout = TIMEOUT.as_secs();
                let how = format!("no heartbeat of its supervisor for {timeout} s: the node or its network is down");
                self.settle(node, how, files)
            }
            // A check that began before the connection ended may have missed the exit file.
            (Link::Settling(how), _) if is_newest => {
                let how = how.clone();
                self.settle(node, how, files)
            }
            (Link::Connected { .. } | Link::Broken { .. } | Link::Settling(_) | Link::Over, _) => return,
        };
        self.conclude(at, node, exit, actions);
    }

    fn do_what_is_due(&mut self, at: Duration, actions: &mut Vec<Action>) {
        if self.is_done {
            return;
        }
        for (node, link) in &mut self.links {
            match link {
                Link::Absent(Wait { next, .. }) if next.is_some_and(|due| due <= at) => {
                    *next = None;
                    match self.rendezvous.is_first() {
                        true => look(&mut self.looks, node, actions),
                        false => actions.push(Action::Dial),
                    }
                }
                Link::Connected { look_at, .. } if look_at.is_some_and(|due| due <= at) => {
                    *look_at = None;
                    look(&mut self.looks, node, actions);
                }
                Link::Broken { until, error } if *until <= at => {
                    let how = format!("the connection to its supervisor broke: {error}; it did not connect again");
                    *link = Link::Settling(how);
                    look(&mut self.looks, node, actions);
                }
                _ => {}
            }
        }
    }

    /// Returns how a node that seems lost has ended: as its exit file records, or lost.
    fn settle(&self, node: &NodeId, how: String, files: &PeerFiles) -> PeerExit {
        match &files.exit {
            // Both nodes lost each other. The shared disk may use another network, so the exit file can exist.
            Some(PeerExit::Failed(failure)) if failure.is_consequence() && *node != self.rendezvous.first => {
                PeerExit::Lost(how)
            }
            Some(exit) => exit.clone(),
            None => PeerExit::Lost(how),
        }
    }

    /// Processes the end of a node. No more messages from it are expected.
    fn conclude(&mut self, at: Duration, node: &NodeId, exit: PeerExit, actions: &mut Vec<Action>) {
        let before = self.links.insert(node.clone(), Link::Over);
        let has_started = !matches!(before, Some(Link::Absent(Wait { has_started: false, .. })));
        let is_lost = matches!(exit, PeerExit::Lost(_));
        let loss = match exit {
            PeerExit::Done => None,
            PeerExit::Stopped => Some(PeerLoss::Stopped(node.clone())),
            PeerExit::Failed(failure) => Some(PeerLoss::Failed(match self.rendezvous.is_first() {
                // The first node reports which node is lost, or why it cannot continue itself.
                false if failure.code == ErrorCode::NodeLost || failure.is_consequence() => failure,
                _ => consequence(node, &failure),
            })),
            PeerExit::Lost(how) => Some(PeerLoss::Failed(self.lost(at, node, how, has_started))),
        };
        if !is_lost {
            self.last_message.remove(node);
        }
        if let Some(loss) = loss {
            self.lose(node, loss, actions);
        }
    }

    fn lost(&self, at: Duration, node: &NodeId, how: String, has_started: bool) -> Failure {
        let Rendezvous { this, first, is_job, address, port, .. } = &self.rendezvous;
        if !self.rendezvous.is_first() {
            let why = format!("node {first}, where rank 0 is: {how}");
            return Failure::peer_lost(Some(first.clone()), why, "check that node; then resume the run");
        }
        if self.is_alone(at, node, has_started) {
            let why = format!(
                "node {this}, where rank 0 is, receives heartbeats of no other node at {address} port {port}: its network is down, or a firewall is in between"
            );
            return Failure::peer_lost(None, why, "check its network; then resume the run");
        }
        let fix = match is_job {
            true => {
                "check that node; Slurm requeues the job when it marks the node as down; a resume does not wait for that"
                    .into()
            }
            false => format!(
                "check that node; then resume the run; to resume without the node: --exclude {node}"
            ),
        };
        Failure::new(ErrorCode::NodeLost, format!("node {node} was lost"), how, fix)
    }

    /// Returns whether the first node itself was cut off: several other nodes have started, and all of them miss heartbeats
    /// at the same time or never connected.
    fn is_alone(&self, at: Duration, lost: &NodeId, has_started: bool) -> bool {
        // Heartbeats of two nodes are up to one period apart, and may be late by another.
        let misses = |last_message: &Duration| at.saturating_sub(*last_message) + 2 * HEARTBEAT >= TIMEOUT;
        let others = self.links.iter().filter_map(|(node, link)| match (self.last_message.get(node), link) {
            (Some(last_message), _) => Some(misses(last_message)),
            (None, Link::Absent(wait)) => wait.has_started.then_some(true),
            (None, _) => (node == lost && has_started).then_some(true),
        });
        let others: Vec<bool> = others.collect();
        others.len() > 1 && others.iter().all(|misses| *misses)
    }

    fn never_connected(&self, node: &NodeId, has_started: bool, error: &str) -> String {
        let Rendezvous { run, attempt, first, address, port, .. } = &self.rendezvous;
        if !self.rendezvous.is_first() {
            return format!("{address} port {port}, where its supervisor listens, cannot be reached: {error}");
        }
        let so = if has_started { "the node is down, or a firewall is in between" } else { "it has not started" };
        let log = run.supervisor_log(node, *attempt);
        format!(
            "its supervisor has not connected to that of node {first}, {address} port {port}: {so}; its log is {log}"
        )
    }

    /// Records why the run cannot continue, and, on the first node, informs the others. If ranks do not need each
    /// other, the loss is recorded and ends no rank. The first reason counts; a stop counts only if there is no other
    /// reason.
    fn lose(&mut self, node: &NodeId, loss: PeerLoss, actions: &mut Vec<Action>) {
        if self.rendezvous.dependence == Dependence::None {
            self.losses.push((node.clone(), loss.failure()));
            return;
        }
        let is_news = match &self.loss {
            None => true,
            Some(PeerLoss::Stopped(_)) => matches!(loss, PeerLoss::Failed(_)),
            Some(PeerLoss::Failed(_)) => false,
        };
        if is_news && !self.is_done {
            if self.rendezvous.is_first() {
                self.send(loss.message(), actions);
            }
            self.loss = Some(loss);
        }
    }
}

impl Wait {
    fn new(until: Duration) -> Self {
        Self { until, has_started: false, next: None, error: "no attempt was made".into() }
    }

    /// Schedules the next check. A node that has written its process file has started: if it does not connect, it is
    /// lost after the same timeout as a node that misses heartbeats.
    fn look(&mut self, at: Duration, has_started: bool) {
        if has_started && !self.has_started {
            self.has_started = true;
            self.until = self.until.min(at + TIMEOUT);
        }
        self.next = Some(at + RETRY);
    }
}

fn look(looks: &mut BTreeMap<NodeId, u32>, node: &NodeId, actions: &mut Vec<Action>) {
    *looks.entry(node.clone()).or_default() += 1;
    actions.push(Action::Look(node.clone()));
}

/// Returns another node's failure as the reason why this node ends. If that node only lost contact with a third node, the
/// origin is the third node.
fn consequence(node: &NodeId, failure: &Failure) -> Failure {
    let origin = match &failure.cause {
        Cause::Peer(origin) => origin.clone(),
        Cause::Root | Cause::Stop => Some(node.clone()),
    };
    let why = format!("node {node} failed: {}: {}", failure.what, failure.why);
    Failure::peer_lost(origin, why, failure.fix.clone())
}
