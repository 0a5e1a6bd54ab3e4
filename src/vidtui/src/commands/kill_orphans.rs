//! `vidtui stop` and `vidtui kill` of what is found on nodes: the user's runs, or processes by their command line.

use crate::args::NodesArgs;
use crate::commands::kill::{confirmed, document, in_words, nodes};
use crate::output::{self, Side};
use crate::refusal::Refusal;
use crate::workspace::{Workspace, report_in_words, waits_in_words};
use cluster::NodeId;
use plan::{KillHow, KillScope, NodeOrphans, NodeProcesses, RunKill};
use remote::{Patience, RemoteError, Transport, kill_orphans, list_processes};
use rundir::{Failure, RunDir};
use std::thread;
use std::time::Duration;

/// Pauses before nodes that did not answer are asked again.
const AGAIN: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(2)];
/// The pause after those, where they are waited for.
const STILL_AGAIN: Duration = Duration::from_secs(10);

/// What was asked for besides which.
pub struct How {
    /// Stop or kill.
    pub kill: KillHow,
    /// Only show.
    pub dry_run: bool,
    /// Do not ask.
    pub yes: bool,
    /// Ask nodes that do not answer again until they do.
    pub wait: bool,
    /// For scripts.
    pub json: bool,
}

/// Nodes as they were seen.
struct Seen {
    listed: Vec<NodeProcesses>,
    /// Those that did not answer, each with why.
    away: Vec<(NodeId, RemoteError)>,
    transports: Vec<Box<dyn Transport>>,
}

/// What was done, for scripts and for people.
type Done = (Vec<serde_json::Value>, String);

/// Ends all of the user's runs of which processes are on these nodes.
pub fn runs(workspace: &Workspace, on: &NodesArgs, how: &How) -> Result<(), Refusal> {
    in_rounds(workspace, on, how, |seen| runs_of(workspace, seen, how))
}

fn runs_of(workspace: &Workspace, seen: &mut Seen, how: &How) -> Result<Done, Refusal> {
    let mut plans: Vec<RunKill> = Vec::new();
    for found in plan::detect_runs(&seen.listed) {
        let told = found.dir.as_ref().map(RunDir::new);
        let dir =
            [Some(workspace.dir(&found.run)), told.clone()].into_iter().flatten().find(|dir| dir.run_toml().exists());
        // The process files of its folder name all of its nodes; without them, what was found is what there is.
        let by_files = dir.as_ref().and_then(|dir| workspace.plan_kill(dir, how.kill).ok());
        let dir = dir.or(told).unwrap_or_else(|| workspace.dir(&found.run));
        plans.extend(plan::kill_detected(found, dir, how.kill, by_files));
    }
    if plans.is_empty() {
        return Ok((Vec::new(), format!("no run of yours on {}", seen.nodes())));
    }
    if how.dry_run {
        let documents = plans.iter().map(document).collect();
        return Ok((documents, plans.iter().map(in_words).collect::<Vec<_>>().join("\n")));
    }
    if !how.yes {
        eprint!("{}", plans.iter().map(in_words).collect::<Vec<_>>().join("\n"));
        let what = units::counted(plans.len(), "run");
        if !confirmed(&what, "Steps since the last checkpoints are lost. Kill?", "add --yes")? {
            return Err(
                Failure::new(rundir::ErrorCode::Unclassified, format!("{what} go on"), "nobody said yes", "").into()
            );
        }
    }
    let (mut told, mut documents, mut failed) = (Vec::new(), Vec::new(), None);
    for plan in &plans {
        // The nodes of its attempt may be more than those of the hostfile.
        let logins = plan.dir.latest_attempt().ok().flatten().map_or_else(Vec::new, |attempt| attempt.logins);
        let mut own = if logins.is_empty() { Vec::new() } else { workspace.transports(&logins)? };
        let transports = if own.is_empty() { &mut seen.transports } else { &mut own };
        let mut progress = |step: remote::KillProgress| eprintln!("{}: {}", step.node, step.text);
        let patience = Patience::default();
        let mut report = remote::execute_kill(plan, transports, &patience, &mut progress);
        let waits = &mut |nodes: &[&NodeId], pause| eprintln!("{}", waits_in_words(nodes, pause));
        remote::go_on_killing(plan, &mut report, transports, &patience, waits, &mut progress, &|| !how.wait);
        failed = failed.or(report.failure(plan.run.as_str()));
        told.push(match how.kill {
            KillHow::Stop => format!("{} saves a checkpoint and stops", plan.run),
            KillHow::Kill => format!("{}: {}", plan.run, report_in_words(&report)),
        });
        documents.push(serde_json::json!({ "run": plan.run, "nodes": nodes(&report.nodes) }));
    }
    match failed {
        Some(failure) => {
            eprintln!("{}", told.join("\n"));
            Err(failure.into())
        }
        None => Ok((documents, told.join("\n"))),
    }
}

