//! The queue of an encode: ranges of items that workers of any node claim, and the state of the work on disk.
//!
//! ```text
//! work/
//! ├── queue.jsonl          a head, the clips of the manifest, the items in order; replaced by rename
//! ├── folder.E             the lease of the whole folder: one encode at a time
//! ├── failures.jsonl items that failed in earlier encodes
//! └── G/                   one folder per plan
//!     ├── leases/RRRRR.E   the lease of a range
//!     ├── parts/RRRRR-E.part, .jsonl
//!     └── done/RRRRR.jsonl the entries of a range whose every item is stored or failed
//! ```
//!
//! A changed plan starts the next generation G, which takes over the whole items of earlier ones by their keys.

use super::index::{bad, cannot_write, malformed, unreadable};
use super::lease::{Lease, Leases, Taken, create_dir};
use super::part::{Disk, Entry, LocalDisk, Part, Verify, read_journal};
use super::range::Range;
use super::spec::{SCHEMA, StoreSpec};
use super::{Clock, Item, Plan, Stage, SystemClock, WantedClip};
use camino::{Utf8Path, Utf8PathBuf};
use rundir::{ErrorCode, Failure, write_atomic, xxh3_hex};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The name of the work folder within the data set.
pub(super) const WORK: &str = "work";
pub(super) const QUEUE: &str = "queue.jsonl";
const FAILURES: &str = "failures.jsonl";
/// The lease of the whole folder.
const FOLDER: &str = "folder";
/// The number of items in a range, unless there are very many items.
const RANGE: usize = 16;
/// The most ranges of a queue. Every claim lists all their leases.
const MAX_RANGES: usize = 4096;

/// The identity of a worker, which is shown to a second encode into the same folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The run, or another name of the encode. After a crash, an encode of the same name continues at once.
    pub run: String,
    /// The node.
    pub node: String,
    /// The process.
    pub pid: u32,
}

/// The timing of the protocol, and the parts that tests replace.
#[derive(Debug, Clone)]
pub struct Timing {
    /// The time without a heartbeat after which a lease is taken over.
    pub expiry: Duration,
    /// The time between heartbeats; none if the caller sends them.
    pub heartbeat: Option<Duration>,
    /// The clock of this worker.
    pub clock: Arc<dyn Clock>,
    /// The disk to which items are written.
    pub disk: Arc<dyn Disk>,
    /// The size of a shard, in bytes. A shard is closed before it would grow beyond this.
    pub shard: u64,
    /// The number of items in a range; `None` for the default.
    pub range: Option<usize>,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            expiry: Duration::from_secs(30),
            heartbeat: Some(Duration::from_secs(5)),
            clock: Arc::new(SystemClock::default()),
            disk: Arc::new(LocalDisk),
            shard: 2_000_000_000,
            range: None,
        }
    }
}

/// The first line of the queue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct QueueHead {
    schema: u32,
    /// The identity of the plan.
    pub id: String,
    pub generation: u32,
    pub spec: StoreSpec,
    clips: usize,
    items: usize,
    range: usize,
}

/// An item in the file of the queue.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Queued {
    pub item: Item,
    /// The result, if an earlier generation encoded the item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<Entry>,
}

/// The queue of an encode, as one worker sees it.
#[derive(Debug)]
pub struct Queue {
    pub(super) data: Utf8PathBuf,
    pub(super) head: QueueHead,
    pub(super) items: Vec<Queued>,
    /// The items of each range; a range has items of one stage.
    pub(super) ranges: Vec<(Stage, std::ops::Range<usize>)>,
    pub(super) worker: String,
    pub(super) timing: Timing,
    pub(super) leases: Leases,
    /// Ranges that are known to be done. A range that is done stays done.
    done: Mutex<BTreeSet<usize>>,
    /// The lease of the folder; only in the worker that created or resumed the queue.
    holding: Option<Holding>,
}

/// The result of a claim.
#[derive(Debug)]
pub enum Claim {
    /// A range that this worker holds now.
    Range(Box<Range>),
    /// Other workers hold all ranges of the stage that are not done. Try again after about a second.
    Wait,
    /// All ranges of the stage are done.
    Done,
}

/// The result of [`Queue::finish`].
#[derive(Debug)]
pub enum Finish {
    /// The store is complete.
    Joined(super::Joined),
    /// Some ranges are not done, or another worker joins the parts. Try again after about a second.
    Wait,
    /// Another worker has completed the store.
    Done,
}

