//! Checks the target folder of a conversion: whether it is free, has enough disk space, and is not locked.

use crate::Header;
use crate::source::{CONFIG_FILE, MODEL_FILE};
use crate::write::MADE_BY;
use camino::{Utf8Path, Utf8PathBuf};
use nix::sys::statvfs::statvfs;
use rundir::{ErrorCode, Failure, WholeFolder};
use std::fs::{self, File, TryLockError};

/// Free disk space to keep for manifests, folders and other writers, in bytes.
const SPARE: u64 = 16 << 20;
/// The name suffixes of the files that a conversion writes beside tensors. Only a folder that has no other files is replaced.
const OURS: [&str; 6] =
    ["state.toml", MODEL_FILE, CONFIG_FILE, ".safetensors.index.json", "index.jsonl", "dataset.toml"];
/// The file that marks a folder as a checkpoint.
const MANIFEST: &str = "manifest.toml";

/// Checks that `target` can be created, or replaced when `force` is set, without deleting any of `sources`.
///
/// # Errors
/// [`ErrorCode::AlreadyExists`] with the reason.
pub fn check(target: &Utf8Path, sources: &[&Utf8Path], force: bool) -> Result<(), Failure> {
    let refuse = |why: String, fix: String| {
        Err(Failure::new(ErrorCode::AlreadyExists, format!("cannot write {target}"), why, fix))
    };
    if target.file_name().is_none() {
        return refuse("the path has no folder name".into(), "set the path of a new folder".into());
    }
    let real_target = real(target);
    if let Some(source) = sources.iter().find(|source| real(source).starts_with(&real_target)) {
        return refuse(format!("it contains the source {source}"), "choose another folder".into());
    }
    match fs::symlink_metadata(target) {
        Err(_) => Ok(()),
        Ok(meta) if !meta.is_dir() => {
            refuse("the path exists and is not a folder".into(), "choose another folder".into())
        }
        Ok(_) => {
            let names = entries(target)?;
            if names.is_empty() {
                return Ok(());
            }
            if let Some(foreign) = foreign(target, &names) {
                let why = format!("the folder contains {foreign}, which was not written by `vidtui convert`");
                return refuse(why, "choose another folder; --force replaces earlier conversions only".into());
            }
            if !force {
                return refuse("the folder exists".into(), "choose another folder, or replace it with --force".into());
            }
            Ok(())
        }
    }
}

/// Returns the first file in a folder that no conversion has written. Downloads and checkpoints of runs use the same
/// file names, so the names alone are not sufficient.
fn foreign<'a>(folder: &Utf8Path, names: &'a [String]) -> Option<&'a String> {
    let has = |name| names.iter().any(|other| other == name);
    let written = |name: &str| {
        // Linked tensor files have no mark of this program. A run's checkpoint has no model file.
        let marked = || Header::read(&folder.join(name)).is_ok_and(|header| header.metadata.contains_key(MADE_BY));
        match name {
            MANIFEST => has(MODEL_FILE),
            name if name.ends_with(".safetensors") => has(MANIFEST) || marked(),
            name => OURS.iter().any(|end| name.ends_with(end)),
        }
    };
    let tensors = names.iter().any(|name| name.ends_with(".safetensors"));
    names.iter().find(|name| !tensors || !written(name))
}

/// Checks that the disk has space for `bytes`. Files that an interrupted attempt has left count as free space.
///
/// # Errors
/// [`ErrorCode::DiskFull`] with both sizes.
pub fn check_space(target: &Utf8Path, bytes: u64) -> Result<(), Failure> {
    let existing = target.ancestors().find(|dir| dir.is_dir()).unwrap_or(Utf8Path::new("."));
    let disk = statvfs(existing.as_std_path()).map_err(|e| {
        Failure::new(
            ErrorCode::Io,
            format!("cannot read the free disk space of {existing}"),
            e.desc(),
            "check that its file system is mounted",
        )
    })?;
    let free = disk.blocks_available() * disk.fragment_size() + WholeFolder::beside(target).left_over();
    if free >= bytes.saturating_add(SPARE) {
        return Ok(());
    }
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    Err(Failure::new(
        ErrorCode::DiskFull,
        format!("cannot write {target}"),
        format!("it needs {} MiB, and {} MiB of disk space are free", mib(bytes + SPARE), mib(free)),
        "free disk space, or choose a folder on another disk",
    ))
}

/// Locks a folder for writing until the returned file is dropped.
///
/// # Errors
/// [`ErrorCode::AlreadyExists`] if another process has locked it.
pub fn lock(folder: &WholeFolder) -> Result<File, Failure> {
    let dir = folder.dir();
    let failed = |e: std::io::Error| {
        Failure::new(ErrorCode::Io, format!("cannot create {dir}"), e.to_string(), "choose another folder")
    };
    fs::create_dir_all(dir).map_err(failed)?;
    let file = File::open(dir).map_err(failed)?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(Failure::new(
            ErrorCode::AlreadyExists,
            format!("cannot write {}", folder.place()),
            "another conversion is writing it",
            "wait until it ends, or choose another folder",
        )),
        // Some network file systems do not support locks.
        _ => Ok(file),
    }
}

fn entries(dir: &Utf8Path) -> Result<Vec<String>, Failure> {
    let failed = |e: std::io::Error| {
        Failure::new(ErrorCode::Io, format!("cannot list {dir}"), e.to_string(), "check its permissions")
    };
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let folder = entry.file_type().map_err(failed)?.is_dir();
        let name = entry.file_name().to_string_lossy().into_owned();
        // The slash marks subfolders, which no conversion writes.
        names.push(if folder { format!("{name}/") } else { name });
    }
    names.sort();
    Ok(names)
}

/// Resolves the symbolic links of the existing part of a path.
fn real(path: &Utf8Path) -> Utf8PathBuf {
    let absolute = camino::absolute_utf8(path).unwrap_or(path.to_owned());
    for ancestor in absolute.ancestors() {
        if let Ok(real) = ancestor.canonicalize_utf8() {
            return real.join(absolute.strip_prefix(ancestor).unwrap_or(Utf8Path::new("")));
        }
    }
    absolute
}
