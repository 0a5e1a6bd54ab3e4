//! Plans and starts launches, resumes and next stages.

use super::target::retry_or_other_nodes;
use super::{Fitting, LaunchOptions, Workspace, curriculum, recipe_failure};
use crate::args::NodesArgs;
use crate::command_error::CommandError;
use crate::dataset::{steps_of_epochs, with_frame_rate};
use ::dataset::store::{Holder, check_no_encode};
use camino::Utf8Path;
use plan::{LaunchPlan, LaunchRequest, NextRequest, ResumeKind, ResumeOptions, ResumeRequest, Target};
use recipe::{Recipe, Task};
use rundir::{AttemptWhy, Checkpoint, ErrorCode, Failure, LaunchedFrom, Login, RunDir, RunId, StartFrom};

impl Workspace {
    /// Plans a launch. Starts nothing.
    pub fn plan_launch(&self, options: &LaunchOptions<'_>) -> Result<LaunchPlan, CommandError> {
        let recipe = &options.subject.resolved().recipe;
        let target = self.target(options.ranks, options.nodes, recipe.mesh.world(), recipe.run.spares)?;
        self.plan_launch_on(target, options)
    }

    /// Plans a launch on the nodes of a target. Starts nothing.
    pub fn plan_launch_on(&self, target: Target, options: &LaunchOptions<'_>) -> Result<LaunchPlan, CommandError> {
        let recipe = &with_frame_rate(&options.subject.resolved().recipe);
        let stage = options.subject.stage();
        let init = self.weights_of(options)?;
        let mut context =
            self.context(target, Some(recipe), options.nodes, options.fitted.iter().cloned().collect())?;
        context.options.steps = steps_of_epochs(recipe)?;
        context.options.warnings.extend(crate::adapter_file::note(recipe));
        context.options.warnings.extend(init.as_ref().and_then(|init| continues_adapters(recipe, &init.path)));
        let request = LaunchRequest { recipe, name: options.name, stage, init };
        let mut plan = plan::launch(&request, &context).map_err(CommandError::request)?;
        plan.run.launched_from = options.subject.launched_from().cloned();
        Ok(plan)
    }

    /// Plans to continue a run. Starts nothing.
    ///
    /// * `nodes` — the node flags of this resume. By default, the run continues on its own nodes with as many ranks as before.
    /// * `sets` — the keys of the recipe that change, as `section.key=value`.
    ///
    /// # Errors
    /// The run cannot be resumed, or its files could start programs of another user.
    pub fn plan_resume(
        &self,
        dir: &RunDir,
        ranks: Option<usize>,
        nodes: &NodesArgs,
        options: ResumeOptions,
        sets: &[String],
    ) -> Result<LaunchPlan, CommandError> {
        let (summary, facts) = self.summary(dir)?;
        dir.check_trusted(&format!("cannot resume {}", summary.run.id))?;
        let checkpoints = other_trainers::checkpoints(dir)?;
        let mut recipe = summary.run.recipe()?;
        let mut changed = None;
        if !sets.is_empty() {
            let (with_sets, changes) = recipe.with_sets(&dir.run_toml(), sets).map_err(recipe_failure)?;
            recipe = with_sets;
            changed = (!changes.is_empty()).then(|| (recipe.clone(), changes));
        }
        let new_mesh = |change: &recipe::ResumeChange| change.change.key.starts_with("mesh.");
        let ranks = match &changed {
            Some((recipe, changes)) if changes.iter().any(new_mesh) && is_local(summary.attempt.as_ref(), nodes) => {
                ranks.or(Some(recipe.mesh.world()))
            }
            _ => ranks,
        };
        let (target, left_out) =
            self.target_of_resume(&summary.run, summary.attempt.as_ref(), ranks, nodes, recipe.run.spares)?;
        let mut context = self.context(target, Some(&recipe), nodes, left_out.clone())?;
        if options.kind == ResumeKind::WeightsOnly && options.steps.is_none() {
            // A weights-only resume makes a new run. Other resumes take the number of steps from the last attempt.
            context.options.steps = steps_of_epochs(&recipe)?;
        }
        let latest = rundir::latest_among(dir, &checkpoints);
        let latest = latest.as_ref();
        let checkpoints = &checkpoints[..];
        let request = ResumeRequest { run: &summary.run, dir, facts: &facts, checkpoints, latest, options, changed };
        let mut plan =
            plan::resume(&request, &context).map_err(|failure| on_fewer_nodes(failure, &left_out, &summary.run.id))?;
        plan.run.launched_from = summary.run.launched_from.clone().map(|from| {
            let more = sets.iter().map(|set| recipe::with_full_paths(set));
            LaunchedFrom { sets: from.sets.into_iter().chain(more).collect(), ..from }
        });
        Ok(plan)
    }

