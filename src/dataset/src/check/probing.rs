//! Probes all videos of a source on all cores, and caches the results for the next check.

use super::CheckRequest;
use super::facts::{ProbeResult, probe};
use crate::ExclusionReason;
use crate::each_file::{EachFile, OnProgress, Results, Worked, cache_file, stamped};
use crate::layouts::SourceListing;
use crate::stamp::{Stamp, hash};
use camino::Utf8Path;
use rundir::{ErrorCode, Failure};
use serde::{Deserialize, Serialize};

/// The version of the rules of a probe. Cached results of other versions are ignored: until version 4, a playlist was a video.
const RULES: u32 = 5;

/// The result of one file: the hash of its bytes, and what the probe found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Outcome {
    pub content: String,
    pub found: ProbeResult,
}

/// Probes every video that the source lists, except those that the cache has.
pub(super) fn probe_all(
    source: &SourceListing,
    request: &CheckRequest<'_>,
    on_progress: OnProgress<'_>,
) -> Result<Results<Outcome>, Failure> {
    let (files, excluded) = stamped(source);
    let probing = EachFile {
        rules: RULES,
        cache: request.cache.as_ref().map(|folder| cache_file(folder, &source.root)),
        workers: request.workers,
        cancel: &request.programs.cancel,
        noun: "check",
    };
    // A program that does not start would be a fault of every video.
    let begin =
        |files: &[(&Utf8Path, Stamp)]| match files.iter().any(|(path, _)| !video::is_picture(path) && !path.is_dir()) {
            true => request.programs.check_ffprobe(),
            false => Ok(()),
        };
    let mut results = probing.run(&files, begin, &|path| work(request, path), on_progress)?;
    for (path, reason) in excluded {
        let outcome = Outcome { content: String::new(), found: ProbeResult::Excluded(reason) };
        results.by_path.insert(path.to_owned(), (Stamp::default(), outcome));
    }
    Ok(results)
}

fn work(request: &CheckRequest<'_>, path: &Utf8Path) -> Result<Worked<Outcome>, Failure> {
    let content = match hash(path, &request.programs.cancel) {
        Ok(content) => content,
        Err(failure) if failure.code == ErrorCode::Cancelled => return Err(failure),
        Err(failure) => {
            let found = ProbeResult::Excluded(ExclusionReason::Unreadable { why: failure.why });
            return Ok(Worked { result: Outcome { content: String::new(), found }, may_be_kept: false });
        }
    };
    let probed = probe(&request.programs, path)?;
    Ok(Worked { result: Outcome { content, found: probed.found }, may_be_kept: probed.cacheable })
}
