//! Runs the streams that the screen needs, one task each. The loop of the console starts missing streams and stops the others.
//!
//! Code that reads files or runs programs runs in [`block_in_place`], so that other tasks continue on another thread.
//!
//! Files are polled by size rather than watched with inotify: this costs a few system calls per second, and works on every
//! file system, NFS included.

use crate::comparison;
use crate::inbox::Inbox;
use crate::listings::{self, CachedRun, CurriculumLister, RecipeLister, RunLister};
use crate::pictures::Terminal;
use crate::queue::{Item, Sender};
use crate::workspace::Workspace;
use alerts::Settings;
use camino::{Utf8Path, Utf8PathBuf};
use cluster::NodeId;
use rundir::{
    AlertState, BadVideo, ErrorCode, Event, Failure, MetricSample, NodePoint, NodeSample, NodeSeries, RunDir, RunId,
    SampleFolder, StepTimes, Tail,
};
use runstate::{Goodput, GoodputReader, RunState, StepLog};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::block_in_place;
use tokio_util::sync::{CancellationToken, DropGuard};
use ui::{AlertRow, LogChunk, Msg, RunMsg, Size, Watch};

mod compared_stream;
mod draft_stream;
mod error_search;
mod log_stream;
mod node_streams;

/// How often a growing file is read.
const FOLLOW: Duration = Duration::from_millis(300);
/// How often folders are listed.
const LIST: Duration = Duration::from_secs(1);
/// How often the goodput of an open run is computed.
const GOODPUT: Duration = Duration::from_secs(10);
/// How often the goodput of a run that has ended is computed: another node may still write how its ranks ended.
const FINAL_GOODPUT: Duration = Duration::from_secs(60);
/// How often curricula and recipes are listed. Users edit them while the console is open.
const CURRICULA: Duration = Duration::from_secs(2);
/// How often new alerts are read.
const ALERTS: Duration = Duration::from_secs(2);
/// How often the queue is read.
const QUEUE: Duration = Duration::from_secs(3);
/// How often it is computed what an unchanged queue waits for. This reads the recipe of an entry, and the newest attempt of each run.
const QUEUE_WAITS: Duration = Duration::from_secs(15);
/// The most samples in one message: few enough that a key waits less than a millisecond, and that the queue needs little memory.
const SAMPLES: usize = 250;
/// The bytes at the end of a log that are read when it is opened: more than the screen keeps.
const LOG_TAIL_BYTES: u64 = 1 << 20;

/// The running streams.
pub struct Watcher {
    workspace: Arc<Workspace>,
    queue: Sender,
    /// Dropping a guard stops its stream.
    running: BTreeMap<Watch, DropGuard>,
}

impl Watcher {
    /// Makes a watcher without running streams.
    pub fn new(workspace: Arc<Workspace>, queue: Sender) -> Self {
        Self { workspace, queue, running: BTreeMap::new() }
    }

    /// Starts the wanted streams that are not running, and stops the running streams that are not wanted. Must be called within
    /// the runtime.
    pub fn reconcile(&mut self, wanted: &BTreeSet<Watch>) {
        self.running.retain(|watch, _| wanted.contains(watch));
        for watch in wanted {
            if !self.running.contains_key(watch) {
                let stop = CancellationToken::new();
                let stream =
                    Stream { workspace: self.workspace.clone(), queue: self.queue.clone(), stop: stop.clone() };
                tokio::spawn(stream.run(watch.clone()));
                self.running.insert(watch.clone(), stop.drop_guard());
            }
        }
    }
}

/// The stream was stopped, or the console has ended.
struct Ended;

/// One stream: the workspace that it reads, the queue that it sends to, and the token that stops it.
struct Stream {
    workspace: Arc<Workspace>,
    queue: Sender,
    stop: CancellationToken,
}

