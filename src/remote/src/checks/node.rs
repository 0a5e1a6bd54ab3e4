//! Checks of one node, based on its answer and on the answers of the other nodes.

use camino::Utf8PathBuf;
use cluster::NodeId;
use health::CLOCKS_APART_S;
use plan::{LaunchPlan, Master};
use recipe::{JobKind, Recipe};
use rundir::{ErrorCode, Failure};

use super::answer::{CheckResult, Fail, NodeAnswer, NodeCheck, NodeFacts, leave_out};
use super::check::CheckId;
use super::majority::{Majority, Version, is_replaced};
use super::{disks, gpus, memory, offload};
use crate::weights::weights_dir;

/// Runs every check of a node.
pub(super) fn checks(
    what: &str,
    plan: &LaunchPlan,
    node: &NodeId,
    answer: &NodeAnswer,
    majority: &Majority<'_>,
) -> Vec<NodeCheck> {
    let facts = &answer.facts;
    let fail = |code, why: String, fix: &str| Err(Failure::new(code, what, format!("node {node}: {why}"), fix));
    let mut checks = vec![
        (CheckId::Node, Ok(reachable(answer))),
        (CheckId::Clock, clock(answer, majority, &fail)),
        (CheckId::Trainer, trainer(plan, facts, &fail)),
    ];
    let is_command = plan.is_command();
    if facts.get("missing").is_none() && !is_replaced(plan, facts) && !is_command {
        checks.push((CheckId::Libtorch, libtorch(plan, node, facts, majority, &fail)));
    }
    checks.push((CheckId::RunFolder, run_folder(plan, facts, &fail)));
    checks.extend(disks::checks(plan, facts, &fail));
    checks.extend(memory::check(plan, node, facts, &fail));
    checks.extend(offload::check(plan, node, facts, &fail));
    if !is_command {
        checks.push((CheckId::Data, data(plan, facts, &fail)));
    }
    if let Some(dir) = weights_dir(plan) {
        checks.push((
            CheckId::Weights,
            if facts.get("weights") == Some("yes") {
                Ok(dir.to_string())
            } else {
                fail(
                    ErrorCode::CheckpointUnreadable,
                    format!("checkpoint {dir} cannot be read"),
                    "put it on a file system that all nodes share",
                )
            },
        ));
    }
    if plan.only_watches() {
        // The program uses its GPUs already.
        return checks;
    }
    if let Some(master) = &plan.master {
        checks.push((CheckId::Rendezvous, rendezvous(master, facts, &fail)));
    }
    checks.extend(gpus::checks(plan, node, facts, majority.why_gpus(node), &fail));
    checks
}

/// Returns how fast a node answers.
pub(super) fn reachable(answer: &NodeAnswer) -> String {
    format!("answers in {:.0} ms", answer.round_trip.as_secs_f64() * 1e3)
}

fn clock(answer: &NodeAnswer, majority: &Majority<'_>, fail: Fail<'_>) -> CheckResult {
    let apart_s = answer.ahead_s - majority.ahead_s;
    let unsure_s = answer.round_trip.as_secs_f64() / 2.0;
    if apart_s.abs() - unsure_s > CLOCKS_APART_S {
        let side = if apart_s < 0.0 { "behind" } else { "ahead of" };
        return fail(
            ErrorCode::ClockSkew,
            format!("its clock is {:.1} s {side} the others", apart_s.abs()),
            "set it (chrony, ntpd), or waive this check: --waive clock",
        );
    }
    Ok(format!("{:.0} ms apart", apart_s.abs() * 1e3))
}

fn trainer(plan: &LaunchPlan, facts: &NodeFacts, fail: Fail<'_>) -> CheckResult {
    let (path, here) = (&plan.trainer.path, &plan.trainer.sha256);
    match (facts.get("missing"), facts.get("sha256")) {
        (None, Some(there)) if there == here => Ok(format!("{path} ({})", short(there))),
        _ if plan.push => Ok(format!("{path} ({}), copied by the launch", short(here))),
        (None, Some(there)) => fail(
            ErrorCode::TrainerUnusable,
            format!("{path} is a different binary: {} here, {} there", short(here), short(there)),
            "copy this machine's with --push, or put it on a file system that all nodes share (VIDTUI_TRAIN sets its path)",
        ),
        _ => fail(
            ErrorCode::TrainerUnusable,
            format!("{path} does not exist or is not executable"),
            "put it on a file system that all nodes share (VIDTUI_TRAIN sets its path), or copy it with --push",
        ),
    }
}

