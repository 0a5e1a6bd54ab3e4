use cluster::NodeId;
use cluster::slurm::JobSight;
use rundir::{Failure, PidFile, RankPid, RunDir, RunId};
use runstate::Liveness;

use units::counted;

/// Exactly which processes will be signalled, and why they are believed to be the run's.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RunKill {
    /// The run.
    pub run: RunId,
    /// Its folder.
    pub dir: RunDir,
    /// How it is ended.
    pub how: KillHow,
    /// The processes, node by node.
    pub nodes: Vec<NodeKill>,
    /// The Slurm job that they are of. Then Slurm is told to end it, and ends them.
    #[serde(default)]
    pub job: Option<JobKill>,
}

/// The Slurm job that is ended.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct JobKill {
    /// Its number.
    pub id: u64,
    /// Whether it is cancelled, rather than asked to save and stop.
    pub is_cancelled: bool,
    /// Whether it waits in the queue: nothing of it runs.
    pub is_waiting: bool,
    /// The nodes that it lost ([`runstate::RunFacts::lost_nodes`]). Slurm may wait for them for minutes; nobody else does.
    pub lost: Vec<NodeId>,
    /// What Slurm is told, and what is compared before.
    pub why: String,
}

/// How a run is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum KillHow {
    /// TERM to the supervisors: all ranks save at the same step and end.
    Stop,
    /// TERM to the process groups, then KILL to what is left of them.
    Kill,
}

/// The processes of one node.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct NodeKill {
    /// The run that must be in their environment.
    pub run: RunId,
    /// The node.
    pub node: NodeId,
    /// The attempt that started them.
    pub attempt: u32,
    /// The supervisor.
    pub pid: i32,
    /// Its process group.
    pub pgid: i32,
    /// The boot during which they were started.
    pub boot_id: String,
    /// When the supervisor started, in clock ticks since that boot.
    pub start_ticks: u64,
    /// The ranks.
    pub ranks: Vec<RankPid>,
    /// Which signals go where, and what was compared to know that they go to the run.
    pub why: String,
}

/// Plans to end a run, from the process files of its newest attempt and whether those processes exist, and its Slurm job if
/// it is one.
///
/// A node that could not be looked at is part of the plan: whoever executes it looks again. For the end of a job on its `lost` nodes
/// nobody waits.
///
/// # Errors
/// When nothing of the run is alive.
pub fn kill(
    run: &RunId,
    dir: &RunDir,
    how: KillHow,
    owned: &[(PidFile, Liveness)],
    job: Option<&JobSight>,
    lost: Vec<NodeId>,
) -> Result<RunKill, Failure> {
    if let Some(sight) = job {
        let job = Some(job_kill(run, how, sight, lost)?);
        // What ran in an earlier turn of a job that waits has ended.
        let left = owned.iter().filter(|_| !sight.is_waiting());
        let nodes = left.map(|(file, _)| node_kill(run, how, file)).collect();
        return Ok(RunKill { run: run.clone(), dir: dir.clone(), how, nodes, job });
    }
    let alive = owned.iter().filter(|(_, liveness)| *liveness != Liveness::Dead);
    let nodes: Vec<NodeKill> = alive.map(|(file, _)| node_kill(run, how, file)).collect();
    if nodes.is_empty() {
        let verb = if how == KillHow::Stop { "stop" } else { "kill" };
        let why = if owned.is_empty() {
            "it has no process file: it is starting, or never started"
        } else {
            "none of its processes is alive"
        };
        return Err(Failure::new(
            rundir::ErrorCode::Unclassified,
            format!("cannot {verb} {run}"),
            why,
            format!("look at its state: `vidtui status {run}`"),
        ));
    }
    Ok(RunKill { run: run.clone(), dir: dir.clone(), how, nodes, job: None })
}

/// Plans to end a job, unless it has ended.
pub(crate) fn job_kill(run: &RunId, how: KillHow, sight: &JobSight, lost: Vec<NodeId>) -> Result<JobKill, Failure> {
    let id = sight.id;
    if sight.is_over() {
        let verb = if how == KillHow::Stop { "stop" } else { "kill" };
        let said = sight.state().map_or("Slurm knows it no more".into(), |state| format!("Slurm says {state}"));
        return Err(Failure::new(
            rundir::ErrorCode::Unclassified,
            format!("cannot {verb} {run}"),
            format!("its job {id} has ended: {said}"),
            format!("look at its state: `vidtui status {run}`"),
        ));
    }
    let is_cancelled = how == KillHow::Kill || sight.is_waiting();
    let does = match (how, sight.is_waiting()) {
        (_, true) => format!("scancel {id}: it waits in the queue, and is taken out of it"),
        (KillHow::Stop, false) => format!("scancel --signal=TERM {id}: its ranks save at the same step and end"),
        (KillHow::Kill, false) => format!(
            "scancel {id}: Slurm sends TERM, then KILL, to every process of it; what it leaves of the run on its nodes is ended there"
        ),
    };
    let away =
        if lost.is_empty() { String::new() } else { format!("; {} is not waited for, it was lost", names(&lost)) };
    let why = format!("{does}{away}; only if job {id} is yours and is named {run}");
    Ok(JobKill { id, is_cancelled, is_waiting: sight.is_waiting(), lost, why })
}