/// Ends processes whose command line fits, after they were shown.
pub fn orphans(
    workspace: &Workspace,
    on: &NodesArgs,
    pattern: &str,
    reach: KillScope,
    how: &How,
) -> Result<(), Refusal> {
    let regex = regex::Regex::new(pattern).map_err(|error| {
        let fix = "write it as in `grep -E`, and quote it: 'train\\.py.*--config'";
        Refusal::request(Failure::new(
            rundir::ErrorCode::Unclassified,
            format!("cannot use the pattern {pattern}"),
            error.to_string(),
            fix,
        ))
    })?;
    let own = remote::own_ancestry().map_err(|error| error.failure("cannot look for processes"))?;
    let fits = |command: &str| regex.is_match(command);
    in_rounds(workspace, on, how, |seen| {
        let found: Vec<NodeOrphans> = seen
            .listed
            .iter()
            .map(|node| plan::select_orphans(node, reach, &own, &fits))
            .filter(|node| !node.processes.is_empty())
            .collect();
        if found.is_empty() {
            let whose = if reach == KillScope::Own { " of yours" } else { "" };
            return Ok((Vec::new(), format!("no process{whose} on {} fits {pattern}", seen.nodes())));
        }
        end_found(seen, &found, reach, how)
    })
}

fn end_found(seen: &mut Seen, found: &[NodeOrphans], reach: KillScope, how: &How) -> Result<Done, Refusal> {
    let count = found.iter().map(|node| node.processes.len()).sum();
    if how.dry_run {
        let documents = found.iter().map(|node| serde_json::json!(node)).collect();
        return Ok((documents, table(found).trim_end().to_owned()));
    }
    let what = units::counted(count, "process");
    eprint!("{}", table(found));
    if !how.yes && !confirmed(&what, &format!("End {what}?"), "add --yes")? {
        return Err(
            Failure::new(rundir::ErrorCode::Unclassified, format!("{what} left alone"), "nobody said yes", "").into()
        );
    }
    let mut progress = |step: remote::KillProgress| eprintln!("{}: {}", step.node, step.text);
    let reports = kill_orphans(found, reach, &mut seen.transports, &Patience::default(), &mut progress);
    let gone: usize = reports.iter().map(|report| report.signalled.saturating_sub(report.left.len())).sum();
    let left: Vec<String> = reports.iter().flat_map(remote::NodeReport::survivors).collect();
    if let Some(failure) = reports.iter().find_map(|report| report.failure.clone()) {
        return Err(failure.into());
    }
    if !left.is_empty() {
        let fix = "a process that waits for a device ends when the device answers; if it never does, restart the node";
        return Err(Failure::new(
            rundir::ErrorCode::Unclassified,
            format!("cannot end all of {what}"),
            left.join("; "),
            fix,
        )
        .into());
    }
    let unverified: Vec<String> = reports.iter().filter_map(remote::NodeReport::unverified).collect();
    if let Some(failure) = remote::unverified_failure(&what, &unverified) {
        return Err(failure.into());
    }
    let ended = format!("{} ended on {}", units::counted(gone, "process"), names(found.iter().map(|n| &n.node)));
    Ok((nodes(&reports), ended))
}

/// Does something with nodes as they are seen, and with those that did not answer once they do, if they are waited for.
fn in_rounds(
    workspace: &Workspace,
    on: &NodesArgs,
    how: &How,
    mut round: impl FnMut(&mut Seen) -> Result<Done, Refusal>,
) -> Result<(), Refusal> {
    let mut seen = look(workspace, on)?;
    let (mut documents, mut told) = (Vec::new(), Vec::new());
    loop {
        seen.tell();
        let (of_round, said) = round(&mut seen)?;
        documents.extend(of_round);
        told.push(said);
        if !how.wait || how.dry_run || !seen.look_again() {
            return seen.end(how, documents, &told.join("\n"));
        }
    }
}

