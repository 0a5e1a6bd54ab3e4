//! The progress of a run: steps of training, items of an encode, or videos.

use recipe::Task;
use rundir::{EncodeStageCount, EncodeStages, ItemCounts, ItemsSample, MetricSample, SamplingProgress};
use serde::{Deserialize, Serialize};
use units::grouped;

/// Seconds over which the rate of items is measured.
const RATE_OVER_S: f64 = 60.0;

/// The progress of a run, in the unit of its task.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Progress {
    /// No progress was recorded yet.
    Nothing(Task),
    /// The run does not log its steps.
    Unknown {
        /// Steps of the recipe.
        total: u64,
    },
    /// Steps of training.
    Steps {
        /// Steps done.
        step: u64,
        /// Steps of the run; 0: unknown.
        total: u64,
    },
    /// Clips and captions of an encode.
    Items(ItemCounts),
    /// Videos of a run that samples.
    Videos(SamplingProgress),
}

impl Progress {
    /// Returns the progress as a phrase: `step 40 of 240`, `1,204 of 9,849 clips · 3 failed`, `1 of 3 videos`.
    pub fn in_words(&self) -> String {
        match self {
            Self::Nothing(Task::Train) => "no step yet".into(),
            Self::Nothing(Task::Encode) => "no clip yet".into(),
            Self::Nothing(Task::Sample) => "no video yet".into(),
            Self::Unknown { .. } => "steps unknown".into(),
            Self::Steps { step, total: 0 } => format!("step {}", grouped(*step)),
            Self::Steps { step, total } => format!("step {} of {}", grouped(*step), grouped(*total)),
            Self::Items(counts) => counts.in_words(),
            Self::Videos(SamplingProgress { videos, videos_total }) => {
                format!("{videos} of {}", units::counted(*videos_total, "video"))
            }
        }
    }

    /// Returns the progress for a column of a table: `40/240`, `1,204/9,849 clips`, `1/3 videos`.
    pub fn short(&self) -> String {
        let of = |done, total, what| format!("{}/{}{what}", grouped(done), grouped(total));
        match self {
            Self::Nothing(_) => String::new(),
            Self::Unknown { total: 0 } => "?".into(),
            Self::Unknown { total } => format!("?/{}", grouped(*total)),
            Self::Steps { step, total: 0 } => grouped(*step),
            Self::Steps { step, total } => of(*step, *total, ""),
            Self::Items(counts) if counts.is_at_captions() => of(counts.texts_done, counts.texts, " captions"),
            Self::Items(counts) => of(counts.clips_done, counts.clips, " clips"),
            Self::Videos(videos) => of(videos.videos as u64, videos.videos_total as u64, " videos"),
        }
    }
}

/// The progress of a training run in epochs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Epochs {
    /// Epochs done.
    pub done: f64,
    /// Epochs at the last step of the run.
    pub total: f64,
}

impl Epochs {
    /// Returns the epochs of a run at its last logged step, if the run counts epochs.
    pub(crate) fn of(last: &MetricSample, steps_total: u64) -> Option<Self> {
        if steps_total == 0 {
            return None;
        }
        let done = last.epoch.filter(|_| last.step > 0)?;
        // For mixed shapes this is an estimate, because the number of samples in a step depends on its shape.
        Some(Self { done, total: done / last.step as f64 * steps_total as f64 })
    }

    /// Returns the progress as a phrase: `epoch 1.3 of 4.0`.
    pub fn in_words(&self) -> String {
        let decimals = if self.total < 1.0 { 2 } else { 1 };
        format!("epoch {:.decimals$} of {:.decimals$}", self.done, self.total)
    }
}

/// Returns the progress of a run in the unit of its task.
pub fn progress_of(
    task: Task,
    (step, total): (u64, u64),
    items: Option<ItemCounts>,
    videos: Option<SamplingProgress>,
    is_stepless: bool,
) -> Progress {
    match (task, items, videos) {
        (_, Some(counts), _) => Progress::Items(counts),
        (_, _, Some(videos)) => Progress::Videos(videos),
        (Task::Encode | Task::Sample, ..) => Progress::Nothing(task),
        (Task::Train, ..) if is_stepless && step == 0 => Progress::Unknown { total },
        (Task::Train, ..) if total == 0 && step == 0 => Progress::Nothing(task),
        (Task::Train, ..) => Progress::Steps { step, total },
    }
}

/// The progress of one stage of an encode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct EncodeStageProgress {
    /// The work of the stage in this attempt.
    #[serde(flatten)]
    pub count: EncodeStageCount,
    /// Items that the stage has not done yet.
    pub left: u64,
    /// Items per second over the last minute; `None` if no item passed the stage in that time.
    pub per_s: Option<f64>,
    /// Seconds until no items are left, at that rate.
    pub eta_s: Option<f64>,
}

