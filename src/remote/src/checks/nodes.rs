//! What must hold on every node before a run starts there: asked of all nodes at once, in two commands each.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use cluster::NodeId;
use plan::{LaunchPlan, quote};
use rundir::{Failure, now_s};

use super::node::{Row, Usual, rows};
use super::{Check, disks, gpus};
use crate::RemoteError;
use crate::command::Command;
use crate::parallel::on_nodes;
use crate::transport::{Shell, Transport};
use crate::weights::weights_dir;

const SCRIPT: &str = include_str!("../scripts/preflight.sh");

/// How long a node may take to tell its time.
const SOON: Duration = Duration::from_secs(20);
/// How long a node may take for all the rest. Loading libtorch from a cold disk takes seconds.
const THOROUGH: Duration = Duration::from_secs(90);

/// What a node tells.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Told {
    /// The rows of its answer: a name and the rest.
    pub rows: Vec<(String, String)>,
}

impl Told {
    /// Reads an answer that is whole.
    fn read(text: &str) -> Option<Self> {
        let mut lines: Vec<&str> = text.lines().collect();
        (lines.pop()? == "end").then(|| Self {
            rows: lines
                .into_iter()
                .map(|line| line.split_once(' ').unwrap_or((line, "")))
                .map(|(name, rest)| (name.to_owned(), rest.trim().to_owned()))
                .collect(),
        })
    }

    pub fn get<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        self.all(name).next()
    }

    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.rows.iter().filter(move |(row, _)| row == name).map(|(_, rest)| rest.as_str())
    }
}

/// One node and what it said.
struct Asked {
    node: NodeId,
    answer: Result<Answered, RemoteError>,
}

pub(super) struct Answered {
    /// How long a question and its answer take.
    pub round_trip: Duration,
    /// How far its clock is ahead of this machine's.
    pub ahead_s: f64,
    pub told: Told,
}

/// Makes the checks of every node of a plan, all of which share its folder.
pub(crate) fn checks<S: Shell + ?Sized>(what: &str, plan: &LaunchPlan, shells: &mut [Box<S>]) -> Vec<Check> {
    let marker = Marker::new(plan);
    let asked = {
        let script = script(plan, &marker);
        let nodes = plan.nodes.iter().map(|launch| (launch.node.clone(), launch.node.clone())).collect();
        on_nodes(nodes, shells, |node, shell| Asked { node, answer: ask(shell, &script) })
    };
    let answers: Vec<_> = asked.iter().filter_map(|asked| Some((&asked.node, asked.answer.as_ref().ok()?))).collect();
    let usual = Usual::of(plan, &answers);
    let mut checks = Vec::new();
    for launch in &plan.nodes {
        let asked = asked.iter().find(|asked| asked.node == launch.node);
        let rows: Vec<Row> = match asked.map(|asked| &asked.answer) {
            None => vec![("node", Err(no_way(what, &launch.node)))],
            Some(Err(error)) => vec![("node", Err(error.failure(what)))],
            Some(Ok(answered)) => rows(what, plan, &launch.node, answered, &usual),
        };
        checks.extend(rows.into_iter().map(|(name, result)| Check::new(plan, name, Some(&launch.node), result)));
    }
    for (node, other) in twins(&asked) {
        let why = format!("node {node} is the same machine as {other}");
        let fix = format!("name each machine once: leave one of them out, such as with --exclude {node}");
        checks.push(Check::new(
            plan,
            "machine",
            Some(node),
            Err(Failure::new(rundir::ErrorCode::Unclassified, what, why, fix)),
        ));
    }
    checks
}

/// Nodes that are a machine which another name before them means too: each would start a supervisor there.
fn twins(asked: &[Asked]) -> Vec<(&NodeId, &NodeId)> {
    let mut first_of: BTreeMap<&str, &NodeId> = BTreeMap::new();
    let mut twins = Vec::new();
    for asked in asked {
        let machine = asked.answer.as_ref().ok().and_then(|answered| answered.told.get("machine"));
        let Some(machine) = machine else { continue };
        let first = *first_of.entry(machine).or_insert(&asked.node);
        if *first != asked.node {
            twins.push((&asked.node, first));
        }
    }
    twins
}

/// How a launch goes without a node.
pub(super) fn leave_out(plan: &LaunchPlan, node: &NodeId) -> String {
    match plan.attempt.slurm {
        Some(_) => format!("leave the node out (extra = [\"--exclude={node}\"] in the Slurm file)"),
        None => "leave the node out (--exclude)".into(),
    }
}

pub(super) fn no_way(what: &str, node: &NodeId) -> Failure {
    Failure::new(
        rundir::ErrorCode::Unclassified,
        what,
        format!("node {node} cannot be reached from here"),
        format!("start it on {node}"),
    )
}

