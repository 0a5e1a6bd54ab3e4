//! Summarizes the content of a store for `vidtui data show`, and finds a clip by its id.

use crate::store::{EncodeProgress, Item, Line, Queue, SPEC, StoreSpec, is_working, old_failures, read_index};
use camino::Utf8Path;
use rundir::{ErrorCode, Failure};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// A summary of a store.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// The settings by which the store was made.
    pub spec: StoreSpec,
    /// The number of clips in the index.
    pub clips: usize,
    /// Clips by bucket: frames × height × width.
    pub buckets: BTreeMap<String, usize>,
    /// Clips by the shape of the stored latent.
    pub shapes: BTreeMap<String, usize>,
    /// Distinct texts that clips use.
    pub texts: usize,
    /// Whether the store has the text of the empty caption.
    pub empty_text: bool,
    /// The number of shards that the index refers to.
    pub shards: usize,
    /// The size of these shards.
    pub bytes: u64,
    /// The size of shards that the index no longer refers to.
    pub unused_bytes: u64,
    /// The number of clips with a latent or text whose checksum is not recorded, because an earlier version wrote it.
    pub without_checksum: usize,
    /// The items that failed, with their failures.
    pub failures: Vec<FailedItem>,
    /// The progress of an encode that is running or was interrupted.
    pub encode: Option<EncodeProgress>,
}

/// An item that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FailedItem {
    /// The item.
    pub item: Item,
    /// The failure.
    pub failure: Failure,
}

/// Summarizes a store. A store whose first encode is not complete has no clips yet.
///
/// # Errors
/// The folder is not a store, or its index is damaged.
pub fn summarize(data: &Utf8Path) -> Result<Summary, Failure> {
    let queue = if is_working(data) { Some(Queue::look(data)?) } else { None };
    let mut failures = old_failures(data)?;
    if let Some(queue) = &queue {
        failures.extend(queue.failures()?);
    }
    let is_made = data.join(SPEC).exists();
    let spec = match (&queue, is_made) {
        (Some(queue), false) => queue.spec().clone(),
        _ => StoreSpec::read(data)?,
    };
    let mut summary = Summary {
        spec,
        clips: 0,
        buckets: BTreeMap::new(),
        shapes: BTreeMap::new(),
        texts: 0,
        empty_text: false,
        shards: 0,
        bytes: 0,
        unused_bytes: 0,
        without_checksum: 0,
        failures: failures.into_iter().map(|(item, failure)| FailedItem { item, failure }).collect(),
        encode: queue.as_ref().map(Queue::progress).transpose()?,
    };
    let (mut shards, mut texts) = (BTreeSet::new(), BTreeSet::new());
    if is_made {
        let head = read_index(data, |_, line| {
            summary.clips += 1;
            let shape: Vec<String> = line.shape.iter().map(ToString::to_string).collect();
            *summary.buckets.entry(line.bucket).or_default() += 1;
            *summary.shapes.entry(shape.join("×")).or_default() += 1;
            let mut places = std::iter::once(&line.latent).chain(line.extra.values()).chain(&line.text);
            summary.without_checksum += usize::from(places.any(|place| place.xxh3.is_none()));
            texts.extend(line.text_keys);
            shards.extend(line.text.into_iter().chain(line.extra.into_values()).map(|place| place.shard));
            shards.insert(line.latent.shard);
            Ok(())
        })?;
        summary.empty_text = head.empty_text.is_some();
        shards.extend(head.empty_text.map(|place| place.shard));
    }
    (summary.texts, summary.shards) = (texts.len(), shards.len());
    let io = |e: std::io::Error| Failure::from(rundir::Error::io("list", data, e));
    for entry in data.read_dir_utf8().map_err(io)? {
        let path = entry.map_err(io)?.into_path();
        let name = path.file_name().unwrap_or_default();
        let size = fs::metadata(&path).map_or(0, |meta| meta.len());
        if shards.contains(name) {
            summary.bytes += size;
        } else if name.ends_with(".safetensors") {
            summary.unused_bytes += size;
        }
    }
    Ok(summary)
}

/// Returns a clip of a store by its id.
///
/// # Errors
/// [`ErrorCode::UnknownName`] if there is no such clip. If the clip could not be encoded, the error includes the reason. The index
/// cannot be read.
pub fn find_clip(data: &Utf8Path, id: &str) -> Result<Line, Failure> {
    let (mut found, mut some) = (None, Vec::new());
    read_index(data, |_, line| {
        if some.len() < 3 {
            some.push(line.id.clone());
        }
        if line.id == id {
            found = Some(line);
        }
        Ok(())
    })?;
    found.map_or_else(|| Err(unknown(data, id, &some)), Ok)
}

fn unknown(data: &Utf8Path, id: &str, some: &[String]) -> Failure {
    let what = format!("{data} has no clip '{id}'");
    if let Ok(failures) = old_failures(data)
        && let Some((_, failure)) = failures.into_iter().find(|(item, _)| item.name == id)
    {
        let why = format!("it was left out: {}: {}", failure.what, failure.why);
        return Failure::new(ErrorCode::UnknownName, what, why, failure.fix);
    }
    let why = match some {
        [] => "it has no clips".to_owned(),
        some => format!("its first clips are {}", some.join(", ")),
    };
    Failure::new(ErrorCode::UnknownName, what, why, format!("list the clips: vidtui data show {data} --json"))
}
