//! A node's connection: a thread that owns the one session and is spoken to by messages.
//!
//! libssh2 lets no two threads use a session, and any of its calls may wait; so nobody else touches it, and it is never
//! made to wait: the thread sleeps in `poll` until the socket or a message wakes it. Commands run side by side, each in a
//! channel. The session is held open; liveness is a heartbeat of our own, because SSH's keepalive is sent and forgotten.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rundir::Login;
use ssh2::BlockDirections;

use super::ConnectionError;
use super::config::{Settings, SshOptions};
use super::connect::{Connected, connect};
use super::exchange::{Exchange, ExchangeError, Opened, Step};
use super::stream::{OnStreamEvent, StreamEvent, watched};
use crate::RemoteError;
use crate::backoff::Backoff;
use crate::command::{Command, Output};

/// How many commands a node runs for us at once. Servers allow ten channels (MaxSessions); two are left for whoever
/// shares the connection's limits.
const CHANNELS: usize = 8;
/// After so much silence, the node is asked whether it is there,
const HEARTBEAT_AFTER: Duration = Duration::from_secs(15);
/// and has so long to answer. A node under full load forks slowly.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a server that allows no more channels is not asked for another.
const CHANNEL_LIMIT_FOR: Duration = Duration::from_secs(1);
/// The longest sleep while something is under way: what libssh2 has read and not told would wait for it.
const LONGEST_SLEEP: Duration = Duration::from_millis(200);
/// The same while there are only streams, which nobody waits for: most of what watching costs would be these looks. Longer than
/// the two seconds between frames, which wake as well.
const LONGEST_SLEEP_OF_STREAMS: Duration = Duration::from_secs(3);
/// Pauses before a node that could not be reached is tried again.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// The longest of them where nobody answered: it costs little to knock, and one that is back shall not be away for longer. A
/// server that answers and refuses may count.
const RECONNECT_UNANSWERED: Duration = Duration::from_secs(5);

/// The stack of a thread; libssh2 and OpenSSL need a tenth of it.
const STACK: usize = 512 << 10;

type Reply = Sender<Result<Output, RemoteError>>;

enum Request {
    Run(Command, Reply),
    Stream { id: u64, script: String, silence: Duration, on_event: OnStreamEvent },
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
            backoff: Backoff::new(RECONNECT.0, RECONNECT.1),
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
        let gone = || RemoteError::ConnectionLost {
            node: self.login.node.clone(),
            action,
            why: "its thread has ended".into(),
        };
        if sent { answer.recv().unwrap_or_else(|_| Err(gone())) } else { Err(gone()) }
    }

    /// Runs a script that writes lines for as long as the returned number is not given back to [`Self::end_stream`].
    pub fn stream(&self, script: String, silence: Duration, on_event: OnStreamEvent) -> u64 {
        let id = self.streams.fetch_add(1, Ordering::Relaxed);
        self.send(Request::Stream { id, script, silence, on_event });
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
    Stream { id: u64, script: String, silence: Duration, on_event: OnStreamEvent, last_event: LastEvent },
    Heartbeat,
}

/// What a stream's reader was told last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LastEvent {
    None,
    Connected,
    Disconnected,
}

struct Running {
    work: Work,
    exchange: Box<Exchange>,
    began: Instant,
    last_received: Instant,
}

/// A server that allows no more channels, for now: it may count some that nobody uses any more.
struct ChannelLimit {
    channels: usize,
    at: Instant,
}

/// Why a session is over.
enum SessionEnd {
    /// Nobody wants it any more.
    Dropped,
    Lost(String),
}

