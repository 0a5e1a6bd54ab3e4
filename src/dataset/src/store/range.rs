//! A range of items that this worker has claimed, and to which it writes its results.

use super::index::cannot_write;
use super::lease::Heartbeat;
use super::part::{Entry, NewTensor, Part};
use super::{Clock, Item};
use camino::Utf8PathBuf;
use rundir::{Failure, write_atomic};
use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

/// The interval after which a result also syncs the part file, which limits the loss when a node crashes.
const SYNC_EVERY: Duration = Duration::from_secs(5);

/// Whether this worker still holds a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// This worker holds the range.
    Mine,
    /// Another worker took the range over, because it saw no heartbeat of this worker. Drop the range and claim another one.
    Lost,
}

/// A range of items of one kind. Dropping it without [`Range::finish`] gives the range back, so that another worker encodes the
/// items that are not stored yet.
#[derive(Debug)]
pub struct Range {
    items: Vec<Item>,
    todo: Vec<Item>,
    stored: BTreeMap<String, Entry>,
    part: Part,
    lease: Option<Heartbeat>,
    done_file: Utf8PathBuf,
    clock: Arc<dyn Clock>,
    synced: Duration,
}

impl Range {
    pub(super) fn new(
        items: Vec<Item>,
        stored: BTreeMap<String, Entry>,
        part: Part,
        lease: Heartbeat,
        done_file: Utf8PathBuf,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let todo = items.iter().filter(|item| !stored.contains_key(&item.key)).cloned().collect();
        Self { items, todo, stored, part, lease: Some(lease), done_file, synced: clock.now(), clock }
    }

    /// Returns the items that had no result when the range was claimed, in order.
    #[expect(clippy::misnamed_getters, reason = "for the worker of a range, its items are those that remain")]
    pub fn items(&self) -> &[Item] {
        &self.todo
    }

    /// Renews the lease. Needed only if [`super::Timing::heartbeat`] is `None`.
    ///
    /// # Errors
    /// The lease cannot be written.
    pub fn heartbeat(&self) -> Result<Held, Failure> {
        let mine = self.lease().beat()?;
        Ok(if mine { Held::Mine } else { Held::Lost })
    }

    /// Stores an item. `times` are the times of the chosen frames; `tensors` are the latent or text and further tensors
    /// by role.
    ///
    /// # Errors
    /// The disk is full or fails. The item is then not stored, and the call can be repeated.
    pub fn commit(&mut self, item: &Item, times: &[f64], tensors: &[NewTensor]) -> Result<Held, Failure> {
        if !self.lease().is_mine() {
            return Ok(Held::Lost);
        }
        let entry = self.part.commit(&item.key, times, tensors)?;
        self.record(entry)
    }

    /// Records that an item cannot be encoded. It is left out of the data set and listed.
    ///
    /// # Errors
    /// As [`Range::commit`].
    pub fn fail(&mut self, item: &Item, failure: Failure) -> Result<Held, Failure> {
        if !self.lease().is_mine() {
            return Ok(Held::Lost);
        }
        let entry = self.part.fail(&item.key, failure)?;
        self.record(entry)
    }

    fn record(&mut self, entry: Entry) -> Result<Held, Failure> {
        self.stored.insert(entry.key.clone(), entry);
        let now = self.clock.now();
        if now.saturating_sub(self.synced) >= SYNC_EVERY {
            self.part.sync()?;
            self.synced = now;
        }
        Ok(Held::Mine)
    }

    /// Marks the range as done if every item is stored or has failed. Otherwise does nothing, and dropping the range gives it back.
    ///
    /// # Errors
    /// The disk is full or fails. The call can then be repeated.
    pub fn finish(&mut self) -> Result<Held, Failure> {
        let Some(lease) = &self.lease else { return Ok(Held::Lost) };
        if !lease.is_mine() {
            return Ok(Held::Lost);
        }
        if self.items.iter().any(|item| !self.stored.contains_key(&item.key)) {
            return Ok(Held::Mine);
        }
        self.part.sync()?;
        // Results of earlier workers of this range are in their parts, which these workers may not have synced before they crashed.
        let work = self.done_file.ancestors().nth(3).expect("the folder of the work");
        for part in self.stored.values().map(|entry| &entry.part).collect::<std::collections::BTreeSet<_>>() {
            let path = work.join(part);
            if path.exists() {
                fs::File::open(&path).and_then(|file| file.sync_data()).map_err(|e| cannot_write(&path, &e))?;
            }
        }
        let mut text = Vec::new();
        for item in &self.items {
            text.extend(serde_json::to_vec(&self.stored[&item.key]).expect("an entry has a JSON form"));
            text.push(b'\n');
        }
        write_atomic(&self.done_file, &text)?;
        if let Some(lease) = self.lease.take() {
            lease.stop(false);
        }
        Ok(Held::Mine)
    }

    fn lease(&self) -> &Heartbeat {
        self.lease.as_ref().expect("a range has its lease until it is finished")
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take() {
            lease.stop(true);
        }
    }
}