impl Stream {
    async fn run(self, watch: Watch) {
        // Every stream ends because it was stopped, so there is nothing to report.
        let Err(Ended) = match watch {
            Watch::Runs => self.runs().await,
            Watch::Curricula => self.curricula().await,
            Watch::Alerts => self.alerts().await,
            Watch::Queue => self.queue().await,
            Watch::Recipes => self.recipes().await,
            Watch::Draft(draft) => self.draft(&draft).await,
            Watch::Nodes(of) => self.nodes(&of).await,
            Watch::Smi { of, node } => self.smi(&of, &node).await,
            Watch::Processes { of, nodes } => self.processes(&of, &nodes).await,
            Watch::Recorded { run, node } => self.recorded(&run, &node).await,
            Watch::Run(run) => self.one_run(&run).await,
            Watch::Compared(run) => self.compared(&run).await,
            Watch::Log { run, node, rank } => self.log(&run, &node, rank).await,
            Watch::Logs { run, attempt } => self.logs(&run, attempt).await,
            Watch::Clip { run, step, prompt, size } => self.clip(&run, step, prompt, size).await,
            Watch::Frames { run, every_ms } => self.frames(&run, every_ms).await,
        };
    }

    async fn runs(&self) -> Result<std::convert::Infallible, Ended> {
        let mut lister = RunLister::new(self.workspace.clone());
        self.repeat(LIST, || Ok(lister.list()), Msg::Runs).await
    }

    async fn curricula(&self) -> Result<std::convert::Infallible, Ended> {
        let mut curricula = CurriculumLister::default();
        self.repeat(CURRICULA, || curricula.list(&self.workspace.configs), Msg::Curricula).await
    }

    async fn alerts(&self) -> Result<std::convert::Infallible, Ended> {
        let mut inbox = Inbox::default();
        // An invalid settings file is ignored here: `vidtui alerts` and the next launch report it.
        let settings = block_in_place(Settings::of_user).ok().flatten().unwrap_or_default();
        let wants = |state: &AlertState, name: &str| {
            settings.channels.iter().any(|channel| channel.to.name() == name && channel.wants(&state.alert))
        };
        let row = |state: AlertState| AlertRow { bell: wants(&state, "bell"), osc: wants(&state, "osc"), state };
        let read = || inbox.poll(&self.workspace.runs).into_iter().map(&row).collect::<Vec<_>>();
        self.repeat(ALERTS, read, Msg::Alerts).await
    }

    async fn queue(&self) -> Result<std::convert::Infallible, Ended> {
        let (mut entries, mut rows, mut computed) = (Vec::new(), Vec::new(), Instant::now());
        let read = || {
            // A queue that cannot be read has no entries here: `vidtui queue` reports why.
            let now = self.workspace.queue().entries().unwrap_or_default();
            if now != entries || computed.elapsed() >= QUEUE_WAITS {
                rows = self.workspace.queue_rows(&now);
                (entries, computed) = (now, Instant::now());
            }
            rows.clone()
        };
        self.repeat(QUEUE, read, Msg::Queue).await
    }

    async fn recipes(&self) -> Result<std::convert::Infallible, Ended> {
        let mut recipes = RecipeLister::default();
        self.repeat(CURRICULA, || recipes.list(&self.workspace.configs), Msg::Recipes).await
    }

    /// Reads a value repeatedly and sends it when it changes.
    async fn repeat<T: PartialEq + Clone>(
        &self,
        every: Duration,
        mut read: impl FnMut() -> T,
        message: impl Fn(T) -> Msg,
    ) -> Result<std::convert::Infallible, Ended> {
        let mut sent = None;
        loop {
            let now = block_in_place(&mut read);
            if sent.as_ref() != Some(&now) {
                self.send(message(now.clone())).await?;
                sent = Some(now);
            }
            self.pause(every).await?;
        }
    }

