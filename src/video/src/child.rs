//! Runs a child process with bounded memory and a limit on the time without progress, and leaves no process behind.
//!
//! One thread polls the pipes, so that output goes straight into the buffer of the caller.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::cancel::Cancel;

/// The interval between checks for cancellation while a child writes nothing.
const SLICE: Duration = Duration::from_millis(100);

/// The maximum number of bytes that are kept of one stderr line.
const MAX_LINE: usize = 2048;

/// The smallest number of bytes by which an output buffer grows.
const CHUNK: usize = 64 << 10;

/// The limits on a child process.
pub(crate) struct Run<'a> {
    /// The child is killed when it makes no progress for this long.
    pub limit: Duration,
    /// The child is killed when this is cancelled.
    pub cancel: &'a Cancel,
    /// The child is killed when it writes more bytes than this.
    pub max_bytes: usize,
    /// The expected number of output bytes; 0 if unknown.
    pub capacity: usize,
}

/// A child process that ended by itself.
#[derive(Debug)]
pub(crate) struct Done {
    /// The exit status.
    pub status: ExitStatus,
    /// The standard output.
    pub bytes: Vec<u8>,
}

/// The reason why a child process did not end by itself.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The program could not be started.
    NotStarted(io::Error),
    /// The child made no progress for this long.
    Silent(Duration),
    /// The caller cancelled it.
    Cancelled,
    /// The child wrote more bytes than this.
    TooMuch(usize),
    /// A pipe of the child could not be read or written, or the child's status could not be read.
    Io(io::Error),
}

/// The standard input of a child process. Each call returns the next bytes, or `None` at the end.
pub(crate) type Input<'a> = &'a mut dyn FnMut() -> Option<Vec<u8>>;

/// Runs a command to its end. `line` receives each line of stderr; long lines are cut.
pub(crate) fn run(
    mut command: Command,
    run: &Run<'_>,
    input: Option<Input<'_>>,
    line: &mut dyn FnMut(&str),
) -> Result<Done, Stop> {
    if run.cancel.is_cancelled() {
        return Err(Stop::Cancelled);
    }
    command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(Stop::NotStarted)?;
    let mut child = Reaped(child);
    let mut output = Output { bytes: vec![0; run.capacity], filled: 0 };
    talk(&mut child.0, run, input, &mut output, line)?;
    let status = child.wait(run)?;
    output.bytes.truncate(output.filled);
    Ok(Done { status, bytes: output.bytes })
}

/// A child process that is killed and reaped when it is dropped.
struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        // Both fail only if the child was already reaped.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Reaped {
    /// Waits for a process that has closed its pipes.
    fn wait(&mut self, run: &Run<'_>) -> Result<ExitStatus, Stop> {
        let began = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().map_err(Stop::Io)? {
                return Ok(status);
            }
            if run.cancel.is_cancelled() {
                return Err(Stop::Cancelled);
            }
            if began.elapsed() > run.limit {
                return Err(Stop::Silent(run.limit));
            }
            // After a process closed its pipes, it needs milliseconds to end, for example to unmap its libraries.
            thread::sleep((began.elapsed() / 8).clamp(Duration::from_micros(100), Duration::from_millis(20)));
        }
    }
}

/// The output of a child process, which is read in place.
struct Output {
    bytes: Vec<u8>,
    filled: usize,
}

impl Output {
    /// Reads once from a pipe that has data; returns 0 at its end.
    fn read(&mut self, from: &mut impl Read, max: usize) -> Result<usize, Stop> {
        if self.filled == self.bytes.len() {
            if self.filled >= max {
                // The limit is reached: the child may write nothing more, and only the end of the pipe may follow.
                return match from.read(&mut [0]) {
                    Ok(0) => Ok(0),
                    Ok(_) => Err(Stop::TooMuch(max)),
                    Err(error) => Err(Stop::Io(error)),
                };
            }
            let larger = (self.filled * 2).max(self.filled + CHUNK).min(max);
            self.bytes.resize(larger, 0);
        }
        let read = from.read(&mut self.bytes[self.filled..]).map_err(Stop::Io)?;
        self.filled += read;
        Ok(read)
    }
}

/// Splits stderr into lines and cuts long ones.
#[derive(Default)]
struct Lines {
    line: Vec<u8>,
}

