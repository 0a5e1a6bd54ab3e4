//! Executes stops and kills as planned, and verifies that every process is gone.

mod report;
mod target;

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use cluster::NodeId;
use plan::{JobKill, KillHow, KillPlan, NodeKill, RunKill};
use rundir::{ErrorCode, ExitFile, ExitReason, Failure, RankExit, RunDir, SCHEMA, now_s};

use crate::RemoteError;
use crate::backoff::Backoff;
use crate::gpu_memory;
use crate::parallel::on_nodes;
use crate::slurm::end_job;
use crate::transport::{Recipient, RunProcesses, Signal, Transport};
pub use report::{KillReport, NodeReport, SentSignal};
use target::NodeTarget;

/// The shortest and the longest pause between two listings of processes that end.
const POLL_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// The interval at which a wait checks whether it was cancelled.
const CANCEL_INTERVAL: Duration = Duration::from_millis(100);

/// The first and the longest pause before nodes that did not answer are retried.
const RETRY_PAUSES: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(30));

/// The number of SIGKILL, for the record of how ranks ended.
const SIGKILL: i32 = 9;

/// The time limits for processes to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// The time after TERM to a supervisor in which ranks save and end. No other signal follows.
    pub stop: Duration,
    /// After TERM to every process, before KILL.
    pub term: Duration,
    /// After KILL, before the processes that remain are reported.
    pub kill: Duration,
}

impl Default for Patience {
    /// Does not wait for the end of a stop, because saving may take minutes and the run is watched meanwhile.
    fn default() -> Self {
        Self { stop: Duration::ZERO, term: Duration::from_secs(10), kill: Duration::from_secs(5) }
    }
}

/// A message about a kill that is being executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KillProgress {
    /// The node.
    pub node: NodeId,
    /// A completed action, or what the kill waits for.
    pub text: String,
}

/// Executes a plan, and verifies that every process of the plan is gone and has released its GPU memory.
///
/// The processes of each node are identified again before each signal. If they are not the planned processes, none is
/// signalled.
pub fn execute_kill(
    plan: &KillPlan,
    transports: &mut [Box<dyn Transport>],
    patience: &Patience,
    progress: &mut dyn FnMut(KillProgress),
) -> KillReport {
    if let KillPlan::Run(run) = plan
        && let Some(job) = &run.job
    {
        return kill_job(plan, run, job, transports, patience, progress);
    }
    KillReport { how: plan.how(), nodes: end_processes(plan, transports, patience, progress), job: None }
}

/// Retries a plan on the nodes that did not answer, with increasing pauses, until each has answered or `is_cancelled`
/// returns true. The plan does not change, so only processes that the user confirmed are signalled.
///
/// Calls `on_wait` before each pause, with the nodes and the pause.
pub fn retry_unreachable(
    plan: &KillPlan,
    report: &mut KillReport,
    transports: &mut [Box<dyn Transport>],
    patience: &Patience,
    on_wait: &mut dyn FnMut(&[&NodeId], Duration),
    progress: &mut dyn FnMut(KillProgress),
    is_cancelled: &dyn Fn() -> bool,
) {
    let mut backoff = Backoff::new(RETRY_PAUSES.0, RETRY_PAUSES.1);
    while !report.unreachable().is_empty() && !is_cancelled() {
        let pause = backoff.next();
        on_wait(&report.unreachable(), pause);
        let until = Instant::now() + pause;
        while Instant::now() < until && !is_cancelled() {
            thread::sleep(CANCEL_INTERVAL);
        }
        if is_cancelled() {
            return;
        }
        let rest = plan.on_nodes(|node| report.unreachable().contains(&node));
        for mut now in execute_kill(&rest, transports, patience, progress).nodes {
            let Some(before) = report.nodes.iter_mut().find(|before| before.node == now.node) else { continue };
            now.signals = [std::mem::take(&mut before.signals), now.signals].concat();
            now.signalled = now.signalled.max(before.signalled);
            *before = now;
        }
    }
}

