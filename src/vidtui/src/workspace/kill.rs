//! Stops and kills: planned, done, and said in one line.

use super::Workspace;
use cluster::NodeId;
use plan::{KillHow, RunKill};
use remote::{KillProgress, KillReport, Patience, Transport};
use rundir::{Failure, RunDir};
use std::time::Duration;

impl Workspace {
    /// Plans which processes to signal; signals nothing.
    pub fn plan_kill(&self, dir: &RunDir, how: KillHow) -> Result<RunKill, Failure> {
        let run = dir.read_run()?;
        let attempt = dir.latest_attempt()?;
        let job = attempt.as_ref().and_then(|attempt| self.fleet.job_sight(attempt, self.patience));
        // Those of a job are Slurm's to look for.
        let (files, lost) = match job {
            Some(_) => (remote::pid_files(dir)?, remote::read_facts(dir, &run)?.lost_nodes(rundir::now_s())),
            None => (self.fleet.pid_files(dir, self.patience)?, Vec::new()),
        };
        plan::kill(&run.id, dir, how, &files, job.as_ref(), lost)
    }

    /// Signals what a plan says.
    pub fn signal(
        &self,
        plan: &RunKill,
        patience: &Patience,
        progress: &mut dyn FnMut(KillProgress),
    ) -> Result<KillReport, Failure> {
        let report = remote::execute_kill(plan, &mut self.ways_to_end(plan)?, patience, progress);
        report.failure(plan.run.as_str()).map_or(Ok(report), Err)
    }

    /// Kills what a plan says, and asks nodes that do not answer again until they do or `is_given_up`; `waits` is told which.
    pub fn kill(
        &self,
        plan: &RunKill,
        waits: &mut dyn FnMut(String),
        progress: &mut dyn FnMut(KillProgress),
        is_given_up: &dyn Fn() -> bool,
    ) -> Result<KillReport, Failure> {
        let (mut transports, patience) = (self.ways_to_end(plan)?, Patience::default());
        let mut report = remote::execute_kill(plan, &mut transports, &patience, progress);
        let waits = &mut |nodes: &[&NodeId], pause| waits(waits_in_words(nodes, pause));
        remote::go_on_killing(plan, &mut report, &mut transports, &patience, waits, progress, is_given_up);
        report.failure(plan.run.as_str()).map_or(Ok(report), Err)
    }

    fn ways_to_end(&self, plan: &RunKill) -> Result<Vec<Box<dyn Transport>>, Failure> {
        self.transports(&plan.dir.latest_attempt()?.map_or_else(Vec::new, |attempt| attempt.ways()))
    }
}

/// Which nodes are waited for: `gpu[01-03] do not answer, asked again in 4 s`.
pub fn waits_in_words(nodes: &[&NodeId], pause: Duration) -> String {
    let names: Vec<String> = nodes.iter().map(ToString::to_string).collect();
    let (names, pause_s) = (cluster::hostlist::compress(&names), pause.as_secs_f64());
    let verb = if nodes.len() == 1 { "does" } else { "do" };
    format!("{names} {verb} not answer, asked again in {pause_s:.0} s")
}

/// How a kill went, in one line: `3 processes ended on devbox`.
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