impl Lines {
    fn add(&mut self, bytes: &[u8], line: &mut dyn FnMut(&str)) {
        for piece in bytes.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
            // A program may write a line in parts. A space at the end of a part belongs to the line.
            let text = piece.strip_suffix(b"\n").or_else(|| piece.strip_suffix(b"\r")).unwrap_or(piece);
            let room = MAX_LINE.saturating_sub(self.line.len());
            self.line.extend_from_slice(if text.len() > room { &text[..room] } else { text });
            if piece.ends_with(b"\n") || piece.ends_with(b"\r") {
                self.end(line);
            }
        }
    }

    fn end(&mut self, line: &mut dyn FnMut(&str)) {
        if !self.line.is_empty() {
            line(String::from_utf8_lossy(&self.line).trim());
            self.line.clear();
        }
    }
}

/// The input of a child process that is not written yet.
struct Pending<'a> {
    pipe: ChildStdin,
    next: Input<'a>,
    bytes: Vec<u8>,
    written: usize,
}

impl Pending<'_> {
    /// Writes as many bytes as the pipe accepts; returns whether more remain.
    fn write(&mut self) -> Result<bool, Stop> {
        if self.written == self.bytes.len() {
            let Some(next) = (self.next)() else { return Ok(false) };
            (self.bytes, self.written) = (next, 0);
        }
        match self.pipe.write(&self.bytes[self.written..]) {
            Ok(written) => self.written += written,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            // The child has ended. Its exit status and stderr contain the reason.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(false),
            Err(error) => return Err(Stop::Io(error)),
        }
        Ok(true)
    }
}

/// Moves data until the child closes its pipes.
fn talk(
    child: &mut Child,
    run: &Run<'_>,
    input: Option<Input<'_>>,
    output: &mut Output,
    line: &mut dyn FnMut(&str),
) -> Result<(), Stop> {
    let (mut stdout, mut stderr) = (child.stdout.take(), child.stderr.take());
    let mut pending = match (child.stdin.take(), input) {
        (Some(pipe), Some(next)) => {
            fcntl(&pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(system)?;
            Some(Pending { pipe, next, bytes: Vec::new(), written: 0 })
        }
        _ => None,
    };
    #[cfg(target_os = "linux")]
    if let Some(stdout) = &stdout {
        // A larger pipe needs fewer reads. The kernel may refuse it because of the user's limit on pipes.
        let _ = fcntl(stdout, FcntlArg::F_SETPIPE_SZ(1 << 20));
    }
    let (mut lines, mut scratch) = (Lines::default(), [0; 8192]);
    let mut progress = Instant::now();
    while stdout.is_some() || stderr.is_some() {
        let ready = {
            let read = PollFlags::POLLIN;
            let pipes = [
                stdout.as_ref().map(|pipe| PollFd::new(pipe.as_fd(), read)),
                stderr.as_ref().map(|pipe| PollFd::new(pipe.as_fd(), read)),
                pending.as_ref().map(|pending| PollFd::new(pending.pipe.as_fd(), PollFlags::POLLOUT)),
            ];
            let mut open: Vec<PollFd<'_>> = pipes.iter().flatten().cloned().collect();
            let left = run.limit.saturating_sub(progress.elapsed()).min(SLICE) + Duration::from_millis(1);
            match poll(&mut open, PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO)) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(system(error)),
            }
            let mut events = open.iter();
            // A pipe whose other end is closed is ready too.
            pipes.map(|pipe| pipe.is_some() && events.next().and_then(PollFd::any).unwrap_or(false))
        };
        if run.cancel.is_cancelled() {
            return Err(Stop::Cancelled);
        }
        if ready.contains(&true) {
            progress = Instant::now();
        } else if progress.elapsed() >= run.limit {
            return Err(Stop::Silent(run.limit));
        }
        if let (true, Some(pipe)) = (ready[0], &mut stdout)
            && output.read(pipe, run.max_bytes)? == 0
        {
            stdout = None;
        }
        if let (true, Some(pipe)) = (ready[1], &mut stderr) {
            match pipe.read(&mut scratch).map_err(Stop::Io)? {
                0 => stderr = None,
                read => lines.add(&scratch[..read], line),
            }
        }
        if let (true, Some(bytes)) = (ready[2], &mut pending)
            && !bytes.write()?
        {
            pending = None;
        }
    }
    lines.end(line);
    Ok(())
}

