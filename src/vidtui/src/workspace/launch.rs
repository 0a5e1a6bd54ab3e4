//! Launches, resumes and next stages: planned with what is known here, and done as planned.

use super::{Fitting, Init, Subject, Workspace, curriculum};
use crate::args::NodesArgs;
use crate::refusal::Refusal;
use plan::{LaunchPlan, LaunchRequest, NextRequest, ResumeOptions, ResumeRequest, Target};
use rundir::{Attempt, Failure, Login, RunDir};

/// A launch as it is wished for.
pub struct LaunchOptions<'a> {
    /// What to train.
    pub subject: &'a Subject,
    /// Number of ranks on this machine; as many as the mesh has, when nobody said.
    pub ranks: Option<usize>,
    /// The nodes, when it is not this machine.
    pub nodes: &'a NodesArgs,
    /// The name of the run; the recipe's, when nobody said.
    pub name: Option<&'a str>,
    /// Where the weights come from; as the stage says, when nobody said.
    pub init: Init<'a>,
    /// What [`Workspace::fit`] changed, for people.
    pub fitted: Option<String>,
}

impl Workspace {
    /// Plans a launch; starts nothing.
    pub fn plan_launch(&self, options: &LaunchOptions<'_>) -> Result<LaunchPlan, Refusal> {
        let recipe = &options.subject.resolved().recipe;
        let stage = options.subject.stage();
        let init = self.weights_of(options)?;
        let target = self.target(options.ranks, options.nodes, recipe.mesh.world())?;
        let context = self.context(target, Some(recipe), options.nodes, options.fitted.iter().cloned().collect())?;
        let request = LaunchRequest { recipe, name: options.name, stage, init };
        plan::launch(&request, &context).map_err(Refusal::request)
    }

    /// Plans to continue a run; starts nothing.
    pub fn plan_resume(
        &self,
        dir: &RunDir,
        ranks: Option<usize>,
        nodes: &NodesArgs,
        options: ResumeOptions,
    ) -> Result<LaunchPlan, Refusal> {
        let (summary, facts) = self.summary(dir)?;
        let checkpoints = adapters::checkpoints(dir)?;
        let nodes = self.wanted(nodes);
        let world = plan::last_ranks(&summary.run, summary.attempt.as_ref());
        let is_elsewhere = ranks.is_none() && nodes.hostfile.is_none() && nodes.slurm.is_none();
        let (target, away) = match summary.attempt.as_ref().filter(|_| is_elsewhere) {
            Some(Attempt { number, slurm: Some(slurm), .. }) => {
                (Target::slurm(slurm.spec.clone(), format!("the Slurm job of attempt {number}")), Vec::new())
            }
            Some(last) if !last.logins.is_empty() => self.target_of_attempt(last, nodes)?,
            _ => (self.target(ranks, nodes, world)?, Vec::new()),
        };
        let context = self.context(target, Some(&summary.run.recipe()?), nodes, away.clone())?;
        let latest = rundir::latest_among(dir, &checkpoints);
        let latest = latest.as_ref();
        let request =
            ResumeRequest { run: &summary.run, dir, facts: &facts, checkpoints: &checkpoints, latest, options };
        plan::resume(&request, &context).map_err(|failure| match &away[..] {
            [] => failure.into(),
            away => Failure { why: format!("{} ({})", failure.why, away.join("; ")), ..failure }.into(),
        })
    }

    /// Plans the stage after a run's; starts nothing.
    pub fn plan_next(
        &self,
        dir: &RunDir,
        ranks: Option<usize>,
        nodes: &NodesArgs,
        sets: &[String],
        fitting: Fitting,
    ) -> Result<LaunchPlan, Refusal> {
        let (summary, facts) = self.summary(dir)?;
        let Some(path) = &summary.run.curriculum else {
            let why = "it was launched from a recipe file, not as a stage of a curriculum";
            let fix = format!("launch what is to follow with --init {}", dir.root);
            return Err(Refusal::request(Failure::new(
                rundir::ErrorCode::Unclassified,
                format!("nothing follows {}", summary.run.id),
                why,
                fix,
            )));
        };
        let mut curriculum = curriculum(path, sets)?;
        let next = summary.run.stage.as_deref().and_then(|stage| curriculum.next_after(stage));
        let next = next.map(|next| next.name.clone());
        let stage = curriculum.stages.iter_mut().find(|stage| Some(&stage.name) == next.as_ref());
        let fitted = stage.map_or(Ok(None), |stage| self.fit(&mut stage.resolved, fitting, nodes))?;
        let following = next.as_deref().and_then(|next| curriculum.stage(next));
        let world = following.map_or(1, |stage| stage.resolved.recipe.mesh.world());
        let recipe = following.map(|stage| &stage.resolved.recipe);
        let target = self.target(ranks, nodes, world)?;
        let context = self.context(target, recipe, nodes, fitted.into_iter().collect())?;
        let latest = adapters::latest_for_sure(dir)?;
        let latest = latest.as_ref();
        let request = NextRequest { parent: &summary.run, facts: &facts, latest, curriculum: &curriculum, name: None };
        let refuse = if following.is_some() { Refusal::from } else { Refusal::request };
        plan::next(&request, &context).map_err(refuse)
    }

    /// Starts what a plan says, after every check that has to do with files.
    pub fn launch(&self, plan: &LaunchPlan, progress: &(dyn Fn(String) + Sync)) -> Result<RunDir, Failure> {
        if !plan.is_command() {
            crate::dataset::check(&plan.run.recipe()?)?;
        }
        let last = if plan.is_new_run() { None } else { plan.dir.latest_attempt()? };
        let logins = with_those_left_out(&plan.attempt.logins, last.map_or_else(Vec::new, |last| last.logins));
        remote::execute_launch(plan, &mut self.transports(&logins)?, progress)
    }
}

/// The logins of an attempt, and those of the attempt before to nodes that this one leaves out: whether it has ended there is
/// asked once more.
fn with_those_left_out(logins: &[Login], before: Vec<Login>) -> Vec<Login> {
    let is_left_out = |old: &Login| logins.iter().all(|login| login.node != old.node);
    logins.iter().cloned().chain(before.into_iter().filter(is_left_out)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::NodeId;

    #[test]
    fn a_node_of_the_attempt_before_is_logged_in_to_as_this_one_says() {
        let login = |node, user: Option<&str>| Login {
            node: NodeId::new(node).unwrap(),
            user: user.map(ToOwned::to_owned),
            port: None,
        };
        let before = vec![login("ml-1", None), login("ml-2", None)];
        let ways = with_those_left_out(&[login("ml-1", Some("ada"))], before);
        assert_eq!(ways, [login("ml-1", Some("ada")), login("ml-2", None)]);
    }
}
