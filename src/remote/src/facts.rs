//! Reads the facts from which the state of a run is derived.

use std::fs;
use std::os::unix::fs::MetadataExt;

use cluster::NodeId;
use cluster::slurm::{JobReply, JobStatus};
use rundir::{Attempt, Error, EventKind, Failure, PidFile, Run, RunDir, RunId, Stop};
use runstate::{Liveness, NewestCache, RunFacts};

use crate::{ThisNode, ownership, proc, this_node};

/// Reads the facts from which [`runstate::derive`] derives the state of a run, as visible on this machine. Processes on other
/// nodes are unknown; [`crate::Connections`] can query them.
///
/// # Errors
/// When the run's files exist and cannot be read.
pub fn read_facts(dir: &RunDir, run: &Run) -> Result<RunFacts, Failure> {
    let here = this_node().map_err(|error| error.failure(format!("cannot read the state of {}", run.id)))?;
    let liveness: FindLiveness<'_> = &|_, files| files.iter().map(|file| liveness(dir, &run.id, file, &here)).collect();
    Ok(read(dir, run, liveness, &JobStatus::unknown, &NewestCache::default())?)
}

/// Reads the process files of a run's newest attempt, each with the liveness of its processes as visible on this machine.
///
/// # Errors
/// When the run's files exist and cannot be read.
pub fn pid_files(dir: &RunDir) -> Result<Vec<(PidFile, Liveness)>, Failure> {
    let here = this_node().map_err(|error| error.failure(format!("cannot read the state of {}", dir.name())))?;
    let run = dir.read_run()?.id;
    Ok(pid_files_with(dir, &|_, files| files.iter().map(|file| liveness(dir, &run, file, &here)).collect())?)
}

/// Returns the state of a Slurm job.
pub(crate) type FindJob<'a> = &'a dyn Fn(u64) -> JobStatus;

/// Returns the liveness of the processes in each process file of an attempt.
pub(crate) type FindLiveness<'a> = &'a dyn Fn(&Attempt, &[PidFile]) -> Vec<Liveness>;

pub(crate) fn pid_files_with(dir: &RunDir, liveness: FindLiveness<'_>) -> Result<Vec<(PidFile, Liveness)>, Error> {
    let Some(attempt) = dir.latest_attempt()? else { return Ok(Vec::new()) };
    let mut files = Vec::new();
    for node in nodes(&attempt) {
        files.extend(dir.read_pid(node, attempt.number)?);
    }
    let found = liveness(&attempt, &files);
    Ok(files.into_iter().zip(found).collect())
}

/// Returns whether the processes of a process file exist.
///
/// Processes of another node are unknown, never dead.
pub fn liveness(dir: &RunDir, run: &RunId, file: &PidFile, here: &ThisNode) -> Liveness {
    if file.node != here.node {
        return Liveness::Unknown;
    }
    if file.boot_id != here.boot_id {
        return Liveness::Dead;
    }
    let ranks = file.ranks.iter().map(|rank| (rank.pid, rank.start_ticks));
    let exists = |(pid, ticks): (i32, u64)| matches!(proc::stat(pid), Ok(Some(process)) if process.is_live() && process.start_ticks == ticks);
    // A rank that outlives its supervisor keeps the run alive: it still trains and holds GPU memory.
    if std::iter::once((file.pid, file.start_ticks)).chain(ranks).any(exists) || has_orphans(dir, run, file) {
        Liveness::Alive
    } else if proc::other_users_visible() || is_own(dir, file) {
        Liveness::Dead
    } else {
        Liveness::Unknown
    }
}

/// Returns whether the processes of a process file belong to this user.
fn is_own(dir: &RunDir, file: &PidFile) -> bool {
    let meta = fs::metadata(dir.pid_toml(&file.node, file.attempt));
    meta.is_ok_and(|meta| meta.uid() == nix::unistd::geteuid().as_raw())
}

/// Returns whether processes of an attempt outlived its supervisor. If the supervisor wrote its exit file, none did.
fn has_orphans(dir: &RunDir, run: &RunId, file: &PidFile) -> bool {
    if matches!(dir.read_exit(&file.node, file.attempt), Ok(Some(_))) {
        return false;
    }
    let marks = ownership::marks(run, file.attempt, &file.node);
    let is_orphan =
        |process: &proc::Stat| process.start_ticks >= file.start_ticks && proc::has_variables(process.pid, &marks);
    proc::live_processes().is_ok_and(|live| live.iter().any(is_orphan))
}

pub(crate) fn read(
    dir: &RunDir,
    run: &Run,
    liveness: FindLiveness<'_>,
    find_job: FindJob<'_>,
    following: &NewestCache,
) -> Result<RunFacts, Error> {
    let attempt = dir.latest_attempt()?;
    let mut facts = RunFacts::of_run(run, attempt.clone());
    let Some(attempt) = attempt else { return Ok(facts) };

    // Processes are read before exit files. If a process exits between the two reads, its exit file is found.
    facts.job = attempt.slurm.as_ref().and_then(|slurm| slurm.job).map(|job| job_of_run(find_job(job), &run.id));
    facts.is_incomplete = attempt.placement.ranks.is_empty();
    for node in nodes(&attempt) {
        facts.is_incomplete |= dir.read_pid(node, attempt.number)?.is_none();
    }
    facts.alive = match &attempt.slurm {
        Some(_) => job_liveness(dir, &attempt, facts.job.as_ref())?,
        None => attempt_liveness(dir, &attempt, liveness)?,
    };
    let stop = dir.stop_request();
    facts.stopping = stop.is_some();
    facts.stops_for_good = stop == Some(Stop::ForGood);
    facts.see_newest(following.newest(dir, nodes(&attempt))?);
    if facts.alive != Liveness::Dead {
        facts.see_heartbeat(dir);
    }
    for node in nodes(&attempt) {
        facts.exits.extend(dir.read_exit(node, attempt.number)?);
    }
    if facts.alive == Liveness::Dead && is_job_of_other_cluster(&facts, rundir::now_s()) {
        facts.alive = Liveness::Unknown;
    }
    Ok(facts)
}