fn names(nodes: &[NodeId]) -> String {
    cluster::hostlist::compress(&nodes.iter().map(NodeId::as_str).collect::<Vec<_>>())
}

/// Names the processes of a process file, so that they can be looked for and signalled.
pub fn node_kill(run: &RunId, how: KillHow, file: &PidFile) -> NodeKill {
    let ranks: Vec<String> = file.ranks.iter().map(|rank| rank.pid.to_string()).collect();
    let signals = match how {
        KillHow::Stop => format!("TERM to the supervisor, process {}", file.pid),
        KillHow::Kill => format!(
            "TERM, then KILL, to process group {}: supervisor {}, {} ({}), and to all else that they started",
            file.pgid,
            file.pid,
            counted(ranks.len(), "rank"),
            ranks.join(", ")
        ),
    };
    NodeKill {
        run: run.clone(),
        node: file.node.clone(),
        attempt: file.attempt,
        pid: file.pid,
        pgid: file.pgid,
        boot_id: file.boot_id.clone(),
        start_ticks: file.start_ticks,
        ranks: file.ranks.clone(),
        why: format!("{signals}; only if boot, start time and VIDTUI_RUN={run} agree with its process file"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    fn owned(liveness: Liveness) -> (PidFile, Liveness) {
        let file = PidFile {
            schema: rundir::SCHEMA,
            attempt: 1,
            node: NodeId::from_hostname("vm"),
            pid: 4100,
            pgid: 4100,
            boot_id: "4f706ff6".into(),
            start_ticks: 77,
            started_s: fixtures::NOW,
            ranks: [0, 1].map(|rank| RankPid { rank, pid: 4101 + rank as i32, start_ticks: 80 }).to_vec(),
        };
        (file, liveness)
    }

    fn plan(how: KillHow, owned: &[(PidFile, Liveness)]) -> Result<RunKill, Failure> {
        let past = fixtures::past(10, &[]);
        kill(&past.run.id, &past.dir, how, owned, None, Vec::new())
    }

    #[test]
    fn a_plan_says_which_processes_are_signalled_and_why_they_are_the_runs() {
        let whys = [KillHow::Stop, KillHow::Kill]
            .map(|how| plan(how, &[owned(Liveness::Alive)]).unwrap().nodes[0].why.clone());
        insta::assert_snapshot!(whys.join("\n"));
    }

    #[test]
    fn what_is_not_alive_cannot_be_ended() {
        let refusals = [plan(KillHow::Stop, &[]), plan(KillHow::Kill, &[owned(Liveness::Dead)])];
        insta::assert_snapshot!(refusals.map(|refusal| refusal.unwrap_err().to_string()).join("\n\n"));
    }

    #[test]
    fn a_job_is_ended_by_slurm_wherever_it_is() {
        let past = fixtures::past(10, &[]);
        let plan = |how, state: &str| {
            let line = format!("42|{state}|None|0:05|10:00|2|ml-[1-2]|1000|1600|ada|train|gres:gpu:1|demo");
            let job = Box::new(cluster::slurm::read_queue(&line).rows.remove(0));
            let sight = JobSight { seen: cluster::slurm::JobSeen::Job(job), ..JobSight::unseen(42) };
            let plan = kill(&past.run.id, &past.dir, how, &[], Some(&sight), Vec::new());
            plan.map(|plan| plan.job.unwrap().why).unwrap_or_else(|refusal| refusal.to_string())
        };
        let states = ["PENDING", "RUNNING", "TIMEOUT"];
        let said = states.map(|state| [KillHow::Stop, KillHow::Kill].map(|how| plan(how, state)).join("\n"));
        insta::assert_snapshot!(said.join("\n\n"));
    }

    #[test]
    fn a_node_that_a_job_lost_is_named_and_not_waited_for() {
        let past = fixtures::past(10, &[]);
        let line = "42|COMPLETING|None|0:05|10:00|2|ml-2|1000|1600|ada|train|gres:gpu:1|demo";
        let job = Box::new(cluster::slurm::read_queue(line).rows.remove(0));
        let sight = JobSight { seen: cluster::slurm::JobSeen::Job(job), ..JobSight::unseen(42) };
        let lost = vec![NodeId::from_hostname("ml-2")];
        let plan = kill(&past.run.id, &past.dir, KillHow::Kill, &[], Some(&sight), lost.clone()).unwrap();
        let job = plan.job.unwrap();
        assert_eq!(job.lost, lost);
        assert!(job.why.contains("; ml-2 is not waited for, it was lost; only if job 42 is yours"), "{}", job.why);
    }

    #[test]
    fn a_node_that_nobody_could_look_at_stays_in_the_plan() {
        let plan = plan(KillHow::Kill, &[owned(Liveness::Unknown)]).unwrap();
        assert_eq!(plan.nodes.len(), 1);
    }
}
