//! A node's connection: a thread that owns the one session and is spoken to by messages.
//!
//! libssh2 lets no two threads use a session, and any of its calls may wait; so nobody else touches it, and it is never
//! made to wait: the thread sleeps in `poll` until the socket or a message wakes it. Commands run side by side, each in a
//! channel. The session is held open; liveness is a heartbeat of our own, because SSH's keepalive is sent and forgotten.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rundir::Login;
use ssh2::BlockDirections;

use super::Refused;
use super::backoff::Backoff;
use super::config::{Settings, SshOptions};
use super::connect::{Connected, connect};
use super::exchange::{Exchange, Opened, Step, Trouble};
use super::stream::{Flow, Streamed, Tell, watched};
use crate::RemoteError;
use crate::command::{Command, Output};

/// How many commands a node runs for us at once. Servers allow ten channels (MaxSessions); two are left for whoever
/// shares the connection's limits.
const CHANNELS: usize = 8;
/// After so much silence, the node is asked whether it is there,
const BEAT_AFTER: Duration = Duration::from_secs(15);
/// and has so long to answer. A node under full load forks slowly.
const BEAT_WITHIN: Duration = Duration::from_secs(10);
/// How long a server that allows no more channels is not asked for another.
const FULL_FOR: Duration = Duration::from_secs(1);
/// The longest sleep while something is under way: what libssh2 has read and not told would wait for it.
const LONGEST_SLEEP: Duration = Duration::from_millis(200);
/// The same while there are only streams, which nobody waits for: most of what watching costs would be these looks. Longer than
/// the two seconds between frames, which wake as well.
const LONGEST_SLEEP_OF_STREAMS: Duration = Duration::from_secs(3);
/// Pauses before a node that could not be reached is tried again.
const AGAIN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// The longest of them where nobody answered: it costs little to knock, and one that is back shall not be away for longer. A
/// server that answers and refuses may count.
const SOON: Duration = Duration::from_secs(5);

/// The stack of a thread; libssh2 and OpenSSL need a tenth of it.
const STACK: usize = 512 << 10;

type Reply = Sender<Result<Output, RemoteError>>;

enum Request {
    Run(Command, Reply),
    Stream { id: u64, script: String, silence: Duration, tell: Tell },
    EndStream(u64),
}

/// A connection that is made when it is needed and held until this is dropped.
#[derive(Debug)]
pub struct Connection {
    login: Login,
    inbox: Sender<Request>,
    wake: UnixStream,
    streams: AtomicU64,
}

impl Connection {
    /// Starts the thread; `settings` are those that are read already.
    pub fn new(options: SshOptions, login: Login, settings: Settings) -> io::Result<Self> {
        let (inbox, requests) = mpsc::channel();
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let actor = Actor {
            options,
            login: login.clone(),
            settings: Some(settings),
            requests,
            woken,
            waiting: VecDeque::new(),
            running: Vec::new(),
            opening: None,
            backoff: Backoff::new(AGAIN.0, AGAIN.1),
        };
        thread::Builder::new().name(format!("ssh {}", login.node)).stack_size(STACK).spawn(move || actor.live())?;
        Ok(Self { login, inbox, wake, streams: AtomicU64::new(0) })
    }

    /// Runs a command and waits for its end.
    pub fn run(&self, command: Command) -> Result<Output, RemoteError> {
        let (reply, answer) = mpsc::channel();
        let action = command.action.clone();
        let sent = self.send(Request::Run(command, reply));
        // The thread answers every request; it is gone only if it panicked.
        let gone = || RemoteError::Lost { node: self.login.node.clone(), action, why: "its thread has ended".into() };
        if sent { answer.recv().unwrap_or_else(|_| Err(gone())) } else { Err(gone()) }
    }

    /// Runs a script that writes lines for as long as the returned number is not given back to [`Self::end_stream`].
    pub fn stream(&self, script: String, silence: Duration, tell: Tell) -> u64 {
        let id = self.streams.fetch_add(1, Ordering::Relaxed);
        self.send(Request::Stream { id, script, silence, tell });
        id
    }

    /// Ends a stream and the script behind it.
    pub fn end_stream(&self, id: u64) {
        self.send(Request::EndStream(id));
    }

    fn send(&self, request: Request) -> bool {
        let sent = self.inbox.send(request).is_ok();
        // A full pipe wakes as well.
        let _ = (&self.wake).write(&[1]);
        sent
    }
}

struct Actor {
    options: SshOptions,
    login: Login,
    settings: Option<Settings>,
    requests: Receiver<Request>,
    woken: UnixStream,
    waiting: VecDeque<Work>,
    running: Vec<Running>,
    /// Since when a channel is being opened.
    opening: Option<Instant>,
    backoff: Backoff,
}

