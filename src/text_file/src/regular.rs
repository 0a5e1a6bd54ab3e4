//! Opens regular files only. Reading a pipe, a socket or a device in place of a file of a data set, model or run could block for ever.

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2};
use nix::unistd::Uid;
use std::fs::{self, File, FileType, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The folders of the open files of this process. A shell passes such a path for `<(COMMAND)`, and that pipe can be read.
const OWN_FILES: [&str; 3] = ["/dev/fd", "/dev/stdin", "/proc/self/fd"];

/// Opens a regular file, or a link to one, for reading. Never blocks.
///
/// A link that another user made opens only files that this other user owns or that everybody may read. Otherwise, the author of a data
/// set could link a caption to a private file of the user who encodes the data set.
///
/// # Errors
/// The file cannot be opened, or it is a folder, pipe, socket or device; or a link of another user leads to a private file.
pub fn open_regular(path: impl AsRef<Path>) -> io::Result<File> {
    let path = path.as_ref();
    // Opening a device can have an effect, so look first.
    check(fs::metadata(path)?.file_type())?;
    // Another process may have replaced the file since then.
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let without_links = OpenHow::new().flags(flags).resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
    let has_link = match openat2(AT_FDCWD, path, without_links) {
        Ok(file) => {
            let file = File::from(file);
            check(file.metadata()?.file_type())?;
            return Ok(file);
        }
        Err(Errno::ELOOP) => true,
        // A kernel before Linux 5.6, or a container that forbids the call.
        Err(Errno::ENOSYS | Errno::EPERM) => false,
        Err(error) => return Err(error.into()),
    };
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    check(file.metadata()?.file_type())?;
    check_links(path, &file, has_link)?;
    Ok(file)
}

/// Checks the links of a path to an open file. With `has_link`, the path had one when the file was opened.
fn check_links(path: &Path, file: &File, has_link: bool) -> io::Result<()> {
    let mut links = Vec::new();
    links_of(path, &mut links);
    let refuse = |why: String| Err(io::Error::new(ErrorKind::PermissionDenied, why));
    if has_link && links.is_empty() {
        return refuse("it was replaced while it was opened".into());
    }
    let (this_user, owner) = (Uid::effective().as_raw(), file.metadata()?.uid());
    let foreign = links.into_iter().find(|(_, of)| ![this_user, 0, owner].contains(of));
    match foreign.filter(|_| !is_public(file)) {
        Some((place, of)) => {
            refuse(format!("{} is a link of user {of} to a private file of user {owner}", place.display()))
        }
        None => Ok(()),
    }
}

/// Adds the links of a path, and those of their targets, each with its owner.
fn links_of(path: &Path, links: &mut Vec<(PathBuf, u32)>) {
    for place in path.ancestors() {
        // As many as the kernel follows.
        if links.len() >= 40 {
            return;
        }
        let Some(about) = fs::symlink_metadata(place).ok().filter(fs::Metadata::is_symlink) else { continue };
        links.push((place.to_owned(), about.uid()));
        if let Ok(target) = fs::read_link(place) {
            links_of(&place.parent().unwrap_or(Path::new("")).join(target), links);
        }
    }
}

/// Returns whether the permissions of a file and of its folders let everybody read it.
fn is_public(file: &File) -> bool {
    let allows = |path: &Path, bits: u32| fs::metadata(path).is_ok_and(|about| about.mode() & bits != 0);
    let real = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    file.metadata().is_ok_and(|about| about.mode() & 0o004 != 0)
        && real.is_ok_and(|path| path.ancestors().skip(1).all(|folder| allows(folder, 0o001)))
}

/// Reads a regular file of at most `max` bytes.
///
/// # Errors
/// As [`open_regular`]; or the file is larger, and is not read.
pub fn read_regular(path: impl AsRef<Path>, max: u64) -> io::Result<Vec<u8>> {
    read_at_most(open_regular(path)?, max)
}

/// Reads a file that the user names, as [`read_regular`] does. The file may also be the pipe of `<(COMMAND)` or the standard input.
///
/// # Errors
/// As [`read_regular`].
pub fn read_named(path: impl AsRef<Path>, max: u64) -> io::Result<Vec<u8>> {
    let is_own = OWN_FILES.iter().any(|own| path.as_ref().starts_with(own));
    read_at_most(if is_own { File::open(path)? } else { open_regular(path)? }, max)
}

fn read_at_most(file: File, max: u64) -> io::Result<Vec<u8>> {
    let size = file.metadata()?.len();
    let too_large =
        || io::Error::new(ErrorKind::InvalidData, format!("it has more than {max} bytes, which is the limit"));
    if size > max {
        return Err(too_large());
    }
    let mut bytes = Vec::with_capacity(usize::try_from(size).map_err(|_| too_large())?);
    // The file may grow while it is read.
    file.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max { Err(too_large()) } else { Ok(bytes) }
}

fn check(kind: FileType) -> io::Result<()> {
    let name = match kind {
        kind if kind.is_file() => return Ok(()),
        // The error of the system, which reading a folder as a file returns.
        kind if kind.is_dir() => return Err(Errno::EISDIR.into()),
        kind if kind.is_fifo() => "a pipe",
        kind if kind.is_socket() => "a socket",
        _ => "a device",
    };
    Err(io::Error::new(ErrorKind::InvalidInput, format!("it is {name}, not a regular file")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    fn why<T>(result: io::Result<T>) -> String {
        result.err().map(|error| error.to_string()).unwrap()
    }

    #[test]
    fn pipes_sockets_devices_folders_and_links_to_them_are_refused_without_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        mkfifo(&at("pipe"), Mode::S_IRWXU).unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        symlink(at("pipe"), at("link")).unwrap();
        symlink("/dev/zero", at("zero")).unwrap();
        for (name, kind) in [("pipe", "a pipe"), ("socket", "a socket"), ("link", "a pipe"), ("zero", "a device")] {
            for refused in [why(open_regular(at(name))), why(read_regular(at(name), 9)), why(read_named(at(name), 9))] {
                assert!(refused.contains(kind), "{name}: {refused}");
            }
        }
        assert_eq!(open_regular(folder.path()).unwrap_err().kind(), ErrorKind::IsADirectory);
        assert_eq!(open_regular(at("none")).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_file_and_a_link_to_it_are_read_up_to_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("a"), folder.path().join("b"));
        fs::write(&file, "12345").unwrap();
        symlink(&file, &link).unwrap();
        assert_eq!(read_regular(&link, 5).unwrap(), b"12345");
        assert!(why(read_regular(&link, 4)).contains("more than 4 bytes"));
        // Its size is 0, and it has content.
        assert!(!read_regular("/proc/self/status", 1 << 20).unwrap().is_empty());
        assert!(why(read_regular("/proc/self/status", 4)).contains("more than 4 bytes"));
    }

    #[test]
    fn a_link_of_another_user_opens_only_what_that_user_owns_or_everybody_may_read() {
        use std::os::unix::fs::{PermissionsExt, chown, lchown};
        if !Uid::effective().is_root() {
            println!("skipped: only root can make links of another user");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        mode(folder.path(), 0o755);
        fs::create_dir(at("home")).unwrap();
        for name in ["mine", "theirs", "home/notes"] {
            fs::write(at(name), name).unwrap();
            let link = at(&format!("to-{}", name.trim_start_matches("home/")));
            symlink(at(name), &link).unwrap();
            lchown(&link, Some(1042), None).unwrap();
        }
        symlink(at("home"), at("folder")).unwrap();
        lchown(at("folder"), Some(1042), None).unwrap();
        let opens = |name: &str| open_regular(at(name)).map(drop).map_err(|error| error.kind());
        mode(&at("mine"), 0o600);
        assert_eq!((opens("mine"), opens("to-mine")), (Ok(()), Err(ErrorKind::PermissionDenied)));
        mode(&at("mine"), 0o644);
        assert_eq!(opens("to-mine"), Ok(()));
        // A file that everybody may read, in a private folder, by a link to it or to its folder.
        mode(&at("home"), 0o700);
        let refused = Err(ErrorKind::PermissionDenied);
        assert_eq!((opens("home/notes"), opens("to-notes"), opens("folder/notes")), (Ok(()), refused, refused));
        mode(&at("theirs"), 0o600);
        chown(at("theirs"), Some(1042), None).unwrap();
        assert_eq!(opens("to-theirs"), Ok(()));
        // A link of this user to a link of the other one.
        symlink(at("to-notes"), at("own")).unwrap();
        assert_eq!(opens("own"), refused);
        lchown(at("to-notes"), Some(0), None).unwrap();
        assert_eq!((opens("to-notes"), opens("own")), (Ok(()), Ok(())));
    }

    #[test]
    fn a_pipe_that_a_shell_passes_by_its_number_is_read() {
        use std::io::Write;
        use std::os::fd::AsRawFd;
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"a prompt").unwrap();
        drop(writer);
        let path = format!("/dev/fd/{}", reader.as_raw_fd());
        assert_eq!(read_named(path, 100).unwrap(), b"a prompt");
    }
}
