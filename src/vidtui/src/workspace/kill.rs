//! Plans, executes and reports stops and kills of runs.

use super::Workspace;
use cluster::NodeId;
use plan::{DetectedRun, KillHow, KillPlan, RunKill};
use remote::{KillProgress, KillReport, Patience, Transport};
use rundir::{Failure, RunDir};
use std::time::Duration;

/// The callbacks of a kill.
pub struct KillCallbacks<'a> {
    /// Reports which nodes do not answer, before they are retried.
    pub on_wait: &'a mut dyn FnMut(String),
    /// Reports the progress on each node.
    pub progress: &'a mut dyn FnMut(KillProgress),
    /// Returns whether to give up on the nodes that do not answer.
    pub is_cancelled: &'a dyn Fn() -> bool,
}

impl Workspace {
    /// Plans which processes of a run to signal; signals none.
    pub fn plan_kill(&self, dir: &RunDir, how: KillHow) -> Result<RunKill, Failure> {
        let run = dir.read_run()?;
        run.refuse_if_imported(format!("cannot {} {}", how.verb(), run.id))?;
        let attempt = dir.latest_attempt()?;
        let job = attempt.as_ref().and_then(|attempt| self.connections.job_status(attempt, self.patience));
        // Slurm finds the processes of a job itself.
        let (files, lost) = match job {
            Some(_) => (remote::pid_files(dir)?, remote::read_facts(dir, &run)?.lost_nodes(rundir::now_s())),
            None => (self.connections.pid_files(dir, self.patience)?, Vec::new()),
        };
        plan::kill(&run.id, dir, how, &files, job.as_ref(), lost)
    }

    /// Plans to end a run whose processes were found on nodes. Uses the run's folder in the runs folder, or else the folder that
    /// the command line of its supervisor names.
    pub fn plans_of_detected(&self, found: DetectedRun, how: KillHow) -> Vec<RunKill> {
        let reported = found.dir.as_ref().map(RunDir::new);
        let dirs = [Some(self.dir(&found.run)), reported.clone()];
        let dir = dirs.into_iter().flatten().find(|dir| dir.run_toml().exists());
        // The process files in a run's folder list all its nodes. Without them, only the found processes are known.
        let by_files = dir.as_ref().and_then(|dir| self.plan_kill(dir, how).ok());
        let dir = dir.or(reported).unwrap_or_else(|| self.dir(&found.run));
        plan::kill_detected(found, dir, how, by_files)
    }

    /// Stops or kills a run as planned.
    ///
    /// # Errors
    /// When a process remains, or the end of a process cannot be verified.
    pub fn kill(&self, plan: &RunKill, callbacks: KillCallbacks<'_>) -> Result<KillReport, Failure> {
        let logins = plan.dir.latest_attempt()?.map_or_else(Vec::new, |attempt| attempt.ssh_logins());
        let plan = KillPlan::Run(plan.clone());
        let report = execute_kill(&plan, &mut self.transports(&logins)?, callbacks);
        report.failure(&plan.subject()).map_or(Ok(report), Err)
    }
}

/// Executes a plan, and retries nodes that do not answer until they do or the user gives up.
pub fn execute_kill(
    plan: &KillPlan,
    transports: &mut [Box<dyn Transport>],
    callbacks: KillCallbacks<'_>,
) -> KillReport {
    let KillCallbacks { on_wait, progress, is_cancelled } = callbacks;
    if let KillPlan::Run(run) = plan
        && let Err(failure) = end_healing(&run.dir)
    {
        on_wait(failure.to_string());
    }
    let patience = Patience::default();
    let mut report = remote::execute_kill(plan, transports, &patience, progress);
    let on_wait = &mut |nodes: &[&NodeId], pause| on_wait(waits_in_words(nodes, pause));
    remote::retry_unreachable(plan, &mut report, transports, &patience, on_wait, progress, is_cancelled);
    report
}

/// Requests that the healer of a run stops, because it must not resume a run that the user ends. Returns whether there is a healer.
///
/// # Errors
/// The stop request cannot be written.
pub fn end_healing(dir: &RunDir) -> Result<bool, Failure> {
    let heals = dir.healer().is_some();
    if heals {
        dir.request_stop()?;
    }
    Ok(heals)
}

/// Returns a line that names the nodes that are retried: `gpu[01-03] do not answer, retrying in 4 s`.
pub fn waits_in_words(nodes: &[&NodeId], pause: Duration) -> String {
    let names: Vec<String> = nodes.iter().map(ToString::to_string).collect();
    let (names, pause_s) = (cluster::hostlist::compress(&names), pause.as_secs_f64());
    let verb = if nodes.len() == 1 { "does" } else { "do" };
    format!("{names} {verb} not answer, retrying in {pause_s:.0} s")
}

/// Returns the result of a kill in one line: `3 processes ended on devbox`.
pub fn report_in_words(report: &KillReport) -> String {
    match &report.job {
        Some(Ok(text)) => return text.clone(),
        Some(Err(failure)) => return failure.to_string(),
        None => {}
    }
    let of_node = |node: &remote::NodeReport| {
        let gone = node.signalled.saturating_sub(node.left.len());
        format!("{} ended on {}", units::counted(gone, "process"), node.node)
    };
    report.nodes.iter().map(of_node).collect::<Vec<_>>().join(", ")
}
