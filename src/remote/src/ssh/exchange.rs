//! One command on its way through a session: opened, asked, fed, read, closed, without ever waiting.

use std::io::{ErrorKind, Read, Write};

use ssh2::{Channel, ErrorCode, Session};

use crate::command::{MAX_OUTPUT, Output, Status};

/// libssh2's numbers for errors.
const WOULD_BLOCK: i32 = -37;
const CHANNEL_REFUSED: [i32; 2] = [-21, -22];

/// Why an exchange cannot go on.
pub enum ExchangeError {
    /// The session is of no use any more.
    Session(String),
    /// The node does not run this command; others may do.
    Refused(String),
}

/// What a step of an exchange came to.
pub enum Step {
    /// Nothing moved.
    Idle,
    /// Something did.
    Moved,
    /// The command has ended.
    Done(Status),
}

/// A command that runs.
pub struct Exchange {
    channel: Channel,
    phase: Phase,
    line: String,
    input: Vec<u8>,
    written: usize,
    /// What has arrived and was not taken.
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Asking,
    Feeding,
    Ending,
    Reading,
    Closing,
    Waiting,
}

/// What `open` comes to: a session opens one channel at a time.
pub enum Opened {
    Yes(Box<Exchange>),
    NotYet,
    /// The server allows no more channels (MaxSessions).
    TooMany,
}

impl Exchange {
    /// Opens a channel for a command. `input` is what it reads; without, its input stays open for as long as the channel.
    pub fn open(session: &Session, line: &str, input: &[u8]) -> Result<Opened, ExchangeError> {
        match session.channel_session() {
            Ok(channel) => Ok(Opened::Yes(Box::new(Self {
                channel,
                phase: Phase::Asking,
                line: line.to_owned(),
                input: input.to_owned(),
                written: 0,
                stdout: Vec::new(),
                stderr: Vec::new(),
            }))),
            Err(error) if number(&error) == WOULD_BLOCK => Ok(Opened::NotYet),
            Err(error) if number(&error) == CHANNEL_REFUSED[0] => Ok(Opened::TooMany),
            Err(error) => Err(ExchangeError::Session(error.message().to_owned())),
        }
    }

    /// Does what can be done without waiting. `keep_open` leaves the command's input open.
    pub fn step(&mut self, keep_open: bool) -> Result<Step, ExchangeError> {
        let mut moved = false;
        loop {
            let before = self.phase;
            match self.phase {
                Phase::Asking => {
                    if ready(self.channel.exec(&self.line))?.is_some() {
                        self.phase = Phase::Feeding;
                    }
                }
                Phase::Feeding => {
                    moved |= self.feed()?;
                    if self.written == self.input.len() {
                        self.phase = if keep_open { Phase::Reading } else { Phase::Ending };
                    }
                }
                Phase::Ending => {
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
            // A command may talk before it has heard all, and wait until it is listened to.
            if matches!(self.phase, Phase::Feeding | Phase::Ending | Phase::Reading) {
                moved |= self.listen()?;
                if self.channel.eof() {
                    self.phase = Phase::Closing;
                }
            }
            if self.phase == before {
                return Ok(if moved { Step::Moved } else { Step::Idle });
            }
            moved = true;
        }
    }

    fn feed(&mut self) -> Result<bool, ExchangeError> {
        let mut moved = false;
        while self.written < self.input.len() {
            match self.channel.write(&self.input[self.written..]) {
                Ok(0) => break,
                Ok(bytes) => {
                    self.written += bytes;
                    moved = true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(ExchangeError::Session(error.to_string())),
            }
        }
        Ok(moved)
    }

    fn listen(&mut self) -> Result<bool, ExchangeError> {
        let mut moved = false;
        let mut buffer = [0; 16 * 1024];
        for stream in [0, 1] {
            loop {
                match self.channel.stream(stream).read(&mut buffer) {
                    Ok(0) => break,
                    Ok(bytes) => {
                        moved = true;
                        let kept = if stream == 0 { &mut self.stdout } else { &mut self.stderr };
                        let room = MAX_OUTPUT.saturating_sub(kept.len());
                        kept.extend_from_slice(&buffer[..bytes.min(room)]);
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(ExchangeError::Session(error.to_string())),
                }
            }
        }
        Ok(moved)
    }

    /// The exit status alone would say 0 for a process that a signal ended.
    fn status(&self) -> Status {
        match self.channel.exit_signal().ok().and_then(|signal| signal.exit_signal) {
            Some(name) => Status::Signal(name),
            None => Status::Code(self.channel.exit_status().unwrap_or(-1)),
        }
    }

    /// Takes what has arrived.
    pub fn output(self, status: Status) -> Output {
        Output { status, stdout: self.stdout, stderr: self.stderr }
    }
}

/// Nothing while the answer is not there.
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

fn number(error: &ssh2::Error) -> i32 {
    match error.code() {
        ErrorCode::Session(number) | ErrorCode::SFTP(number) => number,
    }
}
