//! Probes all videos of a source on all cores, and caches the results for the next check.

use super::facts::{ProbeResult, probe};
use super::{CheckProgress, CheckRequest};
use crate::ExclusionReason;
use crate::layouts::SourceListing;
use crate::stamp::{Stamp, hash};
use camino::{Utf8Path, Utf8PathBuf};
use rundir::{ErrorCode, Failure, LineAppender, open_regular, xxh3_hex};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io::{BufRead, BufReader};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// The version of the rules of a probe. Cached results of other versions are ignored: until version 4, a playlist was a video.
const RULES: u32 = 5;
/// The interval of progress reports while all workers wait for ffprobe.
pub(super) const TICK: Duration = Duration::from_millis(100);

/// The result of one file: its stamp, the hash of its bytes, and what the probe found.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Outcome {
    pub stamp: Stamp,
    pub content: String,
    pub found: ProbeResult,
}

/// The results of all files.
#[derive(Debug, Default)]
pub(super) struct Results {
    /// By path.
    pub by_path: HashMap<Utf8PathBuf, Outcome>,
    /// The number of results that an earlier check cached.
    pub cached: usize,
    /// Why the results could not be cached, if caching failed.
    pub not_kept: Option<String>,
}

/// A line of the cache.
#[derive(Serialize, Deserialize)]
struct Kept {
    rules: u32,
    path: Utf8PathBuf,
    #[serde(flatten)]
    stamp: Stamp,
    content: String,
    found: ProbeResult,
}

/// Probes every video that the source lists, except those that the cache has.
pub(super) fn probe_all(
    source: &SourceListing,
    request: &CheckRequest<'_>,
    on_progress: &mut dyn FnMut(CheckProgress) -> ControlFlow<()>,
) -> Result<Results, Failure> {
    let paths: BTreeSet<&Utf8Path> =
        source.rows.iter().filter(|row| row.excluded.is_none()).map(|row| row.path.as_path()).collect();
    let mut results = Results::default();
    let cache = request
        .cache
        .as_ref()
        .map(|folder| folder.join(format!("{}.jsonl", xxh3_hex(source.root.as_str().as_bytes()))));
    let mut kept = cache.as_deref().map(read_kept).unwrap_or_default();
    let mut keep = match &cache {
        Some(path) => open_kept(path).map_err(|why| results.not_kept = Some(why)).ok(),
        None => None,
    };
    let mut wanted: Vec<(&Utf8Path, Stamp)> = Vec::new();
    for path in &paths {
        match Stamp::of(path) {
            Err(reason) => _ = results.by_path.insert((*path).to_owned(), Outcome::excluded(reason)),
            Ok(stamp) => match kept.remove(*path).filter(|kept| kept.stamp == stamp) {
                Some(Kept { content, found, .. }) => {
                    results.cached += 1;
                    results.by_path.insert((*path).to_owned(), Outcome { stamp, content, found });
                }
                None => wanted.push((path, stamp)),
            },
        }
    }
    // A program that does not start would be a fault of every video.
    if wanted.iter().any(|(path, _)| !video::is_picture(path) && !path.is_dir()) {
        request.programs.check_ffprobe()?;
    }
    let total = paths.len();
    let mut progress = CheckProgress { done: total - wanted.len(), total, cached: results.cached };
    let next = AtomicUsize::new(0);
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..request.workers.clamp(1, wanted.len().max(1)) {
            let (sender, next, wanted) = (sender.clone(), &next, &wanted);
            scope.spawn(move || {
                while let Some(&(path, stamp)) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if sender.send((path, stamp, work(request, path))).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        let stop = |failure: Failure| {
            next.store(wanted.len(), Ordering::Relaxed);
            request.programs.cancel.cancel();
            Err(failure)
        };
        loop {
            if on_progress(progress).is_break() {
                return stop(interrupted(progress));
            }
            let (path, stamp, worked) = match receiver.recv_timeout(TICK) {
                Ok(done) => done,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            };
            let Worked { content, found, cacheable } = match worked {
                Ok(worked) => worked,
                Err(failure) => return stop(failure),
            };
            if let Some(file) = keep.as_mut().filter(|_| cacheable) {
                let line =
                    Kept { rules: RULES, path: path.to_owned(), stamp, content: content.clone(), found: found.clone() };
                if let Err(error) = file.append(&line) {
                    results.not_kept = Some(error.to_string());
                    keep = None;
                }
            }
            results.by_path.insert(path.to_owned(), Outcome { stamp, content, found });
            progress.done += 1;
        }
    })?;
    Ok(results)
}

impl Outcome {
    fn excluded(reason: ExclusionReason) -> Self {
        Self { stamp: Stamp::default(), content: String::new(), found: ProbeResult::Excluded(reason) }
    }
}

struct Worked {
    content: String,
    found: ProbeResult,
    cacheable: bool,
}

fn work(request: &CheckRequest<'_>, path: &Utf8Path) -> Result<Worked, Failure> {
    let content = match hash(path, &request.programs.cancel) {
        Ok(content) => content,
        Err(failure) if failure.code == ErrorCode::Cancelled => return Err(failure),
        Err(failure) => {
            let found = ProbeResult::Excluded(ExclusionReason::Unreadable { why: failure.why });
            return Ok(Worked { content: String::new(), found, cacheable: false });
        }
    };
    let probed = probe(&request.programs, path)?;
    Ok(Worked { content, found: probed.found, cacheable: probed.cacheable })
}

pub(super) fn interrupted(progress: CheckProgress) -> Failure {
    Failure::new(
        ErrorCode::Cancelled,
        "the check was interrupted",
        format!("{} of {} were checked", progress.done, units::counted(progress.total, "video")),
        "run the command again: it continues with the rest",
    )
}

/// Reads the results of earlier checks. Lines that cannot be read, for example a torn last one, are left out.
fn read_kept(path: &Utf8Path) -> HashMap<Utf8PathBuf, Kept> {
    let Ok(file) = open_regular(path) else { return HashMap::new() };
    let lines = BufReader::new(file).split(b'\n').map_while(Result::ok);
    let kept = lines.filter_map(|line| serde_json::from_slice::<Kept>(&line).ok());
    kept.filter(Kept::is_valid).map(|kept| (kept.path.clone(), kept)).collect()
}

impl Kept {
    fn is_valid(&self) -> bool {
        self.rules == RULES
    }
}

fn open_kept(path: &Utf8Path) -> Result<LineAppender, String> {
    let open = || {
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        LineAppender::open(path)
    };
    open().map_err(|error| format!("{path}: {error}"))
}
