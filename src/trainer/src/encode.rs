//! `task = "encode"`: each rank takes captions and clips from the queue of a data set, and stores texts and latents.
//!
//! Ranks exchange no messages. One rank creates the queue and marks it as ready in the run's folder; the other ranks
//! wait for that mark. When a rank dies, its leases expire and other ranks take over its work. The rank that joins the
//! results ends the run.

mod clips;
mod conditions;
mod fit;
mod queue;
mod report;
mod texts;

use self::clips::Clips;
use self::report::Report;
use self::texts::Texts;
use crate::log::RunLog;
use crate::signals::Signals;
use crate::trainer::Finish;
use cluster::RankPlace;
use dataset::EncodeInputs;
use dataset::store::{Held, Item, ItemKind, Queue, QueueFinish, Range};
use recipe::{ComputeDtype, Recipe};
use rundir::{Attempt, ErrorCode, EventKind, Failure, ItemCounts, RequestSource, Run, RunDir};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tch::{Device, Kind, Tensor};

/// The pause before a rank tries again to claim work that other ranks hold.
const PAUSE: Duration = Duration::from_millis(500);
/// How long before its time limit an attempt begins to stop: enough to finish a clip.
const RESERVE_S: f64 = 60.0;

/// One rank of an encode.
pub struct Rank<'a> {
    pub run: &'a RunDir,
    pub meta: &'a Run,
    pub recipe: &'a Recipe,
    pub attempt: &'a Attempt,
    pub place: RankPlace,
    /// CPU threads of the rank.
    pub threads: usize,
    pub device: Device,
}

/// Watches for reasons to stop before the work is done: signals, a stop request, a lost supervisor and the time limit.
pub struct Stop {
    signals: Signals,
    run: RunDir,
    limit: Option<Instant>,
}

impl Stop {
    fn new(rank: &Rank<'_>) -> Result<Self, Failure> {
        let signals = Signals::watch()?;
        let limit_s = rank.recipe.run.time_limit.seconds().map(|s| (s as f64 - RESERVE_S).max(s as f64 / 2.0));
        let limit = limit_s.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds));
        Ok(Self { signals, run: rank.run.clone(), limit })
    }

    /// Returns the origin of the stop request, if the rank must stop.
    pub fn source(&self) -> Option<RequestSource> {
        let sources = [
            (self.signals.stop(), RequestSource::Term),
            (self.run.stop_request().is_some(), RequestSource::File),
            (self.signals.orphaned(), RequestSource::Orphaned),
            (self.limit.is_some_and(|limit| Instant::now() >= limit), RequestSource::TimeLimit),
        ];
        sources.into_iter().find_map(|(requested, source)| requested.then_some(source))
    }
}

/// The work that remains in a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// No work remains.
    Nothing,
    /// Other ranks hold the remaining work.
    Held,
}

/// Encodes as one rank of an attempt until no work remains or a stop is requested.
///
/// # Errors
/// The inputs are invalid, the data set cannot be written, the device failed, or more clips failed than the recipe accepts. A single
/// clip that cannot be encoded is recorded and is not an error.
pub fn encode(rank: &Rank<'_>) -> Result<Finish, Failure> {
    let stop = Stop::new(rank)?;
    let inputs = EncodeInputs::open(rank.recipe)?;
    let Some(queue) = queue::open(rank, &inputs, &stop)? else { return Ok(Finish::Complete) };
    let report = Report::start(rank.run, &rank.place, rank.attempt.number, rank.device);
    let kind = match rank.recipe.encoders.dtype {
        ComputeDtype::Bfloat16 => Kind::BFloat16,
        ComputeDtype::Float32 => Kind::Float,
    };
    let mut texts = Texts::new(rank, &inputs, kind, report.counts());
    let mut clips = Clips::new(rank, &queue, kind, report.counts())?;
    loop {
        if let Some(source) = stop.source() {
            return Ok(Finish::Stopped(source.to_string()));
        }
        // Only one encoder is in memory at a time.
        let left_texts = texts.work(&queue, &stop)?;
        let left_clips = clips.work(&queue, &stop)?;
        if (left_texts, left_clips) == (Left::Nothing, Left::Nothing) {
            inputs.refuse_if_lost(&queue)?;
            let exact = queue.progress().ok().map(queue::counts);
            match queue.finish(&mut |_| ControlFlow::Continue(()))? {
                QueueFinish::Joined(_) => {
                    report.end(exact);
                    log_finished(rank, exact);
                    return Ok(Finish::Complete);
                }
                QueueFinish::Done => {
                    report.end(None);
                    return wait_for_the_end(rank);
                }
                QueueFinish::Wait => {}
            }
        }
        std::thread::sleep(PAUSE);
    }
}

