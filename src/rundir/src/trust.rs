//! Which files may start programs with the rights of this user.
//!
//! Recipes, attempts and entries of the queue name programs, and environment variables of programs. In a folder that a group may
//! write, another user can put such files. As OpenSSH does with its files, this program uses them only if they belong to its user or to
//! root, and if not everybody may write them. A group may be able to write files of their owner, because many systems give each
//! user a group and the umask 002; only root, to whom every group is one of other users, refuses these too.

use crate::{Error, ErrorCode, Failure, RunDir};
use camino::{Utf8Path, Utf8PathBuf};
use nix::unistd::{Uid, User, geteuid};
use std::collections::BTreeMap;
use std::fs::{self, Metadata, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::sync::{Mutex, PoisonError};

/// Why a file or folder must not start programs with the rights of this user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mistrust {
    /// It belongs to another user.
    OtherOwner {
        /// The file or folder.
        path: Utf8PathBuf,
        /// Its owner.
        user: String,
    },
    /// Other users can change it.
    Writable {
        /// The file.
        path: Utf8PathBuf,
        /// The permission to remove: `o-w` or `g-w`.
        permission: &'static str,
    },
}

/// The owner and the permissions of a file.
#[derive(Clone, Copy)]
struct Access {
    uid: u32,
    gid: u32,
    mode: u32,
}

impl From<&Metadata> for Access {
    fn from(meta: &Metadata) -> Self {
        Self { uid: meta.uid(), gid: meta.gid(), mode: meta.mode() }
    }
}

