//! Reads what a command prints and saves, and writes the run's metrics and events in its place.
//!
//! Only the supervisor of the node with rank 0 does, so that these files have one writer, as with the embedded trainer.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use adapters::{LogEvent, LogReader, checkpoints, written_over_s};
use camino::Utf8PathBuf;
use recipe::Adapter;
use rundir::{CheckpointEntry, Event, EventKind, LineAppender, RunDir, RunId, now_s};
use serde::Serialize;

use crate::job::Job;

/// How often the log is looked at.
const LOOK: Duration = Duration::from_millis(250);
/// How often checkpoints are, when the log says nothing of them.
const LOOK_AT_CHECKPOINTS: Duration = Duration::from_secs(3);
/// What is read of a log at once.
const BYTES: u64 = 1 << 20;

/// Follows the log of the command in a thread of its own.
pub struct Follower {
    tell: Sender<Word>,
    thread: JoinHandle<()>,
}

/// What the follower is told.
enum Word {
    /// The command was asked to stop, and who or what asked.
    Stopping(&'static str),
    /// It has ended; whether all its steps are done.
    Ended(bool),
}

impl Follower {
    /// Follows the first rank of a job.
    pub fn start(job: &Job) -> Self {
        let (tell, told) = mpsc::channel();
        let mut teller = Teller::new(job);
        // Of a log that is not understood, nobody says when its steps begin.
        if job.recipe.command.adapter == Adapter::None {
            teller.tell(vec![LogEvent::Started]);
        }
        let thread = thread::spawn(move || {
            loop {
                match told.recv_timeout(LOOK) {
                    Err(RecvTimeoutError::Timeout) => teller.look(),
                    Ok(Word::Stopping(why)) => teller.event(EventKind::Stopping { why: why.into() }),
                    Ok(Word::Ended(finished)) => return teller.end(finished),
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        });
        Self { tell, thread }
    }

    /// Says that the command was asked to stop, and who or what asked.
    pub fn stopping(&self, why: &'static str) {
        // The thread ends when it is told to, not before.
        let _ = self.tell.send(Word::Stopping(why));
    }

    /// Reads the rest of the log, and ends.
    pub fn end(self, finished: bool) {
        let _ = self.tell.send(Word::Ended(finished));
        let _ = self.thread.join();
    }
}

/// Writes what the log says.
struct Teller {
    run: RunDir,
    id: RunId,
    attempt: u32,
    start_step: u64,
    world: usize,
    log: Utf8PathBuf,
    offset: u64,
    reader: LogReader,
    metrics: Option<LineAppender>,
    events: Option<LineAppender>,
    step: u64,
    finite: bool,
    started: bool,
    resumed: bool,
    /// The checkpoints that are whole, and those that are being written.
    whole: BTreeSet<Utf8PathBuf>,
    begun: BTreeSet<Utf8PathBuf>,
    looked: Instant,
}

impl Teller {
    fn new(job: &Job) -> Self {
        let (attempt, accumulation) = (job.attempt.number, job.recipe.train.grad_accum as u64);
        let start_step = job.attempt.start_step;
        let open =
            |path: Utf8PathBuf| LineAppender::open(&path).inspect_err(|error| log!("cannot open {path}: {error}")).ok();
        let mut teller = Self {
            id: job.id.clone(),
            attempt,
            start_step,
            world: job.attempt.placement.world(),
            log: job.run.rank_log(&job.node, attempt, 0),
            offset: 0,
            reader: LogReader::new(job.recipe.command.adapter, attempt, start_step, accumulation),
            metrics: open(job.run.metrics()),
            events: open(job.run.events()),
            step: start_step,
            finite: true,
            started: false,
            resumed: false,
            whole: BTreeSet::new(),
            begun: BTreeSet::new(),
            looked: Instant::now(),
            run: job.run.clone(),
        };
        for entry in checkpoints(&teller.run).unwrap_or_default() {
            let known = if entry.complete().is_some() { &mut teller.whole } else { &mut teller.begun };
            known.insert(entry.dir().to_owned());
        }
        teller
    }

    fn look(&mut self) {
        let mut silent = true;
        while let Some(bytes) = self.more() {
            silent = false;
            let said = self.reader.read(&bytes, now_s());
            self.tell(said);
        }
        if silent {
            let said = self.reader.pause(now_s());
            self.tell(said);
        }
        if self.looked.elapsed() >= LOOK_AT_CHECKPOINTS {
            self.look_at_checkpoints();
        }
    }

    fn end(&mut self, finished: bool) {
        self.look();
        let said = self.reader.pause(now_s());
        self.tell(said);
        self.look_at_checkpoints();
        if finished {
            self.event(EventKind::Finished);
        }
    }

    /// What the log has grown by; none if by nothing.
    fn more(&mut self) -> Option<Vec<u8>> {
        let mut file = File::open(&self.log).ok()?;
        file.seek(SeekFrom::Start(self.offset)).ok()?;
        let mut bytes = Vec::new();
        file.take(BYTES).read_to_end(&mut bytes).ok()?;
        self.offset += bytes.len() as u64;
        Some(bytes).filter(|bytes| !bytes.is_empty())
    }

    fn tell(&mut self, said: Vec<LogEvent>) {
        for said in said {
            match said {
                LogEvent::Metric(sample) => {
                    self.step = sample.step;
                    append(&mut self.metrics, &*sample);
                    let finite = sample.loss.is_some();
                    if self.finite && !finite {
                        self.event(EventKind::LossNotFinite);
                    }
                    self.finite = finite;
                }
                LogEvent::Started if !self.started => {
                    self.started = true;
                    self.event(EventKind::Started { world: self.world });
                }
                LogEvent::Resumed if !self.resumed => {
                    self.resumed = true;
                    self.event(EventKind::Resumed { from_step: self.start_step, of_run: self.id.clone() });
                }
                LogEvent::Started | LogEvent::Resumed => {}
                LogEvent::EvaluationStarted => self.event(EventKind::EvaluationStarted),
                LogEvent::EvaluationEnded => self.event(EventKind::EvaluationEnded),
                // Their folders tell more than these lines.
                LogEvent::Saving | LogEvent::Saved => self.look_at_checkpoints(),
            }
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

/// A lost line does not end a run: standard error, which is the supervisor's log, says so.
fn append(file: &mut Option<LineAppender>, line: &impl Serialize) {
    let Some(file) = file else { return };
    if let Err(error) = file.append(line) {
        log!("cannot append to {}: {error}", file.path());
    }
}
