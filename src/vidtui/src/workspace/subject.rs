//! The subject of a launch: a recipe or a stage of a curriculum, with its mesh fitted to the target.

use super::Workspace;
use crate::args::NodesArgs;
use crate::command_error::CommandError;
use camino::Utf8Path;
use recipe::{Curriculum, JobKind, Resolved, StageSpec, Task};
use rundir::{ErrorCode, Failure, LaunchedFrom};
use ui::StageView;

/// A recipe file or a stage of a curriculum.
pub enum Subject {
    /// A recipe, with the file that it was read from.
    Recipe(Box<Resolved>, Option<LaunchedFrom>),
    /// A stage of a curriculum.
    Stage(Box<Curriculum>, String),
}

impl Subject {
    /// Returns the recipe and the origins of its values.
    pub fn resolved(&self) -> &Resolved {
        match self {
            Self::Recipe(resolved, _) => resolved,
            Self::Stage(curriculum, name) => {
                &curriculum.stage(name).expect("checked when the subject was made").resolved
            }
        }
    }

    /// Returns the recipe, to change it.
    pub fn resolved_mut(&mut self) -> &mut Resolved {
        match self {
            Self::Recipe(resolved, _) => resolved,
            Self::Stage(curriculum, name) => {
                let stage = curriculum.stages.iter_mut().find(|stage| stage.name == *name);
                &mut stage.expect("checked when the subject was made").resolved
            }
        }
    }

    /// Returns the stage with its curriculum; `None` for a recipe file.
    pub fn stage(&self) -> Option<(&Curriculum, &StageSpec)> {
        match self {
            Self::Recipe(..) => None,
            Self::Stage(curriculum, name) => curriculum.stage(name).map(|stage| (&**curriculum, stage)),
        }
    }

    /// Returns the recipe file that a training run of the subject is launched from.
    pub fn launched_from(&self) -> Option<&LaunchedFrom> {
        match self {
            Self::Recipe(resolved, from) => from.as_ref().filter(|_| resolved.recipe.task == Task::Train),
            Self::Stage(..) => None,
        }
    }
}

/// How to fit the mesh of a recipe to the number of ranks.
#[derive(Debug, Clone, Copy)]
pub enum Fitting {
    /// Keep the mesh. Another number of ranks is an error.
    Off,
    /// Fit the mesh to this number of ranks.
    To(usize),
    /// Fit the mesh to the slots of the nodes.
    ToNodes,
}

impl From<Option<usize>> for Fitting {
    fn from(given: Option<usize>) -> Self {
        given.map_or(Self::Off, Self::To)
    }
}

impl Workspace {
    /// Reads a recipe file, or CURRICULUM:STAGE.
    pub fn subject(&self, text: &str, sets: &[String]) -> Result<Subject, CommandError> {
        if let Some((path, stage)) = text.rsplit_once(':')
            && !Utf8Path::new(text).exists()
        {
            let curriculum = curriculum(Utf8Path::new(path), sets)?;
            named_stage(&curriculum, stage)?;
            return Ok(Subject::Stage(Box::new(curriculum), stage.to_owned()));
        }
        let path = Utf8Path::new(text);
        if path.is_dir() || path.file_name() == Some("curriculum.toml") {
            let curriculum = curriculum(path, sets)?;
            let first = curriculum.stages.first().map_or("STAGE", |stage| stage.name.as_str());
            let why = "it is a curriculum, and a run trains one stage";
            return Err(CommandError::request(Failure::new(
                ErrorCode::UnknownStage,
                format!("cannot use {text}"),
                why,
                format!("name the stage: {text}:{first}"),
            )));
        }
        let resolved = recipe::load(path, sets).map_err(recipe_failure)?;
        let from = LaunchedFrom {
            recipe: path.canonicalize_utf8().unwrap_or_else(|_| path.to_owned()),
            sets: sets.iter().map(|set| recipe::with_full_paths(set)).collect(),
        };
        Ok(Subject::Recipe(Box::new(resolved), Some(from)))
    }

    /// Fits mesh and gradient accumulation of a recipe to a number of ranks. Returns a description of the changes; `None` if
    /// nothing changed.
    pub fn fit(
        &self,
        resolved: &mut Resolved,
        fitting: Fitting,
        nodes: &NodesArgs,
    ) -> Result<Option<String>, CommandError> {
        let ranks = match fitting {
            Fitting::Off => return Ok(None),
            // A command starts on all ranks of the target.
            Fitting::ToNodes if resolved.recipe.job() == JobKind::Command => return Ok(None),
            // Independent ranks have no mesh.
            _ if !resolved.recipe.task.ranks_depend_on_each_other() => return Ok(None),
            Fitting::To(ranks) => ranks,
            Fitting::ToNodes => {
                let recipe = &resolved.recipe;
                self.target(None, nodes, recipe.mesh.world(), recipe.run.spares)?.slots()
            }
        };
        let fit = resolved.fit(ranks).map_err(recipe_failure)?;
        let batch = units::counted(resolved.recipe.train.global_batch, "sample");
        Ok((!fit.is_none()).then(|| format!("fitted to the ranks: {fit}; a step still takes {batch}")))
    }
}

/// Reads a curriculum from its file, or from the `curriculum.toml` of its folder.
pub fn curriculum(path: &Utf8Path, sets: &[String]) -> Result<Curriculum, CommandError> {
    let file = if path.is_dir() { path.join("curriculum.toml") } else { path.to_owned() };
    // Runs store the absolute path of their curriculum, and a stage finds its runs by this path.
    let file = file.canonicalize_utf8().unwrap_or(file);
    Curriculum::load(&file, sets).map_err(recipe_failure)
}

/// Finds a stage by name.
pub fn named_stage<'a>(curriculum: &'a Curriculum, name: &str) -> Result<&'a StageSpec, CommandError> {
    curriculum.stage(name).ok_or_else(|| {
        let names: Vec<&str> = curriculum.stages.iter().map(|stage| stage.name.as_str()).collect();
        let what = format!("{} has no stage '{name}'", curriculum.path);
        CommandError::request(Failure::new(
            ErrorCode::UnknownStage,
            what,
            format!("its stages are {}", names.join(", ")),
            "choose one of them",
        ))
    })
}

/// Returns a stage as the screen shows it.
pub fn stage_view(stage: &StageSpec) -> StageView {
    let recipe = &stage.resolved.recipe;
    if recipe.job() == JobKind::Command {
        // If a command trains the model, only the numbers of steps and ranks are known.
        return StageView {
            name: stage.name.clone(),
            command: Some(plan::command_line(&recipe.command.run)),
            params: 0,
            seq_len: 0,
            latent_frames: 0,
            length: recipe.train.length,
            global_batch: 0,
            ranks: recipe.mesh.world(),
            start: stage.start.clone(),
            changes: stage.changes.clone(),
        };
    }
    StageView {
        name: stage.name.clone(),
        command: None,
        params: recipe.cost().params,
        seq_len: recipe.model.seq_len(),
        latent_frames: recipe.model.latent_frames,
        length: recipe.train.length,
        global_batch: recipe.train.global_batch,
        ranks: recipe.mesh.world(),
        start: stage.start.clone(),
        changes: stage.changes.clone(),
    }
}

/// Returns the error for an invalid recipe. It is an invalid request, whatever the state of the machine.
pub fn recipe_failure(error: recipe::RecipeError) -> CommandError {
    CommandError::request(Failure::from(error))
}
