//! Plans the next stage of a curriculum.

use recipe::{Curriculum, ParamRole, Recipe, StageStart};
use rundir::{CheckpointManifest, CheckpointSummary, ErrorCode, Event, EventKind, Failure, Lineage, Run};
use runstate::{Liveness, RunFacts, RunState, RunSummary};

use crate::launch::{NewRun, from_weights, stage_start};
use crate::{Context, LaunchPlan, Weights};

/// The request to start the stage after that of a run.
#[derive(Debug, Clone)]
pub struct NextRequest<'a> {
    /// The run.
    pub parent: &'a Run,
    /// The facts about its newest attempt.
    pub facts: &'a RunFacts,
    /// The checkpoint whose weights the stage starts from: the chosen one, or the newest complete one
    /// (`other_trainers::latest_strict`).
    pub latest: Option<&'a CheckpointSummary>,
    /// The curriculum of the run, read from [`Run::curriculum`].
    pub curriculum: &'a Curriculum,
    /// The name of the new run; default: the name of its recipe.
    pub name: Option<&'a str>,
}

/// Plans the stage after that of a run, from the weights of the run's newest checkpoint.
///
/// # Errors
/// When the run is not a stage, is the last one, or has no complete checkpoint; also as [`launch`](crate::launch()).
pub fn next(request: &NextRequest<'_>, cx: &Context) -> Result<LaunchPlan, Failure> {
    let (parent, curriculum) = (request.parent, request.curriculum);
    let what = format!("cannot start the stage after {}", parent.id);
    let init_by_hand =
        "launch any recipe from its weights: `vidtui launch RECIPE --init RUN`".replace("RUN", parent.id.as_str());
    let Some(stage) = &parent.stage else {
        return Err(Failure::new(
            ErrorCode::UnknownStage,
            what,
            "the run is not a stage of a curriculum",
            init_by_hand,
        ));
    };
    let Some(next) = curriculum.next_after(stage) else {
        let names: Vec<&str> = curriculum.stages.iter().map(|stage| stage.name.as_str()).collect();
        let why = if curriculum.stage(stage).is_some() {
            format!("{stage} is the last stage of {}", curriculum.path)
        } else {
            format!("{} no longer has the stage {stage}; it has {}", curriculum.path, names.join(", "))
        };
        return Err(Failure::new(ErrorCode::UnknownStage, what, why, init_by_hand));
    };
    let recipe = &next.resolved.recipe;
    let (origin, warnings) = match next.start {
        StageStart::Previous => {
            let Some(checkpoint) = request.latest else {
                return Err(Failure::new(
                    ErrorCode::NoCheckpoint,
                    what,
                    format!(
                        "stage {} starts from the weights of this run, which has no complete checkpoint",
                        next.name
                    ),
                    match parent.is_command() {
                        true => "save checkpoints in the program, and name them with command.checkpoints of the recipe; see docs/other-trainers.md"
                            .into(),
                        false => format!("resume the run until it has saved one: `vidtui resume {}`", parent.id),
                    },
                ));
            };
            let lineage = Some(Lineage { run: parent.id.clone(), step: checkpoint.step });
            let weights = Weights { path: checkpoint.dir.clone(), lineage };
            (from_weights(&weights), warnings_about(request, checkpoint))
        }
        // The curriculum starts this stage from other weights. Warn the user that those of the run are not used.
        _ => {
            let warning = format!("{} does not start stage {} from the previous stage", curriculum.path, next.name);
            (stage_start(&what, recipe, Some((curriculum, next)))?, vec![warning])
        }
    };
    let new = NewRun {
        name: request.name.unwrap_or(&recipe.name),
        recipe,
        stage: Some((curriculum.path.clone(), next.name.clone())),
        origin,
        warnings,
    };
    new.plan(&what, cx)
}

fn warnings_about(request: &NextRequest<'_>, checkpoint: &CheckpointSummary) -> Vec<String> {
    let mut warnings = Vec::new();
    // Processes of a finished run may still be exiting.
    let over = |e: &Event| matches!(e.kind, EventKind::Finished | EventKind::Stopped { .. });
    if request.facts.alive == Liveness::Alive && !request.facts.last_event.as_ref().is_some_and(over) {
        warnings.push(format!("{} is still training: both runs will share these nodes", request.parent.id));
    }
    if checkpoint.step < request.facts.steps_total {
        let total = request.facts.steps_total;
        warnings.push(format!("{} has trained {} of its {total} steps", request.parent.id, checkpoint.step));
    }
    warnings
}

