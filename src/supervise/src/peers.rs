//! Supervisors of a run that spans nodes watch each other, so that none goes on alone.
//!
//! A collective waits for a node that fell silent until its timeout, which is half an hour; and ranks of other nodes notice a
//! rank that failed only at their next collective. So each supervisor keeps a connection to the first node's, on the port
//! after the ranks' own, and says a word every second. Whoever fails says why; whoever ends says goodbye; whoever falls
//! silent, hangs up without goodbye, or never calls, is lost, and the first node's supervisor tells the others. While steps
//! are made that take every rank, nobody is lost for silence: the ranks may have a network of their own. A connection that
//! is reset, as by a firewall, is made again: the end of a process closes its connections in order. Of one that ended
//! while it was not connected, its exit file tells: all nodes share the run's folder. Ranks that a stop ended are told as
//! that: it was asked of all nodes, and the word may overtake the signal.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cluster::NodeId;
use rundir::{ExitReason, Failure, RunDir};
use runstate::START_GRACE;

use crate::job::Job;
use crate::killed;

/// How often a supervisor says that it is there.
const BEAT: Duration = Duration::from_secs(1);
/// How long one may be silent where the run makes no steps. A loaded node is late by a second or two; one that is late by ten
/// would be of no use.
const SILENCE: Duration = Duration::from_secs(10);
/// The pseudo signal that wakes the supervisor's loop when there is news.
const NEWS: i32 = 0;
/// The one that says that the run is asked to stop.
pub const STOP: i32 = -1;

/// The other supervisors, as far as this one knows.
#[derive(Clone)]
pub struct Peers {
    meeting: Arc<Meeting>,
    shared: Arc<(Mutex<Shared>, Condvar)>,
}

/// Who meets, and where.
struct Meeting {
    run: RunDir,
    attempt: u32,
    /// Run and attempt, as a call names them.
    subject: String,
    this: NodeId,
    /// Whether it is a Slurm job, whose nodes are Slurm's to choose.
    is_job: bool,
    /// The node that listens, where rank 0 is.
    first: NodeId,
    others: BTreeSet<NodeId>,
    address: String,
    port: u16,
    /// How long one may be silent.
    silence: Duration,
    /// Whether a step takes every rank, as ours do; of a command's, nobody knows.
    steps_take_all: bool,
}

/// Why the run cannot go on, where another node is why.
#[derive(Debug, Clone, PartialEq)]
pub enum Loss {
    /// It failed, or is gone.
    Failed(Failure),
    /// Its ranks were ended by a stop that it was asked for.
    Stopped(NodeId),
}

impl Loss {
    /// The same as the reason why this node ended.
    pub fn failure(self) -> Failure {
        match self {
            Self::Failed(failure) => failure,
            Self::Stopped(node) => consequence(&format!("node {node} failed"), &killed(&node)),
        }
    }

    fn word(&self) -> Word {
        match self {
            Self::Failed(failure) => Word::Failed(failure.clone()),
            Self::Stopped(node) => Word::Stopped(node.clone()),
        }
    }
}

struct Shared {
    /// Why the run cannot go on, when another node says so or is lost.
    loss: Option<Loss>,
    /// Connections to those who listen to us.
    listeners: BTreeMap<NodeId, TcpStream>,
    /// The lines that were said and matter to whoever is connected later, too.
    said: String,
    /// How many connections there have been to each.
    joined: BTreeMap<NodeId, u32>,
    /// On the first node: the others that it listens to, and when each was last heard.
    heard: BTreeMap<NodeId, Instant>,
    wake: Sender<i32>,
    ended: bool,
}

/// What a supervisor says, a line each.
enum Word {
    Here,
    Bye,
    /// All are to stop.
    Stop,
    Failed(Failure),
    /// The ranks of this node were ended by a stop.
    Stopped(NodeId),
}

impl Word {
    fn line(&self) -> String {
        match self {
            Self::Here => ".\n".into(),
            Self::Bye => "bye\n".into(),
            Self::Stop => "stop\n".into(),
            // A failure is text, which JSON writes in one line.
            Self::Failed(failure) => format!("failed {}\n", serde_json::to_string(failure).unwrap_or_default()),
            Self::Stopped(node) => format!("stopped {node}\n"),
        }
    }

