//! A small file system that a test fills.

use std::fs::{self, File};
use std::io::{self, Write};
use std::process::Command;

use camino::{Utf8Path, Utf8PathBuf};

/// A file system of a fixed size in memory (tmpfs), unmounted when dropped.
#[derive(Debug)]
pub struct SmallDisk {
    /// Its folder.
    pub path: Utf8PathBuf,
}

impl SmallDisk {
    /// Mounts a file system at a folder, with options such as `size=600k`. Without permission, prints that the test is skipped and
    /// returns `None`.
    pub fn mount(path: &Utf8Path, options: &str) -> Option<Self> {
        let mount = |path: &Utf8Path| {
            fs::create_dir_all(path)?;
            Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs", path.as_str()]).output()
        };
        if mount(path).is_ok_and(|mounted| mounted.status.success()) {
            return Some(Self { path: path.to_owned() });
        }
        #[expect(clippy::print_stderr, reason = "this is the output of a test")]
        {
            eprintln!("skipped: a small disk cannot be mounted here (needs root)");
        }
        None
    }

    /// Fills the file system to its last byte.
    ///
    /// # Errors
    /// The file that fills it cannot be made.
    pub fn fill(&self) -> io::Result<()> {
        let mut file = File::create(self.path.join("ballast"))?;
        while file.write_all(&[1; 4096]).is_ok() {}
        Ok(())
    }

    /// Enlarges the file system, as if a user freed space.
    ///
    /// # Errors
    /// `mount` cannot be started, or fails.
    pub fn grow(&self) -> io::Result<()> {
        let grown =
            Command::new("mount").args(["-o", "remount,size=50m,nr_inodes=20000", self.path.as_str()]).status()?;
        if grown.success() { Ok(()) } else { Err(io::Error::other(format!("{} cannot be enlarged", self.path))) }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Processes of a test that has failed may use it.
        let _ = Command::new("umount").args(["-l", self.path.as_str()]).status();
    }
}