/// Lists the processes of the nodes. One that does not answer is asked again.
fn look(workspace: &Workspace, on: &NodesArgs) -> Result<Seen, Refusal> {
    let target = workspace.target(None, on, 1)?;
    let mut transports = workspace.transports(&target.logins)?;
    let nodes: Vec<NodeId> = target.nodes.iter().map(|node| node.id.clone()).collect();
    let (mut listed, mut away) = (Vec::new(), Vec::new());
    let mut wanted = nodes;
    for pause in AGAIN.into_iter().map(Some).chain([None]) {
        away.clear();
        for (node, result) in list_processes(&wanted, &mut transports) {
            match result {
                Ok(processes) => listed.push(processes),
                Err(error) => away.push((node, error)),
            }
        }
        wanted = away.iter().filter(|(_, error)| error.is_unreachable()).map(|(node, _)| node.clone()).collect();
        match pause {
            Some(pause) if !wanted.is_empty() => thread::sleep(pause),
            _ => break,
        }
    }
    listed.sort_by(|a, b| a.node.cmp(&b.node));
    Ok(Seen { listed, away, transports })
}

impl Seen {
    /// Waits until nodes answer that did not, and sees those alone. Tells whether there were any.
    fn look_again(&mut self) -> bool {
        self.listed.clear();
        while self.listed.is_empty() {
            let (blind, others) =
                std::mem::take(&mut self.away).into_iter().partition(|(_, error)| error.is_unreachable());
            let blind: Vec<(NodeId, RemoteError)> = blind;
            self.away = others;
            let wanted: Vec<NodeId> = blind.into_iter().map(|(node, _)| node).collect();
            if wanted.is_empty() {
                return false;
            }
            eprintln!("{}", waits_in_words(&wanted.iter().collect::<Vec<_>>(), STILL_AGAIN));
            thread::sleep(STILL_AGAIN);
            for (node, result) in list_processes(&wanted, &mut self.transports) {
                match result {
                    Ok(processes) => self.listed.push(processes),
                    Err(error) => self.away.push((node, error)),
                }
            }
        }
        true
    }

    /// Says which nodes did not answer.
    fn tell(&self) {
        for (_, error) in &self.away {
            eprintln!("{error}");
        }
    }

    fn nodes(&self) -> String {
        names(self.listed.iter().map(|node| &node.node))
    }

    /// Prints what was done. Nodes that nobody could look at are no success.
    fn end(&self, how: &How, done: Vec<serde_json::Value>, said: &str) -> Result<(), Refusal> {
        if how.json {
            let away: Vec<_> = self
                .away
                .iter()
                .map(|(node, error)| serde_json::json!({ "node": node, "why": error.to_string() }))
                .collect();
            output::json(&serde_json::json!({ "done": !how.dry_run, "found": done, "unreachable": away }))?;
        } else {
            output::line(said)?;
        }
        if self.away.is_empty() {
            return Ok(());
        }
        let away = names(self.away.iter().map(|(node, _)| node));
        let why = "whatever runs there goes on";
        let fix = "try again when they answer; `kill --wait` does so by itself";
        Err(Failure::new(rundir::ErrorCode::Unclassified, format!("{away} could not be looked at"), why, fix).into())
    }
}

fn names<'a>(nodes: impl Iterator<Item = &'a NodeId>) -> String {
    let names: Vec<String> = nodes.map(ToString::to_string).collect();
    if names.is_empty() { "no node".into() } else { names.join(", ") }
}

fn table(found: &[NodeOrphans]) -> String {
    const COLUMNS: [(&str, Side); 6] = [
        ("node", Side::Left),
        ("process", Side::Right),
        ("user", Side::Left),
        ("age", Side::Right),
        ("GPU memory", Side::Right),
        ("command", Side::Left),
    ];
    let rows = found.iter().flat_map(|node| {
        node.processes.iter().map(|process| {
            vec![
                node.node.to_string(),
                process.pid.to_string(),
                process.user.clone(),
                units::short_duration(process.age_s as f64),
                process.gpu_mib.map_or_else(String::new, |mib| units::bytes(mib << 20)),
                process.command.chars().take(120).collect(),
            ]
        })
    });
    output::table(&COLUMNS, &rows.collect::<Vec<_>>())
}
