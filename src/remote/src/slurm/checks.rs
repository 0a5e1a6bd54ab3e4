use cluster::slurm::{self, SlurmNode, SlurmSpec, SlurmTrouble};
use plan::{LaunchPlan, counted};
use rundir::Failure;

use super::{ask, failure, run};
use crate::checks::Check;

/// Makes the checks of a job, as far as this machine can: its nodes are not known before it begins.
pub(crate) fn checks(what: &str, plan: &LaunchPlan, spec: &SlurmSpec, script: &str) -> Vec<Check> {
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
    rows.push(check("job", test(what, script)));
    let runs = plan.dir.root.parent().unwrap_or(&plan.dir.root);
    rows.push(check("run folder", Ok(format!("{runs}; whether its nodes see it too, the job finds out"))));
    rows
}

fn partition(what: &str, spec: &SlurmSpec, nodes: &[SlurmNode]) -> Result<String, Failure> {
    let mut names: Vec<&str> = nodes.iter().map(|node| node.partition.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let known = names.join(", ");
    match &spec.partition {
        // Several may be named: the first that has room takes the job.
        Some(wanted) => match wanted.split(',').find(|wanted| !names.contains(wanted)) {
            None => Ok(wanted.split(',').next().unwrap_or(wanted).to_owned()),
            Some(missing) => {
                let why = format!("there is no partition {missing}; there are {known}");
                Err(Failure::new(what, why, "name one of them in the Slurm file"))
            }
        },
        None => nodes.iter().find(|node| node.is_default).map(|node| node.partition.clone()).ok_or_else(|| {
            let why = format!("this cluster has no default partition; there are {known}");
            Failure::new(what, why, "name one of them: partition = … in the Slurm file")
        }),
    }
}

fn enough(what: &str, spec: &SlurmSpec, partition: &str, nodes: &[&SlurmNode]) -> Result<String, Failure> {
    let wanted = spec.gpus_per_node as u64;
    let large: Vec<_> = nodes.iter().filter(|node| node.gpus.unwrap_or(0) >= wanted).collect();
    let usable = large.iter().filter(|node| node.state.takes_jobs()).count();
    let idle = large.iter().filter(|node| node.state.base == slurm::NodeBase::Idle && node.state.takes_jobs()).count();
    let gpus = counted(spec.gpus_per_node, "GPU");
    if usable >= spec.nodes {
        return Ok(format!("{} of {gpus} wanted, {usable} take jobs, {idle} idle", spec.nodes));
    }
    let why = format!(
        "{} of {gpus} wanted; partition {partition} has {}, {} with {gpus}, {usable} of which take jobs",
        spec.nodes,
        counted(nodes.len(), "node"),
        large.len()
    );
    Err(Failure::new(what, why, "ask for less in the Slurm file, or see `sinfo -R` for nodes that are down or drained"))
}

/// Lets Slurm look at the script: account, limits and all that only it knows.
fn test(what: &str, script: &str) -> Result<String, Failure> {
    let said = ask("look at a job", "exec sbatch --test-only".into(), script).map_err(|trouble| match trouble {
        // It is the script that is refused, and its options come from the file.
        SlurmTrouble::Refused(_) => failure(what, &trouble),
        other => failure(what, &other),
    })?;
    // `sbatch: Job 1 to start at 2026-11-20T04:05:20 using 8 processors on nodes node[01-04] in partition train`
    let line = said.lines().find_map(|line| line.split_once(" to start at ")).map(|(_, rest)| rest.trim());
    Ok(line.map_or_else(|| "Slurm would take it".into(), |line| format!("would start at {line}")))
}