    fn read(line: &str) -> Option<Self> {
        match line.trim_end() {
            "." => Some(Self::Here),
            "bye" => Some(Self::Bye),
            "stop" => Some(Self::Stop),
            line => match line.split_once(' ')? {
                ("failed", failure) => serde_json::from_str(failure).ok().map(Self::Failed),
                ("stopped", node) => NodeId::new(node).ok().map(Self::Stopped),
                _ => None,
            },
        }
    }
}

impl Meeting {
    fn of(job: &Job) -> Self {
        let mut nodes = job.attempt.placement.by_node().into_iter().map(|(node, _)| node.clone());
        Self {
            run: job.run.clone(),
            attempt: job.attempt.number,
            subject: format!("{} {}", job.id, job.attempt.number),
            this: job.node.clone(),
            is_job: job.attempt.slurm.is_some(),
            first: nodes.next().unwrap_or_else(|| job.node.clone()),
            others: nodes.collect(),
            address: job.master.0.clone(),
            port: job.master.1.saturating_add(1),
            silence: SILENCE,
            steps_take_all: !job.is_command(),
        }
    }

    /// How long one whose connection broke has to call again. It is less than what a rank's end waits for its reason.
    fn patience(&self) -> Duration {
        self.silence / 5
    }

    /// How much has been logged of steps that prove that every node lives.
    fn logged(&self) -> u64 {
        if !self.steps_take_all {
            return 0;
        }
        // Opened, since a file server is asked anew then.
        File::open(self.run.metrics()).and_then(|file| file.metadata()).map_or(0, |meta| meta.len())
    }

    /// How a node ended that says nothing, if its exit file tells.
    fn ended_on(&self, node: &NodeId) -> Option<Heard> {
        let exit = self.run.read_exit(node, self.attempt).ok()??;
        Some(match exit.reason {
            ExitReason::Finished | ExitReason::Stopped => Heard::Bye,
            ExitReason::Killed => Heard::Stopped,
            ExitReason::Failed => Heard::Failed(exit.failure.unwrap_or_else(|| killed(node))),
        })
    }
}

impl Peers {
    /// Begins to watch the other nodes of a job, in threads that live as long as the process. What comes in wakes the
    /// supervisor's loop.
    ///
    /// # Errors
    /// When the first node cannot listen to the others.
    pub fn watch(job: &Job, wake: Sender<i32>) -> Result<Self, Failure> {
        let peers = Self::new(Meeting::of(job), wake);
        let this = peers.clone();
        if peers.meeting.this == peers.meeting.first {
            let port = peers.meeting.port;
            let bound = TcpListener::bind(("::", port)).or_else(|_| TcpListener::bind(("0.0.0.0", port)));
            let listener = bound.map_err(|error| {
                Failure::new(
                    rundir::ErrorCode::Unclassified,
                    "cannot listen to the supervisors of the other nodes",
                    format!("port {port} of node {}, the one after the ranks' own: {error}", job.node),
                    format!("`ss -lptn sport = :{port}` there names who has it; resume: another port is drawn"),
                )
            })?;
            thread::spawn(move || this.listen(&listener));
            let missing = peers.clone();
            // One that has written its process file has started, and is missed as soon as one that falls silent.
            thread::spawn(move || missing.miss(START_GRACE));
        } else {
            thread::spawn(move || this.follow(START_GRACE));
        }
        let beating = peers.clone();
        thread::spawn(move || {
            while !beating.lock().ended {
                beating.say(&Word::Here);
                thread::sleep(BEAT);
            }
        });
        Ok(peers)
    }

    fn new(meeting: Meeting, wake: Sender<i32>) -> Self {
        let (listeners, said, joined, heard) = (BTreeMap::new(), String::new(), BTreeMap::new(), BTreeMap::new());
        let shared = Shared { loss: None, listeners, said, joined, heard, wake, ended: false };
        Self { meeting: Arc::new(meeting), shared: Arc::new((Mutex::new(shared), Condvar::new())) }
    }

    /// Why the run cannot go on, if another node is why.
    pub fn loss(&self) -> Option<Loss> {
        self.lock().loss.clone()
    }