/// Something to do in a channel of its own.
enum Work {
    Command { command: Command, reply: Reply, asked: Instant },
    Stream { id: u64, script: String, silence: Duration, tell: Tell, told: Told },
    Beat,
}

/// What a stream's reader was told last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Nothing,
    Up,
    Down,
}

struct Running {
    work: Work,
    exchange: Box<Exchange>,
    began: Instant,
    heard: Instant,
}

/// A server that allows no more channels, for now: it may count some that nobody uses any more.
struct Full {
    channels: usize,
    at: Instant,
}

/// Why a session is over.
enum Over {
    /// Nobody wants it any more.
    Unwanted,
    Lost(String),
}

impl Actor {
    fn live(mut self) {
        let mut refused: Option<(Refused, Instant)> = None;
        loop {
            // A node that was just found out of reach is not asked again for a while.
            let pause = refused.as_ref().map(|(_, until)| until.saturating_duration_since(Instant::now()));
            if let Some((why, _)) = refused.as_ref().filter(|_| pause.is_some_and(|pause| !pause.is_zero())) {
                let why = why.clone();
                self.refuse_all(&why);
            }
            let wait = if self.waiting.is_empty() { None } else { Some(pause.unwrap_or_default()) };
            match self.next_request(wait) {
                Ok(request) => {
                    self.accept(request);
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
            }
            match self.connect() {
                Err(why) => {
                    self.refuse_all(&why);
                    let pause = self.backoff.next_within(if why.is_out_of_reach() { SOON } else { AGAIN.1 });
                    refused = Some((why, Instant::now() + pause));
                }
                Ok(link) => {
                    refused = None;
                    self.backoff.reset();
                    let over = self.serve(&link);
                    // Whoever waits inside libssh2 is woken, and nothing after this can wait.
                    let _ = link.socket.shutdown(Shutdown::Both);
                    self.lose(&over);
                    link.session.set_blocking(true);
                    link.session.set_timeout(1);
                    if let Over::Unwanted = over {
                        return;
                    }
                }
            }
        }
    }

    fn next_request(&self, wait: Option<Duration>) -> Result<Request, RecvTimeoutError> {
        match wait {
            None => self.requests.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(wait) => self.requests.recv_timeout(wait),
        }
    }

    fn connect(&mut self) -> Result<Connected, Refused> {
        // Read anew each time but the first: people mend the configuration while the console is open.
        let settings = self.settings.take().map_or_else(|| Settings::read(&self.options, &self.login), Ok)?;
        if let Some(why) = settings.beyond_us {
            return Err(Refused::new(
                "its SSH configuration",
                format!("{why} since this program started"),
                "start it again",
            ));
        }
        connect(&settings, &self.login, &self.options)
    }

    fn accept(&mut self, request: Request) {
        match request {
            Request::Run(command, reply) => {
                self.waiting.push_back(Work::Command { command, reply, asked: Instant::now() });
            }
            Request::Stream { id, script, silence, tell } => {
                self.waiting.push_back(Work::Stream { id, script, silence, tell, told: Told::Nothing });
            }
            Request::EndStream(ended) => {
                let is_it = |work: &Work| matches!(work, Work::Stream { id, .. } if *id == ended);
                self.waiting.retain(|work| !is_it(work));
                self.running.retain(|running| !is_it(&running.work));
            }
        }
    }

    /// Answers all commands that wait; streams go on waiting, and their readers know why.
    fn refuse_all(&mut self, refused: &Refused) {
        let node = self.login.node.clone();
        self.waiting = std::mem::take(&mut self.waiting)
            .into_iter()
            .filter_map(|work| {
                let error = RemoteError::Unreachable { node: node.clone(), refused: refused.clone() };
                end(work, error)
            })
            .collect();
    }

    /// Ends what was under way in a session that is over. A command may have been carried out, so it is not repeated.
    fn lose(&mut self, over: &Over) {
        let why = match over {
            Over::Lost(why) => why.clone(),
            Over::Unwanted => "it was given up".to_owned(),
        };
        let node = self.login.node.clone();
        for running in std::mem::take(&mut self.running) {
            let action = running.work.action();
            let error = RemoteError::Lost { node: node.clone(), action, why: why.clone() };
            self.waiting.extend(end(running.work, error));
        }
        self.waiting.retain(|work| !matches!(work, Work::Beat));
        self.opening = None;
    }

    /// Serves requests until the session is over.
    fn serve(&mut self, link: &Connected) -> Over {
        link.session.set_blocking(false);
        let mut full: Option<Full> = None;
        let mut heard = Instant::now();
        loop {
            loop {
                match self.requests.try_recv() {
                    Ok(request) => self.accept(request),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return Over::Unwanted,
                }
            }
            if heard.elapsed() > BEAT_AFTER && !self.has_beat() {
                self.waiting.push_front(Work::Beat);
            }
            // Twice without a move: the first look at one channel may have read what belongs to another.
            let mut idle = 0;
            while idle < 2 {
                match self.look(link, &mut full) {
                    Ok(true) => {
                        heard = Instant::now();
                        idle = 0;
                    }
                    Ok(false) => idle += 1,
                    Err(why) => return Over::Lost(why),
                }
            }
            if let Some(why) = self.end_the_late(heard) {
                return Over::Lost(why);
            }
            self.sleep(link, heard);
        }
    }

    /// Opens what can be opened and moves what can be moved. Tells whether anything did.
    fn look(&mut self, link: &Connected, full: &mut Option<Full>) -> Result<bool, String> {
        let mut moved = false;
        if self.waiting.is_empty() {
            self.opening = None;
        }
        *full = full.take().filter(|full| full.at.elapsed() < FULL_FOR);
        while self.running.len() < full.as_ref().map_or(CHANNELS, |full| full.channels)
            && let Some(work) = self.waiting.front()
        {
            match Exchange::open(&link.session, &work.line(), work.input()) {
                Ok(Opened::Yes(exchange)) => {
                    self.opening = None;
                    let Some(work) = self.waiting.pop_front() else { break };
                    let now = Instant::now();
                    self.running.push(Running { work, exchange, began: now, heard: now });
                    moved = true;
                }
                Ok(Opened::NotYet) => {
                    self.opening.get_or_insert_with(Instant::now);
                    break;
                }
                // The rest waits until a channel is free; with none of ours open, the next one may be refused for good.
                Ok(Opened::TooMany) if !self.running.is_empty() => {
                    self.opening = None;
                    // Where there is room for a stream alone, it makes way for what somebody waits for, and begins again after.
                    let is_stream = |running: &Running| matches!(running.work, Work::Stream { .. });
                    if !matches!(work, Work::Stream { .. }) && self.running.iter().all(is_stream) {
                        let stream = self.running.swap_remove(0);
                        self.waiting.push_back(stream.work);
                    }
                    *full = Some(Full { channels: self.running.len().max(1), at: Instant::now() });
                    break;
                }
                Ok(Opened::TooMany) => return Err("the server allows no commands (MaxSessions 0?)".into()),
                Err(Trouble::Session(why) | Trouble::Refused(why)) => return Err(why),
            }
        }
        let mut index = 0;
        while index < self.running.len() {
            let running = &mut self.running[index];
            let step = running.exchange.step(running.work.keeps_input_open());
            if matches!(step, Ok(Step::Moved)) {
                (moved, running.heard) = (true, Instant::now());
            }
            let wanted = running.pass_on_lines();
            match step {
                Ok(Step::Idle | Step::Moved) if wanted => index += 1,
                Ok(Step::Idle | Step::Moved) => drop(self.running.swap_remove(index)),
                Ok(Step::Done(status)) => {
                    self.running.swap_remove(index).finish(status);
                    moved = true;
                }
                Err(Trouble::Refused(why)) => {
                    let Running { work, .. } = self.running.swap_remove(index);
                    let node = self.login.node.clone();
                    let action = work.action();
                    end(work, RemoteError::Command { node, action, status: why, stderr: String::new() });
                }
                Err(Trouble::Session(why)) => return Err(why),
            }
        }
        Ok(moved)
    }

    /// Answers commands whose time is over. Tells when the session itself is to be given up.
    fn end_the_late(&mut self, heard: Instant) -> Option<String> {
        let node = self.login.node.clone();
        let mut late = Vec::new();
        let mut in_doubt = false;
        let mut index = 0;
        while index < self.running.len() {
            let running = &mut self.running[index];
            let (since, limit) = running.limit();
            if since.elapsed() < limit {
                index += 1;
                continue;
            }
            match running.work {
                Work::Command { .. } => late.push(self.running.swap_remove(index).work),
                // Its script may hang by itself.
                Work::Stream { .. } => {
                    (running.heard, in_doubt) = (Instant::now(), true);
                    index += 1;
                }
                Work::Beat => return Some(silent(heard)),
            }
        }
        // Those that were never begun: a command's time runs from when it was asked for.
        let is_late =
            |work: &Work| matches!(work, Work::Command { command, asked, .. } if asked.elapsed() >= command.deadline);
        while let Some(index) = self.waiting.iter().position(is_late) {
            late.extend(self.waiting.remove(index));
        }
        // The command may simply be slow. Whether the node is there, a heartbeat finds out.
        if (in_doubt || !late.is_empty()) && !self.has_beat() {
            self.waiting.push_front(Work::Beat);
        }
        for work in late {
            let (action, after) = (work.action(), work.deadline());
            end(work, RemoteError::Silent { node: node.clone(), action, after });
        }
        self.opening.filter(|since| since.elapsed() > BEAT_WITHIN).map(|_| silent(heard))
    }

    fn has_beat(&self) -> bool {
        let works = self.running.iter().map(|running| &running.work).chain(&self.waiting);
        works.into_iter().any(|work| matches!(work, Work::Beat))
    }

    /// Sleeps until the socket or a message wakes, or something is due.
    fn sleep(&mut self, link: &Connected, heard: Instant) {
        let is_stream = |running: &Running| matches!(running.work, Work::Stream { .. });
        let busy = !self.waiting.is_empty() || !self.running.iter().all(is_stream);
        let due = self.running.iter().map(|running| {
            let (since, limit) = running.limit();
            since + limit
        });
        let due = due.chain([heard + BEAT_AFTER]).min().unwrap_or(heard);
        let longest = match (busy, self.running.is_empty()) {
            (true, _) => LONGEST_SLEEP,
            (false, false) => LONGEST_SLEEP_OF_STREAMS,
            (false, true) => BEAT_AFTER,
        };
        let wait = due.saturating_duration_since(Instant::now()).min(longest) + Duration::from_millis(1);
        let mut wanted = PollFlags::POLLIN;
        if matches!(link.session.block_directions(), BlockDirections::Outbound | BlockDirections::Both) {
            wanted |= PollFlags::POLLOUT;
        }
        let mut sources =
            [PollFd::new(link.socket.as_fd(), wanted), PollFd::new(self.woken.as_fd(), PollFlags::POLLIN)];
        // Interrupted or not: the loop looks at everything again.
        let _ = poll(&mut sources, PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX));
        let mut bytes = [0; 64];
        while matches!(self.woken.read(&mut bytes), Ok(64)) {}
    }
}

