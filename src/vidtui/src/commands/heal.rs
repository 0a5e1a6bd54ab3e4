//! `vidtui heal`: resumes a run whenever it fails, until it has finished or was stopped.

use crate::args::HealArgs;
use crate::command_error::CommandError;
use crate::workspace::{Workspace, record_heal};
use plan::{FailedAttempt, HealDecision, heal_decision, healed_too_often};
use recipe::{OnFailure, RunSettings};
use rundir::{ErrorCode, Event, EventKind, Failure, Healer, RunDir, SCHEMA, now_s};
use runstate::{Liveness, RunFacts, RunState, RunSummary};
use std::thread;
use std::time::Duration;

/// The interval at which the state of the run is read.
const POLL: Duration = Duration::from_secs(2);
/// The pauses between tries to resume: the first, and the longest. Each is twice the one before.
const RETRY: [Duration; 2] = [Duration::from_secs(15), Duration::from_secs(300)];

/// Resumes a run whenever it fails.
///
/// # Errors
/// When another process does it already, or the run cannot be resumed any more.
pub fn run(workspace: &Workspace, args: &HealArgs) -> Result<(), CommandError> {
    let dir = workspace.find(&args.run)?;
    let run = dir.read_run()?;
    let what = format!("cannot heal {}", run.id);
    if dir.latest_attempt()?.is_some_and(|attempt| attempt.slurm.is_some()) {
        let why = "it runs in a Slurm job, whose script requeues it";
        let fix = "set run.on_failure = \"resume\" in the recipe of the next launch";
        return Err(CommandError::request(Failure::new(ErrorCode::InvalidArgument, what, why, fix)));
    }
    if args.detached {
        // Without a terminal, its end does not end this process. It fails if this process leads its group: nothing to do then.
        let _ = nix::unistd::setsid();
    }
    let healer =
        Healer { schema: SCHEMA, node: workspace.connections.this_node().node.clone(), pid: std::process::id() };
    let Some(_lock) = dir.lock_healer(&healer)? else {
        let by = dir
            .healer()
            .map_or("another process".into(), |healer| format!("process {} on {}", healer.pid, healer.node));
        let fix = format!("watch the run: vidtui status {}", run.id);
        return Err(Failure::new(ErrorCode::AlreadyExists, what, format!("{by} heals it already"), fix).into());
    };
    let settings = RunSettings { on_failure: OnFailure::Resume, ..run.recipe()?.run };
    Watch { workspace, dir, settings, waits: None }.until_ended()
}

/// A run that is watched.
struct Watch<'a> {
    workspace: &'a Workspace,
    dir: RunDir,
    settings: RunSettings,
    /// The last recorded reason to wait.
    waits: Option<String>,
}

/// The result of a look at the run.
enum Look {
    /// It is alive, or its state is unknown.
    Alive,
    /// It has ended and stays so.
    Ended,
    /// It has failed.
    Failed(Box<(RunSummary, RunFacts)>, FailedAttempt),
}

