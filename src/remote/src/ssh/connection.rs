//! The connection to a node through libssh2: a thread that owns the session and receives requests as messages.
//!
//! A libssh2 session must not be used by two threads, and any of its calls may block. So one thread owns it, in non-blocking
//! mode, and sleeps in `poll` until the socket or a request wakes it. Commands run in parallel, each in its own channel. The
//! session is kept open. A heartbeat command checks it, because libssh2 does not check the replies to SSH's keepalive.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::{Duration, Instant};

use cluster::NodeId;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rundir::{ErrorCode, Login};
use ssh2::BlockDirections;

use super::config::{Settings, SshOptions};
use super::connect::{Connected, connect};
use super::exchange::{Exchange, ExchangeError, Opened, Step};
use super::stream::{ACTION, LONGEST_LINE, LineOf, OnStreamEvent, StreamEvent, StreamOutput, endless_line};
use crate::RemoteError;
use crate::backoff::Backoff;
use crate::command::{Command, Output, Status, login_line, printed};
use crate::error::{ConnectStep, ConnectionError};
use crate::frame::Frame;
use crate::threads;

/// The number of parallel commands on a node. By default, servers allow ten channels (MaxSessions); two stay free.
const CHANNELS: usize = 8;
/// The time without received data after which a heartbeat is sent.
const HEARTBEAT_AFTER: Duration = Duration::from_secs(15);
/// The timeout of a heartbeat. A node under full load forks slowly.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(10);
/// The time for which no further channel is requested after the server refused one.
const CHANNEL_LIMIT_FOR: Duration = Duration::from_secs(1);
/// The longest sleep while commands run: libssh2 may hold data that it has read from the socket and not yet returned.
const LONGEST_SLEEP: Duration = Duration::from_millis(200);
/// The longest sleep while only streams run, whose output may be delayed. It is longer than the two seconds between frames,
/// because shorter sleeps would be most of the cost of watching.
const LONGEST_SLEEP_OF_STREAMS: Duration = Duration::from_secs(3);
/// The first and the longest pause before an unreachable node is retried.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// The longest pause if the TCP connection failed: retrying is cheap, and a node that is back is found soon. A server that
/// refuses logins may count them, so the pause after a refused login is longer.
const RECONNECT_TCP: Duration = Duration::from_secs(5);

/// The age of settings that are read again before the next connection, because the user may correct the configuration while the
/// console runs. Reading them starts a program, and nodes that cannot be reached are retried often.
const SETTINGS_FOR: Duration = Duration::from_secs(10);

/// The stack size of the thread; libssh2 and OpenSSL need a tenth of it.
const STACK: usize = 512 << 10;

type Reply = Sender<Result<Output, RemoteError>>;

enum Request {
    Run(Command, Reply),
    Stream { id: u64, script: String, output_timeout: Duration, on_event: OnStreamEvent },
    EndStream(u64),
}

/// A connection that is made when it is first used and kept open until the value is dropped.
#[derive(Debug)]
pub struct Connection {
    login: Login,
    inbox: Sender<Request>,
    wake: UnixStream,
    streams: AtomicU64,
    needs_program: Arc<AtomicBool>,
}

impl Connection {
    /// Starts the thread. The first connection uses `settings`; later ones read them again if they are old.
    pub fn new(options: SshOptions, login: Login, settings: Settings) -> io::Result<Self> {
        let (inbox, requests) = mpsc::channel();
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let needs_program = Arc::new(AtomicBool::new(false));
        let actor = Actor {
            options,
            login: login.clone(),
            settings,
            settings_read: Instant::now(),
            needs_program: needs_program.clone(),
            requests,
            woken,
            waiting: VecDeque::new(),
            running: Vec::new(),
            abandoned: None,
            opening: None,
            backoff: Backoff::new(RECONNECT.0, RECONNECT.1),
        };
        threads::spawn_named(format!("ssh {}", login.node), STACK, move || actor.live())?;
        Ok(Self { login, inbox, wake, streams: AtomicU64::new(0), needs_program })
    }

    /// Returns whether the configuration changed so that OpenSSH's program must make the connection. All requests fail then.
    pub fn needs_program(&self) -> bool {
        self.needs_program.load(Ordering::Relaxed)
    }

