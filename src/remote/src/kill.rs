use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use cluster::NodeId;
use plan::{JobKill, KillHow, NodeKill, RunKill};
use rundir::{ExitFile, ExitReason, Failure, RankExit, RunDir, SCHEMA, now_s};

use crate::backoff::Backoff;
use crate::gpu_memory::GpuMemory;
use crate::parallel::on_nodes;
use crate::processes::released;
use crate::slurm::end_job;
use crate::transport::{Process, Recipient, Role, RunProcesses, Signal, Transport};
use crate::{RemoteError, proc};

/// How often processes are looked at while they end.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Pauses before nodes that did not answer are asked again.
const ASK_AGAIN: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(30));

/// The number of SIGKILL, for the record of how ranks ended.
const SIGKILL: i32 = 9;

/// How long to wait for processes to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// After TERM to a supervisor, for ranks to save and end. Nothing follows when it is over.
    pub stop: Duration,
    /// After TERM to everyone, before KILL.
    pub term: Duration,
    /// After KILL, before what is left is reported.
    pub kill: Duration,
}

impl Default for Patience {
    /// Returns at once from a stop: saving may take minutes, and is watched like the rest of the run.
    fn default() -> Self {
        Self { stop: Duration::ZERO, term: Duration::from_secs(10), kill: Duration::from_secs(5) }
    }
}

/// Something to tell while a kill is under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KillProgress {
    /// The node.
    pub node: NodeId,
    /// What was done or is waited for.
    pub text: String,
}

/// What became of the processes, node by node.
#[derive(Debug, Clone, PartialEq)]
pub struct KillReport {
    /// How it was to end.
    pub how: KillHow,
    /// One report for each node of the plan.
    pub nodes: Vec<NodeReport>,
    /// What became of its Slurm job, in a line; or why it could not be dealt with.
    pub job: Option<Result<String, Failure>>,
}

/// What became of the processes of one node.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeReport {
    /// The node.
    pub node: NodeId,
    /// What was signalled, in order.
    pub signals: Vec<String>,
    /// The processes that were signalled.
    pub signalled: usize,
    /// The processes that are still there.
    pub left: Vec<Process>,
    /// Whether the memory of its GPUs was given back.
    pub gpu_memory: GpuMemory,
    /// Why the node could not be dealt with.
    pub failure: Option<Failure>,
    /// Whether that is because it does not answer: what runs there is not known.
    pub is_unseen: bool,
}

impl NodeReport {
    pub(crate) fn new(node: NodeId) -> Self {
        let (signals, left, gpu_memory) = (Vec::new(), Vec::new(), GpuMemory::Unasked);
        Self { node, signals, signalled: 0, left, gpu_memory, failure: None, is_unseen: false }
    }

    /// Tells whether every process is verified to be gone, and no GPU memory is known to be held; whether that was verified
    /// as well, [`Self::unverified`] says.
    pub fn all_gone(&self) -> bool {
        self.left.is_empty() && self.failure.is_none() && !matches!(self.gpu_memory, GpuMemory::Held(_))
    }

    /// How it ended there, in a line.
    pub fn ended_in_words(&self) -> String {
        match (&self.failure, self.left.len()) {
            (Some(failure), _) => failure.why.clone(),
            (None, 0) if self.gpu_memory == GpuMemory::Unasked => "every process is gone".to_owned(),
            (None, 0) => format!("every process is gone; {}", self.gpu_memory.in_words()),
            (None, left) => format!("{} still there", counted_processes(left)),
        }
    }

    /// Says that nobody knows what became of GPU memory, though every process is gone.
    pub fn unverified(&self) -> Option<String> {
        matches!(self.gpu_memory, GpuMemory::Unknown(_))
            .then(|| format!("node {}: {}", self.node, self.ended_in_words()))
    }

    /// Names what is left, processes and memory.
    pub fn survivors(&self) -> Vec<String> {
        let processes = self.left.iter().map(|process| survivor(&self.node, process));
        let held = matches!(self.gpu_memory, GpuMemory::Held(_));
        processes.chain(held.then(|| format!("node {}: {}", self.node, self.gpu_memory.in_words()))).collect()
    }
}

