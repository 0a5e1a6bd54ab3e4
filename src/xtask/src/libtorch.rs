//! `cargo xtask libtorch`: installs libtorch for the CPU and links `.libtorch` to it.
//!
//! libtorch is taken from PyTorch's wheel on the Python package index, which closed networks often mirror, and is kept in the
//! user's cache for all checkouts. `.cargo/config.toml` names the link `.libtorch`.

mod fetch;
mod link;
pub mod system;

use std::env;
use std::fs::{self, File, TryLockError};

use camino::{Utf8Path, Utf8PathBuf};

use crate::failure::{Failure, Result};
use crate::workspace::{cache_dir, root};
use system::Need;

/// The version of libtorch that the crate `tch` needs.
pub const VERSION: &str = "2.11.0";

/// Files that a complete folder has.
const PARTS: [&str; 8] = [
    "lib/libtorch.so",
    "lib/libtorch_cpu.so",
    "lib/libc10.so",
    "lib/libgomp.so.1",
    "lib/libcudart.so.13",
    "lib/libcupti.so.13",
    "include/torch/csrc/api/include/torch/torch.h",
    "build-version",
];

/// Runs the command.
pub fn run(args: &[String]) -> Result<()> {
    if let [first, ..] = args {
        return Err(Failure::request("cannot get libtorch", format!("{first:?} is not known"), "give no arguments"));
    }
    ensure(&[])
}

/// Makes sure that cargo finds a libtorch: the user's own, or the cached one, which is downloaded if needed.
///
/// Missing programs, including those that the caller needs `next`, are installed or reported before the download.
pub fn ensure(next: &[&[Need]]) -> Result<()> {
    let require = |more: &[&[Need]]| system::require(&[&[system::COMPILER], more, next].concat());
    if let Some(own) = users_own(|name| env::var(name).ok(), root()) {
        require(&[])?;
        println!("libtorch: your own, {own}");
        return Ok(());
    }
    let link = root().join(".libtorch");
    if link::is_real(&link) {
        require(&[])?;
        return match missing_part(&link) {
            None => {
                println!("libtorch: the folder {link}");
                Ok(())
            }
            Some(part) => Err(Failure::new(
                format!("cannot use {link}"),
                format!("it is a folder and not a link, and has no {part}"),
                "move it away, or set LIBTORCH to a libtorch of your own",
            )),
        };
    }
    let cache = cache_dir()?;
    let folder = cache.join(format!("libtorch-{VERSION}-cpu"));
    require(if missing_part(&folder).is_some() { &[system::PYTHON] } else { &[] })?;
    fs::create_dir_all(&cache)
        .map_err(|e| Failure::new(format!("cannot create {cache}"), e, "set XDG_CACHE_HOME to a writable folder"))?;
    let lock = lock(&cache.join("libtorch.lock"))?;
    if missing_part(&folder).is_some() {
        fetch::fetch(&folder)?;
    }
    drop(lock);
    link::point(&link, &folder)?;
    println!("libtorch {VERSION}: {folder}");
    Ok(())
}

/// Returns the variable that selects the user's own libtorch. A value that cargo takes from `.cargo/config.toml` does not count.
fn users_own(var: impl Fn(&str) -> Option<String>, root: &Utf8Path) -> Option<String> {
    if let Some(value) = var("LIBTORCH_USE_PYTORCH") {
        return Some(format!("LIBTORCH_USE_PYTORCH={value}"));
    }
    let set = var("LIBTORCH").filter(|value| !value.is_empty() && *value != root.join(".libtorch"));
    set.map(|value| format!("LIBTORCH={value}"))
}

fn missing_part(folder: &Utf8Path) -> Option<&'static str> {
    PARTS.into_iter().find(|part| !folder.join(part).is_file())
}

/// Locks the download against other checkouts; closing the returned file unlocks it.
fn lock(path: &Utf8PathBuf) -> Result<File> {
    let failure = |e: std::io::Error| Failure::new(format!("cannot lock {path}"), e, "check the folder's permissions");
    let file = File::options().create(true).append(true).open(path).map_err(failure)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            println!("libtorch: waiting for another checkout that downloads it");
            file.lock().map(|()| file).map_err(failure)
        }
        Err(TryLockError::Error(e)) => Err(failure(e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_own_libtorch_is_preferred() {
        let root = Utf8Path::new("/repo");
        let own = |name: &'static str, value: &'static str| {
            users_own(move |asked| (asked == name).then(|| value.to_owned()), root)
        };
        assert_eq!(own("LIBTORCH", "/opt/libtorch").as_deref(), Some("LIBTORCH=/opt/libtorch"));
        assert_eq!(own("LIBTORCH_USE_PYTORCH", "1").as_deref(), Some("LIBTORCH_USE_PYTORCH=1"));
        assert_eq!(own("LIBTORCH", "/repo/.libtorch"), None, "the value of cargo's config is not the user's");
        assert_eq!(own("LIBTORCH", ""), None);
    }
}
