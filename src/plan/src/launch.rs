use camino::Utf8PathBuf;
use recipe::{Curriculum, Mesh, Recipe, StageSpec, StageStart, Trainable, save_reserve_s};
use rundir::{AttemptWhy, Failure, Lineage, Run, RunDir, RunId, SCHEMA, StartFrom};

use crate::launch_plan::{Draft, crossing, place, sizes};
use crate::{Context, LaunchPlan, Weights};
use units::{counted, size};

/// What to launch.
#[derive(Debug, Clone)]
pub struct LaunchRequest<'a> {
    /// The recipe.
    pub recipe: &'a Recipe,
    /// What to call the run; the recipe's name when not given.
    pub name: Option<&'a str>,
    /// The stage that it is, in its curriculum.
    pub stage: Option<(&'a Curriculum, &'a StageSpec)>,
    /// The weights to begin with, instead of those that the stage names.
    pub init: Option<Weights>,
}

/// Plans a new run.
///
/// # Errors
/// When the recipe does not hold, its mesh does not fit the place, or it is not known where the weights come from.
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

/// Where the weights of a new run come from.
pub(crate) struct Origin {
    /// For the trainer.
    start: StartFrom,
    /// For the record.
    lineage: Option<Lineage>,
    /// For people.
    words: String,
}

pub(crate) fn from_weights(weights: &Weights) -> Origin {
    let words = match &weights.lineage {
        Some(parent) => format!("step {} of run {}", parent.step, parent.run),
        None => weights.path.to_string(),
    };
    Origin { start: StartFrom::Weights { path: weights.path.clone() }, lineage: weights.lineage.clone(), words }
}

pub(crate) fn stage_start(
    what: &str,
    recipe: &Recipe,
    stage: Option<(&Curriculum, &StageSpec)>,
) -> Result<Origin, Failure> {
    let random = || Origin {
        start: StartFrom::Random,
        lineage: None,
        words: format!("random, from seed {}", recipe.train.seed),
    };
    let Some((curriculum, stage)) = stage else { return Ok(random()) };
    match &stage.start {
        StageStart::Random => Ok(random()),
        StageStart::Path(path) => Ok(from_weights(&Weights { path: path.clone(), lineage: None })),
        StageStart::Previous => {
            let before = curriculum.stages.iter().take_while(|other| other.name != stage.name).last();
            let before =
                before.map_or_else(|| "the stage before".to_owned(), |before| format!("stage {}", before.name));
            Err(Failure::new(
                rundir::ErrorCode::Unclassified,
                what,
                format!("stage {} starts from the weights of {before}, and none were given", stage.name),
                format!(
                    "finish a run of {before} and start this one with `vidtui next RUN`, or give weights with --init PATH"
                ),
            ))
        }
    }
}

/// A run whose origin is known: a launch, a next stage and a start from another run's weights all end here.
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
        recipe.check().map_err(|error| {
            Failure::new(rundir::ErrorCode::Unclassified, what, format!("{}: {}", error.what, error.why), error.fix)
        })?;
        let is_command = recipe.trainer == recipe::TrainerKind::Command;
        let mesh = match (is_command, cx.target.slots()) {
            // What the ranks of a command share is its own affair: it takes as many as there are.
            (true, slots) if slots > 0 && slots != recipe.mesh.world() => ranks_alone(slots),
            _ => recipe.mesh,
        };
        if mesh == recipe.mesh {
            check_mesh(what, recipe, cx)?;
        }
        if is_command && self.origin.start != StartFrom::Random {
            return Err(Failure::new(
                rundir::ErrorCode::Unclassified,
                what,
                format!("it is to start from {}, and only the command itself can say how", self.origin.words),
                "name the weights in command.run, and start the stage at random",
            ));
        }
        if is_command {
            self.origin.words = "as the command says".into();
        }
        if !is_command && self.origin.start == StartFrom::Random && recipe.train.trainable != Trainable::All {
            self.warnings.push(format!(
                "only {} is trained, and the weights are random: what is not trained stays random",
                recipe.train.trainable
            ));
        }
        let placement = place(what, &mesh, cx)?;
        if !is_command {
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
                recipe: recipe.to_table(),
            },
            recipe,
            number: 1,
            why: AttemptWhy::Launch,
            start: self.origin.start,
            start_step: 0,
            asked_step: None,
            checkpoint: None,
            weights: self.origin.words,
            mesh,
            placement,
            steps: None,
            saved: 0,
            newest_bytes: None,
            warnings: self.warnings,
            replaces: None,
        };
        Ok(draft.finish(cx))
    }
}

