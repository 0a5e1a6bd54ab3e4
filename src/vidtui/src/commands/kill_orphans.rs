//! `vidtui stop` and `vidtui kill` without a run: all of the user's runs on some nodes, all training processes, or processes whose
//! command line matches a pattern.

use crate::args::NodesArgs;
use crate::command_error::CommandError;
use crate::commands::kill_prompt::{self, KillOptions, confirm, nodes, run_document, run_in_words};
use crate::commands::node_listing::{NodeListing, names};
use crate::output::{self, Side, note};
use crate::workspace::{Workspace, report_in_words};
use plan::{KillHow, KillPlan, KillScope, OrphanKill, Spared, SparedProcess};
use remote::KillReport;
use rundir::{ErrorCode, Failure};
use serde_json::{Value, json};

/// Stops or kills all runs of the user that have processes on some nodes.
pub fn kill_runs(workspace: &Workspace, on: &NodesArgs, options: &KillOptions) -> Result<(), CommandError> {
    kill_listed(workspace, on, options, |listing| {
        let found = plan::detect_runs(&listing.listed).into_iter();
        let plans = found.flat_map(|found| workspace.plans_of_detected(found, options.how)).map(KillPlan::Run);
        Ok((plans.collect(), format!("you have no runs on {}", listing.names())))
    })
}

/// Kills every process that trains or uses GPUs: the user's runs, and processes of other trainers.
pub fn kill_training(
    workspace: &Workspace,
    on: &NodesArgs,
    scope: KillScope,
    options: &KillOptions,
) -> Result<(), CommandError> {
    let own = remote::own_ancestry().map_err(|error| error.failure("cannot list processes"))?;
    kill_listed(workspace, on, options, |listing| {
        let mut plans_of = |found| workspace.plans_of_detected(found, options.how);
        let kill = plan::kill_on_nodes(&listing.listed, Vec::new(), scope, &own, None, &mut plans_of);
        for SparedProcess { node, process, why } in &kill.spared {
            let why = match why {
                Spared::OtherUser => format!("belongs to {}", process.user),
                Spared::ThisProgram => "is this program".to_owned(),
            };
            note!("skipped: process {} on {node} {why}: {}", process.pid, shortened(&process.command));
        }
        let none = format!("no process{} on {} trains or uses GPUs", whose(scope), listing.names());
        Ok((kill.plans, none))
    })
}

/// Kills the processes whose command line matches a pattern.
pub fn kill_matching(
    workspace: &Workspace,
    on: &NodesArgs,
    pattern: &str,
    scope: KillScope,
    options: &KillOptions,
) -> Result<(), CommandError> {
    let regex = regex::Regex::new(pattern).map_err(|error| {
        let fix = "write it as for `grep -E`, and quote it: 'train\\.py.*--config'";
        let what = format!("cannot use the pattern {pattern}");
        CommandError::request(Failure::new(ErrorCode::InvalidArgument, what, error.to_string(), fix))
    })?;
    let own = remote::own_ancestry().map_err(|error| error.failure("cannot list processes"))?;
    kill_listed(workspace, on, options, |listing| {
        let matches = |command: &str| regex.is_match(command);
        let selected = listing.listed.iter().map(|node| plan::select_orphans(node, scope, &own, &matches));
        let nodes: Vec<_> = selected.filter(|node| !node.processes.is_empty()).collect();
        if pattern.trim().is_empty() || plan::matches_anything(&matches) {
            let count = nodes.iter().map(|node| node.processes.len()).sum();
            return Err(too_broad(pattern, count, &format!("{} on {}", whose(scope), listing.names())));
        }
        let none = format!("no process{} on {} matches {pattern}", whose(scope), listing.names());
        let plan = (!nodes.is_empty()).then_some(KillPlan::Orphans(OrphanKill { scope, nodes }));
        Ok((plan.into_iter().collect(), none))
    })
}

/// Returns the error of a pattern that selects processes regardless of what they are.
fn too_broad(pattern: &str, count: usize, of: &str) -> CommandError {
    let what = format!("cannot use the pattern '{pattern}'");
    let why = format!("it matches almost any command line, and selects {}{of}", units::counted(count, "process"));
    let fix = "name the program and one of its arguments: 'train\\.py.*--config 5b'; if a shell variable holds the pattern, check that it is set";
    CommandError::request(Failure::new(ErrorCode::InvalidArgument, what, why, fix))
}

fn whose(scope: KillScope) -> &'static str {
    if scope == KillScope::Own { " of yours" } else { "" }
}

/// Returns the beginning of a command line.
fn shortened(command: &str) -> String {
    command.chars().take(120).collect()
}