impl KillReport {
    /// Tells whether every process is verified to be gone.
    pub fn all_gone(&self) -> bool {
        self.job.as_ref().is_none_or(Result::is_ok) && self.nodes.iter().all(NodeReport::all_gone)
    }

    /// The nodes that did not answer, so that nobody knows what runs there. Of a job, Slurm does.
    pub fn unseen(&self) -> Vec<&NodeId> {
        self.nodes.iter().filter(|node| node.is_unseen && self.job.is_none()).map(|node| &node.node).collect()
    }

    /// Says what did not go as asked, naming each node that could not be dealt with and each process that is left. A stop
    /// that was sent and is being obeyed is no failure.
    pub fn failure(&self, run: &str) -> Option<Failure> {
        if let Some(Err(failure)) = &self.job {
            return Some(failure.clone());
        }
        // Many clusters take logins to a node only while a job of the user's runs there.
        let counts = |node: &&NodeReport| self.job.is_none() || !node.is_unseen;
        let failures: Vec<&Failure> =
            self.nodes.iter().filter(counts).filter_map(|node| node.failure.as_ref()).collect();
        let of_kill = || self.nodes.iter().filter(|_| self.how == KillHow::Kill);
        let left: Vec<String> = of_kill().flat_map(NodeReport::survivors).collect();
        let unverified: Vec<String> =
            of_kill().filter(|_| self.job.is_none()).filter_map(NodeReport::unverified).collect();
        let verb = if self.how == KillHow::Stop { "stop" } else { "kill" };
        let fix = match (&failures[..], &left[..]) {
            ([], []) => return unverified_failure(run, &unverified),
            ([only], []) if unverified.is_empty() => return Some((*only).clone()),
            ([], _) => {
                "a process that waits for a device ends when the device answers; if it never does, restart the node"
                    .into()
            }
            ([first, ..], _) if self.unseen().is_empty() => first.fix.clone(),
            _ if self.how == KillHow::Stop => format!("see whether these nodes are up, then stop it again: {run}"),
            _ => format!("`vidtui kill {run} --wait` asks these nodes again until they answer"),
        };
        let whys = failures.iter().map(|failure| failure.why.clone()).chain(left).chain(unverified);
        Some(Failure::new(
            rundir::ErrorCode::Unclassified,
            format!("cannot {verb} all of {run}"),
            whys.collect::<Vec<_>>().join("; "),
            fix,
        ))
    }
}

/// A kill of which everything is known but what became of GPU memory; `of` says of what.
pub fn unverified_failure(of: &str, nodes: &[String]) -> Option<Failure> {
    let fix = "see whether nvidia-smi answers there by now: `vidtui smi NODE`; a driver that hangs takes a reboot";
    let what = || format!("cannot verify that GPUs are free of {of}");
    (!nodes.is_empty()).then(|| Failure::new(rundir::ErrorCode::Unclassified, what(), nodes.join("; "), fix))
}

/// Names a process that would not end.
fn survivor(node: &NodeId, process: &Process) -> String {
    let role = match process.role {
        Role::Supervisor => "supervisor".to_owned(),
        Role::Rank(rank) => format!("rank {rank}"),
        Role::Other => "child".to_owned(),
    };
    format!(
        "node {node}: {role}, process {}, state {} ({}): {}",
        process.pid,
        process.state,
        proc::state_in_words(process.state),
        process.command
    )
}

/// Ends a run as planned, and verifies that every process of it is gone.
///
/// Each node is looked at again before each signal: if its processes are somebody else's by now, nothing is sent there.
pub fn execute_kill(
    plan: &RunKill,
    transports: &mut [Box<dyn Transport>],
    patience: &Patience,
    progress: &mut dyn FnMut(KillProgress),
) -> KillReport {
    if let Some(target) = &plan.job {
        return kill_job(plan, target, transports, patience, progress);
    }
    KillReport { how: plan.how, nodes: end_processes(plan, transports, patience, progress), job: None }
}