    /// Runs a command and waits for its exit.
    pub fn run(&self, command: &Command) -> Result<Output, RemoteError> {
        let (reply, answer) = mpsc::channel();
        let frame = Frame::new();
        let framed = Command { script: frame.script(&command.script), ..command.clone() };
        let sent = self.send(Request::Run(framed, reply));
        // The thread answers every request, so it has exited only if it panicked.
        let exited = || {
            let (action, why) = (command.action.clone(), "the thread of the connection has exited".into());
            RemoteError::ConnectionLost { node: self.login.node.clone(), action, why }
        };
        let output = if sent { answer.recv().unwrap_or_else(|_| Err(exited())) } else { Err(exited()) };
        match output {
            Ok(output) => frame.answer(&self.login.node, command, output),
            Err(RemoteError::Timeout { node, action, after, printed }) => {
                let printed = frame.without_marks(&printed);
                Err(RemoteError::Timeout { node, action, after, printed })
            }
            Err(error) => Err(error),
        }
    }

    /// Runs a script that writes lines until the returned id is passed to [`Self::end_stream`].
    pub fn stream(&self, script: String, output_timeout: Duration, on_event: OnStreamEvent) -> u64 {
        let id = self.streams.fetch_add(1, Ordering::Relaxed);
        self.send(Request::Stream { id, script, output_timeout, on_event });
        id
    }

    /// Ends a stream and its script.
    pub fn end_stream(&self, id: u64) {
        self.send(Request::EndStream(id));
    }

    fn send(&self, request: Request) -> bool {
        let sent = self.inbox.send(request).is_ok();
        // The write fails if the pipe is full; then the thread wakes anyway.
        let _ = (&self.wake).write(&[1]);
        sent
    }
}

struct Actor {
    options: SshOptions,
    login: Login,
    settings: Settings,
    settings_read: Instant,
    needs_program: Arc<AtomicBool>,
    requests: Receiver<Request>,
    woken: UnixStream,
    waiting: VecDeque<Work>,
    running: Vec<Running>,
    /// The exchange of work that was given up before the server replied to its request. The reply must be read before another
    /// command may be started.
    abandoned: Option<Box<Exchange>>,
    /// The time at which the opening of a channel began.
    opening: Option<Instant>,
    backoff: Backoff,
}

/// Work that runs in its own channel.
enum Work {
    Command { command: Command, reply: Reply, requested: Instant },
    Stream(StreamWork),
    Heartbeat,
}

struct StreamWork {
    id: u64,
    script: String,
    output: StreamOutput,
    output_timeout: Duration,
    on_event: OnStreamEvent,
    last_event: LastEvent,
}

/// The last connection event that was sent to the reader of a stream.
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

/// The limit of channels after the server refused one. It expires, because the server may still count closed channels.
struct ChannelLimit {
    channels: usize,
    at: Instant,
}

/// Why a session ended.
enum SessionEnd {
    /// The [`Connection`] was dropped.
    Dropped,
    /// The connection broke.
    Lost(String),
    /// Nothing was received for this time, not even the reply to a heartbeat.
    TimedOut(Duration),
}

impl Actor {
    fn live(mut self) {
        let mut failed: Option<(ConnectionError, Instant)> = None;
        loop {
            // After a failed connection, requests fail with the same error until the pause is over, or until a user waits. A server that
            // refuses logins may count them, so only a failed TCP connection is tried again for a user.
            let pause = failed.as_ref().map(|(error, until)| match error.step {
                ConnectStep::Connect if self.is_awaited() => Duration::ZERO,
                _ => until.saturating_duration_since(Instant::now()),
            });
            if let Some((error, _)) = failed.as_ref().filter(|_| pause.is_some_and(|pause| !pause.is_zero())) {
                let error = error.clone();
                self.fail_waiting(&error);
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
                Err(error) => {
                    self.fail_waiting(&error);
                    let longest = if error.step == ConnectStep::Connect { RECONNECT_TCP } else { RECONNECT.1 };
                    let pause = self.backoff.next_within(longest);
                    failed = Some((error, Instant::now() + pause));
                }
                Ok(link) => {
                    failed = None;
                    self.backoff.reset();
                    let end = self.serve(&link);
                    // After this, no call of libssh2 blocks.
                    let _ = link.socket.shutdown(Shutdown::Both);
                    self.end_running(&end);
                    link.session.set_blocking(true);
                    link.session.set_timeout(1);
                    if let SessionEnd::Dropped = end {
                        return;
                    }
                }
            }
        }
    }

    /// Returns whether a user waits for a command.
    fn is_awaited(&self) -> bool {
        self.waiting.iter().any(|work| matches!(work, Work::Command { command, .. } if command.connects_now))
    }

    fn next_request(&self, wait: Option<Duration>) -> Result<Request, RecvTimeoutError> {
        match wait {
            None => self.requests.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(wait) => self.requests.recv_timeout(wait),
        }
    }

