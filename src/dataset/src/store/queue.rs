//! The queue of an encode: ranges of items that workers of any node claim, and the state of the work on disk.
//!
//! ```text
//! work/
//! ├── queue.jsonl          a head, the clips of the manifest, the items in order; replaced by rename
//! ├── folder.E             the lease of the whole folder: one encode at a time
//! ├── failures.jsonl       items that failed in earlier encodes
//! └── G/                   one folder per plan
//!     ├── leases/RRRRR.E   the lease of a range
//!     ├── parts/RRRRR-E.part, .jsonl
//!     └── done/RRRRR.jsonl the entries of a range whose every item is stored or failed
//! ```
//!
//! A changed plan starts the next generation G, which takes over the complete items of earlier generations by their
//! keys.

use super::folder::{Folder, Holder};
use super::index::{malformed, unreadable};
use super::lease::{Heartbeat, Lease, Leases, Taken, create_dir};
use super::names::{QUEUE, WORK};
use super::part::{Disk, Entry, LocalDisk, Part, Verify, read_journal};
use super::queue_file::{QueueFile, QueueHead, Queued, generation_entries, prepare, ranges};
use super::range::Range;
use super::spec::StoreSpec;
use super::{Clock, Item, ItemKind, Plan, SystemClock, WantedClip};
use camino::{Utf8Path, Utf8PathBuf};
use rundir::{ErrorCode, Failure, read_regular};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

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

/// The queue of an encode, as one worker sees it.
#[derive(Debug)]
pub struct Queue {
    pub(super) data: Utf8PathBuf,
    pub(super) head: QueueHead,
    pub(super) items: Vec<Queued>,
    /// The items of each range; a range has items of one kind.
    pub(super) ranges: Vec<(ItemKind, std::ops::Range<usize>)>,
    pub(super) worker: String,
    pub(super) timing: Timing,
    pub(super) leases: Leases,
    /// Ranges that are known to be done. A range that is done stays done.
    done: Mutex<BTreeSet<usize>>,
    /// `None` after [`Queue::release`], and for readers.
    folder: Option<Folder>,
}

/// The result of a claim.
#[derive(Debug)]
pub enum Claim {
    /// A range that this worker holds now.
    Range(Box<Range>),
    /// Other workers hold all ranges of the kind that are not done. Try again after about a second.
    Wait,
    /// All ranges of the kind are done.
    Done,
}

/// The progress of an encode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct EncodeProgress {
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
        let folder = Folder::take(data, holder, &timing)?;
        prepare(data, plan, &timing)?;
        Self::read(data, holder.worker(), timing, Some(folder))
    }

    /// Opens the queue that another worker of the same encode created. `holder` names this process in leases.
    ///
    /// # Errors
    /// The queue is missing or cannot be read.
    pub fn open(data: &Utf8Path, holder: &Holder, timing: Timing) -> Result<Self, Failure> {
        let folder = Folder::watch(data, holder, &timing);
        Self::read(data, holder.worker(), timing, Some(folder))
    }

    /// Opens the queue to read it.
    pub(crate) fn look(data: &Utf8Path) -> Result<Self, Failure> {
        Self::read(data, "reader".into(), Timing::default(), None)
    }

    fn read(data: &Utf8Path, worker: String, timing: Timing, folder: Option<Folder>) -> Result<Self, Failure> {
        let file = QueueFile::read(&data.join(WORK))?;
        let ranges = ranges(&file.items, file.head.range);
        let generation = data.join(WORK).join(file.head.generation.to_string());
        let leases = Leases::new(generation.join("leases"), timing.clock.clone(), timing.expiry);
        Ok(Self {
            data: data.to_owned(),
            head: file.head,
            items: file.items,
            ranges,
            worker,
            timing,
            leases,
            done: Mutex::default(),
            folder,
        })
    }

    /// Returns the specification of the store.
    pub fn spec(&self) -> &StoreSpec {
        &self.head.spec
    }

    /// Claims a range of a kind. Its items are encoded in order. Items that another worker has stored are left out.
    ///
    /// # Errors
    /// The folder cannot be read or written.
    pub fn claim(&self, kind: ItemKind) -> Result<Claim, Failure> {
        if self.is_over()? {
            return Ok(Claim::Done);
        }
        let mut done = self.find_done()?;
        let (epochs, mut held) = (self.leases.epochs()?, false);
        for (number, _) in self.ranges.iter().enumerate().filter(|(_, (of, _))| *of == kind) {
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
    pub fn progress(&self) -> Result<EncodeProgress, Failure> {
        let mut progress = EncodeProgress::default();
        let kinds: HashMap<&str, ItemKind> =
            self.items.iter().map(|queued| (queued.item.key.as_str(), queued.item.work.kind())).collect();
        for kind in kinds.values() {
            match kind {
                ItemKind::Text => progress.texts += 1,
                ItemKind::Latent => progress.latents += 1,
            }
        }
        for entry in self.entries()?.values() {
            let Some(kind) = kinds.get(entry.key.as_str()) else { continue };
            match (kind, &entry.failure) {
                (_, Some(_)) => progress.failed += 1,
                (ItemKind::Text, None) => progress.texts_done += 1,
                (ItemKind::Latent, None) => progress.latents_done += 1,
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

    /// Gives the folder back, so that another encode can start at once. Call it when the encode stops; dropping the queue
    /// does the same.
    pub fn release(&mut self) {
        self.folder = None;
    }

    /// Renews the lease of the folder; see [`Folder::keep`].
    #[cfg(test)]
    pub(super) fn keep_folder(&self) {
        self.folder.iter().for_each(Folder::keep);
    }

    /// Returns whether the work was completed.
    ///
    /// # Errors
    /// [`ErrorCode::AlreadyExists`] if another encode took over the folder, after no worker of this one renewed its lease.
    pub(super) fn is_over(&self) -> Result<bool, Failure> {
        let work = self.data.join(WORK);
        let mine = match QueueHead::read(&work)? {
            Some(head) => head.id == self.head.id,
            None => super::index::Lines::open(&self.data.join(super::INDEX))?.0.queue == self.head.id,
        };
        if mine {
            return Ok(!work.join(QUEUE).exists());
        }
        Err(Failure::new(
            ErrorCode::AlreadyExists,
            format!("cannot continue to encode into {}", self.data),
            "another encode took over the folder",
            "start this encode again when the other one has ended: it continues",
        ))
    }

    /// Returns the ranges that are done.
    pub(super) fn find_done(&self) -> Result<BTreeSet<usize>, Failure> {
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
            let text = read_regular(&path, u64::MAX).map_err(|e| unreadable(&path, &e))?;
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
