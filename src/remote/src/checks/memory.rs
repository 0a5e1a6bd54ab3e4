//! Checks that the memory of a node has room for its ranks.

use cluster::NodeId;
use plan::LaunchPlan;
use recipe::{JobKind, OFFLOAD_FIX, OFFLOAD_SHARE};
use rundir::ErrorCode;
use units::{counted, size};

use super::answer::{CheckResult, Fail, NodeCheck, NodeFacts};
use super::check::CheckId;
use super::majority::Version;

const SCRIPT: &str = include_str!("../scripts/preflight_memory.sh");
/// The memory of the supervisor of a node in bytes.
const SUPERVISOR: u64 = 128 << 20;

/// Whether the memory of a plan is known: only that of training with the embedded trainer is.
fn is_planned(plan: &LaunchPlan) -> bool {
    plan.job() == JobKind::Train
}

/// Returns the part of the script that queries the memory.
pub(super) fn script(plan: &LaunchPlan) -> &'static str {
    if is_planned(plan) { SCRIPT } else { "" }
}

/// Checks that the free memory of a node has room for its ranks.
pub(super) fn check(plan: &LaunchPlan, node: &NodeId, facts: &NodeFacts, fail: Fail<'_>) -> Option<NodeCheck> {
    is_planned(plan).then(|| (CheckId::Memory, room(plan, node, facts, fail)))
}

fn room(plan: &LaunchPlan, node: &NodeId, facts: &NodeFacts, fail: Fail<'_>) -> CheckResult {
    let Ok(recipe) = plan.run.recipe() else { return Ok("unknown".into()) };
    let recipe = plan.attempt.effective(&recipe);
    let finds_gpus = Version::of(plan, facts).map_or(plan.trainer.cuda, |version| version.cuda);
    let on_gpus = plan.on_gpus(finds_gpus);
    let recipe = if on_gpus { recipe } else { recipe.on_cpus() };
    let ranks = plan.attempt.placement.ranks.iter().filter(|place| place.node == *node).count().max(1) as u64;
    let of_rank = recipe.node_memory();
    let needed = ranks * of_rank + SUPERVISOR;
    let Some(kib) = facts.get("memory_free_kib").and_then(|kib| kib.parse::<u64>().ok()) else {
        return Ok(format!("about {} needed, and the node does not say how much is free", size(needed)));
    };
    let free = (kib as f64 * 1024.0 * OFFLOAD_SHARE) as u64;
    // The plan is an estimate. A resume on the mesh on which earlier attempts already trained is not rejected.
    let has_trained = plan.attempt.start_step > 0 && plan.attempt.mesh == recipe.mesh;
    if needed <= free || has_trained {
        return Ok(format!("about {} needed, {} free", size(needed), size(free)));
    }
    let limit = match facts.get("memory_limit") {
        Some(group) => format!("of what the limit of {group} allows, {} are free", size(free)),
        None => format!("{} are free", size(free)),
    };
    let why = format!("its {} about {}, {} each, and {limit}", need(ranks), size(needed), size(of_rank));
    let share = (free.saturating_sub(SUPERVISOR) / ranks) >> 20;
    let fix = match on_gpus {
        true => format!("{OFFLOAD_FIX}; or waive this check: --waive memory"),
        false => format!(
            "start fewer ranks there (--local N, slots of the hostfile); `vidtui check RECIPE --set train.device=cpu \
             --fit-memory {share}MiB` proposes settings; or waive this check: --waive memory"
        ),
    };
    fail(ErrorCode::OutOfMemory, why, &fix)
}

fn need(ranks: u64) -> String {
    format!("{} {}", counted(ranks as usize, "rank"), if ranks == 1 { "needs" } else { "need" })
}