    fn connect(&mut self) -> Result<Connected, ConnectionError> {
        if self.settings_read.elapsed() > SETTINGS_FOR {
            self.settings = Settings::read(&self.options, &self.login)?;
            self.settings_read = Instant::now();
        }
        let Some(why) = self.settings.needs_program() else {
            return connect(&self.settings, &self.login, &self.options);
        };
        self.needs_program.store(true, Ordering::Relaxed);
        self.end_streams(&why);
        let why = format!("OpenSSH's program connects to it from now on: {why}");
        Err(ConnectionError::new(ConnectStep::Config, ErrorCode::NodeUnreachable, why, "try again"))
    }

    /// Ends all streams, so that their readers open them again with the other client.
    fn end_streams(&mut self, why: &str) {
        let mut kept = VecDeque::new();
        for work in std::mem::take(&mut self.waiting) {
            match work {
                Work::Stream(StreamWork { mut on_event, .. }) => {
                    let (status, stderr) = (Status::Signal("HUP".into()), why.as_bytes().to_vec());
                    let _ = on_event(StreamEvent::Exited(Output { status, stdout: Vec::new(), stderr }));
                }
                work => kept.push_back(work),
            }
        }
        self.waiting = kept;
    }

    fn accept(&mut self, request: Request) {
        match request {
            Request::Run(command, reply) => {
                self.waiting.push_back(Work::Command { command, reply, requested: Instant::now() });
            }
            Request::Stream { id, script, output_timeout, on_event } => {
                let (output, last_event) = (StreamOutput::new(), LastEvent::None);
                let stream = StreamWork { id, script, output, output_timeout, on_event, last_event };
                self.waiting.push_back(Work::Stream(stream));
            }
            Request::EndStream(ended) => {
                let is_it = |work: &Work| matches!(work, Work::Stream(stream) if stream.id == ended);
                self.waiting.retain(|work| !is_it(work));
                while let Some(index) = self.running.iter().position(|running| is_it(&running.work)) {
                    self.give_up(index);
                }
            }
        }
    }

    /// Returns the error to all waiting commands. Streams keep waiting, and their readers receive the error as an event.
    fn fail_waiting(&mut self, error: &ConnectionError) {
        let node = self.login.node.clone();
        self.waiting = std::mem::take(&mut self.waiting)
            .into_iter()
            .filter_map(|work| fail(work, RemoteError::Unreachable { node: node.clone(), error: error.clone() }))
            .collect();
    }

    /// Ends the running work of a session that ended. Commands are not repeated, because they may have been carried out.
    fn end_running(&mut self, end: &SessionEnd) {
        for running in std::mem::take(&mut self.running) {
            let (node, action) = (self.login.node.clone(), running.work.action());
            let error = match end {
                SessionEnd::Lost(why) => RemoteError::ConnectionLost { node, action, why: why.clone() },
                SessionEnd::TimedOut(after) => {
                    let printed = running.printed();
                    RemoteError::Timeout { node, action, after: *after, printed }
                }
                SessionEnd::Dropped => {
                    RemoteError::ConnectionLost { node, action, why: "this program closed it".into() }
                }
            };
            self.waiting.extend(fail(running.work, error));
        }
        self.waiting.retain(|work| !matches!(work, Work::Heartbeat));
        self.opening = None;
        self.abandoned = None;
    }

