//! `vidtui kill`: shows what will be signalled, asks for confirmation, kills and verifies.

use crate::args::KillArgs;
use crate::command_error::CommandError;
use crate::commands::kill_prompt::{KillOptions, confirm, execute_run, nodes, plan_run, run_in_words, show};
use crate::commands::{kill_orphans, named_run};
use crate::output::{self, note};
use crate::workspace::{Needs, Workspace, report_in_words};
use plan::{KillHow, KillScope};
use recipe::Task;
use serde_json::json;

/// Kills a run, all runs on some nodes, or processes by their command lines.
pub fn kill(workspace: &Workspace, args: &KillArgs) -> Result<(), CommandError> {
    let (dry_run, yes, wait, json) = (args.dry_run, args.yes, args.wait, args.output.json);
    let options = KillOptions { how: KillHow::Kill, dry_run, yes, wait, json };
    let scope = match (args.sudo, args.all_users) {
        (true, _) => KillScope::Sudo,
        (false, true) => KillScope::AllUsers,
        (false, false) => KillScope::Own,
    };
    if args.training {
        return kill_orphans::kill_training(workspace, &args.on.nodes(), scope, &options);
    }
    if let Some(pattern) = &args.pattern {
        return kill_orphans::kill_matching(workspace, &args.on.nodes(), pattern, scope, &options);
    }
    let Some(run) = &args.run else { return kill_orphans::kill_runs(workspace, &args.on.nodes(), &options) };
    let dir = named_run(workspace, run, Needs::Nothing, json)?;
    let Some(plan) = plan_run(workspace, &dir, &options)? else { return Ok(()) };
    if dry_run {
        return show(plan, json);
    }
    if !yes {
        note!("{}", run_in_words(&plan).trim_end());
        let run = plan.dir.read_run()?;
        let question = match run.task() {
            _ if run.attached.is_some() => "This ends the watching alone; the program goes on. Kill?",
            Task::Train => "Steps since the last checkpoint are lost. Kill?",
            Task::Encode => "Clips and captions that are stored are kept. Kill?",
            Task::Sample => "Finished videos are kept. Kill?",
        };
        confirm(plan.run.as_str(), question, &format!("vidtui kill {} --yes", plan.run))?;
    }
    let report = execute_run(workspace, &plan, &options)?;
    let text = report_in_words(&report);
    if json {
        let nodes = nodes(&report.nodes);
        return output::json(&json!({ "run": plan.run, "killed": true, "report": text, "nodes": nodes }));
    }
    output::line(&text)
}
