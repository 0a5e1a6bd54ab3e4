//! The link `.libtorch` that cargo's configuration names.

use std::fs;
use std::os::unix::fs::symlink;

use camino::Utf8Path;

use crate::failure::{Failure, Result};

/// Says whether something that is not a link is in the link's place. It is never touched.
pub fn is_real(link: &Utf8Path) -> bool {
    fs::symlink_metadata(link).is_ok_and(|m| !m.file_type().is_symlink())
}

/// Points the link at the folder, whatever it pointed at; cargo never sees it missing.
pub fn point(link: &Utf8Path, folder: &Utf8Path) -> Result<()> {
    if fs::read_link(link).is_ok_and(|to| to == folder.as_std_path()) {
        return Ok(());
    }
    let new = format!("{link}.{}", std::process::id());
    symlink(folder, &new)
        .and_then(|()| fs::rename(&new, link))
        .map_err(|e| Failure::new(format!("cannot link {link} to {folder}"), e, "check the folder's permissions"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dangling_and_foreign_links_are_replaced_and_folders_are_seen() {
        let dir = tempfile::tempdir().unwrap();
        let dir = Utf8Path::from_path(dir.path()).unwrap();
        let (link, folder) = (dir.join(".libtorch"), dir.join("cache"));
        for target in ["/nowhere", "/usr"] {
            let _ = fs::remove_file(&link);
            symlink(target, &link).unwrap();
            assert!(!is_real(&link));
            point(&link, &folder).unwrap();
            assert_eq!(fs::read_link(&link).unwrap(), folder.as_std_path());
        }
        fs::remove_file(&link).unwrap();
        point(&link, &folder).unwrap();
        fs::remove_file(&link).unwrap();
        fs::create_dir(&link).unwrap();
        assert!(is_real(&link));
    }
}
