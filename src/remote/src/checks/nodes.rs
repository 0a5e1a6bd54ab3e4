//! Checks of all nodes of a launch in parallel: reads each node's clock, then runs one script that prints all other facts.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use cluster::NodeId;
use plan::{LaunchPlan, quote};
use rundir::{ErrorCode, Failure, now_s};

use super::answer::{NodeAnswer, NodeCheck, NodeFacts};
use super::check::{Check, CheckId};
use super::majority::Majority;
use super::{disks, gpus, memory, no_transport, node, offload};
use crate::RemoteError;
use crate::command::Command;
use crate::parallel::on_nodes;
use crate::transport::{Shell, Transport};
use crate::weights::weights_dir;

const SCRIPT: &str = include_str!("../scripts/preflight.sh");

/// Time limit for reading a node's clock.
const CLOCK_TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit for all other facts of a node. Loading libtorch from a cold disk takes seconds.
const FACTS_TIMEOUT: Duration = Duration::from_secs(90);

/// A node and its answer.
struct Reply {
    node: NodeId,
    answer: Result<NodeAnswer, RemoteError>,
}

/// Runs the checks of every node of a plan. All of the nodes share the folder of runs. `on_reply` receives whether a node
/// answers as soon as that is known.
pub(super) fn checks<S: Shell + ?Sized>(
    what: &str,
    plan: &LaunchPlan,
    shells: &mut [Box<S>],
    on_reply: &(dyn Fn(Check) + Sync),
) -> Vec<Check> {
    let marker = Marker::new(plan);
    let replies = {
        let script = script(plan, &marker);
        let nodes = plan.nodes.iter().map(|launch| (launch.node.clone(), launch.node.clone())).collect();
        on_nodes(nodes, shells, |node, shell| {
            let answer = query(shell, &script);
            let result = answer.as_ref().map(node::reachable).map_err(|error| error.failure(what));
            on_reply(Check::new(CheckId::Node, Some(&node), result));
            Reply { node, answer }
        })
    };
    let answers: Vec<_> = replies.iter().filter_map(|reply| Some((&reply.node, reply.answer.as_ref().ok()?))).collect();
    let majority = Majority::of(plan, &answers);
    let mut checks = Vec::new();
    for launch in &plan.nodes {
        let reply = replies.iter().find(|reply| reply.node == launch.node);
        let results: Vec<NodeCheck> = match reply.map(|reply| &reply.answer) {
            None => vec![(CheckId::Node, Err(no_transport(what, &launch.node)))],
            Some(Err(error)) => vec![(CheckId::Node, Err(error.failure(what)))],
            Some(Ok(answer)) => node::checks(what, plan, &launch.node, answer, &majority),
        };
        checks.extend(results.into_iter().map(|(id, result)| Check::new(id, Some(&launch.node), result)));
    }
    for (node, first) in duplicates(&replies) {
        let why = format!("node {node} is the same machine as {first}");
        let fix = format!("list each machine once: leave one of them out, for example with --exclude {node}");
        let failure = Failure::new(ErrorCode::InvalidHostfile, what, why, fix);
        checks.push(Check::new(CheckId::Machine, Some(node), Err(failure)));
    }
    checks
}

/// Returns nodes that are the same machine as an earlier node. Each would start a supervisor there.
fn duplicates(replies: &[Reply]) -> Vec<(&NodeId, &NodeId)> {
    let mut first_of: BTreeMap<&str, &NodeId> = BTreeMap::new();
    let mut duplicates = Vec::new();
    for reply in replies {
        let machine = reply.answer.as_ref().ok().and_then(|answer| answer.facts.get("machine"));
        let Some(machine) = machine else { continue };
        let first = *first_of.entry(machine).or_insert(&reply.node);
        if *first != reply.node {
            duplicates.push((&reply.node, first));
        }
    }
    duplicates
}

fn query<S: Shell + ?Sized>(shell: &mut S, script: &str) -> Result<NodeAnswer, RemoteError> {
    let node = shell.node().clone();
    let clock = Command::new("print its time", "date +%s.%N", CLOCK_TIMEOUT);
    // The first answer may include the time to connect.
    shell.run(&clock)?;
    let sent = now_s();
    let text = shell.run(&clock)?.text(&node, &clock)?;
    let received = now_s();
    let node_s: f64 = text.trim().parse().map_err(|_| unexpected(&node, &clock, &text))?;
    let facts = query_facts(shell, script)?;
    let round_trip = Duration::from_secs_f64((received - sent).max(0.0));
    Ok(NodeAnswer { round_trip, ahead_s: node_s - (sent + received) / 2.0, facts })
}

