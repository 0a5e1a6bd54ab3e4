//! The exchange of one command over a session, as a state machine that never blocks.

use std::io::{ErrorKind, Read, Write};

use ssh2::{Channel, Session};

use super::connect::number;
use crate::command::{MAX_OUTPUT, Output, Status};

/// Error codes of libssh2.
const WOULD_BLOCK: i32 = -37;
const CHANNEL_REFUSED: [i32; 2] = [-21, -22];

/// Why an exchange failed.
pub enum ExchangeError {
    /// The session is broken.
    Session(String),
    /// The server refused this command. The session still works.
    Refused(String),
}

/// The result of a step of an exchange.
pub enum Step {
    /// No data was sent or received.
    Idle,
    /// Data was sent or received.
    Progress,
    /// The command exited.
    Done(Status),
}

/// A running command.
pub struct Exchange {
    channel: Channel,
    phase: Phase,
    line: String,
    input: Vec<u8>,
    written: usize,
    /// The output that has arrived and was not yet taken.
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The channel is open.
    Open,
    /// The request to start the command is sent.
    Requesting,
    Sending,
    SendingEof,
    Reading,
    Closing,
    Waiting,
}

/// The result of opening a channel. A session opens one channel at a time.
pub enum Opened {
    Yes(Box<Exchange>),
    /// The server has not replied; call again.
    Pending,
    /// The server allows no more channels (MaxSessions).
    TooMany,
}

impl Exchange {
    /// Opens a channel for a command whose standard input is `input`.
    pub fn open(session: &Session, line: &str, input: &[u8]) -> Result<Opened, ExchangeError> {
        match session.channel_session() {
            Ok(channel) => Ok(Opened::Yes(Box::new(Self {
                channel,
                phase: Phase::Open,
                line: line.to_owned(),
                input: input.to_owned(),
                written: 0,
                stdout: Vec::new(),
                stderr: Vec::new(),
            }))),
            Err(error) if number(&error) == WOULD_BLOCK => Ok(Opened::Pending),
            Err(error) if number(&error) == CHANNEL_REFUSED[0] => Ok(Opened::TooMany),
            Err(error) => Err(ExchangeError::Session(error.message().to_owned())),
        }
    }

    /// Returns whether the server has not replied to the request to start the command.
    pub fn is_requesting(&self) -> bool {
        self.phase == Phase::Requesting
    }

    /// Reads the reply to the request to start the command, if it has arrived.
    pub fn read_reply(&mut self) -> Result<(), ExchangeError> {
        if self.is_requesting() && ready(self.channel.exec(&self.line))?.is_some() {
            self.phase = Phase::Sending;
        }
        Ok(())
    }

    /// Sends and receives as much as possible without blocking.
    ///
    /// * `keep_open` — whether the standard input of the command stays open.
    /// * `may_request` — whether the command may be started: the session waits for the reply to no other request. If it waits for two,
    ///   libssh2 1.11 reads one reply during the call for the other, and that call fails (`_libssh2_packet_requirev`).
    pub fn step(&mut self, keep_open: bool, may_request: bool) -> Result<Step, ExchangeError> {
        let mut has_progress = false;
        loop {
            let before = self.phase;
            match self.phase {
                Phase::Open if may_request => {
                    self.phase = Phase::Requesting;
                    // Nothing was received yet.
                    continue;
                }
                Phase::Open => {}
                Phase::Requesting => self.read_reply()?,
                Phase::Sending => {
                    has_progress |= self.send()?;
                    if self.written == self.input.len() {
                        self.phase = if keep_open { Phase::Reading } else { Phase::SendingEof };
                    }
                }
                Phase::SendingEof => {
                    if ready(self.channel.send_eof())?.is_some() {
                        self.phase = Phase::Reading;
                    }
                }
                Phase::Reading => {}
                Phase::Closing => {
                    if ready(self.channel.close())?.is_some() {
                        self.phase = Phase::Waiting;
                    }
                }
                Phase::Waiting => {
                    if ready(self.channel.wait_close())?.is_some() {
                        return Ok(Step::Done(self.status()));
                    }
                }
            }
            // The command may write before it has read all of its input, and block until its output is read.
            if matches!(self.phase, Phase::Sending | Phase::SendingEof | Phase::Reading) {
                has_progress |= self.receive()?;
                if self.channel.eof() {
                    self.phase = Phase::Closing;
                }
            }
            if self.phase == before {
                return Ok(if has_progress { Step::Progress } else { Step::Idle });
            }
            has_progress = true;
        }
    }

    fn send(&mut self) -> Result<bool, ExchangeError> {
        let mut has_progress = false;
        while self.written < self.input.len() {
            match self.channel.write(&self.input[self.written..]) {
                Ok(0) => break,
                Ok(bytes) => {
                    self.written += bytes;
                    has_progress = true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(ExchangeError::Session(error.to_string())),
            }
        }
        Ok(has_progress)
    }

    fn receive(&mut self) -> Result<bool, ExchangeError> {
        let mut has_progress = false;
        let mut buffer = [0; 16 * 1024];
        for stream in [0, 1] {
            loop {
                match self.channel.stream(stream).read(&mut buffer) {
                    Ok(0) => break,
                    Ok(bytes) => {
                        has_progress = true;
                        let kept = if stream == 0 { &mut self.stdout } else { &mut self.stderr };
                        let room = MAX_OUTPUT.saturating_sub(kept.len());
                        kept.extend_from_slice(&buffer[..bytes.min(room)]);
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(ExchangeError::Session(error.to_string())),
                }
            }
        }
        Ok(has_progress)
    }

    /// Returns how the command exited. The exit status alone would be 0 for a process that was killed by a signal.
    fn status(&self) -> Status {
        match self.channel.exit_signal().ok().and_then(|signal| signal.exit_signal) {
            Some(name) => Status::Signal(name),
            None => Status::Code(self.channel.exit_status().unwrap_or(-1)),
        }
    }

    /// Returns the output that has arrived.
    pub fn output(self, status: Status) -> Output {
        Output { status, stdout: self.stdout, stderr: self.stderr }
    }
}

/// Returns `None` while the reply is pending.
fn ready<T>(result: Result<T, ssh2::Error>) -> Result<Option<T>, ExchangeError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if number(&error) == WOULD_BLOCK => Ok(None),
        Err(error) if CHANNEL_REFUSED.contains(&number(&error)) => {
            Err(ExchangeError::Refused(error.message().to_owned()))
        }
        Err(error) => Err(ExchangeError::Session(error.message().to_owned())),
    }
}