/// Warns of a time limit in which a run would do nothing but save.
fn short_limit(recipe: &Recipe) -> Option<String> {
    let (limit_s, cost) = (recipe.run.time_limit.seconds()? as f64, recipe.cost());
    let reserve_s = save_reserve_s(cost.save_s());
    (reserve_s >= limit_s).then(|| {
        format!(
            "run.time_limit is {}, and {reserve_s:.0} s are kept for saving {} until a save was measured: the first attempt \
             trains one step",
            recipe.run.time_limit,
            size(cost.checkpoint_bytes)
        )
    })
}

/// A mesh of ranks of which only their number is known.
pub(crate) fn ranks_alone(ranks: usize) -> Mesh {
    Mesh { dp_replicate: ranks, dp_shard: 1, tp: 1 }
}

/// A new run takes the whole place: ranks left idle are more likely a mistake than a wish.
fn check_mesh(what: &str, recipe: &Recipe, cx: &Context) -> Result<(), Failure> {
    let (mesh, slots) = (&recipe.mesh, cx.target.slots());
    let Err(error) = recipe.check_world(slots) else { return Ok(()) };
    let why = format!(
        "mesh {} needs {}, {} gives {slots}",
        sizes(mesh),
        counted(mesh.world(), "rank"),
        cx.target.description
    );
    let fix = match cx.target.pending_slurm() {
        Some(spec) => {
            format!(
                "{}; {} asks for {} nodes × {} GPUs",
                error.fix, cx.target.description, spec.nodes, spec.gpus_per_node
            )
        }
        None => error.fix,
    };
    Err(Failure::new(rundir::ErrorCode::Unclassified, what, why, fix))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{self, context, recipe, rows};

    fn plain(recipe: &Recipe, ranks: usize) -> Result<LaunchPlan, Failure> {
        launch(&LaunchRequest { recipe, name: None, stage: None, init: None }, &context(ranks))
    }

    #[test]
    fn a_launch_says_all_that_will_happen() {
        let plan = fixtures::launch_plan();
        insta::assert_snapshot!(rows(&plan));
        assert_eq!(plan.run.recipe().unwrap(), fixtures::curriculum().stages[0].resolved.recipe);
    }

    #[test]
    fn meshes_that_do_not_fit_are_refused_with_the_arithmetic() {
        let refusals =
            [(1, 4, 2), (2, 2, 3), (2, 1, 1), (1, 2, 0), (1, 1, 2)].map(|(dp_replicate, dp_shard, ranks)| {
                let mut recipe = recipe();
                recipe.mesh = Mesh { dp_replicate, dp_shard, tp: 1 };
                plain(&recipe, ranks).unwrap_err().to_string()
            });
        insta::assert_snapshot!(refusals.join("\n\n"));
    }

    #[test]
    fn a_time_limit_that_saving_alone_may_take_is_warned_about() {
        let mut recipe = recipe();
        let warned = |recipe: &Recipe| {
            let warnings = plain(recipe, 2).unwrap().warnings;
            warnings.into_iter().filter(|warning| warning.contains("run.time_limit")).collect::<Vec<_>>()
        };
        recipe.run.time_limit = "1h".parse().unwrap();
        assert!(warned(&recipe).is_empty());
        // 1.5 times what a checkpoint takes at 100 MB a second.
        (recipe.model.num_heads, recipe.model.head_dim) = (48, 64);
        let reserve_s = 1.5 * recipe.cost().checkpoint_bytes as f64 / 100e6;
        recipe.run.time_limit = format!("{}s", reserve_s as u64).parse().unwrap();
        let warnings = warned(&recipe);
        assert!(warnings[0].contains(&format!("{reserve_s:.0} s are kept for saving")), "{warnings:?}");
        recipe.run.time_limit = format!("{}s", reserve_s as u64 + 1).parse().unwrap();
        assert!(warned(&recipe).is_empty());
    }

    #[test]
    fn a_recipe_that_breaks_a_rule_is_refused() {
        let mut recipe = recipe();
        recipe.train.global_batch = 3;
        let failure = plain(&recipe, 2).unwrap_err();
        assert_eq!(failure.what, "cannot launch demo-2s");
        assert!(failure.why.contains("train.global_batch 3 is not a multiple"), "{failure}");
    }

    #[test]
    fn a_stage_that_needs_weights_is_refused_without_and_says_which_command_gives_them() {
        let curriculum = fixtures::curriculum();
        let stage = &curriculum.stages[1];
        let recipe = &stage.resolved.recipe;
        let mut request = LaunchRequest { recipe, name: None, stage: Some((&curriculum, stage)), init: None };
        insta::assert_snapshot!(launch(&request, &context(2)).unwrap_err());

        let path: Utf8PathBuf = "/weights/step-00000060".into();
        request.init = Some(Weights { path: path.clone(), lineage: None });
        let plan = launch(&request, &context(2)).unwrap();
        assert_eq!(plan.attempt.start, StartFrom::Weights { path });
    }

    #[test]
    fn training_a_part_of_random_weights_is_warned_about() {
        let mut recipe = recipe();
        recipe.train.trainable = Trainable::Qkvo;
        let plan = plain(&recipe, 2).unwrap();
        assert_eq!(
            plan.warnings,
            ["only qkvo is trained, and the weights are random: what is not trained stays random"]
        );
    }

    #[test]
    fn a_name_that_the_user_gives_is_in_the_id_and_the_folder() {
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
    fn a_launch_over_nodes_gives_each_its_script_and_all_one_place_to_meet() {
        let plan = over("gpu[01-03] slots=1\nada@gpu04:2200 slots=1", 1, 4).unwrap();
        let names: Vec<&str> = plan.nodes.iter().map(|node| node.node.as_str()).collect();
        assert_eq!(names, ["gpu01", "gpu02", "gpu03", "gpu04"]);
        assert_eq!(plan.attempt.logins[3].user.as_deref(), Some("ada"));
        assert_eq!(plan.attempt.logins.len(), 4);
        insta::assert_snapshot!(format!("{}\n{}", rows(&plan), plan.nodes[3].script));
    }

    #[test]
    fn a_shard_group_that_leaves_its_node_is_warned_about() {
        let warnings =
            |hostfile: &str, dp_replicate, dp_shard| over(hostfile, dp_replicate, dp_shard).unwrap().warnings;
        assert_eq!(warnings("gpu[01-02] slots=2", 2, 2), [""; 0]);
        let crossing = [warnings("gpu[01-02] slots=2", 1, 4), warnings("gpu01 slots=1\ngpu02 slots=3", 2, 2)];
        insta::assert_snapshot!(crossing.concat().join("\n"));
    }

    #[test]
    fn a_tp_group_that_leaves_its_node_is_warned_about() {
        let warnings = |hostfile: &str, dp_shard| {
            let mut recipe = recipe();
            recipe.mesh = Mesh { dp_replicate: 1, dp_shard, tp: 2 };
            let cx = fixtures::cluster(hostfile, recipe.mesh.world());
            let request = LaunchRequest { recipe: &recipe, name: None, stage: None, init: None };
            launch(&request, &cx).unwrap().warnings
        };
        assert_eq!(warnings("gpu01 slots=2", 1), [""; 0]);
        assert_eq!(
            warnings("gpu[01-02] slots=1", 1),
            ["1 of 1 TP group (tp 2) crosses nodes, up to 2 each: every layer waits for the network"]
        );
        assert_eq!(
            warnings("gpu[01-02] slots=2", 2),
            ["1 of 1 shard group (dp_shard 2) crosses nodes, up to 2 each: every layer is gathered over the network"]
        );
    }

    #[test]
    fn nodes_that_do_not_say_their_slots_share_the_ranks() {
        let plan = over("gpu01\ngpu02", 1, 4).unwrap();
        assert_eq!(plan.attempt.placement.by_node().iter().map(|(_, ranks)| ranks.len()).collect::<Vec<_>>(), [2, 2]);
        let refusal = over("gpu[01-03] slots=1", 1, 4).unwrap_err();
        assert_eq!(refusal.why, "mesh 1 × 4 needs 4 ranks, hostfiles/four.txt gives 3");
    }
}
