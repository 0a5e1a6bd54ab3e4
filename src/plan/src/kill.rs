//! Plans the stop or kill of a run: exactly which processes will be signalled, and how they are identified.

use cluster::NodeId;
use cluster::slurm::JobStatus;
use rundir::{ErrorCode, Failure, PidFile, RankPid, RunDir, RunId};
use runstate::Liveness;
use units::counted;

/// The processes of a run, and how they will be ended.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RunKill {
    /// The run.
    pub run: RunId,
    /// The run directory.
    pub dir: RunDir,
    /// Whether the run is stopped or killed.
    pub how: KillHow,
    /// The processes, node by node.
    pub nodes: Vec<NodeKill>,
    /// The Slurm job of the processes, if Slurm ends them.
    #[serde(default)]
    pub job: Option<JobKill>,
}

/// The Slurm job that is ended.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct JobKill {
    /// The id of the job.
    pub id: u64,
    /// Whether the job is cancelled. Otherwise it receives a signal to save and stop.
    pub is_cancelled: bool,
    /// Whether the job is pending, so that it has no processes.
    pub is_waiting: bool,
    /// The nodes that the job has lost ([`runstate::RunFacts::lost_nodes`]). The kill does not wait for Slurm to end the job
    /// there, which may take minutes.
    pub lost: Vec<NodeId>,
    /// The Slurm command, and the condition on which it runs.
    pub why: String,
}

/// The way in which a run is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum KillHow {
    /// TERM to the supervisors: all ranks save at the same step and end.
    Stop,
    /// TERM to the process groups, then KILL to the processes that remain.
    Kill,
}

impl KillHow {
    /// Returns the verb for messages: `stop` or `kill`.
    pub fn verb(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Kill => "kill",
        }
    }
}

/// The processes of a run on one node.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct NodeKill {
    /// The run that `VIDTUI_RUN` must name in the environment of the processes.
    pub run: RunId,
    /// The node.
    pub node: NodeId,
    /// The attempt that started the processes; 0 if it is unknown.
    pub attempt: u32,
    /// The process id of the supervisor.
    pub pid: i32,
    /// The process group of the supervisor.
    pub pgid: i32,
    /// The id of the boot in which the processes were started.
    pub boot_id: String,
    /// When the supervisor started, in clock ticks since the boot; without a process file, the oldest process of the group.
    pub start_ticks: u64,
    /// The processes of the ranks; empty without a process file.
    pub ranks: Vec<RankPid>,
    /// The signals, the processes that receive them, and the identification of these processes.
    pub why: String,
}

/// Plans to end a run, given the process files of its newest attempt, whether those processes exist, and its Slurm job,
/// if it has one.
///
/// A node whose processes are unknown stays in the plan: the kill checks it again. The kill does not wait until Slurm has
/// ended the job on its `lost` nodes.
///
/// # Errors
/// When no process of the run is alive, or its Slurm job has ended.
pub fn kill(
    run: &RunId,
    dir: &RunDir,
    how: KillHow,
    owned: &[(PidFile, Liveness)],
    job: Option<&JobStatus>,
    lost: Vec<NodeId>,
) -> Result<RunKill, Failure> {
    if let Some(status) = job {
        let job = Some(job_kill(run, how, status, lost)?);
        // All processes that a pending job started before its requeue have ended.
        let running = owned.iter().filter(|_| !status.is_waiting());
        let nodes = running.map(|(file, _)| node_kill(run, how, file)).collect();
        return Ok(RunKill { run: run.clone(), dir: dir.clone(), how, nodes, job });
    }
    let alive = owned.iter().filter(|(_, liveness)| *liveness != Liveness::Dead);
    let nodes: Vec<NodeKill> = alive.map(|(file, _)| node_kill(run, how, file)).collect();
    if nodes.is_empty() {
        let (code, why) = if owned.is_empty() {
            (ErrorCode::RunNotStarted, "it has no process file: it is starting, or never started")
        } else {
            (ErrorCode::RunNotRunning, "none of its processes is alive")
        };
        return Err(refusal(code, run, how, why));
    }
    Ok(RunKill { run: run.clone(), dir: dir.clone(), how, nodes, job: None })
}

fn refusal(code: ErrorCode, run: &RunId, how: KillHow, why: impl Into<String>) -> Failure {
    Failure::new(code, format!("cannot {} {run}", how.verb()), why, format!("check its state: `vidtui status {run}`"))
}

