//! Small whole files: written atomically, read with their version checked first.

use crate::{Error, SCHEMA};
use camino::Utf8Path;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};

/// A TOML file that carries the version of its writer.
pub trait Versioned: DeserializeOwned + Serialize {
    /// The key that holds the version.
    const KEY: &'static str = "schema";

    /// The version in this value.
    fn version(&self) -> u32;
}

/// Reads a TOML file whose version this build knows. Unknown fields are ignored: a newer writer may add some.
///
/// # Errors
/// [`Error::Io`], [`Error::Newer`], or [`Error::Malformed`] with line and reason.
pub fn read_toml<T: Versioned>(path: &Utf8Path) -> Result<T, Error> {
    parse_toml(path, &read_text(path)?)
}

pub(crate) fn read_text(path: &Utf8Path) -> Result<String, Error> {
    let bytes = fs::read(path).map_err(|e| Error::io("read", path, e))?;
    String::from_utf8(bytes).map_err(|e| Error::malformed(path, format!("not UTF-8: {}", e.utf8_error())))
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
    // A newer format may well not fit our type; then "newer" is the reason worth saying.
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

/// Writes a value as TOML, atomically.
///
/// # Errors
/// [`Error::Io`], or [`Error::Malformed`] when the value has no TOML form.
pub fn write_toml<T: Serialize>(path: &Utf8Path, value: &T) -> Result<(), Error> {
    write_atomic(path, toml_text(path, value)?.as_bytes())
}

/// The text of a value that is to be written to `path`.
pub(crate) fn toml_text<T: Serialize>(path: &Utf8Path, value: &T) -> Result<String, Error> {
    toml::to_string(value).map_err(|e| Error::malformed(path, format!("the value has no TOML form: {e}")))
}

/// Writes a whole file so that a reader, or a reader after a crash, sees the old content or the new, never a part.
///
/// A temporary file in the same folder is written, synced and renamed over `path`; then the folder is synced.
///
/// # Errors
/// [`Error::Io`]; the temporary file is removed.
pub fn write_atomic(path: &Utf8Path, bytes: &[u8]) -> Result<(), Error> {
    static UNIQUE: AtomicU32 = AtomicU32::new(0);
    let dir = path.parent().filter(|p| !p.as_str().is_empty()).unwrap_or(Utf8Path::new("."));
    let name = path.file_name().unwrap_or("file");
    let temp = dir.join(format!(".{name}.{}-{}.tmp", std::process::id(), UNIQUE.fetch_add(1, Ordering::Relaxed)));
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).open(&temp)?;
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

/// Takes a missing file for none.
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
    use crate::{Attempt, Failure};

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
    fn a_newer_schema_is_refused_with_both_versions() {
        let newer = text().replace("schema = 1", "schema = 2");
        let failure = Failure::from(read(&newer).unwrap_err());
        assert_eq!(failure.why, "written by a newer vidtui (schema 2; this one reads 1)");
        assert_eq!(failure.fix, "upgrade vidtui on this machine");
    }

    #[test]
    fn a_newer_schema_that_no_longer_fits_is_refused_for_being_newer() {
        assert!(matches!(read("schema = 7\nnumber = \"three\"\n"), Err(Error::Newer { found: 7, .. })));
    }

    #[test]
    fn a_wrong_value_is_named_with_its_line() {
        let wrong = text().replace("number = 1", "number = \"one\"");
        let Err(Error::Malformed { why, .. }) = read(&wrong) else { panic!("it was read") };
        assert!(why.starts_with("line 2: "), "{why}");
        assert!(matches!(read(""), Err(Error::Malformed { .. })));
        assert!(matches!(read("\0\u{7f}["), Err(Error::Malformed { .. })));
    }

    #[test]
    fn a_file_is_replaced_whole_and_nothing_else_is_left() {
        let (_keep, run) = temp();
        let path = run.root.join("a.toml");
        write_atomic(&path, b"old").unwrap();
        write_atomic(&path, b"new and longer").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new and longer");
        assert_eq!(fs::read_dir(&run.root).unwrap().count(), 1);
    }

    #[test]
    fn writing_where_nothing_can_be_written_names_the_path_and_leaves_nothing() {
        let (_keep, run) = temp();
        let missing = run.root.join("no/such/a.toml");
        let failure = Failure::from(write_atomic(&missing, b"x").unwrap_err());
        assert_eq!(failure.what, format!("cannot write {missing}"));
        // A folder in the way: the rename fails after the temporary file was written.
        let blocked = run.root.join("folder");
        fs::create_dir_all(blocked.join("full")).unwrap();
        assert!(write_atomic(&blocked, b"x").is_err());
        assert_eq!(fs::read_dir(&run.root).unwrap().count(), 1);
    }

    #[test]
    fn bytes_that_are_not_text_are_refused() {
        let (_keep, run) = temp();
        fs::write(run.root.join("a.toml"), [0xff, 0xfe, 0x00]).unwrap();
        let error = read_toml::<Attempt>(&run.root.join("a.toml")).unwrap_err();
        assert!(error.to_string().contains("not UTF-8"), "{error}");
    }
}