/// The progress of an encode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Progress {
    /// Texts that are stored.
    pub texts_done: usize,
    /// Texts of this encode.
    pub texts: usize,
    /// Latents that are stored.
    pub latents_done: usize,
    /// Latents of this encode.
    pub latents: usize,
    /// Items that failed.
    pub failed: usize,
    /// Bytes that are stored.
    pub bytes: u64,
}

impl Queue {
    /// Starts the work of a plan, or continues it, and holds the folder for this encode. One worker of an encode calls this;
    /// the others call [`Queue::open`] afterwards.
    ///
    /// # Errors
    /// [`ErrorCode::AlreadyExists`] with the name of the other encode, if one works in the folder. Detecting that an
    /// encode has crashed can take [`Timing::expiry`].
    pub fn create(data: &Utf8Path, plan: &Plan, holder: &Holder, timing: Timing) -> Result<Self, Failure> {
        let work = data.join(WORK);
        create_dir(&work)?;
        let holding = Holding::begin(data, holder, &timing)?;
        let prepared = prepare(data, plan, &timing);
        match prepared.and_then(|()| Self::open(data, &holder.worker(), timing)) {
            Ok(queue) => Ok(Self { holding: Some(holding), ..queue }),
            Err(failure) => {
                drop(holding);
                Err(failure)
            }
        }
    }

    /// Opens the queue that another worker of the same encode created. `worker` names this process in leases.
    ///
    /// # Errors
    /// The queue is missing or cannot be read.
    pub fn open(data: &Utf8Path, worker: &str, timing: Timing) -> Result<Self, Failure> {
        let file = QueueFile::read(&data.join(WORK))?;
        let ranges = ranges(&file.items, file.head.range);
        let generation = data.join(WORK).join(file.head.generation.to_string());
        let leases = Leases::new(generation.join("leases"), timing.clock.clone(), timing.expiry);
        Ok(Self {
            data: data.to_owned(),
            head: file.head,
            items: file.items,
            ranges,
            worker: worker.to_owned(),
            timing,
            leases,
            done: Mutex::default(),
            holding: None,
        })
    }

    /// Returns the specification of the store.
    pub fn spec(&self) -> &StoreSpec {
        &self.head.spec
    }

    /// Claims a range of a stage. Its items are encoded in order. Items that another worker has stored are left out.
    ///
    /// # Errors
    /// The folder cannot be read or written.
    pub fn claim(&self, stage: Stage) -> Result<Claim, Failure> {
        if !self.generation().exists() {
            return self.over().map(|()| Claim::Done);
        }
        let mut done = self.find_done()?;
        let (epochs, mut held) = (self.leases.epochs()?, false);
        for (number, _) in self.ranges.iter().enumerate().filter(|(_, (of, _))| *of == stage) {
            if done.contains(&number) {
                continue;
            }
            let name = range_name(number);
            match self.leases.take(&name, epochs.get(&name).copied(), &self.worker)? {
                Taken::Held => held = true,
                Taken::Mine(lease) => {
                    // The previous holder may have finished the range since the listing.
                    if self.done_file(number).exists() {
                        done.insert(number);
                        continue;
                    }
                    return Ok(Claim::Range(Box::new(self.range(number, lease)?)));
                }
            }
        }
        Ok(if held { Claim::Wait } else { Claim::Done })
    }

