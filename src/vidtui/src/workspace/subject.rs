//! What to train, read from what a command names: recipes, stages of curricula, and meshes fitted to a place.

use super::Workspace;
use crate::args::NodesArgs;
use crate::refusal::Refusal;
use camino::Utf8Path;
use recipe::{Curriculum, Resolved, StageSpec, TrainerKind};
use rundir::Failure;
use ui::StageView;

/// What to train, as a command names it.
pub enum Subject {
    /// A recipe file.
    Recipe(Box<Resolved>),
    /// A stage of a curriculum.
    Stage(Box<Curriculum>, String),
}

impl Subject {
    /// The recipe, with where its values come from.
    pub fn resolved(&self) -> &Resolved {
        match self {
            Self::Recipe(resolved) => resolved,
            Self::Stage(curriculum, name) => {
                &curriculum.stage(name).expect("checked when the subject was made").resolved
            }
        }
    }

    /// The recipe, to be changed.
    pub fn resolved_mut(&mut self) -> &mut Resolved {
        match self {
            Self::Recipe(resolved) => resolved,
            Self::Stage(curriculum, name) => {
                let stage = curriculum.stages.iter_mut().find(|stage| stage.name == *name);
                &mut stage.expect("checked when the subject was made").resolved
            }
        }
    }

    /// The stage, when it is one.
    pub fn stage(&self) -> Option<(&Curriculum, &StageSpec)> {
        match self {
            Self::Recipe(_) => None,
            Self::Stage(curriculum, name) => curriculum.stage(name).map(|stage| (&**curriculum, stage)),
        }
    }
}

/// How a recipe's mesh comes to the number of ranks that there are.
#[derive(Debug, Clone, Copy)]
pub enum Fitting {
    /// Not at all: a number that it was not written for is a mistake.
    AsItIs,
    /// It is fitted to so many.
    To(usize),
    /// It is fitted to what the nodes give.
    ToNodes,
}

impl From<Option<usize>> for Fitting {
    fn from(given: Option<usize>) -> Self {
        given.map_or(Self::AsItIs, Self::To)
    }
}

impl Workspace {
    /// Reads what a command names: a recipe file, or CURRICULUM:STAGE.
    pub fn subject(&self, text: &str, sets: &[String]) -> Result<Subject, Refusal> {
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
            let why = "it is a curriculum, and one stage is trained at a time";
            return Err(Refusal::request(Failure::new(
                rundir::ErrorCode::Unclassified,
                format!("cannot use {text}"),
                why,
                format!("name the stage: {text}:{first}"),
            )));
        }
        Ok(Subject::Recipe(Box::new(recipe::load(path, sets).map_err(recipe_failure)?)))
    }

    /// Fits a recipe's mesh and accumulation to a number of ranks; says what changed.
    pub fn fit(&self, resolved: &mut Resolved, fitting: Fitting, nodes: &NodesArgs) -> Result<Option<String>, Refusal> {
        let ranks = match fitting {
            Fitting::AsItIs => return Ok(None),
            // It is started on as many ranks as there are.
            Fitting::ToNodes if resolved.recipe.trainer == TrainerKind::Command => return Ok(None),
            Fitting::To(ranks) => ranks,
            Fitting::ToNodes => self.target(None, nodes, resolved.recipe.mesh.world())?.slots(),
        };
        let fit = resolved.fit(ranks).map_err(recipe_failure)?;
        let batch = units::counted(resolved.recipe.train.global_batch, "sample");
        Ok((!fit.is_none()).then(|| format!("fitted to this place: {fit}; a step still takes {batch}")))
    }
}

/// Reads a curriculum from its file, or from the `curriculum.toml` of its folder.
pub fn curriculum(path: &Utf8Path, sets: &[String]) -> Result<Curriculum, Refusal> {
    let file = if path.is_dir() { path.join("curriculum.toml") } else { path.to_owned() };
    // Its absolute path is what runs remember, and by which a stage finds its runs.
    let file = file.canonicalize_utf8().unwrap_or(file);
    Curriculum::load(&file, sets).map_err(recipe_failure)
}

/// Finds a stage by name.
pub fn named_stage<'a>(curriculum: &'a Curriculum, name: &str) -> Result<&'a StageSpec, Refusal> {
    curriculum.stage(name).ok_or_else(|| {
        let names: Vec<&str> = curriculum.stages.iter().map(|stage| stage.name.as_str()).collect();
        let what = format!("{} has no stage '{name}'", curriculum.path);
        Refusal::request(Failure::new(
            rundir::ErrorCode::Unclassified,
            what,
            format!("its stages are {}", names.join(", ")),
            "name one of them",
        ))
    })
}

/// A stage as the screen shows it.
pub fn stage_view(stage: &StageSpec) -> StageView {
    let recipe = &stage.resolved.recipe;
    if recipe.trainer == TrainerKind::Command {
        // Of what a command trains, nothing is known but how long.
        return StageView {
            name: stage.name.clone(),
            command: Some(plan::command_line(&recipe.command.run)),
            params: 0,
            seq_len: 0,
            latent_frames: 0,
            steps: recipe.train.steps,
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
        steps: recipe.train.steps,
        global_batch: recipe.train.global_batch,
        ranks: recipe.mesh.world(),
        start: stage.start.clone(),
        changes: stage.changes.clone(),
    }
}

/// A recipe that cannot be used is a wrong request, whatever the state of the machine.
pub fn recipe_failure(error: recipe::RecipeError) -> Refusal {
    Refusal::request(Failure::from(error))
}
