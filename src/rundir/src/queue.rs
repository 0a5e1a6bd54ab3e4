//! The queue of runs: one file per entry, in the folder `queue` beside the runs.
//!
//! Several users may share the folder. An entry belongs to the user to whom its file belongs, because an entry names programs. Each user
//! has an own worker, which starts only the entries of this user, and no user changes the files of another one.

use crate::files::{Versioned, parse_toml, without_links, write_toml};
use crate::healer::{holder, lock_program};
use crate::lock::{LockUsers, lock, open_lock};
use crate::trust::other_owner;
use crate::{Error, Failure, Healer, HealerLock, RunId};
use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;

/// The program that starts the runs of a queue: its machine and its process.
pub type QueueWorker = Healer;

/// The queue of a folder of runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queue {
    folder: Utf8PathBuf,
}

/// `queue/ID.toml`: a run to launch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QueueEntry {
    /// [`crate::SCHEMA`].
    pub schema: u32,
    /// The number of the entry. The queue never reuses a number.
    pub id: u32,
    /// Its position among the entries of the queue, from 0.
    pub order: usize,
    /// When it was added, Unix seconds.
    pub added_s: f64,
    /// The user who added it, as `user@node`.
    pub by: String,
    /// The working directory of the launch. Relative paths in `launch` are relative to it.
    pub folder: Utf8PathBuf,
    /// The arguments of `vidtui launch`.
    pub launch: Vec<String>,
    /// The number of the entry whose run trains the weights that this run starts from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u32>,
    /// The state of the entry.
    pub state: QueueState,
    /// The owner of its file, if that is another user than that of this process. The worker of that user starts it.
    #[serde(skip)]
    pub owner: Option<String>,
}

/// The state of an entry. The state of its run is derived from the files of the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum QueueState {
    /// It starts when its turn comes.
    Waiting,
    /// It is skipped until a user releases it.
    Held,
    /// Its run is being started.
    Starting {
        /// The id of the run.
        run: RunId,
        /// When the start began, Unix seconds.
        at_s: f64,
    },
    /// Its run was started.
    Started {
        /// The id of the run.
        run: RunId,
        /// When, Unix seconds.
        at_s: f64,
    },
    /// Its run could not be started.
    Failed {
        /// When, Unix seconds.
        at_s: f64,
        /// Why it could not be started.
        failure: Failure,
    },
}

impl QueueEntry {
    /// Returns whether its run may still be started.
    pub fn is_pending(&self) -> bool {
        matches!(self.state, QueueState::Waiting | QueueState::Held)
    }
}

impl Versioned for QueueEntry {
    fn version(&self) -> u32 {
        self.schema
    }
}

impl Queue {
    /// Returns the queue of a folder of runs.
    pub fn of(runs: &Utf8Path) -> Self {
        Self { folder: runs.join("queue") }
    }

    /// Returns the log of this user's worker.
    pub fn log(&self) -> Utf8PathBuf {
        self.of_user("log")
    }

    /// Returns a file of the folder that each user has: `worker` for the owner of the folder, `worker-1001` for another user.
    fn of_user(&self, name: &str) -> Utf8PathBuf {
        let user = nix::unistd::geteuid();
        match fs::metadata(&self.folder) {
            Ok(folder) if other_owner(&self.folder.join(name), folder.uid()).is_some() => {
                self.folder.join(format!("{name}-{user}"))
            }
            _ => self.folder.join(name),
        }
    }

