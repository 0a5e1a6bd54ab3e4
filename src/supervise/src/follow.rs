//! Reads the log and the checkpoints of a command, and writes the run's metrics and events for it.
//!
//! Only the supervisor on the node of rank 0 does this, so that these files have one writer, as with the embedded
//! trainer.

mod event_files;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use other_trainers::{LogEvent, LogReader, ReaderOptions, checkpoints, written_over_s};
use recipe::OtherTrainer;
use rundir::{
    CheckpointEntry, Event, EventKind, LineAppender, MetricSample, RequestSource, RunDir, RunId, StartFrom, log, now_s,
};
use serde::Serialize;

use crate::job::Job;
use event_files::EventFiles;

/// The interval at which the log is read.
const LOOK: Duration = Duration::from_millis(250);
/// The time after which a program whose log has no steps counts as started.
const STARTED: Duration = Duration::from_secs(60);
/// The interval at which checkpoints are listed, if the log does not mention them.
const LOOK_AT_CHECKPOINTS: Duration = Duration::from_secs(3);
/// The most bytes of a log that are read at a time.
const BYTES: u64 = 1 << 20;

/// Follows the log of the command in a separate thread.
pub struct Follower {
    sender: Sender<Request>,
    thread: JoinHandle<()>,
}

/// A request of the supervisor to the follower.
enum Request {
    /// Record that a stop of the command was requested, and the origin of the request.
    Stopping(RequestSource),
    /// The command has ended. True if all its steps are done.
    Ended(bool),
}

