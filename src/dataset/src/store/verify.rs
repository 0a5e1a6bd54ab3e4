//! Verifies a store: reads every tensor that the index names, compares it with its checksum, and names the clips of damaged tensors
//! (`vidtui data verify`). A reader names the clip of a damaged tensor in the same way.

use super::index::{Head, INDEX, Line, TensorLocation, read_index, write_index};
use super::{check_no_encode, is_working};
use crate::TensorSum;
use camino::Utf8Path;
use rundir::{ErrorCode, Failure, open_regular};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use weights::{Doing, Header, OnProgress, TensorInfo, WriteProgress, count_not_finite};

/// The maximum number of threads that read shards. One disk is not faster with more.
const THREADS: usize = 4;
/// The number of clips that a failure names.
const NAMED: usize = 3;
/// The role of a clip's latent.
const LATENT: &str = "latent";
/// The role of a text.
const TEXT: &str = "text";

/// The result of verifying a store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Verified {
    /// The number of clips in the index.
    pub clips: usize,
    /// The number of tensors that the index names.
    pub tensors: usize,
    /// The size of the tensors that were read.
    pub bytes: u64,
    /// The number of tensors whose checksum the index does not have, because an earlier version wrote them. Damage to them is found only
    /// if they cannot be read, or have values that are not finite.
    pub without_checksum: usize,
    /// The damaged tensors, by shard.
    pub damaged: Vec<DamagedTensor>,
    /// The checksums of undamaged tensors without one, by shard and name.
    #[serde(skip)]
    pub(crate) new: BTreeMap<TensorKey, TensorSum>,
}

/// A tensor that training cannot use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DamagedTensor {
    /// The shard.
    pub shard: String,
    /// The name of the tensor in the shard.
    pub tensor: String,
    /// `latent`, `text`, or the role of a tensor of the condition.
    pub role: String,
    /// The ids of the clips that use it.
    pub clips: Vec<String>,
    /// Whether it is the text of the empty caption.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub empty_caption: bool,
    /// The fault.
    pub why: String,
}

/// A change of the index after it was verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repair {
    /// Leaves out the clips that use a damaged tensor. The next encode of their videos encodes them again.
    Drop,
    /// Records the checksums of the undamaged tensors that have none.
    Record,
}

/// The shard and the name of a tensor.
type TensorKey = (String, String);

/// A tensor in the index.
#[derive(Debug, Default)]
struct Use {
    role: String,
    clips: Vec<String>,
    empty_caption: bool,
    sum: Option<TensorSum>,
}

impl Use {
    /// Returns the tensor in words: `the latent of clip 'a'`.
    fn in_words(&self) -> String {
        let clips = units::listed(&self.clips, NAMED, |clip| format!("'{clip}'"));
        let named = match self.clips.len() {
            1 => format!("clip {clips}"),
            _ => format!("clips {clips}"),
        };
        match (self.clips.is_empty(), self.empty_caption) {
            (true, true) => "the text of the empty caption".into(),
            (true, false) => format!("a {} that the index no longer names", self.role),
            (false, _) => format!("the {} of {named}", self.role),
        }
    }
}

/// Returns the tensors in the index of a store that are `wanted`, with the clips that use them, and the head of the index.
fn uses(
    data: &Utf8Path,
    wanted: impl Fn(&TensorLocation) -> bool,
) -> Result<(Head, BTreeMap<TensorKey, Use>), Failure> {
    let mut uses: BTreeMap<TensorKey, Use> = BTreeMap::new();
    let mut add = |place: TensorLocation, role: &str, clip: Option<&str>| {
        if wanted(&place) {
            let found = uses.entry((place.shard, place.name)).or_default();
            role.clone_into(&mut found.role);
            found.sum = place.xxh3;
            found.empty_caption |= clip.is_none();
            found
                .clips
                .extend(clip.filter(|clip| found.clips.last().is_none_or(|last| last != clip)).map(str::to_owned));
        }
    };
    let head = read_index(data, |_, line| {
        let Line { id, latent, extra, text, .. } = line;
        add(latent, LATENT, Some(&id));
        extra.into_iter().for_each(|(role, place)| add(place, &role, Some(&id)));
        text.into_iter().for_each(|place| add(place, TEXT, Some(&id)));
        Ok(())
    })?;
    if let Some(place) = head.empty_text.clone() {
        add(place, TEXT, None);
    }
    Ok((head, uses))
}

