//! The place of a new folder: whether it is free, large enough, and nobody else's.

use crate::Header;
use crate::source::{CONFIG_FILE, MODEL_FILE};
use crate::write::MADE_BY;
use camino::{Utf8Path, Utf8PathBuf};
use nix::sys::statvfs::statvfs;
use rundir::{ErrorCode, Failure, WholeFolder};
use std::fs::{self, File, TryLockError};

/// Space that is left alone: manifests, folders, and whoever else writes there.
const SPARE: u64 = 16 << 20;
/// What a conversion writes beside tensors, by the ends of names. Only a folder of such files is ever replaced.
const OURS: [&str; 5] = ["state.toml", MODEL_FILE, CONFIG_FILE, ".safetensors.index.json", "index.jsonl"];
/// What makes a folder a checkpoint.
const MANIFEST: &str = "manifest.toml";

/// Checks that a folder may be made at `target`, or replaced with `force`. None of `sources` may be lost by it.
pub(crate) fn check(target: &Utf8Path, sources: &[&Utf8Path], force: bool) -> Result<(), Failure> {
    let refuse = |why: String, fix: String| {
        Err(Failure::new(ErrorCode::AlreadyExists, format!("cannot write {target}"), why, fix))
    };
    if target.file_name().is_none() {
        return refuse("it is not the name of a folder".into(), "name a new folder".into());
    }
    let real_target = real(target);
    if let Some(source) = sources.iter().find(|source| real(source).starts_with(&real_target)) {
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
            if let Some(foreign) = foreign(target, &names) {
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

/// The first name in a folder that no conversion wrote. A download and what a run saved have files of the same names.
fn foreign<'a>(folder: &Utf8Path, names: &'a [String]) -> Option<&'a String> {
    let has = |name| names.iter().any(|other| other == name);
    let written = |name: &str| {
        // Files of a checkpoint may be the source's own; a run's lie in its checkpoints without a model.
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

/// Checks that the disk has room for so many bytes more, once what an interrupted attempt left is gone.
pub(crate) fn check_space(target: &Utf8Path, bytes: u64) -> Result<(), Failure> {
    let existing = target.ancestors().find(|dir| dir.is_dir()).unwrap_or(Utf8Path::new("."));
    let disk = statvfs(existing.as_std_path()).map_err(|e| {
        Failure::new(
            ErrorCode::Io,
            format!("cannot ask the disk of {existing} for its free space"),
            e.desc(),
            "check that it is mounted",
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
        format!("it needs {} MiB, and the disk has {} MiB free", mib(bytes + SPARE), mib(free)),
        "free some space, or choose a folder on another disk",
    ))
}

/// Takes the right to fill a folder; held until the file is dropped.
pub(crate) fn lock(folder: &WholeFolder) -> Result<File, Failure> {
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
            "wait for that one, or name another folder",
        )),
        // Some network file systems have no locks; then nobody is kept out.
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
