//! Supervisors of a run that spans nodes watch each other, so that none goes on alone.
//!
//! A collective waits for a node that fell silent until its timeout, which is half an hour; and ranks of other nodes notice a
//! rank that failed only at their next collective. So each supervisor keeps a connection to the first node's, on the port
//! after the ranks' own, and says a word every second. Whoever fails says why; whoever ends says goodbye; whoever falls
//! silent, or hangs up without goodbye, is lost, and the first node's supervisor tells the others.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cluster::NodeId;
use rundir::{Failure, LOST_PEER};

use crate::job::Job;

/// How often a supervisor says that it is there.
const BEAT: Duration = Duration::from_secs(1);
/// How long one may be silent. A loaded node is late by a second or two; one that is late by ten would be of no use.
const SILENCE: Duration = Duration::from_secs(10);
/// How long a supervisor tries to find the first node's, which may start later.
const FIND: Duration = Duration::from_secs(120);
/// The pseudo signal that wakes the supervisor's loop when there is news.
const NEWS: i32 = 0;

/// The other supervisors, as far as this one knows.
#[derive(Clone)]
pub struct Peers {
    shared: Arc<(Mutex<Shared>, Condvar)>,
}

struct Shared {
    /// Why the run cannot go on, when another node says so or is lost.
    loss: Option<Failure>,
    /// Connections to those who listen to us.
    listeners: Vec<TcpStream>,
    wake: Sender<i32>,
    ended: bool,
}

/// What a supervisor says, a line each.
enum Word {
    Here,
    Bye,
    Failed(Failure),
}

impl Word {
    fn line(&self) -> String {
        match self {
            Self::Here => ".\n".into(),
            Self::Bye => "bye\n".into(),
            // A failure is text, which JSON writes in one line.
            Self::Failed(failure) => format!("failed {}\n", serde_json::to_string(failure).unwrap_or_default()),
        }
    }

    fn read(line: &str) -> Option<Self> {
        match line.trim_end() {
            "." => Some(Self::Here),
            "bye" => Some(Self::Bye),
            line => serde_json::from_str(line.strip_prefix("failed ")?).ok().map(Self::Failed),
        }
    }
}

impl Peers {
    /// Begins to watch the other nodes of a job, in threads that live as long as the process. What comes in wakes the
    /// supervisor's loop.
    pub fn watch(job: &Job, wake: Sender<i32>) -> Self {
        let shared = Shared { loss: None, listeners: Vec::new(), wake, ended: false };
        let peers = Self { shared: Arc::new((Mutex::new(shared), Condvar::new())) };
        let names: Vec<NodeId> = job.attempt.placement.by_node().into_iter().map(|(node, _)| node.clone()).collect();
        let (address, port) = (job.master.0.clone(), job.master.1.saturating_add(1));
        let greeting = format!("{} {} {}\n", job.id, job.attempt.number, job.node);
        let (node, this) = (job.node.clone(), peers.clone());
        let first = names.first().cloned();
        thread::spawn(move || {
            let watched = if first.as_ref() == Some(&node) {
                this.listen(port, &greeting)
            } else {
                this.follow(&address, port, &greeting, first.as_ref().map_or("?", NodeId::as_str))
            };
            if let Err(error) = watched {
                eprintln!("the other supervisors cannot be watched (port {port}): {error}");
            }
        });
        let beating = peers.clone();
        thread::spawn(move || {
            while !beating.lock().ended {
                beating.say(&Word::Here);
                thread::sleep(BEAT);
            }
        });
        peers
    }

    /// Why the run cannot go on, if another node is why.
    pub fn loss(&self) -> Option<Failure> {
        self.lock().loss.clone()
    }