    /// Returns the progress of all workers together.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn progress(&self) -> Result<Progress, Failure> {
        let mut progress = Progress::default();
        let stages: HashMap<&str, Stage> =
            self.items.iter().map(|queued| (queued.item.key.as_str(), queued.item.work.stage())).collect();
        for stage in stages.values() {
            match stage {
                Stage::Text => progress.texts += 1,
                Stage::Latent => progress.latents += 1,
            }
        }
        for entry in self.entries()?.values() {
            let Some(stage) = stages.get(entry.key.as_str()) else { continue };
            match (stage, &entry.failure) {
                (_, Some(_)) => progress.failed += 1,
                (Stage::Text, None) => progress.texts_done += 1,
                (Stage::Latent, None) => progress.latents_done += 1,
            }
            progress.bytes += entry.tensors.iter().map(|piece| piece.len).sum::<u64>();
        }
        Ok(progress)
    }

    /// Returns the items that failed so far, with their failures.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn failures(&self) -> Result<Vec<(Item, Failure)>, Failure> {
        let mut entries = self.entries()?;
        let failed = self.items.iter().filter_map(|queued| {
            let failure = entries.remove(&queued.item.key)?.failure?;
            Some((queued.item.clone(), failure))
        });
        Ok(failed.collect())
    }

    /// Joins the parts into shards and replaces the index, if all ranges are done. Any worker may call this; one of
    /// them joins the parts.
    ///
    /// # Errors
    /// A file cannot be read or written. The work is then unchanged, and the next call continues it.
    pub fn finish(&self, progress: weights::OnProgress<'_>) -> Result<Finish, Failure> {
        if !self.generation().exists() {
            return self.over().map(|()| Finish::Done);
        }
        if self.find_done()?.len() < self.ranges.len() {
            return Ok(Finish::Wait);
        }
        let epoch = self.leases.epochs()?.get("join").copied();
        match self.leases.take("join", epoch, &self.worker)? {
            Taken::Held => Ok(Finish::Wait),
            Taken::Mine(lease) => {
                let beating = Heartbeat::start(lease, self.timing.heartbeat);
                let joined = super::join::join(self, &beating, progress);
                // After a failure, another worker can try at once. After a success, the leases are gone.
                beating.stop(joined.is_err());
                joined.map(Finish::Joined)
            }
        }
    }

    /// Gives the folder back, so that another encode can start at once. Call it when the encode stops; dropping the queue
    /// does the same.
    pub fn release(&mut self) {
        self.holding = None;
    }

    /// Checks that the work was completed, because its folder is gone.
    fn over(&self) -> Result<(), Failure> {
        let (head, _) = super::index::Lines::open(&self.data.join(super::INDEX))?;
        if head.queue == self.head.id {
            return Ok(());
        }
        Err(Failure::new(
            ErrorCode::AlreadyExists,
            format!("cannot continue to encode into {}", self.data),
            "another encode took over the folder",
            "start this encode again when the other one has ended: it continues",
        ))
    }

    /// Returns the ranges that are done.
    fn find_done(&self) -> Result<BTreeSet<usize>, Failure> {
        let dir = self.generation().join("done");
        let mut done = self.done.lock().expect("no thread panics with this lock");
        for entry in dir.read_dir_utf8().map_err(|e| unreadable(&dir, &e))? {
            let entry = entry.map_err(|e| unreadable(&dir, &e))?;
            let number = entry.file_name().strip_suffix(".jsonl").and_then(|name| name.parse::<usize>().ok());
            done.extend(number.filter(|number| *number < self.ranges.len()));
        }
        Ok(done.clone())
    }

    /// Makes the range of a lease, without the items that earlier holders stored.
    fn range(&self, number: usize, lease: Lease) -> Result<Range, Failure> {
        let work = self.data.join(WORK);
        let (_, items) = &self.ranges[number];
        let mut stored: BTreeMap<String, Entry> = BTreeMap::new();
        for queued in &self.items[items.clone()] {
            stored.extend(queued.found.clone().map(|entry| (entry.key.clone(), entry)));
        }
        for epoch in 0..lease.epoch {
            let journal = work.join(format!("{}.jsonl", self.part_name(number, epoch)));
            if journal.exists() {
                for entry in read_journal(&work, &journal, Verify::Sums)? {
                    stored.entry(entry.key.clone()).or_insert(entry);
                }
            }
        }
        let part = Part::create(&work, &self.part_name(number, lease.epoch), self.timing.disk.clone())?;
        let items = self.items[items.clone()].iter().map(|queued| queued.item.clone()).collect();
        let lease = Heartbeat::start(lease, self.timing.heartbeat);
        Ok(Range::new(items, stored, part, lease, self.done_file(number), self.timing.clock.clone()))
    }

    /// Returns the entries of all items that are stored or failed, by key.
    pub(super) fn entries(&self) -> Result<BTreeMap<String, Entry>, Failure> {
        let mut entries = generation_entries(&self.data.join(WORK), self.head.generation, Verify::Nothing)?;
        for queued in &self.items {
            if let Some(entry) = &queued.found {
                entries.entry(entry.key.clone()).or_insert_with(|| entry.clone());
            }
        }
        Ok(entries)
    }

    pub(super) fn generation(&self) -> Utf8PathBuf {
        self.data.join(WORK).join(self.head.generation.to_string())
    }

    fn done_file(&self, number: usize) -> Utf8PathBuf {
        self.generation().join("done").join(format!("{}.jsonl", range_name(number)))
    }

    /// Returns the entries of the ranges that are done. They decide the content of the shards.
    pub(super) fn done_entries(&self) -> Result<HashMap<String, Entry>, Failure> {
        let mut entries = HashMap::with_capacity(self.items.len());
        for number in 0..self.ranges.len() {
            let path = self.done_file(number);
            let text = fs::read(&path).map_err(|e| unreadable(&path, &e))?;
            for (n, line) in text.split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty()) {
                let entry: Entry = serde_json::from_slice(line).map_err(|e| malformed(&path, n + 1, &e))?;
                entries.insert(entry.key.clone(), entry);
            }
        }
        Ok(entries)
    }

    /// The name of a part, relative to `work`.
    fn part_name(&self, number: usize, epoch: u32) -> String {
        format!("{}/parts/{}-{epoch}", self.head.generation, range_name(number))
    }

    /// The clips of the manifest.
    pub(super) fn clips(&self) -> Result<Vec<WantedClip>, Failure> {
        Ok(QueueFile::read(&self.data.join(WORK))?.clips)
    }
}

