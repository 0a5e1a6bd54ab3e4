//! The schedule of the learning rate in a resume: how it goes on, and the rates that follow.

use camino::Utf8Path;
use recipe::{Optimizer, Recipe, ResumeChange};
use rundir::{ErrorCode, Failure};
use units::number;

use super::ResumeRequest;

/// How the schedule of the learning rate goes on in a resume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScheduleChoice {
    /// Each step has the rate that it would have had before. After the steps of the schedule, the rate stays at its end.
    Keep,
    /// The schedule covers all steps of the run, so that the rate of the next step may jump.
    Stretch,
    /// Warm-up and schedule begin again with the next step.
    Restart,
}

impl ScheduleChoice {
    const ALL: [Self; 3] = [Self::Keep, Self::Stretch, Self::Restart];

    /// Returns the value of `--schedule`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Stretch => "stretch",
            Self::Restart => "restart",
        }
    }
}

/// Refuses a choice for a run whose learning rate this program does not set.
pub(super) fn refuse_if_it_has_none(
    what: &str,
    choice: Option<ScheduleChoice>,
    recipe: &Recipe,
) -> Result<(), Failure> {
    let (Some(choice), job) = (choice, recipe.job()) else { return Ok(()) };
    let why = match job {
        recipe::JobKind::Train => return Ok(()),
        recipe::JobKind::Command => "the command computes its own learning rate",
        recipe::JobKind::Encode | recipe::JobKind::Sample => "the run has no learning rate",
    };
    let what = format!("{what} with --schedule {}", choice.word());
    Err(Failure::new(ErrorCode::InvalidArgument, what, why, "remove --schedule"))
}

/// A resume: the steps that are done, and the total steps before it and from now on. `None` if they are not known yet.
pub(super) struct Resumed {
    done: u64,
    before: Option<u64>,
    total: Option<u64>,
    /// The optimizer of the run before the resume.
    optimizer: Optimizer,
}

impl Resumed {
    /// Reads the steps of a run, and those of the resume.
    ///
    /// * `steps` — the total steps from now on, if they differ from the recipe's.
    /// * `done` — the step of the checkpoint.
    pub fn of(request: &ResumeRequest<'_>, steps: Option<u64>, done: u64) -> Result<Self, Failure> {
        let recipe = request.run.recipe()?;
        let of_recipe = recipe.train.length.steps();
        let of_last = request.facts.attempt.as_ref().and_then(|last| last.steps);
        Ok(Self { done, before: of_last.or(of_recipe), total: steps.or(of_recipe), optimizer: recipe.optimizer })
    }

    /// Sets the keys of a choice in the recipe. Returns the keys that differ.
    pub fn choose(
        &self,
        recipe: &mut Recipe,
        choice: Option<ScheduleChoice>,
        file: &Utf8Path,
    ) -> Result<Vec<ResumeChange>, Failure> {
        let Some(choice) = choice else { return Ok(Vec::new()) };
        let chosen = self.chosen(choice, &recipe.optimizer);
        let sets = [
            format!("optimizer.schedule_start={}", chosen.schedule_start),
            format!("optimizer.schedule_steps={}", chosen.schedule_steps),
        ];
        let (with_choice, changes) = recipe.with_sets(file, &sets)?;
        *recipe = with_choice;
        Ok(changes)
    }

    /// Returns the optimizer `now` with a choice about the schedule that the run had before.
    fn chosen(&self, choice: ScheduleChoice, now: &Optimizer) -> Optimizer {
        let Optimizer { schedule_start: start, schedule_steps: steps, .. } = self.optimizer;
        let (schedule_start, schedule_steps) = match choice {
            ScheduleChoice::Keep => {
                let rest = || self.before.map_or(0, |before| before.saturating_sub(start));
                (start, if steps > 0 { steps } else { rest() })
            }
            ScheduleChoice::Stretch => (start, 0),
            ScheduleChoice::Restart => (self.done, 0),
        };
        Optimizer { schedule_start, schedule_steps, ..now.clone() }
    }

    /// Returns the rows about the rates, if the user chose how the schedule goes on, or if the next steps have other rates because the
    /// number of steps changes.
    pub fn rows(&self, recipe: &Recipe, choice: Option<ScheduleChoice>) -> Vec<(String, String)> {
        let (Some(before), Some(total)) = (self.before, self.total) else { return Vec::new() };
        let (old, now) = (&self.optimizer, &recipe.optimizer);
        // A changed rate or schedule has a row of its own.
        let same_keys =
            Optimizer { schedule_start: old.schedule_start, schedule_steps: old.schedule_steps, ..now.clone() };
        let differs = |step: u64| rate(&same_keys, step, before) != rate(now, step, total);
        let changes = (self.done..total).step_by(step_size(total - self.done.min(total))).any(differs);
        if choice.is_none() && !changes {
            return Vec::new();
        }
        let next = |o: &Optimizer| number(rate(o, self.done, total));
        let was = match self.done {
            0 => String::new(),
            done => format!("{} in step {done}, ", number(rate(old, done - 1, before))),
        };
        let last = match now.schedule_steps {
            0 => total,
            steps => now.schedule_start + steps,
        };
        let schedule = format!(
            "{} over steps {} to {last}; the rate is {was}{} in step {} and {} in step {total}",
            now.schedule.name(),
            now.schedule_start + 1,
            next(now),
            self.done + 1,
            number(rate(now, total - 1, total)),
        );
        let others = ScheduleChoice::ALL.into_iter().filter(|other| Some(*other) != choice);
        let others = others.filter(|other| choice.is_some() || *other != ScheduleChoice::Stretch);
        let other = |other: ScheduleChoice| {
            let words = match other {
                ScheduleChoice::Keep => "as before the resume",
                ScheduleChoice::Stretch => "over all steps",
                ScheduleChoice::Restart => "from its beginning",
            };
            format!(
                "--schedule {}: {words}, {} in step {}",
                other.word(),
                next(&self.chosen(other, now)),
                self.done + 1
            )
        };
        let others = others.map(other).collect::<Vec<_>>().join("; ");
        vec![("schedule".to_owned(), schedule), ("or".to_owned(), others)]
    }
}

/// Returns the learning rate of a step, counted from 0.
fn rate(o: &Optimizer, step: u64, total: u64) -> f64 {
    o.lr_at(o.schedule, o.lr, step, total)
}

/// Returns the distance of the steps at which rates are compared: few enough for runs of any length.
fn step_size(steps: u64) -> usize {
    usize::try_from(steps / 1000).unwrap_or(usize::MAX).max(1)
}
