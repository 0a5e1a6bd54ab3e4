use cluster::slurm::{self, SlurmNode, SlurmSpec, SlurmTrouble};
use plan::LaunchPlan;
use rundir::Failure;
use units::counted;

use super::Check;
use crate::slurm::{ask, failure, partition, run};

/// Makes the checks of a job, as far as this machine can: its nodes are not known before it begins.
pub(super) fn checks(what: &str, plan: &LaunchPlan, spec: &SlurmSpec, script: &str) -> Vec<Check> {
    let check = |name: &str, result| Check::new(plan, name, None, result);
    let nodes = match run("list its nodes", &slurm::NODES) {
        Ok(answer) => slurm::read_nodes(&answer).rows,
        Err(trouble) => return vec![check("Slurm", Err(failure(what, &trouble)))],
    };
    let mut rows = vec![check("Slurm", Ok("its controller answers".into()))];
    let of_partition = partition(what, spec, &nodes);
    let name = of_partition.as_ref().ok().cloned();
    rows.push(check("partition", of_partition));
    if let Some(partition) = name {
        let nodes: Vec<&SlurmNode> = nodes.iter().filter(|node| node.partition == partition).collect();
        rows.push(check("nodes", enough(what, spec, &partition, &nodes)));
    }
    let are_away = rows.iter().any(|row| row.result.as_ref().is_ok_and(|said| said.contains(LATER)));
    rows.push(check("job", test(what, script, are_away)));
    let runs = plan.dir.root.parent().unwrap_or(&plan.dir.root);
    rows.push(check("run folder", Ok(format!("{runs}; its nodes are looked at when the job begins"))));
    rows
}

/// Nodes that are down or drained come back, and a job can wait for them.
const LATER: &str = "; it waits for those that are down or drained: `sinfo -R`";

fn enough(what: &str, spec: &SlurmSpec, partition: &str, nodes: &[&SlurmNode]) -> Result<String, Failure> {
    let wanted = spec.gpus_per_node as u64;
    let large: Vec<_> = nodes.iter().filter(|node| node.gpus.unwrap_or(0) >= wanted).collect();
    let usable = large.iter().filter(|node| node.state.takes_jobs()).count();
    let idle = large.iter().filter(|node| node.state.base == slurm::NodeBase::Idle && node.state.takes_jobs()).count();
    let gpus = counted(spec.gpus_per_node, "GPU");
    if large.len() >= spec.nodes {
        let later = if usable < spec.nodes { LATER } else { "" };
        return Ok(format!("{} of {gpus} wanted, {usable} take jobs, {idle} idle{later}", spec.nodes));
    }
    let why = format!(
        "{} of {gpus} wanted; partition {partition} has {}, {} of them with {gpus}",
        spec.nodes,
        counted(nodes.len(), "node"),
        large.len()
    );
    Err(Failure::new(
        rundir::ErrorCode::Unclassified,
        what,
        why,
        "ask for less in the Slurm file, or for another partition",
    ))
}

/// Lets Slurm look at the script: account, limits and all that only it knows.
fn test(what: &str, script: &str, are_away: bool) -> Result<String, Failure> {
    let said = match ask("look at a job", "exec sbatch --test-only".into(), script) {
        // The test refuses what sbatch itself lets wait.
        Err(SlurmTrouble::Refused(why)) if are_away && why.contains("node configuration is not available") => {
            return Ok("cannot be tried as long as its nodes are away".into());
        }
        said => said.map_err(|trouble| failure(what, &trouble))?,
    };
    // `sbatch: Job 1 to start at 2026-11-20T04:05:20 using 8 processors on nodes node[01-04] in partition train`
    let line = said.lines().find_map(|line| line.split_once(" to start at ")).map(|(_, rest)| rest.trim());
    Ok(line.map_or_else(|| "Slurm would take it".into(), |line| format!("would start at {line}")))
}
