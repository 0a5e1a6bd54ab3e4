//! Plans to resume a run after a failure, on nodes that pass the checks, and starts the healer, which is the process that does this.

use super::Workspace;
use super::launch::with_left_out;
use super::target::NodeChoice;
use crate::args::NodesArgs;
use crate::command_error::CommandError;
use camino::Utf8Path;
use cluster::NodeId;
use plan::{FailedAttempt, LaunchPlan, ResumeOptions, ResumeRequest, Target};
use recipe::{OnFailure, RunSettings};
use rundir::{ErrorCode, Event, EventKind, Failure, RunDir, RunId};
use runstate::{RunFacts, RunSummary};
use std::fs::OpenOptions;
use std::process::{Command, Stdio};

impl Workspace {
    /// Starts the healer for the run of a plan, if the recipe sets `run.on_failure = "resume"` and no healer is running.
    pub(super) fn start_healer(&self, plan: &LaunchPlan) -> Result<(), Failure> {
        let wants = plan.run.recipe()?.run.on_failure == OnFailure::Resume;
        // The script of a Slurm job resumes the run after a failure.
        if !wants || plan.attempt.slurm.is_some() || plan.dir.healer().is_some() {
            return Ok(());
        }
        self.spawn_healer(&plan.run.id, &plan.dir).map(drop)
    }