    /// Waits a moment for that.
    pub fn wait_for_loss(&self, patience: Duration) -> Option<Failure> {
        let waited = self.shared.1.wait_timeout_while(self.lock(), patience, |shared| shared.loss.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.loss.clone()
    }

    /// Tells the others that this node failed.
    pub fn tell(&self, failure: &Failure) {
        self.say(&Word::Failed(failure.clone()));
    }

    /// Says goodbye: this node's ranks have ended as they should.
    pub fn leave(&self) {
        self.say(&Word::Bye);
        self.lock().ended = true;
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, word: &Word) {
        // Whoever cannot be told any more is found out by the thread that listens to it.
        self.lock().listeners.retain_mut(|peer| peer.write_all(word.line().as_bytes()).is_ok());
    }

    /// Notes why the run cannot go on; the first reason counts.
    fn lose(&self, failure: Failure) {
        let mut shared = self.lock();
        if shared.loss.is_none() && !shared.ended {
            shared.loss = Some(failure);
            // The loop has ended when nobody listens.
            let _ = shared.wake.send(NEWS);
            self.shared.1.notify_all();
        }
    }

    /// The first node: takes in the others, and passes on what one of them says.
    fn listen(&self, port: u16, greeting: &str) -> io::Result<()> {
        let listener = TcpListener::bind(("::", port)).or_else(|_| TcpListener::bind(("0.0.0.0", port)))?;
        let ours = greeting.rsplit_once(' ').map_or(greeting, |(run, _)| run).to_owned();
        for peer in listener.incoming() {
            let Ok(peer) = peer else { continue };
            let (this, ours) = (self.clone(), ours.clone());
            thread::spawn(move || {
                if let Some((name, lines)) = greet(&peer, &ours) {
                    this.hear_follower(&name, peer, lines);
                }
            });
        }
        Ok(())
    }

    fn hear_follower(&self, name: &str, peer: TcpStream, lines: BufReader<TcpStream>) {
        let Ok(kept) = peer.try_clone() else { return };
        if let Some(loss) = self.loss() {
            let _ = (&peer).write_all(Word::Failed(loss).line().as_bytes());
        }
        self.lock().listeners.push(kept);
        let failure = match hear(lines) {
            Heard::Bye => return,
            Heard::Failed(failure) => consequence(&format!("node {name} failed"), &failure),
            Heard::Lost(how) => Failure::new(
                format!("node {name} was lost"),
                how,
                format!(
                    "see what became of it; then resume from the last checkpoint, without it if need be: --exclude {name}"
                ),
            ),
        };
        self.say(&Word::Failed(failure.clone()));
        self.lose(failure);
    }

    /// Any other node: keeps in touch with the first.
    fn follow(&self, address: &str, port: u16, greeting: &str, first: &str) -> io::Result<()> {
        let began = Instant::now();
        let mut peer = loop {
            match dial(address, port) {
                Ok(peer) => break peer,
                Err(_) if began.elapsed() < FIND => thread::sleep(BEAT / 2),
                Err(error) => return Err(error),
            }
        };
        peer.set_write_timeout(Some(BEAT))?;
        peer.write_all(greeting.as_bytes())?;
        peer.set_read_timeout(Some(SILENCE))?;
        let lines = BufReader::new(peer.try_clone()?);
        self.lock().listeners.push(peer);
        match hear(lines) {
            Heard::Bye => {}
            // The first node has put it in words.
            Heard::Failed(failure) if failure.what.contains(" was lost") || failure.what.starts_with(LOST_PEER) => {
                self.lose(failure);
            }
            Heard::Failed(failure) => self.lose(consequence(&format!("node {first} failed"), &failure)),
            Heard::Lost(how) => self.lose(Failure::new(
                LOST_PEER,
                format!("node {first}, where rank 0 is: {how}"),
                "see what became of it; then resume from the last checkpoint",
            )),
        }
        Ok(())
    }
}

/// What came of listening to a supervisor.
enum Heard {
    Bye,
    Failed(Failure),
    Lost(String),
}

fn hear(mut lines: BufReader<TcpStream>) -> Heard {
    loop {
        let mut line = String::new();
        match lines.read_line(&mut line) {
            Ok(0) => return Heard::Lost("its supervisor hung up without a word".into()),
            Ok(_) => match Word::read(&line) {
                Some(Word::Bye) => return Heard::Bye,
                Some(Word::Failed(failure)) => return Heard::Failed(failure),
                // What a newer one may say besides.
                Some(Word::Here) | None => {}
            },
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                let silence = SILENCE.as_secs();
                return Heard::Lost(format!(
                    "its supervisor said nothing for {silence} s: the node or its network is down"
                ));
            }
            Err(error) => return Heard::Lost(format!("the connection to its supervisor broke: {error}")),
        }
    }
}

