//! Finds the weights that a launch starts from.

use super::{Init, LaunchOptions, Needs, Workspace, conversions};
use crate::command_error::CommandError;
use camino::{Utf8Path, Utf8PathBuf};
use plan::Weights;
use recipe::{Curriculum, JobKind, Recipe, StageSpec, StageStart, Task};
use rundir::{ErrorCode, Failure, Lineage, RunDir};

impl Workspace {
    /// Finds the weights that a launch starts from. `None` for random weights.
    pub fn weights_of(&self, options: &LaunchOptions<'_>) -> Result<Option<Weights>, CommandError> {
        let recipe = &options.subject.resolved().recipe;
        Ok(match (&options.init, options.subject.stage()) {
            (Init::Given(given), _) => Some(self.given_weights(given, recipe)?),
            (Init::Run(run), _) => Some(self.newest_weights(&self.dir(run))?),
            (Init::ByStage, Some((curriculum, stage))) => match &stage.start {
                StageStart::Random => None,
                StageStart::Path(path) => Some(self.given_weights(path.as_str(), recipe)?),
                StageStart::Previous => Some(self.weights_of_previous_stage(curriculum, stage)?),
            },
            (Init::ByStage, None) => None,
        })
    }

    /// Finds weights by their path, by the name of a downloaded model, or by the name of a run.
    pub fn find_weights(&self, given: &str) -> Result<Utf8PathBuf, CommandError> {
        let path = Utf8Path::new(given);
        if path.exists() {
            return Ok(path.to_owned());
        }
        let settings = hub::Settings::from_environment(&|name| std::env::var(name).ok());
        if let Some(folder) = settings.ok().and_then(|settings| hub::fetched(given, &settings.cache)) {
            return Ok(folder);
        }
        let command = hub::fetch_command(given);
        if given.contains('/') {
            let Some(command) = command else { return Ok(path.to_owned()) };
            return Err(CommandError::request(Failure::new(
                ErrorCode::NotFound,
                format!("cannot find '{given}'"),
                "there is no such file or folder",
                format!(
                    "check the path; if it is a model of the Hugging Face Hub: {command}, and name the folder that it prints"
                ),
            )));
        }
        let download = command.map_or_else(String::new, |command| format!("; download it: {command}"));
        self.find_for(given, Needs::Weights).map(|run| run.root).map_err(|refusal| {
            let Failure { why, fix, .. } = refusal.into_failure();
            let why = format!("there is no such file, folder or run: {why}");
            CommandError::request(Failure::new(
                ErrorCode::NotFound,
                format!("cannot find '{given}'"),
                why,
                format!("check the path; {fix}{download}"),
            ))
        })
    }

    /// Finds weights by path or run. If they do not exist, the failure names the commands that make them.
    fn given_weights(&self, given: &str, recipe: &Recipe) -> Result<Weights, Failure> {
        if !given.contains('/') && !Utf8Path::new(given).exists() {
            match self.find_for(given, Needs::Weights).map_err(CommandError::into_failure) {
                Ok(run) => return self.newest_weights(&run),
                Err(failure) if failure.code == ErrorCode::AmbiguousName => return Err(failure),
                // `find_weights` below returns a failure that names the path and the commands.
                Err(_) => {}
            }
        }
        if let Some(failure) = to_convert(given, recipe) {
            return Err(failure);
        }
        remote::find_weights(given, &self.runs, recipe.trainer).map_err(|failure| match hub::fetch_command(given) {
            Some(command) if !Utf8Path::new(given).exists() => {
                let convert = "vidtui convert FOLDER weights/ --to internal";
                let fix = format!(
                    "{}; to start from a model of the Hugging Face Hub: {command}, then {convert}",
                    failure.fix
                );
                Failure { fix, ..failure }
            }
            _ => failure,
        })
    }

    /// Returns the newest complete checkpoint of a run as weights for another run.
    fn newest_weights(&self, dir: &RunDir) -> Result<Weights, Failure> {
        let run = dir.read_run()?;
        let Some(checkpoint) = other_trainers::latest_strict(dir)? else {
            let what = format!("cannot start from {}", run.id);
            let fix = match run.task() {
                Task::Train => format!("resume it until it saves a checkpoint: vidtui resume {}", run.id),
                Task::Encode | Task::Sample => "name a run that trains; `vidtui runs` lists all runs".to_owned(),
            };
            return Err(Failure::new(ErrorCode::NoCheckpoint, what, "it has no complete checkpoint", fix));
        };
        Ok(Weights { path: checkpoint.dir, lineage: Some(Lineage { run: run.id, step: checkpoint.step }) })
    }

    fn weights_of_previous_stage(&self, curriculum: &Curriculum, spec: &StageSpec) -> Result<Weights, Failure> {
        let (runs, _) = self.summaries();
        match plan::parent_of(curriculum, &spec.name, &runs) {
            Some(parent) => self.newest_weights(&parent.dir),
            None => Err(Failure::new(
                ErrorCode::NoCheckpoint,
                format!("cannot launch stage {}", spec.name),
                format!(
                    "it starts from the previous stage, and no run in {} has a checkpoint of that stage",
                    self.runs
                ),
                "train the previous stage first, or name a checkpoint: --init PATH",
            )),
        }
    }
}

/// Returns the failure of weights that must be converted before the embedded trainer can start from them; `None` for others.
fn to_convert(given: &str, recipe: &Recipe) -> Option<Failure> {
    if recipe.job() == JobKind::Command {
        return None;
    }
    let (kind, options) = conversions::that_helps(Utf8Path::new(given), recipe.model.layer())?;
    Some(Failure::new(
        ErrorCode::NoCheckpoint,
        format!("cannot start from {given}"),
        format!("it is a {kind}, and training starts from a checkpoint"),
        format!(
            "convert it: {}; then write --init {}",
            conversions::command(&options),
            plan::quote(options.target.as_str())
        ),
    ))
}
