//! Reads and writes small files. Writes are atomic, and a file of a newer version is refused.

use crate::{Error, SCHEMA};
use camino::{Utf8Path, Utf8PathBuf};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::sync::atomic::{AtomicU32, Ordering};
use text_file::{MAX_TEXT, read_regular};

/// A TOML file that carries the version of its writer.
pub trait Versioned: DeserializeOwned + Serialize {
    /// The key that holds the version.
    const KEY: &'static str = "schema";

    /// The version in this value.
    fn version(&self) -> u32;
}

/// Reads a TOML file of a known version. Unknown fields are ignored, because a newer version may add some.
///
/// # Errors
/// [`Error::File`], [`Error::Newer`], or [`Error::Malformed`] with line and reason.
pub fn read_toml<T: Versioned>(path: &Utf8Path) -> Result<T, Error> {
    parse_toml(path, &read_run_text(path)?)
}

/// Reads a text file of a run, as [`read_text`], but only a regular file: a named pipe in the folder of another user would stop the
/// reader.
pub(crate) fn read_run_text(path: &Utf8Path) -> Result<String, Error> {
    let bytes = read_regular(path, MAX_TEXT).map_err(|e| Error::io("read", path, e))?;
    text_file::decode(bytes).map_err(|why| Error::not_text(path, why))
}

/// Makes an open of the last part of a path fail if it is a symbolic link, and not wait if it is a named pipe.
pub fn without_links(options: &mut OpenOptions) -> &mut OpenOptions {
    options.custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK)
}

pub(crate) fn parse_toml<T: Versioned>(path: &Utf8Path, text: &str) -> Result<T, Error> {
    #[derive(serde::Deserialize)]
    struct Head {
        schema: Option<u64>,
        format: Option<u64>,
    }
    let newer = |found| Err(Error::Newer { path: path.to_owned(), key: T::KEY, found, known: SCHEMA });
    let error = match toml::from_str::<T>(text) {
        Ok(value) if value.version() > SCHEMA => return newer(u64::from(value.version())),
        Ok(value) => return Ok(value),
        Err(error) => error,
    };
    // A newer format may not parse as `T`. The newer version then explains the failure better than the parse error.
    if let Ok(head) = toml::from_str::<Head>(text)
        && let Some(found) = if T::KEY == "format" { head.format } else { head.schema }
        && found > u64::from(SCHEMA)
    {
        return newer(found);
    }
    Err(Error::malformed(path, format!("{}{}", line_of(text, &error), error.message())))
}

fn line_of(text: &str, error: &toml::de::Error) -> String {
    let line = |span: std::ops::Range<usize>| text.get(..span.start).map(|t| t.matches('\n').count() + 1);
    error.span().and_then(line).map_or(String::new(), |n| format!("line {n}: "))
}

/// Returns a folder of this user: the value of an XDG variable, or `default` in the home folder. Returns `None` if
/// neither is an absolute path.
pub fn user_folder(variable: &str, default: &str) -> Option<Utf8PathBuf> {
    let absolute = |name: &str| Some(Utf8PathBuf::from(std::env::var(name).ok()?)).filter(|path| path.is_absolute());
    absolute(variable).or_else(|| Some(absolute("HOME")?.join(default)))
}

/// Writes a value as TOML, atomically.
///
/// # Errors
/// [`Error::File`], or [`Error::Malformed`] when the value has no TOML form.
pub fn write_toml<T: Serialize>(path: &Utf8Path, value: &T) -> Result<(), Error> {
    write_atomic(path, toml_text(path, value)?.as_bytes())
}

/// Formats a value as TOML. An error names `path`.
pub(crate) fn toml_text<T: Serialize>(path: &Utf8Path, value: &T) -> Result<String, Error> {
    toml::to_string(value).map_err(|e| Error::malformed(path, format!("the value has no TOML form: {e}")))
}

/// Writes a file so that readers see either the whole old content or the whole new content, even after a crash.
///
/// It writes and syncs a temporary file in the same folder, renames it over `path`, and syncs the folder. Only the owner may
/// write the file, whatever the umask is: recipes, attempts and entries of the queue name programs that are started with the
/// rights of the owner (see [`crate::Mistrust`]).
///
/// # Errors
/// [`Error::File`]; the temporary file is removed.
pub fn write_atomic(path: &Utf8Path, bytes: &[u8]) -> Result<(), Error> {
    static UNIQUE: AtomicU32 = AtomicU32::new(0);
    let dir = path.parent().filter(|p| !p.as_str().is_empty()).unwrap_or(Utf8Path::new("."));
    let name = path.file_name().unwrap_or("file");
    let temp = dir.join(format!(".{name}.{}-{}.tmp", std::process::id(), UNIQUE.fetch_add(1, Ordering::Relaxed)));
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&temp)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temp, path)?;
        File::open(dir)?.sync_all()
    };
    write().map_err(|source| {
        let _ = fs::remove_file(&temp);
        Error::io("write", path, source)
    })
}

/// Writes a new file that only its owner can access.
///
/// # Errors
/// [`Error::File`] if the file exists already or cannot be written.
pub fn write_private(path: &Utf8Path, bytes: &[u8]) -> Result<(), Error> {
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(|error| Error::io("write", path, error))
}

