//! Plans a new run.

use camino::Utf8PathBuf;
use recipe::{Curriculum, Length, Mesh, Recipe, StageSpec, StageStart, Task, Trainable, save_reserve_s};
use rundir::{AttemptWhy, ErrorCode, Failure, Lineage, Run, RunDir, RunId, SCHEMA, StartFrom};

use crate::launch_plan::{Draft, crossing, place, sizes};
use crate::{Context, LaunchPlan, Weights};
use units::{counted, size};

/// The request to launch a run.
#[derive(Debug, Clone)]
pub struct LaunchRequest<'a> {
    /// The recipe.
    pub recipe: &'a Recipe,
    /// The name of the run; default: the recipe's name.
    pub name: Option<&'a str>,
    /// The curriculum and the stage that the run trains.
    pub stage: Option<(&'a Curriculum, &'a StageSpec)>,
    /// The initial weights, which override those of the stage.
    pub init: Option<Weights>,
}

/// Plans a new run.
///
/// # Errors
/// When the recipe is not valid, its mesh does not fit the target, or the initial weights are missing.
pub fn launch(request: &LaunchRequest<'_>, cx: &Context) -> Result<LaunchPlan, Failure> {
    let name = request.name.unwrap_or(&request.recipe.name);
    let what = format!("cannot launch {name}");
    let origin = match &request.init {
        Some(given) => from_weights(given),
        None => stage_start(&what, request.recipe, request.stage)?,
    };
    let stage = request.stage.map(|(curriculum, stage)| (curriculum.path.clone(), stage.name.clone()));
    NewRun { name, recipe: request.recipe, stage, origin, warnings: Vec::new() }.plan(&what, cx)
}

/// The origin of the weights of a new run.
pub(crate) struct Origin {
    /// The place from which the trainer loads the weights.
    start: StartFrom,
    /// The run and step that saved the weights, if they belong to a run.
    lineage: Option<Lineage>,
    /// The checkpoint folder from which a command continues; `None`: it does not continue one.
    checkpoint: Option<Utf8PathBuf>,
    /// A description for the user.
    description: String,
}

impl Origin {
    /// Checks that the arguments of a command can pass the weights that the run starts from.
    fn check_command(&self, what: &str, recipe: &Recipe) -> Result<(), Failure> {
        let command = &recipe.command;
        let (code, why, fix) = match &self.start {
            StartFrom::Random if command.needs_weights() => (
                ErrorCode::NoWeights,
                "command.run contains {weights} or {previous}, and the run starts from no weights".to_owned(),
                "name weights: --init PATH or --init RUN; or move their arguments to command.start, which is left out without weights",
            ),
            StartFrom::Weights { .. } if !command.takes_weights() => (
                ErrorCode::InvalidRecipe,
                format!("the run starts from {}, and the command has no argument for weights", self.description),
                "set command.start in the recipe, such as [\"--ckpt-path\", \"{weights}\"], or start = \"random\" for the stage",
            ),
            StartFrom::Weights { path } if command.needs_previous() && self.lineage.is_none() => (
                ErrorCode::NoWeights,
                format!("the command contains {{previous}}, a checkpoint of another run, and no run has saved {path}"),
                "name a run: --init RUN; or write {weights} in the recipe, which any path fills in",
            ),
            _ => return Ok(()),
        };
        Err(Failure::new(code, what, why, fix))
    }
}

pub(crate) fn from_weights(weights: &Weights) -> Origin {
    let description = match &weights.lineage {
        Some(parent) => format!("step {} of run {}", parent.step, parent.run),
        None => weights.path.to_string(),
    };
    let start = StartFrom::Weights { path: weights.path.clone() };
    Origin { start, lineage: weights.lineage.clone(), checkpoint: None, description }
}

/// The origin of a run whose command loads everything from a checkpoint of another run, except the position in the data.
pub(crate) fn from_checkpoint_with_fresh_data(parent: Lineage, folder: Utf8PathBuf) -> Origin {
    let description =
        format!("step {} of run {}, with optimizer; data order and steps restart: {folder}", parent.step, parent.run);
    let start = StartFrom::CheckpointFreshData { run: parent.run.clone(), step: parent.step };
    Origin { start, lineage: Some(parent), checkpoint: Some(folder), description }
}