fn range_name(number: usize) -> String {
    format!("{number:05}")
}

/// Cuts items into ranges of one stage each.
fn ranges(items: &[Queued], size: usize) -> Vec<(Stage, std::ops::Range<usize>)> {
    let mut ranges: Vec<(Stage, std::ops::Range<usize>)> = Vec::new();
    for (number, queued) in items.iter().enumerate() {
        let stage = queued.item.work.stage();
        match ranges.last_mut() {
            Some((of, range)) if *of == stage && range.len() < size => range.end += 1,
            _ => ranges.push((stage, number..number + 1)),
        }
    }
    ranges
}

impl Holder {
    fn worker(&self) -> String {
        format!("{} on {}, process {}", self.run, self.node, self.pid)
    }
}

/// The content of `queue.jsonl`.
struct QueueFile {
    head: QueueHead,
    clips: Vec<WantedClip>,
    items: Vec<Queued>,
}

impl QueueFile {
    fn read(work: &Utf8Path) -> Result<Self, Failure> {
        let path = work.join(QUEUE);
        let text = fs::read(&path).map_err(|e| unreadable(&path, &e))?;
        let mut lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).enumerate();
        let (_, first) = lines.next().ok_or_else(|| bad(&path, "it is empty".into()))?;
        let version: serde_json::Value = serde_json::from_slice(first).map_err(|e| malformed(&path, 1, &e))?;
        if version["schema"].as_u64().is_some_and(|found| found > u64::from(SCHEMA)) {
            return Err(Failure::new(
                ErrorCode::NewerFormat,
                format!("cannot continue the encode in {work}"),
                format!("a newer vidtui began it (schema {}; this one reads {SCHEMA})", version["schema"]),
                format!("update vidtui, or remove {work} to start again"),
            ));
        }
        let head: QueueHead = serde_json::from_slice(first).map_err(|e| malformed(&path, 1, &e))?;
        let mut file = Self { clips: Vec::with_capacity(head.clips), items: Vec::with_capacity(head.items), head };
        for (number, line) in lines {
            let malformed = |e: serde_json::Error| malformed(&path, number + 1, &e);
            if file.clips.len() < file.head.clips {
                file.clips.push(serde_json::from_slice(line).map_err(malformed)?);
            } else {
                file.items.push(serde_json::from_slice(line).map_err(malformed)?);
            }
        }
        Ok(file)
    }
}

