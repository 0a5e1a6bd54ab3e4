//! Lists the runs of a folder, and summarizes a run.

use crate::progress::{self, EncodeStageProgress, Epochs, Progress, item_rate, progress_of};
use crate::{RunFacts, RunState, derive};
use camino::Utf8Path;
use cluster::NodeId;
use cluster::slurm::JobStatus;
use rundir::median_step_s;
use rundir::{
    Attempt, CheckpointSummary, EncodeStages, Error, ErrorCode, ExitFile, Failure, ItemCounts, MetricSample, Run,
    RunDir, RunId, SamplingProgress,
};
use std::collections::BTreeSet;
use std::fs;
use std::io;

/// The summary of a run: one line of a list.
#[derive(Debug, Clone, PartialEq)]
pub struct RunSummary {
    /// The content of `run.toml`.
    pub run: Run,
    /// The folder of the run.
    pub dir: RunDir,
    /// The newest attempt.
    pub attempt: Option<Attempt>,
    /// The state of the run.
    pub state: RunState,
    /// If the run failed, the nodes that ended only because another node failed, sorted by name.
    pub consequences: Vec<NodeId>,
    /// Steps done.
    pub step: u64,
    /// All steps of the run.
    pub steps_total: u64,
    /// The last logged step of any attempt.
    pub last: Option<MetricSample>,
    /// The steps that the trainer has skipped, because the loss or the gradient was not finite.
    pub skipped_steps: u64,
    /// The last logged step with a loss. In an imported run, later steps may have other values only.
    pub with_loss: Option<MetricSample>,
    /// The estimated seconds until the run is finished, from the median step time or the rate of items. `None` unless
    /// the run is running or saving.
    pub eta_s: Option<f64>,
    /// Items per second of an encode over the last minute. `None` unless the encode is running.
    pub items_per_s: Option<f64>,
    /// The progress of each stage of an encode.
    pub stages: Option<EncodeStages<EncodeStageProgress>>,
    /// The checkpoint that a resume continues from.
    pub checkpoint: Option<CheckpointSummary>,
    /// The state of the Slurm job, if the run has one.
    pub job: Option<JobStatus>,
}

impl RunSummary {
    /// Makes the summary of a run from its facts and its checkpoints.
    pub fn new(run: Run, dir: RunDir, facts: &RunFacts, now: f64) -> Self {
        let recent = &facts.newest.metrics;
        let state = derive(facts, now);
        let last = recent.last().cloned();
        let current = last.as_ref().filter(|l| facts.attempt.as_ref().is_none_or(|a| a.number == l.attempt));
        let step = match current {
            Some(last) => last.step,
            // The steps are not logged, and the run ended without an error.
            None if facts.is_stepless && state == RunState::Finished => facts.steps_total,
            None => facts.start_step(),
        };
        // The heartbeat has the step if the metrics cannot be written.
        let step = match facts.last_metric {
            Some((newest, _)) if facts.unwritten.is_some() => step.max(newest),
            _ => step,
        };
        let working = matches!(state, RunState::Running | RunState::Saving);
        // The total of a watched program is read from its log, or guessed by the user. A passed one was that of an epoch, or wrong.
        let steps_total = if facts.is_attached && step > facts.steps_total { 0 } else { facts.steps_total };
        let left = steps_total.saturating_sub(step) as f64;
        let eta_s = match item_rate(recent) {
            Some(per_s) => working.then_some(left / per_s),
            None => median_step_s(recent).filter(|_| working && steps_total > 0).map(|s| s * left),
        };
        let checkpoint = other_trainers::latest(&dir);
        let of_it = |exit: &&ExitFile| facts.attempt.as_ref().is_some_and(|attempt| attempt.number == exit.attempt);
        let followed = facts.exits.iter().filter(of_it).filter(|exit| exit.is_consequence());
        let consequences: BTreeSet<NodeId> = followed.map(|exit| exit.node.clone()).collect();
        Self {
            run,
            consequences: consequences.into_iter().collect(),
            attempt: facts.attempt.clone(),
            state,
            step,
            steps_total,
            last,
            skipped_steps: facts.skipped_steps(),
            with_loss: facts.newest.with_loss.clone(),
            eta_s,
            items_per_s: item_rate(recent).filter(|_| working),
            stages: progress::stages(recent),
            checkpoint,
            job: facts.job.clone(),
            dir,
        }
    }