/// Returns the run whose weights a stage starts from. Among the runs of the previous stage with a complete checkpoint, this
/// is the newest finished run, or else the newest run.
pub fn parent_of<'a>(curriculum: &Curriculum, stage: &str, runs: &'a [RunSummary]) -> Option<&'a RunSummary> {
    let at = curriculum.stages.iter().position(|other| other.name == stage)?;
    let before = &curriculum.stages[at.checked_sub(1)?].name;
    runs.iter()
        .filter(|run| run.run.curriculum.as_ref() == Some(&curriculum.path) && run.run.stage.as_ref() == Some(before))
        .filter(|run| run.checkpoint.is_some())
        .max_by(|a, b| {
            let finished = |run: &RunSummary| run.state == RunState::Finished;
            finished(a).cmp(&finished(b)).then(a.run.created_s.total_cmp(&b.run.created_s))
        })
}

/// Checks that weights contain every parameter of a recipe's model with the same shape.
///
/// # Errors
/// Names the first parameter that is missing or has another shape.
pub fn check_weights(what: &str, manifest: &CheckpointManifest, recipe: &Recipe) -> Result<(), Failure> {
    let specs = recipe.param_specs();
    if manifest.base.is_some() && !recipe.lora.is_used() {
        return Err(Failure::new(
            ErrorCode::TensorMismatch,
            what,
            format!(
                "step {} of run {} holds adapters, and recipe {} has none",
                manifest.step, manifest.run, recipe.name
            ),
            "merge them into their base with `vidtui convert BASE OUT --to internal --merge ADAPTERS`, or set the same [lora]",
        ));
    }
    if let Some(base) = manifest.base.as_ref().filter(|_| recipe.lora.starts_from().is_none()) {
        let (was, is) = (base.scale, recipe.lora.scale());
        if (was - is).abs() > 1e-9 * was.abs() {
            let why = format!("its adapters are scaled by {was}, and those of recipe {} by {is}", recipe.name);
            let alpha = recipe.lora.alpha() * was / is;
            return Err(Failure::new(ErrorCode::TensorMismatch, what, why, format!("set lora.alpha = {alpha}")));
        }
    }
    // Without a base, the manifest has no adapters: those of the recipe are new. A constant, such as the position table, is
    // computed from the recipe and may differ between stages.
    let needed = if manifest.base.is_some() { ParamRole::Adapter } else { ParamRole::Trained };
    for spec in specs.iter().filter(|spec| spec.role == needed) {
        let found = manifest.tensors.iter().find(|tensor| tensor.name == spec.name);
        let why = match found {
            Some(tensor) if tensor.shape == spec.shape => continue,
            Some(tensor) => {
                format!("{} is {:?}, and recipe {} needs {:?}", spec.name, tensor.shape, recipe.name, spec.shape)
            }
            None => format!("{} is missing, and recipe {} needs it", spec.name, recipe.name),
        };
        return Err(Failure::new(
            ErrorCode::TensorMismatch,
            what,
            format!("the weights of step {} of run {} do not fit: {why}", manifest.step, manifest.run),
            "start from weights of the same model shape (compare `vidtui recipe show`), or change the recipe's [model]",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use cluster::Placement;
    use recipe::param_specs;
    use rundir::{LogicalTensor, RunDir, SCHEMA};

    use super::*;
    use crate::fixtures::{self, NOW, Past, context, past, rows};

    fn plan(past: &Past, curriculum: &Curriculum) -> Result<LaunchPlan, Failure> {
        let latest = past.latest.as_ref();
        next(&NextRequest { parent: &past.run, facts: &past.facts, latest, curriculum, name: None }, &context(2))
    }

    #[test]
    fn the_next_stage_starts_from_the_newest_checkpoint_of_its_parent() {
        let parent = past(60, &[40, 60]);
        let plan = plan(&parent, &fixtures::curriculum()).unwrap();
        insta::assert_snapshot!(rows(&plan));
        assert_eq!(plan.run.lineage, Some(Lineage { run: parent.run.id, step: 60 }));
        assert_eq!(plan.run.stage.as_deref(), Some("4s"));
    }

    #[test]
    fn a_parent_that_is_not_finished_gives_a_warning() {
        let mut parent = past(45, &[40]);
        parent.facts.alive = Liveness::Alive;
        insta::assert_snapshot!(plan(&parent, &fixtures::curriculum()).unwrap().warnings.join("\n"));
    }

    #[test]
    fn a_run_without_a_next_stage_is_refused_with_an_alternative() {
        let curriculum = fixtures::curriculum();
        let mut last = past(60, &[60]);
        last.run.stage = Some("4s".into());
        let mut gone = past(60, &[60]);
        gone.run.stage = Some("1s".into());
        let mut none = past(60, &[60]);
        none.run.stage = None;
        let refusals =
            [last, gone, none, past(10, &[-20])].map(|past| fixtures::coded(&plan(&past, &curriculum).unwrap_err()));
        insta::assert_snapshot!(refusals.join("\n\n"));
    }

    #[test]
    fn a_stage_that_does_not_start_from_the_previous_one_gives_a_warning() {
        let mut curriculum = fixtures::curriculum();
        curriculum.stages[1].start = StageStart::Random;
        let plan = plan(&past(60, &[60]), &curriculum).unwrap();
        assert_eq!(plan.run.start, rundir::StartFrom::Random);
        assert_eq!(plan.warnings.len(), 1);
    }

    #[test]
    fn the_parent_of_a_stage_is_the_newest_finished_run_of_the_previous_stage() {
        let summary = |random: u32, saved: &[i64], state: RunState, stage: &str| {
            let mut past = past(60, saved);
            past.run.id = rundir::RunId::new(NOW, "demo", random);
            past.run.stage = Some(stage.into());
            RunSummary {
                dir: RunDir::of("/runs".into(), &past.run.id),
                run: past.run,
                attempt: None,
                state,
                consequences: Vec::new(),
                step: 60,
                steps_total: 60,
                last: None,
                skipped_steps: 0,
                with_loss: None,
                eta_s: None,
                items_per_s: None,
                stages: None,
                checkpoint: past.latest,
                job: None,
            }
        };
        let runs = [
            summary(1, &[60], RunState::Finished, "2s"),
            summary(2, &[60], RunState::Finished, "2s"),
            summary(3, &[60], RunState::Stopped, "2s"),
            summary(4, &[], RunState::Finished, "2s"),
            summary(5, &[60], RunState::Finished, "4s"),
        ];
        let curriculum = fixtures::curriculum();
        let parent = parent_of(&curriculum, "4s", &runs).map(|run| &run.run.id);
        assert_eq!(parent, Some(&runs[1].run.id));
        assert_eq!(parent_of(&curriculum, "2s", &runs).map(|run| &run.run.id), None);
    }

    #[test]
    fn weights_of_another_shape_are_refused_with_the_first_parameter_that_differs() {
        let recipe = fixtures::recipe();
        let (run, attempt) = fixtures::run_and_attempt();
        assert_eq!(attempt.placement, Placement::new(&context(2).target.nodes, 2).unwrap());
        let tensor = |spec: recipe::ParamSpec| LogicalTensor {
            name: spec.name,
            dtype: "F32".into(),
            shape: spec.shape,
            slices: Vec::new(),
        };
        let mut manifest = CheckpointManifest {
            format: SCHEMA,
            run: run.id,
            attempt: 1,
            step: 60,
            saved_s: NOW,
            params: 0,
            mesh: recipe.mesh,
            base: None,
            same_as: None,
            files: Vec::new(),
            tensors: param_specs(&recipe.model).into_iter().map(tensor).collect(),
        };
        assert_eq!(check_weights("cannot launch a", &manifest, &recipe), Ok(()));
        manifest.tensors[0].shape[0] = 64;
        let other_shape = fixtures::coded(&check_weights("cannot launch a", &manifest, &recipe).unwrap_err());
        manifest.tensors.remove(0);
        let missing = fixtures::coded(&check_weights("cannot launch a", &manifest, &recipe).unwrap_err());
        insta::assert_snapshot!([other_shape, missing].join("\n\n"));
    }

    #[test]
    fn adapters_with_another_scale_than_that_of_the_recipe_are_refused() {
        let mut recipe = fixtures::recipe();
        recipe.lora.rank = 4;
        let (run, _) = fixtures::run_and_attempt();
        let tensor = |spec: recipe::ParamSpec| LogicalTensor {
            name: spec.name,
            dtype: "F32".into(),
            shape: spec.shape,
            slices: Vec::new(),
        };
        let manifest = CheckpointManifest {
            format: SCHEMA,
            run: run.id,
            attempt: 1,
            step: 60,
            saved_s: NOW,
            params: 0,
            mesh: recipe.mesh,
            base: Some(rundir::BaseWeights { path: "/weights".into(), xxh3: "0".repeat(16), scale: 2.0 }),
            same_as: None,
            files: Vec::new(),
            tensors: recipe.lora.param_specs(&recipe.model).into_iter().map(tensor).collect(),
        };
        let refused = check_weights("cannot launch a", &manifest, &recipe).unwrap_err();
        assert_eq!(refused.code, ErrorCode::TensorMismatch);
        assert!(refused.fix.contains("lora.alpha = 8"), "{refused}");
        recipe.lora.alpha = 8.0;
        assert_eq!(check_weights("cannot launch a", &manifest, &recipe), Ok(()));
        // The adapters of a file replace those of the checkpoint.
        (recipe.lora.alpha, recipe.lora.from) = (4.0, "/adapter.safetensors".into());
        assert_eq!(check_weights("cannot launch a", &manifest, &recipe), Ok(()));
    }
}