/// Checks that libtorch loads, is the same on all nodes, and finds GPUs on all or on none.
fn libtorch(
    plan: &LaunchPlan,
    node: &NodeId,
    facts: &NodeFacts,
    majority: &Majority<'_>,
    fail: Fail<'_>,
) -> CheckResult {
    let Some(version) = Version::of(plan, facts) else {
        let output = facts.get("broken").unwrap_or("it prints no version");
        return fail(
            ErrorCode::TrainerUnusable,
            format!("the trainer does not start: {output}"),
            "run `vidtui-train version` there; libtorch must have the same path as here",
        );
    };
    match (&majority.libtorch, majority.why_gpus(node)) {
        (Some((most, at)), _) if *most != version.libtorch => fail(
            ErrorCode::TrainerUnusable,
            format!("its libtorch is {}, {at} has {most}", version.libtorch),
            &format!(
                "put the same trainer on all nodes (--push copies this machine's), {}, or waive this check: --waive libtorch",
                leave_out(plan, node)
            ),
        ),
        (_, Some(why)) if !version.cuda => gpus::no_gpus(plan, node, &why, fail),
        _ => Ok(format!("{} for {}", version.libtorch, if version.cuda { "GPUs" } else { "CPUs" })),
    }
}

fn run_folder(plan: &LaunchPlan, facts: &NodeFacts, fail: Fail<'_>) -> CheckResult {
    let runs = disks::runs(plan);
    if facts.get("visible") != Some("yes") {
        return fail(
            ErrorCode::CheckFailed,
            format!("{runs} is not the folder that this machine has under that path"),
            "put the runs on a file system that all nodes share, and choose it with --runs DIR",
        );
    }
    if facts.get("runs_writable") != Some("yes") {
        let why = format!("{runs} is not writable");
        return fail(ErrorCode::PermissionDenied, why, "change its permissions, or log in as another user");
    }
    Ok(format!("{runs}, the same as here"))
}

fn data(plan: &LaunchPlan, facts: &NodeFacts, fail: Fail<'_>) -> CheckResult {
    let unread: Vec<&str> = facts.all("unread").collect();
    match (plan.run.recipe(), &unread[..]) {
        (Ok(recipe), []) => Ok(data_files(recipe).iter().map(|file| file.as_str()).collect::<Vec<_>>().join(", ")),
        (Ok(_), [first, others @ ..]) => {
            let others = if others.is_empty() { "" } else { ", among others" };
            fail(
                ErrorCode::InvalidDataset,
                format!("{first} of the data set cannot be read{others}"),
                "put it on a file system that all nodes share, or copy it to the same path on each",
            )
        }
        (Err(error), _) => fail(ErrorCode::InvalidRecipe, error.to_string(), "launch it again"),
    }
}

fn rendezvous(master: &Master, facts: &NodeFacts, fail: Fail<'_>) -> CheckResult {
    let ports: Vec<(&str, &str)> = facts.all("port").map(|port| port.split_once(' ').unwrap_or((port, ""))).collect();
    let Some((port, state)) = ports.iter().find(|(_, state)| *state != "free") else {
        return Ok(format!("{} ports {} and {}", master.address, master.port, master.port + 1));
    };
    let users = if *port == master.port.to_string() { "ranks" } else { "supervisors" };
    let at = format!("{} port {port}, the rendezvous of the {users},", master.address);
    match *state {
        "taken" => fail(ErrorCode::PortInUse, format!("{at} is in use"), "launch again: a new port is chosen"),
        "silent" => fail(
            ErrorCode::NodeUnreachable,
            format!("{at} does not answer connections from this node"),
            "open the ports between the nodes, or give the first node an address (HostName) that the others can reach",
        ),
        other => fail(
            ErrorCode::NodeUnreachable,
            format!("{at} cannot be reached: {}", other.trim_start_matches("unknown ")),
            "give the first node an address (HostName) that the others can reach",
        ),
    }
}

fn short(sha256: &str) -> &str {
    sha256.get(..12).unwrap_or(sha256)
}

/// Returns the paths that every node must be able to read: the manifest of an encode, the indexes of a training run, or the encoders
/// for sampling.
pub(super) fn data_files(recipe: Recipe) -> Vec<Utf8PathBuf> {
    match recipe.job() {
        JobKind::Command => Vec::new(),
        JobKind::Encode => vec![recipe.encode.manifest],
        JobKind::Train => recipe.data.all().into_iter().map(|set| set.index).collect(),
        JobKind::Sample => vec![recipe.encoders.folder],
    }
}
