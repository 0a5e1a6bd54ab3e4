//! `vidtui profile`: requests traces of the next steps of a training run.

use crate::args::ProfileArgs;
use crate::command_error::CommandError;
use crate::commands::named_run;
use crate::output;
use crate::workspace::{Needs, Workspace};
use recipe::JobKind;
use rundir::{ErrorCode, Failure};

/// Requests that every rank records the next steps.
pub fn run(workspace: &Workspace, args: &ProfileArgs) -> Result<(), CommandError> {
    let dir = named_run(workspace, &args.run, Needs::Training, args.output.json)?;
    let (summary, _) = workspace.summary(&dir)?;
    summary.run.refuse_if_imported(format!("cannot profile {}", summary.run.id))?;
    let refuse = |code, why: &str, fix: &str| {
        Err(CommandError::from(Failure::new(code, format!("cannot profile {}", summary.run.id), why, fix)))
    };
    if summary.state.is_end() {
        return refuse(ErrorCode::RunNotRunning, "the run has ended", "resume it: vidtui resume RUN");
    }
    if summary.run.job() != JobKind::Train {
        return refuse(
            ErrorCode::InvalidArgument,
            "only runs that train with the embedded trainer record traces",
            "use the profiler of your program",
        );
    }
    rundir::write_atomic(&dir.profile_file(), args.steps.to_string().as_bytes())?;
    if args.output.json {
        let document =
            serde_json::json!({ "run": summary.run.id, "dir": dir.root, "steps": args.steps, "requested": true });
        return output::json(&document);
    }
    let steps = units::counted(args.steps as usize, "step");
    output::line(&format!(
        "{} records {steps} after this one; the traces are {}/*/*.trace.json",
        summary.run.id,
        dir.nodes()
    ))
}