/// Ends the processes of each node, and verifies that they are gone and have given back the memory of their GPUs.
fn end_processes(
    plan: &RunKill,
    transports: &mut [Box<dyn Transport>],
    patience: &Patience,
    progress: &mut dyn FnMut(KillProgress),
) -> Vec<NodeReport> {
    let mut nodes: Vec<Ending<'_>> = plan.nodes.iter().map(|target| Ending::new(plan, target, transports)).collect();
    let supervisors = (Recipient::Supervisor, Signal::Term);
    match plan.how {
        KillHow::Stop => end(&mut nodes, transports, supervisors, patience.stop, progress),
        KillHow::Kill => {
            let everyone = |signal| (Recipient::All, signal);
            end(&mut nodes, transports, everyone(Signal::Term), patience.term, progress);
            end(&mut nodes, transports, everyone(Signal::Kill), patience.kill, progress);
        }
    }
    for node in &mut nodes {
        if let Some(error) = node.blind.take() {
            node.report.failure = Some(error.failure(&*node.what));
            node.report.is_unseen = true;
        }
    }
    if plan.how == KillHow::Kill {
        let ended = nodes.iter_mut().filter(|node| node.gone && node.report.failure.is_none());
        let ended = ended.map(|node| (node.target.node.clone(), node)).collect();
        on_nodes(ended, transports, |node: &mut Ending<'_>, transport| {
            let ranks = node.target.ranks.iter().map(|rank| rank.pid);
            let pids = node.pids.iter().copied().chain(ranks).collect();
            node.report.gpu_memory = released(&pids, transport, patience.kill);
        });
    }
    for node in &mut nodes {
        let text = node.report.ended_in_words();
        progress(KillProgress { node: node.report.node.clone(), text });
        if plan.how == KillHow::Kill && node.is_done() && node.report.failure.is_none() {
            node.report.failure = record(&plan.dir, node.target).err();
        }
    }
    nodes.into_iter().map(|node| node.report).collect()
}

/// Goes on with a kill on the nodes that did not answer, after longer and longer pauses, until each has been dealt with or
/// `is_given_up`. Nobody else is signalled than the plan says: what was confirmed stays true however long it takes.
///
/// Before each pause, `waits` is told for which nodes and how long.
pub fn go_on_killing(
    plan: &RunKill,
    report: &mut KillReport,
    transports: &mut [Box<dyn Transport>],
    patience: &Patience,
    waits: &mut dyn FnMut(&[&NodeId], Duration),
    progress: &mut dyn FnMut(KillProgress),
    is_given_up: &dyn Fn() -> bool,
) {
    let mut backoff = Backoff::new(ASK_AGAIN.0, ASK_AGAIN.1);
    while !report.unseen().is_empty() && !is_given_up() {
        let pause = backoff.next();
        waits(&report.unseen(), pause);
        let until = Instant::now() + pause;
        while Instant::now() < until && !is_given_up() {
            thread::sleep(LOOK_EVERY);
        }
        if is_given_up() {
            return;
        }
        let is_missing = |target: &&NodeKill| report.unseen().contains(&&target.node);
        let nodes = plan.nodes.iter().filter(is_missing).cloned().collect();
        let seen = execute_kill(&RunKill { nodes, ..plan.clone() }, transports, patience, progress);
        for mut now in seen.nodes {
            let Some(before) = report.nodes.iter_mut().find(|before| before.node == now.node) else { continue };
            now.signals = [std::mem::take(&mut before.signals), now.signals].concat();
            now.signalled = now.signalled.max(before.signalled);
            *before = now;
        }
    }
}

