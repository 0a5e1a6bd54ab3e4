//! Child processes of this program: reads their pipes and waits for their exit.

use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{self, Child, ExitStatus, Stdio};
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::{Duration, Instant};

use crate::command::{MAX_OUTPUT, Output, Status};
use crate::threads;

/// How often a process is polled for its exit.
const POLL_EVERY: Duration = Duration::from_millis(5);
/// The time in which the pipes of a killed program must end.
const LAST_OUTPUT: Duration = Duration::from_millis(200);

/// The output of a program until it was killed. It may be incomplete.
#[derive(Debug, Default)]
pub(crate) struct Killed {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

/// Runs a program with the given standard input. Kills it when it runs longer than `limit`.
pub(crate) fn run(program: &mut process::Command, input: &[u8], limit: Duration) -> io::Result<Result<Output, Killed>> {
    let mut child = program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (mut stdin, input) = (child.stdin.take(), input.to_owned());
    // One thread per pipe, because a program may fill one pipe while it waits for another.
    let writer = threads::result_of(move || stdin.as_mut().map(|pipe| pipe.write_all(&input)));
    let (stdout, stderr) = (drain(child.stdout.take()), drain(child.stderr.take()));
    let Some(status) = wait(&mut child, limit)? else {
        // A child of the program may keep the pipes open.
        let last = |pipe: Receiver<Vec<u8>>| pipe.recv_timeout(LAST_OUTPUT).unwrap_or_default();
        return Ok(Err(Killed { stdout: last(stdout), stderr: last(stderr) }));
    };
    // The write fails if the program does not read all of its input. This is not an error.
    let _ = writer.recv();
    let (stdout, stderr) = (stdout.recv().unwrap_or_default(), stderr.recv().unwrap_or_default());
    Ok(Ok(Output { status: status.into(), stdout, stderr }))
}

/// Reads a pipe to its end, or up to [`MAX_OUTPUT`] bytes, in another thread.
pub(crate) fn drain<R: Read + Send + 'static>(pipe: Option<R>) -> Receiver<Vec<u8>> {
    threads::result_of(move || {
        let mut bytes = Vec::new();
        if let Some(pipe) = pipe {
            // On an error, the bytes read so far are returned.
            let _ = pipe.take(MAX_OUTPUT as u64).read_to_end(&mut bytes);
        }
        bytes
    })
}

/// Waits for a process. Kills it and returns `None` when it runs longer than `limit`.
pub(crate) fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(POLL_EVERY);
    }
}

impl From<ExitStatus> for Status {
    fn from(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, signal) => Self::Signal(signal.map_or_else(|| "?".into(), |number| number.to_string())),
        }
    }
}