    /// Reads the entries: first those that were started or failed, by time, then the others in the order of the queue. Files of other
    /// users that cannot be read are skipped.
    ///
    /// # Errors
    /// [`Error::File`] or [`Error::Malformed`] of a file of this user.
    pub fn entries(&self) -> Result<Vec<QueueEntry>, Error> {
        let files = match self.folder.read_dir_utf8() {
            Ok(files) => files,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::io("list", &self.folder, error)),
        };
        let mut entries: Vec<QueueEntry> = Vec::new();
        for file in files {
            let path = file.map_err(|error| Error::io("list", &self.folder, error))?.into_path();
            let is_entry = path.extension() == Some("toml") && !path.file_name().unwrap_or_default().starts_with('.');
            match is_entry.then(|| read_entry(&path)) {
                Some(Ok(entry)) => entries.push(entry),
                Some(Err(_)) if is_of_other_user(&path) => {}
                // Another program has removed it.
                Some(Err(error)) if error.is_not_found() => {}
                Some(Err(error)) => return Err(error),
                None => {}
            }
        }
        let key = |entry: &QueueEntry| match &entry.state {
            QueueState::Starting { at_s, .. } | QueueState::Started { at_s, .. } | QueueState::Failed { at_s, .. } => {
                (0, *at_s, entry.id)
            }
            QueueState::Waiting | QueueState::Held => (1, entry.order as f64, entry.id),
        };
        entries.sort_by(|a, b| {
            let (a, b) = (key(a), key(b));
            a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2))
        });
        Ok(entries)
    }

    /// Changes the entries, under a lock that keeps other programs from changing them. The order of the list becomes
    /// the order of the queue. Nothing is written if `change` fails. The entries of other users are not written: they
    /// would belong to this user, whose worker would start them.
    ///
    /// * `change` — gets the entries, as [`Queue::entries`] returns them, and the number of the next new entry.
    ///
    /// # Errors
    /// The errors of `change`, [`Error::File`], and [`Error::Locked`] if the lock is not released in time.
    pub fn change<T, E: From<Error>>(
        &self,
        change: impl FnOnce(&mut Vec<QueueEntry>, u32) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut lock_file = self.lock()?;
        let before = self.entries()?;
        let mut entries = before.clone();
        let last_id = before.iter().map(|entry| entry.id).chain([last_id(&mut lock_file)]).max().unwrap_or(0);
        let no_number = || Error::malformed(&self.folder, "an entry has the last number");
        let result = change(&mut entries, last_id.checked_add(1).ok_or_else(no_number)?)?;
        for (order, entry) in entries.iter_mut().enumerate() {
            entry.order = order;
        }
        for entry in entries.iter().filter(|entry| entry.owner.is_none() && !before.contains(entry)) {
            write_toml(&self.file(entry.id), entry)?;
        }
        for gone in before.iter().filter(|old| entries.iter().all(|entry| entry.id != old.id)) {
            let path = self.file(gone.id);
            fs::remove_file(&path).map_err(|error| Error::io("remove", &path, error))?;
        }
        let newest = entries.iter().map(|entry| entry.id).max().unwrap_or(0);
        if newest > last_id {
            let written = lock_file.seek(SeekFrom::Start(0)).and_then(|_| writeln!(lock_file, "{newest}"));
            written.map_err(|error| Error::io("write", &self.folder.join("last-id"), error))?;
        }
        Ok(result)
    }

    /// Takes the lock of this user's worker. Returns `None` if another process of this user has it.
    ///
    /// # Errors
    /// [`Error::File`] when the file cannot be made or locked, [`Error::Locked`] when another user has locked it.
    pub fn lock_worker(&self, worker: &QueueWorker) -> Result<Option<HealerLock>, Error> {
        fs::create_dir_all(&self.folder).map_err(|error| Error::io("create", &self.folder, error))?;
        lock_program(&self.of_user("worker"), worker)
    }

    /// Returns this user's worker, if a process has its lock.
    pub fn worker(&self) -> Option<QueueWorker> {
        holder(&self.of_user("worker"))
    }

    /// Releases the lock of the worker if no entry can start. Otherwise, or if the entries cannot be read, returns the
    /// lock.
    ///
    /// Entries cannot be added meanwhile. A program that adds an entry and then finds a worker can therefore rely on
    /// the worker to start the entry.
    ///
    /// # Errors
    /// [`Error::File`] if the queue cannot be locked.
    pub fn end_worker(&self, lock: HealerLock) -> Result<Option<HealerLock>, Error> {
        let _changes = match self.lock() {
            Ok(changes) => changes,
            // The worker tries again later.
            Err(Error::Locked { .. }) => return Ok(Some(lock)),
            Err(error) => return Err(error),
        };
        Ok(Some(lock).filter(|_| self.entries().map_or(true, |entries| next_entry(&entries).is_some())))
    }

    fn lock(&self) -> Result<File, Error> {
        fs::create_dir_all(&self.folder).map_err(|error| Error::io("create", &self.folder, error))?;
        let path = self.folder.join("last-id");
        let file = open_lock(&path, LockUsers::Writers).map_err(|error| Error::io("lock", &path, error))?;
        lock(&file, &path)?;
        Ok(file)
    }

    fn file(&self, id: u32) -> Utf8PathBuf {
        self.folder.join(format!("{id}.toml"))
    }
}

/// Returns the entry that the worker of this user starts next. Skips held entries, entries of other users, and entries whose
/// [`QueueEntry::after`] is still pending.
pub fn next_entry(entries: &[QueueEntry]) -> Option<&QueueEntry> {
    let is_pending = |id: u32| entries.iter().any(|entry| entry.id == id && entry.is_pending());
    let mut waiting = entries.iter().filter(|entry| entry.state == QueueState::Waiting && entry.owner.is_none());
    waiting.find(|entry| !entry.after.is_some_and(is_pending))
}