/// Reads who calls: the same attempt of the same run, or nobody that matters.
fn greet(peer: &TcpStream, ours: &str) -> Option<(String, BufReader<TcpStream>)> {
    peer.set_read_timeout(Some(SILENCE)).ok()?;
    peer.set_write_timeout(Some(BEAT)).ok()?;
    let mut lines = BufReader::new(peer.try_clone().ok()?);
    let mut line = String::new();
    lines.read_line(&mut line).ok()?;
    let (run, name) = line.trim_end().rsplit_once(' ')?;
    (run == ours).then(|| (name.to_owned(), lines))
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
    use std::sync::mpsc;

    use super::*;

    /// The first supervisor and another, over the loopback interface.
    fn pair() -> (Peers, Peers, mpsc::Receiver<i32>, mpsc::Receiver<i32>) {
        let new = || {
            let (wake, woken) = mpsc::channel();
            let shared = Shared { loss: None, listeners: Vec::new(), wake, ended: false };
            (Peers { shared: Arc::new((Mutex::new(shared), Condvar::new())) }, woken)
        };
        let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        let ((first, first_woken), (other, other_woken)) = (new(), new());
        let (listening, following) = (first.clone(), other.clone());
        thread::spawn(move || listening.listen(port, "run 1 node01\n"));
        thread::spawn(move || following.follow("127.0.0.1", port, "run 1 node02\n", "node01"));
        while first.lock().listeners.is_empty() || other.lock().listeners.is_empty() {
            thread::sleep(Duration::from_millis(5));
        }
        (first, other, first_woken, other_woken)
    }

    #[test]
    fn a_failure_is_told_to_all_as_the_reason_of_theirs() {
        let (first, other, woken, _) = pair();
        other.tell(&Failure::new("rank 3 on node node02 failed", "exit code 9", "read its log"));
        assert_eq!(woken.recv(), Ok(NEWS));
        let loss = first.loss().unwrap();
        assert_eq!(loss.what, LOST_PEER);
        assert_eq!(loss.why, "node node02 failed: rank 3 on node node02 failed: exit code 9");
    }

    #[test]
    fn whoever_hangs_up_without_goodbye_is_lost_and_whoever_says_it_is_not() {
        let (first, other, woken, _other_woken) = pair();
        other.lock().listeners[0].shutdown(std::net::Shutdown::Both).unwrap();
        assert_eq!(woken.recv(), Ok(NEWS));
        assert_eq!(first.loss().unwrap().what, "node node02 was lost");

        let (first, other, woken, _other_woken) = pair();
        other.leave();
        other.lock().listeners[0].shutdown(std::net::Shutdown::Both).unwrap();
        drop(other);
        assert!(woken.recv_timeout(Duration::from_millis(200)).is_err());
        assert_eq!(first.loss(), None);
    }

    #[test]
    fn the_first_node_is_missed_as_well() {
        let (first, other, _first_woken, woken) = pair();
        first.lock().listeners[0].shutdown(std::net::Shutdown::Both).unwrap();
        assert_eq!(woken.recv(), Ok(NEWS));
        let loss = other.loss().unwrap();
        assert_eq!(
            (loss.what.as_str(), loss.why.as_str()),
            (LOST_PEER, "node node01, where rank 0 is: its supervisor hung up without a word")
        );
    }
}
