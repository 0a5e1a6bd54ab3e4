//! The streams that the screen needs, one thread each. The loop compares the needed with the running ones.
//!
//! Files are polled by size rather than watched with inotify: this costs a few system calls per second, and works on every
//! file system, NFS included.

use crate::inbox::Inbox;
use crate::listings::{self, CachedRun, CurriculumLister, RecipeLister, RunLister};
use crate::pictures::Terminal;
use crate::queue::{Item, Sender, StopFlag};
use crate::workspace::Workspace;
use alerts::Settings;
use camino::Utf8PathBuf;
use cluster::NodeId;
use rundir::{
    AlertState, ErrorCode, Event, Failure, MetricSample, NodePoint, NodeSample, NodeSeries, RunDir, RunId, Tail,
};
use runstate::{Goodput, GoodputReader, RunState};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use ui::{AlertRow, LogChunk, Msg, RunMsg, Size, Watch};

mod compared_stream;
mod draft_stream;
mod log_stream;
mod node_streams;

/// How often a growing file is read.
const FOLLOW: Duration = Duration::from_millis(300);
/// How often folders are listed.
const LIST: Duration = Duration::from_secs(1);
/// How often the goodput of an open run is computed.
const GOODPUT: Duration = Duration::from_secs(10);
/// How often recipes are read again. Users edit them while the console is open.
const CURRICULA: Duration = Duration::from_secs(2);
/// How often new alerts are read.
const ALERTS: Duration = Duration::from_secs(2);
/// The number of samples in one message: enough to open a long run fast, and few enough that keys are handled in
/// between.
const SAMPLES: usize = 10_000;
/// The interval at which a stream that has sent everything checks its stop flag.
const IDLE: Duration = Duration::from_secs(60);
/// The bytes at the end of a log that are read when it is opened: more than the screen keeps.
const LOG_TAIL_BYTES: u64 = 1 << 20;

/// The running streams.
pub struct Watcher {
    workspace: Arc<Workspace>,
    queue: Sender,
    running: BTreeMap<Watch, StopFlag>,
}

impl Watcher {
    /// Makes a watcher without running streams.
    pub fn new(workspace: Arc<Workspace>, queue: Sender) -> Self {
        Self { workspace, queue, running: BTreeMap::new() }
    }

    /// Starts the wanted streams that are not running, and stops the running ones that are not wanted.
    pub fn reconcile(&mut self, wanted: &BTreeSet<Watch>) {
        self.running.retain(|watch, stop| {
            let keep = wanted.contains(watch);
            if !keep {
                stop.request();
            }
            keep
        });
        for watch in wanted {
            if !self.running.contains_key(watch) {
                let stop = StopFlag::default();
                let stream =
                    Stream { workspace: self.workspace.clone(), queue: self.queue.clone(), stop: stop.clone() };
                let what = watch.clone();
                thread::spawn(move || stream.run(what));
                self.running.insert(watch.clone(), stop);
            }
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.running.values().for_each(StopFlag::request);
    }
}

/// The stream was stopped, or the console has ended.
struct Ended;

/// One stream: its sources and its end of the queue.
struct Stream {
    workspace: Arc<Workspace>,
    queue: Sender,
    stop: StopFlag,
}

impl Stream {
    fn run(self, watch: Watch) {
        // Every stream ends because it was stopped, so there is nothing to report.
        let Err(Ended) = match watch {
            Watch::Runs => self.runs(),
            Watch::Curricula => self.curricula(),
            Watch::Alerts => self.alerts(),
            Watch::Recipes => self.recipes(),
            Watch::Draft(draft) => self.draft(&draft),
            Watch::Nodes(of) => self.nodes(&of),
            Watch::Smi { of, node } => self.smi(&of, &node),
            Watch::Processes { of, nodes } => self.processes(&of, &nodes),
            Watch::Run(run) => self.one_run(&run),
            Watch::Compared(run) => self.compared(&run),
            Watch::Log { run, node, rank } => self.log(&run, &node, rank),
            Watch::Logs { run, attempt } => self.logs(&run, attempt),
            Watch::Clip { run, step, prompt, size } => self.clip(&run, step, prompt, size),
            Watch::Frames { run, every_ms } => self.frames(&run, every_ms),
        };
    }

    fn runs(&self) -> Result<std::convert::Infallible, Ended> {
        let mut lister = RunLister::new(self.workspace.clone());
        self.repeat(LIST, || Ok(lister.list()), Msg::Runs)
    }

    fn curricula(&self) -> Result<std::convert::Infallible, Ended> {
        let mut curricula = CurriculumLister::default();
        self.repeat(CURRICULA, || curricula.list(&self.workspace.configs), Msg::Curricula)
    }

