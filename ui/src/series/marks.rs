//! The moments of a run that its charts mark: checkpoints, resumes, lost nodes and others.
//!
//! They are kept apart from the list of events, which has only the newest ones. Each kind is kept in the order of both x
//! axes, so that a binary search finds the marks of a column.

use crate::series::XAxis;
use rundir::{Alert, ErrorCode, Event, EventKind};

/// The largest number of marks of a frequent kind. Beyond it, near neighbours are merged.
pub const MOST_FREQUENT: usize = 4096;

/// A kind of mark. Where several marks share a column, the last kind in this order is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MarkKind {
    /// A checkpoint was saved.
    Checkpoint,
    /// A sample was saved.
    Sample,
    /// The loss or the gradient was not finite.
    NotFinite,
    /// An alert that a user must act on.
    Alert,
    /// A node was lost.
    NodeLost,
    /// The run began with the weights of another run or of a file, as a stage does.
    Stage,
    /// The run was resumed.
    Resume,
}

impl MarkKind {
    /// All kinds.
    pub const ALL: [Self; 7] =
        [Self::Checkpoint, Self::Sample, Self::NotFinite, Self::Alert, Self::NodeLost, Self::Stage, Self::Resume];

    /// Returns the letter that charts draw.
    pub fn letter(self) -> &'static str {
        match self {
            Self::Checkpoint => "c",
            Self::Sample => "v",
            Self::NotFinite => "n",
            Self::Alert => "a",
            Self::NodeLost => "x",
            Self::Stage => "s",
            Self::Resume => "r",
        }
    }

    /// Returns the name in a legend.
    pub fn name(self) -> &'static str {
        match self {
            Self::Checkpoint => "checkpoint",
            Self::Sample => "sample",
            Self::NotFinite => "not finite",
            Self::Alert => "alert",
            Self::NodeLost => "node lost",
            Self::Stage => "start",
            Self::Resume => "resume",
        }
    }

    /// Returns the number of moments that marks of this kind stand for.
    pub fn count(self, marks: &[Mark]) -> u64 {
        if self.is_frequent() { marks.iter().map(|mark| u64::from(mark.count)).sum() } else { marks.len() as u64 }
    }

    /// Returns whether marks of this kind are merged when there are many: a run that has diverged logs an event per step.
    /// Each of the other kinds is kept, because it explains a change of a curve.
    fn is_frequent(self) -> bool {
        matches!(self, Self::Checkpoint | Self::Sample | Self::NotFinite)
    }

    fn of(event: &EventKind) -> Option<Self> {
        match event {
            EventKind::CheckpointSaved { .. } => Some(Self::Checkpoint),
            EventKind::SampleSaved { .. } => Some(Self::Sample),
            EventKind::LossNotFinite => Some(Self::NotFinite),
            EventKind::Resumed { .. } => Some(Self::Resume),
            EventKind::WeightsLoaded { .. } => Some(Self::Stage),
            EventKind::NodeLost { .. } => Some(Self::NodeLost),
            EventKind::Failed { failure } if failure.code == ErrorCode::NodeLost => Some(Self::NodeLost),
            _ => None,
        }
    }
}

/// A moment of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Mark {
    /// The time, Unix seconds.
    pub t: f64,
    /// The last finished step.
    pub step: f64,
    /// The attempt during which it happened.
    pub attempt: u32,
    /// The number of moments that the mark stands for: more than one if it was merged with its neighbours.
    pub count: u32,
    /// The lost node, or the text of an alert; otherwise empty.
    pub about: String,
}

impl Mark {
    /// Returns the mark of an alert. `step_at` returns the last finished step at a time, for alerts without a step.
    pub fn of_alert(alert: &Alert, step_at: impl FnOnce(f64) -> f64) -> Self {
        let step = alert.step.map_or_else(|| step_at(alert.t), |step| step as f64);
        Self { t: alert.t, step, attempt: alert.attempt, count: 1, about: alert.what.clone() }
    }

    /// Returns the step, or the time in Unix seconds.
    pub fn order(&self, x: XAxis) -> f64 {
        match x {
            XAxis::Step => self.step,
            XAxis::Time => self.t,
        }
    }
}

/// The marks of a run.
#[derive(Debug, Clone, Default)]
pub struct Marks {
    by_step: [Ordered; MarkKind::ALL.len()],
    by_time: [Ordered; MarkKind::ALL.len()],
}

impl Marks {
    /// Adds the mark of an event, if its kind is marked. `step_at` returns the last finished step at a time, for events
    /// without a step.
    pub fn push(&mut self, event: &Event, step_at: impl FnOnce(f64) -> f64) {
        let Some(kind) = MarkKind::of(&event.kind) else { return };
        let about = match &event.kind {
            EventKind::NodeLost { node, .. } => node.to_string(),
            _ => String::new(),
        };
        // Each remaining node reports the loss of a node.
        let is_same = |known: &Mark| known.attempt == event.attempt && known.about == about;
        if kind == MarkKind::NodeLost && self.of(kind, XAxis::Time).iter().any(is_same) {
            return;
        }
        let step = event.step.map_or_else(|| step_at(event.t), |step| step as f64);
        self.add(kind, Mark { t: event.t, step, attempt: event.attempt, count: 1, about });
    }

