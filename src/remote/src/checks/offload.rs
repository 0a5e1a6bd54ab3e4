//! Checks that a disk of a node has room for the tensors that its ranks offload to files.

use cluster::NodeId;
use plan::{LaunchPlan, quote};
use recipe::{JobKind, OFFLOAD_FIX, OffloadStore, Recipe};
use rundir::ErrorCode;
use units::size;

use super::answer::{CheckResult, Fail, NodeCheck, NodeFacts};
use super::check::CheckId;

/// Returns the recipe, if the ranks offload tensors to files. The check of the memory counts those that stay in the memory of the node.
fn offloading(plan: &LaunchPlan) -> Option<Recipe> {
    let recipe = plan.run.recipe().ok().filter(|_| plan.job() == JobKind::Train)?;
    let store = recipe.memory.store.on(plan.on_gpus(plan.trainer.cuda));
    (recipe.memory.is_used() && store == OffloadStore::File).then_some(recipe)
}

/// Returns the part of the script that queries the folder of the files.
pub(super) fn script(plan: &LaunchPlan) -> String {
    let Some(recipe) = offloading(plan) else { return String::new() };
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

/// Checks that the folder of a node has room for its ranks.
pub(super) fn check(plan: &LaunchPlan, node: &NodeId, facts: &NodeFacts, fail: Fail<'_>) -> Option<NodeCheck> {
    offloading(plan).map(|recipe| (CheckId::Offload, room(plan, &recipe, node, facts, fail)))
}

fn room(plan: &LaunchPlan, recipe: &Recipe, node: &NodeId, facts: &NodeFacts, fail: Fail<'_>) -> CheckResult {
    const ELSEWHERE: &str = "set memory.folder to a folder on a disk of each node that you may write to";
    let folder = facts.get("offload_folder").unwrap_or("memory.folder");
    if facts.get("offload_writable").is_none() {
        return fail(ErrorCode::PermissionDenied, format!("{folder} does not exist or is not writable"), ELSEWHERE);
    }
    if facts.get("offload_kind") == Some("tmpfs") {
        return fail(ErrorCode::CheckFailed, format!("{folder} is on tmpfs, which is memory itself"), ELSEWHERE);
    }
    let ranks = plan.attempt.placement.ranks.iter().filter(|place| place.node == *node).count().max(1) as u64;
    let needed = ranks * recipe.rank_memory().offloaded.in_store(OffloadStore::File);
    let Some(free) = facts.get("offload_free_kib").and_then(|kib| Some(kib.parse::<u64>().ok()? * 1024)) else {
        let why = format!("the free space of the disk of {folder} is unknown");
        return fail(ErrorCode::CheckFailed, why, "run df there");
    };
    if free < needed {
        let why =
            format!("its {ranks} ranks offload {}, and the disk of {folder} has {} free", size(needed), size(free));
        return fail(ErrorCode::OutOfMemory, why, OFFLOAD_FIX);
    }
    Ok(format!("{} needed, {} free on the disk of {folder}", size(needed), size(free)))
}
