//! Checks that the memory or disk of a node has room for the tensors that its ranks offload.

use cluster::NodeId;
use plan::{LaunchPlan, quote};
use recipe::{JobKind, OFFLOAD_FIX, OFFLOAD_SHARE, OffloadStore, Recipe};
use rundir::ErrorCode;
use units::size;

use super::answer::{CheckResult, Fail, NodeCheck, NodeFacts};
use super::check::CheckId;

/// Returns the recipe and the backing store of its ranks, if the ranks offload tensors.
fn store(plan: &LaunchPlan) -> Option<(Recipe, OffloadStore)> {
    let recipe = plan.run.recipe().ok().filter(|_| plan.job() == JobKind::Train)?;
    let store = recipe.memory.store.on(plan.on_gpus(plan.trainer.cuda));
    recipe.memory.is_used().then_some((recipe, store))
}

/// Returns the part of the script that queries the store.
pub(super) fn script(plan: &LaunchPlan) -> String {
    let Some((recipe, store)) = store(plan) else { return String::new() };
    if store == OffloadStore::Host {
        return "echo \"offload_free_kib $(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)\"\n".into();
    }
    let folder = recipe.memory.folder().map_or_else(|| "\"${TMPDIR:-/tmp}\"".into(), |folder| quote(folder.as_str()));
    format!(
        "dir={folder}\n\
         echo \"offload_folder $dir\"\n\
         [ -d \"$dir\" ] && [ -w \"$dir\" ] && echo \"offload_writable yes\"\n\
         echo \"offload_kind $(stat -f -c %T \"$dir\" 2>/dev/null)\"\n\
         set -- $(df -Pk \"$dir\" 2>/dev/null | tail -n 1)\n\
         echo \"offload_free_kib $4\"\n"
    )
}

/// Checks that the store of a node has room for its ranks.
pub(super) fn check(plan: &LaunchPlan, node: &NodeId, facts: &NodeFacts, fail: Fail<'_>) -> Option<NodeCheck> {
    let (recipe, store) = store(plan)?;
    Some((CheckId::Offload, room(plan, (&recipe, store), node, facts, fail)))
}

fn room(
    plan: &LaunchPlan,
    (recipe, store): (&Recipe, OffloadStore),
    node: &NodeId,
    facts: &NodeFacts,
    fail: Fail<'_>,
) -> CheckResult {
    const ELSEWHERE: &str = "set memory.folder to a folder on a disk of each node that you may write to";
    let place = match store {
        OffloadStore::Host => "its memory".to_owned(),
        _ => format!("the disk of {}", facts.get("offload_folder").unwrap_or("memory.folder")),
    };
    if store != OffloadStore::Host {
        let folder = facts.get("offload_folder").unwrap_or("memory.folder");
        if facts.get("offload_writable").is_none() {
            return fail(ErrorCode::PermissionDenied, format!("{folder} does not exist or is not writable"), ELSEWHERE);
        }
        if facts.get("offload_kind") == Some("tmpfs") {
            return fail(ErrorCode::CheckFailed, format!("{folder} is on tmpfs, which is memory itself"), ELSEWHERE);
        }
    }
    let ranks = plan.attempt.placement.ranks.iter().filter(|place| place.node == *node).count().max(1) as u64;
    let needed = ranks * recipe.rank_memory().offloaded.in_store(store);
    let Some(kib) = facts.get("offload_free_kib").and_then(|kib| kib.parse::<u64>().ok()) else {
        return fail(ErrorCode::CheckFailed, format!("the free space of {place} is unknown"), "run free and df there");
    };
    let free = if store == OffloadStore::Host { (kib as f64 * 1024.0 * OFFLOAD_SHARE) as u64 } else { kib * 1024 };
    if free < needed {
        let why = format!("its {ranks} ranks offload {}, and {place} has {} free", size(needed), size(free));
        return fail(ErrorCode::OutOfMemory, why, OFFLOAD_FIX);
    }
    Ok(format!("{} needed, {} free in {place}", size(needed), size(free)))
}
