//! Child processes of this program: their pipes, and their ends.

use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::command::{MAX_OUTPUT, Status};

/// Between looks at whether a process has ended.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Reads a pipe to its end, in a thread of its own.
pub(crate) fn drain<R: Read + Send + 'static>(pipe: Option<R>) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(pipe) = pipe {
            // What was read until then counts.
            let _ = pipe.take(MAX_OUTPUT as u64).read_to_end(&mut bytes);
        }
        bytes
    })
}

/// Waits for a process; kills it when it takes too long.
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
        thread::sleep(LOOK_EVERY);
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