/// Returns the failure for a tensor at an offset of a shard, whose bytes do not have their checksum. It names the clips that use the
/// tensor.
pub fn damaged(shard: &Utf8Path, begin: u64) -> Failure {
    let data = shard.parent().unwrap_or(Utf8Path::new(""));
    let file_name = shard.file_name().unwrap_or_default();
    let header = Header::read(shard).ok();
    let at = |header: Header| header.tensors.into_iter().find(|(_, info)| info.begin == begin).map(|(name, _)| name);
    let tensor = header.and_then(at).unwrap_or_default();
    let is_it = |place: &TensorLocation| place.shard == file_name && place.name == tensor;
    let found = uses(data, is_it).ok().and_then(|(_, uses)| uses.into_values().next());
    let of = found.unwrap_or_else(|| Use { role: "tensor".into(), ..Use::default() }).in_words();
    Failure::new(
        ErrorCode::InvalidDataset,
        format!("{of} in the data set {data} is damaged"),
        format!("the bytes of the tensor '{tensor}' in {shard} do not have the checksum in {}", data.join(INDEX)),
        format!(
            "copy the shard again from its source; or leave out the damaged clips: vidtui data verify {data} --drop"
        ),
    )
}

/// Returns the ids of the clips whose latents are at these offsets of shards. A latent that is in no store has the path of its file.
pub(crate) fn clips_at(places: &BTreeSet<(&Utf8Path, u64)>) -> Vec<String> {
    let mut names = Vec::new();
    let mut by_folder: BTreeMap<&Utf8Path, BTreeSet<TensorKey>> = BTreeMap::new();
    for (file, begin) in places {
        let folder = file.parent().filter(|folder| folder.join(super::SPEC).exists());
        let header = folder.and_then(|_| Header::read(file).ok());
        let tensor = header.and_then(|header| header.tensors.into_iter().find(|(_, info)| info.begin == *begin));
        match (folder, tensor) {
            (Some(folder), Some((name, _))) => {
                let shard = file.file_name().unwrap_or_default().to_owned();
                by_folder.entry(folder).or_default().insert((shard, name));
            }
            _ => names.push(file.to_string()),
        }
    }
    for (folder, mut wanted) in by_folder {
        let key = |place: &TensorLocation| (place.shard.clone(), place.name.clone());
        if let Ok((_, uses)) = uses(folder, |place| wanted.contains(&key(place))) {
            wanted.retain(|key| !uses.contains_key(key));
            names.extend(uses.into_values().flat_map(|found| found.clips));
        }
        // An encode may have replaced the index since the start.
        names.extend(wanted.into_iter().map(|(_, name)| name));
    }
    names.sort();
    names.dedup();
    names
}

/// Verifies a store: reads all tensors that its index names.
///
/// # Errors
/// The folder is not a store, or its index is damaged; or `progress` returns `Break`.
pub fn verify(data: &Utf8Path, progress: OnProgress<'_>) -> Result<Verified, Failure> {
    let (head, uses) = uses(data, |_| true)?;
    let mut verified = Verified { clips: head.clips, tensors: uses.len(), ..Verified::default() };
    verified.without_checksum = uses.values().filter(|found| found.sum.is_none()).count();
    let mut by_shard: BTreeMap<&str, Vec<(&str, &Use)>> = BTreeMap::new();
    for ((shard, name), found) in &uses {
        by_shard.entry(shard).or_default().push((name, found));
    }
    let by_shard: Vec<(&str, Vec<(&str, &Use)>)> = by_shard.into_iter().collect();
    let size = |shard: &str| fs::metadata(data.join(shard)).map_or(0, |meta| meta.len());
    let total = by_shard.iter().map(|(shard, _)| size(shard)).sum();
    let (next, stop, results) = (AtomicUsize::new(0), AtomicBool::new(false), Mutex::new(Vec::new()));
    let (next, stop, results, by_shard) = (&next, &stop, &results, &by_shard);
    thread::scope(|scope| {
        let (read, reads) = channel();
        let threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS).min(by_shard.len());
        for _ in 0..threads {
            let read = read.clone();
            scope.spawn(move || {
                while let Some((shard, tensors)) = by_shard.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let found = in_shard(&data.join(shard), tensors, &read, stop);
                    results.lock().expect("no thread panics with this lock").push((*shard, found));
                }
            });
        }
        drop(read);
        for bytes in reads {
            verified.bytes += bytes;
            let step = WriteProgress { doing: Doing::Checking, done: verified.bytes, total };
            stop.fetch_or(progress(step).is_break(), Ordering::Relaxed);
        }
    });
    if stop.load(Ordering::Relaxed) {
        let (what, why) = (format!("{data} was not verified"), "the command was interrupted");
        return Err(Failure::new(ErrorCode::Cancelled, what, why, "run it again"));
    }
    let mut results = results.lock().expect("the threads have ended");
    results.sort_by_key(|(shard, _)| *shard);
    for (shard, found) in results.drain(..) {
        for (tensor, found) in found {
            let key = (shard.to_owned(), tensor.to_owned());
            match found {
                Ok(sum) => verified.new.extend(sum.filter(|_| uses[&key].sum.is_none()).map(|sum| (key, sum))),
                Err(why) => {
                    let Use { role, clips, empty_caption, .. } = &uses[&key];
                    let (role, clips, empty_caption) = (role.clone(), clips.clone(), *empty_caption);
                    let (shard, tensor) = key;
                    verified.damaged.push(DamagedTensor { shard, tensor, role, clips, empty_caption, why });
                }
            }
        }
    }
    Ok(verified)
}