fn ask<S: Shell + ?Sized>(shell: &mut S, script: &str) -> Result<Answered, RemoteError> {
    let node = shell.node().clone();
    let clock = Command::new("tell its time", "date +%s.%N", SOON);
    // The first answer may include the time to connect.
    shell.run(&clock)?;
    let asked = now_s();
    let text = shell.run(&clock)?.text(&node, &clock)?;
    let answered = now_s();
    let node_s: f64 = text.trim().parse().map_err(|_| odd(&node, &clock, &text))?;
    let told = tell(shell, script)?;
    let round_trip = Duration::from_secs_f64((answered - asked).max(0.0));
    Ok(Answered { round_trip, ahead_s: node_s - (asked + answered) / 2.0, told })
}

/// Lets a node tell all that a script asks for.
fn tell<S: Shell + ?Sized>(shell: &mut S, script: &str) -> Result<Told, RemoteError> {
    let (node, thorough) = (shell.node().clone(), Command::new("be checked", script, THOROUGH));
    let text = shell.run(&thorough)?.text(&node, &thorough)?;
    Told::read(&text).ok_or_else(|| odd(&node, &thorough, &text))
}

fn odd(node: &NodeId, command: &Command, answer: &str) -> RemoteError {
    let answer = answer.chars().take(200).collect();
    RemoteError::UnexpectedReply { node: node.clone(), action: command.action.clone(), answer }
}

/// Checks this machine.
pub(super) fn of_this_machine(what: &str, plan: &LaunchPlan, transport: &mut dyn Transport) -> Vec<Row> {
    // Our own trainer, where it runs on processors, leaves whatever GPUs there are alone. Of a command nobody knows.
    let with_gpus = plan.is_command() || plan.on_gpus(plan.trainer.cuda);
    let gpus = if with_gpus { gpus::script() } else { String::new() };
    let told = match tell(transport, &format!("export LC_ALL=C\n{}{gpus}echo end\n", disks::script(plan))) {
        Ok(told) => told,
        Err(error) => return vec![("node", Err(error.failure(what)))],
    };
    let node = transport.node();
    let fail = |why: String, fix: &str| Err(Failure::new(rundir::ErrorCode::Unclassified, what, why, fix));
    let mut rows = vec![("node", Ok("reachable".to_owned()))];
    rows.extend(disks::rows(plan, &told, &fail));
    if with_gpus {
        let answered = Answered { round_trip: Duration::ZERO, ahead_s: 0.0, told };
        let usual = Usual::of(plan, &[(node, &answered)]);
        rows.extend(gpus::rows(what, plan, node, &answered.told, &usual));
    }
    rows
}

fn script(plan: &LaunchPlan, marker: &Marker) -> String {
    let index = plan.run.recipe().ok().filter(|_| !plan.is_command()).map(|recipe| recipe.data.index);
    let data: Vec<String> = index.iter().chain(&plan.data).map(|file| quote(file.as_str())).collect();
    let (address, port) = plan.master.as_ref().map_or(("", 0), |master| (master.address.as_str(), master.port));
    let weights = weights_dir(plan).unwrap_or_default();
    SCRIPT
        .replace("@GPUS\n", &gpus::script())
        .replace("@TRAINER", &quote(plan.trainer.path.as_str()))
        .replace("@MARKER", &quote(marker.path.as_str()))
        .replace("@TOKEN", &quote(&marker.token))
        .replace("@DISKS\n", &disks::script(plan))
        .replace("@DATA", &data.join(" "))
        .replace("@MANIFEST", if plan.attempt.checkpoint.is_some() { "." } else { "manifest.toml" })
        .replace("@WEIGHTS", &quote(weights.as_str()))
        .replace("@ADDRESS", &quote(address))
        .replace("@PORT", &port.to_string())
}

/// A file that every node must see if the folder of runs is the same for all. It goes when the checks are over.
struct Marker {
    path: Utf8PathBuf,
    token: String,
}

impl Marker {
    fn new(plan: &LaunchPlan) -> Self {
        static UNIQUE: AtomicU32 = AtomicU32::new(0);
        let runs = plan.dir.root.parent().unwrap_or(&plan.dir.root);
        let folder = runs.ancestors().find(|folder| folder.is_dir()).unwrap_or(Utf8Path::new("/"));
        let token = format!("{}-{}-{}", plan.run.id, std::process::id(), UNIQUE.fetch_add(1, Ordering::Relaxed));
        let path = folder.join(format!(".check-{token}"));
        // If it cannot be written, the check of this machine's folder says so.
        let _ = fs::write(&path, &token);
        Self { path, token }
    }
}

impl Drop for Marker {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