    /// Returns the counts of items of an encode; `None` for other runs.
    pub fn items(&self) -> Option<ItemCounts> {
        self.last.as_ref().and_then(|sample| Some(sample.items.as_ref()?.counts))
    }

    /// Returns the number of videos of a run that samples. A finished run has all videos: the last video is complete
    /// only after the last line is logged.
    pub fn videos(&self) -> Option<SamplingProgress> {
        let sampling = self.last.as_ref().and_then(|sample| sample.sampling)?;
        let videos = if self.state == RunState::Finished { sampling.videos_total } else { sampling.videos };
        Some(SamplingProgress { videos, ..sampling })
    }

    /// Returns the progress in epochs, if the run counts epochs.
    pub fn epochs(&self) -> Option<Epochs> {
        self.last.as_ref().filter(|last| last.step == self.step).and_then(|last| Epochs::of(last, self.steps_total))
    }

    /// Returns whether the steps of the run are not logged ([`Run::is_stepless`]).
    pub fn is_stepless(&self) -> bool {
        self.run.is_stepless(self.last.as_ref().map_or(0, |last| last.step))
    }

    /// Returns the progress, in the unit of the run's task.
    pub fn progress(&self) -> Progress {
        let steps = (self.step, self.steps_total);
        progress_of(self.run.task(), steps, self.items(), self.videos(), self.is_stepless())
    }

    /// Returns why the run failed or crashed.
    pub fn failure(&self) -> Option<&Failure> {
        match &self.state {
            RunState::Failed(failure) | RunState::Crashed(failure) => Some(failure),
            _ => None,
        }
    }
}

/// Lists the runs in a folder, oldest first.
///
/// A folder that is named like a run or contains a `run.toml`, but cannot be read as a run, is listed as a failure. If
/// `root` does not exist, the list is empty.
pub fn list_runs(root: &Utf8Path) -> Vec<Result<RunDir, Failure>> {
    let entries = match fs::read_dir(root) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(e) => return vec![Err(Error::io("list", root, e).into())],
    };
    let mut runs = Vec::new();
    for entry in entries {
        let name = match entry {
            Ok(entry) => entry.file_name(),
            Err(e) => {
                runs.push((String::new(), Err(Error::io("list", root, e).into())));
                continue;
            }
        };
        let Some(name) = name.to_str() else { continue };
        let dir = RunDir::new(root.join(name));
        let is_run = dir.run_toml().exists() || (RunId::parse(name).is_ok() && dir.root.is_dir());
        if is_run {
            runs.push((name.to_owned(), readable(dir)));
        }
    }
    runs.sort_by(|a, b| a.0.cmp(&b.0));
    runs.into_iter().map(|(_, run)| run).collect()
}