/// Lists the processes of nodes, plans, and executes the plans. With `--wait`, repeats this for nodes that answer
/// later. `plan` returns the plans, and the message that is printed if there are none.
fn kill_listed(
    workspace: &Workspace,
    on: &NodesArgs,
    options: &KillOptions,
    mut plan: impl FnMut(&NodeListing) -> Result<(Vec<KillPlan>, String), CommandError>,
) -> Result<(), CommandError> {
    let mut listing = NodeListing::read(workspace, on)?;
    let (mut documents, mut texts) = (Vec::new(), Vec::new());
    loop {
        listing.report_failed();
        let (plans, none) = plan(&listing)?;
        if plans.is_empty() {
            texts.push(none);
        } else if options.dry_run {
            documents.extend(plans.iter().flat_map(plan_documents));
            texts.push(plans_in_words(&plans).trim_end().to_owned());
        } else {
            confirm_plans(&plans, options)?;
            let reports = execute(workspace, &plans, &mut listing, options)?;
            documents.extend(reports.iter().flat_map(|(plan, report)| report_documents(plan, report)));
            texts.extend(reports.iter().map(|(plan, report)| result_in_words(plan, report)));
        }
        if !options.wait || options.dry_run || !listing.wait_for_more() {
            return listing.finish(options.dry_run, options.json, documents, &texts.join("\n"));
        }
    }
}

fn confirm_plans(plans: &[KillPlan], options: &KillOptions) -> Result<(), CommandError> {
    // Processes that are selected by a pattern are shown even when no confirmation is required.
    if !options.yes || matches!(plans, [KillPlan::Orphans(_)]) {
        note!("{}", plans_in_words(plans).trim_end());
    }
    if options.yes {
        return Ok(());
    }
    match plans {
        [KillPlan::Orphans(_)] => {
            let what = plans[0].subject();
            confirm(&what, &format!("Kill {what}?"), "add --yes")
        }
        _ => {
            let what = plans.iter().map(KillPlan::subject).collect::<Vec<_>>().join(", ");
            confirm(&what, "Steps since the last checkpoints are lost. Kill?", "add --yes")
        }
    }
}

/// Executes plans one after the other. After a failure, the remaining plans are still executed.
fn execute<'a>(
    workspace: &Workspace,
    plans: &'a [KillPlan],
    listing: &mut NodeListing,
    options: &KillOptions,
) -> Result<Vec<(&'a KillPlan, KillReport)>, CommandError> {
    let (mut reports, mut first_failure) = (Vec::new(), None);
    for plan in plans {
        // An attempt may have more nodes than the hostfile.
        let logins = match plan {
            KillPlan::Run(run) => run.dir.latest_attempt().ok().flatten().map_or_else(Vec::new, |last| last.logins),
            KillPlan::Orphans(_) => Vec::new(),
        };
        let mut own = if logins.is_empty() { Vec::new() } else { workspace.transports(&logins)? };
        let transports = if own.is_empty() { &mut listing.transports } else { &mut own };
        let report = kill_prompt::execute(plan, transports, options);
        first_failure = first_failure.or(report.failure(&plan.subject()));
        reports.push((plan, report));
    }
    match first_failure {
        Some(failure) => {
            reports.iter().for_each(|(plan, report)| note!("{}", result_in_words(plan, report)));
            Err(failure.into())
        }
        None => Ok(reports),
    }
}

fn result_in_words(plan: &KillPlan, report: &KillReport) -> String {
    match plan {
        KillPlan::Run(run) if run.how == KillHow::Stop && report.has_ended() => {
            format!("{} has ended already", run.run)
        }
        KillPlan::Run(run) if run.how == KillHow::Stop => format!("{} saves a checkpoint and stops", run.run),
        KillPlan::Run(run) => format!("{}: {}", run.run, report_in_words(report)),
        KillPlan::Orphans(_) => {
            let gone: usize = report.nodes.iter().map(|node| node.signalled.saturating_sub(node.left.len())).sum();
            let nodes = names(report.nodes.iter().map(|node| &node.node));
            format!("{} ended on {nodes}", units::counted(gone, "process"))
        }
    }
}

fn report_documents(plan: &KillPlan, report: &KillReport) -> Vec<Value> {
    match plan {
        KillPlan::Run(run) => vec![json!({ "run": run.run, "nodes": nodes(&report.nodes) })],
        KillPlan::Orphans(_) => nodes(&report.nodes),
    }
}

fn plan_documents(plan: &KillPlan) -> Vec<Value> {
    match plan {
        KillPlan::Run(run) => vec![run_document(run)],
        KillPlan::Orphans(orphans) => orphans.nodes.iter().map(|node| json!(node)).collect(),
    }
}

fn plans_in_words(plans: &[KillPlan]) -> String {
    let of_plan = |plan: &KillPlan| match plan {
        KillPlan::Run(run) => run_in_words(run),
        KillPlan::Orphans(orphans) => table(orphans),
    };
    plans.iter().map(of_plan).collect::<Vec<_>>().join("\n")
}

fn table(orphans: &OrphanKill) -> String {
    const COLUMNS: [(&str, Side); 6] = [
        ("node", Side::Left),
        ("process", Side::Right),
        ("user", Side::Left),
        ("age", Side::Right),
        ("GPU memory", Side::Right),
        ("command", Side::Left),
    ];
    let rows = orphans.nodes.iter().flat_map(|node| {
        node.processes.iter().map(|process| {
            vec![
                node.node.to_string(),
                process.pid.to_string(),
                process.user.clone(),
                units::short_duration(process.age_s as f64),
                match process.gpu_mib {
                    Some(mib) => units::short_size(mib << 20),
                    None => if process.on_gpu { "?" } else { "" }.to_owned(),
                },
                shortened(&process.command),
            ]
        })
    });
    output::table(&COLUMNS, &rows.collect::<Vec<_>>())
}
