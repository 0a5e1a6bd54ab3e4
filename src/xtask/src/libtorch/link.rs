//! Creates and replaces the symbolic link `.libtorch`, the libtorch that `.cargo/config.toml` names.

use std::fs;
use std::os::unix::fs::symlink;

use camino::Utf8Path;

use crate::failure::{Failure, Result};

/// Returns whether a file or folder that is not a symbolic link exists at the path. The caller must not replace it.
pub fn is_real(link: &Utf8Path) -> bool {
    fs::symlink_metadata(link).is_ok_and(|m| !m.file_type().is_symlink())
}

/// Points the link to the folder. An existing link is replaced atomically, so that cargo always finds it.
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
    fn dangling_and_other_links_are_replaced_and_folders_are_recognized() {
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