/// Reads the file of an entry and its owner. Both are those of one open file, which is no link, so that no other user can replace the
/// file in between.
fn read_entry(path: &Utf8Path) -> Result<QueueEntry, Error> {
    let io = |error| Error::io("read", path, error);
    let mut file = without_links(OpenOptions::new().read(true)).open(path).map_err(io)?;
    let meta = file.metadata().map_err(io)?;
    if !meta.is_file() {
        return Err(Error::malformed(path, "it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(io)?;
    let text = text_file::decode(bytes).map_err(|why| Error::not_text(path, why))?;
    let entry: QueueEntry = parse_toml(path, &text)?;
    if path.file_stem() != Some(entry.id.to_string().as_str()) {
        return Err(Error::malformed(path, format!("it has the number {}, which is not its name", entry.id)));
    }
    Ok(QueueEntry { owner: other_owner(path, meta.uid()), ..entry })
}

fn is_of_other_user(path: &Utf8Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| other_owner(path, meta.uid()).is_some())
}

/// Reads the highest number that an entry ever had; 0 if there was none.
fn last_id(file: &mut File) -> u32 {
    let mut text = String::new();
    let read = file.read_to_string(&mut text);
    read.ok().and_then(|_| text.lines().next()?.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorCode;
    use crate::fixtures::{node, run_id, temp};

    fn entry(id: u32, state: QueueState) -> QueueEntry {
        let launch = vec![format!("{id}.toml"), "--set".into(), "train.steps=3".into()];
        let (by, folder) = ("ada@ml-1".to_owned(), "/work".into());
        let (order, added_s, after, owner) = (0, 1000.0, None, None);
        QueueEntry { schema: crate::SCHEMA, id, order, added_s, by, folder, launch, after, state, owner }
    }

    fn add(queue: &Queue, count: usize) {
        for _ in 0..count {
            let push = |entries: &mut Vec<QueueEntry>, id| {
                entries.push(entry(id, QueueState::Waiting));
                Ok::<_, Error>(())
            };
            queue.change(push).unwrap();
        }
    }

    fn ids(queue: &Queue) -> Vec<u32> {
        queue.entries().unwrap().iter().map(|entry| entry.id).collect()
    }

    #[test]
    fn entries_keep_their_order_and_numbers_are_not_used_again() {
        let (_keep, run) = temp();
        let queue = Queue::of(&run.root);
        assert_eq!(queue.entries().unwrap(), []);
        add(&queue, 3);
        assert_eq!(ids(&queue), [1, 2, 3]);
        let last_first = |entries: &mut Vec<QueueEntry>, _| {
            entries.rotate_right(1);
            Ok::<_, Error>(())
        };
        queue.change(last_first).unwrap();
        assert_eq!(ids(&queue), [3, 1, 2]);
        let remove = |entries: &mut Vec<QueueEntry>, _| {
            entries.retain(|entry| entry.id != 3);
            Ok::<_, Error>(())
        };
        queue.change(remove).unwrap();
        add(&queue, 1);
        assert_eq!(ids(&queue), [1, 2, 4]);
        let fails = |entries: &mut Vec<QueueEntry>, _| {
            entries.clear();
            Err::<(), _>(Error::malformed(Utf8Path::new("x"), "no"))
        };
        assert!(queue.change(fails).is_err());
        assert_eq!(ids(&queue), [1, 2, 4]);
    }

    #[test]
    fn every_state_is_read_back_and_entries_that_started_come_first() {
        let (_keep, run) = temp();
        let queue = Queue::of(&run.root);
        let failure = Failure::new(ErrorCode::NotFound, "cannot launch", "it is gone", "choose another");
        let states = [
            QueueState::Held,
            QueueState::Waiting,
            QueueState::Failed { at_s: 30.0, failure },
            QueueState::Started { run: run_id(), at_s: 20.0 },
        ];
        let write = |entries: &mut Vec<QueueEntry>, _| {
            entries.extend(states.iter().zip(1..).map(|(state, id)| entry(id, state.clone())));
            Ok::<_, Error>(())
        };
        queue.change(write).unwrap();
        let read = queue.entries().unwrap();
        assert_eq!(read.iter().map(|entry| entry.id).collect::<Vec<_>>(), [4, 3, 1, 2]);
        for (state, id) in states.iter().zip(1..) {
            assert_eq!(read.iter().find(|entry| entry.id == id).map(|entry| &entry.state), Some(state));
        }
    }

    #[test]
    fn held_entries_are_skipped_and_those_that_follow_them() {
        let mut entries: Vec<_> = (1..=4).map(|id| entry(id, QueueState::Waiting)).collect();
        let next = |entries: &[QueueEntry]| next_entry(entries).map(|entry| entry.id);
        assert_eq!(next(&entries), Some(1));
        entries[1].after = Some(1);
        entries[0].state = QueueState::Held;
        assert_eq!(next(&entries), Some(3));
        entries[0].state = QueueState::Started { run: run_id(), at_s: 1.0 };
        assert_eq!(next(&entries), Some(2));
        assert_eq!(next(&entries[..1]), None);
    }

    #[test]
    fn entries_of_other_users_are_skipped_and_block_no_entry_of_this_user() {
        let mut entries: Vec<_> = (1..=3).map(|id| entry(id, QueueState::Waiting)).collect();
        entries[0].owner = Some("bob".into());
        assert_eq!(next_entry(&entries).map(|entry| entry.id), Some(2));
        entries.iter_mut().for_each(|entry| entry.owner = Some("bob".into()));
        assert_eq!(next_entry(&entries), None);
    }

    #[test]
    fn the_file_of_another_users_entry_is_not_written_so_that_it_keeps_its_owner() {
        let (_keep, run) = temp();
        let queue = Queue::of(&run.root);
        add(&queue, 1);
        let before = fs::read_to_string(queue.file(1)).unwrap();
        let change = |entries: &mut Vec<QueueEntry>, id| {
            entries[0].owner = Some("bob".into());
            entries[0].state = QueueState::Held;
            entries.insert(0, entry(id, QueueState::Waiting));
            Ok::<_, Error>(())
        };
        queue.change(change).unwrap();
        assert_eq!(fs::read_to_string(queue.file(1)).unwrap(), before);
        assert!(queue.file(2).exists());
    }

    #[test]
    fn an_entry_of_another_user_belongs_to_that_user_and_a_damaged_one_is_skipped() {
        if !nix::unistd::geteuid().is_root() {
            crate::log!("skipped: only root can give a file to another user");
            return;
        }
        let (_keep, run) = temp();
        let queue = Queue::of(&run.root);
        add(&queue, 3);
        for id in [1, 3] {
            std::os::unix::fs::chown(queue.file(id), Some(64_001), None).unwrap();
        }
        fs::write(queue.file(3), "schema = 99").unwrap();
        // It has the number of another entry.
        fs::copy(queue.file(1), queue.file(9)).unwrap();
        std::os::unix::fs::chown(queue.file(9), Some(64_001), None).unwrap();
        let owners: Vec<_> = queue.entries().unwrap().into_iter().map(|entry| (entry.id, entry.owner)).collect();
        assert_eq!(owners, [(1, Some("user 64001".to_owned())), (2, None)]);
    }

    #[test]
    fn a_link_or_a_named_pipe_is_no_entry() {
        let (_keep, run) = temp();
        let queue = Queue::of(&run.root);
        add(&queue, 1);
        std::os::unix::fs::symlink("1.toml", queue.file(2)).unwrap();
        assert!(queue.entries().is_err());
        fs::remove_file(queue.file(2)).unwrap();
        nix::unistd::mkfifo(queue.file(2).as_std_path(), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(matches!(queue.entries(), Err(Error::Malformed { .. })));
    }

    #[test]
    fn readers_cannot_open_the_locks_of_a_queue() {
        let (_keep, run) = temp();
        let queue = Queue::of(&run.root);
        let worker = QueueWorker { schema: crate::SCHEMA, node: node("ml-1"), pid: 7 };
        let _lock = queue.lock_worker(&worker).unwrap().unwrap();
        add(&queue, 1);
        for name in ["last-id", "worker.lock"] {
            let mode = fs::metadata(queue.folder.join(name)).unwrap().mode();
            assert_eq!(mode & 0o007, 0, "{name}");
        }
    }

    #[test]
    fn a_worker_ends_only_when_no_entry_can_start() {
        let (_keep, run) = temp();
        let queue = Queue::of(&run.root);
        let worker = QueueWorker { schema: crate::SCHEMA, node: node("ml-1"), pid: 7 };
        let lock = queue.lock_worker(&worker).unwrap().unwrap();
        assert!(queue.lock_worker(&worker).unwrap().is_none());
        add(&queue, 1);
        let lock = queue.end_worker(lock).unwrap().unwrap();
        assert_eq!(queue.worker(), Some(worker));
        let hold = |entries: &mut Vec<QueueEntry>, _| {
            entries[0].state = QueueState::Held;
            Ok::<_, Error>(())
        };
        queue.change(hold).unwrap();
        assert!(queue.end_worker(lock).unwrap().is_none());
        assert_eq!(queue.worker(), None);
    }
}