/// Lets Slurm end a run, then looks at each node: which processes Slurm takes for the job's depends on how it is set up, and
/// of a node that is down it says that nothing is left there. What it left is ended as without Slurm.
fn kill_job(
    plan: &RunKill,
    target: &JobKill,
    transports: &mut [Box<dyn Transport>],
    patience: &Patience,
    progress: &mut dyn FnMut(KillProgress),
) -> KillReport {
    let mut tell = |text| {
        if let Ok(node) = NodeId::new("Slurm") {
            progress(KillProgress { node, text });
        }
    };
    let mut job = end_job(&plan.run, &plan.dir, target, &mut tell);
    let mut nodes = Vec::new();
    if target.is_cancelled
        && let Ok(text) = &mut job
    {
        nodes = end_processes(plan, transports, patience, progress);
        for node in nodes.iter().filter(|node| node.is_unseen || node.unverified().is_some()) {
            *text += &format!("; not verified on {}: {}", node.node, node.ended_in_words());
        }
        // Where nobody could look, Slurm's word counts, but for nodes that it cannot see either.
        let is_over = |target_node: &&NodeKill| {
            let seen = nodes.iter().find(|node| node.node == target_node.node);
            seen.is_some_and(|node| node.is_unseen) && !target.lost.contains(&target_node.node)
        };
        let recorded = plan.nodes.iter().filter(is_over).try_for_each(|node| record(&plan.dir, node));
        job = recorded.and(job);
    }
    KillReport { how: plan.how, nodes, job: Some(job) }
}

/// A node on the way to its end.
struct Ending<'a> {
    what: String,
    target: &'a NodeKill,
    report: NodeReport,
    gone: bool,
    /// Everyone who was signalled.
    pids: BTreeSet<i32>,
    /// Whether the signal of this phase is still to be sent: the node was out of sight.
    unsent: bool,
    /// Why the node is out of sight.
    blind: Option<RemoteError>,
    /// Whether Slurm has ended its processes, as far as it knows.
    is_of_job: bool,
}

impl<'a> Ending<'a> {
    fn new(plan: &RunKill, target: &'a NodeKill, transports: &[Box<dyn Transport>]) -> Self {
        let verb = if plan.how == KillHow::Stop { "stop" } else { "kill" };
        let what = format!("cannot {verb} {}", plan.run);
        let reachable = transports.iter().any(|transport| *transport.node() == target.node);
        let failure = (!reachable).then(|| {
            Failure::new(
                rundir::ErrorCode::Unclassified,
                &*what,
                format!("node {} cannot be reached from here", target.node),
                format!("run `vidtui {verb} {}` on {}", plan.run, target.node),
            )
        });
        let report = NodeReport { failure, ..NodeReport::new(target.node.clone()) };
        Self {
            what,
            target,
            report,
            gone: false,
            pids: BTreeSet::new(),
            unsent: false,
            blind: None,
            is_of_job: plan.job.is_some(),
        }
    }

    fn is_done(&self) -> bool {
        self.gone || self.report.failure.is_some()
    }

    /// A node that is out of sight is tried again for as long as there is patience, unless Slurm has seen to it.
    fn fail(&mut self, error: RemoteError) {
        if error.is_unreachable() && !self.is_of_job {
            self.blind = Some(error);
        } else {
            // It is in sight again.
            self.blind = None;
            self.report.is_unseen = error.is_unreachable();
            self.report.failure = Some(error.failure(&*self.what));
        }
    }

    /// Sends a signal; returns what to tell about it.
    fn signal(&mut self, transport: &mut dyn Transport, to: Recipient, signal: Signal) -> Option<KillProgress> {
        match transport.signal(self.target, to, signal) {
            Ok(signalled) => {
                (self.unsent, self.blind) = (false, None);
                if signalled.is_empty() {
                    self.gone = true;
                    self.report.left.clear();
                    return None;
                }
                let name = if signal == Signal::Term { "TERM" } else { "KILL" };
                let pids = signalled.iter().map(|process| process.pid.to_string()).collect::<Vec<_>>().join(", ");
                let text = format!("{name} sent to {}: {pids}", counted_processes(signalled.len()));
                self.report.signals.push(text.clone());
                self.pids.extend(signalled.iter().map(|process| process.pid));
                self.report.signalled = self.report.signalled.max(signalled.len());
                self.report.left = signalled;
                Some(KillProgress { node: self.report.node.clone(), text })
            }
            Err(error) => {
                let told = self.blind.is_none();
                let text = error.to_string();
                self.fail(error);
                told.then(|| KillProgress { node: self.report.node.clone(), text })
            }
        }
    }