    /// Plans the stage that follows the stage of a run. Starts nothing.
    ///
    /// * `step` — the step of the checkpoint that the stage starts from. By default, the newest complete checkpoint.
    ///
    /// # Errors
    /// The run has no next stage, or its files could start programs of another user: they name the curriculum.
    pub fn plan_next(
        &self,
        dir: &RunDir,
        step: Option<u64>,
        ranks: Option<usize>,
        nodes: &NodesArgs,
        sets: &[String],
        fitting: Fitting,
    ) -> Result<LaunchPlan, CommandError> {
        let (summary, facts) = self.summary(dir)?;
        dir.check_trusted(&format!("cannot start the stage after {}", summary.run.id))?;
        summary.run.refuse_if_attached(format!("cannot start the stage after {}", summary.run.id))?;
        let Some(path) = &summary.run.curriculum else {
            let why = "it was launched from a recipe file, not as a stage of a curriculum";
            let fix = format!("launch a recipe with its weights: vidtui launch RECIPE --init {}", summary.run.id);
            return Err(CommandError::request(Failure::new(
                ErrorCode::UnknownStage,
                format!("{} has no next stage", summary.run.id),
                why,
                fix,
            )));
        };
        let mut curriculum = curriculum(path, sets)?;
        let next = summary.run.stage.as_deref().and_then(|stage| curriculum.next_after(stage));
        let next = next.map(|next| next.name.clone());
        let stage = curriculum.stages.iter_mut().find(|stage| Some(&stage.name) == next.as_ref());
        let fitted = stage.map_or(Ok(None), |stage| {
            stage.resolved.recipe = with_frame_rate(&stage.resolved.recipe);
            self.fit(&mut stage.resolved, fitting, nodes)
        })?;
        let following = next.as_deref().and_then(|next| curriculum.stage(next));
        let world = following.map_or(1, |stage| stage.resolved.recipe.mesh.world());
        let recipe = following.map(|stage| &stage.resolved.recipe);
        let spares = recipe.map_or(0, |recipe| recipe.run.spares);
        let target = self.target(ranks, nodes, world, spares)?;
        // After the last stage, use the recipe of the run: `plan::next` then returns the failure that there is no next stage.
        let own = summary.run.recipe()?;
        let mut context = self.context(target, recipe.or(Some(&own)), nodes, fitted.into_iter().collect())?;
        context.options.steps = recipe.map_or(Ok(None), steps_of_epochs)?;
        let latest = match step {
            Some(step) => {
                let what = format!("cannot start the stage after {}", summary.run.id);
                let none = format!("resume the run until it has saved one: `vidtui resume {}`", summary.run.id);
                let checkpoints = other_trainers::checkpoints(dir)?;
                Some(plan::checkpoint_of_step(&what, &checkpoints, step, &none)?.clone())
            }
            None => other_trainers::latest_strict(dir)?,
        };
        let latest = latest.as_ref();
        let request = NextRequest { parent: &summary.run, facts: &facts, latest, curriculum: &curriculum, name: None };
        let refuse = if following.is_some() { CommandError::from } else { CommandError::request };
        plan::next(&request, &context).map_err(refuse)
    }

    /// Checks the data set of a recipe. If the recipe encodes, also checks that no other run encodes into the data set.
    ///
    /// * `run` — the run that will be continued, if there is one.
    pub fn check_data(&self, recipe: &Recipe, run: Option<&RunId>) -> Result<String, Failure> {
        let found = crate::dataset::check(recipe)?;
        if recipe.task == Task::Encode {
            self.check_no_encode(&recipe.encode.out, run)?;
        }
        Ok(found)
    }

    /// Checks that no run encodes into a data set, except `run`.
    ///
    /// # Errors
    /// `AlreadyExists` with the name of that run.
    pub fn check_no_encode(&self, data: &Utf8Path, run: Option<&RunId>) -> Result<(), Failure> {
        let is_own = |holder: &Holder| run.is_some_and(|run| run.as_str() == holder.run);
        // A crashed run counts as ended, even if processes of it remain. A run in another runs folder is unknown here, so it counts as
        // active.
        let has_ended = |holder: &Holder| {
            let summary = self.summary(&RunDir::new(self.runs.join(&holder.run)));
            summary.is_ok_and(|(summary, _)| summary.state.is_end())
        };
        check_no_encode(data, &|holder| is_own(holder) || has_ended(holder))
    }

    /// Executes a launch plan, after the checks of the data set.
    pub fn launch(&self, plan: &LaunchPlan, progress: &(dyn Fn(String) + Sync)) -> Result<RunDir, Failure> {
        if !plan.is_command() {
            let recipe = plan.run.recipe()?;
            self.check_data(&recipe, Some(&plan.run.id))?;
            if plan.is_new_run() {
                crate::adapter_file::check(&recipe, plan.run.start != StartFrom::Random)?;
            }
        }
        let last = if plan.is_new_run() { None } else { plan.dir.latest_attempt()? };
        let logins = with_previous_logins(&plan.attempt.logins, last.map_or_else(Vec::new, |last| last.logins));
        let channels = alert_channels(plan)?;
        let dir = remote::execute_launch(plan, channels.as_deref(), &mut self.transports(&logins)?, progress)?;
        self.start_healer(plan)?;
        Ok(dir)
    }
}

