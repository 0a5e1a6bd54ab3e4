//! `vidtui runs`: lists the runs, writes their notes, deletes and restores them.

use crate::args::{RunsArgs, RunsCommand};
use crate::command_error::CommandError;
use crate::commands::kill_prompt::confirmed;
use crate::commands::named_run;
use crate::documents::RunDocument;
use crate::output::{self, Side, note};
use crate::workspace::{Needs, Workspace};
use rundir::{DeletedRun, ErrorCode, Failure, now_s, read_note, tags, write_note};
use runstate::RunSummary;
use serde_json::json;
use ui::run_state::StateKind;

/// Lists the runs, the newest first, or executes a command about runs.
pub fn run(workspace: &Workspace, args: &RunsArgs) -> Result<(), CommandError> {
    match &args.command {
        None => list(workspace, args),
        Some(RunsCommand::Note { run, text, output }) => note_of(workspace, run, text, output.json),
        Some(RunsCommand::Delete { chosen, yes, output }) => delete(workspace, chosen, *yes, output.json),
        Some(RunsCommand::Restore { run, output }) => restore(workspace, run, output.json),
        Some(RunsCommand::Trash { empty: true, yes, output }) => empty(workspace, *yes, output.json),
        Some(RunsCommand::Trash { output, .. }) => trash(workspace, output.json),
    }
}

fn note_of(workspace: &Workspace, run: &str, text: &[String], is_json: bool) -> Result<(), CommandError> {
    let dir = named_run(workspace, run, Needs::Nothing, is_json)?;
    if !text.is_empty() {
        write_note(&dir, &text.join(" "))?;
    }
    let note = read_note(&dir);
    if is_json {
        let tags = note.as_deref().map(tags).unwrap_or_default();
        return output::json(&json!({ "run": dir.name(), "note": note, "tags": tags }));
    }
    match note {
        Some(note) => output::line(&note),
        None => output::line(&format!("{} has no note; write one: vidtui runs note {} TEXT", dir.name(), dir.name())),
    }
}

fn delete(workspace: &Workspace, runs: &[String], yes: bool, is_json: bool) -> Result<(), CommandError> {
    let mut plans: Vec<plan::RunDelete> = Vec::new();
    for run in runs {
        let dir = named_run(workspace, run, Needs::Nothing, is_json)?;
        if plans.iter().all(|plan| plan.dir != dir) {
            plans.push(workspace.plan_delete_run(&dir)?);
        }
    }
    if !yes {
        for plan in &plans {
            note!("{}", plan.dir.root);
            plan.consequences().iter().for_each(|sentence| note!("  {sentence}"));
        }
        let question = format!("Move {} to the trash?", units::counted(plans.len(), "run"));
        if !confirmed("cannot delete runs", &question, "add --yes")? {
            return Err(cancelled());
        }
    }
    for plan in &plans {
        workspace.delete_run(plan)?;
    }
    workspace.trash().remove_expired(now_s());
    let ids: Vec<&str> = plans.iter().map(|plan| plan.dir.name()).collect();
    if is_json {
        return output::json(&json!({ "deleted": ids }));
    }
    for id in ids {
        let days = rundir::TRASH_DAYS;
        output::line(&format!("{id} is in the trash for {days} days; `vidtui runs restore {id}` brings it back"))?;
    }
    Ok(())
}

fn cancelled() -> CommandError {
    Failure::new(ErrorCode::Cancelled, "Deletion cancelled", "nothing was removed", "").into()
}

fn restore(workspace: &Workspace, run: &str, is_json: bool) -> Result<(), CommandError> {
    let dir = workspace.trash().restore(&workspace.find_deleted(run)?)?;
    match is_json {
        true => output::json(&json!({ "restored": dir.name() })),
        false => output::line(&format!("{} is back", dir.name())),
    }
}

