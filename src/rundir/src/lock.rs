//! Locks of files (flock), which the operating system releases when their process ends.
//!
//! A process can lock every file that it can open, also one that it may only read. A lock file can therefore be opened only by the
//! users who need it: otherwise a reader could stop the programs that wait for the lock.

use crate::trust::user_name;
use crate::{Error, files};
use camino::Utf8Path;
use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::thread;
use std::time::{Duration, Instant};

/// How long a program waits for a lock.
const PATIENCE: Duration = Duration::from_secs(10);
/// The interval between tries to take a lock.
const POLL: Duration = Duration::from_millis(20);

/// The process that holds a lock on a file of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockHolder {
    /// The process id.
    pub pid: i32,
    /// The name of its program, if it is known.
    pub program: Option<String>,
    /// The user id of the process, if it is known.
    pub uid: Option<u32>,
}

impl LockHolder {
    /// Describes the process: `process 4242 (flock) of eve`.
    pub fn in_words(&self) -> String {
        let program = self.program.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
        let user = self.uid.map(|uid| format!(" of {}", user_name(uid))).unwrap_or_default();
        format!("process {}{program}{user}", self.pid)
    }
}

/// The users who take a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockUsers {
    /// The owner of the file: it is the lock of a program.
    Owner,
    /// All users who may write the folder: it protects files that they share.
    Writers,
}

/// Opens a lock file, which is made if it does not exist. Permissions that are wider, as in files of earlier versions, are
/// reduced if the file belongs to this user.
pub(crate) fn open_lock(path: &Utf8Path, users: LockUsers) -> io::Result<File> {
    let folder = path.parent().filter(|folder| !folder.as_str().is_empty()).unwrap_or(Utf8Path::new("."));
    let folder = fs::metadata(folder)?;
    let may_write =
        |bit: u32, mode: u32| if users == LockUsers::Writers && folder.mode() & bit != 0 { mode } else { 0 };
    let mode = 0o600 | may_write(0o020, 0o060) | may_write(0o002, 0o006);
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).read(true).write(true).mode(mode);
    let file = files::without_links(&mut options).open(path)?;
    let found = file.metadata()?;
    if found.uid() == nix::unistd::geteuid().as_raw() {
        // These fail on file systems without permissions, where a lock works all the same.
        if mode & 0o060 != 0 && found.gid() != folder.gid() {
            let _ = fchown(&file, None, Some(folder.gid()));
        }
        if found.mode() & 0o777 != mode {
            let _ = file.set_permissions(Permissions::from_mode(mode));
        }
    }
    Ok(file)
}

/// Takes the lock of an open file. Waits for some seconds while another process has it.
///
/// # Errors
/// [`Error::Locked`] with the process that has the lock, or [`Error::File`].
pub(crate) fn lock(file: &File, path: &Utf8Path) -> Result<(), Error> {
    lock_within(file, path, PATIENCE)
}

fn lock_within(file: &File, path: &Utf8Path, patience: Duration) -> Result<(), Error> {
    let begin = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(source)) => return Err(Error::io("lock", path, source)),
            Err(TryLockError::WouldBlock) if begin.elapsed() >= patience => return Err(locked(path)),
            Err(TryLockError::WouldBlock) => thread::sleep(POLL),
        }
    }
}

/// Makes the error of a file whose lock another process has.
pub(crate) fn locked(path: &Utf8Path) -> Error {
    let unknown = || "a process that is not known, perhaps on another machine,".to_owned();
    let holder = lock_holder(path).map_or_else(unknown, |holder| holder.in_words());
    Error::Locked { path: path.to_owned(), holder }
}

/// Returns the process of this machine that holds a lock on a file or folder. This needs no right to open the file.
pub fn lock_holder(path: &Utf8Path) -> Option<LockHolder> {
    let file = fs::metadata(path).ok()?;
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let pid = holder_among(&locks, file.dev(), file.ino())?;
    let program = fs::read_to_string(format!("/proc/{pid}/comm")).ok().map(|name| name.trim().to_owned());
    let uid = fs::metadata(format!("/proc/{pid}")).ok().map(|process| process.uid());
    Some(LockHolder { pid, program, uid })
}

