//! Creates or opens the queue of an attempt: one rank creates the queue, and the others wait until it is marked as ready.

use super::{PAUSE, Rank, SharedQueue, Stop, log_finished};
use crate::log::RunLog;
use dataset::EncodeInputs;
use dataset::store::{EncodeProgress, Holder, ItemKind, Queue, Timing};
use rundir::{ErrorCode, EventKind, Failure, ItemCounts, QueueReady, SCHEMA, read_events};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// The environment variable with which tests set the lease timeout: the seconds without a heartbeat after which another
/// rank takes over a lease.
const EXPIRY: &str = "ENCODE_LEASE_S";
/// The environment variable with which tests set how many items a range of the queue has.
const RANGE: &str = "ENCODE_RANGE";

/// Opens the queue of the attempt. Returns `None` if there is nothing to encode, the other ranks have finished, or a stop is
/// requested first.
pub fn open(rank: &Rank<'_>, inputs: &EncodeInputs, stop: &Stop) -> Result<Option<SharedQueue>, Failure> {
    loop {
        if let Some(ready) = rank.run.read_queue_ready(rank.attempt.number) {
            if ready.counts.total() == 0 {
                return Ok(None);
            }
            return match Queue::open(&ready.data, &holder(rank), timing()) {
                Ok(queue) => Ok(Some(Arc::new(queue))),
                // The other ranks finished before this rank started.
                Err(_) if is_finished(rank) => Ok(None),
                Err(failure) => Err(failure),
            };
        }
        if stop.source().is_some() {
            return Ok(None);
        }
        if is_first_alive(rank) {
            return create(rank, inputs);
        }
        thread::sleep(PAUSE);
    }
}

/// Creates the queue, and marks it as ready in the run's folder.
fn create(rank: &Rank<'_>, inputs: &EncodeInputs) -> Result<Option<SharedQueue>, Failure> {
    let plan = inputs.plan()?;
    rundir::log!("{}", plan.summary());
    let data = &rank.recipe.encode.out;
    let mut log = RunLog::open(rank.run, rank.attempt.number, rank.place.rank)?;
    let mark = |counts| {
        let ready = QueueReady { v: SCHEMA, rank: rank.place.rank, data: data.clone(), counts };
        rank.run.write_queue_ready(rank.attempt.number, &ready)
    };
    let world = rank.attempt.placement.world();
    if plan.is_done() {
        log.event(0, EventKind::Started { world });
        mark(ItemCounts::default())?;
        log_finished(rank, None);
        return Ok(None);
    }
    let queue = Queue::create(data, &plan, &holder(rank), timing())?;
    let mut counts = counts(queue.progress()?);
    // A plan without items may still remove clips from the index. Report one complete text, because a total of 0 ends the run.
    if counts.total() == 0 {
        counts.texts = 1;
        counts.texts_done = 1;
    }
    log.event(counts.done(), EventKind::Started { world });
    for kind in [ItemKind::Text, ItemKind::Latent] {
        rundir::log!("{} to encode: {}", plan.count(kind), if kind == ItemKind::Text { "captions" } else { "clips" });
    }
    mark(counts)?;
    Ok(Some(Arc::new(queue)))
}

fn holder(rank: &Rank<'_>) -> Holder {
    Holder { run: rank.meta.id.to_string(), node: rank.place.node.to_string(), pid: std::process::id() }
}

/// Returns the counts of a queue in the form that a run reports.
pub fn counts(progress: EncodeProgress) -> ItemCounts {
    ItemCounts {
        clips_done: progress.latents_done as u64,
        clips: progress.latents as u64,
        texts_done: progress.texts_done as u64,
        texts: progress.texts as u64,
        failed: progress.failed as u64,
    }
}

fn timing() -> Timing {
    let variable = |name| std::env::var(name).ok();
    let range = variable(RANGE).and_then(|items| items.parse().ok());
    let default = Timing { range, ..Timing::default() };
    match variable(EXPIRY).and_then(|seconds| seconds.parse().ok()).map(Duration::from_secs_f64) {
        Some(expiry) => Timing { expiry, heartbeat: Some(expiry / 6), ..default },
        None => default,
    }
}

/// Returns whether all lower ranks are dead, so that this rank must create the queue.
fn is_first_alive(rank: &Rank<'_>) -> bool {
    if rank.place.rank == 0 {
        return true;
    }
    let events = read_events(rank.run).unwrap_or_default();
    let (mut dead, mut lost) = (BTreeSet::new(), BTreeSet::new());
    for event in events.into_iter().filter(|event| event.attempt == rank.attempt.number) {
        match event.kind {
            EventKind::RankDied { rank, .. } => drop(dead.insert(rank)),
            EventKind::NodeLost { node, .. } => drop(lost.insert(node)),
            _ => {}
        }
    }
    let places = &rank.attempt.placement.ranks;
    let before = places.iter().filter(|place| place.rank < rank.place.rank);
    before.into_iter().all(|place| dead.contains(&place.rank) || lost.contains(&place.node))
}

fn is_finished(rank: &Rank<'_>) -> bool {
    let events = read_events(rank.run).unwrap_or_default();
    events.iter().any(|event| event.attempt == rank.attempt.number && event.kind == EventKind::Finished)
}

/// Returns the failure of an item that is in the wrong stage, such as a caption among the clips: the queue is damaged.
pub fn wrong_stage(name: &str) -> Failure {
    Failure::new(
        ErrorCode::InvalidDataset,
        format!("cannot encode {name}"),
        "the queue lists it in the wrong stage",
        "remove the folder work/ of the data set, and start the encode again",
    )
}
