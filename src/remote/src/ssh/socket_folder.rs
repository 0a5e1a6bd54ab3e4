//! The folder of the sockets of OpenSSH's shared connections. A socket gives access to its connection, so the folder belongs to this
//! user and no other user can access it. Other users can guess the usual name of the folder in `/tmp`. If one of them takes the name
//! first, another folder is used.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};

use camino::{Utf8Path, Utf8PathBuf};

/// The most bytes in the path of a socket (`sun_path`, without the 0 at its end).
const LONGEST_SOCKET: usize = 107;
/// The bytes that `ssh` adds to the path while it makes the socket: a dot and 16 characters.
const SSH_SUFFIX: usize = 17;
/// The length of `%C` in the path, which `ssh` replaces by a hash.
const HASH: usize = 40;

/// A folder that only this user can access.
#[derive(Debug)]
pub struct SocketFolder {
    pub path: Utf8PathBuf,
    /// Whether the folder was made for this client alone, and is removed with it.
    is_temporary: bool,
}

impl SocketFolder {
    /// Makes the folder, or uses the one that an earlier client made.
    ///
    /// * `name` — the name of the sockets in the folder, for its length.
    ///
    /// # Errors
    /// No folder can be used. The error names each with its reason, such as its owner.
    pub fn make(name: &str) -> io::Result<Self> {
        let user = nix::unistd::getuid();
        let runtime = std::env::var("XDG_RUNTIME_DIR").ok().filter(|folder| folder.starts_with('/'));
        let own_name = |base: &str| Utf8PathBuf::from(format!("{base}/vidtui-ssh-{user}"));
        let usual = runtime.as_deref().map(own_name).into_iter().chain([own_name("/tmp")]);
        let of_home = rundir::user_folder("XDG_CACHE_HOME", ".cache").map(|cache| cache.join("vidtui/ssh"));
        Self::first_of(usual.chain(of_home), Utf8Path::new("/tmp"), name, user.as_raw())
    }

    /// Uses the first folder that is private and whose sockets have short paths, or else a new one in `temporary`.
    fn first_of(
        folders: impl Iterator<Item = Utf8PathBuf>,
        temporary: &Utf8Path,
        name: &str,
        user: u32,
    ) -> io::Result<Self> {
        let mut reasons = Vec::new();
        for path in folders.filter(|path| is_short(path, name)) {
            match private(&path, user) {
                Ok(()) => return Ok(Self { path, is_temporary: false }),
                Err(why) => reasons.push(why),
            }
        }
        // Other users cannot guess a random name.
        let made = nix::unistd::mkdtemp(temporary.join("vidtui-ssh-XXXXXX").as_std_path());
        let made = made.map_err(io::Error::from).and_then(|path| Utf8PathBuf::try_from(path).map_err(io::Error::other));
        made.map(|path| Self { path, is_temporary: true }).map_err(|error| {
            reasons.push(format!("a folder cannot be made in {temporary}: {error}"));
            io::Error::other(format!(
                "there is no private folder for the sockets of ssh: {}; set XDG_RUNTIME_DIR to a folder of yours (mode 700)",
                reasons.join("; ")
            ))
        })
    }
}

impl Drop for SocketFolder {
    fn drop(&mut self) {
        if self.is_temporary {
            // This fails while a socket is in use.
            let _ = fs::remove_dir(&self.path);
        }
    }
}

/// Returns whether the path of a socket in a folder is short enough.
fn is_short(folder: &Utf8Path, name: &str) -> bool {
    folder.as_str().len() + 1 + name.replace("%C", "").len() + HASH + SSH_SUFFIX <= LONGEST_SOCKET
}

/// Makes a folder unless it exists, and checks that only `user` can access it. An error is the reason why not.
fn private(path: &Utf8Path, user: u32) -> Result<(), String> {
    let made = DirBuilder::new().mode(0o700).create(path).or_else(|error| match error.kind() {
        // The folder of the cache.
        io::ErrorKind::NotFound => DirBuilder::new().mode(0o700).recursive(true).create(path),
        io::ErrorKind::AlreadyExists => Ok(()),
        _ => Err(error),
    });
    let found = made.and_then(|()| fs::symlink_metadata(path)).map_err(|error| format!("{path}: {error}"))?;
    match found {
        _ if found.uid() != user => Err(format!("{path} belongs to {}", rundir::user_name(found.uid()))),
        _ if !found.is_dir() => Err(format!("{path} is not a folder")),
        _ if found.mode() & 0o077 != 0 => Err(format!("{path} is accessible to other users (chmod 700 {path})")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const NAME: &str = "2f1a3-0-%C";

    fn first_of(folders: &[&Utf8Path], temporary: &Utf8Path) -> io::Result<SocketFolder> {
        let user = nix::unistd::getuid().as_raw();
        SocketFolder::first_of(folders.iter().map(|path| (*path).to_owned()), temporary, NAME, user)
    }

    fn temp() -> (tempfile::TempDir, Utf8PathBuf) {
        let keep = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(keep.path().to_owned()).unwrap();
        (keep, path)
    }

    #[test]
    fn a_folder_that_other_users_can_access_is_passed_over() {
        let (_keep, root) = temp();
        let (taken, own) = (root.join("taken"), root.join("deep/own"));
        fs::create_dir(&taken).unwrap();
        fs::set_permissions(&taken, fs::Permissions::from_mode(0o755)).unwrap();
        let found = first_of(&[&taken, &own], &root).unwrap();
        assert_eq!(found.path, own);
        assert_eq!(fs::metadata(&own).unwrap().mode() & 0o777, 0o700);
        drop(found);
        assert!(own.exists(), "later clients use it");
    }

    #[test]
    fn a_link_or_a_file_in_the_usual_place_is_passed_over() {
        let (_keep, root) = temp();
        let (link, file) = (root.join("link"), root.join("file"));
        fs::create_dir(root.join("theirs")).unwrap();
        std::os::unix::fs::symlink(root.join("theirs"), &link).unwrap();
        fs::write(&file, "").unwrap();
        let found = first_of(&[&link, &file], &root).unwrap();
        assert!(found.is_temporary, "{found:?}");
    }

    #[test]
    fn without_another_folder_a_new_one_is_made_and_removed_with_its_client() {
        let (_keep, root) = temp();
        let long = root.join("x".repeat(80));
        let found = first_of(&[&long], &root).unwrap();
        let path = found.path.clone();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        drop(found);
        assert!(!path.exists() && !long.exists());
    }

    #[test]
    fn the_error_names_every_folder_with_its_owner() {
        let (_keep, root) = temp();
        let taken = root.join("taken");
        fs::create_dir(&taken).unwrap();
        let other = nix::unistd::getuid().as_raw() + 1;
        let folders = [taken.clone()].into_iter();
        let error = SocketFolder::first_of(folders, &root.join("missing"), NAME, other).unwrap_err().to_string();
        let owner = rundir::user_name(other - 1);
        assert!(error.contains(&format!("{taken} belongs to {owner}")) && error.contains("missing"), "{error}");
    }
}
