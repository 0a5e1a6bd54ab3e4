use std::fs;
use std::os::unix::fs::MetadataExt;

use cluster::NodeId;
use cluster::slurm::{JobSeen, JobSight};
use rundir::{Attempt, Error, EventKind, Failure, History, PidFile, Run, RunDir, RunId, Stop};
use runstate::{Following, Liveness, RunFacts};

use crate::{ThisNode, ownership, proc, this_node};

/// The signals that ask a run to stop: SIGINT and SIGTERM.
const STOP_SIGNALS: [i32; 2] = [2, 15];

/// Reads everything from which the state of a run follows ([`runstate::derive`]), as far as this machine sees it. What runs on
/// other nodes is unknown; [`crate::Fleet`] sees it.
///
/// # Errors
/// When the run's files exist and cannot be read.
pub fn read_facts(dir: &RunDir, run: &Run) -> Result<RunFacts, Failure> {
    let here = this_node().map_err(|error| error.failure(format!("cannot look at {}", run.id)))?;
    let look: Look<'_> = &|_, files| files.iter().map(|file| liveness(dir, &run.id, file, &here)).collect();
    Ok(read(dir, run, look, &JobSight::unseen, &Following::default())?)
}

/// Reads the process files of a run's newest attempt, each with whether its processes exist, as far as this machine sees
/// them.
///
/// # Errors
/// When the run's files exist and cannot be read.
pub fn pid_files(dir: &RunDir) -> Result<Vec<(PidFile, Liveness)>, Failure> {
    let here = this_node().map_err(|error| error.failure(format!("cannot look at {}", dir.name())))?;
    let run = dir.read_run()?.id;
    Ok(pid_files_seen(dir, &|_, files| files.iter().map(|file| liveness(dir, &run, file, &here)).collect())?)
}

/// Tells what is known of a Slurm job.
pub(crate) type See<'a> = &'a dyn Fn(u64) -> JobSight;

/// Tells which of these processes of an attempt exist.
pub(crate) type Look<'a> = &'a dyn Fn(&Attempt, &[PidFile]) -> Vec<Liveness>;

pub(crate) fn pid_files_seen(dir: &RunDir, look: Look<'_>) -> Result<Vec<(PidFile, Liveness)>, Error> {
    let Some(attempt) = dir.latest_attempt()? else { return Ok(Vec::new()) };
    let mut files = Vec::new();
    for node in nodes(&attempt) {
        files.extend(dir.read_pid(node, attempt.number)?);
    }
    let seen = look(&attempt, &files);
    Ok(files.into_iter().zip(seen).collect())
}

/// Tells whether the processes of a process file exist.
///
/// Those of another node are unknown, never dead: nobody looked.
pub fn liveness(dir: &RunDir, run: &RunId, file: &PidFile, here: &ThisNode) -> Liveness {
    if file.node != here.node {
        return Liveness::Unknown;
    }
    if file.boot_id != here.boot_id {
        return Liveness::Dead;
    }
    let ranks = file.ranks.iter().map(|rank| (rank.pid, rank.start_ticks));
    let exists = |(pid, ticks): (i32, u64)| matches!(proc::stat(pid), Ok(Some(process)) if process.is_live() && process.start_ticks == ticks);
    // A rank that outlives its supervisor keeps the run alive: it still trains, and holds its memory.
    if std::iter::once((file.pid, file.start_ticks)).chain(ranks).any(exists) || has_orphans(dir, run, file) {
        Liveness::Alive
    } else if proc::sees_others() || is_own(dir, file) {
        Liveness::Dead
    } else {
        Liveness::Unknown
    }
}

/// Whether the processes of a process file are this user's.
fn is_own(dir: &RunDir, file: &PidFile) -> bool {
    let meta = fs::metadata(dir.pid_toml(&file.node, file.attempt));
    meta.is_ok_and(|meta| meta.uid() == nix::unistd::geteuid().as_raw())
}

/// Tells whether processes that an attempt started outlived its supervisor. One that ends in order leaves none.
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
    look: Look<'_>,
    see: See<'_>,
    following: &Following,
) -> Result<RunFacts, Error> {
    let attempt = dir.latest_attempt()?;
    let of_recipe = || run.recipe.get("train")?.get("steps")?.as_integer();
    let steps = attempt.as_ref().and_then(|attempt| attempt.steps);
    let steps_total = steps.or_else(|| u64::try_from(of_recipe()?).ok()).unwrap_or(0);
    let mut facts = RunFacts {
        attempt: attempt.clone(),
        steps_total,
        is_command: run.is_command(),
        is_stepless: run.is_stepless(),
        ..RunFacts::default()
    };
    let Some(attempt) = attempt else { return Ok(facts) };

    // Before the exit files: a process may end between the two, but not the other way round.
    facts.job = attempt.slurm.as_ref().and_then(|slurm| slurm.job).map(|job| of_run(see(job), &run.id));
    facts.is_incomplete = attempt.placement.ranks.is_empty();
    for node in nodes(&attempt) {
        facts.is_incomplete |= dir.read_pid(node, attempt.number)?.is_none();
    }
    facts.alive = match &attempt.slurm {
        Some(_) => job_liveness(dir, &attempt, facts.job.as_ref())?,
        None => attempt_liveness(dir, &attempt, look)?,
    };
    let stop = dir.stop_request();
    facts.stopping = stop.is_some();
    facts.stops_for_good = stop == Some(Stop::ForGood);
    let newest = following.newest(dir, nodes(&attempt))?;
    for event in &newest.events {
        if let EventKind::SignalReceived { signal } = event.kind
            && event.attempt == attempt.number
            && STOP_SIGNALS.contains(&signal)
        {
            facts.stopping = true;
        }
        facts.see_event(event);
    }
    let mut history = History::default();
    for sample in newest.metrics.iter().filter(|sample| sample.attempt == attempt.number) {
        facts.see_metric(sample);
        history.push(sample.clone());
    }
    facts.newest = newest;
    facts.median_step_s = history.median_step_s();
    if let [.., before, last] = history.effective() {
        facts.steps_per_line = last.step - before.step;
    }
    for node in nodes(&attempt) {
        facts.exits.extend(dir.read_exit(node, attempt.number)?);
    }
    if facts.alive == Liveness::Dead && is_elsewhere(&facts, rundir::now_s()) {
        facts.alive = Liveness::Unknown;
    }
    Ok(facts)
}

