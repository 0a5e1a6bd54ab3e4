//! The lease of a data set's folder, which allows one encode at a time. Any worker of the encode may hold and renew it.
//!
//! The worker that creates the queue takes the lease, and the other workers watch it. If the holder dies or gives the lease back,
//! one of the workers takes it over. They wait only half as long as a second encode would, so the lease stays with their encode.

use super::Timing;
use super::lease::{Lease, LeaseState, Leases, Taken};
use super::names::{QUEUE, WORK};
use camino::{Utf8Path, Utf8PathBuf};
use rundir::{ErrorCode, Failure};
use serde::{Deserialize, Serialize};
use std::fs;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The name of the lease.
const FOLDER: &str = "folder";

/// The identity of a worker. The error that refuses a second encode into the same folder shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The run, or another name of the encode. After a crash, an encode of the same name continues at once.
    pub run: String,
    /// The name of the worker's node.
    pub node: String,
    /// The process id of the worker.
    pub pid: u32,
}

impl Holder {
    pub(super) fn worker(&self) -> String {
        format!("{} on {}, process {}", self.run, self.node, self.pid)
    }

    fn text(&self) -> String {
        serde_json::to_string(self).expect("a holder has a JSON form")
    }

    fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

/// The lease of the folder, as one worker sees it. Dropping this value gives the lease back if this worker holds it.
#[derive(Debug)]
pub(super) struct Folder {
    keeper: Arc<Mutex<Keeper>>,
    thread: Option<(Sender<()>, JoinHandle<()>)>,
}

/// The state that a [`Folder`] shares with its thread.
#[derive(Debug)]
struct Keeper {
    work: Utf8PathBuf,
    leases: Leases,
    holder: Holder,
    /// The lease, if this worker holds it.
    lease: Option<Lease>,
}

impl Folder {
    /// Takes the lease. If another encode holds it, waits up to [`Timing::expiry`] to see whether its holder sends a heartbeat.
    ///
    /// # Errors
    /// [`ErrorCode::AlreadyExists`] if another encode works in the folder.
    pub fn take(data: &Utf8Path, holder: &Holder, timing: &Timing) -> Result<Self, Failure> {
        let leases = Leases::new(data.join(WORK), timing.clock.clone(), timing.expiry);
        loop {
            let epoch = wait_until_free(data, &leases, &|other| other.run == holder.run, timing)?;
            if let Taken::Mine(lease) = leases.seize(FOLDER, epoch, &holder.text())? {
                return Ok(Self::start(data, holder, timing, Some(lease)));
            }
            // Another encode took the lease first. The next iteration reports its name.
        }
    }

    /// Watches the lease that another worker of the encode holds.
    pub fn watch(data: &Utf8Path, holder: &Holder, timing: &Timing) -> Self {
        Self::start(data, holder, timing, None)
    }

    fn start(data: &Utf8Path, holder: &Holder, timing: &Timing, lease: Option<Lease>) -> Self {
        let work = data.join(WORK);
        let leases = Leases::new(work.clone(), timing.clock.clone(), timing.expiry / 2);
        let keeper = Arc::new(Mutex::new(Keeper { work, leases, holder: holder.clone(), lease }));
        let thread = timing.heartbeat.and_then(|every| {
            let (stop, stopped) = mpsc::channel();
            let shared = keeper.clone();
            let keep = move || {
                while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(every) {
                    lock(&shared).keep();
                }
            };
            let thread = thread::Builder::new().name("folder lease".into()).spawn(keep).ok()?;
            Some((stop, thread))
        });
        Self { keeper, thread }
    }