/// Returns the progress of each stage of an encode; `None` for other runs. `recent` are the newest lines, in order.
pub fn stages(recent: &[MetricSample]) -> Option<EncodeStages<EncodeStageProgress>> {
    let (last, items) = recent.last().and_then(|last| Some((last, last.items.as_ref()?)))?;
    let first = first_of_rate(recent, last);
    let before = first.and_then(|first| first.items.as_ref()).filter(|_| first.is_some_and(|first| first.t < last.t));
    let seconds = first.map_or(0.0, |first| last.t - first.t);
    // A single line has the rate since the line before it.
    let per_s = match before {
        Some(before) => {
            items.stages.zip(before.stages, |now, before| (now.items.saturating_sub(before.items)) as f64 / seconds)
        }
        None => items.per_s,
    };
    let progress = items.stages.zip(left(items), |count, left| EncodeStageProgress {
        count,
        left,
        ..EncodeStageProgress::default()
    });
    Some(progress.zip(per_s, |stage, per_s| {
        let per_s = Some(per_s).filter(|per_s| *per_s > 0.0);
        EncodeStageProgress {
            per_s,
            eta_s: per_s.filter(|_| stage.left > 0).map(|per_s| stage.left as f64 / per_s),
            ..stage
        }
    }))
}

/// Returns the number of items that each stage has not done. The counts of a stage begin with the attempt, so the items
/// of earlier attempts are subtracted first.
fn left(items: &ItemsSample) -> EncodeStages<u64> {
    let ItemCounts { clips_done, clips, texts_done, texts, failed } = items.counts;
    let EncodeStages { probe, decode, vae, .. } = items.stages;
    let here = vae.items + probe.failed + decode.failed + vae.failed;
    let todo = clips.saturating_sub((clips_done + failed).saturating_sub(here));
    let of = |done: u64| todo.saturating_sub(done);
    EncodeStages {
        probe: of(probe.items + probe.failed),
        decode: of(decode.items + decode.failed + probe.failed),
        vae: clips.saturating_sub(clips_done + failed),
        text: texts.saturating_sub(texts_done),
    }
}

/// Returns the items per second of an encode over the last minute.
pub(crate) fn item_rate(recent: &[MetricSample]) -> Option<f64> {
    let last = recent.last().filter(|last| last.items.is_some())?;
    let first = first_of_rate(recent, last)?;
    let (items, seconds) = (last.step.saturating_sub(first.step) as f64, last.t - first.t);
    (items > 0.0 && seconds > 0.0).then(|| items / seconds)
}

/// Returns the first line of the time over which a rate is measured.
fn first_of_rate<'a>(recent: &'a [MetricSample], last: &MetricSample) -> Option<&'a MetricSample> {
    recent.iter().find(|line| line.attempt == last.attempt && last.t - line.t <= RATE_OVER_S)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a line of an attempt before which ten clips were stored and two failed.
    fn line(t: f64, vae: u64, decoded: u64) -> MetricSample {
        let counts = ItemCounts { clips: 100, clips_done: 10 + vae, texts: 50, texts_done: 50, failed: 2 };
        let of = |items| EncodeStageCount { items, ..EncodeStageCount::default() };
        let stages = EncodeStages { vae: of(vae), decode: of(decoded), ..EncodeStages::default() };
        MetricSample {
            t,
            items: Some(ItemsSample { counts, stages, ..ItemsSample::default() }),
            ..MetricSample::default()
        }
    }

    #[test]
    fn a_stage_has_the_rate_of_the_last_minute_and_the_time_that_is_left() {
        let found = stages(&[line(0.0, 1, 0), line(940.0, 10, 40), line(960.0, 30, 40)]).unwrap();
        assert_eq!((found.vae.left, found.vae.per_s, found.vae.eta_s), (58, Some(1.0), Some(58.0)));
        assert_eq!((found.decode.left, found.decode.per_s, found.text.left), (48, None, 0));
        assert_eq!(stages(&[MetricSample::default()]), None);
    }

    #[test]
    fn every_task_counts_in_its_own_unit() {
        let items = line(0.0, 20, 0).items.unwrap().counts;
        let videos = SamplingProgress { videos: 1, videos_total: 3 };
        let cases = [
            progress_of(Task::Train, (40, 240), None, None, false),
            progress_of(Task::Train, (0, 240), None, None, true),
            progress_of(Task::Encode, (80, 150), Some(items), None, false),
            progress_of(Task::Encode, (0, 0), None, None, false),
            progress_of(Task::Sample, (9, 30), None, Some(videos), false),
            progress_of(Task::Sample, (0, 30), None, None, false),
        ];
        let lines = cases.map(|progress| format!("{:25} | {}", progress.in_words(), progress.short()));
        insta::assert_snapshot!(lines.map(|line| line.trim_end().to_owned()).join("\n"));
    }
}
