//! Joins the parts of an encode into shards, and replaces the index.
//!
//! The order of the manifest alone decides which tensor goes into which shard, so the bytes do not depend on which
//! worker encoded an item. A join writes shards under a temporary name and renames them, then replaces the specification and
//! finally the index. A crash at any point leaves either the old or the new index, and the next call continues.

use super::failures::{old_failures, write_failures};
use super::index::{Head, INDEX, Lines, TensorLocation, cannot_write, malformed, unreadable, write_index};
use super::lease::{Heartbeat, Taken};
use super::names::{LATENTS, QUEUE, TEXTS, WORK};
use super::part::{Entry, Piece};
use super::queue::Queue;
use super::spec::{SCHEMA, SPEC};
use super::{Item, ItemKind, Line};
use camino::{Utf8Path, Utf8PathBuf};
use recipe::Bucket;
use rundir::{ErrorCode, Failure, open_regular, write_toml};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;
use weights::{Dtype, NewTensorFile, OnProgress, Span, TensorToWrite, WriteProgress, write_tensor_files};

/// The result of joining.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Joined {
    /// The index.
    pub index: Utf8PathBuf,
    /// Clips of the data set.
    pub clips: usize,
    /// Texts that were encoded.
    pub texts: usize,
    /// Latents that were encoded.
    pub latents: usize,
    /// Items that failed in this encode, or that failed in an earlier encode and were not retried.
    pub failed: usize,
    /// Clips of the manifest that the index does not have, because their latent or a text failed.
    pub left_out: usize,
    /// The number of new shards.
    pub shards: usize,
    /// The size of the new shards.
    pub bytes: u64,
}

/// The result of [`Queue::finish`].
#[derive(Debug)]
pub enum QueueFinish {
    /// The store is complete.
    Joined(Joined),
    /// Some ranges are not done, or another worker is joining the parts. Call again after about a second.
    Wait,
    /// Another worker has completed the store.
    Done,
}

/// A tensor of an item, and its name in the shard.
struct Named<'a> {
    name: String,
    key: &'a str,
    role: &'a str,
    /// The bucket of a latent.
    bucket: Option<Bucket>,
    piece: &'a Piece,
    part: &'a str,
}

/// A shard to write.
struct Shard<'a> {
    file: NewTensorFile,
    tensors: Vec<Named<'a>>,
}

/// The fields of a latent that the new index needs.
struct Latent {
    place: TensorLocation,
    extra: BTreeMap<String, TensorLocation>,
    shape: Vec<usize>,
    times: Vec<f64>,
    bucket: String,
    drawn: bool,
}

/// Latents and texts of a store by key.
#[derive(Default)]
struct Known {
    latents: HashMap<String, Latent>,
    texts: HashMap<String, TensorLocation>,
}

impl Queue {
    /// Joins the parts into shards and replaces the index, if all ranges are done. Any worker may call this; one of
    /// them joins the parts.
    ///
    /// # Errors
    /// A file cannot be read or written. The work is then unchanged, and the next call continues it.
    pub fn finish(&self, progress: OnProgress<'_>) -> Result<QueueFinish, Failure> {
        if self.is_over()? {
            return Ok(QueueFinish::Done);
        }
        if self.find_done()?.len() < self.ranges.len() {
            return Ok(QueueFinish::Wait);
        }
        let epoch = self.leases.epochs()?.get("join").copied();
        match self.leases.take("join", epoch, &self.worker)? {
            Taken::Held => Ok(QueueFinish::Wait),
            Taken::Mine(lease) => {
                let beating = Heartbeat::start(lease, self.timing.heartbeat);
                let joined = join(self, &beating, progress);
                // After a failure, another worker can try at once. After a success, the leases are gone.
                beating.stop(joined.is_err());
                joined.map(QueueFinish::Joined)
            }
        }
    }
}

