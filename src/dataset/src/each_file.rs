//! Does a work on many files on all cores, and keeps each result until its file changes.

use crate::ExclusionReason;
use crate::layouts::SourceListing;
use crate::stamp::Stamp;
use camino::{Utf8Path, Utf8PathBuf};
use rundir::{ErrorCode, Failure, LineAppender, open_regular, xxh3_hex};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io::{BufRead, BufReader};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;
use video::Cancel;

/// The interval of progress reports while all workers wait for a program.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// The progress of a work. All numbers are 0 while the source is read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CheckProgress {
    /// Videos that are done, including those with kept results.
    pub done: usize,
    /// All videos.
    pub total: usize,
    /// Videos whose results were kept by an earlier call.
    pub cached: usize,
}

/// Receives the progress of a work, and may end it.
pub type OnProgress<'a> = &'a mut dyn FnMut(CheckProgress) -> ControlFlow<()>;

/// How a work is done.
pub(crate) struct EachFile<'a> {
    /// The version of the rules of the work. Results of other versions are not used.
    pub rules: u32,
    /// The file with the kept results. `None`: results are not kept.
    pub cache: Option<Utf8PathBuf>,
    /// Files that are worked on at the same time.
    pub workers: usize,
    /// Ends the programs of the work.
    pub cancel: &'a Cancel,
    /// The noun of the work in failures: `check`.
    pub noun: &'a str,
}

/// A result, and whether it may be kept until the file changes.
pub(crate) struct Worked<T> {
    pub result: T,
    pub may_be_kept: bool,
}

/// The results of a work.
#[derive(Debug)]
pub(crate) struct Results<T> {
    /// By path, with the stamp of the file.
    pub by_path: HashMap<Utf8PathBuf, (Stamp, T)>,
    /// The number of results that an earlier call kept.
    pub cached: usize,
    /// Why the results could not be kept, if that failed.
    pub not_kept: Option<String>,
}

/// A line of the file with the kept results.
#[derive(Serialize, Deserialize)]
struct Kept<T> {
    rules: u32,
    path: Utf8PathBuf,
    #[serde(flatten)]
    stamp: Stamp,
    #[serde(flatten)]
    result: T,
}

/// The files of a source with their stamps, and the files that have none, each file once.
type StampedFiles<'a> = (Vec<(&'a Utf8Path, Stamp)>, Vec<(&'a Utf8Path, ExclusionReason)>);

/// Returns the files of the rows that the layout did not exclude, by path.
pub(crate) fn stamped(source: &SourceListing) -> StampedFiles<'_> {
    let paths: BTreeSet<&Utf8Path> =
        source.rows.iter().filter(|row| row.excluded.is_none()).map(|row| row.path.as_path()).collect();
    let (mut files, mut excluded) = (Vec::new(), Vec::new());
    for path in paths {
        match Stamp::of(path) {
            Ok(stamp) => files.push((path, stamp)),
            Err(reason) => excluded.push((path, reason)),
        }
    }
    (files, excluded)
}

/// Returns the file with the kept results about the files of a source.
pub(crate) fn cache_file(folder: &Utf8Path, root: &Utf8Path) -> Utf8PathBuf {
    folder.join(format!("{}.jsonl", xxh3_hex(root.as_str().as_bytes())))
}

/// Returns the cache folder of the user. Losing its content costs time only.
pub(crate) fn cache_folder(name: &str) -> Option<Utf8PathBuf> {
    let named = |name: &str| std::env::var(name).ok().filter(|path| path.starts_with('/')).map(Utf8PathBuf::from);
    let folder = named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")))?;
    Some(folder.join("vidtui").join(name))
}