pub(crate) fn stage_start(
    what: &str,
    recipe: &Recipe,
    stage: Option<(&Curriculum, &StageSpec)>,
) -> Result<Origin, Failure> {
    let random = || Origin {
        start: StartFrom::Random,
        lineage: None,
        checkpoint: None,
        description: format!("random, from seed {}", recipe.train.seed),
    };
    let Some((curriculum, stage)) = stage else { return Ok(random()) };
    match &stage.start {
        StageStart::Random => Ok(random()),
        StageStart::Path(path) => Ok(from_weights(&Weights { path: path.clone(), lineage: None })),
        StageStart::Previous => {
            let before = curriculum.stages.iter().take_while(|other| other.name != stage.name).last();
            let before =
                before.map_or_else(|| "the previous stage".to_owned(), |before| format!("stage {}", before.name));
            Err(Failure::new(
                ErrorCode::NoWeights,
                what,
                format!("stage {} starts from the weights of {before}, and no weights were given", stage.name),
                format!(
                    "finish a run of {before} and continue it with `vidtui next RUN`, or give weights with --init PATH"
                ),
            ))
        }
    }
}

/// A new run with its initial weights: a launch, a next stage, or a start from another run's weights.
pub(crate) struct NewRun<'a> {
    pub name: &'a str,
    pub recipe: &'a Recipe,
    /// The curriculum and the stage in it.
    pub stage: Option<(Utf8PathBuf, String)>,
    pub origin: Origin,
    pub warnings: Vec<String>,
}

impl NewRun<'_> {
    pub fn plan(mut self, what: &str, cx: &Context) -> Result<LaunchPlan, Failure> {
        let recipe = self.recipe;
        // The rules about steps apply to a recipe in epochs only with the number of steps that the epochs take.
        let steps = cx.options.steps.filter(|_| matches!(recipe.train.length, Length::Epochs(_)));
        steps.map_or_else(|| recipe.check(), |steps| recipe.with_steps(steps).map(drop)).map_err(|error| {
            let why = format!("{}: {}", error.what, error.why);
            Failure { what: what.to_owned(), why, ..error.into() }
        })?;
        let is_command = recipe.job() == recipe::JobKind::Command;
        // Independent ranks have no mesh, and the mesh of a command is unknown. Both use all ranks of the target.
        let is_free = is_command || !recipe.task.ranks_depend_on_each_other();
        let mesh = match (is_free, cx.target.slots()) {
            (true, slots) if slots > 0 && slots != recipe.mesh.world() => command_mesh(slots),
            _ => recipe.mesh,
        };
        if mesh == recipe.mesh {
            check_mesh(what, recipe, cx)?;
        }
        if is_command {
            self.origin.check_command(what, recipe)?;
        }
        if recipe.task == Task::Encode && self.origin.start != StartFrom::Random {
            return Err(Failure::new(
                ErrorCode::InvalidArgument,
                what,
                "an encode starts from the encoders of its recipe, and not from weights of a run",
                "remove --init",
            ));
        }
        if is_command {
            self.origin.description = match (&self.origin.start, &self.origin.lineage) {
                (StartFrom::Random, _) => "chosen by the command".into(),
                (StartFrom::Weights { path }, Some(_)) => format!("{}: {path}", self.origin.description),
                _ => self.origin.description,
            };
        }
        if !is_free && self.origin.start == StartFrom::Random && recipe.train.trainable != Trainable::All {
            self.warnings.push(format!(
                "only {} is trained, and the initial weights are random: all other weights stay random",
                recipe.train.trainable
            ));
        }
        let placement = place(what, &mesh, cx)?;
        if !is_free {
            self.warnings.extend(short_limit(recipe));
            self.warnings.extend(crossing(&recipe.mesh, &placement));
        }
        let id = RunId::new(cx.now_s, self.name, cx.random);
        let (curriculum, stage) = self.stage.unzip();
        let draft = Draft {
            dir: RunDir::of(&cx.runs_root, &id),
            run: Run {
                schema: SCHEMA,
                id,
                name: self.name.to_owned(),
                curriculum,
                stage,
                created_s: cx.now_s,
                git_commit: cx.git_commit.clone(),
                trainer_sha256: Some(cx.trainer.sha256.clone()),
                trainer_version: cx.trainer.version.clone(),
                libtorch: cx.trainer.libtorch.clone(),
                start: self.origin.start.clone(),
                lineage: self.origin.lineage,
                imported: None,
                attached: None,
                launched_from: None,
                recipe: recipe.to_table(),
            },
            recipe,
            number: 1,
            why: AttemptWhy::Launch,
            start: self.origin.start,
            start_step: 0,
            asked_step: None,
            checkpoint: self.origin.checkpoint,
            weights: self.origin.description,
            mesh,
            placement,
            steps,
            changes: Vec::new(),
            schedule_rows: Vec::new(),
            saved: 0,
            newest_bytes: None,
            warnings: self.warnings,
            replaces: None,
        };
        Ok(draft.finish(cx))
    }
}

