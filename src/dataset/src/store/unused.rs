//! Lists and removes shards that the index no longer refers to (`vidtui data prune`). An encode keeps such shards, because a training
//! run that opened the earlier index may read them.

use super::index::{INDEX, cannot_write, unreadable};
use super::names::{LATENTS, TEXTS, shard_number};
use super::{TensorLocation, is_working, read_index};
use camino::Utf8Path;
use rundir::{ErrorCode, Failure};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fs;

/// A shard that the index does not refer to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UnusedShard {
    /// The name of the shard in the folder of the data set.
    pub name: String,
    /// Its size.
    pub bytes: u64,
}

/// Returns the shards of a store that its index does not refer to, sorted by name; none while there is no index.
///
/// # Errors
/// The index or the folder cannot be read.
pub fn unused_shards(data: &Utf8Path) -> Result<Vec<UnusedShard>, Failure> {
    if !data.join(INDEX).exists() {
        return Ok(Vec::new());
    }
    let mut used: BTreeSet<String> = BTreeSet::new();
    let mut add = |place: &TensorLocation| {
        if !used.contains(&place.shard) {
            used.insert(place.shard.clone());
        }
    };
    let head = read_index(data, |_, line| {
        std::iter::once(&line.latent).chain(line.extra.values()).chain(&line.text).for_each(&mut add);
        Ok(())
    })?;
    head.empty_text.iter().for_each(&mut add);
    let mut unused = Vec::new();
    for entry in data.read_dir_utf8().map_err(|e| unreadable(data, &e))? {
        let entry = entry.map_err(|e| unreadable(data, &e))?;
        let name = entry.file_name().to_owned();
        if [LATENTS, TEXTS].iter().any(|start| shard_number(&name, start).is_some()) && !used.contains(&name) {
            let bytes = entry.metadata().map_err(|e| unreadable(entry.path(), &e))?.len();
            unused.push(UnusedShard { name, bytes });
        }
    }
    unused.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(unused)
}

/// Removes the shards that the index does not refer to, and returns them. The caller must make sure that no training
/// run reads them.
///
/// # Errors
/// [`ErrorCode::AlreadyExists`] if an encode of the data set is running or was interrupted. Otherwise the index cannot be read, or a
/// shard cannot be removed.
pub fn remove_unused(data: &Utf8Path) -> Result<Vec<UnusedShard>, Failure> {
    if is_working(data) {
        return Err(Failure::new(
            ErrorCode::AlreadyExists,
            format!("cannot remove shards of {data}"),
            "an encode into it is running, or was interrupted",
            "wait until it ends, or finish it: vidtui resume RUN",
        ));
    }
    let unused = unused_shards(data)?;
    for shard in &unused {
        let path = data.join(&shard.name);
        fs::remove_file(&path).map_err(|e| cannot_write(&path, &e))?;
    }
    Ok(unused)
}