    /// Waits a moment for that.
    pub fn wait_for_loss(&self, patience: Duration) -> Option<Loss> {
        let waited = self.shared.1.wait_timeout_while(self.lock(), patience, |shared| shared.loss.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.loss.clone()
    }

    /// Tells the others that this node failed.
    pub fn tell(&self, failure: &Failure) {
        self.say(&Word::Failed(failure.clone()));
    }

    /// The first node: lets all others stop, those that have yet to call too.
    pub fn ask_to_stop(&self) {
        self.say(&Word::Stop);
    }

    /// Says goodbye: this node's ranks have ended as they should.
    pub fn leave(&self) {
        self.say(&Word::Bye);
        self.lock().ended = true;
    }

    /// Says goodbye: this node's ranks were ended by a stop that it was asked for.
    pub fn leave_stopped(&self) {
        self.say(&Word::Stopped(self.meeting.this.clone()));
        self.leave();
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, word: &Word) {
        let line = word.line();
        let mut shared = self.lock();
        // Whoever cannot be told any more is found out by the thread that listens to it.
        shared.listeners.retain(|_, peer| peer.write_all(line.as_bytes()).is_ok());
        if !matches!(word, Word::Here) {
            shared.said.push_str(&line);
        }
    }

    /// Takes in a connection to one who listens, in place of any earlier one; returns how many there have been.
    fn join(&self, node: &NodeId, mut peer: TcpStream) -> u32 {
        let mut shared = self.lock();
        // As above.
        let _ = peer.write_all(shared.said.as_bytes());
        if let Some(earlier) = shared.listeners.insert(node.clone(), peer) {
            // Who listens there hears its end.
            let _ = earlier.shutdown(Shutdown::Both);
        }
        let joined = shared.joined.entry(node.clone()).or_default();
        *joined += 1;
        let joined = *joined;
        self.shared.1.notify_all();
        joined
    }

    /// Notes why the run cannot go on; the first reason counts, and a stop, which may be no loss, only where there is no other.
    fn lose(&self, loss: Loss) {
        let mut shared = self.lock();
        let is_news = match &shared.loss {
            None => true,
            Some(Loss::Stopped(_)) => matches!(loss, Loss::Failed(_)),
            Some(Loss::Failed(_)) => false,
        };
        if is_news && !shared.ended {
            shared.loss = Some(loss);
            // The loop has ended when nobody listens.
            let _ = shared.wake.send(NEWS);
            self.shared.1.notify_all();
        }
    }

    /// The first node: takes in the others, and passes on what one of them says.
    fn listen(&self, listener: &TcpListener) {
        for peer in listener.incoming() {
            let Ok(peer) = peer else { continue };
            let this = self.clone();
            thread::spawn(move || {
                if let Some((node, lines)) = greet(&peer, &this.meeting) {
                    this.hear_follower(&node, peer, lines);
                }
            });
        }
    }

    fn hear_follower(&self, node: &NodeId, peer: TcpStream, lines: BufReader<TcpStream>) {
        if peer.set_read_timeout(Some(self.meeting.silence / 2)).is_err() {
            return;
        }
        let call = self.join(node, peer);
        self.lock().heard.insert(node.clone(), Instant::now());
        let heard = self.hear(node, lines).unwrap_or_else(|error| {
            note!("the connection to the supervisor of node {node} broke: {error}; it is to call again");
            let patience = self.meeting.patience();
            let waited = self.shared.1.wait_timeout_while(self.lock(), patience, |shared| shared.joined[node] == call);
            drop(waited);
            Heard::Lost(format!("the connection to its supervisor broke: {error}; it did not call again"))
        });
        if self.lock().joined[node] > call {
            return;
        }
        let heard = self.settle(node, heard);
        if !matches!(heard, Heard::Lost(_)) {
            self.lock().heard.remove(node);
        }
        self.take(node, heard);
    }

    /// The first node: takes in how another one ended, and passes it on.
    fn take(&self, node: &NodeId, heard: Heard) {
        let loss = match heard {
            Heard::Bye => return,
            Heard::Stopped => Loss::Stopped(node.clone()),
            Heard::Failed(failure) => Loss::Failed(consequence(&format!("node {node} failed"), &failure)),
            Heard::Lost(_) if self.is_alone() => Loss::Failed(Failure::peer_lost(None,
                format!("node {}, where rank 0 is, hears no other any more: its network is down", self.meeting.this),
                "see what became of it; then resume from the last checkpoint",
            )),
            Heard::Lost(how) => Loss::Failed(Failure::new(
                rundir::ErrorCode::Unclassified, format!("node {node} was lost"),
                how,
                match self.meeting.is_job {
                    true => "see what became of it; when Slurm gives it up, the job begins again, and a resume does not wait for that".into(),
                    false => format!(
                        "see what became of it; then resume from the last checkpoint, without it if need be: --exclude {node}"
                    ),
                },
            )),
        };
        self.pass_on(loss);
    }

    /// The first node: tells whether all others, of several, have fallen silent together. Then it is this node that was cut off,
    /// and the others say so of it; a healthy one is not to be blamed.
    fn is_alone(&self) -> bool {
        let heard = &self.lock().heard;
        // Beats of two nodes are up to one apart, and may be late by another.
        heard.len() > 1 && heard.values().all(|heard| heard.elapsed() + 2 * BEAT >= self.meeting.silence)
    }

    /// Notes why the run cannot go on; from the first node, all others hear it.
    fn pass_on(&self, loss: Loss) {
        let word = loss.word();
        self.lose(loss);
        if self.meeting.this == self.meeting.first {
            self.say(&word);
        }
    }

    /// The first node: misses those who do not call, until all have or one of them is lost.
    fn miss(&self, patience: Duration) {
        let mut waits: BTreeMap<&NodeId, Wait> =
            self.meeting.others.iter().map(|node| (node, Wait::new(patience))).collect();
        while !waits.is_empty() && !self.lock().ended {
            waits.retain(|node, _| !self.lock().joined.contains_key(*node));
            waits.retain(|node, wait| {
                let heard = self.meeting.ended_on(node).or_else(|| Some(Heard::Lost(self.never_called(node, wait)?)));
                let waits_on = heard.is_none();
                heard.into_iter().for_each(|heard| self.take(node, heard));
                waits_on
            });
            thread::sleep(BEAT / 2);
        }
    }

    fn never_called(&self, node: &NodeId, wait: &mut Wait) -> Option<String> {
        let Meeting { run, attempt, first, address, port, .. } = &*self.meeting;
        let (is_over, has_started) = wait.look(&self.meeting, node);
        let so = if has_started { "the node is down, or its way there is closed" } else { "it has not started" };
        let log = run.supervisor_log(node, *attempt);
        is_over.then(|| {
            format!("its supervisor has not called that of node {first}, {address} port {port}: {so}; its log is {log}")
        })
    }

    /// Any other node: keeps in touch with the first.
    fn follow(&self, patience: Duration) {
        let first = &self.meeting.first;
        let mut patience = patience;
        let heard = loop {
            match self.call(patience).map(|lines| self.hear(first, lines)) {
                Ok(Err(error)) => {
                    note!("the connection to the supervisor of node {first} broke: {error}; called again")
                }
                Ok(Ok(heard)) | Err(heard) => break self.settle(first, heard),
            }
            patience = self.meeting.patience();
            thread::sleep(BEAT / 2);
        };
        match heard {
            Heard::Bye => {}
            Heard::Stopped => self.lose(Loss::Stopped(first.clone())),
            // The first node has put it in words.
            Heard::Failed(failure) if failure.what.contains(" was lost") || failure.is_consequence() => {
                self.lose(Loss::Failed(failure));
            }
            Heard::Failed(failure) => self.lose(Loss::Failed(consequence(&format!("node {first} failed"), &failure))),
            Heard::Lost(how) => self.lose(Loss::Failed(Failure::peer_lost(
                None,
                format!("node {first}, where rank 0 is: {how}"),
                "see what became of it; then resume from the last checkpoint",
            ))),
        }
    }

    /// Calls the first node, which may start later; tells how that ended when it cannot be had.
    fn call(&self, patience: Duration) -> Result<BufReader<TcpStream>, Heard> {
        let Meeting { first, address, port, .. } = &*self.meeting;
        let mut wait = Wait::new(patience);
        loop {
            let error = match self.connect() {
                Ok(lines) => return Ok(lines),
                Err(error) => error,
            };
            if let Some(heard) = self.meeting.ended_on(first) {
                return Err(heard);
            }
            if let (true, _) = wait.look(&self.meeting, first) {
                return Err(Heard::Lost(format!(
                    "{address} port {port}, where its supervisor listens, cannot be reached: {error}"
                )));
            }
            thread::sleep(BEAT / 2);
        }
    }

    fn connect(&self) -> io::Result<BufReader<TcpStream>> {
        let Meeting { subject, this, first, address, port, .. } = &*self.meeting;
        let mut peer = dial(address, *port)?;
        peer.set_write_timeout(Some(BEAT))?;
        peer.write_all(format!("{subject} {this}\n").as_bytes())?;
        peer.set_read_timeout(Some(self.meeting.silence / 2))?;
        let lines = BufReader::new(peer.try_clone()?);
        self.join(first, peer);
        Ok(lines)
    }

    /// Where a supervisor ended without a word, its exit file may have one.
    fn settle(&self, node: &NodeId, heard: Heard) -> Heard {
        let lost @ Heard::Lost(_) = heard else { return heard };
        match self.meeting.ended_on(node) {
            // It lost the first node as that lost it: the disk that they share may have another network.
            Some(Heard::Failed(failure)) if failure.is_consequence() && node != &self.meeting.first => lost,
            Some(ended) => ended,
            None => lost,
        }
    }

    /// Listens to a supervisor to its end, or until the connection breaks, which is neither its end nor its silence.
    fn hear(&self, node: &NodeId, mut lines: BufReader<TcpStream>) -> io::Result<Heard> {
        let mut line = String::new();
        // What was logged when half of the time was over in which it must say something.
        let mut logged_at_half = None;
        loop {
            let read = lines.read_line(&mut line);
            if read.is_ok() {
                logged_at_half = None;
                self.lock().heard.entry(node.clone()).and_modify(|heard| *heard = Instant::now());
            }
            match read {
                // Of a connection that is reset, who writes may hear first; who reads then finds nothing but its end.
                Ok(0) if !self.lock().listeners.contains_key(node) => return Err(io::ErrorKind::ConnectionReset.into()),
                Ok(0) => return Ok(Heard::Lost("its supervisor hung up without a word".into())),
                Ok(_) => match Word::read(&line) {
                    Some(Word::Bye) => return Ok(Heard::Bye),
                    Some(Word::Failed(failure)) => return Ok(Heard::Failed(failure)),
                    Some(Word::Stopped(node)) => self.pass_on(Loss::Stopped(node)),
                    Some(Word::Stop) => {
                        // The loop has ended when nobody listens.
                        let _ = self.lock().wake.send(STOP);
                    }
                    // What a newer one may say besides.
                    Some(Word::Here) | None => {}
                },
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    let logged = self.meeting.logged();
                    let silence = self.meeting.silence.as_secs();
                    // One that is dead ends the run's steps at once.
                    if logged_at_half.replace(logged).is_some_and(|before| logged <= before) {
                        return Ok(Heard::Lost(format!(
                            "its supervisor said nothing for {silence} s: the node or its network is down"
                        )));
                    }
                    // The rest of a line may come yet.
                    continue;
                }
                Err(error) => return Err(error),
            }
            line.clear();
        }
    }
}