/// Writes the queue of a plan, unless it exists.
fn prepare(data: &Utf8Path, plan: &Plan, timing: &Timing) -> Result<(), Failure> {
    let work = data.join(WORK);
    let mut body = Vec::new();
    let mut write = |value: &[u8]| body.extend(value.iter().chain(b"\n"));
    for clip in &plan.clips {
        write(&serde_json::to_vec(clip).expect("a clip has a JSON form"));
    }
    let quarantined = plan.quarantined.iter().map(|(item, _)| item);
    let wanted: Vec<u8> = plan.items.iter().chain(quarantined).flat_map(|item| item.key.bytes()).collect();
    let id = xxh3_hex(&[plan.spec.identity().as_bytes(), &body, &wanted].concat());
    let old = if work.join(QUEUE).exists() { Some(QueueFile::read(&work)?) } else { None };
    if old.as_ref().is_some_and(|old| old.head.id == id) {
        return Ok(());
    }
    let mut found: BTreeMap<String, Entry> = BTreeMap::new();
    let mut generation = 0;
    if let Some(old) = old {
        generation = old.head.generation + 1;
        // Bytes that were synced are trusted; the rest is compared with its checksums.
        found = generation_entries(&work, old.head.generation, Verify::Sums)?;
        for queued in old.items {
            found.extend(queued.found.map(|entry| (entry.key.clone(), entry)));
        }
        found.retain(|_, entry| entry.failure.is_none());
    }
    for folder in ["leases", "parts", "done"] {
        create_dir(&work.join(generation.to_string()).join(folder))?;
    }
    // Failures of earlier encodes are kept for those that are left out again.
    write_failures(&work, plan.quarantined.iter().map(|(item, failure)| (item, failure)))?;
    let range = timing.range.unwrap_or(RANGE).max(plan.items.len().div_ceil(MAX_RANGES));
    let head = QueueHead {
        schema: SCHEMA,
        id,
        generation,
        spec: plan.spec.clone(),
        clips: plan.clips.len(),
        items: plan.items.len(),
        range,
    };
    let mut text = serde_json::to_vec(&head).expect("a head has a JSON form");
    text.push(b'\n');
    text.extend(&body);
    for item in &plan.items {
        let queued = Queued { found: found.remove(&item.key), item: item.clone() };
        text.extend(serde_json::to_vec(&queued).expect("an item has a JSON form"));
        text.push(b'\n');
    }
    Ok(write_atomic(&work.join(QUEUE), &text)?)
}

/// Returns the entries of a generation by key: of ranges that are done, then of journals in the order of their epochs.
fn generation_entries(work: &Utf8Path, generation: u32, verify: Verify) -> Result<BTreeMap<String, Entry>, Failure> {
    let mut entries = BTreeMap::new();
    for (folder, verify) in [("done", Verify::Nothing), ("parts", verify)] {
        let dir = work.join(generation.to_string()).join(folder);
        let Ok(list) = dir.read_dir_utf8() else { continue };
        let paths = list.map(|entry| entry.map(|entry| entry.into_path()));
        let mut paths: Vec<Utf8PathBuf> = paths.collect::<Result<_, _>>().map_err(|e| unreadable(&dir, &e))?;
        paths.retain(|path| path.extension() == Some("jsonl") && !path.file_name().unwrap_or(".").starts_with('.'));
        paths.sort();
        for path in paths {
            for entry in read_journal(work, &path, verify)? {
                entries.entry(entry.key.clone()).or_insert(entry);
            }
        }
    }
    Ok(entries)
}

/// Returns whether an encode of the data set is running or was interrupted.
pub(crate) fn is_working(data: &Utf8Path) -> bool {
    data.join(WORK).join(QUEUE).exists()
}

/// A line of `failures.jsonl`.
#[derive(Serialize, Deserialize)]
struct FailedLine {
    item: Item,
    failure: Failure,
}

/// Returns the items that failed in earlier encodes of a data set.
pub(crate) fn old_failures(data: &Utf8Path) -> Result<Vec<(Item, Failure)>, Failure> {
    let path = data.join(WORK).join(FAILURES);
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(unreadable(&path, &e)),
    };
    let lines = text.split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty());
    let read = lines.map(|(number, line)| {
        let line: FailedLine = serde_json::from_slice(line).map_err(|e| malformed(&path, number + 1, &e))?;
        Ok((line.item, line.failure))
    });
    read.collect()
}

/// Replaces `failures.jsonl`, or removes it if there are no failures.
pub(super) fn write_failures<'a>(
    work: &Utf8Path,
    failures: impl Iterator<Item = (&'a Item, &'a Failure)>,
) -> Result<(), Failure> {
    let mut text = Vec::new();
    for (item, failure) in failures {
        let line = FailedLine { item: item.clone(), failure: failure.clone() };
        text.extend(serde_json::to_vec(&line).expect("a failure has a JSON form"));
        text.push(b'\n');
    }
    let path = work.join(FAILURES);
    if !text.is_empty() {
        return Ok(write_atomic(&path, &text)?);
    }
    match fs::remove_file(&path) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(cannot_write(&path, &e)),
        _ => Ok(()),
    }
}

