//! Resolves the paths of videos that tables and lists name.

use crate::ExclusionReason;
use camino::{Utf8Component, Utf8Path, Utf8PathBuf};
use unicode_normalization::UnicodeNormalization;

/// The path of a video that a source names.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Located {
    /// The path below the root, or the absolute path.
    pub name: String,
    /// The absolute path.
    pub path: Utf8PathBuf,
    /// Why the path cannot be used, if it cannot.
    pub excluded: Option<ExclusionReason>,
}

impl Located {
    /// Makes the place of a path that is not UTF-8; `shown` has replacement characters.
    pub(super) fn not_utf8(root: &Utf8Path, shown: String) -> Self {
        Self { path: root.join(&shown), name: shown, excluded: Some(ExclusionReason::NameNotUtf8) }
    }
}

/// Resolves a path as [`locate`] does. The path may be bytes that are not UTF-8.
pub(super) fn locate_bytes(root: &Utf8Path, written: &[u8]) -> Located {
    match text_file::check(written) {
        Ok(written) => locate(root, written),
        Err(_) => Located::not_utf8(root, String::from_utf8_lossy(written).trim().to_owned()),
    }
}

/// Resolves a path as written in the source. An absolute path may be anywhere; a relative path must not leave the root by `..`.
/// A link below the root may lead elsewhere.
pub(super) fn locate(root: &Utf8Path, written: &str) -> Located {
    let written = written.trim();
    if written.is_empty() {
        return Located { name: String::new(), path: root.to_owned(), excluded: Some(ExclusionReason::VideoMissing) };
    }
    let Some(plain) = resolve(Utf8Path::new(written)) else {
        let excluded = Some(ExclusionReason::OutsideFolder);
        return Located { name: written.to_owned(), path: root.join(written), excluded };
    };
    let path = on_disk(root.join(&plain));
    let name = path.strip_prefix(root).unwrap_or(&path).to_string();
    Located { name, path, excluded: None }
}

/// Returns the path with the letters that the disk has. macOS decomposes letters with accents when it writes names (`e` and U+0301), most
/// editors compose them (`é`), and on Linux these are two names. A path that exists is returned as it is.
pub(super) fn on_disk(path: Utf8PathBuf) -> Utf8PathBuf {
    if path.as_str().is_ascii() || path.exists() {
        return path;
    }
    let mut found = Utf8PathBuf::new();
    for part in path.components() {
        let part = part.as_str();
        let as_written = found.join(part);
        let other = || {
            let forms = [part.nfc().collect::<String>(), part.nfd().collect()];
            forms.into_iter().map(|form| found.join(form)).find(|path| path.exists())
        };
        found = if part.is_ascii() || as_written.exists() { as_written } else { other().unwrap_or(as_written) };
    }
    // The error about a missing file shows the path that the user wrote.
    if found.exists() { found } else { path }
}

/// Removes `.` and `..` from a path. Returns `None` if the path leaves the folder that it starts at.
fn resolve(path: &Utf8Path) -> Option<Utf8PathBuf> {
    let mut plain = Utf8PathBuf::new();
    for part in path.components() {
        match part {
            Utf8Component::CurDir => {}
            Utf8Component::ParentDir if !plain.pop() => return None,
            Utf8Component::ParentDir => {}
            part => plain.push(part),
        }
    }
    Some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_paths_stay_below_the_root_and_absolute_ones_are_kept() {
        let located = |written| {
            let Located { name, path, excluded } = locate(Utf8Path::new("/data"), written);
            (name, path.into_string(), excluded.is_none())
        };
        assert_eq!(located("a/b.mp4"), ("a/b.mp4".into(), "/data/a/b.mp4".into(), true));
        assert_eq!(located("./a/../b.mp4 "), ("b.mp4".into(), "/data/b.mp4".into(), true));
        assert_eq!(located("/data/b.mp4"), ("b.mp4".into(), "/data/b.mp4".into(), true));
        assert_eq!(located("/else/b.mp4"), ("/else/b.mp4".into(), "/else/b.mp4".into(), true));
        assert!(!located("../b.mp4").2 && !located("a/../../b.mp4").2 && !located(" ").2);
    }

    #[test]
    fn composed_and_decomposed_letters_name_the_same_file() {
        let folder = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(folder.path()).unwrap();
        let (composed, decomposed) = ("caf\u{e9}", "cafe\u{301}");
        std::fs::create_dir(root.join(decomposed)).unwrap();
        std::fs::write(root.join(decomposed).join(format!("{composed}.mp4")), "").unwrap();
        let on_disk = format!("{decomposed}/{composed}.mp4");
        for (folder, file) in [(composed, composed), (composed, decomposed), (decomposed, decomposed)] {
            assert_eq!(locate(root, &format!("{folder}/{file}.mp4")).name, on_disk);
        }
        // The name of a file that does not exist stays as it was written.
        assert_eq!(locate(root, &format!("{composed}/b.mp4")).name, format!("{composed}/b.mp4"));
        // If both names exist, each names its own file.
        std::fs::create_dir(root.join(composed)).unwrap();
        assert_eq!(locate(root, composed).name, composed);
    }

    #[test]
    fn a_path_that_is_not_utf_8_is_not_a_missing_video() {
        let located = locate_bytes(Utf8Path::new("/data"), b"caf\xe9.mp4 ");
        assert_eq!((located.name.as_str(), located.excluded), ("caf\u{fffd}.mp4", Some(ExclusionReason::NameNotUtf8)));
    }
}