/// Returns the warning that the adapters of an earlier run are trained on, if the weights are adapters.
fn continues_adapters(recipe: &Recipe, weights: &Utf8Path) -> Option<String> {
    let is_adapter = recipe.task == Task::Train && recipe.lora.is_used() && recipe.lora.starts_from().is_none();
    let base = Checkpoint::open(weights).ok().filter(|_| is_adapter)?.manifest.base?;
    Some(format!(
        "the weights are adapters of an earlier run, and this run trains them on; for new adapters, start from their model {}, or merge \
         them into it first: vidtui convert {} OUT --to internal --merge {weights}",
        base.path, base.path
    ))
}

/// Returns the content of the alert channel file for the attempt of a plan: the settings of this user. If these are not valid and
/// the healer starts the attempt, the settings of the previous attempt apply.
fn alert_channels(plan: &LaunchPlan) -> Result<Option<Vec<u8>>, Failure> {
    let settings = alerts::Settings::of_user().or_else(|failure| {
        let before = plan.attempt.number.checked_sub(1).filter(|_| plan.attempt.why == AttemptWhy::Heal);
        let settings = before.and_then(|before| alerts::Settings::of_attempt(&plan.dir, before).ok());
        settings.map(Some).ok_or(failure)
    })?;
    Ok(settings.and_then(|settings| settings.for_attempt()))
}

/// Returns the failure of a resume. If the remaining nodes do not fit the run, its hint is to wait for the others or to name nodes.
fn on_fewer_nodes(failure: Failure, left_out: &[String], run: &RunId) -> Failure {
    let failure = with_left_out(failure, left_out);
    match failure.code {
        ErrorCode::InvalidMesh | ErrorCode::TooFewRanks if !left_out.is_empty() => {
            let fix = format!("{}, or {}", retry_or_other_nodes(run), failure.fix);
            Failure { fix, ..failure }
        }
        _ => failure,
    }
}

/// Adds the nodes that were left out to the reason of a failure.
pub(super) fn with_left_out(failure: Failure, left_out: &[String]) -> Failure {
    match left_out {
        [] => failure,
        left_out => Failure { why: format!("{} ({})", failure.why, left_out.join("; ")), ..failure },
    }
}

/// Returns the logins of an attempt, and the logins of the previous attempt for nodes that this attempt leaves out: the launch
/// checks that the previous attempt has ended on these nodes.
fn with_previous_logins(logins: &[Login], previous: Vec<Login>) -> Vec<Login> {
    let is_left_out = |previous: &Login| logins.iter().all(|login| login.node != previous.node);
    logins.iter().cloned().chain(previous.into_iter().filter(is_left_out)).collect()
}

/// Returns whether a resume without other flags continues on this machine alone.
fn is_local(last: Option<&rundir::Attempt>, nodes: &NodesArgs) -> bool {
    let has_flags = nodes.hostfile.is_some() || nodes.slurm.is_some();
    !has_flags && last.is_some_and(|last| last.logins.is_empty() && last.slurm.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::NodeId;

    #[test]
    fn a_resume_on_too_few_nodes_can_be_retried_or_names_other_nodes() {
        let run = rundir::fixtures::run_id();
        let left_out = ["node02 is left out: port 22 refuses the connection".to_owned()];
        let failure = |code| Failure::new(code, "cannot resume it", "the batch does not fit", "start 4 ranks");
        let retried = on_fewer_nodes(failure(ErrorCode::InvalidMesh), &left_out, &run);
        assert!(retried.why.contains("node02"), "{retried}");
        assert!(retried.fix.contains(&format!("`vidtui resume {run} --hostfile FILE`")), "{retried}");
        let finished = on_fewer_nodes(failure(ErrorCode::RunFinished), &left_out, &run);
        assert_eq!(finished.fix, "start 4 ranks");
        assert_eq!(on_fewer_nodes(failure(ErrorCode::InvalidMesh), &[], &run), failure(ErrorCode::InvalidMesh));
    }

    #[test]
    fn a_node_of_both_attempts_keeps_the_login_of_the_newer_one() {
        let login = |node, user: Option<&str>| Login {
            node: NodeId::new(node).unwrap(),
            user: user.map(ToOwned::to_owned),
            port: None,
        };
        let previous = vec![login("ml-1", None), login("ml-2", None)];
        let logins = with_previous_logins(&[login("ml-1", Some("ada"))], previous);
        assert_eq!(logins, [login("ml-1", Some("ada")), login("ml-2", None)]);
    }
}