/// How long a node is waited for that has not been heard of.
struct Wait {
    deadline: Instant,
    /// When its process file was first seen.
    started: Option<Instant>,
}

impl Wait {
    fn new(patience: Duration) -> Self {
        Self { deadline: Instant::now() + patience, started: None }
    }

    /// Tells whether that is over, and whether the node has started.
    fn look(&mut self, meeting: &Meeting, node: &NodeId) -> (bool, bool) {
        let now = Instant::now();
        if self.started.is_none() && meeting.run.pid_toml(node, meeting.attempt).exists() {
            self.started = Some(now);
            self.deadline = self.deadline.min(now + SILENCE);
        }
        (now >= self.deadline, self.started.is_some())
    }
}

/// What came of listening to a supervisor.
enum Heard {
    Bye,
    Failed(Failure),
    Stopped,
    Lost(String),
}

/// Reads who calls: another node of the same attempt, or nobody that matters.
fn greet(peer: &TcpStream, meeting: &Meeting) -> Option<(NodeId, BufReader<TcpStream>)> {
    peer.set_read_timeout(Some(SILENCE)).ok()?;
    peer.set_write_timeout(Some(BEAT)).ok()?;
    let mut lines = BufReader::new(peer.try_clone().ok()?);
    let mut line = String::new();
    lines.read_line(&mut line).ok()?;
    let (subject, name) = line.trim_end().rsplit_once(' ')?;
    let node = meeting.others.iter().find(|node| node.as_str() == name)?;
    (subject == meeting.subject).then(|| (node.clone(), lines))
}

fn dial(address: &str, port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in (address, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, Duration::from_secs(3)) {
            Ok(peer) => return Ok(peer),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Another node's failure, as the reason why this one ended.
fn consequence(who: &str, failure: &Failure) -> Failure {
    Failure::peer_lost(None, format!("{who}: {}: {}", failure.what, failure.why), failure.fix.clone())
}

#[cfg(test)]
mod tests;