/// Warns of a time limit that is not longer than the reserve for the save.
fn short_limit(recipe: &Recipe) -> Option<String> {
    let (limit_s, cost) = (recipe.run.time_limit.seconds()? as f64, recipe.cost());
    let reserve_s = save_reserve_s(cost.save_s());
    (reserve_s >= limit_s).then(|| {
        format!(
            "run.time_limit is {}, of which {reserve_s:.0} s are reserved for saving {} until the first save is measured: the \
             first attempt trains only one step",
            recipe.run.time_limit,
            size(cost.checkpoint_bytes)
        )
    })
}

/// Returns a mesh for a command. Only the number of its ranks is known.
pub(crate) fn command_mesh(ranks: usize) -> Mesh {
    Mesh { dp_replicate: ranks, dp_shard: 1, tp: 1 }
}

/// Checks that a Slurm job that may start on fewer nodes belongs to a recipe that allows it.
pub(crate) fn check_min_nodes(what: &str, recipe: &Recipe, cx: &Context) -> Result<(), Failure> {
    if recipe.run.shrink || cx.target.slurm.as_ref().is_none_or(|slurm| slurm.spec.min_nodes.is_none()) {
        return Ok(());
    }
    let why = format!("min_nodes of {} allows fewer nodes, and the recipe does not", cx.target.description);
    Err(Failure::new(ErrorCode::InvalidSlurmFile, what, why, "set run.shrink = true, or remove min_nodes"))
}