/// Signals the processes of each node, and verifies that they are gone and have released their GPU memory.
fn end_processes(
    plan: &KillPlan,
    transports: &mut [Box<dyn Transport>],
    patience: &Patience,
    progress: &mut dyn FnMut(KillProgress),
) -> Vec<NodeReport> {
    let targets = NodeTarget::all(plan).into_iter();
    let mut nodes: Vec<NodeState<'_>> = targets.map(|target| NodeState::new(plan, target, transports)).collect();
    match plan.how() {
        KillHow::Stop => {
            let supervisors = (Recipient::Supervisor, Signal::Term);
            send_and_wait(&mut nodes, transports, supervisors, patience.stop, progress);
        }
        KillHow::Kill => {
            let all = |signal| (Recipient::All, signal);
            send_and_wait(&mut nodes, transports, all(Signal::Term), patience.term, progress);
            send_and_wait(&mut nodes, transports, all(Signal::Kill), patience.kill, progress);
        }
    }
    for node in &mut nodes {
        if let Some(error) = node.unreachable.take() {
            node.report.failure = Some(error.failure(&*node.what));
            node.report.is_unreachable = true;
        }
        if let Some(error) = node.refused.take().filter(|_| !node.report.left.is_empty()) {
            node.report.failure.get_or_insert_with(|| error.failure(&*node.what));
        }
    }
    if plan.how() == KillHow::Kill {
        let gone = nodes.iter_mut().filter(|node| node.is_gone && node.report.failure.is_none());
        let gone = gone.map(|node| (node.target.node().clone(), node)).collect();
        on_nodes(gone, transports, |node: &mut NodeState<'_>, transport| {
            let pids = node.pids.iter().copied().chain(node.target.pids()).collect();
            node.report.gpu_memory = gpu_memory::wait_until_released(&pids, transport, patience.kill);
        });
    }
    for node in &mut nodes {
        let text = node.report.summary();
        progress(KillProgress { node: node.report.node.clone(), text });
        if let (KillPlan::Run(run), NodeTarget::Run(target)) = (plan, node.target)
            && run.how == KillHow::Kill
            && node.is_gone
            && node.report.failure.is_none()
        {
            node.report.failure = record(&run.dir, target).err();
        }
    }
    nodes.into_iter().map(|node| node.report).collect()
}

/// Lets Slurm end a run, then checks each node, because Slurm may miss processes: its configuration decides which processes
/// belong to a job, and it reports a node that is down as empty. Processes that remain are killed as without Slurm.
fn kill_job(
    plan: &KillPlan,
    run: &RunKill,
    target: &JobKill,
    transports: &mut [Box<dyn Transport>],
    patience: &Patience,
    progress: &mut dyn FnMut(KillProgress),
) -> KillReport {
    let mut report = |text| {
        if let Ok(node) = NodeId::new("Slurm") {
            progress(KillProgress { node, text });
        }
    };
    let mut job = end_job(&run.run, &run.dir, target, &mut report);
    let mut nodes = Vec::new();
    if target.is_cancelled
        && let Ok(text) = &mut job
    {
        nodes = end_processes(plan, transports, patience, progress);
        for node in nodes.iter().filter(|node| node.is_unreachable || node.unverified().is_some()) {
            *text += &format!("; not verified on {}: {}", node.node, node.summary());
        }
        // If a node cannot be checked, Slurm's answer counts, except for nodes that Slurm has also lost.
        let is_over = |kill: &&NodeKill| {
            let node = nodes.iter().find(|node| node.node == kill.node);
            node.is_some_and(|node| node.is_unreachable) && !target.lost.contains(&kill.node)
        };
        let recorded = run.nodes.iter().filter(is_over).try_for_each(|kill| record(&run.dir, kill));
        job = recorded.and(job);
    }
    KillReport { how: run.how, nodes, job: Some(job) }
}

