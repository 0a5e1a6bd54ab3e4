//! `--wait`: watches a run until it has ended.

use crate::refusal::Refusal;
use crate::workspace::Workspace;
use rundir::{Failure, RunDir};
use runstate::{Liveness, RunState, RunSummary};
use std::thread;
use std::time::{Duration, Instant};
use ui::run_state::StateKind;

/// How often the run is looked at.
const LOOK: Duration = Duration::from_millis(300);
/// How often progress is told.
const TELL: Duration = Duration::from_secs(10);

/// Waits until a run is finished, telling its progress on standard error.
///
/// # Errors
/// Why it ended otherwise.
pub fn until_finished(workspace: &Workspace, dir: &RunDir) -> Result<(), Refusal> {
    let summary = until_ended(workspace, dir)?;
    let stopped = || {
        let why = format!("it was stopped at step {} of {}", summary.step, summary.steps_total);
        Failure::new(
            rundir::ErrorCode::Unclassified,
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

/// Waits until nothing of a run is alive, however it ended.
///
/// # Errors
/// When the run cannot be looked at any more.
pub fn until_ended(workspace: &Workspace, dir: &RunDir) -> Result<RunSummary, Refusal> {
    let mut told = Instant::now();
    loop {
        let (summary, facts) = workspace.summary(dir)?;
        if summary.state.is_end() && facts.alive != Liveness::Alive {
            return Ok(summary);
        }
        if told.elapsed() >= TELL {
            told = Instant::now();
            eprintln!("{}", progress(&summary));
        }
        thread::sleep(LOOK);
    }
}

/// One line: `step 40 of 240, loss 0.1123, 2 min 10 s left`.
fn progress(summary: &RunSummary) -> String {
    if summary.run.is_stepless() {
        return StateKind::of(&summary.state).word().to_owned();
    }
    let mut line = format!("step {} of {}", summary.step, summary.steps_total);
    if let Some(loss) = summary.last.as_ref().and_then(|sample| sample.loss) {
        line += &format!(", loss {}", units::number(loss));
    }
    if let Some(left) = summary.eta_s {
        line += &format!(", {} left", units::duration(left));
    }
    line
}