/// Treats a job as forgotten if its name is not that of the run. Another cluster, or this cluster after a reset of its job
/// ids, can give the same id to another job.
fn job_of_run(status: JobStatus, run: &RunId) -> JobStatus {
    match status.job() {
        Some(job) if !job.name.is_empty() && job.name != run.as_str() => {
            JobStatus { reply: JobReply::Purged, ..JobStatus::unknown(status.id) }
        }
        _ => status,
    }
}

/// Returns whether Slurm does not list a job that still makes steps. Another cluster that shares the disk may run it.
fn is_job_of_other_cluster(facts: &RunFacts, now_s: f64) -> bool {
    let is_forgotten = facts.job.as_ref().is_some_and(|job| job.reply == JobReply::Purged);
    let event = facts.last_event.as_ref().filter(|event| !ends(&event.kind)).map(|event| event.t);
    let last_s = facts.last_metric.map(|(_, t)| t).into_iter().chain(event).reduce(f64::max);
    is_forgotten && facts.exits.is_empty() && last_s.is_some_and(|last_s| now_s - last_s <= facts.stall_after_s())
}

/// Returns whether an event is the last of an attempt.
fn ends(kind: &EventKind) -> bool {
    matches!(kind, EventKind::Finished | EventKind::Stopped { .. } | EventKind::Failed { .. })
}

/// Returns the liveness of an attempt: alive if one process exists, otherwise unknown if one node is unreachable.
fn attempt_liveness(dir: &RunDir, attempt: &Attempt, liveness: FindLiveness<'_>) -> Result<Liveness, Error> {
    let mut all = Liveness::Dead;
    let mut files = Vec::new();
    for node in nodes(attempt) {
        match dir.read_pid(node, attempt.number)? {
            // A supervisor writes its exit file last, so the node need not be queried.
            Some(_) if !attempt.logins.is_empty() && dir.read_exit(node, attempt.number)?.is_some() => {}
            Some(file) => files.push(file),
            // The nodes of a hostfile share the folder: a supervisor without a process file was not started.
            None if !attempt.logins.is_empty() => {}
            None if this_node().is_ok_and(|here| here.node == *node) => {}
            None => all = Liveness::Unknown,
        }
    }
    for found in liveness(attempt, &files) {
        match found {
            Liveness::Alive => return Ok(Liveness::Alive),
            Liveness::Unknown => all = Liveness::Unknown,
            Liveness::Dead => {}
        }
    }
    Ok(all)
}

/// Returns the liveness of an attempt in a Slurm job, from Slurm and the exit files. Its nodes may not allow logins, so
/// processes are not listed.
fn job_liveness(dir: &RunDir, attempt: &Attempt, job: Option<&JobStatus>) -> Result<Liveness, Error> {
    let mut is_over = !attempt.placement.ranks.is_empty();
    for node in nodes(attempt) {
        is_over &= dir.read_exit(node, attempt.number)?.is_some();
    }
    Ok(match job {
        _ if is_over => Liveness::Dead,
        // The job was never submitted.
        None => Liveness::Dead,
        Some(job) if job.is_over() || job.is_waiting() => Liveness::Dead,
        Some(job) if job.no_reply.is_none() && job.job().is_some() => Liveness::Alive,
        Some(_) => Liveness::Unknown,
    })
}

fn nodes(attempt: &Attempt) -> impl Iterator<Item = &NodeId> {
    attempt.placement.by_node().into_iter().map(|(node, _)| node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_with_the_same_id_and_another_name_is_treated_as_forgotten() {
        let run = RunId::parse("2026-11-20T0340-demo-2s-k7f2").unwrap();
        let named = |name: &str| {
            let line = format!("42|RUNNING|None|0:05|10:00|2|node[01-02]|1000|1600|ada|train|gres:gpu:1|{name}");
            let job = cluster::slurm::read_queue(&line).rows.remove(0);
            job_of_run(JobStatus { reply: JobReply::Job(Box::new(job)), ..JobStatus::unknown(42) }, &run)
        };
        assert!(named("2026-11-20T0340-demo-2s-k7f2").job().is_some());
        assert_eq!(named("another-run").reply, JobReply::Purged);
    }

    #[test]
    fn a_job_that_slurm_does_not_list_but_that_makes_steps_belongs_to_another_cluster() {
        let forgotten = JobStatus { reply: JobReply::Purged, ..JobStatus::unknown(42) };
        let facts = |job: JobStatus| RunFacts { job: Some(job), last_metric: Some((7, 1000.0)), ..RunFacts::default() };
        assert!(is_job_of_other_cluster(&facts(forgotten.clone()), 1010.0));
        assert!(!is_job_of_other_cluster(&facts(forgotten), 2000.0), "its last step is too old");
        assert!(!is_job_of_other_cluster(&facts(JobStatus::unknown(42)), 1010.0));
    }
}