/// The lease of the folder, renewed until it is dropped.
#[derive(Debug)]
struct Holding {
    work: Utf8PathBuf,
    lease: Option<Heartbeat>,
}

impl Holding {
    /// Takes the lease of the folder. Waits up to [`Timing::expiry`] for a heartbeat of its holder.
    fn begin(data: &Utf8Path, holder: &Holder, timing: &Timing) -> Result<Self, Failure> {
        let leases = Leases::new(data.join(WORK), timing.clock.clone(), timing.expiry);
        let text = serde_json::to_string(holder).expect("a holder has a JSON form");
        loop {
            let epoch = leases.epochs()?.get(FOLDER).copied();
            let other = match epoch {
                Some(epoch) => leases.holder(FOLDER, epoch)?,
                None => None,
            };
            let parsed = other.as_deref().and_then(|other| serde_json::from_str::<Holder>(other).ok());
            let same_run = parsed.as_ref().is_some_and(|other| other.run == holder.run);
            if other.is_none() || same_run {
                if let Taken::Mine(lease) = leases.seize(FOLDER, epoch, &text)? {
                    let lease = Some(Heartbeat::start(lease, timing.heartbeat));
                    return Ok(Self { work: data.join(WORK), lease });
                }
                // Another encode took the lease first. The next iteration reports its name.
                continue;
            }
            let name = parsed.map_or_else(|| "another encode".to_owned(), |other| other.worker());
            if leases.is_alive(FOLDER) {
                return Err(Failure::new(
                    ErrorCode::AlreadyExists,
                    format!("cannot encode into {data}"),
                    format!("{name} encodes into it"),
                    "wait until it ends, or stop it first",
                ));
            }
            timing.clock.sleep((timing.expiry / 30).max(Duration::from_millis(10)));
        }
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        let Some(lease) = self.lease.take() else { return };
        let epoch = lease.epoch();
        lease.stop(true);
        // When the work is complete, only the list of failures remains.
        if !self.work.join(QUEUE).exists() {
            for epoch in 0..=epoch {
                let _ = fs::remove_file(self.work.join(format!("{FOLDER}.{epoch}")));
            }
            let _ = fs::remove_dir(&self.work);
        }
    }
}

/// A lease that a thread renews.
#[derive(Debug)]
pub(super) struct Heartbeat {
    lease: Arc<Lease>,
    lost: Arc<AtomicBool>,
    thread: Option<(std::sync::mpsc::Sender<()>, JoinHandle<()>)>,
}

impl Heartbeat {
    pub fn start(lease: Lease, every: Option<Duration>) -> Self {
        let (lease, lost) = (Arc::new(lease), Arc::new(AtomicBool::new(false)));
        let thread = every.and_then(|every| {
            let (stop, stopped) = std::sync::mpsc::channel();
            let (lease, lost) = (lease.clone(), lost.clone());
            let beat = move || {
                use std::sync::mpsc::RecvTimeoutError::Timeout;
                while let Err(Timeout) = stopped.recv_timeout(every) {
                    // After a temporary error of the file system, the next heartbeat retries.
                    if let Ok(false) = lease.beat() {
                        lost.store(true, Ordering::Relaxed);
                        break;
                    }
                }
            };
            let thread = thread::Builder::new().name("heartbeat".into()).spawn(beat).ok()?;
            Some((stop, thread))
        });
        Self { lease, lost, thread }
    }

    /// Renews the lease now. Returns false if another worker has taken it over.
    pub fn beat(&self) -> Result<bool, Failure> {
        Ok(!self.lost.load(Ordering::Relaxed) && self.lease.beat()?)
    }

    /// Returns whether no other worker has taken the lease over.
    pub fn is_mine(&self) -> bool {
        !self.lost.load(Ordering::Relaxed) && self.lease.is_mine()
    }

    pub fn epoch(&self) -> u32 {
        self.lease.epoch
    }

    /// Stops the thread, and gives the lease back if `release`.
    pub fn stop(mut self, release: bool) {
        self.end();
        if release {
            // A lease that cannot be given back expires.
            let _ = self.lease.release();
        }
    }

    fn end(&mut self) {
        if let Some((stop, thread)) = self.thread.take() {
            drop(stop);
            thread.join().expect("a heartbeat does not panic");
        }
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.end();
    }
}