/// Checks that a new run uses all slots of the target, because idle slots are probably a mistake.
fn check_mesh(what: &str, recipe: &Recipe, cx: &Context) -> Result<(), Failure> {
    check_min_nodes(what, recipe, cx)?;
    let (mesh, slots) = (&recipe.mesh, cx.target.slots());
    let Err(error) = recipe.check_world(slots) else { return Ok(()) };
    let why = format!(
        "mesh {} needs {}, and {} has {slots}",
        sizes(mesh),
        counted(mesh.world(), "rank"),
        cx.target.description
    );
    let fix = match cx.target.pending_slurm() {
        Some(spec) => {
            format!(
                "{}; {} requests {} nodes × {} GPUs",
                error.fix, cx.target.description, spec.nodes, spec.gpus_per_node
            )
        }
        None => error.fix,
    };
    let code = if slots < mesh.world() { ErrorCode::TooFewRanks } else { ErrorCode::InvalidMesh };
    Err(Failure::new(code, what, why, fix))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{self, context, recipe, rows};

    fn plain(recipe: &Recipe, ranks: usize) -> Result<LaunchPlan, Failure> {
        launch(&LaunchRequest { recipe, name: None, stage: None, init: None }, &context(ranks))
    }

    #[test]
    fn the_summary_of_a_launch_shows_what_will_happen() {
        let plan = fixtures::launch_plan();
        insta::assert_snapshot!(rows(&plan));
        assert_eq!(plan.run.recipe().unwrap(), fixtures::curriculum().stages[0].resolved.recipe);
    }

    #[test]
    fn a_recipe_for_epochs_is_launched_with_the_steps_that_they_take() {
        let mut recipe = recipe();
        recipe.train.length = Length::Epochs(3);
        let with = |steps: u64| {
            let mut context = context(2);
            context.options.steps = Some(steps);
            launch(&LaunchRequest { recipe: &recipe, name: None, stage: None, init: None }, &context)
        };
        let plan = with(90).unwrap();
        assert_eq!(plan.attempt.steps, Some(90));
        assert!(rows(&plan).contains("1 to 90 (3 epochs)"), "{}", rows(&plan));
        // The rules about steps apply to this number: the warm-up has 5 steps.
        assert_eq!(with(4).unwrap_err().code, ErrorCode::InvalidRecipe);
    }

    #[test]
    fn meshes_that_do_not_fit_are_refused_with_the_arithmetic() {
        let refusals =
            [(1, 4, 2), (2, 2, 3), (2, 1, 1), (1, 2, 0), (1, 1, 2)].map(|(dp_replicate, dp_shard, ranks)| {
                let mut recipe = recipe();
                recipe.mesh = Mesh { dp_replicate, dp_shard, tp: 1 };
                fixtures::coded(&plain(&recipe, ranks).unwrap_err())
            });
        insta::assert_snapshot!(refusals.join("\n\n"));
    }

    #[test]
    fn a_time_limit_shorter_than_a_save_gives_a_warning() {
        let mut recipe = recipe();
        let warned = |recipe: &Recipe| {
            let warnings = plain(recipe, 2).unwrap().warnings;
            warnings.into_iter().filter(|warning| warning.contains("run.time_limit")).collect::<Vec<_>>()
        };
        recipe.run.time_limit = "1h".parse().unwrap();
        assert!(warned(&recipe).is_empty());
        // The reserve is 1.5 times the duration of a save at 100 MB per second.
        (recipe.model.num_heads, recipe.model.head_dim) = (48, 64);
        let reserve_s = 1.5 * recipe.cost().checkpoint_bytes as f64 / 100e6;
        recipe.run.time_limit = format!("{}s", reserve_s as u64).parse().unwrap();
        let warnings = warned(&recipe);
        assert!(warnings[0].contains(&format!("{reserve_s:.0} s")), "{warnings:?}");
        recipe.run.time_limit = format!("{}s", reserve_s as u64 + 1).parse().unwrap();
        assert!(warned(&recipe).is_empty());
    }

    #[test]
    fn a_recipe_that_breaks_a_rule_is_refused() {
        let mut recipe = recipe();
        recipe.train.global_batch = 3;
        let failure = plain(&recipe, 2).unwrap_err();
        assert_eq!(failure.code, ErrorCode::InvalidMesh, "{failure}");
    }

    #[test]
    fn a_stage_without_its_weights_is_refused_with_the_commands_that_give_them() {
        let curriculum = fixtures::curriculum();
        let stage = &curriculum.stages[1];
        let recipe = &stage.resolved.recipe;
        let mut request = LaunchRequest { recipe, name: None, stage: Some((&curriculum, stage)), init: None };
        insta::assert_snapshot!(fixtures::coded(&launch(&request, &context(2)).unwrap_err()));

        let path: Utf8PathBuf = "/weights/step-00000060".into();
        request.init = Some(Weights { path: path.clone(), lineage: None });
        let plan = launch(&request, &context(2)).unwrap();
        assert_eq!(plan.attempt.start, StartFrom::Weights { path });
    }

    #[test]
    fn a_command_starts_from_weights_if_its_arguments_pass_them() {
        let curriculum = fixtures::curriculum();
        let path = Utf8PathBuf::from("/out/epoch4-global_step2210");
        let parent = Some(Lineage { run: fixtures::launch_plan().run.id, step: 2210 });
        let plan = |start: &[&str], weights: Option<Weights>| {
            let mut recipe = fixtures::command();
            recipe.command.start = start.iter().map(|word| (*word).to_owned()).collect();
            let stage = weights.is_none().then_some((&curriculum, &curriculum.stages[0]));
            launch(&LaunchRequest { recipe: &recipe, name: None, stage, init: weights }, &context(2))
        };
        let of = |lineage: &Option<Lineage>| Some(Weights { path: path.clone(), lineage: lineage.clone() });
        let started = plan(&["--ckpt-path", "{previous}"], of(&parent)).unwrap();
        assert!(started.nodes[0].script.contains("train.py --ckpt-path /out/epoch4-global_step2210"));
        assert_eq!(started.run.lineage, parent);
        let without = plan(&["--ckpt-path", "{previous}"], None).unwrap();
        assert!(!without.nodes[0].script.contains("--ckpt-path"));
        let refusals = [plan(&[], of(&parent)), plan(&["--ckpt-path", "{previous}"], of(&None))];
        insta::assert_snapshot!(refusals.map(|refusal| fixtures::coded(&refusal.unwrap_err())).join("\n\n"));
    }

    #[test]
    fn a_command_that_always_needs_weights_does_not_start_without() {
        let mut recipe = fixtures::command();
        recipe.command.run.push("{weights}".into());
        insta::assert_snapshot!(fixtures::coded(&plain(&recipe, 2).unwrap_err()));
    }

    #[test]
    fn training_a_part_of_random_weights_gives_a_warning() {
        let mut recipe = recipe();
        recipe.train.trainable = Trainable::Qkvo;
        let plan = plain(&recipe, 2).unwrap();
        insta::assert_snapshot!(plan.warnings.join("\n"), @"only qkvo is trained, and the initial weights are random: all other weights stay random");
    }

    #[test]
    fn the_name_of_a_run_is_part_of_its_id_and_folder() {
        let recipe = recipe();
        let request = LaunchRequest { recipe: &recipe, name: Some("first try"), stage: None, init: None };
        let plan = launch(&request, &context(2)).unwrap();
        assert_eq!(plan.run.id.name(), "first-try");
        assert_eq!(plan.dir.root, format!("/runs/{}", plan.run.id));
    }

    fn over(hostfile: &str, dp_replicate: usize, dp_shard: usize) -> Result<LaunchPlan, Failure> {
        let mut recipe = recipe();
        recipe.mesh = Mesh { dp_replicate, dp_shard, tp: 1 };
        let cx = fixtures::cluster(hostfile, recipe.mesh.world());
        launch(&LaunchRequest { recipe: &recipe, name: None, stage: None, init: None }, &cx)
    }

    #[test]
    fn a_launch_on_several_nodes_has_a_script_for_each_and_one_rendezvous() {
        let plan = over("gpu[01-03] slots=1\nada@gpu04:2200 slots=1", 1, 4).unwrap();
        let names: Vec<&str> = plan.nodes.iter().map(|node| node.node.as_str()).collect();
        assert_eq!(names, ["gpu01", "gpu02", "gpu03", "gpu04"]);
        assert_eq!(plan.attempt.logins[3].user.as_deref(), Some("ada"));
        assert_eq!(plan.attempt.logins.len(), 4);
        insta::assert_snapshot!(format!("{}\n{}", rows(&plan), plan.nodes[3].script));
    }

    #[test]
    fn a_shard_group_across_nodes_gives_a_warning() {
        let warnings =
            |hostfile: &str, dp_replicate, dp_shard| over(hostfile, dp_replicate, dp_shard).unwrap().warnings;
        assert_eq!(warnings("gpu[01-02] slots=2", 2, 2), [""; 0]);
        let crossing = [warnings("gpu[01-02] slots=2", 1, 4), warnings("gpu01 slots=1\ngpu02 slots=3", 2, 2)];
        insta::assert_snapshot!(crossing.concat().join("\n"));
    }

    #[test]
    fn a_tp_group_across_nodes_gives_a_warning() {
        let warnings = |hostfile: &str, dp_shard| {
            let mut recipe = recipe();
            recipe.mesh = Mesh { dp_replicate: 1, dp_shard, tp: 2 };
            let cx = fixtures::cluster(hostfile, recipe.mesh.world());
            let request = LaunchRequest { recipe: &recipe, name: None, stage: None, init: None };
            launch(&request, &cx).unwrap().warnings
        };
        assert_eq!(warnings("gpu01 slots=2", 1), [""; 0]);
        let crossing = [warnings("gpu[01-02] slots=1", 1), warnings("gpu[01-02] slots=2", 2)];
        insta::assert_snapshot!(crossing.concat().join("\n"));
    }

    #[test]
    fn nodes_without_slots_share_the_ranks() {
        let plan = over("gpu01\ngpu02", 1, 4).unwrap();
        assert_eq!(plan.attempt.placement.by_node().iter().map(|(_, ranks)| ranks.len()).collect::<Vec<_>>(), [2, 2]);
        let refusal = over("gpu[01-03] slots=1", 1, 4).unwrap_err();
        assert_eq!(refusal.code, ErrorCode::TooFewRanks, "{refusal}");
    }
}