impl Watch<'_> {
    fn until_ended(mut self) -> Result<(), CommandError> {
        loop {
            match self.look() {
                Ok(Look::Ended) => return Ok(()),
                Ok(Look::Alive) => {}
                Ok(Look::Failed(state, failed)) => self.heal(&state, &failed)?,
                // A file system may be away for a while.
                Err(failure) => eprintln!("{failure}"),
            }
            thread::sleep(POLL);
        }
    }

    fn look(&self) -> Result<Look, Failure> {
        let runs = &self.workspace.runs;
        if runs.is_dir() && !self.dir.root.exists() {
            return Ok(Look::Ended);
        }
        let (summary, facts) = self.workspace.summary(&self.dir)?;
        let now_s = now_s();
        // A stop request of a user ends it, whatever happens to the processes.
        if facts.stops_for_good && (summary.state.is_end() || summary.state == RunState::New) {
            return Ok(Look::Ended);
        }
        match FailedAttempt::of(&facts, &summary.state, now_s) {
            Some(_) if facts.alive == Liveness::Alive || !facts.has_settled(now_s) => Ok(Look::Alive),
            Some(failed) => Ok(Look::Failed(Box::new((summary, facts)), failed)),
            None if summary.state.is_end() => Ok(Look::Ended),
            None => Ok(Look::Alive),
        }
    }

    /// Resumes the run, and tries again until that succeeds.
    ///
    /// # Errors
    /// The failure would repeat.
    fn heal(&mut self, state: &(RunSummary, RunFacts), failed: &FailedAttempt) -> Result<(), CommandError> {
        let events = rundir::read_events(&self.dir).map_err(Failure::from)?;
        let decided = |event: &Event| {
            event.attempt == failed.attempt
                && matches!(event.kind, EventKind::HealStarted { .. } | EventKind::HealEnded { .. })
        };
        let is_new = !events.iter().any(decided);
        let until_s = match heal_decision(&self.settings, failed, &events, now_s()) {
            HealDecision::End(failure) => {
                self.record(failed.attempt, EventKind::HealEnded { failure: failure.clone() });
                return Err(failure.into());
            }
            HealDecision::Resume => now_s(),
            HealDecision::Later(until_s) => until_s,
        };
        let failed_s = state.1.last_activity_s().unwrap_or_else(now_s);
        if is_new {
            self.record(failed.attempt, failed.heal_started());
        }
        if until_s > now_s() {
            self.wait(failed.attempt, healed_too_often(&self.settings));
            while now_s() < until_s {
                if self.is_over()? {
                    return Ok(());
                }
                thread::sleep(POLL);
            }
        }
        let mut pause = RETRY[0];
        loop {
            match self.resume(state, failed, failed_s) {
                Ok(()) => return Ok(()),
                // A user resumed or stopped it in the meantime: look again.
                Err(failure) if is_users_turn(failure.code) => return Ok(()),
                Err(failure) if is_final(failure.code) => {
                    self.record(failed.attempt, EventKind::HealEnded { failure: failure.clone() });
                    return Err(failure.into());
                }
                Err(failure) => self.wait(failed.attempt, format!("{}: {}", failure.what, failure.why)),
            }
            thread::sleep(pause);
            pause = (pause * 2).min(RETRY[1]);
            if self.is_over()? {
                return Ok(());
            }
        }
    }

    fn resume(&self, state: &(RunSummary, RunFacts), failed: &FailedAttempt, failed_s: f64) -> Result<(), Failure> {
        let plan = self.workspace.plan_heal(state, &self.settings, failed)?;
        plan.warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
        self.workspace.launch(&plan, &|step| eprintln!("{step}"))?;
        let without = plan.nodes_left_out(state.0.attempt.as_ref());
        self.record(plan.attempt.number, EventKind::Healed { without, down_s: now_s() - failed_s });
        Ok(())
    }

    /// Returns whether a user has resumed or stopped the run in the meantime.
    fn is_over(&self) -> Result<bool, Failure> {
        Ok(!matches!(self.look()?, Look::Failed(..)))
    }

    /// Records a reason to wait, unless it was the last one recorded.
    fn wait(&mut self, attempt: u32, why: String) {
        if self.waits.as_ref() != Some(&why) {
            self.record(attempt, EventKind::HealWaiting { why: why.clone() });
            self.waits = Some(why);
        }
    }

    fn record(&self, attempt: u32, kind: EventKind) {
        if let Err(failure) = record_heal(&self.dir, attempt, kind) {
            eprintln!("{failure}");
        }
    }
}

/// Returns whether a user has resumed or stopped the run.
fn is_users_turn(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::RunIsAlive | ErrorCode::AttemptConflict | ErrorCode::RunNotRunning)
}

/// Returns whether trying again cannot help.
fn is_final(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::InvalidDataset | ErrorCode::InvalidRecipe | ErrorCode::InvalidSecrets | ErrorCode::RunFinished
    )
}