    /// Serves requests until the session ends.
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
            // Repeat until two passes make no progress, because reading one channel may receive the data of another.
            let mut idle = 0;
            while idle < 2 {
                match self.make_progress(link, &mut limit) {
                    Ok(true) => {
                        last_received = Instant::now();
                        idle = 0;
                    }
                    Ok(false) => idle += 1,
                    Err(why) => return SessionEnd::Lost(why),
                }
            }
            if let Some(after) = self.expire(last_received) {
                return SessionEnd::TimedOut(after);
            }
            self.sleep(link, last_received);
        }
    }

    /// Opens channels for waiting work and advances the running work. Returns whether there was progress.
    fn make_progress(&mut self, link: &Connected, limit: &mut Option<ChannelLimit>) -> Result<bool, String> {
        let mut has_progress = false;
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
                    let Some(mut work) = self.waiting.pop_front() else { break };
                    if let Work::Stream(stream) = &mut work {
                        stream.output.restart();
                    }
                    let now = Instant::now();
                    self.running.push(Running { work, exchange, began: now, last_received: now });
                    has_progress = true;
                }
                Ok(Opened::Pending) => {
                    self.opening.get_or_insert_with(Instant::now);
                    break;
                }
                // The remaining work waits for a free channel. If no channel is open, the server may never allow one.
                Ok(Opened::TooMany) if !self.running.is_empty() => {
                    self.opening = None;
                    // If streams use all channels, one of them is ended for the command and started again later.
                    let is_stream = |running: &Running| matches!(running.work, Work::Stream(_));
                    if !matches!(work, Work::Stream(_)) && self.running.iter().all(is_stream) {
                        let stream = self.give_up(0);
                        self.waiting.push_back(stream);
                    }
                    *limit = Some(ChannelLimit { channels: self.running.len().max(1), at: Instant::now() });
                    break;
                }
                Ok(Opened::TooMany) => return Err("the server allows no commands (MaxSessions 0?)".into()),
                Err(ExchangeError::Session(why) | ExchangeError::Refused(why)) => return Err(why),
            }
        }
        if let Some(abandoned) = &mut self.abandoned {
            match abandoned.read_reply() {
                Ok(()) if abandoned.is_requesting() => {}
                Ok(()) | Err(ExchangeError::Refused(_)) => {
                    self.abandoned = None;
                    has_progress = true;
                }
                Err(ExchangeError::Session(why)) => return Err(why),
            }
        }
        let mut index = 0;
        while index < self.running.len() {
            let is_requesting = |running: &Running| running.exchange.is_requesting();
            let may_request = self.abandoned.is_none() && !self.running.iter().any(is_requesting);
            let running = &mut self.running[index];
            let step = running.exchange.step(running.work.keeps_input_open(), may_request);
            if matches!(step, Ok(Step::Progress)) {
                (has_progress, running.last_received) = (true, Instant::now());
            }
            let continues = running.send_lines(&self.login.node);
            match step {
                Ok(Step::Idle | Step::Progress) if continues => index += 1,
                Ok(Step::Idle | Step::Progress) => drop(self.give_up(index)),
                Ok(Step::Done(status)) => {
                    self.running.swap_remove(index).finish(&self.login.node, status);
                    has_progress = true;
                }
                // The next connection starts the stream again, after a pause.
                Err(ExchangeError::Refused(why)) if matches!(running.work, Work::Stream(_)) => return Err(why),
                Err(ExchangeError::Refused(why)) => {
                    let Running { work, .. } = self.running.swap_remove(index);
                    let node = self.login.node.clone();
                    let action = work.action();
                    fail(work, RemoteError::CommandFailed { node, action, status: why, stderr: String::new() });
                }
                Err(ExchangeError::Session(why)) => return Err(why),
            }
        }
        Ok(has_progress)
    }

    /// Ends running work before its command has exited, and returns the work.
    fn give_up(&mut self, index: usize) -> Work {
        let Running { work, exchange, .. } = self.running.swap_remove(index);
        if exchange.is_requesting() {
            self.abandoned = Some(exchange);
        }
        work
    }

    /// Fails commands that exceeded their time limit. If the session itself timed out, returns how long nothing was received.
    fn expire(&mut self, last_received: Instant) -> Option<Duration> {
        let node = self.login.node.clone();
        let mut expired = Vec::new();
        let mut is_stream_silent = false;
        let mut index = 0;
        while index < self.running.len() {
            let running = &mut self.running[index];
            let (since, limit) = running.limit();
            if since.elapsed() < limit {
                index += 1;
                continue;
            }
            match running.work {
                Work::Command { .. } => {
                    let printed = running.printed();
                    expired.push((self.give_up(index), printed));
                }
                // The script may hang while the connection works.
                Work::Stream(_) => {
                    (running.last_received, is_stream_silent) = (Instant::now(), true);
                    index += 1;
                }
                Work::Heartbeat => return Some(last_received.elapsed()),
            }
        }
        // Waiting commands expire too: the time limit of a command begins with its request.
        let is_expired = |work: &Work| matches!(work, Work::Command { command, requested, .. } if requested.elapsed() >= command.deadline);
        while let Some(index) = self.waiting.iter().position(is_expired) {
            expired.extend(self.waiting.remove(index).map(|work| (work, String::new())));
        }
        // The command may only be slow, so a heartbeat tests the connection.
        if (is_stream_silent || !expired.is_empty()) && !self.has_heartbeat() {
            self.waiting.push_front(Work::Heartbeat);
        }
        for (work, printed) in expired {
            let (action, after) = (work.action(), work.deadline());
            fail(work, RemoteError::Timeout { node: node.clone(), action, after, printed });
        }
        self.opening.filter(|since| since.elapsed() > HEARTBEAT_TIMEOUT).map(|_| last_received.elapsed())
    }

    fn has_heartbeat(&self) -> bool {
        let works = self.running.iter().map(|running| &running.work).chain(&self.waiting);
        works.into_iter().any(|work| matches!(work, Work::Heartbeat))
    }

    /// Sleeps until the socket or a request wakes the thread, or a time limit or heartbeat is due.
    fn sleep(&mut self, link: &Connected, last_received: Instant) {
        let is_stream = |running: &Running| matches!(running.work, Work::Stream(_));
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
        // The result does not matter: the loop checks all sources again.
        let _ = poll(&mut sources, PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX));
        let mut bytes = [0; 64];
        while matches!(self.woken.read(&mut bytes), Ok(64)) {}
    }
}