impl Actor {
    fn live(mut self) {
        let mut refused: Option<(ConnectionError, Instant)> = None;
        loop {
            // A node that was just found out of reach is not asked again for a while.
            let pause = refused.as_ref().map(|(_, until)| until.saturating_duration_since(Instant::now()));
            if let Some((why, _)) = refused.as_ref().filter(|_| pause.is_some_and(|pause| !pause.is_zero())) {
                let why = why.clone();
                self.fail_waiting(&why);
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
                    self.fail_waiting(&why);
                    let pause =
                        self.backoff.next_within(if why.is_no_answer() { RECONNECT_UNANSWERED } else { RECONNECT.1 });
                    refused = Some((why, Instant::now() + pause));
                }
                Ok(link) => {
                    refused = None;
                    self.backoff.reset();
                    let over = self.serve(&link);
                    // Whoever waits inside libssh2 is woken, and nothing after this can wait.
                    let _ = link.socket.shutdown(Shutdown::Both);
                    self.end_running(&over);
                    link.session.set_blocking(true);
                    link.session.set_timeout(1);
                    if let SessionEnd::Dropped = over {
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

    fn connect(&mut self) -> Result<Connected, ConnectionError> {
        // Read anew each time but the first: people mend the configuration while the console is open.
        let settings = self.settings.take().map_or_else(|| Settings::read(&self.options, &self.login), Ok)?;
        if let Some(why) = settings.unsupported {
            return Err(ConnectionError::new(
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
            Request::Stream { id, script, silence, on_event } => {
                self.waiting.push_back(Work::Stream { id, script, silence, on_event, last_event: LastEvent::None });
            }
            Request::EndStream(ended) => {
                let is_it = |work: &Work| matches!(work, Work::Stream { id, .. } if *id == ended);
                self.waiting.retain(|work| !is_it(work));
                self.running.retain(|running| !is_it(&running.work));
            }
        }
    }

    /// Answers all commands that wait; streams go on waiting, and their readers know why.
    fn fail_waiting(&mut self, refused: &ConnectionError) {
        let node = self.login.node.clone();
        self.waiting = std::mem::take(&mut self.waiting)
            .into_iter()
            .filter_map(|work| {
                let error = RemoteError::Unreachable { node: node.clone(), error: refused.clone() };
                end(work, error)
            })
            .collect();
    }

    /// Ends what was under way in a session that is over. A command may have been carried out, so it is not repeated.
    fn end_running(&mut self, over: &SessionEnd) {
        let why = match over {
            SessionEnd::Lost(why) => why.clone(),
            SessionEnd::Dropped => "it was given up".to_owned(),
        };
        let node = self.login.node.clone();
        for running in std::mem::take(&mut self.running) {
            let action = running.work.action();
            let error = RemoteError::ConnectionLost { node: node.clone(), action, why: why.clone() };
            self.waiting.extend(end(running.work, error));
        }
        self.waiting.retain(|work| !matches!(work, Work::Heartbeat));
        self.opening = None;
    }

    /// Serves requests until the session is over.
    fn serve(&mut self, link: &Connected) -> SessionEnd {
        link.session.set_blocking(false);
        let mut limit: Option<ChannelLimit> = None;
        let mut last_received = Instant::now();
        loop {
            loop {
                match self.requests.try_recv() {
                    Ok(request) => self.accept(request),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return SessionEnd::Dropped,
                }
            }
            if last_received.elapsed() > HEARTBEAT_AFTER && !self.has_heartbeat() {
                self.waiting.push_front(Work::Heartbeat);
            }
            // Twice without a move: the first look at one channel may have read what belongs to another.
            let mut idle = 0;
            while idle < 2 {
                match self.look(link, &mut limit) {
                    Ok(true) => {
                        last_received = Instant::now();
                        idle = 0;
                    }
                    Ok(false) => idle += 1,
                    Err(why) => return SessionEnd::Lost(why),
                }
            }
            if let Some(why) = self.expire(last_received) {
                return SessionEnd::Lost(why);
            }
            self.sleep(link, last_received);
        }
    }

    /// Opens what can be opened and moves what can be moved. Tells whether anything did.
    fn look(&mut self, link: &Connected, limit: &mut Option<ChannelLimit>) -> Result<bool, String> {
        let mut moved = false;
        if self.waiting.is_empty() {
            self.opening = None;
        }
        *limit = limit.take().filter(|limit| limit.at.elapsed() < CHANNEL_LIMIT_FOR);
        while self.running.len() < limit.as_ref().map_or(CHANNELS, |limit| limit.channels)
            && let Some(work) = self.waiting.front()
        {
            match Exchange::open(&link.session, &work.line(), work.input()) {
                Ok(Opened::Yes(exchange)) => {
                    self.opening = None;
                    let Some(work) = self.waiting.pop_front() else { break };
                    let now = Instant::now();
                    self.running.push(Running { work, exchange, began: now, last_received: now });
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
                    *limit = Some(ChannelLimit { channels: self.running.len().max(1), at: Instant::now() });
                    break;
                }
                Ok(Opened::TooMany) => return Err("the server allows no commands (MaxSessions 0?)".into()),
                Err(ExchangeError::Session(why) | ExchangeError::Refused(why)) => return Err(why),
            }
        }
        let mut index = 0;
        while index < self.running.len() {
            let running = &mut self.running[index];
            let step = running.exchange.step(running.work.keeps_input_open());
            if matches!(step, Ok(Step::Moved)) {
                (moved, running.last_received) = (true, Instant::now());
            }
            let wanted = running.pass_on_lines();
            match step {
                Ok(Step::Idle | Step::Moved) if wanted => index += 1,
                Ok(Step::Idle | Step::Moved) => drop(self.running.swap_remove(index)),
                Ok(Step::Done(status)) => {
                    self.running.swap_remove(index).finish(status);
                    moved = true;
                }
                Err(ExchangeError::Refused(why)) => {
                    let Running { work, .. } = self.running.swap_remove(index);
                    let node = self.login.node.clone();
                    let action = work.action();
                    end(work, RemoteError::CommandFailed { node, action, status: why, stderr: String::new() });
                }
                Err(ExchangeError::Session(why)) => return Err(why),
            }
        }
        Ok(moved)
    }

    /// Answers commands whose time is over. Tells when the session itself is to be given up.
    fn expire(&mut self, last_received: Instant) -> Option<String> {
        let node = self.login.node.clone();
        let mut expired = Vec::new();
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
                Work::Command { .. } => expired.push(self.running.swap_remove(index).work),
                // Its script may hang by itself.
                Work::Stream { .. } => {
                    (running.last_received, in_doubt) = (Instant::now(), true);
                    index += 1;
                }
                Work::Heartbeat => return Some(timed_out(last_received)),
            }
        }
        // Those that were never begun: a command's time runs from when it was asked for.
        let is_expired =
            |work: &Work| matches!(work, Work::Command { command, asked, .. } if asked.elapsed() >= command.deadline);
        while let Some(index) = self.waiting.iter().position(is_expired) {
            expired.extend(self.waiting.remove(index));
        }
        // The command may simply be slow. Whether the node is there, a heartbeat finds out.
        if (in_doubt || !expired.is_empty()) && !self.has_heartbeat() {
            self.waiting.push_front(Work::Heartbeat);
        }
        for work in expired {
            let (action, after) = (work.action(), work.deadline());
            end(work, RemoteError::Timeout { node: node.clone(), action, after });
        }
        self.opening.filter(|since| since.elapsed() > HEARTBEAT_TIMEOUT).map(|_| timed_out(last_received))
    }

    fn has_heartbeat(&self) -> bool {
        let works = self.running.iter().map(|running| &running.work).chain(&self.waiting);
        works.into_iter().any(|work| matches!(work, Work::Heartbeat))
    }

    /// Sleeps until the socket or a message wakes, or something is due.
    fn sleep(&mut self, link: &Connected, last_received: Instant) {
        let is_stream = |running: &Running| matches!(running.work, Work::Stream { .. });
        let busy = !self.waiting.is_empty() || !self.running.iter().all(is_stream);
        let due = self.running.iter().map(|running| {
            let (since, limit) = running.limit();
            since + limit
        });
        let due = due.chain([last_received + HEARTBEAT_AFTER]).min().unwrap_or(last_received);
        let longest = match (busy, self.running.is_empty()) {
            (true, _) => LONGEST_SLEEP,
            (false, false) => LONGEST_SLEEP_OF_STREAMS,
            (false, true) => HEARTBEAT_AFTER,
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
            Self::Heartbeat => ":".into(),
        }
    }

    fn input(&self) -> &[u8] {
        match self {
            Self::Command { command, .. } => &command.input,
            Self::Stream { .. } | Self::Heartbeat => &[],
        }
    }

    fn action(&self) -> String {
        match self {
            Self::Command { command, .. } => command.action.clone(),
            Self::Stream { .. } => "watch it".into(),
            Self::Heartbeat => "answer".into(),
        }
    }

    fn deadline(&self) -> Duration {
        match self {
            Self::Command { command, .. } => command.deadline,
            Self::Stream { silence, .. } => *silence,
            Self::Heartbeat => HEARTBEAT_TIMEOUT,
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
            Work::Stream { .. } => self.last_received,
            Work::Heartbeat => self.began,
        };
        (since, self.work.deadline())
    }

    /// Tells a stream's reader of whole lines. Tells whether more are wanted.
    fn pass_on_lines(&mut self) -> bool {
        let Work::Stream { on_event, last_event, .. } = &mut self.work else { return true };
        let mut flow = ControlFlow::Continue(());
        if *last_event != LastEvent::Connected && !self.exchange.stdout.is_empty() {
            *last_event = LastEvent::Connected;
            flow = on_event(StreamEvent::Connected);
        }
        let bytes = &mut self.exchange.stdout;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let text: Vec<u8> = bytes.drain(..whole).collect();
        for line in String::from_utf8_lossy(&text).lines() {
            if flow.is_break() {
                break;
            }
            flow = on_event(StreamEvent::Line(line.to_owned()));
        }
        flow.is_continue()
    }

    fn finish(self, status: crate::command::Status) {
        let output = self.exchange.output(status);
        match self.work {
            // Who asked may have gone.
            Work::Command { reply, .. } => _ = reply.send(Ok(output)),
            Work::Stream { mut on_event, .. } => _ = on_event(StreamEvent::Ended(output)),
            Work::Heartbeat => {}
        }
    }
}

fn timed_out(last_received: Instant) -> String {
    format!("the node said nothing for {:.0} s", last_received.elapsed().as_secs_f64())
}

/// Answers a command with an error. A stream is given back, to be taken up again when the node is there.
fn end(work: Work, error: RemoteError) -> Option<Work> {
    match work {
        Work::Command { reply, .. } => {
            // Who asked may have gone.
            let _ = reply.send(Err(error));
            None
        }
        Work::Stream { id, script, silence, mut on_event, last_event } => {
            // Said once, not at every attempt.
            let flow = if last_event == LastEvent::Disconnected {
                ControlFlow::Continue(())
            } else {
                on_event(StreamEvent::Disconnected(error))
            };
            flow.is_continue().then_some(Work::Stream {
                id,
                script,
                silence,
                on_event,
                last_event: LastEvent::Disconnected,
            })
        }
        Work::Heartbeat => None,
    }
}
