//! Downloads the files of a model into the cache.

use crate::Settings;
use crate::cache::{Cache, create_parent};
use crate::client::{Client, RequestError};
use crate::download::{Download, interrupted, wait};
use crate::kind::Kind;
use crate::listing::{ListedFile, Listing};
use crate::select::select;
use camino::{Utf8Path, Utf8PathBuf};
use failure::{ErrorCode, Failure};
use nix::sys::statvfs::statvfs;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::ControlFlow;

/// The free space that is left on the disk for other programs.
const SPARE: u64 = 64 << 20;

/// A request to download files of a model or a data set.
#[derive(Debug, Clone, Default)]
pub struct FetchRequest {
    /// The kind of the repository.
    pub kind: Kind,
    /// `OWNER/NAME`.
    pub model: String,
    /// A branch, a tag or a commit.
    pub revision: String,
    /// Files, folders, or patterns with `*`. Empty: all files of a data set; all files of a model except documentation, images and videos.
    pub files: Vec<String>,
}

/// The progress of a download.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FetchProgress<'a> {
    /// The file that is being downloaded.
    pub file: &'a str,
    /// Whether the bytes of an earlier, partial download are being verified.
    pub verifies: bool,
    /// Bytes of all files that are on the disk.
    pub done: u64,
    /// Bytes of all files.
    pub total: u64,
}

/// A model or a data set in the cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fetched {
    /// The folder of the files.
    pub folder: Utf8PathBuf,
    /// The commit of the revision.
    pub commit: String,
    /// The number of files.
    pub files: usize,
    /// The size of the files.
    pub bytes: u64,
    /// The number of files that this call downloaded.
    pub downloaded: usize,
}

/// Downloads the requested files of a model or a data set that are missing in the cache.
///
/// # Errors
/// `HubUnreachable`, `HubFailed`, `NotFound`, `PermissionDenied` (gated or private), `DiskFull`, `DownloadDamaged`,
/// `UnknownName` (no such file), `Cancelled`, or an error of the file system. Downloaded bytes are kept for the next
/// call.
pub fn fetch(
    request: &FetchRequest,
    settings: &Settings,
    on_progress: &mut dyn FnMut(FetchProgress<'_>) -> ControlFlow<()>,
) -> Result<Fetched, Failure> {
    let FetchRequest { kind, model, revision, files } = request;
    check_names(*kind, model, revision)?;
    let cache = Cache::new(&settings.cache, *kind, model);
    if settings.offline {
        return offline(&cache, request);
    }
    let client = Client::new(settings, *kind, model);
    let mut began = || on_progress(FetchProgress { file: "", verifies: false, done: 0, total: 0 });
    let listing = retried(settings, &mut began, &mut || Listing::request(&client, revision))?;
    let wanted = select(*kind, model, &listing.files, files)?;
    let missing: Vec<&ListedFile> = wanted.iter().filter(|file| !is_there(&cache, file)).collect();
    check_room(&cache, &missing)?;
    let total = wanted.iter().map(|file| file.size).sum();
    let mut before: u64 = total - missing.iter().map(|file| file.size).sum::<u64>();
    let mut downloaded = BTreeSet::new();
    for file in &missing {
        // Two files with the same bytes have one blob.
        if downloaded.insert(file.expected.digits()) {
            let download = Download { client: &client, settings, cache: &cache, commit: &listing.commit, file };
            download.run(&mut |done, verifies| {
                on_progress(FetchProgress { file: &file.path, verifies, done: before + done, total })
            })?;
        }
        before += file.size;
    }
    for file in &wanted {
        cache.link(&listing.commit, &file.path, file.expected.digits())?;
    }
    cache.set_commit(revision, &listing.commit)?;
    let folder = cache.snapshot(&listing.commit);
    Ok(Fetched { folder, commit: listing.commit, files: wanted.len(), bytes: total, downloaded: downloaded.len() })
}

/// Repeats a call, with pauses, until it succeeds or fails permanently.
fn retried<T>(
    settings: &Settings,
    goes_on: &mut dyn FnMut() -> ControlFlow<()>,
    call: &mut dyn FnMut() -> Result<T, RequestError>,
) -> Result<T, Failure> {
    let mut pause = settings.pause;
    for _ in 0..settings.retries {
        if goes_on().is_break() {
            return Err(interrupted());
        }
        match call() {
            Ok(value) => return Ok(value),
            // If the network is unreachable, fail at once.
            Err(RequestError::Transient(failure)) if failure.code == ErrorCode::HubUnreachable => return Err(failure),
            Err(RequestError::Transient(_)) => wait(pause, goes_on)?,
            Err(RequestError::Lasting(failure)) => return Err(failure),
        }
        pause *= 2;
    }
    call().map_err(RequestError::into_failure)
}

/// Returns whether the bytes of a file are in the cache. They were verified before they were renamed.
fn is_there(cache: &Cache, file: &ListedFile) -> bool {
    fs::metadata(cache.blob(file.expected.digits())).is_ok_and(|blob| blob.len() == file.size)
}

fn check_names(kind: Kind, model: &str, revision: &str) -> Result<(), Failure> {
    let is_name = |part: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        !part.is_empty() && !part.starts_with('.') && !part.contains("..") && part.bytes().all(is_plain)
    };
    if model.split('/').count() != 2 || !model.split('/').all(is_name) {
        return Err(Failure::new(
            ErrorCode::InvalidArgument,
            format!("cannot download '{model}'"),
            format!("the name of a {} has the form OWNER/NAME", kind.noun()),
            match kind {
                Kind::Model => "for example: vidtui fetch zai-org/CogVideoX-5b",
                Kind::Dataset => "for example: vidtui fetch --dataset finetrainers/cakeify-smol",
            },
        ));
    }
    if revision.split('/').all(is_name) {
        return Ok(());
    }
    let why = format!("'{revision}' is not the name of a branch or tag, or a commit");
    Err(Failure::new(
        ErrorCode::InvalidArgument,
        format!("cannot download {model}"),
        why,
        "for example: --revision main",
    ))
}