/// Finds the process that holds a lock on a file in the text of `/proc/locks`, such as
/// `1: FLOCK  ADVISORY  WRITE 4242 fe:01:131072 0 EOF`. A line with `->` is a process that waits.
fn holder_among(locks: &str, device: u64, inode: u64) -> Option<i32> {
    let mut other_device = None;
    for line in locks.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK" | "POSIX" | "OFDLCK", _, _, pid, place, ..] = words[..] else { continue };
        let (Ok(pid), [major, minor, found]) = (pid.parse(), &place.split(':').collect::<Vec<_>>()[..]) else {
            continue;
        };
        if found.parse() != Ok(inode) {
            continue;
        }
        let number = |hex: &str| u64::from_str_radix(hex, 16).ok();
        if number(major).zip(number(minor)) == Some((nix::sys::stat::major(device), nix::sys::stat::minor(device))) {
            return Some(pid);
        }
        // On some file systems, such as btrfs, the device of a file is not that of its locks.
        other_device = Some(pid);
    }
    other_device
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::temp;
    use crate::{ErrorCode, Failure};

    fn mode(path: &Utf8Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn only_users_who_may_write_the_folder_can_open_its_lock_and_only_the_owner_that_of_a_program() {
        let (_keep, run) = temp();
        for (folder, lock) in [(0o755, 0o600), (0o700, 0o600), (0o2775, 0o660), (0o777, 0o666)] {
            fs::set_permissions(&run.root, Permissions::from_mode(folder)).unwrap();
            let path = run.root.join(format!("{folder:o}.lock"));
            open_lock(&path, LockUsers::Writers).unwrap();
            assert_eq!(mode(&path), lock, "{folder:o}");
            open_lock(&path, LockUsers::Owner).unwrap();
            assert_eq!(mode(&path), 0o600, "{folder:o}");
        }
    }

    #[test]
    fn a_lock_file_that_readers_can_open_is_closed_to_them() {
        let (_keep, run) = temp();
        fs::set_permissions(&run.root, Permissions::from_mode(0o755)).unwrap();
        let path = run.root.join("old.lock");
        fs::write(&path, "7\n").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        open_lock(&path, LockUsers::Owner).unwrap();
        assert_eq!((mode(&path), fs::read_to_string(&path).unwrap().as_str()), (0o600, "7\n"));
    }

    #[test]
    fn a_link_is_not_a_lock_file() {
        let (_keep, run) = temp();
        let path = run.root.join("a.lock");
        std::os::unix::fs::symlink(run.root.join("elsewhere"), &path).unwrap();
        assert!(open_lock(&path, LockUsers::Owner).is_err());
        assert!(!run.root.join("elsewhere").exists());
    }

    #[test]
    fn a_lock_that_is_held_ends_the_wait_with_an_error_that_names_the_process() {
        let (_keep, run) = temp();
        let path = run.root.join("a.lock");
        let held = open_lock(&path, LockUsers::Owner).unwrap();
        held.lock().unwrap();
        let error = lock_within(&open_lock(&path, LockUsers::Owner).unwrap(), &path, Duration::ZERO).unwrap_err();
        let failure = Failure::from(error);
        assert_eq!(failure.code, ErrorCode::Locked);
        // Locks of some file systems are not in /proc/locks.
        if let Some(holder) = lock_holder(&path) {
            assert_eq!(holder.pid, std::process::id() as i32);
            assert!(failure.why.contains(&format!("process {}", holder.pid)), "{failure}");
        }
        drop(held);
        lock_within(&open_lock(&path, LockUsers::Owner).unwrap(), &path, Duration::ZERO).unwrap();
    }

    #[test]
    fn the_holder_of_a_lock_is_found_and_not_a_process_that_waits_for_it() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 fe:01:77 0 EOF\n\
            2: FLOCK  ADVISORY  WRITE 4242 fe:01:131072 0 EOF\n\
            2: -> FLOCK  ADVISORY  WRITE 99 fe:01:131072 0 EOF\n\
            3: FLOCK  ADVISORY  READ 12 00:2d:500 0 EOF\n\
            nonsense\n";
        let device = nix::sys::stat::makedev(0xfe, 1);
        assert_eq!(holder_among(locks, device, 131_072), Some(4242));
        assert_eq!(holder_among(locks, device, 500), Some(12), "the device differs on btrfs");
        assert_eq!(holder_among(locks, device, 501), None);
    }
}