impl Work {
    fn line(&self) -> String {
        match self {
            Self::Command { command, .. } => command.line(),
            Self::Stream { script, .. } => watched(script),
            Self::Beat => ":".into(),
        }
    }

    fn input(&self) -> &[u8] {
        match self {
            Self::Command { command, .. } => &command.input,
            Self::Stream { .. } | Self::Beat => &[],
        }
    }

    fn action(&self) -> String {
        match self {
            Self::Command { command, .. } => command.action.clone(),
            Self::Stream { .. } => "watch it".into(),
            Self::Beat => "answer".into(),
        }
    }

    fn deadline(&self) -> Duration {
        match self {
            Self::Command { command, .. } => command.deadline,
            Self::Stream { silence, .. } => *silence,
            Self::Beat => BEAT_WITHIN,
        }
    }

    /// A stream's script ends when its input does: that is how the node notices that we are gone.
    fn keeps_input_open(&self) -> bool {
        matches!(self, Self::Stream { .. })
    }
}

impl Running {
    /// When it is too late: so long after this.
    fn limit(&self) -> (Instant, Duration) {
        let since = match &self.work {
            Work::Command { asked, .. } => *asked,
            Work::Stream { .. } => self.heard,
            Work::Beat => self.began,
        };
        (since, self.work.deadline())
    }