    fn alerts(&self) -> Result<std::convert::Infallible, Ended> {
        let mut inbox = Inbox::default();
        // `vidtui alerts` and the next launch report a file that is not valid.
        let settings = Settings::of_user().ok().flatten().unwrap_or_default();
        let wants = |state: &AlertState, name: &str| {
            settings.channels.iter().any(|channel| channel.to.name() == name && channel.wants(&state.alert))
        };
        let row = |state: AlertState| AlertRow { bell: wants(&state, "bell"), osc: wants(&state, "osc"), state };
        self.repeat(ALERTS, || inbox.poll(&self.workspace.runs).into_iter().map(&row).collect::<Vec<_>>(), Msg::Alerts)
    }

    fn recipes(&self) -> Result<std::convert::Infallible, Ended> {
        let mut recipes = RecipeLister::default();
        self.repeat(CURRICULA, || recipes.list(&self.workspace.configs), Msg::Recipes)
    }

    /// Reads a value repeatedly and sends it when it changes.
    fn repeat<T: PartialEq + Clone>(
        &self,
        every: Duration,
        mut read: impl FnMut() -> T,
        message: impl Fn(T) -> Msg,
    ) -> Result<std::convert::Infallible, Ended> {
        let mut sent = None;
        loop {
            let now = read();
            if sent.as_ref() != Some(&now) {
                self.send(message(now.clone()))?;
                sent = Some(now);
            }
            self.pause(every)?;
        }
    }

    fn one_run(&self, run: &RunId) -> Result<std::convert::Infallible, Ended> {
        let dir = self.workspace.dir(run);
        let send = |what| self.send(Msg::Run { run: run.clone(), what });
        send(RunMsg::Opened)?;
        let (mut known, mut sent, mut lost) = (CachedRun::default(), None, false);
        let (mut folders, mut sample_folders) = (None, None);
        let mut metrics = Tail::<MetricSample>::new(dir.metrics());
        let mut events = EventFiles::default();
        let mut nodes = NodeFiles::default();
        let mut goodput = GoodputStream::default();
        loop {
            match known.status(&self.workspace, &dir) {
                Ok(status) if sent.as_ref() != Some(status) => {
                    send(RunMsg::State(Box::new(sent.insert(status.clone()).clone())))?;
                    lost = false;
                }
                // The error is sent once, not once a second.
                Err(failure) if !lost => {
                    send(RunMsg::Lost(failure.clone()))?;
                    lost = true;
                }
                _ => {}
            }
            if let Some(now) = sent.as_ref().and_then(|status| goodput.poll(&dir, &status.row.state)) {
                send(RunMsg::Goodput(now))?;
            }
            let found = listings::checkpoint_folders(&dir);
            if folders.as_ref() != Some(&found)
                && let Ok(checkpoints) = other_trainers::checkpoints(&dir)
            {
                send(RunMsg::Checkpoints(checkpoints))?;
                folders = Some(found);
            }
            let found = listings::sample_folders(&dir);
            if sample_folders.as_ref() != Some(&found)
                && let Ok(samples) = dir.list_samples()
            {
                send(RunMsg::Samples(samples))?;
                sample_folders = Some(found);
            }
            for points in nodes.poll(&dir).chunks(SAMPLES) {
                send(RunMsg::NodePoints(points.to_vec()))?;
            }
            // Files are read several times per read of the state, because files grow faster than states change.
            for _ in 0..3 {
                loop {
                    let batch = self.or_lost(run, metrics.poll())?;
                    let Some(batch) = batch else { break };
                    if batch.restarted {
                        send(RunMsg::Opened)?;
                        (sent, folders, events) = (None, None, EventFiles::default());
                        sample_folders = None;
                        nodes = NodeFiles::default();
                        goodput = GoodputStream::default();
                    }
                    for samples in batch.items.chunks(SAMPLES) {
                        send(RunMsg::Metrics(samples.to_vec()))?;
                    }
                    if !batch.more {
                        break;
                    }
                }
                let new = events.poll(&dir);
                let eventful = !new.is_empty();
                if eventful {
                    send(RunMsg::Events(new))?;
                }
                self.pause(FOLLOW)?;
                if eventful {
                    // The state has probably changed with the event.
                    break;
                }
            }
        }
    }

    /// Makes the pictures of a sample.
    fn clip(&self, run: &RunId, step: u64, prompt: usize, size: Size) -> Result<std::convert::Infallible, Ended> {
        let video = self.workspace.dir(run).sample_video(step, prompt);
        let clip = Terminal::from_env().clip(&video, size);
        self.send(Msg::Run { run: run.clone(), what: RunMsg::Clip { step, prompt, size, clip } })?;
        loop {
            self.pause(IDLE)?;
        }
    }

    /// Sends the times of frames.
    fn frames(&self, run: &RunId, every_ms: u32) -> Result<std::convert::Infallible, Ended> {
        loop {
            self.pause(Duration::from_millis(u64::from(every_ms)))?;
            self.send(Msg::Run { run: run.clone(), what: RunMsg::NextFrame })?;
        }
    }