/// A job that has another name is not the run's, of which this Slurm then knows nothing: another cluster gives the same numbers,
/// and this one begins anew some day.
fn of_run(sight: JobSight, run: &RunId) -> JobSight {
    match sight.job() {
        Some(job) if !job.name.is_empty() && job.name != run.as_str() => {
            JobSight { seen: JobSeen::Forgotten, ..JobSight::unseen(sight.id) }
        }
        _ => sight,
    }
}

/// Whether a job of which this Slurm knows nothing goes on nevertheless: it may be another cluster's, with the same disk.
fn is_elsewhere(facts: &RunFacts, now_s: f64) -> bool {
    let is_forgotten = facts.job.as_ref().is_some_and(|job| job.seen == JobSeen::Forgotten);
    let event = facts.last_event.as_ref().filter(|event| !ends(&event.kind)).map(|event| event.t);
    let last_s = facts.last_metric.map(|(_, t)| t).into_iter().chain(event).reduce(f64::max);
    is_forgotten && facts.exits.is_empty() && last_s.is_some_and(|last_s| now_s - last_s <= facts.stall_after_s())
}

/// Whether an event is the last of an attempt.
fn ends(kind: &EventKind) -> bool {
    matches!(kind, EventKind::Finished | EventKind::Stopped { .. } | EventKind::Failed { .. })
}

/// One process that exists makes the attempt alive; otherwise one node that cannot be seen makes it unknown.
fn attempt_liveness(dir: &RunDir, attempt: &Attempt, look: Look<'_>) -> Result<Liveness, Error> {
    let mut all = Liveness::Dead;
    let mut files = Vec::new();
    for node in nodes(attempt) {
        match dir.read_pid(node, attempt.number)? {
            // Its last act is to write how it ended; nobody needs to be asked.
            Some(_) if !attempt.logins.is_empty() && dir.read_exit(node, attempt.number)?.is_some() => {}
            Some(file) => files.push(file),
            // The nodes of a hostfile share the folder: what is not in it was not started.
            None if !attempt.logins.is_empty() => {}
            None if this_node().is_ok_and(|here| here.node == *node) => {}
            None => all = Liveness::Unknown,
        }
    }
    for one in look(attempt, &files) {
        match one {
            Liveness::Alive => return Ok(Liveness::Alive),
            Liveness::Unknown => all = Liveness::Unknown,
            Liveness::Dead => {}
        }
    }
    Ok(all)
}

/// What Slurm says of an attempt's job. Its nodes may take no logins, so that nobody looks for the processes themselves.
fn job_liveness(dir: &RunDir, attempt: &Attempt, job: Option<&JobSight>) -> Result<Liveness, Error> {
    let mut is_over = !attempt.placement.ranks.is_empty();
    for node in nodes(attempt) {
        is_over &= dir.read_exit(node, attempt.number)?.is_some();
    }
    Ok(match job {
        _ if is_over => Liveness::Dead,
        // It was never submitted.
        None => Liveness::Dead,
        Some(job) if job.is_over() || job.is_waiting() => Liveness::Dead,
        Some(job) if job.silence.is_none() && job.job().is_some() => Liveness::Alive,
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
    fn a_job_of_the_same_number_that_is_another_runs_tells_nothing() {
        let run = RunId::parse("2026-11-20T0340-demo-2s-k7f2").unwrap();
        let named = |name: &str| {
            let line = format!("42|RUNNING|None|0:05|10:00|2|node[01-02]|1000|1600|ada|train|gres:gpu:1|{name}");
            let job = cluster::slurm::read_queue(&line).rows.remove(0);
            of_run(JobSight { seen: JobSeen::Job(Box::new(job)), ..JobSight::unseen(42) }, &run)
        };
        assert!(named("2026-11-20T0340-demo-2s-k7f2").job().is_some());
        assert_eq!(named("somebody-elses").seen, JobSeen::Forgotten);
    }

    #[test]
    fn a_job_that_this_slurm_does_not_know_and_that_makes_steps_is_another_clusters() {
        let forgotten = JobSight { seen: JobSeen::Forgotten, ..JobSight::unseen(42) };
        let facts = |job: JobSight| RunFacts { job: Some(job), last_metric: Some((7, 1000.0)), ..RunFacts::default() };
        assert!(is_elsewhere(&facts(forgotten.clone()), 1010.0));
        assert!(!is_elsewhere(&facts(forgotten), 2000.0), "it makes none any more");
        assert!(!is_elsewhere(&facts(JobSight::unseen(42)), 1010.0));
    }
}
