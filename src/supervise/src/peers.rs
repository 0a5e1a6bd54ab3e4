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
use rundir::{ExitReason, Failure, LOST_PEER, RunDir, START_GRACE};

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
    /// What was said that matters to whoever is connected later, too.
    said: Vec<Word>,
    /// How many connections there have been to each.
    joined: BTreeMap<NodeId, u32>,
    /// On the first node: the others that it listens to, and when each was last heard.
    heard: BTreeMap<NodeId, Instant>,
    wake: Sender<i32>,
    ended: bool,
}

/// What a supervisor says, a line each.
#[derive(Clone)]
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
                beating.say(Word::Here);
                thread::sleep(BEAT);
            }
        });
        Ok(peers)
    }

    fn new(meeting: Meeting, wake: Sender<i32>) -> Self {
        let (listeners, said, joined, heard) = (BTreeMap::new(), Vec::new(), BTreeMap::new(), BTreeMap::new());
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
        self.say(Word::Failed(failure.clone()));
    }

    /// The first node: lets all others stop, those that have yet to call too.
    pub fn ask_to_stop(&self) {
        self.say(Word::Stop);
    }

    /// Says goodbye: this node's ranks have ended as they should.
    pub fn leave(&self) {
        self.say(Word::Bye);
        self.lock().ended = true;
    }

    /// Says goodbye: this node's ranks were ended by a stop that it was asked for.
    pub fn leave_stopped(&self) {
        self.say(Word::Stopped(self.meeting.this.clone()));
        self.leave();
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, word: Word) {
        let line = word.line();
        let mut shared = self.lock();
        // Whoever cannot be told any more is found out by the thread that listens to it.
        shared.listeners.retain(|_, peer| peer.write_all(line.as_bytes()).is_ok());
        if !matches!(word, Word::Here) {
            shared.said.push(word);
        }
    }

    /// Takes in a connection to one who listens, in place of any earlier one; returns how many there have been.
    fn join(&self, node: &NodeId, mut peer: TcpStream) -> u32 {
        let mut shared = self.lock();
        for word in &shared.said {
            // As above.
            let _ = peer.write_all(word.line().as_bytes());
        }
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
            Heard::Lost(_) if self.is_alone() => Loss::Failed(Failure::new(
                LOST_PEER,
                format!("node {}, where rank 0 is, hears no other any more: its network is down", self.meeting.this),
                "see what became of it; then resume from the last checkpoint",
            )),
            Heard::Lost(how) => Loss::Failed(Failure::new(
                format!("node {node} was lost"),
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
            self.say(word);
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
            Heard::Lost(how) => self.lose(Loss::Failed(Failure::new(
                LOST_PEER,
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
    Failure::new(LOST_PEER, format!("{who}: {}: {}", failure.what, failure.why), failure.fix.clone())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::fs;
    use std::sync::mpsc::{self, Receiver};

    use rundir::{ExitFile, SCHEMA};

    use super::*;

    /// Only a failing test waits so long.
    const PATIENCE: Duration = Duration::from_secs(60);

    fn node(name: &str) -> NodeId {
        NodeId::new(name).unwrap()
    }

    fn until(holds: impl Fn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds() {
            assert!(Instant::now() < deadline, "it never held");
            thread::sleep(Duration::from_millis(5));
        }
    }

    impl Peers {
        fn failure(&self) -> Failure {
            self.loss().unwrap().failure()
        }
    }

    /// The supervisors of node01, the first, and of node02, with a folder in common; not yet connected.
    struct Pair {
        _folder: tempfile::TempDir,
        listener: TcpListener,
        first: (Peers, Receiver<i32>),
        other: (Peers, Receiver<i32>),
    }

    impl Pair {
        fn new() -> Self {
            Self::with(SILENCE)
        }

        fn with(silence: Duration) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
            let port = listener.local_addr().unwrap().port();
            let [first, other] = ["node01", "node02"].map(|this| {
                let (wake, woken) = mpsc::channel();
                let meeting = Meeting {
                    run: RunDir::new(folder.path().to_str().unwrap()),
                    is_job: false,
                    attempt: 1,
                    subject: "run 1".into(),
                    this: node(this),
                    first: node("node01"),
                    others: BTreeSet::from([node("node02")]),
                    address: "127.0.0.1".into(),
                    port,
                    silence,
                    steps_take_all: true,
                };
                (Peers::new(meeting, wake), woken)
            });
            Self { _folder: folder, listener, first, other }
        }

        /// Returns what the first and the other know, once they are connected.
        fn connected() -> (Peers, Peers, Receiver<i32>, Receiver<i32>) {
            Self::new().connect()
        }

        fn connect(self) -> (Peers, Peers, Receiver<i32>, Receiver<i32>) {
            let Self { listener, first: (first, first_woken), other: (other, other_woken), .. } = self;
            let (listening, following) = (first.clone(), other.clone());
            thread::spawn(move || listening.listen(&listener));
            thread::spawn(move || following.follow(PATIENCE));
            until(|| [&first, &other].iter().all(|peers| !peers.lock().listeners.is_empty()));
            (first, other, first_woken, other_woken)
        }

        /// Writes how a node ended, as its supervisor does.
        fn ended(&self, name: &str, reason: ExitReason, failure: Option<Failure>) {
            let run = &self.first.0.meeting.run;
            fs::create_dir_all(run.node_dir(&node(name))).unwrap();
            let (ranks, first_failure) = (Vec::new(), None);
            run.write_exit(&ExitFile {
                schema: SCHEMA,
                attempt: 1,
                node: node(name),
                ended_s: 1.0,
                reason,
                first_failure,
                failure,
                ranks,
            })
            .unwrap();
        }
    }

    #[test]
    fn a_failure_is_told_to_all_as_the_reason_of_theirs() {
        let (first, other, woken, _) = Pair::connected();
        other.tell(&Failure::new("rank 3 on node node02 failed", "exit code 9", "read its log"));
        assert_eq!(woken.recv_timeout(PATIENCE), Ok(NEWS));
        let loss = first.failure();
        assert_eq!(loss.what, LOST_PEER);
        assert_eq!(loss.why, "node node02 failed: rank 3 on node node02 failed: exit code 9");
    }

    #[test]
    fn that_a_stop_ended_ranks_is_told_to_all_as_that_and_a_failure_counts_more() {
        let (first, other, woken, other_woken) = Pair::connected();
        other.say(Word::Stopped(node("node02")));
        for (peers, woken) in [(&first, &woken), (&other, &other_woken)] {
            assert_eq!(woken.recv_timeout(PATIENCE), Ok(NEWS));
            assert_eq!(peers.loss(), Some(Loss::Stopped(node("node02"))));
        }
        other.tell(&Failure::new("rank 3 on node node02 failed", "exit code 9", "read its log"));
        assert_eq!(woken.recv_timeout(PATIENCE), Ok(NEWS));
        assert_eq!(first.failure().why, "node node02 failed: rank 3 on node node02 failed: exit code 9");
    }

    #[test]
    fn a_stop_that_the_first_node_was_asked_for_is_heard_by_those_who_call_later_too() {
        let Pair { _folder, listener, first: (first, _first_woken), other: (other, woken) } = Pair::new();
        first.ask_to_stop();
        let listening = first.clone();
        thread::spawn(move || listening.listen(&listener));
        let following = other.clone();
        thread::spawn(move || following.follow(PATIENCE));
        assert_eq!(woken.recv_timeout(PATIENCE), Ok(STOP));
        assert_eq!(other.loss(), None);
    }

    #[test]
    fn whoever_hangs_up_without_goodbye_is_lost_and_whoever_says_it_is_not() {
        let (first, other, woken, _other_woken) = Pair::connected();
        other.lock().listeners[&node("node01")].shutdown(Shutdown::Both).unwrap();
        assert_eq!(woken.recv_timeout(PATIENCE), Ok(NEWS));
        assert_eq!(first.failure().what, "node node02 was lost");

        // What a supervisor hears ends with the goodbye, whatever becomes of the connection.
        let Pair { listener, first: (first, _first_woken), other: (other, _), .. } = Pair::new();
        let _lines = other.connect().unwrap();
        other.leave();
        other.lock().listeners[&node("node01")].shutdown(Shutdown::Both).unwrap();
        let (peer, _) = listener.accept().unwrap();
        let (name, lines) = greet(&peer, &first.meeting).unwrap();
        first.hear_follower(&name, peer, lines);
        assert_eq!(first.loss(), None);
    }

    #[test]
    fn a_connection_that_is_reset_is_made_again_and_what_was_said_meanwhile_is_heard() {
        let Pair { _folder, listener: between, first: (first, woken), other: (other, other_woken) } =
            Pair::with(PATIENCE);
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (listening, following) = (first.clone(), other.clone());
        thread::spawn(move || listening.listen(&listener));
        thread::spawn(move || following.follow(PATIENCE));
        between.set_nonblocking(true).unwrap();
        let put_through = || {
            let caller = RefCell::new(None);
            until(|| between.accept().map(|(peer, _)| caller.replace(Some(peer))).is_ok());
            let caller = caller.take().unwrap();
            caller.set_nonblocking(false).unwrap();
            (caller, TcpStream::connect(("127.0.0.1", port)).unwrap())
        };

        let (caller, mut called) = put_through();
        let mut hello = String::new();
        BufReader::with_capacity(1, &caller).read_line(&mut hello).unwrap();
        called.write_all(hello.as_bytes()).unwrap();
        until(|| [&first, &other].iter().all(|peers| !peers.lock().listeners.is_empty()));
        // A socket that is closed while there is something in it that nobody read resets its connection.
        for (peers, socket) in [(&other, caller), (&first, called)] {
            peers.say(Word::Here);
            socket.peek(&mut [0]).unwrap();
        }
        first.ask_to_stop();
        other.tell(&Failure::new("rank 3 on node node02 failed", "exit code 9", "read its log"));

        let (caller, called) = put_through();
        let ways = [(caller.try_clone(), called.try_clone()), (Ok(called), Ok(caller))];
        for (from, to) in ways {
            thread::spawn(move || io::copy(&mut from.unwrap(), &mut to.unwrap()));
        }
        assert_eq!(woken.recv_timeout(PATIENCE), Ok(NEWS));
        assert_eq!(first.failure().why, "node node02 failed: rank 3 on node node02 failed: exit code 9");
        assert_eq!(other_woken.recv_timeout(PATIENCE), Ok(STOP));
        assert_eq!(other.lock().joined[&node("node01")], 2);
    }

    #[test]
    fn one_whose_connection_broke_and_that_does_not_call_again_is_lost() {
        let Pair { _folder, listener, first: (first, woken), .. } = Pair::with(Duration::from_secs(4));
        let port = listener.local_addr().unwrap().port();
        let listening = first.clone();
        thread::spawn(move || listening.listen(&listener));
        let mut caller = TcpStream::connect(("127.0.0.1", port)).unwrap();
        caller.write_all(b"run 1 node02\n").unwrap();
        until(|| !first.lock().listeners.is_empty());
        first.say(Word::Here);
        caller.peek(&mut [0]).unwrap();
        drop(caller);
        assert_eq!(woken.recv_timeout(PATIENCE), Ok(NEWS));
        let loss = first.failure();
        assert_eq!(loss.what, "node node02 was lost");
        assert!(loss.why.ends_with("it did not call again"), "{loss}");
    }

    #[test]
    fn a_first_node_that_hears_nobody_any_more_blames_none_of_them() {
        let said = |seconds: &[u64]| {
            let Pair { _folder, first: (first, _woken), .. } = Pair::new();
            let ago = |seconds: &u64| Instant::now().checked_sub(Duration::from_secs(*seconds)).unwrap();
            let names = (2..).map(|n| node(&format!("node0{n}")));
            first.lock().heard = names.zip(seconds.iter().map(ago)).collect();
            first.take(&node("node02"), Heard::Lost("its supervisor said nothing".into()));
            first.failure()
        };
        assert_eq!(said(&[10, 1, 9]).what, "node node02 was lost");
        assert_eq!(said(&[10]).what, "node node02 was lost", "of two, either may be cut off");
        let alone = said(&[10, 9, 9]);
        assert_eq!(alone.what, LOST_PEER);
        assert_eq!(alone.why, "node node01, where rank 0 is, hears no other any more: its network is down");
    }

    #[test]
    fn a_node_that_was_cut_off_and_says_so_on_a_disk_that_it_still_sees_is_lost() {
        let pair = Pair::new();
        let settled = |peers: &Peers, name| match peers.settle(&node(name), Heard::Lost("it said nothing".into())) {
            Heard::Lost(how) => how,
            Heard::Failed(failure) => failure.why,
            Heard::Bye | Heard::Stopped => unreachable!("it failed"),
        };
        let follows = |why: &str| Some(Failure::new(LOST_PEER, why, ""));
        pair.ended("node02", ExitReason::Failed, follows("node node01, where rank 0 is: its supervisor said nothing"));
        assert_eq!(settled(&pair.first.0, "node02"), "it said nothing");
        // What the first node heard of a third is the reason.
        pair.ended("node01", ExitReason::Failed, follows("node node03 failed: rank 2 failed"));
        assert_eq!(settled(&pair.other.0, "node01"), "node node03 failed: rank 2 failed");
    }

    #[test]
    fn nobody_is_lost_for_silence_while_the_run_makes_steps() {
        // Nobody says anything here.
        let (first, other, woken, _other_woken) = Pair::with(Duration::from_secs(4)).connect();
        let run = first.meeting.run.clone();
        fs::create_dir_all(&run.root).unwrap();
        let mut metrics = fs::File::create(run.metrics()).unwrap();
        let until = Instant::now() + 2 * first.meeting.silence;
        while Instant::now() < until {
            writeln!(metrics, "{{}}").unwrap();
            thread::sleep(Duration::from_millis(20));
        }
        assert_eq!((first.loss(), other.loss()), (None, None));
        assert_eq!(woken.recv_timeout(PATIENCE), Ok(NEWS), "it makes none any more");
        assert_eq!(first.failure().why, "its supervisor said nothing for 4 s: the node or its network is down");
        fs::remove_dir_all(&run.root).unwrap();
    }

    #[test]
    fn the_first_node_is_missed_as_well() {
        let (first, other, _first_woken, woken) = Pair::connected();
        first.lock().listeners[&node("node02")].shutdown(Shutdown::Both).unwrap();
        assert_eq!(woken.recv_timeout(PATIENCE), Ok(NEWS));
        let loss = other.failure();
        assert_eq!(
            (loss.what.as_str(), loss.why.as_str()),
            (LOST_PEER, "node node01, where rank 0 is: its supervisor hung up without a word")
        );
    }

    #[test]
    fn a_node_that_never_calls_is_lost_and_so_is_a_first_one_that_never_listens() {
        let pair = Pair::new();
        pair.first.0.miss(Duration::ZERO);
        let loss = pair.first.0.failure();
        assert_eq!(loss.what, "node node02 was lost");
        assert!(loss.why.starts_with("its supervisor has not called that of node node01"), "{loss}");
        assert!(loss.why.contains("it has not started"), "{loss}");

        drop(pair.listener);
        pair.other.0.follow(Duration::ZERO);
        let loss = pair.other.0.failure();
        assert_eq!(loss.what, LOST_PEER);
        assert!(loss.why.contains("cannot be reached: Connection refused"), "{loss}");
    }

    #[test]
    fn of_a_node_that_ended_before_it_was_connected_its_exit_file_tells() {
        let failed =
            |node: &str| Some(Failure::new("cannot start rank 1", format!("node {node}: no such file"), "look"));
        let pair = Pair::new();
        pair.ended("node02", ExitReason::Failed, failed("node02"));
        pair.first.0.miss(PATIENCE);
        let loss = pair.first.0.failure();
        assert_eq!(loss.what, LOST_PEER);
        assert_eq!(loss.why, "node node02 failed: cannot start rank 1: node node02: no such file");

        let pair = Pair::new();
        pair.ended("node01", ExitReason::Failed, failed("node01"));
        drop(pair.listener);
        pair.other.0.follow(PATIENCE);
        assert!(pair.other.0.failure().why.starts_with("node node01 failed: cannot start rank 1"));

        let pair = Pair::new();
        pair.ended("node02", ExitReason::Killed, None);
        pair.first.0.miss(PATIENCE);
        assert_eq!(pair.first.0.loss(), Some(Loss::Stopped(node("node02"))));

        // One that has done what there was to do is not missed.
        let pair = Pair::new();
        pair.ended("node02", ExitReason::Finished, None);
        pair.first.0.miss(PATIENCE);
        assert_eq!(pair.first.0.loss(), None);
    }

    #[test]
    fn a_first_node_whose_port_is_taken_says_so() {
        let (_folder, mut job) = crate::tests::job();
        let taken = TcpListener::bind(("0.0.0.0", 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        job.master.1 = port - 1;
        let failure = Peers::watch(&job, mpsc::channel().0).err().unwrap();
        assert_eq!(failure.what, "cannot listen to the supervisors of the other nodes");
        assert!(failure.why.starts_with(&format!("port {port} of node here")), "{failure}");
        assert!(failure.why.contains("in use"), "{failure}");
    }
}
