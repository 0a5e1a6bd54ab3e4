//! Opens a store for training: finds every tensor that the index names in the headers of the shards.
//!
//! Opening a million clips takes seconds: lines are parsed without copies, all names are in one buffer, and threads read the headers.

use super::index::{Head, INDEX, Lines, bad, malformed, shard_name};
use super::spec::StoreSpec;
use crate::index::{DTYPES, check_text, wrong_count};
use crate::open::Latents;
use crate::table::{Slot, SourceFile, Table, TensorKind};
use crate::{DatasetInfo, TensorSum};
use camino::{Utf8Path, Utf8PathBuf};
use recipe::Model;
use rundir::{ErrorCode, Failure};
use serde::Deserialize;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use weights::{Header, TensorInfo};
use xxhash_rust::xxh3::Xxh3;

/// The fields of a [`super::Line`] that training needs.
#[derive(Deserialize)]
struct BriefLine<'a> {
    #[serde(borrow)]
    latent: BriefPlace<'a>,
    #[serde(borrow)]
    latent_key: Cow<'a, str>,
    #[serde(default)]
    drawn: bool,
    #[serde(borrow)]
    text: Vec<BriefPlace<'a>>,
    #[serde(borrow)]
    text_keys: Vec<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct BriefPlace<'a> {
    #[serde(borrow, deserialize_with = "shard_name")]
    shard: Cow<'a, str>,
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(default)]
    xxh3: Option<TensorSum>,
}

/// A tensor that the index names. `name` and `name_len` are the place of its name in [`Names::names`].
#[derive(Clone, Copy)]
struct Wanted {
    shard: u32,
    name_len: u32,
    name: u64,
    /// The index of its slot: latents first, then texts, then the empty caption.
    target: u64,
    sum: Option<TensorSum>,
    line: u32,
    drawn: bool,
}

/// The names of shards and tensors in the index.
#[derive(Default)]
struct Names {
    shards: Vec<String>,
    numbers: HashMap<String, u32>,
    names: String,
    wanted: Vec<Wanted>,
}

impl Names {
    fn add(&mut self, place: &BriefPlace, target: u64, line: usize, drawn: bool) {
        let shard = match self.numbers.get(place.shard.as_ref()) {
            Some(number) => *number,
            None => {
                let number = u32::try_from(self.shards.len()).expect("fewer than 4 billion shards");
                self.shards.push(place.shard.to_string());
                self.numbers.insert(place.shard.to_string(), number);
                number
            }
        };
        let (name, name_len) = (self.names.len() as u64, place.name.len() as u32);
        self.names.push_str(&place.name);
        self.wanted.push(Wanted { shard, name_len, name, target, sum: place.xxh3, line: line as u32, drawn });
    }

    fn name(&self, wanted: &Wanted) -> &str {
        &self.names[wanted.name as usize..][..wanted.name_len as usize]
    }
}

/// The index of a store, read for training.
struct BriefIndex {
    names: Names,
    samples: usize,
    has_empty: bool,
    fingerprint: String,
}

/// Opens a store and checks that its latents and texts fit `model`.
///
/// # Errors
/// The specification does not fit the model, the index is damaged or names a missing tensor, or a shard is missing or truncated.
pub(crate) fn open_table(data: &Utf8Path, latents: Latents<'_>) -> Result<Table, Failure> {
    let (spec, model) = (StoreSpec::read(data)?, latents.model);
    spec.check_model(data, model)?;
    let index = read(data, &spec, model)?;
    let path = data.join(INDEX);
    let found = find(data, &path, &index, latents)?;
    let bytes = found.files.iter().map(|file| file.bytes).fold(0, u64::saturating_add);
    let mut slots = found.slots;
    let empty = if index.has_empty { slots.pop() } else { None };
    let texts = slots.split_off(index.samples);
    let info = DatasetInfo { samples: index.samples, bytes, fingerprint: index.fingerprint };
    Ok(Table::of_slots(&path, info, (found.files, found.kinds), model.segments(), (slots, texts, empty)))
}

/// Reads the index.
fn read(data: &Utf8Path, spec: &StoreSpec, model: &Model) -> Result<BriefIndex, Failure> {
    let path = data.join(INDEX);
    let (head, mut lines) = Lines::open(&path)?;
    check_head(data, &head, spec)?;
    let (mut names, mut hash, mut sample) = (Names::default(), Xxh3::new(), 0);
    let segments = model.segments() as u64;
    let clips = head.clips as u64;
    while let Some((number, line)) = lines.next()? {
        let line: BriefLine = serde_json::from_slice(line).map_err(|e| malformed(&path, number, &e))?;
        if line.text.len() != model.segments() {
            let what = format!("line {number} of {path} has texts for another number of segments");
            return Err(wrong_count(what, line.text.len(), model));
        }
        hash.update(line.latent_key.as_bytes());
        line.text_keys.iter().for_each(|key| hash.update(key.as_bytes()));
        names.add(&line.latent, sample, number, line.drawn);
        for (segment, text) in line.text.iter().enumerate() {
            names.add(text, clips + sample * segments + segment as u64, number, false);
        }
        sample += 1;
    }
    lines.end(&head)?;
    if sample == 0 {
        return Err(Failure::new(
            ErrorCode::InvalidDataset,
            format!("the data set {data} is empty"),
            "its index has no clips",
            format!("see which clips failed, then encode again: vidtui data show {data}"),
        ));
    }
    if let Some(empty) = &head.empty_text {
        hash.update(head.empty_key.as_bytes());
        let place =
            BriefPlace { shard: empty.shard.as_str().into(), name: empty.name.as_str().into(), xxh3: empty.xxh3 };
        names.add(&place, clips * (1 + segments), 1, false);
    }
    let fingerprint = format!("{:016x}", hash.digest());
    Ok(BriefIndex { names, samples: head.clips, has_empty: head.empty_text.is_some(), fingerprint })
}