/// A node while its processes are being ended.
struct NodeState<'a> {
    what: String,
    target: NodeTarget<'a>,
    report: NodeReport,
    /// Whether all processes are verified to be gone.
    is_gone: bool,
    /// Every process that was signalled.
    pids: BTreeSet<i32>,
    /// Whether the current signal must still be sent, because the node did not answer.
    is_unsent: bool,
    /// Why the node does not answer.
    unreachable: Option<RemoteError>,
    /// Why it is unknown whether the signal was sent, or why some processes refused it.
    refused: Option<RemoteError>,
    /// Whether Slurm reports that it has ended the processes.
    is_of_job: bool,
}

impl<'a> NodeState<'a> {
    fn new(plan: &KillPlan, target: NodeTarget<'a>, transports: &[Box<dyn Transport>]) -> Self {
        let (node, verb) = (target.node(), plan.how().verb());
        let what = format!("cannot {verb} {}", plan.subject());
        let has_transport = transports.iter().any(|transport| transport.node() == node);
        let failure = (!has_transport).then(|| {
            let why = format!("node {node} cannot be reached from here");
            let fix = match plan {
                KillPlan::Run(run) => format!("run `vidtui {verb} {}` on {node}", run.run),
                KillPlan::Orphans(_) => format!("run the same command on {node}"),
            };
            Failure::new(ErrorCode::NodeUnreachable, &*what, why, fix)
        });
        Self {
            what,
            target,
            report: NodeReport { failure, ..NodeReport::new(node.clone()) },
            is_gone: false,
            pids: BTreeSet::new(),
            is_unsent: false,
            unreachable: None,
            refused: None,
            is_of_job: matches!(plan, KillPlan::Run(run) if run.job.is_some()),
        }
    }

    fn is_done(&self) -> bool {
        self.is_gone || self.report.failure.is_some()
    }

    /// Records an error. A node that does not answer is retried until the timeout, unless Slurm has ended its processes.
    fn fail(&mut self, error: RemoteError) {
        if error.is_unreachable() && !self.is_of_job {
            self.unreachable = Some(error);
        } else {
            // A node that answers with an error is reachable.
            self.unreachable = None;
            self.report.is_unreachable = error.is_unreachable();
            self.report.failure = Some(error.failure(&*self.what));
        }
    }

    /// Sends a signal, and returns the message about it.
    fn signal(&mut self, transport: &mut dyn Transport, to: Recipient, signal: Signal) -> Option<KillProgress> {
        let text = match self.target.signal(transport, to, signal) {
            Ok(signalled) => {
                (self.is_unsent, self.unreachable) = (false, None);
                self.refused = signalled.refused.or(self.refused.take());
                let processes = signalled.processes;
                if processes.is_empty() {
                    self.is_gone = true;
                    self.report.left.clear();
                    return None;
                }
                let sent = SentSignal { signal, pids: processes.iter().map(|process| process.pid).collect() };
                let text = sent.to_string();
                self.pids.extend(&sent.pids);
                self.report.signals.push(sent);
                self.report.signalled = self.report.signalled.max(processes.len());
                self.report.left = processes;
                text
            }
            Err(error) => {
                let is_first = self.unreachable.is_none() && self.refused.is_none();
                let text = error.to_string();
                if error.is_unreachable() || matches!(error, RemoteError::NotOwned { .. }) {
                    self.fail(error);
                } else {
                    // Some processes may have received the signal. The next listing shows which of them remain.
                    (self.is_unsent, self.unreachable) = (false, None);
                    self.refused.get_or_insert(error);
                }
                if !is_first {
                    return None;
                }
                text
            }
        };
        Some(KillProgress { node: self.report.node.clone(), text })
    }