fn check_room(cache: &Cache, missing: &[&ListedFile]) -> Result<(), Failure> {
    let left = |file: &&ListedFile| {
        let there = fs::metadata(cache.incomplete(file.expected.digits())).map_or(0, |partial| partial.len());
        file.size.saturating_sub(there)
    };
    // Files with the same content are downloaded once.
    let blobs: BTreeMap<&str, &&ListedFile> = missing.iter().map(|file| (file.expected.digits(), file)).collect();
    let needed: u64 = blobs.into_values().map(left).sum();
    let folder = cache.folder();
    create_parent(&folder)?;
    let Some(room) = free(&folder) else { return Ok(()) };
    if needed == 0 || room >= needed.saturating_add(SPARE) {
        return Ok(());
    }
    Err(Failure::new(
        ErrorCode::DiskFull,
        format!("cannot download into {folder}"),
        format!("{} are missing, and the disk has {} free", units::size(needed), units::size(room)),
        "free some space, or name a cache on a larger disk: --cache DIR",
    ))
}

/// Returns the free bytes of the disk of a folder that may not exist yet.
fn free(folder: &Utf8Path) -> Option<u64> {
    let there = folder.ancestors().find(|folder| folder.exists())?;
    let disk = statvfs(there.as_std_path()).ok()?;
    Some(disk.blocks_available() as u64 * disk.fragment_size() as u64)
}

/// Returns the cached files of the model.
fn offline(cache: &Cache, request: &FetchRequest) -> Result<Fetched, Failure> {
    let FetchRequest { model, revision, .. } = request;
    let Some(commit) = cache.commit(revision).filter(|commit| cache.snapshot(commit).is_dir()) else {
        return Err(Failure::new(
            ErrorCode::NotFound,
            format!("{model} is not in the cache"),
            format!("HF_HUB_OFFLINE is set, and {} has no revision '{revision}'", cache.folder()),
            "unset HF_HUB_OFFLINE, or run the command on a machine with a network and the same cache",
        ));
    };
    let folder = cache.snapshot(&commit);
    let (files, bytes) = contents(&folder);
    Ok(Fetched { folder, commit, files, bytes, downloaded: 0 })
}

fn contents(folder: &Utf8Path) -> (usize, u64) {
    let entries = folder.read_dir_utf8().into_iter().flatten().filter_map(Result::ok);
    let each = entries.map(|entry| match fs::metadata(entry.path()) {
        Ok(found) if found.is_dir() => contents(entry.path()),
        Ok(found) => (1, found.len()),
        Err(_) => (0, 0),
    });
    each.fold((0, 0), |(files, bytes), (more, size)| (files + more, bytes + size))
}