    fn log(&self, run: &RunId, node: &NodeId, rank: usize) -> Result<std::convert::Infallible, Ended> {
        let dir = self.workspace.dir(run);
        let mut open: Option<(u32, Tail<String>)> = None;
        loop {
            let newest = dir.attempt_numbers().ok().and_then(|numbers| numbers.last().copied()).unwrap_or(0);
            let mut skipped_bytes = 0;
            let mut from_start = false;
            if open.as_ref().is_none_or(|(attempt, _)| *attempt != newest) {
                let path = dir.rank_log(node, newest, rank);
                let Some(tail) = self.or_lost(run, Tail::near_end(&path, LOG_TAIL_BYTES))? else {
                    self.pause(LIST)?;
                    continue;
                };
                (from_start, skipped_bytes) = (open.is_none(), tail.offset());
                open = Some((newest, tail));
            }
            if let Some((attempt, tail)) = &mut open
                && let Some(batch) = self.or_lost(run, tail.poll())?
                && (from_start || batch.restarted || !batch.items.is_empty())
            {
                let from_start = from_start || batch.restarted;
                let chunk = LogChunk { rank, attempt: *attempt, from_start, skipped_bytes, lines: batch.items };
                self.send(Msg::Run { run: run.clone(), what: RunMsg::Log(chunk) })?;
                if batch.more {
                    continue;
                }
            }
            self.pause(FOLLOW)?;
        }
    }

    /// Sends a read error as a message about the run.
    fn or_lost<T>(&self, run: &RunId, read: std::io::Result<T>) -> Result<Option<T>, Ended> {
        match read {
            Ok(value) => Ok(Some(value)),
            Err(error) => {
                let what = format!("cannot read {run}");
                let failure = Failure::new(
                    ErrorCode::of_io(&error),
                    what,
                    error.to_string(),
                    "check that the runs folder is mounted",
                );
                self.send(Msg::Run { run: run.clone(), what: RunMsg::Lost(failure) })?;
                Ok(None)
            }
        }
    }

    fn send(&self, msg: Msg) -> Result<(), Ended> {
        if self.stop.requested() {
            return Err(Ended);
        }
        self.queue.stream(Item::Stream(self.stop.clone(), msg)).map_err(|_| Ended)
    }

    fn pause(&self, time: Duration) -> Result<(), Ended> {
        if self.stop.sleep(time) { Ok(()) } else { Err(Ended) }
    }
}

/// The goodput of a run, computed now and then.
#[derive(Default)]
struct GoodputStream {
    reader: Option<GoodputReader>,
    last: Option<(Instant, RunState)>,
    sent: Option<Goodput>,
}

impl GoodputStream {
    /// Returns the goodput if it is due and has changed.
    fn poll(&mut self, dir: &RunDir, state: &RunState) -> Option<Goodput> {
        if self.last.as_ref().is_some_and(|(at, known)| at.elapsed() < GOODPUT && known == state) {
            return None;
        }
        self.last = Some((Instant::now(), state.clone()));
        if self.reader.is_none() {
            self.reader = GoodputReader::new(dir, &dir.read_run().ok()?);
        }
        // A file that cannot be read now may be readable next time.
        let now = self.reader.as_mut()?.read(state, rundir::now_s()).ok()??;
        (self.sent.as_ref() != Some(&now)).then(|| self.sent.insert(now).clone())
    }
}

/// The sample files of the nodes of a run. Nodes appear while it runs.
#[derive(Default)]
struct NodeFiles {
    tails: BTreeMap<NodeId, Tail<NodeSample>>,
    points: NodeSeries,
}

impl NodeFiles {
    fn poll(&mut self, dir: &RunDir) -> Vec<NodePoint> {
        for node in dir.node_ids().unwrap_or_default() {
            let tail = self.tails.entry(node.clone()).or_insert_with(|| dir.tail_gpu_samples(&node));
            // A file that cannot be read now may be readable next time.
            while let Ok(batch) = tail.poll() {
                batch.items.iter().for_each(|sample| self.points.push(&node, sample));
                if !batch.more {
                    break;
                }
            }
        }
        self.points.take()
    }
}

/// The event files of a run: that of rank 0 and one per node. Nodes appear while it runs.
#[derive(Default)]
struct EventFiles {
    tails: BTreeMap<Utf8PathBuf, Tail<Event>>,
}

impl EventFiles {
    fn poll(&mut self, dir: &RunDir) -> Vec<Event> {
        let nodes = dir.node_ids().unwrap_or_default();
        for path in nodes.iter().map(|node| dir.node_events(node)).chain([dir.events(), dir.healer_events()]) {
            self.tails.entry(path.clone()).or_insert_with(|| Tail::new(path));
        }
        // A file that cannot be read now may be readable next time. If the run cannot be read, its state is an error.
        let mut new: Vec<Event> =
            self.tails.values_mut().filter_map(|tail| tail.poll().ok()).flat_map(|b| b.items).collect();
        new.sort_by(|a, b| a.t.total_cmp(&b.t));
        new
    }
}