    async fn one_run(&self, run: &RunId) -> Result<std::convert::Infallible, Ended> {
        let dir = self.workspace.dir(run);
        self.send(Msg::Run { run: run.clone(), what: RunMsg::Opened }).await?;
        let (mut known, mut sent, mut lost) = (CachedRun::default(), None, false);
        let (mut folders, mut sample_folders, mut recipe_sent) = (None, None, false);
        let mut metrics = Tail::<MetricSample>::new(dir.metrics());
        let mut events = EventFiles::default();
        let mut nodes = NodeFiles::default();
        let mut goodput = GoodputStream::default();
        let send = |what| self.send_blocking(Msg::Run { run: run.clone(), what });
        // Files are read several times per read of the state, because files grow faster than states change.
        let mut round = 0;
        loop {
            // One `block_in_place` per round, because each call wakes another thread.
            let eventful = block_in_place(|| {
                if round % 3 == 0 {
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
                    if !recipe_sent && let Ok(run) = dir.read_run() {
                        let last = dir.latest_attempt().ok().flatten();
                        send(RunMsg::Recipe(comparison::settings(&run, last.as_ref())))?;
                        recipe_sent = true;
                    }
                    let found = listings::checkpoint_folders(&dir);
                    if folders.as_ref() != Some(&found)
                        && let Ok(checkpoints) = other_trainers::checkpoints(&dir)
                    {
                        send(RunMsg::Checkpoints(checkpoints))?;
                        folders = Some(found);
                    }
                    let samples = sent.as_ref().and_then(|status| status.samples.clone());
                    let samples = samples.unwrap_or_else(|| SampleFolder::OfRun(dir.clone()));
                    let found = listings::sample_folders(&samples);
                    if sample_folders.as_ref() != Some(&found)
                        && let Ok(samples) = samples.list()
                    {
                        send(RunMsg::Samples(samples))?;
                        sample_folders = Some(found);
                    }
                    let points = nodes.poll(&dir);
                    // The usage is in the same files.
                    if let Some(usage) = dir.gpu_usage().filter(|_| !points.is_empty()) {
                        send(RunMsg::Usage(usage))?;
                    }
                    for points in pieces(points) {
                        send(RunMsg::NodePoints(points))?;
                    }
                }
                loop {
                    let batch = self.or_lost(run, metrics.poll())?;
                    let Some(batch) = batch else { break };
                    if batch.restarted {
                        send(RunMsg::Opened)?;
                        (sent, folders, events) = (None, None, EventFiles::default());
                        (sample_folders, recipe_sent) = (None, false);
                        nodes = NodeFiles::default();
                        goodput = GoodputStream::default();
                    }
                    goodput.steps.extend(batch.items.iter().map(StepTimes::from));
                    for samples in pieces(batch.items) {
                        send(RunMsg::Metrics(samples))?;
                    }
                    if !batch.more {
                        break;
                    }
                }
                // The goodput is computed from the steps, so read them first.
                if let Some(now) = sent.as_ref().and_then(|status| goodput.poll(&dir, &status.row.state)) {
                    send(RunMsg::Goodput(now))?;
                }
                let new = events.poll(&dir);
                let eventful = !new.is_empty();
                for events in pieces(new) {
                    send(RunMsg::Events(events))?;
                }
                Ok(eventful)
            })?;
            // After an event, the state has probably changed.
            round = if eventful { 0 } else { round + 1 };
            self.pause(FOLLOW).await?;
        }
    }

    /// Decodes the video of a sample into pictures and sends them once.
    async fn clip(&self, run: &RunId, step: u64, prompt: usize, size: Size) -> Result<std::convert::Infallible, Ended> {
        let dir = self.workspace.dir(run);
        let clip = block_in_place(|| {
            let samples = dir.sample_folder(&dir.read_run()?);
            let path = samples.video(step, prompt);
            // The programs that decode videos follow playlists and links in files of other formats.
            samples.open_video(step, prompt).map_err(|why| cannot_show(&path, &why))?;
            Terminal::from_env().clip(&path, size)
        });
        self.send(Msg::Run { run: run.clone(), what: RunMsg::Clip { step, prompt, size, clip } }).await?;
        self.stop.cancelled().await;
        Err(Ended)
    }

    /// Sends a message when a playing video shows its next frame.
    async fn frames(&self, run: &RunId, every_ms: u32) -> Result<std::convert::Infallible, Ended> {
        loop {
            self.pause(Duration::from_millis(u64::from(every_ms))).await?;
            self.send(Msg::Run { run: run.clone(), what: RunMsg::NextFrame }).await?;
        }
    }