    /// Adds a mark.
    pub fn add(&mut self, kind: MarkKind, mark: Mark) {
        let most = if kind.is_frequent() { MOST_FREQUENT } else { usize::MAX };
        self.by_step[kind as usize].add(mark.clone(), XAxis::Step, most);
        self.by_time[kind as usize].add(mark, XAxis::Time, most);
    }

    /// Returns the marks of a kind, ascending on an x axis.
    pub fn of(&self, kind: MarkKind, x: XAxis) -> &[Mark] {
        match x {
            XAxis::Step => &self.by_step[kind as usize].marks,
            XAxis::Time => &self.by_time[kind as usize].marks,
        }
    }

    /// Returns whether there are no marks.
    pub fn is_empty(&self) -> bool {
        self.by_time.iter().all(|kind| kind.marks.is_empty())
    }
}

/// The marks of one kind in the order of one x axis.
#[derive(Debug, Clone, Default)]
struct Ordered {
    marks: Vec<Mark>,
    /// The distance on the x axis up to which neighbours are merged. It is the same for all parts of a run, so that the
    /// marks stay evenly dense, and a mark that is far from the others stays in its place.
    apart: f64,
}

impl Ordered {
    fn add(&mut self, mark: Mark, x: XAxis, most: usize) {
        let at = self.marks.partition_point(|other| other.order(x) <= mark.order(x));
        self.marks.insert(at, mark);
        if self.marks.len() > most {
            self.thin(x, most / 4 * 3);
        }
    }

    /// Merges neighbours over growing distances until at most `most` marks are left.
    fn thin(&mut self, x: XAxis, most: usize) {
        let ends = self.marks.first().zip(self.marks.last());
        let range = ends.map_or(0.0, |(first, last)| last.order(x) - first.order(x));
        self.merge_near(x);
        while self.marks.len() > most && self.apart < range {
            self.apart = (2.0 * self.apart).max(range / (4 * most) as f64);
            self.merge_near(x);
        }
    }

    fn merge_near(&mut self, x: XAxis) {
        let apart = self.apart;
        self.marks.dedup_by(|next, kept| {
            let is_near = next.order(x) - kept.order(x) <= apart;
            kept.count += if is_near { next.count } else { 0 };
            is_near
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{event, stage_1};

    fn marks(events: impl IntoIterator<Item = Event>) -> Marks {
        let mut marks = Marks::default();
        events.into_iter().for_each(|event| marks.push(&event, |_| 0.0));
        marks
    }

    fn steps(marks: &[Mark]) -> Vec<f64> {
        marks.iter().map(|mark| mark.step).collect()
    }

    fn saved(seconds_ago: f64, step: u64) -> Event {
        event(seconds_ago, Some(step), EventKind::CheckpointSaved { path: "/x".into(), bytes: 1, seconds: 1.0 })
    }

    #[test]
    fn many_checkpoints_are_merged_evenly_and_all_are_counted() {
        let marks = marks((0..50_000u32).map(|n| saved(f64::from(50_000 - n), n.into())));
        for x in [XAxis::Step, XAxis::Time] {
            let kept = marks.of(MarkKind::Checkpoint, x);
            assert!(kept.len() <= MOST_FREQUENT, "{}", kept.len());
            assert_eq!(MarkKind::Checkpoint.count(kept), 50_000);
            assert!(kept.windows(2).all(|pair| pair[1].step - pair[0].step <= 64.0));
        }
    }

    #[test]
    fn merging_losses_that_are_not_finite_keeps_one_that_is_far_from_the_others() {
        let lost = |step: u32| event(f64::from(90_000 - step), Some(step.into()), EventKind::LossNotFinite);
        let marks = marks([60_000].into_iter().chain(1..=20_000).map(lost));
        for x in [XAxis::Step, XAxis::Time] {
            let kept = marks.of(MarkKind::NotFinite, x);
            assert!(kept.len() <= MOST_FREQUENT, "{}", kept.len());
            assert_eq!(MarkKind::NotFinite.count(kept), 20_001);
            assert_eq!(kept.last().map(|last| (last.step, last.count)), Some((60_000.0, 1)));
        }
    }

    #[test]
    fn every_resume_is_kept() {
        let resumed = EventKind::Resumed { from_step: 1, of_run: stage_1() };
        let marks = marks((0..10_000).map(|n| event(f64::from(n), Some(1), resumed.clone())));
        assert_eq!(marks.of(MarkKind::Resume, XAxis::Step).len(), 10_000);
    }

    #[test]
    fn marks_are_in_the_order_of_the_axis_when_a_resume_repeats_steps() {
        let marks = marks([saved(9.0, 10), saved(8.0, 20), saved(3.0, 15)]);
        assert_eq!(steps(marks.of(MarkKind::Checkpoint, XAxis::Step)), [10.0, 15.0, 20.0]);
        assert_eq!(steps(marks.of(MarkKind::Checkpoint, XAxis::Time)), [10.0, 20.0, 15.0]);
    }

    #[test]
    fn an_event_without_a_step_is_marked_at_the_last_step_before_it() {
        let failure = rundir::Failure::new(ErrorCode::NodeLost, "node gpu03 was lost", "no heartbeat", "");
        let mut marks = Marks::default();
        marks.push(&event(9.0, None, EventKind::Failed { failure }), |_| 40.0);
        assert_eq!(steps(marks.of(MarkKind::NodeLost, XAxis::Step)), [40.0]);
    }
}