    /// Starts a healer for a run. The healer outlives this program. Returns its process ID.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn spawn_healer(&self, run: &RunId, dir: &RunDir) -> Result<u32, Failure> {
        let what = format!("the healer of {run} cannot be started");
        let args = ["heal", run.as_str(), "--own-session"];
        self.spawn_detached(&args, &dir.healer_log(), &what, &format!("vidtui heal {run}"))
    }

    /// Starts a command of this program in a process that outlives this one. Returns its process ID.
    ///
    /// * `what` — what fails, for the error.
    /// * `by_hand` — the command that the user can run instead, for the error.
    ///
    /// # Errors
    /// The program cannot be started.
    pub(super) fn spawn_detached(
        &self,
        args: &[&str],
        log: &Utf8Path,
        what: &str,
        by_hand: &str,
    ) -> Result<u32, Failure> {
        let failed = |error: std::io::Error| {
            Failure::new(ErrorCode::of_io(&error), what, error.to_string(), format!("start it: {by_hand}"))
        };
        let log = rundir::without_links(OpenOptions::new().create(true).append(true)).open(log).map_err(failed)?;
        let mut program = Command::new(std::env::current_exe().map_err(failed)?)
            .args(["--runs", self.runs.as_str()])
            .args(args)
            .current_dir(&self.here)
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(failed)?)
            .stderr(log)
            .spawn()
            .map_err(failed)?;
        let pid = program.id();
        // Wait for the process, so that it does not stay a zombie if it ends before this program.
        remote::spawn(move || drop(program.wait()));
        Ok(pid)
    }

    /// Plans to resume a run after a failure and checks the nodes. Nodes that fail a check are left out, and the plan is made again.
    ///
    /// # Errors
    /// Too few nodes are fit, the run cannot be resumed, or its files could start programs of another user.
    pub fn plan_heal(
        &self,
        (summary, facts): &(RunSummary, RunFacts),
        settings: &RunSettings,
        failed: &FailedAttempt,
    ) -> Result<LaunchPlan, Failure> {
        summary.dir.check_trusted(&format!("cannot resume {}", summary.run.id))?;
        let is_faulty = failed.failure.code == ErrorCode::DeviceFailed;
        let faulty = failed.node.iter().filter(|_| is_faulty).map(|node| (node.clone(), "its GPU failed".to_owned()));
        let faulty: Vec<(NodeId, String)> = faulty.collect();
        let without = self.plan_heal_on_fit_nodes(summary, facts, settings, failed, faulty.clone());
        match without {
            // The process of the rank has ended, so the GPU may work again: better than no run.
            Err(failure) if !faulty.is_empty() && is_too_few(failure.code) => {
                self.plan_heal_on_fit_nodes(summary, facts, settings, failed, Vec::new())
            }
            planned => planned,
        }
    }

    /// Plans to resume a run without the nodes in `unfit`, each with the reason, and without those that fail a check.
    fn plan_heal_on_fit_nodes(
        &self,
        summary: &RunSummary,
        facts: &RunFacts,
        settings: &RunSettings,
        failed: &FailedAttempt,
        mut unfit: Vec<(NodeId, String)>,
    ) -> Result<LaunchPlan, Failure> {
        loop {
            let plan = self.plan_heal_without(summary, facts, settings, failed, &unfit)?;
            let checks = remote::check_launch(&plan, &mut self.transports(&plan.attempt.logins)?);
            let Some(failure) = checks.iter().find_map(remote::Check::failure) else { return Ok(plan) };
            let of_nodes = checks.iter().filter_map(|check| Some((check.node.clone()?, check.failure()?.why.clone())));
            let before = unfit.len();
            for (node, why) in of_nodes {
                if !unfit.iter().any(|(known, _)| *known == node) {
                    unfit.push((node, why));
                }
            }
            if unfit.len() == before {
                return Err(failure.clone());
            }
        }
    }

    fn plan_heal_without(
        &self,
        summary: &RunSummary,
        facts: &RunFacts,
        settings: &RunSettings,
        failed: &FailedAttempt,
        unfit: &[(NodeId, String)],
    ) -> Result<LaunchPlan, Failure> {
        let dir = &summary.dir;
        let Some(last) = &summary.attempt else {
            return Err(Failure::new(ErrorCode::RunNotStarted, "cannot resume", "the run has no attempt", "launch it"));
        };
        let recipe = summary.run.recipe()?;
        // No user is present to choose again: the choices of the last attempt apply.
        let nodes = NodesArgs { waive: last.waived.clone(), ..NodesArgs::default() };
        let (target, left_out) = if last.logins.is_empty() {
            let here = self.connections.this_node().node.as_str();
            (Target::local(here, last.mesh.world()), Vec::new())
        } else {
            let avoided: Vec<NodeId> = failed.node.iter().cloned().collect();
            let choice = NodeChoice { run: &summary.run.id, nodes: &nodes, avoided: &avoided, unfit };
            let target = Target::of(last);
            self.choose_nodes(target, last.mesh.world(), &choice).map_err(CommandError::into_failure)?
        };
        let checkpoints = other_trainers::checkpoints(dir)?;
        let latest = rundir::latest_among(dir, &checkpoints);
        let context = self.context(target, Some(&recipe), &nodes, left_out.clone())?;
        let request = ResumeRequest {
            run: &summary.run,
            dir,
            facts,
            checkpoints: &checkpoints,
            latest: latest.as_ref(),
            options: ResumeOptions::default(),
            changed: None,
        };
        plan::heal(&request, settings, context).map_err(|failure| with_left_out(failure, &left_out))
    }
}

/// Returns whether a resume failed because too few nodes are fit.
fn is_too_few(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::TooFewRanks | ErrorCode::InvalidMesh | ErrorCode::InvalidHostfile)
}

/// Records an event of the healer. `attempt` is the attempt that failed, or the attempt that the healer started.
///
/// # Errors
/// The file cannot be written.
pub fn record_heal(dir: &RunDir, attempt: u32, kind: EventKind) -> Result<(), Failure> {
    let path = dir.healer_events();
    let io = |error: std::io::Error| {
        Failure::new(ErrorCode::of_io(&error), format!("cannot write {path}"), error.to_string(), "check the disk")
    };
    let event = Event::new(rundir::now_s(), attempt, None, kind);
    rundir::LineAppender::open(&path).map_err(io)?.append(&event).map_err(io)
}