    async fn log(&self, run: &RunId, node: &NodeId, rank: usize) -> Result<std::convert::Infallible, Ended> {
        let dir = self.workspace.dir(run);
        let mut open: Option<(u32, Tail<String>)> = None;
        let (mut search, mut searched) = (None, 0);
        loop {
            let pause = block_in_place(|| {
                let newest = dir.attempt_numbers().ok().and_then(|numbers| numbers.last().copied()).unwrap_or(0);
                let mut skipped_bytes = 0;
                let mut from_start = false;
                if open.as_ref().is_none_or(|(attempt, _)| *attempt != newest) {
                    let path = dir.rank_log(node, newest, rank);
                    let Some(tail) = self.or_lost(run, Tail::near_end(&path, LOG_TAIL_BYTES))? else {
                        return Ok(LIST);
                    };
                    (from_start, skipped_bytes) = (open.is_none(), tail.offset());
                    if from_start && skipped_bytes > 0 {
                        let part = error_search::Part { rank, path, from: 0, to: skipped_bytes };
                        search = error_search::ErrorSearch::new(vec![part]);
                        searched = newest;
                    }
                    open = Some((newest, tail));
                }
                if let Some((attempt, tail)) = &mut open
                    && let Some(batch) = self.or_lost(run, tail.poll())?
                    && (from_start || batch.restarted || !batch.items.is_empty())
                {
                    let from_start = from_start || batch.restarted;
                    let chunk = LogChunk { rank, attempt: *attempt, from_start, skipped_bytes, lines: batch.items };
                    self.send_blocking(Msg::Run { run: run.clone(), what: RunMsg::Log(chunk) })?;
                    if batch.more {
                        return Ok(Duration::ZERO);
                    }
                }
                Ok(FOLLOW)
            })?;
            self.search_or_pause(run, (Some(rank), searched), &mut search, pause).await?;
        }
    }

    /// Returns the value that was read, or sends the error as a message about the run. Must be called within [`block_in_place`].
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
                self.send_blocking(Msg::Run { run: run.clone(), what: RunMsg::Lost(failure) })?;
                Ok(None)
            }
        }
    }

    async fn send(&self, msg: Msg) -> Result<(), Ended> {
        let item = Item::Stream(self.stop.clone(), msg);
        let sent = self.stop.run_until_cancelled(self.queue.stream(item)).await;
        sent.and_then(Result::ok).ok_or(Ended)
    }

    /// Sends a message. Must be called within [`block_in_place`].
    fn send_blocking(&self, msg: Msg) -> Result<(), Ended> {
        if self.stop.is_cancelled() {
            return Err(Ended);
        }
        self.queue.stream_blocking(Item::Stream(self.stop.clone(), msg)).map_err(|_| Ended)
    }

    async fn pause(&self, time: Duration) -> Result<(), Ended> {
        self.stop.run_until_cancelled(tokio::time::sleep(time)).await.ok_or(Ended)
    }
}

/// Makes the failure of a sample whose video cannot be shown.
fn cannot_show(path: &Utf8Path, why: &BadVideo) -> Failure {
    let fix = "see the folder of the run; make it again: vidtui sample RUN --prompt TEXT";
    Failure::new(ErrorCode::NotFound, format!("cannot show {path}"), why.to_string(), fix)
}

/// Divides items into pieces of at most [`SAMPLES`], one per message. The items are moved, because a sample owns memory.
fn pieces<T>(items: Vec<T>) -> impl Iterator<Item = Vec<T>> {
    let mut items = items.into_iter();
    std::iter::from_fn(move || {
        let piece: Vec<T> = items.by_ref().take(SAMPLES).collect();
        (!piece.is_empty()).then_some(piece)
    })
}

/// Computes the goodput of a run every [`GOODPUT`].
#[derive(Default)]
struct GoodputStream {
    steps: StepLog,
    reader: Option<GoodputReader>,
    last: Option<(Instant, RunState)>,
    sent: Option<Goodput>,
}

impl GoodputStream {
    /// Returns the goodput if it is due and has changed.
    fn poll(&mut self, dir: &RunDir, state: &RunState) -> Option<Goodput> {
        let every = if state.is_end() { FINAL_GOODPUT } else { GOODPUT };
        if self.last.as_ref().is_some_and(|(at, known)| at.elapsed() < every && known == state) {
            return None;
        }
        self.last = Some((Instant::now(), state.clone()));
        if self.reader.is_none() {
            self.reader = GoodputReader::new(dir, &dir.read_run().ok()?);
        }
        // A file that cannot be read now may be readable next time.
        let now = self.reader.as_mut()?.read(&self.steps, state, rundir::now_s()).ok()??;
        (self.sent.as_ref() != Some(&now)).then(|| self.sent.insert(now).clone())
    }
}

/// The GPU sample files of the nodes of a run. New nodes can appear while the run is active.
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

/// The event files of a run: of rank 0, of the healer, and of each node. New nodes can appear while the run is active.
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
        // A file that cannot be read now may be readable next time. If the whole run cannot be read, its status reports the error.
        let mut new: Vec<Event> =
            self.tails.values_mut().filter_map(|tail| tail.poll().ok()).flat_map(|b| b.items).collect();
        new.sort_by(|a, b| a.t.total_cmp(&b.t));
        new
    }
}
