//! `vidtui stop`: makes a run, or all runs on some nodes, save a checkpoint and end.

use crate::args::StopArgs;
use crate::command_error::CommandError;
use crate::commands::kill_prompt::{KillOptions, execute_run, plan_run, show};
use crate::commands::{kill_orphans, named_run, waiting};
use crate::documents::RunDocument;
use crate::output;
use crate::workspace::{Needs, Workspace, report_in_words};
use plan::KillHow;
use recipe::{JobKind, Task};

/// Requests that a run, or all runs on some nodes, save and stop.
pub fn stop(workspace: &Workspace, args: &StopArgs) -> Result<(), CommandError> {
    let json = args.output.json;
    let options = KillOptions { how: KillHow::Stop, dry_run: args.dry_run, yes: true, wait: false, json };
    let Some(run) = &args.run else { return kill_orphans::kill_runs(workspace, &args.on.nodes(), &options) };
    let dir = named_run(workspace, run, Needs::Nothing, json)?;
    let Some(plan) = plan_run(workspace, &dir, &options)? else { return Ok(()) };
    if args.dry_run {
        return show(plan, json);
    }
    let requested_s = rundir::now_s();
    let report = execute_run(workspace, &plan, &options)?;
    if args.wait {
        let summary = waiting::until_stopped(workspace, &dir, requested_s)?;
        if json {
            return output::json(&RunDocument::new(&summary));
        }
        let saved = match &summary.checkpoint {
            _ if summary.run.attached.is_some() => "the program is no longer watched".into(),
            _ if summary.run.task() != Task::Train => summary.progress().in_words(),
            Some(checkpoint) => format!("last checkpoint: step {}", checkpoint.step),
            None => "no checkpoint".into(),
        };
        return output::line(&format!("{} has stopped; {saved}", plan.run));
    }
    if json {
        return output::json(&serde_json::json!({ "run": plan.run, "stopping": !report.has_ended() }));
    }
    if report.has_ended() {
        return output::line(&format!("{} has ended already; see: vidtui status {0}", plan.run));
    }
    if plan.job.as_ref().is_some_and(|job| job.is_cancelled) {
        return output::line(&report_in_words(&report));
    }
    let run = dir.read_run()?;
    let then = match run.task() {
        _ if run.attached.is_some() => "is no longer watched; the program goes on",
        Task::Train if run.job() == JobKind::Command => "received a stop request; its command may save before it stops",
        Task::Train => "saves a checkpoint and stops",
        Task::Encode => "stores the items in progress and stops",
        Task::Sample => "finishes the videos in progress and stops",
    };
    output::line(&format!("{} {then}; see: vidtui status {0}", plan.run))
}