    fn look(&mut self, transport: &mut dyn Transport, signal: Signal) {
        match transport.find_processes(self.target) {
            Ok(group) => {
                self.blind = None;
                match group {
                    RunProcesses::Gone => {
                        self.gone = true;
                        self.report.left.clear();
                    }
                    RunProcesses::Owned(left) => {
                        // What was started between the look and the signal did not get it.
                        self.unsent |= signal == Signal::Kill && left.iter().any(|one| !self.pids.contains(&one.pid));
                        self.report.left = left;
                    }
                    RunProcesses::NotOwned(why) => {
                        self.fail(RemoteError::NotOwned { node: self.target.node.clone(), why })
                    }
                }
            }
            Err(error) => self.fail(error),
        }
    }
}

/// Does something on all nodes that are not done, at once: one that does not answer keeps no other waiting.
fn on_all<T: Send>(
    nodes: &mut [Ending<'_>],
    transports: &mut [Box<dyn Transport>],
    work: impl Fn(&mut Ending<'_>, &mut dyn Transport) -> T + Sync,
) -> Vec<T> {
    let pairs: Vec<_> = nodes
        .iter_mut()
        .filter(|node| !node.is_done())
        .map(|node| {
            let name = node.target.node.clone();
            (name, node)
        })
        .collect();
    on_nodes(pairs, transports, |node, transport| work(node, transport))
}

/// Sends a signal to every node, and waits until all their processes are gone, or patience is.
fn end(
    nodes: &mut [Ending<'_>],
    transports: &mut [Box<dyn Transport>],
    (to, signal): (Recipient, Signal),
    patience: Duration,
    progress: &mut dyn FnMut(KillProgress),
) {
    let deadline = Instant::now() + patience;
    nodes.iter_mut().for_each(|node| node.unsent = true);
    let send = |node: &mut Ending<'_>, transport: &mut dyn Transport| node.signal(transport, to, signal);
    on_all(nodes, transports, send).into_iter().flatten().for_each(&mut *progress);
    loop {
        let told = on_all(nodes, transports, |node, transport| {
            if node.unsent && Instant::now() < deadline {
                return node.signal(transport, to, signal);
            }
            if !node.unsent {
                node.look(transport, signal);
            }
            None
        });
        told.into_iter().flatten().for_each(&mut *progress);
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || nodes.iter().all(Ending::is_done) {
            return;
        }
        thread::sleep(left.min(LOOK_EVERY));
    }
}

/// Writes how the attempt ended, in the place of a supervisor that was killed before it could.
fn record(dir: &RunDir, target: &NodeKill) -> Result<(), Failure> {
    // Of a run that was found by its processes alone, there is no folder to write to.
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

pub(crate) fn counted_processes(count: usize) -> String {
    if count == 1 { "1 process".to_owned() } else { format!("{count} processes") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kill_whose_gpu_memory_nobody_can_tell_of_is_no_verified_one() {
        let node = |name: &str, gpu_memory| NodeReport { gpu_memory, ..NodeReport::new(NodeId::from_hostname(name)) };
        let report = |nodes| KillReport { how: KillHow::Kill, nodes, job: None };
        let hangs = || node("gpu02", GpuMemory::Unknown("nvidia-smi hangs".into()));
        assert_eq!(report(vec![node("gpu01", GpuMemory::Released)]).failure("a-run"), None);
        let failure = report(vec![node("gpu01", GpuMemory::Released), hangs()]).failure("a-run").unwrap();
        assert_eq!(failure.what, "cannot verify that GPUs are free of a-run");
        let why = "node gpu02: every process is gone; whether their GPU memory was given back cannot be told: nvidia-smi hangs";
        assert_eq!(failure.why, why);

        let held = node("gpu01", GpuMemory::Held(vec![(12, None)]));
        let failure = report(vec![held, hangs()]).failure("a-run").unwrap();
        assert_eq!(failure.what, "cannot kill all of a-run");
        assert_eq!(failure.why, format!("node gpu01: GPU memory is still held: process 12; {why}"));
    }
}
