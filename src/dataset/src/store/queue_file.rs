//! Reads and writes the file of the queue (`queue.jsonl`): the clips and items of an encode, and the results of earlier generations.

use super::index::{bad, malformed, unreadable};
use super::lease::create_dir;
use super::names::{LATENTS, QUEUE, TEXTS, WORK, shard_number};
use super::part::{Entry, Verify, read_journal};
use super::refuse::refused_file;
use super::spec::{SCHEMA, StoreSpec};
use super::{Item, ItemKind, Plan, Timing, WantedClip};
use camino::{Utf8Path, Utf8PathBuf};
use rundir::{ErrorCode, Failure, MAX_TEXT, open_regular, read_regular, write_atomic, xxh3_hex};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};

/// The number of items in a range, unless there are very many items.
const RANGE: usize = 16;
/// The maximum number of ranges of a queue. Each claim of a worker lists the leases of all ranges, so it limits that time.
const MAX_RANGES: usize = 4096;

/// The first line of the queue's file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct QueueHead {
    schema: u32,
    /// A hash of the plan. An encode with the same plan continues this queue.
    pub id: String,
    /// The number of the generation, from 0. It increases when a changed plan replaces the queue.
    pub generation: u32,
    pub spec: StoreSpec,
    clips: usize,
    items: usize,
    /// The number of items in a range.
    pub range: usize,
    /// The numbers of the first new shards of latents and of texts, which are higher than those of all existing shards.
    pub first: [usize; 2],
}

impl QueueHead {
    /// Reads the first line of the queue. Returns `None` if there is no queue.
    pub fn read(work: &Utf8Path) -> Result<Option<Self>, Failure> {
        let path = work.join(QUEUE);
        let mut line = String::new();
        match open_regular(&path).and_then(|file| BufReader::new(file.take(MAX_TEXT)).read_line(&mut line)) {
            Ok(_) => serde_json::from_str(&line).map(Some).map_err(|e| malformed(&path, 1, &e)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(unreadable(&path, &e)),
        }
    }
}

/// An item in the file of the queue.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Queued {
    pub item: Item,
    /// The result, if an earlier generation encoded the item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<Entry>,
}

/// The content of `queue.jsonl`.
pub(super) struct QueueFile {
    pub head: QueueHead,
    pub clips: Vec<WantedClip>,
    pub items: Vec<Queued>,
}

impl QueueFile {
    pub fn read(work: &Utf8Path) -> Result<Self, Failure> {
        let path = work.join(QUEUE);
        let text = read_regular(&path, u64::MAX).map_err(|e| unreadable(&path, &e))?;
        let mut lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).enumerate();
        let (_, first) = lines.next().ok_or_else(|| bad(&path, "it is empty".into()))?;
        let version: serde_json::Value = serde_json::from_slice(first).map_err(|e| malformed(&path, 1, &e))?;
        if version["schema"].as_u64().is_some_and(|found| found > u64::from(SCHEMA)) {
            return Err(Failure::new(
                ErrorCode::NewerFormat,
                format!("cannot continue the encode in {work}"),
                format!("a newer vidtui began it (schema {}; this one reads {SCHEMA})", version["schema"]),
                format!("update vidtui, or remove {work} to start again"),
            ));
        }
        let head: QueueHead = serde_json::from_slice(first).map_err(|e| malformed(&path, 1, &e))?;
        let mut file = Self { clips: Vec::new(), items: Vec::new(), head };
        for (number, line) in lines {
            let malformed = |e: serde_json::Error| malformed(&path, number + 1, &e);
            if file.clips.len() < file.head.clips {
                file.clips.push(serde_json::from_slice(line).map_err(malformed)?);
            } else {
                file.items.push(serde_json::from_slice(line).map_err(malformed)?);
            }
        }
        Ok(file)
    }
}