impl EachFile<'_> {
    /// Does the work on each file, except those with kept results. Each result is kept at once, so that an interrupted work can continue.
    /// `begin` is called first if there is a file to work on.
    ///
    /// # Errors
    /// `begin` or `work` fails, or `on_progress` breaks (`Cancelled`).
    pub fn run<T: Serialize + DeserializeOwned + Clone + Send>(
        &self,
        files: &[(&Utf8Path, Stamp)],
        begin: impl FnOnce(&[(&Utf8Path, Stamp)]) -> Result<(), Failure>,
        work: &(dyn Fn(&Utf8Path) -> Result<Worked<T>, Failure> + Sync),
        on_progress: OnProgress<'_>,
    ) -> Result<Results<T>, Failure> {
        let mut results = Results { by_path: HashMap::new(), cached: 0, not_kept: None };
        let mut kept = self.cache.as_deref().map(|path| self.read_kept(path)).unwrap_or_default();
        let mut keep = match &self.cache {
            Some(path) => open_kept(path).map_err(|why| results.not_kept = Some(why)).ok(),
            None => None,
        };
        let mut wanted: Vec<(&Utf8Path, Stamp)> = Vec::new();
        for (path, stamp) in files {
            match kept.remove(*path).filter(|kept: &Kept<T>| kept.stamp == *stamp) {
                Some(Kept { result, .. }) => {
                    results.cached += 1;
                    results.by_path.insert((*path).to_owned(), (*stamp, result));
                }
                None => wanted.push((path, *stamp)),
            }
        }
        begin(&wanted)?;
        let total = files.len();
        let mut progress = CheckProgress { done: total - wanted.len(), total, cached: results.cached };
        let next = AtomicUsize::new(0);
        let (sender, receiver) = mpsc::channel();
        thread::scope(|scope| {
            for _ in 0..self.workers.clamp(1, wanted.len().max(1)) {
                let (sender, next, wanted) = (sender.clone(), &next, &wanted);
                scope.spawn(move || {
                    while let Some(&(path, stamp)) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if sender.send((path, stamp, work(path))).is_err() {
                            break;
                        }
                    }
                });
            }
            drop(sender);
            let stop = |failure: Failure| {
                next.store(wanted.len(), Ordering::Relaxed);
                self.cancel.cancel();
                Err(failure)
            };
            loop {
                if on_progress(progress).is_break() {
                    return stop(interrupted(self.noun, progress));
                }
                let (path, stamp, worked) = match receiver.recv_timeout(TICK) {
                    Ok(done) => done,
                    Err(RecvTimeoutError::Timeout) => continue,
                    Err(RecvTimeoutError::Disconnected) => return Ok(()),
                };
                let Worked { result, may_be_kept } = match worked {
                    Ok(worked) => worked,
                    Err(failure) => return stop(failure),
                };
                if let Some(file) = keep.as_mut().filter(|_| may_be_kept) {
                    let line = Kept { rules: self.rules, path: path.to_owned(), stamp, result: result.clone() };
                    if let Err(error) = file.append(&line) {
                        results.not_kept = Some(error.to_string());
                        keep = None;
                    }
                }
                results.by_path.insert(path.to_owned(), (stamp, result));
                progress.done += 1;
            }
        })?;
        Ok(results)
    }

    /// Reads the results of earlier calls. Lines that cannot be read, for example a torn last one, are left out.
    fn read_kept<T: DeserializeOwned>(&self, path: &Utf8Path) -> HashMap<Utf8PathBuf, Kept<T>> {
        let Ok(file) = open_regular(path) else { return HashMap::new() };
        let lines = BufReader::new(file).split(b'\n').map_while(Result::ok);
        let kept = lines.filter_map(|line| serde_json::from_slice::<Kept<T>>(&line).ok());
        kept.filter(|kept| kept.rules == self.rules).map(|kept| (kept.path.clone(), kept)).collect()
    }
}

pub(crate) fn interrupted(noun: &str, progress: CheckProgress) -> Failure {
    Failure::new(
        ErrorCode::Cancelled,
        format!("the {noun} was interrupted"),
        format!("{} of {} were done", progress.done, units::counted(progress.total, "video")),
        "run the command again: it continues with the rest",
    )
}

fn open_kept(path: &Utf8Path) -> Result<LineAppender, String> {
    let open = || {
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        LineAppender::open(path)
    };
    open().map_err(|error| format!("{path}: {error}"))
}