impl Follower {
    /// Starts to follow the log of rank 0.
    pub fn start(job: &Job) -> Self {
        let (sender, requests) = mpsc::channel();
        let mut writer = LogWriter::new(job);
        // A log in an unknown format does not show when the steps begin.
        if job.recipe.command.adapter == OtherTrainer::None {
            writer.take(vec![LogEvent::Started]);
        }
        let thread = thread::spawn(move || {
            loop {
                match requests.recv_timeout(LOOK) {
                    Err(RecvTimeoutError::Timeout) => writer.look(),
                    Ok(Request::Stopping(source)) => {
                        writer.event(EventKind::Stopping { source, why: source.to_string() });
                    }
                    Ok(Request::Ended(finished)) => return writer.end(finished),
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        });
        Self { sender, thread }
    }

    /// Records that a stop of the command was requested, and the origin of the request.
    pub fn stopping(&self, source: RequestSource) {
        // The thread ends only on request.
        let _ = self.sender.send(Request::Stopping(source));
    }

    /// Reads the rest of the log, and ends the thread. If the thread has panicked, only logs that metrics and events
    /// are missing, because the end of the command does not depend on them.
    pub fn end(self, finished: bool) {
        let _ = self.sender.send(Request::Ended(finished));
        if self.thread.join().is_err() {
            log!("the thread that reads the log of the command panicked, so the run lacks later metrics and events");
        }
    }
}

/// Reads the log of the command, and writes metrics and events.
struct LogWriter {
    run: RunDir,
    /// The run that saved the checkpoint from which the attempt continues.
    origin: RunId,
    attempt: u32,
    is_attached: bool,
    start_step: u64,
    world: usize,
    log: GrowingLog,
    reader: LogReader,
    /// The event files whose values are the metrics, instead of those of the log.
    files: Option<EventFiles>,
    metrics: Option<LineAppender>,
    events: Option<LineAppender>,
    step: u64,
    finite: bool,
    started: bool,
    resumed: bool,
    /// The folders of complete checkpoints, then of those that are being written.
    whole: BTreeSet<Utf8PathBuf>,
    begun: BTreeSet<Utf8PathBuf>,
    looked: Instant,
    began: Instant,
}

impl LogWriter {
    fn new(job: &Job) -> Self {
        let (attempt, accumulation) = (job.attempt.number, job.recipe.train.grad_accum as u64);
        let start_step = job.attempt.start_step;
        let open =
            |path: Utf8PathBuf| LineAppender::open(&path).inspect_err(|error| log!("cannot open {path}: {error}")).ok();
        let mut writer = Self {
            origin: match &job.attempt.start {
                StartFrom::CheckpointFreshData { run, .. } => run.clone(),
                _ => job.id.clone(),
            },
            attempt,
            is_attached: job.meta.attached.is_some(),
            start_step,
            world: job.attempt.placement.world(),
            log: GrowingLog::new(job.run.rank_log(&job.node, attempt, 0)),
            reader: LogReader::new(ReaderOptions {
                attempt,
                start_step,
                accumulation,
                steps_total: job.attempt.steps.or_else(|| job.recipe.train.length.steps()),
                ranks: job.attempt.placement.world(),
                patterns: job.recipe.command.patterns.clone(),
                ..ReaderOptions::new(job.recipe.command.adapter)
            }),
            files: EventFiles::of(&job.recipe, attempt, start_step),
            metrics: open(job.run.metrics()),
            events: open(job.run.events()),
            step: start_step,
            finite: true,
            started: false,
            resumed: false,
            whole: BTreeSet::new(),
            begun: BTreeSet::new(),
            looked: Instant::now(),
            began: Instant::now(),
            run: job.run.clone(),
        };
        for entry in checkpoints(&writer.run).unwrap_or_default() {
            let known = if entry.complete().is_some() { &mut writer.whole } else { &mut writer.begun };
            known.insert(entry.dir().to_owned());
        }
        writer
    }

    fn look(&mut self) {
        let mut silent = true;
        while let Some(bytes) = self.log.more() {
            silent = false;
            let events = self.reader.read(&bytes, now_s());
            self.take(events);
        }
        let samples = self.files.as_mut().map_or_else(Vec::new, EventFiles::look);
        samples.into_iter().for_each(|sample| self.sample(&sample));
        self.write();
        if silent {
            let events = self.reader.pause(now_s());
            self.take(events);
            // A program may log nothing about its steps, and few lines.
            if self.began.elapsed() >= STARTED {
                self.start();
            }
        }
        if self.looked.elapsed() >= LOOK_AT_CHECKPOINTS {
            self.look_at_checkpoints();
        }
    }

    fn end(&mut self, finished: bool) {
        self.look();
        let events = self.reader.end(now_s());
        self.take(events);
        let samples = self.files.as_mut().map_or_else(Vec::new, EventFiles::end);
        samples.into_iter().for_each(|sample| self.sample(&sample));
        self.write();
        self.look_at_checkpoints();
        if finished {
            self.event(EventKind::Finished);
        }
    }

    fn take(&mut self, events: Vec<LogEvent>) {
        self.take_each(events);
        self.write();
    }

    /// Writes the steps that were added.
    fn write(&mut self) {
        if let Some(metrics) = &mut self.metrics {
            let written = metrics.retry();
            report(written, metrics.path());
        }
    }

    fn take_each(&mut self, events: Vec<LogEvent>) {
        for events in events {
            match events {
                LogEvent::Metric(_) if self.files.is_some() => {}
                LogEvent::Metric(sample) => self.sample(&sample),
                LogEvent::Started => self.start(),
                LogEvent::Resumed if !self.resumed => {
                    self.resumed = true;
                    self.event(EventKind::Resumed { from_step: self.start_step, of_run: self.origin.clone() });
                }
                LogEvent::Resumed => {}
                LogEvent::NotRecognized { .. } | LogEvent::Recognized { .. } if self.files.is_some() => {}
                LogEvent::Recognized { format, metrics } => self.event(EventKind::LogRecognized { format, metrics }),
                LogEvent::NotRecognized { lines, is_unordered } => {
                    self.start();
                    let why = no_steps(lines, is_unordered, self.is_attached);
                    self.event(EventKind::LogNotRecognized { why });
                }
                LogEvent::EvaluationStarted => self.event(EventKind::EvaluationStarted),
                LogEvent::EvaluationEnded => self.event(EventKind::EvaluationEnded),
                // The checkpoint folders have more information than these lines.
                LogEvent::Saving | LogEvent::Saved => self.look_at_checkpoints(),
            }
        }
    }

    /// Records a step.
    fn sample(&mut self, sample: &MetricSample) {
        self.step = sample.step;
        // A log that was there before has many steps at once.
        if let Some(metrics) = &mut self.metrics {
            report(metrics.add(sample), metrics.path());
        }
        self.start();
        let finite = sample.loss.is_some() || sample.has_no_loss;
        if self.finite && !finite {
            self.event(EventKind::LossNotFinite);
        }
        self.finite = finite;
    }

    /// Records the start of training, once. Programs that do not log it have started when they log a step.
    fn start(&mut self) {
        if !std::mem::replace(&mut self.started, true) {
            self.event(EventKind::Started { world: self.world });
        }
    }

    fn look_at_checkpoints(&mut self) {
        self.looked = Instant::now();
        for entry in checkpoints(&self.run).unwrap_or_default() {
            match entry {
                CheckpointEntry::Complete(saved) if !self.whole.contains(&saved.dir) => {
                    let seconds = written_over_s(&saved.dir);
                    self.whole.insert(saved.dir.clone());
                    self.event_at(
                        saved.step,
                        EventKind::CheckpointSaved { path: saved.dir, bytes: saved.bytes, seconds },
                    );
                }
                CheckpointEntry::Incomplete { step, dir, .. } if self.begun.insert(dir.clone()) => {
                    self.event_at(step, EventKind::CheckpointStarted);
                }
                _ => {}
            }
        }
    }

    fn event(&mut self, kind: EventKind) {
        self.event_at(self.step, kind);
    }

    fn event_at(&mut self, step: u64, kind: EventKind) {
        append(&mut self.events, &Event::new(now_s(), self.attempt, Some(step), kind).by_rank(0));
    }
}

/// Returns why no steps were recognized, and what to do.
fn no_steps(lines: u64, is_unordered: bool, is_attached: bool) -> String {
    if is_unordered {
        return "its dictionaries have no step, and the progress bar is not drawn between them; enable the progress bar of the program \
            (disable_tqdm = False)"
            .into();
    }
    let describe = match is_attached {
        true => "describe its lines, and attach again: vidtui attach LOG --pattern REGEX",
        false => "describe its lines in [[command.patterns]], and try them with vidtui check RECIPE --log FILE",
    };
    let lines = units::counted(lines as usize, "line");
    format!("none of the first {lines} has a step and a loss in a form that is known; {describe}")
}

/// The bytes of a log that grows.
struct GrowingLog {
    path: Utf8PathBuf,
    offset: u64,
    /// Device and inode, to detect that the file was replaced.
    identity: Option<(u64, u64)>,
}

impl GrowingLog {
    fn new(path: Utf8PathBuf) -> Self {
        Self { path, offset: 0, identity: None }
    }

    /// Returns the new bytes, or `None` if there are none. A log that was truncated (by logrotate, or to free disk space) or replaced is
    /// read from its beginning, after a newline that ends the line that was cut.
    fn more(&mut self) -> Option<Vec<u8>> {
        let mut file = File::open(&self.path).ok()?;
        let meta = file.metadata().ok()?;
        let identity = (meta.dev(), meta.ino());
        let known = self.identity.replace(identity);
        let mut bytes = Vec::new();
        if meta.len() < self.offset || known.is_some_and(|known| known != identity) {
            self.offset = 0;
            bytes.push(b'\n');
        }
        file.seek(SeekFrom::Start(self.offset)).ok()?;
        self.offset += file.take(BYTES).read_to_end(&mut bytes).ok()? as u64;
        Some(bytes).filter(|bytes| !bytes.is_empty())
    }
}

/// Appends a line. An error is only logged, because a missing line must not end the run.
fn append(file: &mut Option<LineAppender>, line: &impl Serialize) {
    let Some(file) = file else { return };
    let written = file.append(line);
    report(written, file.path());
}

fn report(written: io::Result<()>, path: &Utf8Path) {
    if let Err(error) = written {
        log!("cannot append to {path}: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, OpenOptions};
    use std::io::Write;

    #[test]
    fn a_log_that_was_truncated_or_replaced_is_read_from_its_beginning() {
        let keep = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::try_from(keep.path().join("rank.log")).unwrap();
        let append = |text: &str| {
            OpenOptions::new().append(true).create(true).open(&path).unwrap().write_all(text.as_bytes()).unwrap()
        };
        let mut log = GrowingLog::new(path.clone());
        let mut more = || log.more().map(|bytes| String::from_utf8(bytes).unwrap());
        assert_eq!(more(), None, "there is no file yet");
        append("step 1\nstep 2 lo");
        assert_eq!((more().as_deref(), more()), (Some("step 1\nstep 2 lo"), None));
        OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
        assert_eq!((more().as_deref(), more()), (Some("\n"), None));
        append("step 3\n");
        assert_eq!(more().as_deref(), Some("step 3\n"));
        fs::rename(&path, path.with_extension("1")).unwrap();
        append("step 4 is in a longer file\n");
        assert_eq!((more().as_deref(), more()), (Some("\nstep 4 is in a longer file\n"), None));
    }
}