impl Work {
    fn line(&self) -> String {
        match self {
            Self::Command { command, .. } => login_line(&command.script),
            Self::Stream(stream) => stream.output.line(&stream.script),
            Self::Heartbeat => ":".into(),
        }
    }

    fn input(&self) -> &[u8] {
        match self {
            Self::Command { command, .. } => &command.input,
            Self::Stream(_) | Self::Heartbeat => &[],
        }
    }

    fn action(&self) -> String {
        match self {
            Self::Command { command, .. } => command.action.clone(),
            Self::Stream(_) => ACTION.into(),
            Self::Heartbeat => "run a command".into(),
        }
    }

    fn deadline(&self) -> Duration {
        match self {
            Self::Command { command, .. } => command.deadline,
            Self::Stream(stream) => stream.output_timeout,
            Self::Heartbeat => HEARTBEAT_TIMEOUT,
        }
    }

    /// Returns whether the standard input stays open. The script of a stream is killed when its standard input closes, so it
    /// ends when the connection is lost.
    fn keeps_input_open(&self) -> bool {
        matches!(self, Self::Stream(_))
    }
}

impl Running {
    /// Returns the time limit and the time from which it counts.
    fn limit(&self) -> (Instant, Duration) {
        let since = match &self.work {
            Work::Command { requested, .. } => *requested,
            Work::Stream(_) => self.last_received,
            Work::Heartbeat => self.began,
        };
        (since, self.work.deadline())
    }

    /// Sends the complete lines of the script to the reader of a stream. Returns whether the stream continues.
    fn send_lines(&mut self, node: &NodeId) -> bool {
        let Work::Stream(StreamWork { on_event, last_event, output, .. }) = &mut self.work else { return true };
        let bytes = &mut self.exchange.stdout;
        let complete = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let text: Vec<u8> = bytes.drain(..complete).collect();
        for line in String::from_utf8_lossy(&text).lines() {
            let event = match output.read(line) {
                LineOf::Shell => continue,
                LineOf::Mark if *last_event == LastEvent::Connected => continue,
                LineOf::Mark => StreamEvent::Connected,
                LineOf::Script => StreamEvent::Line(line.to_owned()),
            };
            *last_event = LastEvent::Connected;
            if on_event(event).is_break() {
                return false;
            }
        }
        if bytes.len() > LONGEST_LINE {
            let _ = on_event(endless_line(node, bytes));
            return false;
        }
        true
    }

    /// Returns the last lines that the node printed.
    fn printed(&self) -> String {
        printed(&self.exchange.stdout, &self.exchange.stderr)
    }

    fn finish(self, node: &NodeId, status: Status) {
        let Output { status, stdout, stderr } = self.exchange.output(status);
        match self.work {
            // The send fails if the caller no longer waits.
            Work::Command { reply, .. } => _ = reply.send(Ok(Output { status, stdout, stderr })),
            Work::Stream(mut stream) => _ = (stream.on_event)(stream.output.exit(node, status, &stdout, stderr)),
            Work::Heartbeat => {}
        }
    }
}

/// Returns the error to a command. A stream is returned, to be started again after a reconnect.
fn fail(work: Work, error: RemoteError) -> Option<Work> {
    match work {
        Work::Command { reply, .. } => {
            // The send fails if the caller no longer waits.
            let _ = reply.send(Err(error));
            None
        }
        Work::Stream(mut stream) => {
            // The error is reported once and not at every retry.
            let flow = if stream.last_event == LastEvent::Disconnected {
                ControlFlow::Continue(())
            } else {
                (stream.on_event)(StreamEvent::Disconnected(error))
            };
            stream.last_event = LastEvent::Disconnected;
            flow.is_continue().then_some(Work::Stream(stream))
        }
        Work::Heartbeat => None,
    }
}