/// A fault in the owner or the permissions of a file.
#[derive(Debug, PartialEq, Eq)]
enum Fault {
    OtherOwner,
    Writable(&'static str),
}

/// Returns the first fault of a file that would start programs with the rights of `user`.
fn fault(access: Access, user: u32) -> Option<Fault> {
    let Access { uid, gid, mode } = access;
    let is_file = mode & nix::libc::S_IFMT == nix::libc::S_IFREG;
    match () {
        () if uid != user && uid != 0 => Some(Fault::OtherOwner),
        // A user who replaces a file of the folder is the owner of the new file.
        () if !is_file => None,
        () if mode & 0o002 != 0 => Some(Fault::Writable("o-w")),
        () if user == 0 && gid != 0 && mode & 0o020 != 0 => Some(Fault::Writable("g-w")),
        () => None,
    }
}

/// Returns why a file or folder must not start programs with the rights of this user; `None` if it may.
///
/// # Errors
/// [`Error::File`] if it does not exist or cannot be examined.
pub fn mistrust(path: &Utf8Path) -> Result<Option<Mistrust>, Error> {
    let io = |error| Error::io("read", path, error);
    // A link belongs to the user who chose the file.
    let link = fs::symlink_metadata(path).map_err(io)?;
    let target = fs::metadata(path).map_err(io)?;
    let user = geteuid().as_raw();
    let faults = |user: u32| {
        let of_link = fault(Access::from(&link), user).filter(|fault| *fault == Fault::OtherOwner);
        of_link.map(|fault| (fault, link.uid())).or_else(|| Some((fault(Access::from(&target), user)?, target.uid())))
    };
    let Some((found, owner)) = faults(user) else { return Ok(None) };
    let folder = if target.is_dir() { path } else { folder_of(path) };
    // A file system may give all files of this user another owner (a network file system without root), or the same permissions.
    let found = match (found, Files::in_folder(folder)) {
        (found, None) => Some((found, owner)),
        (Fault::Writable(_), Some(files)) if !files.have_permissions => None,
        (Fault::Writable(permission), Some(_)) => Some((Fault::Writable(permission), owner)),
        (Fault::OtherOwner, Some(files)) => faults(files.uid),
    };
    Ok(found.map(|(fault, owner)| match fault {
        Fault::OtherOwner => Mistrust::OtherOwner { path: path.to_owned(), user: user_name(owner) },
        Fault::Writable(permission) => Mistrust::Writable { path: path.to_owned(), permission },
    }))
}

/// Returns the owner of a file if it is another user than that of this process. Files of root are those of another user, too.
pub(crate) fn other_owner(path: &Utf8Path, owner: u32) -> Option<String> {
    let is_own = owner == geteuid().as_raw() || Files::in_folder(folder_of(path)).is_some_and(|own| own.uid == owner);
    (!is_own).then(|| user_name(owner))
}

/// Returns the name of a user.
pub fn user_name(uid: u32) -> String {
    let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    user.map_or_else(|| format!("user {uid}"), |user| user.name)
}

fn folder_of(path: &Utf8Path) -> &Utf8Path {
    path.parent().filter(|folder| !folder.as_str().is_empty()).unwrap_or(Utf8Path::new("."))
}

/// The files that this process makes in a folder, as their file system shows them.
#[derive(Clone, Copy)]
struct Files {
    uid: u32,
    have_permissions: bool,
}

impl Files {
    /// Makes a file in a folder and removes it, once per folder. Returns `None` if the folder cannot be written.
    fn in_folder(folder: &Utf8Path) -> Option<Self> {
        static KNOWN: Mutex<BTreeMap<Utf8PathBuf, Files>> = Mutex::new(BTreeMap::new());
        let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known().get(folder) {
            return Some(*found);
        }
        let path = folder.join(format!(".owner.{}.tmp", std::process::id()));
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let meta = made.and_then(|file| file.metadata()).ok()?;
        let _ = fs::remove_file(&path);
        let found = Self { uid: meta.uid(), have_permissions: meta.mode() & 0o022 == 0 };
        known().insert(folder.to_owned(), found);
        Some(found)
    }
}

impl Mistrust {
    /// Describes the fault, with the users at its end: `/runs/x belongs to ada`.
    pub fn in_words(&self) -> String {
        match self {
            Self::OtherOwner { path, user } => format!("{path} belongs to {user}"),
            Self::Writable { path, permission: "g-w" } => format!("{path} may be written by its group"),
            Self::Writable { path, .. } => format!("{path} may be written by all users"),
        }
    }
}

impl RunDir {
    /// Refuses a run whose files would start programs of another user with the rights of this user. Every command that continues a
    /// run, or starts a run from the recipe of another one, checks this first.
    ///
    /// * `what` — what fails, for the error.
    ///
    /// # Errors
    /// [`ErrorCode::UntrustedFile`], and those of [`mistrust`].
    pub fn check_trusted(&self, what: &str) -> Result<(), Failure> {
        let newest = self.attempt_numbers()?.last().copied();
        let attempt =
            newest.map(|newest| [self.attempt_dir(newest), self.attempt_toml(newest), self.alert_channels(newest)]);
        for path in [self.root.clone(), self.run_toml()].into_iter().chain(attempt.into_iter().flatten()) {
            let found = match mistrust(&path) {
                Err(error) if error.is_not_found() => continue,
                found => found?,
            };
            let Some(found) = found else { continue };
            let why = format!("{}, who could start programs with your rights", found.in_words());
            let fix = match &found {
                Mistrust::OtherOwner { .. } => {
                    let as_owner = if geteuid().is_root() { "work as that user (sudo -u), or " } else { "" };
                    let weights = format!(
                        "start a run of your own from its weights: vidtui launch RECIPE --init {}",
                        self.name()
                    );
                    format!("{as_owner}{weights}")
                }
                Mistrust::Writable { path, permission } => {
                    format!("check the content of the file, then remove the permission: chmod {permission} {path}")
                }
            };
            return Err(Failure::new(ErrorCode::UntrustedFile, what, why, fix));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{run, temp};
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown};

    fn file(uid: u32, gid: u32, mode: u32) -> Access {
        Access { uid, gid, mode: nix::libc::S_IFREG | mode }
    }

    #[test]
    fn a_file_of_another_user_is_not_trusted_and_one_of_root_is() {
        assert_eq!(fault(file(1000, 1000, 0o600), 1001), Some(Fault::OtherOwner));
        assert_eq!(fault(file(1000, 1000, 0o600), 0), Some(Fault::OtherOwner), "not by root either");
        assert_eq!(fault(file(1000, 1000, 0o644), 1000), None);
        assert_eq!(fault(file(0, 0, 0o644), 1000), None);
    }

    #[test]
    fn a_file_that_every_user_may_write_is_not_trusted() {
        assert_eq!(fault(file(1000, 1000, 0o646), 1000), Some(Fault::Writable("o-w")));
        let folder = Access { mode: nix::libc::S_IFDIR | 0o777, ..file(1000, 1000, 0) };
        assert_eq!(fault(folder, 1000), None, "its files have their own owners");
    }

    #[test]
    fn a_file_that_its_group_may_write_is_trusted_by_its_owner_except_by_root() {
        assert_eq!(fault(file(1000, 1000, 0o664), 1000), None);
        assert_eq!(fault(file(0, 1000, 0o664), 0), Some(Fault::Writable("g-w")));
        assert_eq!(fault(file(0, 0, 0o664), 0), None);
    }

    #[test]
    fn files_that_start_programs_are_written_by_their_owner_only() {
        let (_keep, dir) = temp();
        dir.write_run(&run()).unwrap();
        assert_eq!(fs::metadata(dir.run_toml()).unwrap().mode() & 0o022, 0);
        dir.check_trusted("cannot resume").unwrap();
    }

    #[test]
    fn a_recipe_that_every_user_may_write_is_refused() {
        let (_keep, dir) = temp();
        dir.write_run(&run()).unwrap();
        fs::set_permissions(dir.run_toml(), Permissions::from_mode(0o666)).unwrap();
        let failure = dir.check_trusted("cannot resume").unwrap_err();
        assert_eq!(failure.code, ErrorCode::UntrustedFile);
        assert!(failure.fix.contains("chmod o-w"), "{failure}");
    }

    #[test]
    fn a_run_of_another_user_is_refused_with_the_command_that_starts_an_own_run() {
        if !geteuid().is_root() {
            crate::log!("skipped: only root can give a file to another user");
            return;
        }
        let (_keep, dir) = temp();
        dir.write_run(&run()).unwrap();
        for path in [dir.run_toml(), dir.root.clone()] {
            chown(&path, Some(64_001), None).unwrap();
            let failure = dir.check_trusted("cannot resume").unwrap_err();
            assert_eq!(failure.code, ErrorCode::UntrustedFile);
            assert!(failure.why.contains("belongs to user 64001"), "{failure}");
            assert!(failure.fix.contains(&format!("--init {}", dir.name())), "{failure}");
            chown(&path, Some(0), None).unwrap();
        }
        dir.check_trusted("cannot resume").unwrap();
    }
}