fn readable(dir: RunDir) -> Result<RunDir, Failure> {
    match dir.read_run() {
        Ok(_) => Ok(dir),
        Err(e) if e.is_not_found() => Err(Failure::new(
            ErrorCode::RunNotFound,
            format!("{} is not a run", dir.root),
            "it has no run.toml: its launch was interrupted",
            "remove the folder, then launch again",
        )),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Liveness, NewestCache};
    use rundir::LineAppender;
    use rundir::fixtures::{attempt, run, save, temp};

    #[test]
    fn every_folder_that_should_be_a_run_is_listed_sorted_by_name() {
        let (_keep, root) = temp();
        let root = &root.root;
        assert!(list_runs(&root.join("none")).is_empty());
        let ids =
            ["2026-11-20T0340-b-0001", "2026-11-19T0340-a-0002", "2026-11-21T0340-c-0003", "2026-11-22T0340-d-0004"];
        for id in ids {
            fs::create_dir_all(root.join(id)).unwrap();
        }
        RunDir::new(root.join(ids[0])).write_run(&run()).unwrap();
        RunDir::new(root.join(ids[1])).write_run(&run()).unwrap();
        fs::write(root.join(ids[2]).join("run.toml"), "schema = 2\n").unwrap();
        fs::create_dir_all(root.join("renamed")).unwrap();
        RunDir::new(root.join("renamed")).write_run(&run()).unwrap();
        fs::create_dir_all(root.join("notes")).unwrap();
        fs::write(root.join("2026-11-20T0340-a-file"), "").unwrap();

        let listed: Vec<Result<String, ErrorCode>> = list_runs(root)
            .into_iter()
            .map(|entry| entry.map(|dir| dir.name().to_owned()).map_err(|failure| failure.code))
            .collect();
        assert_eq!(
            listed,
            [
                Ok(ids[1].to_owned()),
                Ok(ids[0].to_owned()),
                Err(ErrorCode::NewerFormat),
                Err(ErrorCode::RunNotFound),
                Ok("renamed".to_owned()),
            ]
        );
    }

    #[test]
    fn a_folder_of_runs_that_cannot_be_listed_is_one_failure() {
        let (_keep, root) = temp();
        let file = root.root.join("file");
        fs::write(&file, "").unwrap();
        let listed = list_runs(&file);
        let [Err(failure)] = &listed[..] else { panic!("{listed:?}") };
        assert!(failure.what.contains(file.as_str()), "{failure}");
    }

    #[test]
    fn the_remaining_time_of_items_follows_from_their_rate_in_the_last_minute() {
        let (_keep, dir) = temp();
        let mut metrics = LineAppender::open(&dir.metrics()).unwrap();
        for (t, step) in [(0.0, 1), (1000.0, 100), (1050.0, 200)] {
            let counts = rundir::ItemCounts { clips: 1200, ..Default::default() };
            let items = Some(rundir::ItemsSample { counts, ..Default::default() });
            metrics.append(&MetricSample { step, t, step_s: 9.0, items, ..MetricSample::default() }).unwrap();
        }
        let newest = NewestCache::default().newest(&dir, []).unwrap();
        let mut facts =
            RunFacts { attempt: Some(attempt(1, 0, &["ml-1"])), alive: Liveness::Alive, ..RunFacts::default() };
        newest.metrics.iter().for_each(|sample| facts.see_metric(sample));
        let summary = RunSummary::new(run(), dir, &RunFacts { newest, ..facts }, 1051.0);
        assert_eq!((summary.steps_total, summary.items_per_s, summary.eta_s), (1200, Some(2.0), Some(500.0)));
    }

    #[test]
    fn a_summary_has_the_newest_step_and_the_remaining_time() {
        let (_keep, dir) = temp();
        let mut metrics = LineAppender::open(&dir.metrics()).unwrap();
        for step in 1..=40 {
            let epoch = Some(step as f64 / 30.0);
            let t = 1000.0 + 2.0 * step as f64;
            let sample = MetricSample { step, t, step_s: 2.0, epoch, ..MetricSample::default() };
            metrics.append(&sample).unwrap();
        }
        save(&dir, 30, 1);
        let mut facts = RunFacts {
            attempt: Some(attempt(1, 0, &["ml-1"])),
            alive: Liveness::Alive,
            last_metric: Some((40, 1080.0)),
            steps_total: 100,
            newest: NewestCache::default().newest(&dir, []).unwrap(),
            ..RunFacts::default()
        };
        let summary = RunSummary::new(run(), dir.clone(), &facts, 1081.0);
        assert_eq!(summary.epochs().map(|epochs| epochs.in_words()), Some("epoch 1.3 of 3.3".into()));
        assert_eq!((summary.state, summary.step, summary.eta_s), (RunState::Running, 40, Some(120.0)));
        assert_eq!(summary.checkpoint.unwrap().step, 30);

        // After a resume, before the first step of the new attempt.
        facts.attempt = Some(attempt(2, 30, &["ml-1"]));
        facts.last_metric = None;
        let summary = RunSummary::new(run(), dir, &facts, 1081.0);
        assert_eq!((summary.state, summary.step, summary.eta_s), (RunState::Starting, 30, None));
    }
}