    /// Lists the processes that remain.
    fn check(&mut self, transport: &mut dyn Transport, signal: Signal) {
        match self.target.find(transport) {
            Ok(RunProcesses::Gone) => {
                self.unreachable = None;
                self.is_gone = true;
                self.report.left.clear();
            }
            Ok(RunProcesses::Owned(left)) => {
                self.unreachable = None;
                // Processes that started between the listing and the signal have not received it.
                self.is_unsent |= signal == Signal::Kill && left.iter().any(|one| !self.pids.contains(&one.pid));
                self.report.left = left;
            }
            Ok(RunProcesses::NotOwned(why)) => {
                self.fail(RemoteError::NotOwned { node: self.target.node().clone(), why });
            }
            Err(error) => self.fail(error),
        }
    }
}

/// Runs `work` on all unfinished nodes in parallel: a node that does not answer delays no other.
fn on_unfinished<T: Send>(
    nodes: &mut [NodeState<'_>],
    transports: &mut [Box<dyn Transport>],
    work: impl Fn(&mut NodeState<'_>, &mut dyn Transport) -> T + Sync,
) -> Vec<T> {
    let unfinished = nodes.iter_mut().filter(|node| !node.is_done());
    let unfinished = unfinished.map(|node| (node.target.node().clone(), node)).collect();
    on_nodes(unfinished, transports, |node, transport| work(node, transport))
}

/// Returns the pause before the next listing of processes that have been ending for some time. It grows, because a listing costs CPU time
/// on the node, and a stop waits for minutes while a run saves.
fn pause_after(elapsed: Duration) -> Duration {
    (elapsed / 4).clamp(POLL_PAUSES.0, POLL_PAUSES.1)
}

/// Sends a signal to every node, and waits until all processes are gone or the timeout has passed.
fn send_and_wait(
    nodes: &mut [NodeState<'_>],
    transports: &mut [Box<dyn Transport>],
    (to, signal): (Recipient, Signal),
    timeout: Duration,
    progress: &mut dyn FnMut(KillProgress),
) {
    let (began, deadline) = (Instant::now(), Instant::now() + timeout);
    nodes.iter_mut().for_each(|node| node.is_unsent = true);
    let send = |node: &mut NodeState<'_>, transport: &mut dyn Transport| node.signal(transport, to, signal);
    on_unfinished(nodes, transports, send).into_iter().flatten().for_each(&mut *progress);
    loop {
        let messages = on_unfinished(nodes, transports, |node, transport| {
            if node.is_unsent && Instant::now() < deadline {
                return node.signal(transport, to, signal);
            }
            if !node.is_unsent {
                node.check(transport, signal);
            }
            None
        });
        messages.into_iter().flatten().for_each(&mut *progress);
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || nodes.iter().all(NodeState::is_done) {
            return;
        }
        thread::sleep(left.min(pause_after(began.elapsed())));
    }
}

/// Writes the exit file of an attempt, for a supervisor that was killed before it could.
fn record(dir: &RunDir, target: &NodeKill) -> Result<(), Failure> {
    // A run that was found by its processes alone has no folder.
    if target.attempt == 0
        || !dir.node_dir(&target.node).is_dir()
        || dir.read_exit(&target.node, target.attempt)?.is_some()
    {
        return Ok(());
    }
    let ended_s = now_s();
    let ranks = target.ranks.iter().map(|rank| RankExit {
        rank: rank.rank,
        code: None,
        signal: Some(SIGKILL),
        last_step: None,
        ended_s,
        stderr_tail: Vec::new(),
    });
    dir.write_exit(&ExitFile {
        schema: SCHEMA,
        attempt: target.attempt,
        node: target.node.clone(),
        ended_s,
        reason: ExitReason::Killed,
        ranks: ranks.collect(),
        first_failure: None,
        failure: None,
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ending_processes_are_listed_often_at_first_and_once_a_second_later() {
        let pauses = [0, 400, 1000, 4000, 60_000].map(|ms| pause_after(Duration::from_millis(ms)).as_millis());
        assert_eq!(pauses, [100, 100, 250, 1000, 1000]);
    }
}
