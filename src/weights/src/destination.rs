//! The place of a new folder: whether it is free, large enough, and nobody else's.

use camino::{Utf8Path, Utf8PathBuf};
use nix::sys::statvfs::statvfs;
use rundir::{Failure, WholeFolder};
use std::fs::{self, File, TryLockError};

/// Space that is left alone: manifests, folders, and whoever else writes there.
const SPARE: u64 = 16 << 20;
/// What a conversion writes, by the ends of names. Only a folder of such files is ever replaced.
const OURS: [&str; 7] = [
    ".safetensors",
    "manifest.toml",
    "state.toml",
    "model.toml",
    "config.json",
    ".safetensors.index.json",
    "index.jsonl",
];

/// Checks that a folder may be made at `target`, or replaced with `force`.
pub(crate) fn check(target: &Utf8Path, source: &Utf8Path, force: bool) -> Result<(), Failure> {
    let refuse = |why: String, fix: String| Err(Failure::new(format!("cannot write {target}"), why, fix));
    if target.file_name().is_none() {
        return refuse("it is not the name of a folder".into(), "name a new folder".into());
    }
    let (real_target, real_source) = (real(target), real(source));
    if real_source.starts_with(&real_target) {
        return refuse(format!("the source {source} lies in it"), "name another folder".into());
    }
    match fs::symlink_metadata(target) {
        Err(_) => Ok(()),
        Ok(meta) if !meta.is_dir() => {
            refuse("there is something that is not a folder".into(), "name another folder".into())
        }
        Ok(_) => {
            let names = entries(target)?;
            if names.is_empty() {
                return Ok(());
            }
            if let Some(foreign) = names.iter().find(|name| !OURS.iter().any(|end| name.ends_with(end))) {
                let why = format!("that folder holds {foreign}, which no conversion has written");
                return refuse(why, "name another folder; --force replaces earlier conversions only".into());
            }
            if !force {
                return refuse("that folder exists".into(), "name another folder, or replace it: --force".into());
            }
            Ok(())
        }
    }
}

/// Checks that the disk has room for so many bytes more.
pub(crate) fn check_space(target: &Utf8Path, bytes: u64) -> Result<(), Failure> {
    let existing = target.ancestors().find(|dir| dir.is_dir()).unwrap_or(Utf8Path::new("."));
    let disk = statvfs(existing.as_std_path()).map_err(|e| {
        Failure::new(
            format!("cannot ask the disk of {existing} for its free space"),
            e.desc(),
            "check that it is mounted",
        )
    })?;
    let free = disk.blocks_available() * disk.fragment_size();
    if free >= bytes.saturating_add(SPARE) {
        return Ok(());
    }
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    Err(Failure::new(
        format!("cannot write {target}"),
        format!("it needs {} MiB, and the disk has {} MiB free", mib(bytes + SPARE), mib(free)),
        "free some space, or choose a folder on another disk",
    ))
}

/// Takes the right to fill a folder; held until the file is dropped.
pub(crate) fn lock(folder: &WholeFolder) -> Result<File, Failure> {
    let dir = folder.dir();
    let failed =
        |e: std::io::Error| Failure::new(format!("cannot create {dir}"), e.to_string(), "choose another folder");
    fs::create_dir_all(dir).map_err(failed)?;
    let file = File::open(dir).map_err(failed)?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(Failure::new(
            format!("cannot write {}", folder.place()),
            "another conversion is writing it",
            "wait for that one, or name another folder",
        )),
        // Some network file systems have no locks; then nobody is kept out.
        _ => Ok(file),
    }
}

fn entries(dir: &Utf8Path) -> Result<Vec<String>, Failure> {
    let failed = |e: std::io::Error| Failure::new(format!("cannot list {dir}"), e.to_string(), "check its permissions");
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let folder = entry.file_type().map_err(failed)?.is_dir();
        let name = entry.file_name().to_string_lossy().into_owned();
        // A folder is never ours, whatever its name.
        names.push(if folder { format!("{name}/") } else { name });
    }
    names.sort();
    Ok(names)
}

/// The path without links, as far as it exists.
fn real(path: &Utf8Path) -> Utf8PathBuf {
    let absolute = camino::absolute_utf8(path).unwrap_or(path.to_owned());
    for ancestor in absolute.ancestors() {
        if let Ok(real) = ancestor.canonicalize_utf8() {
            return real.join(absolute.strip_prefix(ancestor).unwrap_or(Utf8Path::new("")));
        }
    }
    absolute
}