fn join(queue: &Queue, lease: &Heartbeat, progress: OnProgress<'_>) -> Result<Joined, Failure> {
    let (data, work) = (&queue.data, queue.data.join(WORK));
    let entries = queue.done_entries()?;
    let failures: Vec<(&Item, &Failure)> = queue
        .items
        .iter()
        .filter_map(|queued| Some((&queued.item, entries.get(&queued.item.key)?.failure.as_ref()?)))
        .collect();
    let quarantined = old_failures(data)?;
    let mut known = known(data, &queue.head.id)?;
    let Some(known) = &mut known else {
        // An earlier call replaced the index and was interrupted before it removed the work folder.
        let clips = Lines::open(&data.join(INDEX))?.0.clips;
        clean(queue, &failures, &quarantined)?;
        return Ok(Joined {
            index: data.join(INDEX),
            clips,
            texts: 0,
            latents: 0,
            failed: failures.len() + quarantined.len(),
            left_out: 0,
            shards: 0,
            bytes: 0,
        });
    };
    let shards = shards(queue, &work, &entries);
    let bytes: u64 = shards.iter().map(|shard| shard.file.bytes()).sum();
    write_shards(queue, lease, &shards, progress)?;
    let (mut texts, mut latents) = (0, 0);
    for shard in &shards {
        for tensor in &shard.tensors {
            let (shard, name) = (shard.file.name.clone(), tensor.name.clone());
            let place = TensorLocation { shard, name, xxh3: tensor.piece.sum };
            match (place.shard.starts_with(TEXTS), tensor.role) {
                (true, _) => {
                    texts += 1;
                    known.texts.insert(tensor.key.to_owned(), place);
                }
                (false, "") => {
                    latents += 1;
                    let entry = &entries[tensor.key];
                    known
                        .latents
                        .insert(tensor.key.to_owned(), queue.latent(place, tensor.piece, entry, tensor.bucket));
                }
                (false, role) => {
                    if let Some(latent) = known.latents.get_mut(tensor.key) {
                        latent.extra.insert(role.to_owned(), place);
                    }
                }
            }
        }
    }
    let (clips, left_out) = replace_index(queue, known)?;
    let failed = failures.len() + quarantined.len();
    clean(queue, &failures, &quarantined)?;
    Ok(Joined { index: data.join(INDEX), clips, texts, latents, failed, left_out, shards: shards.len(), bytes })
}

/// Reads the latents and texts that the index has. Returns `None` if this queue already replaced the index.
fn known(data: &Utf8Path, queue: &str) -> Result<Option<Known>, Failure> {
    let (path, mut known) = (data.join(INDEX), Known::default());
    if !path.exists() {
        return Ok(Some(known));
    }
    let (head, mut lines) = Lines::open(&path)?;
    if head.queue == queue {
        return Ok(None);
    }
    if let Some(place) = &head.empty_text {
        known.texts.insert(head.empty_key.clone(), place.clone());
    }
    while let Some((number, line)) = lines.next()? {
        let line: Line = serde_json::from_slice(line).map_err(|e| malformed(&path, number, &e))?;
        known.texts.extend(line.text_keys.into_iter().zip(line.text));
        let Line { latent, extra, shape, times, bucket, drawn, .. } = line;
        known.latents.insert(line.latent_key, Latent { place: latent, extra, shape, times, bucket, drawn });
    }
    lines.end(&head)?;
    Ok(Some(known))
}

