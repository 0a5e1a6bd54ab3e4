//! Resolves the paths of videos that tables and lists name.

use crate::ExclusionReason;
use camino::{Utf8Component, Utf8Path, Utf8PathBuf};

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
    let path = root.join(&plain);
    let name = path.strip_prefix(root).unwrap_or(&path).to_string();
    Located { name, path, excluded: None }
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
}
