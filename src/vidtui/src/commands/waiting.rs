//! `--wait`: waits until a run has ended, and prints its progress.

use crate::command_error::CommandError;
use crate::output::note;
use crate::workspace::Workspace;
use rundir::{ErrorCode, Failure, RunDir};
use runstate::{Liveness, RunFacts, RunState, RunSummary};
use std::thread;
use std::time::{Duration, Instant};
use ui::run_state::StateKind;

/// How often the state is read.
const POLL: Duration = Duration::from_millis(300);
/// How often progress is printed.
const PRINT: Duration = Duration::from_secs(10);

/// Waits until a run has finished. Prints its progress on standard error.
///
/// # Errors
/// The failure of the run, or [`ErrorCode::RunNotRunning`] if it was stopped.
pub fn until_finished(workspace: &Workspace, dir: &RunDir) -> Result<(), CommandError> {
    let summary = until_ended(workspace, dir)?;
    let stopped = || {
        let why = format!("it was stopped at {}", summary.progress().in_words());
        Failure::new(
            ErrorCode::RunNotRunning,
            format!("{} is not finished", summary.run.id),
            why,
            format!("continue it: vidtui resume {}", summary.run.id),
        )
    };
    match &summary.state {
        RunState::Failed(failure) | RunState::Crashed(failure) => Err(failure.clone().into()),
        RunState::Stopped => Err(stopped().into()),
        _ => Ok(()),
    }
}

/// Waits until a run has ended and its processes are gone.
///
/// # Errors
/// When the run cannot be read.
pub fn until_ended(workspace: &Workspace, dir: &RunDir) -> Result<RunSummary, CommandError> {
    wait(workspace, dir, |_, _| None)
}

/// Waits until a run that was requested to stop at `since_s`, Unix seconds, has ended and its processes are gone.
///
/// # Errors
/// The run cannot be read, or it cannot save and therefore goes on.
pub fn until_stopped(workspace: &Workspace, dir: &RunDir, since_s: f64) -> Result<RunSummary, CommandError> {
    wait(workspace, dir, |summary, facts| {
        let failed = facts.failed_save.as_ref().filter(|failed| failed.t >= since_s)?;
        let id = &summary.run.id;
        let saved = summary.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.step);
        let lost = failed.step.saturating_sub(saved);
        Some(Failure::new(
            failed.failure.code,
            format!("{id} cannot stop without losing {}", units::counted(lost as usize, "step")),
            format!("{}: {}; so it trains on, and tries again every 10 s", failed.failure.what, failed.failure.why),
            format!("{}; or end it and lose these steps: vidtui kill {id}", failed.failure.fix),
        ))
    })
}

/// Waits until a run has ended or `refusal` returns a failure.
fn wait(
    workspace: &Workspace,
    dir: &RunDir,
    refusal: impl Fn(&RunSummary, &RunFacts) -> Option<Failure>,
) -> Result<RunSummary, CommandError> {
    let mut printed = Instant::now();
    loop {
        let (summary, facts) = workspace.summary(dir)?;
        if facts.alive == Liveness::Alive
            && let Some(failure) = refusal(&summary, &facts)
        {
            return Err(failure.into());
        }
        if summary.state.is_end() && facts.alive != Liveness::Alive {
            return Ok(summary);
        }
        if printed.elapsed() >= PRINT {
            printed = Instant::now();
            note!("{}", progress(&summary));
        }
        thread::sleep(POLL);
    }
}

/// Returns the progress: `step 40 of 240, loss 0.1123, 2 min 10 s left`, or `1,204 of 9,849 clips · 3 failed, 37/s, 4 min left`.
fn progress(summary: &RunSummary) -> String {
    if summary.is_stepless() {
        return StateKind::of(&summary.state).word().to_owned();
    }
    let mut line = summary.progress().in_words();
    if let Some(loss) = summary.with_loss.as_ref().and_then(|sample| sample.loss) {
        line += &format!(", loss {}", units::number(loss));
    }
    if let Some(per_s) = summary.items_per_s {
        line += &format!(", {}/s", units::number(per_s));
    }
    if let Some(left) = summary.eta_s {
        line += &format!(", {} left", units::duration(left));
    }
    line
}
