//! Checks of a Slurm job before it is submitted.

use cluster::slurm::{self, SlurmError, SlurmNode, SlurmSpec};
use plan::LaunchPlan;
use rundir::{ErrorCode, Failure};
use units::counted;

use super::answer::CheckResult;
use super::check::{Check, CheckId};
use super::disks;
use crate::slurm::{failure, partition, run, run_script};

/// Checks a job without its nodes, which are not known before the job begins.
pub(super) fn checks(what: &str, plan: &LaunchPlan, spec: &SlurmSpec, script: &str) -> Vec<Check> {
    let check = |id, result| Check::new(id, None, result);
    let nodes = match run("list its nodes", &slurm::NODES) {
        Ok(answer) => slurm::read_nodes(&answer).rows,
        Err(error) => return vec![check(CheckId::Slurm, Err(failure(what, &error)))],
    };
    let mut checks = vec![check(CheckId::Slurm, Ok("its controller answers".into()))];
    let partition = partition(what, spec, &nodes);
    let mut must_wait = false;
    if let Ok(partition) = &partition {
        let nodes: Vec<&SlurmNode> = nodes.iter().filter(|node| node.partition == *partition).collect();
        must_wait = usable(spec, &nodes) < spec.least_nodes();
        checks.push(check(CheckId::Nodes, enough_nodes(what, spec, partition, &nodes)));
    }
    checks.insert(1, check(CheckId::Partition, partition));
    checks.push(check(CheckId::Job, test_submission(what, spec, script, must_wait)));
    let runs = disks::runs(plan);
    checks.push(check(CheckId::RunFolder, Ok(format!("{runs}; checked on the nodes when the job begins"))));
    checks
}

fn has_gpus(spec: &SlurmSpec, node: &SlurmNode) -> bool {
    node.gpus.unwrap_or(0) >= spec.gpus_per_node as u64
}

/// Counts the nodes that are large enough and accept jobs now.
fn usable(spec: &SlurmSpec, nodes: &[&SlurmNode]) -> usize {
    nodes.iter().filter(|node| has_gpus(spec, node) && node.state.takes_jobs()).count()
}

/// Checks that the partition has enough nodes. A job can wait for nodes that are down or drained.
fn enough_nodes(what: &str, spec: &SlurmSpec, partition: &str, nodes: &[&SlurmNode]) -> CheckResult {
    let large = nodes.iter().filter(|node| has_gpus(spec, node)).count();
    let gpus = counted(spec.gpus_per_node, "GPU");
    if large < spec.nodes {
        let why = format!(
            "{} of {gpus} requested; partition {partition} has {}, {large} of them with {gpus}",
            spec.nodes,
            counted(nodes.len(), "node"),
        );
        let fix = "request fewer nodes or GPUs in the Slurm file, or another partition";
        return Err(Failure::new(ErrorCode::TooFewRanks, what, why, fix));
    }
    let usable = usable(spec, nodes);
    let is_idle = |node: &&&SlurmNode| {
        has_gpus(spec, node) && node.state.takes_jobs() && node.state.base == slurm::NodeBase::Idle
    };
    let idle = nodes.iter().filter(is_idle).count();
    let wait =
        if usable < spec.least_nodes() { "; it waits for nodes that are down or drained: `sinfo -R`" } else { "" };
    Ok(format!("{} of {gpus} requested, {usable} accept jobs, {idle} idle{wait}", spec.nodes))
}

/// Tests the script with Slurm, because only Slurm can check accounts and limits. `must_wait` means that some nodes are
/// down or drained.
fn test_submission(what: &str, spec: &SlurmSpec, script: &str, must_wait: bool) -> CheckResult {
    let answer = match run_script("test a job", "exec sbatch --test-only", script) {
        // The test rejects a job that sbatch itself would queue.
        Err(SlurmError::Refused(why)) if must_wait && why.contains("node configuration is not available") => {
            return Ok("cannot be tested while nodes are down or drained".into());
        }
        Err(SlurmError::Refused(why)) if spec.requests("reservation") && why.contains("Invalid time specified") => {
            return Ok("cannot be tested before its reservation begins".into());
        }
        answer => answer.map_err(|error| failure(what, &error))?,
    };
    // `sbatch: Job 1 to start at 2026-11-20T04:05:20 using 8 processors on nodes node[01-04] in partition train`
    let line = answer.lines().find_map(|line| line.split_once(" to start at ")).map(|(_, rest)| rest.trim());
    Ok(line.map_or_else(|| "Slurm would accept it".into(), |line| format!("would start at {line}")))
}