fn check_head(data: &Utf8Path, head: &Head, spec: &StoreSpec) -> Result<(), Failure> {
    if head.spec == spec.identity() {
        return Ok(());
    }
    Err(Failure::new(
        ErrorCode::InvalidDataset,
        format!("the data set {data} is between two encodes"),
        "dataset.toml was replaced, and the index was not yet",
        "start the encode again: it only replaces the index",
    ))
}

/// The slots of all tensors.
struct StoredTensors {
    files: Vec<SourceFile>,
    kinds: Vec<TensorKind>,
    slots: Vec<Slot>,
}

/// The tensors of one shard.
struct InShard {
    bytes: u64,
    kinds: Vec<TensorKind>,
    /// For each tensor: [`Wanted::target`], its index in `kinds`, and its offset and checksum.
    slots: Vec<(u64, usize, u64, Option<TensorSum>)>,
}

/// Finds all tensors, shard by shard, in threads.
fn find(data: &Utf8Path, path: &Utf8Path, index: &BriefIndex, latents: Latents<'_>) -> Result<StoredTensors, Failure> {
    let names = &index.names;
    let mut by_shard: Vec<Vec<Wanted>> = vec![Vec::new(); names.shards.len()];
    for wanted in &names.wanted {
        by_shard[wanted.shard as usize].push(*wanted);
    }
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(by_shard.len())));
    let threads = thread::available_parallelism().map_or(1, usize::from).min(16).min(by_shard.len());
    let work = || loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let Some(wanted) = by_shard.get(number) else { break };
        let found = in_shard(data, path, names, number, wanted, index.samples, latents);
        let failed = found.is_err();
        results.lock().expect("no thread panics with this lock").push((number, found));
        if failed {
            // Start no further shard. Shards with lower numbers are already being read and are completed, so that the reported
            // failure is always that of the first shard that fails.
            next.fetch_max(by_shard.len(), Ordering::Relaxed);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
    let mut results = results.into_inner().expect("no thread panics with this lock");
    results.sort_by_key(|(number, _)| *number);
    let mut found = StoredTensors {
        files: Vec::with_capacity(results.len()),
        kinds: Vec::new(),
        slots: vec![Slot::new(0, 0, 0, None); names.wanted.len()],
    };
    for (number, result) in results {
        let InShard { bytes, kinds, slots } = result?;
        let kinds: Vec<usize> = kinds
            .into_iter()
            .map(|kind| {
                found.kinds.iter().position(|known| *known == kind).unwrap_or_else(|| {
                    found.kinds.push(kind);
                    found.kinds.len() - 1
                })
            })
            .collect();
        found.files.push(SourceFile { path: data.join(&names.shards[number]), bytes });
        for (target, kind, begin, sum) in slots {
            found.slots[target as usize] = Slot::new(number, kinds[kind], begin, sum);
        }
    }
    Ok(found)
}

/// Finds and checks the tensors of a shard.
fn in_shard(
    data: &Utf8Path,
    path: &Utf8Path,
    names: &Names,
    number: usize,
    wanted: &[Wanted],
    samples: usize,
    latents: Latents<'_>,
) -> Result<InShard, Failure> {
    let shard: Utf8PathBuf = data.join(&names.shards[number]);
    let header = Header::read(&shard).map_err(|error| {
        let Failure { code, what, why, .. } = error.into();
        let fix = "copy the shard again from its source, or remove it with the index and encode the data set again";
        Failure::new(code, format!("the data set {data} cannot be used"), format!("{what}: {why}"), fix)
    })?;
    let mut found = InShard { bytes: header.bytes, kinds: Vec::new(), slots: Vec::with_capacity(wanted.len()) };
    for wanted in wanted {
        let name = names.name(wanted);
        let Some(info) = header.tensors.get(name) else {
            let why = format!("line {} names the tensor '{name}', which {shard} does not have", wanted.line);
            return Err(bad(path, why));
        };
        let is_latent = wanted.target < samples as u64;
        let moments = is_latent && !wanted.drawn;
        let same =
            |kind: &TensorKind| kind.moments == moments && kind.shape == info.shape && kind.dtype == info.dtype.name();
        let kind = match found.kinds.iter().position(same) {
            Some(kind) => kind,
            None => {
                check_tensor(path, &shard, name, wanted, info, is_latent, latents)?;
                let dtype = info.dtype.name().to_owned();
                found.kinds.push(TensorKind { dtype, shape: info.shape.clone(), moments });
                found.kinds.len() - 1
            }
        };
        found.slots.push((wanted.target, kind, info.begin, wanted.sum));
    }
    Ok(found)
}

fn check_tensor(
    path: &Utf8Path,
    shard: &Utf8Path,
    name: &str,
    wanted: &Wanted,
    info: &TensorInfo,
    is_latent: bool,
    latents: Latents<'_>,
) -> Result<(), Failure> {
    let what = |what: &str| format!("line {} of {path} {what}", wanted.line);
    let holder = format!("'{name}' in {shard}");
    if !DTYPES.contains(&info.dtype) {
        return Err(Failure::new(
            ErrorCode::InvalidDataset,
            what("names a tensor of the wrong type"),
            format!("{holder} has dtype {}, expected F32, F16 or BF16", info.dtype),
            "encode the data set again",
        ));
    }
    if !is_latent {
        return check_text(what, &holder, &info.shape, latents.model);
    }
    latents.check(what, &holder, &info.shape, !wanted.drawn)
}