/// Plans to end a job, unless it has ended.
pub(crate) fn job_kill(run: &RunId, how: KillHow, status: &JobStatus, lost: Vec<NodeId>) -> Result<JobKill, Failure> {
    let id = status.id;
    if id == 0 {
        return Err(refusal(ErrorCode::RunNotRunning, run, how, "its attempt names job 0, which is no job of Slurm"));
    }
    if status.is_over() {
        let state = status.state().map_or("Slurm no longer lists it".into(), |state| format!("its state is {state}"));
        return Err(refusal(ErrorCode::RunNotRunning, run, how, format!("its job {id} has ended: {state}")));
    }
    let is_cancelled = how == KillHow::Kill || status.is_waiting();
    let action = match (how, status.is_waiting()) {
        (_, true) => format!("scancel {id}: it is pending and is removed from the queue"),
        (KillHow::Stop, false) => format!("scancel --signal=TERM {id}: its ranks save at the same step and end"),
        (KillHow::Kill, false) => format!(
            "scancel {id}: Slurm sends TERM, then KILL, to every process of the job; processes of the run that remain on its nodes are killed after that"
        ),
    };
    let lost_nodes =
        if lost.is_empty() { String::new() } else { format!("; not waiting for {}, which was lost", names(&lost)) };
    let why = format!("{action}{lost_nodes}; only if job {id} is yours and is named {run}");
    Ok(JobKill { id, is_cancelled, is_waiting: status.is_waiting(), lost, why })
}

fn names(nodes: &[NodeId]) -> String {
    cluster::hostlist::compress(&nodes.iter().map(NodeId::as_str).collect::<Vec<_>>())
}

/// Returns the kill of the processes in a process file.
pub fn node_kill(run: &RunId, how: KillHow, file: &PidFile) -> NodeKill {
    let ranks: Vec<String> = file.ranks.iter().map(|rank| rank.pid.to_string()).collect();
    let signals = match how {
        KillHow::Stop => format!("TERM to the supervisor, process {}", file.pid),
        KillHow::Kill => format!(
            "TERM, then KILL, to process group {}: supervisor {}, {} ({}), and every process that they started",
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
        why: format!(
            "{signals}; only if boot and start time match its process file and its environment has VIDTUI_RUN={run}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KillPlan, fixtures};

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
    fn a_plan_names_the_processes_and_how_they_are_identified() {
        let whys = [KillHow::Stop, KillHow::Kill]
            .map(|how| plan(how, &[owned(Liveness::Alive)]).unwrap().nodes[0].why.clone());
        insta::assert_snapshot!(whys.join("\n"));
    }

    #[test]
    fn a_run_without_live_processes_cannot_be_ended() {
        let refusals = [plan(KillHow::Stop, &[]), plan(KillHow::Kill, &[owned(Liveness::Dead)])];
        let refusals = refusals.map(|refusal| refusal.unwrap_err());
        assert_eq!(
            refusals.each_ref().map(|refusal| refusal.code),
            [ErrorCode::RunNotStarted, ErrorCode::RunNotRunning]
        );
        insta::assert_snapshot!(refusals.map(|refusal| refusal.to_string()).join("\n\n"));
    }

    #[test]
    fn slurm_ends_a_pending_and_a_running_job() {
        let past = fixtures::past(10, &[]);
        let plan = |how, state: &str| {
            let line = format!("42|{state}|None|0:05|10:00|2|ml-[1-2]|1000|1600|ada|train|gres:gpu:1|demo");
            let job = Box::new(cluster::slurm::read_queue(&line).rows.remove(0));
            let status = JobStatus { reply: cluster::slurm::JobReply::Job(job), ..JobStatus::unknown(42) };
            let plan = kill(&past.run.id, &past.dir, how, &[], Some(&status), Vec::new());
            plan.map(|plan| plan.job.unwrap().why).unwrap_or_else(|refusal| refusal.to_string())
        };
        let states = ["PENDING", "RUNNING", "TIMEOUT"];
        let texts = states.map(|state| [KillHow::Stop, KillHow::Kill].map(|how| plan(how, state)).join("\n"));
        insta::assert_snapshot!(texts.join("\n\n"));
    }

    #[test]
    fn a_kill_of_a_job_does_not_wait_for_lost_nodes() {
        let past = fixtures::past(10, &[]);
        let line = "42|COMPLETING|None|0:05|10:00|2|ml-2|1000|1600|ada|train|gres:gpu:1|demo";
        let job = Box::new(cluster::slurm::read_queue(line).rows.remove(0));
        let status = JobStatus { reply: cluster::slurm::JobReply::Job(job), ..JobStatus::unknown(42) };
        let lost = vec![NodeId::from_hostname("ml-2")];
        let plan = kill(&past.run.id, &past.dir, KillHow::Kill, &[], Some(&status), lost.clone()).unwrap();
        let job = plan.job.unwrap();
        assert_eq!(job.lost, lost);
        insta::assert_snapshot!(job.why);
    }

    #[test]
    fn a_node_whose_processes_are_unknown_stays_in_the_plan() {
        let plan = plan(KillHow::Kill, &[owned(Liveness::Unknown)]).unwrap();
        assert_eq!(plan.nodes.len(), 1);
    }

    #[test]
    fn a_plan_can_be_restricted_to_some_nodes() {
        let plan = KillPlan::from(plan(KillHow::Kill, &[owned(Liveness::Alive)]).unwrap());
        assert_eq!(plan.on_nodes(|node| node.as_str() == "vm"), plan);
        let KillPlan::Run(none) = plan.on_nodes(|_| false) else { panic!("it is a run") };
        assert_eq!((none.nodes.len(), KillPlan::from(none).how()), (0, KillHow::Kill));
    }
}