/// Assigns the tensors of the queue to shards.
fn shards<'a>(queue: &'a Queue, work: &Utf8Path, entries: &'a HashMap<String, Entry>) -> Vec<Shard<'a>> {
    let mut shards: Vec<Shard> = Vec::new();
    let [latents, texts] = queue.head.first;
    for (kind, start, first) in [(ItemKind::Latent, LATENTS, latents), (ItemKind::Text, TEXTS, texts)] {
        let (mut number, mut size) = (first, 0);
        let mut open = false;
        for queued in queue.items.iter().filter(|queued| queued.item.work.kind() == kind) {
            let Some(entry) = entries.get(&queued.item.key).filter(|entry| entry.failure.is_none()) else { continue };
            let file: Arc<Utf8Path> = Arc::from(work.join(&entry.part));
            let bytes: u64 = entry.tensors.iter().map(|piece| piece.len).sum();
            if !open || size + bytes > queue.timing.shard {
                let name = format!("{start}{number:05}.safetensors");
                shards.push(Shard { file: NewTensorFile::new(name), tensors: Vec::new() });
                (number, size, open) = (number + 1, 0, true);
            }
            size += bytes;
            let shard = shards.last_mut().expect("a shard was opened");
            for piece in &entry.tensors {
                let role = if piece.role.is_empty() { String::new() } else { format!("/{}", piece.role) };
                let name = format!("{}{role}", queued.item.name);
                let span = Span { file: file.clone(), begin: piece.begin, len: piece.len };
                let dtype = Dtype::parse(&piece.dtype).unwrap_or(Dtype::U8);
                shard.file.tensors.push(TensorToWrite::copied(&name, &piece.shape, dtype, vec![span]));
                let bucket = queued.item.work.bucket();
                shard.tensors.push(Named {
                    name,
                    key: &entry.key,
                    role: &piece.role,
                    bucket,
                    piece,
                    part: &entry.part,
                });
            }
        }
    }
    shards
}

/// Writes the shards that do not exist yet, and removes each part file after the last shard that needs it.
fn write_shards(queue: &Queue, lease: &Heartbeat, shards: &[Shard], progress: OnProgress<'_>) -> Result<(), Failure> {
    let temporary = queue.generation().join(format!("join-{}", lease.epoch()));
    super::lease::create_dir(&temporary)?;
    let last_use: HashMap<&str, usize> = shards
        .iter()
        .enumerate()
        .flat_map(|(number, shard)| shard.tensors.iter().map(move |tensor| (tensor.part, number)))
        .collect();
    let total = shards.iter().map(|shard| shard.file.bytes()).sum();
    let (mut before, mut beaten) = (0, queue.timing.clock.now());
    for (number, shard) in shards.iter().enumerate() {
        let path = queue.data.join(&shard.file.name);
        if !is_complete(&path, &shard.file) {
            let partial = temporary.join(&shard.file.name);
            let mut step = |part: WriteProgress| {
                // If no thread sends heartbeats, renew the lease here.
                let now = queue.timing.clock.now();
                if now.saturating_sub(beaten) > Duration::from_secs(1) {
                    beaten = now;
                    if !lease.beat().unwrap_or(true) {
                        return ControlFlow::Break(());
                    }
                }
                progress(WriteProgress { doing: part.doing, done: before + part.done, total })
            };
            let written = write_tensor_files(&temporary, std::slice::from_ref(&shard.file), &mut step);
            let written = written.and_then(|_| {
                fs::rename(&partial, &path)
                    .and_then(|()| File::open(&queue.data)?.sync_all())
                    .map_err(|e| cannot_write(&path, &e))
            });
            if let Err(failure) = written {
                let _ = fs::remove_dir_all(&temporary);
                return Err(if failure.code == ErrorCode::Cancelled || failure.code == ErrorCode::DiskFull {
                    let fix = match failure.code {
                        ErrorCode::DiskFull => "free some space on that disk and start the encode again: it continues",
                        _ => "start the encode again: it continues",
                    };
                    Failure::new(failure.code, failure.what, failure.why, fix)
                } else {
                    failure
                });
            }
        }
        before += shard.file.bytes();
        for (part, _) in last_use.iter().filter(|(_, last)| **last == number) {
            // A failed removal does no harm: the work folder is removed at the end.
            let _ = fs::remove_file(queue.data.join(WORK).join(part));
        }
    }
    Ok(())
}

/// Returns whether an earlier call wrote this shard: its header is equal and no byte is missing.
fn is_complete(path: &Utf8Path, wanted: &NewTensorFile) -> bool {
    let header = wanted.header();
    let Ok(file) = open_regular(path) else { return false };
    let mut found = vec![0; header.len()];
    file.metadata().is_ok_and(|meta| meta.len() == wanted.bytes())
        && file.read_exact_at(&mut found, 0).is_ok()
        && found == header
}