    /// Tells a stream's reader of whole lines. Tells whether more are wanted.
    fn pass_on_lines(&mut self) -> bool {
        let Work::Stream { tell, told, .. } = &mut self.work else { return true };
        let mut flow = Flow::GoOn;
        if *told != Told::Up && !self.exchange.stdout.is_empty() {
            *told = Told::Up;
            flow = tell(Streamed::Up);
        }
        let bytes = &mut self.exchange.stdout;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let text: Vec<u8> = bytes.drain(..whole).collect();
        for line in String::from_utf8_lossy(&text).lines() {
            if flow == Flow::Enough {
                break;
            }
            flow = tell(Streamed::Line(line.to_owned()));
        }
        flow == Flow::GoOn
    }

    fn finish(self, status: crate::command::Status) {
        let output = self.exchange.output(status);
        match self.work {
            // Who asked may have gone.
            Work::Command { reply, .. } => drop(reply.send(Ok(output))),
            Work::Stream { mut tell, .. } => drop(tell(Streamed::Ended(output))),
            Work::Beat => {}
        }
    }
}

fn silent(heard: Instant) -> String {
    format!("the node said nothing for {:.0} s", heard.elapsed().as_secs_f64())
}

/// Answers a command with an error. A stream is given back, to be taken up again when the node is there.
fn end(work: Work, error: RemoteError) -> Option<Work> {
    match work {
        Work::Command { reply, .. } => {
            // Who asked may have gone.
            let _ = reply.send(Err(error));
            None
        }
        Work::Stream { id, script, silence, mut tell, told } => {
            // Said once, not at every attempt.
            let flow = if told == Told::Down { Flow::GoOn } else { tell(Streamed::Down(error)) };
            (flow == Flow::GoOn).then_some(Work::Stream { id, script, silence, tell, told: Told::Down })
        }
        Work::Beat => None,
    }
}
