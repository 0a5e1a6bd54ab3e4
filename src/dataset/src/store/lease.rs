//! Leases on a shared file system: at most one live holder of a name, without file locks and without comparing clocks.
//!
//! A lease of `NAME` is the file `NAME.EPOCH`, created with `O_EXCL`; the file with the highest epoch is the valid one. The holder
//! rewrites its file at every heartbeat. A worker that sees no change for [`Leases::expiry`] on its own clock takes the lease over:
//! it creates the file of the next epoch. A holder that was only slow then finds this file and gives up. Until then it writes only
//! to files of its own epoch, which does no harm.

use super::Clock;
use super::index::{cannot_write, unreadable};
use camino::{Utf8Path, Utf8PathBuf};
use rundir::{Failure, MAX_TEXT, read_regular};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The state of a lease: held or free, with its present or last holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LeaseState {
    Held(String),
    /// Given back or expired.
    Free(String),
}

/// The content of a lease file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Written {
    holder: String,
    /// Increases with each heartbeat.
    beat: u64,
    /// True once the holder has given the lease back.
    released: bool,
}

/// The leases of a folder, as one worker sees them.
#[derive(Debug)]
pub(super) struct Leases {
    dir: Utf8PathBuf,
    clock: Arc<dyn Clock>,
    expiry: Duration,
    seen: Mutex<HashMap<String, Seen>>,
}

/// The last content that was read from a lease, and since when it has not changed.
#[derive(Debug)]
struct Seen {
    epoch: u32,
    content: Vec<u8>,
    since: Duration,
    /// The number of different contents seen in this epoch.
    beats: usize,
}

/// The result of an attempt to take a lease.
#[derive(Debug)]
pub(super) enum Taken {
    Mine(Lease),
    /// Another worker holds it.
    Held,
}

/// A lease that this worker holds. Dropping it does not give it back.
#[derive(Debug)]
pub(super) struct Lease {
    dir: Utf8PathBuf,
    name: String,
    pub epoch: u32,
    holder: String,
    beats: AtomicU64,
}

impl Leases {
    pub fn new(dir: Utf8PathBuf, clock: Arc<dyn Clock>, expiry: Duration) -> Self {
        Self { dir, clock, expiry, seen: Mutex::default() }
    }

    /// Returns the highest epoch of every name.
    pub fn epochs(&self) -> Result<BTreeMap<String, u32>, Failure> {
        let mut epochs = BTreeMap::new();
        for entry in self.dir.read_dir_utf8().map_err(|e| unreadable(&self.dir, &e))? {
            let entry = entry.map_err(|e| unreadable(&self.dir, &e))?;
            if let Some((name, epoch)) = entry.file_name().rsplit_once('.')
                && let Ok(epoch) = epoch.parse::<u32>()
            {
                let highest = epochs.entry(name.to_owned()).or_insert(epoch);
                *highest = epoch.max(*highest);
            }
        }
        Ok(epochs)
    }

    /// Takes the lease of `name` if it does not exist, was given back, or has expired. `epoch` is its highest epoch, `None` if it
    /// does not exist.
    pub fn take(&self, name: &str, epoch: Option<u32>, holder: &str) -> Result<Taken, Failure> {
        match epoch {
            None => self.create(name, 0, holder),
            Some(epoch) => match self.holder(name, epoch)? {
                Some(_) => Ok(Taken::Held),
                None => self.create(name, epoch + 1, holder),
            },
        }
    }

    /// Takes the lease of `name` from any holder. The caller must be certain that the holder has ended.
    pub fn seize(&self, name: &str, epoch: Option<u32>, holder: &str) -> Result<Taken, Failure> {
        self.create(name, epoch.map_or(0, |epoch| epoch + 1), holder)
    }

    /// Returns the holder of an epoch, or `None` if the holder gave the lease back or the lease expired.
    pub fn holder(&self, name: &str, epoch: u32) -> Result<Option<String>, Failure> {
        Ok(match self.state(name, epoch)? {
            LeaseState::Held(holder) => Some(holder),
            LeaseState::Free(_) => None,
        })
    }

