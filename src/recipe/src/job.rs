//! The jobs that a recipe may describe.

use crate::{FamilyName, Recipe, Task, TrainerKind};

/// The job of a recipe: a task of the embedded trainer, or a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobKind {
    /// The embedded trainer trains a model.
    Train,
    /// The embedded trainer makes a data set of latents.
    Encode,
    /// The embedded trainer makes videos from a checkpoint.
    Sample,
    /// A command trains.
    Command,
}

impl JobKind {
    /// Every job, in the order of the documentation.
    pub const ALL: [JobKind; 4] = [JobKind::Train, JobKind::Encode, JobKind::Sample, JobKind::Command];

    /// Returns the job of a trainer with a task. A command has no task.
    pub fn of(trainer: TrainerKind, task: Task) -> Self {
        match (trainer, task) {
            (TrainerKind::Command, _) => JobKind::Command,
            (TrainerKind::Embedded, Task::Train) => JobKind::Train,
            (TrainerKind::Embedded, Task::Encode) => JobKind::Encode,
            (TrainerKind::Embedded, Task::Sample) => JobKind::Sample,
        }
    }

    /// Returns the task of the embedded trainer; `None` for a command.
    pub fn task(self) -> Option<Task> {
        match self {
            JobKind::Train => Some(Task::Train),
            JobKind::Encode => Some(Task::Encode),
            JobKind::Sample => Some(Task::Sample),
            JobKind::Command => None,
        }
    }

    /// Returns the name of the job: its task, or `command`.
    pub fn name(self) -> &'static str {
        self.task().map_or(TrainerKind::Command.name(), Task::name)
    }

    /// Reads the job from the table of a recipe, without checks. A recipe without a task trains.
    pub fn of_table(recipe: &toml::Table) -> Self {
        let word = |key: &str| recipe.get(key).and_then(toml::Value::as_str);
        Self::of_words(word("trainer"), word("task"))
    }

    /// Returns whether the job has a model: its recipe has the section `[model]`.
    pub fn has_model(self) -> bool {
        matches!(self, JobKind::Train | JobKind::Sample)
    }

    /// Returns the job that these words in a recipe select.
    pub(crate) fn of_words(trainer: Option<&str>, task: Option<&str>) -> Self {
        let is_command = trainer == Some(TrainerKind::Command.name());
        let trainer = if is_command { TrainerKind::Command } else { TrainerKind::Embedded };
        Self::of(trainer, Task::ALL.into_iter().find(|known| Some(known.name()) == task).unwrap_or_default())
    }
}

/// What reads a recipe, which decides the keys that it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reader {
    /// The job.
    pub job: JobKind,
    /// The family of the model. It has no effect on the keys of a job without a model.
    pub family: FamilyName,
}

impl Reader {
    /// Finds the reader of the table of a recipe, without checks. A recipe without a family is for CogVideoX.
    pub fn of_table(recipe: &toml::Table) -> Self {
        let family = recipe.get("model").and_then(|model| model.get("family")).and_then(toml::Value::as_str);
        Reader { job: JobKind::of_table(recipe), family: FamilyName::of_word(family) }
    }
}

impl Recipe {
    /// Returns the job and the family of the recipe.
    pub fn reader(&self) -> Reader {
        Reader { job: self.job(), family: self.model.family.name() }
    }

    /// Returns the job of the recipe.
    pub fn job(&self) -> JobKind {
        JobKind::of(self.trainer, self.task)
    }
}