/// The checksum of an intact tensor, or what is wrong with it.
type Found = Result<Option<TensorSum>, String>;

/// Reads the tensors of a shard, in the order of the file.
fn in_shard<'a>(
    shard: &Utf8Path,
    tensors: &[(&'a str, &Use)],
    read: &Sender<u64>,
    stop: &AtomicBool,
) -> Vec<(&'a str, Found)> {
    let failed = |why: String| tensors.iter().map(|(name, _)| (*name, Err(why.clone()))).collect();
    let header = match Header::read(shard) {
        Ok(header) => header,
        Err(error) => return failed(error.to_string()),
    };
    let file = match open_regular(shard) {
        Ok(file) => file,
        Err(error) => return failed(format!("cannot open {shard}: {error}")),
    };
    let mut tensors: Vec<(&str, &Use, Option<&TensorInfo>)> =
        tensors.iter().map(|(name, found)| (*name, *found, header.tensors.get(*name))).collect();
    tensors.sort_by_key(|(.., info)| info.map_or(0, |info| info.begin));
    let (mut all, mut bytes) = (Vec::with_capacity(tensors.len()), Vec::new());
    for (name, used, info) in tensors {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let Some(info) = info else {
            all.push((name, Err(format!("{shard} has no tensor '{name}'"))));
            continue;
        };
        bytes.resize(usize::try_from(info.end - info.begin).expect("tensors fit in the address space"), 0);
        let found = match file.read_exact_at(&mut bytes, info.begin) {
            Err(error) => Err(format!("cannot read {shard}: {error}")),
            Ok(()) => intact(used, info, &bytes),
        };
        all.push((name, found));
        // The receiver only closes when the work ends.
        let _ = read.send(bytes.len() as u64);
    }
    all
}

/// Compares the bytes of a tensor with its checksum, and looks for values that are not finite.
fn intact(used: &Use, info: &TensorInfo, bytes: &[u8]) -> Found {
    let sum = TensorSum::of(bytes);
    if let Some(recorded) = used.sum
        && !recorded.is_of(bytes)
    {
        let found = sum.map_or_else(|| "0".into(), |sum| sum.to_string());
        return Err(format!("its checksum is {found}, the index has {recorded}"));
    }
    match count_not_finite(info.dtype, bytes) {
        0 => Ok(sum),
        values => Err(not_finite_in_words(values)),
    }
}

/// Describes a tensor with this number of values that are not finite.
pub(crate) fn not_finite_in_words(values: u64) -> String {
    match values {
        1 => "one of its values is NaN or infinite".into(),
        values => format!("{} of its values are NaN or infinite", units::grouped(values)),
    }
}

/// Changes the index of a store that was verified. Returns the ids of the clips that are left out.
///
/// # Errors
/// [`ErrorCode::AlreadyExists`] if an encode of the data set is running or was interrupted; or the index cannot be read or replaced.
pub fn repair(data: &Utf8Path, verified: &Verified, repairs: &[Repair]) -> Result<Vec<String>, Failure> {
    if is_working(data) {
        check_no_encode(data, &|_| false)?;
        return Err(Failure::new(
            ErrorCode::AlreadyExists,
            format!("cannot change the index of {data}"),
            "an encode into it was interrupted",
            "finish it first: vidtui resume RUN",
        ));
    }
    let (drops, records) = (repairs.contains(&Repair::Drop), repairs.contains(&Repair::Record));
    let bad: BTreeSet<(&str, &str)> =
        verified.damaged.iter().map(|found| (found.shard.as_str(), found.tensor.as_str())).collect();
    let is_bad = |place: &TensorLocation| drops && bad.contains(&(place.shard.as_str(), place.name.as_str()));
    let record = |place: &mut TensorLocation| {
        if records && place.xxh3.is_none() {
            place.xxh3 = verified.new.get(&(place.shard.clone(), place.name.clone())).copied();
        }
    };
    let (mut lines, mut dropped) = (Vec::new(), Vec::new());
    let mut head = read_index(data, |_, mut line| {
        if std::iter::once(&line.latent).chain(line.extra.values()).chain(&line.text).any(is_bad) {
            dropped.push(line.id);
        } else {
            std::iter::once(&mut line.latent).chain(line.extra.values_mut()).chain(&mut line.text).for_each(record);
            lines.push(line);
        }
        Ok(())
    })?;
    head.clips = lines.len();
    if head.empty_text.as_ref().is_some_and(is_bad) {
        (head.empty_text, head.empty_key) = (None, String::new());
    }
    head.empty_text.iter_mut().for_each(record);
    write_index(data, &head, lines.into_iter().map(Ok))?;
    Ok(dropped)
}