    /// Returns whether the lease of an epoch is held or free, and by whom.
    pub fn state(&self, name: &str, epoch: u32) -> Result<LeaseState, Failure> {
        let path = self.dir.join(format!("{name}.{epoch}"));
        let content = match read_regular(&path, MAX_TEXT) {
            Ok(content) => content,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(LeaseState::Held("another worker".into())),
            Err(e) => return Err(unreadable(&path, &e)),
        };
        // A lease is empty if it was just created, or if its holder crashed before writing.
        let written = serde_json::from_slice::<Written>(&content).ok();
        let released = written.as_ref().is_some_and(|written| written.released);
        let holder = written.map_or("a worker that has just started".into(), |written| written.holder);
        if released {
            return Ok(LeaseState::Free(holder));
        }
        let now = self.clock.now();
        let mut seen = self.seen.lock().expect("no thread panics with this lock");
        let since = match seen.get(name) {
            Some(seen) if seen.epoch == epoch && seen.content == content => seen.since,
            other => {
                let beats = other.filter(|seen| seen.epoch == epoch).map_or(0, |seen| seen.beats) + 1;
                seen.insert(name.to_owned(), Seen { epoch, content, since: now, beats });
                now
            }
        };
        let expired = now.saturating_sub(since) >= self.expiry;
        Ok(if expired { LeaseState::Free(holder) } else { LeaseState::Held(holder) })
    }

    /// Returns whether this worker saw a heartbeat of the current holder: calls of [`Leases::state`] read two different contents.
    pub fn is_alive(&self, name: &str) -> bool {
        let seen = self.seen.lock().expect("no thread panics with this lock");
        seen.get(name).is_some_and(|seen| seen.beats > 1)
    }

    fn create(&self, name: &str, epoch: u32, holder: &str) -> Result<Taken, Failure> {
        let lease = Lease {
            dir: self.dir.clone(),
            name: name.to_owned(),
            epoch,
            holder: holder.to_owned(),
            beats: AtomicU64::new(0),
        };
        let path = lease.path(epoch);
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(file) => lease.write(&file, false).map_err(|e| {
                // An empty lease would keep other workers waiting until it expires.
                let _ = fs::remove_file(&path);
                cannot_write(&path, &e)
            })?,
            Err(e) if e.kind() == ErrorKind::AlreadyExists => return Ok(Taken::Held),
            Err(e) => return Err(cannot_write(&path, &e)),
        }
        Ok(Taken::Mine(lease))
    }
}

impl Lease {
    /// Renews the lease. Returns false if another worker has taken it over.
    pub fn beat(&self) -> Result<bool, Failure> {
        self.rewrite(false)
    }

    /// Gives the lease back, so that another worker can take it at once.
    pub fn release(&self) -> Result<(), Failure> {
        self.rewrite(true).map(drop)
    }

    /// Returns whether no other worker has taken the lease over.
    pub fn is_mine(&self) -> bool {
        !self.path(self.epoch + 1).exists()
    }

    fn rewrite(&self, released: bool) -> Result<bool, Failure> {
        if !self.is_mine() {
            return Ok(false);
        }
        let path = self.path(self.epoch);
        match OpenOptions::new().write(true).open(&path).and_then(|file| self.write(&file, released)) {
            Ok(()) => Ok(true),
            // The work is complete, and its folder was removed.
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            Err(e) => Err(cannot_write(&path, &e)),
        }
    }

    /// Writes the content in place. A reader may see a half-written content. A reader needs only a change to see a heartbeat, so
    /// this does no harm.
    fn write(&self, file: &File, released: bool) -> io::Result<()> {
        let beat = self.beats.fetch_add(1, Ordering::Relaxed);
        let written = Written { holder: self.holder.clone(), beat, released };
        let mut text = serde_json::to_string(&written).expect("a lease has a JSON form");
        // The content never gets shorter during an epoch, so the file needs no truncation.
        text.push_str("  ");
        file.write_all_at(text.as_bytes(), 0)
    }

    fn path(&self, epoch: u32) -> Utf8PathBuf {
        self.dir.join(format!("{}.{epoch}", self.name))
    }
}

/// A lease that a thread renews. Dropping it stops the thread and does not give the lease back.
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

    /// Stops the thread; with `release`, also gives the lease back.
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

/// Creates a folder and its parents.
pub(super) fn create_dir(dir: &Utf8Path) -> Result<(), Failure> {
    fs::create_dir_all(dir).map_err(|e| cannot_write(dir, &e))
}