fn trash(workspace: &Workspace, is_json: bool) -> Result<(), CommandError> {
    let trash = workspace.trash();
    trash.remove_expired(now_s());
    let deleted = trash.list()?;
    if is_json {
        let document = |deleted: &DeletedRun| json!({ "run": deleted.run, "dir": deleted.dir, "deleted_s": deleted.deleted_s, "by": deleted.by, "expires_s": deleted.expires_s() });
        return output::json(&json!({ "deleted": deleted.iter().map(document).collect::<Vec<_>>() }));
    }
    if deleted.is_empty() {
        return output::line("the trash is empty");
    }
    let now = now_s();
    let row = |deleted: &DeletedRun| {
        vec![
            deleted.run.clone(),
            deleted.deleted_s.map(|at_s| units::ago(now, at_s)).unwrap_or_default(),
            deleted.by.clone().unwrap_or_default(),
            deleted.expires_s().map(|at_s| units::duration((at_s - now).max(0.0))).unwrap_or_default(),
        ]
    };
    let columns = [("run", Side::Left), ("deleted", Side::Left), ("by", Side::Left), ("removed in", Side::Right)];
    output::text(&output::table(&columns, &deleted.iter().map(row).collect::<Vec<_>>()))
}

fn empty(workspace: &Workspace, yes: bool, is_json: bool) -> Result<(), CommandError> {
    let trash = workspace.trash();
    let deleted = trash.list()?;
    if !yes && !deleted.is_empty() {
        deleted.iter().for_each(|deleted| note!("{}", deleted.dir));
        let question = format!("Remove {} for good?", units::counted(deleted.len(), "run"));
        if !confirmed("cannot empty the trash", &question, "add --yes")? {
            return Err(cancelled());
        }
    }
    for deleted in &deleted {
        trash.remove(deleted)?;
    }
    let ids: Vec<&str> = deleted.iter().map(|deleted| deleted.run.as_str()).collect();
    match is_json {
        true => output::json(&json!({ "removed": ids })),
        false => output::line(&format!("{} removed", units::counted(ids.len(), "run"))),
    }
}

/// Lists the runs, the newest first.
fn list(workspace: &Workspace, args: &RunsArgs) -> Result<(), CommandError> {
    let (mut runs, unreadable) = workspace.summaries();
    let has_none = runs.is_empty();
    runs.retain(|summary| is_wanted(args, summary));
    runs.reverse();
    runs.truncate(args.limit.unwrap_or(usize::MAX));
    if args.output.json {
        let runs: Vec<_> = runs.iter().map(RunDocument::new).collect();
        return output::json(&serde_json::json!({ "runs": runs, "unreadable": unreadable }));
    }
    for failure in &unreadable {
        note!("{failure}");
    }
    if runs.is_empty() && !has_none {
        return output::line("no such runs; leave out --name, --state, --tag and --limit to list all");
    }
    if runs.is_empty() {
        return output::line(&format!("no runs in {}; start one with: vidtui launch RECIPE", workspace.runs));
    }
    let mut columns = vec![
        ("run", Side::Left),
        ("state", Side::Left),
        ("done", Side::Right),
        ("loss", Side::Right),
        ("left", Side::Right),
        ("started", Side::Left),
    ];
    let mut rows: Vec<_> = runs.iter().map(row).collect();
    let notes: Vec<Option<String>> = runs.iter().map(|summary| read_note(&summary.dir)).collect();
    if notes.iter().any(Option::is_some) {
        columns.push(("note", Side::Left));
        rows.iter_mut().zip(notes).for_each(|(row, note)| row.push(note.unwrap_or_default()));
    }
    output::text(&output::table(&columns, &rows))
}

/// Returns whether a run has the name and the state that the arguments select.
fn is_wanted(args: &RunsArgs, summary: &RunSummary) -> bool {
    let run = &summary.run;
    let has_name = |part: &String| run.name.contains(part) || run.id.as_str().contains(part);
    let has_tag = |tag: &String| {
        let wanted = tag.strip_prefix('#').unwrap_or(tag);
        read_note(&summary.dir).is_some_and(|note| tags(&note).contains(&wanted))
    };
    args.name.as_ref().is_none_or(has_name)
        && args.tag.iter().all(has_tag)
        && (args.state.is_empty() || args.state.contains(&StateKind::of(&summary.state)))
}

fn row(summary: &RunSummary) -> Vec<String> {
    let loss = summary.with_loss.as_ref().and_then(|sample| sample.loss);
    vec![
        summary.run.id.to_string(),
        StateKind::of(&summary.state).word().into(),
        summary.progress().short(),
        loss.map(units::number).unwrap_or_default(),
        summary.eta_s.map(units::duration).unwrap_or_default(),
        units::ago(now_s(), summary.run.created_s),
    ]
}