/// Records that the run is finished. Only one rank joins the results, so only that rank records the end.
pub fn log_finished(rank: &Rank<'_>, counts: Option<ItemCounts>) {
    if let Ok(mut log) = RunLog::open(rank.run, rank.attempt.number, rank.place.rank) {
        log.event(counts.unwrap_or_default().total(), EventKind::Finished);
    }
}

/// Waits until the rank that joined the results has recorded the end of the run, so that the supervisor of this node
/// sees it.
fn wait_for_the_end(rank: &Rank<'_>) -> Result<Finish, Failure> {
    let until = Instant::now() + Duration::from_secs(5);
    let is_finished = || {
        let events = rundir::read_events(rank.run).unwrap_or_default();
        events.iter().any(|event| event.attempt == rank.attempt.number && event.kind == EventKind::Finished)
    };
    while !is_finished() && Instant::now() < until {
        std::thread::sleep(PAUSE);
    }
    if !is_finished() {
        // The rank that joined the results died before it recorded the end.
        log_finished(rank, None);
    }
    Ok(Finish::Complete)
}

/// Stores an item. Returns `Lost` if another rank has taken over the range.
fn commit(range: &mut Range, item: &Item, times: &[f64], tensors: &[StoredTensor]) -> Result<Held, Failure> {
    let new: Vec<_> = tensors.iter().map(StoredTensor::as_new).collect();
    range.commit(item, times, &new)
}

/// A tensor in the form that the data set stores, bf16.
struct StoredTensor {
    /// Empty for a latent or a text.
    role: String,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl StoredTensor {
    /// Copies a tensor. Returns `None` if a value is not finite.
    fn of(role: &str, tensor: &Tensor) -> Option<Self> {
        let tensor = tensor.to_kind(Kind::BFloat16).to_device(Device::Cpu).contiguous();
        if tensor.isfinite().all().int64_value(&[]) == 0 {
            return None;
        }
        let shape = tensor.size().iter().map(|&size| size as usize).collect();
        let elements = tensor.numel();
        let mut bytes = vec![0; elements * 2];
        tensor.copy_data_u8(&mut bytes, elements);
        Some(Self { role: role.to_owned(), shape, bytes })
    }

    fn as_new(&self) -> dataset::store::NewTensor<'_> {
        dataset::store::NewTensor {
            role: &self.role,
            dtype: weights::Dtype::BF16,
            shape: &self.shape,
            bytes: &self.bytes,
        }
    }

    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }
}

/// Returns whether a failure concerns one item only, not the rank, its node or the data set's disk.
fn is_of_item(failure: &Failure) -> bool {
    use ErrorCode::{DeviceFailed, DiskFull, FileTooLarge, Internal, ProgramMissing};
    ![ProgramMissing, DiskFull, FileTooLarge, DeviceFailed, Internal].contains(&failure.code)
}

/// Returns the failure of an item whose result has values that are not finite.
fn not_finite(what: String) -> Failure {
    Failure::new(
        ErrorCode::InvalidDataset,
        what,
        "the result has values that are not finite",
        "encode with encoders.dtype = \"float32\", or remove the item",
    )
}

/// Claims a range of a stage. The inner `Err` is the remaining work if there is no range to claim.
fn claim(queue: &Queue, kind: ItemKind) -> Result<Result<Box<Range>, Left>, Failure> {
    use dataset::store::Claim;
    Ok(match queue.claim(kind)? {
        Claim::Range(range) => Ok(range),
        Claim::Wait => Err(Left::Held),
        Claim::Done => Err(Left::Nothing),
    })
}

type SharedQueue = Arc<Queue>;

/// Reads the place of a rank from the environment.
pub fn place(rank: usize, local_rank: usize) -> Result<RankPlace, Failure> {
    let node = crate::rank::node().ok_or_else(|| {
        let why = "VIDTUI_NODE is not set, or is not a node name";
        Failure::new(ErrorCode::StartFailed, "cannot start a rank", why, "start ranks through `vidtui-train supervise`")
    })?;
    Ok(RankPlace { rank, node, local_rank })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failures_of_the_node_end_a_rank() {
        let of_item = |code| is_of_item(&Failure::new(code, "", "", ""));
        for code in [ErrorCode::ProgramMissing, ErrorCode::DiskFull, ErrorCode::DeviceFailed, ErrorCode::Internal] {
            assert!(!of_item(code), "{code:?}");
        }
        // ffmpeg was killed or makes no progress; or the clip is damaged, has changed, or does not fit into memory.
        let codes = [ErrorCode::CommandFailed, ErrorCode::NoAnswer, ErrorCode::Malformed, ErrorCode::InvalidDataset];
        for code in codes.into_iter().chain([ErrorCode::OutOfMemory, ErrorCode::NotFound]) {
            assert!(of_item(code), "{code:?}");
        }
    }
}