/// Returns whether a name that an index or a manifest lists is that of a file in its own folder: without a path, and not hidden.
pub fn is_file_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(['/', '\\', '\0']) && !name.starts_with('.')
}

/// Returns whether other users can access a file, as on a file system without permissions.
pub fn is_exposed(path: &Utf8Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.permissions().mode() & 0o077 != 0)
}

/// Turns the error of a missing file into `None`.
pub(crate) fn present<T>(read: Result<T, Error>) -> Result<Option<T>, Error> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(e) if e.is_not_found() => Ok(None),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{attempt, temp};
    use crate::{Attempt, ErrorCode, Failure, FileError, read_text};

    fn text() -> String {
        toml::to_string(&attempt(1, 0, &["ml-1"])).unwrap()
    }

    fn read(text: &str) -> Result<Attempt, Error> {
        parse_toml("run/attempt.toml".into(), text)
    }

    #[test]
    fn unknown_fields_of_a_newer_writer_are_ignored() {
        let newer = text().replace("number = 1", "number = 1\nmood = \"good\"");
        assert_eq!(read(&newer).unwrap(), attempt(1, 0, &["ml-1"]));
    }

    #[test]
    fn a_newer_schema_is_refused() {
        let newer = text().replace("schema = 1", "schema = 2");
        let error = read(&newer).unwrap_err();
        assert!(matches!(error, Error::Newer { key: "schema", found: 2, known: 1, .. }), "{error}");
        assert_eq!(Failure::from(error).code, ErrorCode::NewerFormat);
    }

    #[test]
    fn a_newer_schema_that_does_not_parse_is_refused_as_newer() {
        assert!(matches!(read("schema = 7\nnumber = \"three\"\n"), Err(Error::Newer { found: 7, .. })));
    }

    #[test]
    fn a_wrong_value_is_reported_with_its_line() {
        let wrong = text().replace("number = 1", "number = \"one\"");
        let Err(Error::Malformed { why, .. }) = read(&wrong) else { panic!("it was read") };
        assert!(why.starts_with("line 2: "), "{why}");
        assert!(matches!(read(""), Err(Error::Malformed { .. })));
        assert!(matches!(read("\0\u{7f}["), Err(Error::Malformed { .. })));
    }

    #[test]
    fn a_file_is_replaced_and_no_temporary_file_is_left() {
        let (_keep, run) = temp();
        let path = run.root.join("a.toml");
        write_atomic(&path, b"old").unwrap();
        write_atomic(&path, b"new and longer").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new and longer");
        assert_eq!(fs::read_dir(&run.root).unwrap().count(), 1);
    }

    #[test]
    fn a_failed_write_names_the_path_and_leaves_no_temporary_file() {
        let (_keep, run) = temp();
        let missing = run.root.join("no/such/a.toml");
        let error = write_atomic(&missing, b"x").unwrap_err();
        assert!(
            matches!(&error, Error::File(FileError::Io { action: "write", path, .. }) if *path == missing),
            "{error}"
        );
        // The destination is a folder: the rename fails after the temporary file was written.
        let blocked = run.root.join("folder");
        fs::create_dir_all(blocked.join("full")).unwrap();
        assert!(write_atomic(&blocked, b"x").is_err());
        assert_eq!(fs::read_dir(&run.root).unwrap().count(), 1);
    }

    #[test]
    fn a_name_with_a_path_is_not_that_of_a_file_in_the_folder() {
        assert!(is_file_name("model-1.safetensors") && is_file_name("a..b"));
        for name in ["", ".", "..", "../a", "/a", "a/b", "a\\b", ".hidden", "a\0"] {
            assert!(!is_file_name(name), "{name:?}");
        }
    }

    #[test]
    fn a_pipe_is_not_read_as_text_and_a_huge_file_is_refused() {
        let (_keep, run) = temp();
        let at = |name: &str| run.root.join(name);
        assert!(std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
        File::create(at("huge")).unwrap().set_len(1 << 40).unwrap();
        for name in ["pipe", "huge"] {
            let failure = Failure::from(read_text(&at(name)).unwrap_err());
            assert_eq!(failure.code, ErrorCode::Io);
            assert!(failure.what.contains(name), "{failure}");
        }
    }

    #[test]
    fn a_named_pipe_is_no_file_of_a_run() {
        let (_keep, run) = temp();
        let path = run.root.join("a.toml");
        nix::unistd::mkfifo(path.as_std_path(), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(matches!(read_toml::<Attempt>(&path), Err(Error::File(FileError::Io { action: "read", .. }))));
    }

    #[test]
    fn a_file_that_is_not_utf_8_is_refused() {
        let (_keep, run) = temp();
        fs::write(run.root.join("a.toml"), b"schema = 1 # caf\xe9\n").unwrap();
        let error = read_toml::<Attempt>(&run.root.join("a.toml")).unwrap_err();
        assert!(matches!(error, Error::File(FileError::NotText { .. })), "{error}");
        let failure = Failure::from(error);
        assert_eq!(failure.code, ErrorCode::Malformed);
        assert!(failure.fix.contains("iconv -f LATIN1"), "{failure}");
    }
}