/// Writes the queue of a plan, unless the queue of the same plan exists. Takes over the results of the queue of another plan.
pub(super) fn prepare(data: &Utf8Path, plan: &Plan, timing: &Timing) -> Result<(), Failure> {
    let work = data.join(WORK);
    let mut body = Vec::new();
    let mut write = |value: &[u8]| body.extend(value.iter().chain(b"\n"));
    for clip in &plan.clips {
        write(&serde_json::to_vec(clip).expect("a clip has a JSON form"));
    }
    let quarantined = plan.quarantined.iter().map(|(item, _)| item);
    let wanted: Vec<u8> = plan.items.iter().chain(quarantined).flat_map(|item| item.key.bytes()).collect();
    let id = xxh3_hex(&[plan.spec.identity().as_bytes(), &body, &wanted].concat());
    let old = if work.join(QUEUE).exists() { Some(QueueFile::read(&work)?) } else { None };
    // An encode that lost too many clips begins another generation, which retries them.
    let is_refused = |old: &QueueFile| refused_file(&work, old.head.generation).exists();
    if old.as_ref().is_some_and(|old| old.head.id == id && !is_refused(old)) {
        return Ok(());
    }
    let mut found: BTreeMap<String, Entry> = BTreeMap::new();
    let mut generation = 0;
    if let Some(old) = old {
        generation = old.head.generation + 1;
        // Results of complete ranges were synced and are trusted; other results are compared with their checksums.
        found = generation_entries(&work, old.head.generation, Verify::Sums)?;
        for queued in old.items {
            found.extend(queued.found.map(|entry| (entry.key.clone(), entry)));
        }
        found.retain(|_, entry| entry.failure.is_none());
    }
    for folder in ["leases", "parts", "done"] {
        create_dir(&work.join(generation.to_string()).join(folder))?;
    }
    // Keep the failures of the items that this encode leaves out again.
    super::failures::write_failures(&work, plan.quarantined.iter().map(|(item, failure)| (item, failure)))?;
    let range = timing.range.unwrap_or(RANGE).max(plan.items.len().div_ceil(MAX_RANGES));
    let head = QueueHead {
        schema: SCHEMA,
        id,
        generation,
        spec: plan.spec.clone(),
        clips: plan.clips.len(),
        items: plan.items.len(),
        range,
        first: first_shards(data)?,
    };
    let mut text = serde_json::to_vec(&head).expect("a head has a JSON form");
    text.push(b'\n');
    text.extend(&body);
    for item in &plan.items {
        let queued = Queued { found: found.remove(&item.key), item: item.clone() };
        text.extend(serde_json::to_vec(&queued).expect("an item has a JSON form"));
        text.push(b'\n');
    }
    Ok(write_atomic(&work.join(QUEUE), &text)?)
}

/// Returns the numbers of the next shards of latents and of texts, which are higher than those of all existing shards: even a shard
/// that the index no longer refers to is never replaced, because a training run may read it.
fn first_shards(data: &Utf8Path) -> Result<[usize; 2], Failure> {
    let mut first = [0, 0];
    for entry in data.read_dir_utf8().map_err(|e| unreadable(data, &e))? {
        let entry = entry.map_err(|e| unreadable(data, &e))?;
        for (first, start) in first.iter_mut().zip([LATENTS, TEXTS]) {
            *first = shard_number(entry.file_name(), start).map_or(*first, |number| (number + 1).max(*first));
        }
    }
    Ok(first)
}

/// Divides items into ranges of at most `size` successive items of one kind.
pub(super) fn ranges(items: &[Queued], size: usize) -> Vec<(ItemKind, std::ops::Range<usize>)> {
    let mut ranges: Vec<(ItemKind, std::ops::Range<usize>)> = Vec::new();
    for (number, queued) in items.iter().enumerate() {
        let kind = queued.item.work.kind();
        match ranges.last_mut() {
            Some((of, range)) if *of == kind && range.len() < size => range.end += 1,
            _ => ranges.push((kind, number..number + 1)),
        }
    }
    ranges
}

/// Returns the entries of a generation by key. If an item has several entries, that of a complete range precedes those of journals,
/// and a journal of a lower epoch precedes one of a higher epoch.
pub(super) fn generation_entries(
    work: &Utf8Path,
    generation: u32,
    verify: Verify,
) -> Result<BTreeMap<String, Entry>, Failure> {
    let mut entries = BTreeMap::new();
    for (folder, verify) in [("done", Verify::Nothing), ("parts", verify)] {
        let dir = work.join(generation.to_string()).join(folder);
        let Ok(list) = dir.read_dir_utf8() else { continue };
        let paths = list.map(|entry| entry.map(|entry| entry.into_path()));
        let mut paths: Vec<Utf8PathBuf> = paths.collect::<Result<_, _>>().map_err(|e| unreadable(&dir, &e))?;
        paths.retain(|path| path.extension() == Some("jsonl") && !path.file_name().unwrap_or(".").starts_with('.'));
        paths.sort();
        for path in paths {
            for entry in read_journal(work, &path, verify)? {
                entries.entry(entry.key.clone()).or_insert(entry);
            }
        }
    }
    Ok(entries)
}

/// Returns whether an encode of the data set is running or was interrupted.
pub(crate) fn is_working(data: &Utf8Path) -> bool {
    data.join(WORK).join(QUEUE).exists()
}