/// Runs the script on a node and reads the facts that it prints.
fn query_facts<S: Shell + ?Sized>(shell: &mut S, script: &str) -> Result<NodeFacts, RemoteError> {
    let (node, command) = (shell.node().clone(), Command::new("run the checks", script, FACTS_TIMEOUT));
    let text = shell.run(&command)?.text(&node, &command)?;
    NodeFacts::read(&text).ok_or_else(|| unexpected(&node, &command, &text))
}

fn unexpected(node: &NodeId, command: &Command, answer: &str) -> RemoteError {
    RemoteError::unexpected(node, &command.action, answer)
}

/// Checks a node of a launch without a hostfile, which is this machine.
pub(super) fn this_machine(
    what: &str,
    plan: &LaunchPlan,
    node: &NodeId,
    transport: Option<&mut Box<dyn Transport>>,
) -> Vec<Check> {
    let Some(transport) = transport else {
        return vec![Check::new(CheckId::Node, Some(node), Err(no_transport(what, node)))];
    };
    let fail_on_node = |code, why: String, fix: &str| Err(Failure::new(code, what, format!("node {node}: {why}"), fix));
    let mut results: Vec<NodeCheck> = Vec::new();
    if let (Some(reason), false) = (plan.requires_gpus(), plan.trainer.cuda) {
        results.push((CheckId::Device, gpus::no_gpus(plan, node, reason, &fail_on_node)));
    }
    // The embedded trainer does not use GPUs when it runs on CPUs. A command may use them.
    // A watched program uses its GPUs already.
    let with_gpus = !plan.only_watches() && (plan.is_command() || plan.on_gpus(plan.trainer.cuda));
    let gpu_script = if with_gpus { gpus::script() } else { String::new() };
    match query_facts(transport.as_mut(), &format!("export LC_ALL=C\n{}{gpu_script}echo end\n", resources(plan))) {
        Err(error) => results.push((CheckId::Node, Err(error.failure(what)))),
        Ok(facts) => {
            let fail = |code, why: String, fix: &str| Err(Failure::new(code, what, why, fix));
            results.push((CheckId::Node, Ok("reachable".into())));
            results.extend(disks::checks(plan, &facts, &fail));
            results.extend(memory::check(plan, node, &facts, &fail));
            results.extend(offload::check(plan, node, &facts, &fail));
            if with_gpus {
                let answer = NodeAnswer { round_trip: Duration::ZERO, ahead_s: 0.0, facts };
                let required = Majority::of(plan, &[(node, &answer)]).why_gpus(node);
                results.extend(gpus::checks(plan, node, &answer.facts, required, &fail_on_node));
            }
        }
    }
    results.into_iter().map(|(id, result)| Check::new(id, Some(node), result)).collect()
}

/// Returns the part of the script that queries disks and memory.
fn resources(plan: &LaunchPlan) -> String {
    disks::script(plan) + memory::script(plan) + &offload::script(plan)
}

fn script(plan: &LaunchPlan, marker: &Marker) -> String {
    let files = plan.run.recipe().map_or_else(|_| Vec::new(), node::data_files);
    let data: Vec<String> = files.iter().chain(&plan.data).map(|file| quote(file.as_str())).collect();
    let (address, port) = plan.master.as_ref().map_or(("", 0), |master| (master.address.as_str(), master.port));
    let weights = weights_dir(plan).unwrap_or_default();
    SCRIPT
        .replace("@GPUS\n", &gpus::script())
        .replace("@TRAINER", &quote(plan.trainer.path.as_str()))
        .replace("@MARKER", &quote(marker.path.as_str()))
        .replace("@TOKEN", &quote(&marker.token))
        .replace("@DISKS\n", &resources(plan))
        .replace("@DATA", &data.join(" "))
        .replace("@MANIFEST", if plan.attempt.checkpoint.is_some() { "." } else { "manifest.toml" })
        .replace("@WEIGHTS", &quote(weights.as_str()))
        .replace("@ADDRESS", &quote(address))
        .replace("@PORT", &port.to_string())
}

/// A temporary file in the folder of runs. A node that can read it shares the folder.
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
        // If the write fails, the check of the run directory fails too.
        let _ = fs::write(&path, &token);
        Self { path, token }
    }
}

impl Drop for Marker {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