impl Queue {
    fn latent(&self, place: TensorLocation, piece: &Piece, entry: &Entry, bucket: Option<Bucket>) -> Latent {
        let spec = self.head.spec.at(bucket);
        let drawn = piece.shape.get(1).is_some_and(|channels| *channels == spec.vae.channels);
        let bucket = match (spec.frames.count, spec.picture.height, spec.picture.width) {
            (frames, height, width) if frames * height * width > 0 => format!("{frames}x{height}x{width}"),
            _ => match piece.shape[..] {
                [frames, _, height, width] => format!("{frames}x{height}x{width}"),
                _ => "unknown".into(),
            },
        };
        let extra = BTreeMap::new();
        Latent { place, extra, shape: piece.shape.clone(), times: entry.times.clone(), bucket, drawn }
    }
}

/// Writes the specification and the index. Returns the number of clips in the index and the number of clips that are left out.
fn replace_index(queue: &Queue, known: &Known) -> Result<(usize, usize), Failure> {
    let spec = &queue.head.spec;
    let clips = queue.clips()?;
    let total = clips.len();
    let usable = clips.into_iter().filter_map(|clip| {
        let latent_key = clip.latent_key(spec);
        let latent = known.latents.get(&latent_key)?;
        let text_keys: Vec<String> = clip.captions.iter().map(|caption| spec.text_key(caption)).collect();
        let text = text_keys.iter().map(|key| known.texts.get(key).cloned()).collect::<Option<Vec<_>>>()?;
        Some(Line {
            id: clip.id,
            source: clip.source,
            content: clip.content,
            times: latent.times.clone(),
            shape: latent.shape.clone(),
            bucket: latent.bucket.clone(),
            caption: clip.captions.join("\n"),
            latent: latent.place.clone(),
            latent_key,
            drawn: latent.drawn,
            extra: latent.extra.clone(),
            text,
            text_keys,
        })
    });
    let lines: Vec<Line> = usable.collect();
    let empty_key = spec.text_key("");
    let empty_text = known.texts.get(&empty_key).cloned();
    let head = Head {
        schema: SCHEMA,
        clips: lines.len(),
        spec: spec.identity(),
        queue: queue.head.id.clone(),
        empty_key: if empty_text.is_some() { empty_key } else { String::new() },
        empty_text,
    };
    write_toml(&queue.data.join(SPEC), spec)?;
    let count = lines.len();
    write_index(&queue.data, &head, lines.into_iter().map(Ok))?;
    Ok((count, total - count))
}

/// Removes the work folder except the list of failures.
fn clean(queue: &Queue, failures: &[(&Item, &Failure)], quarantined: &[(Item, Failure)]) -> Result<(), Failure> {
    let work = queue.data.join(WORK);
    let mut all: BTreeMap<&str, (&Item, &Failure)> = BTreeMap::new();
    for (item, failure) in quarantined.iter().map(|(item, failure)| (item, failure)).chain(failures.iter().copied()) {
        all.insert(&item.key, (item, failure));
    }
    write_failures(&work, all.into_values())?;
    // The queue file is removed first: without it, a later encode ignores the remaining files. The holder of the folder's lease
    // removes the lease itself.
    let remove = |path: &Utf8Path, removed: std::io::Result<()>| match removed {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(cannot_write(path, &e)),
        _ => Ok(()),
    };
    let queue_file = work.join(QUEUE);
    remove(&queue_file, fs::remove_file(&queue_file))?;
    for entry in work.read_dir_utf8().map_err(|e| unreadable(&work, &e))? {
        let path = entry.map_err(|e| unreadable(&work, &e))?.into_path();
        if path.is_dir() {
            remove(&path, fs::remove_dir_all(&path))?;
        }
    }
    Ok(())
}