fn system(error: Errno) -> Stop {
    Stop::Io(io::Error::from_raw_os_error(error as i32))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than a busy machine needs, and shorter than the programs of these tests run.
    const LIMIT: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn limits(cancel: &Cancel) -> Run<'_> {
        Run { limit: LIMIT, cancel, max_bytes: 1 << 20, capacity: 0 }
    }

    #[test]
    fn output_lines_and_status_are_returned() {
        let (cancel, mut lines) = (Cancel::default(), Vec::new());
        let script = shell("printf out; printf 'a\\nb' >&2; exit 3");
        let done = run(script, &limits(&cancel), None, &mut |line| lines.push(line.to_owned())).unwrap();
        assert_eq!((done.bytes.as_slice(), done.status.code()), (&b"out"[..], Some(3)));
        assert_eq!(lines, ["a", "b"]);
    }

    #[test]
    fn a_line_that_is_written_in_parts_keeps_the_spaces_between_them() {
        let (mut lines, mut seen) = (Lines::default(), Vec::new());
        for part in ["[mov @ 0x1] ", "moov atom", " not found \r\n", "b", "\n"] {
            lines.add(part.as_bytes(), &mut |line| seen.push(line.to_owned()));
        }
        assert_eq!(seen, ["[mov @ 0x1] moov atom not found", "b"]);
    }

    #[test]
    fn input_larger_than_a_pipe_is_written_while_output_is_read() {
        let (cancel, mut parts) = (Cancel::default(), 10);
        let mut next = || {
            parts -= 1;
            (parts >= 0).then(|| vec![7; 100_000])
        };
        let done = run(shell("cat"), &limits(&cancel), Some(&mut next), &mut |_| ()).unwrap();
        assert_eq!(done.bytes, vec![7; 1_000_000]);
    }

    #[test]
    fn a_silent_process_is_killed_and_reaped() {
        let (cancel, mut limit, mut pid) = (Cancel::default(), Duration::from_millis(200), String::new());
        // On a busy machine, the shell may take longer than the limit to write its line.
        while pid.is_empty() {
            let run_ = Run { limit, ..limits(&cancel) };
            let stop = run(shell("echo $$ >&2; exec sleep 600"), &run_, None, &mut |line| pid = line.to_owned());
            assert!(matches!(stop, Err(Stop::Silent(_))));
            limit *= 2;
            assert!(limit < LIMIT, "the shell wrote nothing");
        }
        assert!(!std::path::Path::new("/proc").join(&pid).exists(), "process {pid} is left");
    }

    #[test]
    fn a_process_that_closed_its_pipes_and_does_not_end_is_killed() {
        let cancel = Cancel::default();
        let run_ = Run { limit: Duration::from_millis(200), ..limits(&cancel) };
        let stop = run(shell("exec sleep 600 >&- 2>&-"), &run_, None, &mut |_| ());
        assert!(matches!(stop, Err(Stop::Silent(_))));
    }

    #[test]
    fn a_cancelled_process_is_killed_at_once() {
        let cancel = Cancel::default();
        let other = cancel.clone();
        let stop = thread::scope(|scope| {
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(200));
                other.cancel();
            });
            run(shell("exec sleep 600"), &limits(&cancel), None, &mut |_| ())
        });
        assert!(matches!(stop, Err(Stop::Cancelled)), "not silent, so it was killed before the limit");
        assert!(matches!(run(shell("true"), &limits(&cancel), None, &mut |_| ()), Err(Stop::Cancelled)));
    }

    #[test]
    fn output_and_lines_are_bounded() {
        let cancel = Cancel::default();
        let run_ = Run { max_bytes: 1000, ..limits(&cancel) };
        let stop = run(shell("head -c 5000 /dev/zero"), &run_, None, &mut |_| ());
        assert!(matches!(stop, Err(Stop::TooMuch(1000))));
        let mut longest = 0;
        let script = "head -c 1000000 /dev/zero | tr '\\0' x >&2";
        run(shell(script), &run_, None, &mut |line| longest = longest.max(line.len())).unwrap();
        assert_eq!(longest, MAX_LINE);
    }
}