    /// Renews the lease, or takes it over if its holder is gone. A thread does this, unless heartbeats are disabled.
    #[cfg(test)]
    pub fn keep(&self) {
        lock(&self.keeper).keep();
    }
}

/// Checks that no other encode works in the folder of a data set, without taking its lease. Waits up to 10 s for a heartbeat of the
/// holder, so that a crashed encode is not an obstacle.
///
/// * `has_ended` — whether to ignore a holder: it belongs to the encode that the caller continues, or to an encode that has ended.
///
/// # Errors
/// [`ErrorCode::AlreadyExists`] with the name of the other encode.
pub fn check_no_encode(data: &Utf8Path, has_ended: &dyn Fn(&Holder) -> bool) -> Result<(), Failure> {
    // Two heartbeats.
    check_no_encode_within(data, has_ended, &Timing { expiry: Duration::from_secs(10), ..Timing::default() })
}

pub(super) fn check_no_encode_within(
    data: &Utf8Path,
    has_ended: &dyn Fn(&Holder) -> bool,
    timing: &Timing,
) -> Result<(), Failure> {
    let work = data.join(WORK);
    if !work.is_dir() {
        return Ok(());
    }
    let leases = Leases::new(work.clone(), timing.clock.clone(), timing.expiry);
    match wait_until_free(data, &leases, has_ended, timing) {
        // The other encode has meanwhile ended and removed the work folder.
        Err(_) if !work.is_dir() => Ok(()),
        result => result.map(drop),
    }
}

/// Waits until no other encode holds the lease, and returns the highest epoch of the lease; `None` if there is no lease.
fn wait_until_free(
    data: &Utf8Path,
    leases: &Leases,
    has_ended: &dyn Fn(&Holder) -> bool,
    timing: &Timing,
) -> Result<Option<u32>, Failure> {
    loop {
        let Some(epoch) = leases.epochs()?.get(FOLDER).copied() else { return Ok(None) };
        let Some(other) = leases.holder(FOLDER, epoch)? else { return Ok(Some(epoch)) };
        let other = Holder::parse(&other);
        if other.as_ref().is_some_and(has_ended) {
            return Ok(Some(epoch));
        }
        if leases.is_alive(FOLDER) {
            let name = other.map_or_else(|| "another encode".to_owned(), |other| other.worker());
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

fn lock(keeper: &Mutex<Keeper>) -> std::sync::MutexGuard<'_, Keeper> {
    keeper.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Keeper {
    fn keep(&mut self) {
        match self.lease.as_ref().map(Lease::beat) {
            // After a temporary error of the file system, the next heartbeat retries.
            Some(Ok(true) | Err(_)) => return,
            Some(Ok(false)) => self.lease = None,
            None => {}
        }
        self.lease = self.take_over().ok().flatten();
    }

    /// Takes over the lease of a lost worker of the same encode.
    fn take_over(&self) -> Result<Option<Lease>, Failure> {
        // When the work is complete, another encode may take the folder.
        if !self.work.join(QUEUE).exists() {
            return Ok(None);
        }
        let Some(epoch) = self.leases.epochs()?.get(FOLDER).copied() else { return Ok(None) };
        match self.leases.state(FOLDER, epoch)? {
            LeaseState::Free(was) if Holder::parse(&was).is_some_and(|was| was.run == self.holder.run) => {
                match self.leases.seize(FOLDER, Some(epoch), &self.holder.text())? {
                    Taken::Mine(lease) => Ok(Some(lease)),
                    Taken::Held => Ok(None),
                }
            }
            _ => Ok(None),
        }
    }

    /// Removes the leases of a complete encode and of earlier encodes, so that only the list of failures remains. Keeps the lease of
    /// an encode that has begun since.
    fn clean(&self) {
        let Ok(epochs) = self.leases.epochs() else { return };
        let is_own = |epoch: &u32| {
            let (LeaseState::Free(was) | LeaseState::Held(was)) = self.leases.state(FOLDER, *epoch).ok()?;
            Holder::parse(&was).is_some_and(|was| was.run == self.holder.run).then_some(())
        };
        let all = 0..=epochs.get(FOLDER).copied().unwrap_or(0);
        let Some(last) = all.rev().find(|epoch| is_own(epoch).is_some()) else { return };
        for epoch in 0..=last {
            let _ = fs::remove_file(self.work.join(format!("{FOLDER}.{epoch}")));
        }
        let _ = fs::remove_dir(&self.work);
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.thread.take() {
            drop(stop);
            // The thread does not panic; if it did, the lease would expire.
            let _ = thread.join();
        }
        let mut keeper = lock(&self.keeper);
        if let Some(lease) = keeper.lease.take() {
            // A lease that cannot be given back expires.
            let _ = lease.release();
        }
        if !keeper.work.join(QUEUE).exists() {
            keeper.clean();
        }
    }
}
