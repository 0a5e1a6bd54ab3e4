//! The connections of the console to nodes and to Slurm, and the cached liveness and load of runs.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cluster::NodeId;
use cluster::slurm::{JobStatus, SlurmNode, SlurmSpec};
use plan::{KillHow, node_kill};
use rundir::{Attempt, Failure, Login, PidFile, Run, RunDir, RunId, now_s};
use runstate::{Liveness, Load, NewestCache, RunFacts};

use crate::command::Command;
use crate::facts::{self, liveness};
use crate::parallel::on_nodes;
use crate::slurm::{SlurmNodes, SlurmQueue};
use crate::ssh::{Ssh, SshOptions};
use crate::transport::{Shell, Transport};
use crate::{Local, RemoteError, ThisNode, load, this_node, threads};

/// The timeout of a reachability check.
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// A cached liveness younger than this is not refreshed.
const FRESH: Duration = Duration::from_secs(1);
/// A cached liveness older than this is treated as unknown.
const STALE: Duration = Duration::from_secs(10);
/// How often the CPU usage of a run without progress is measured.
const LOAD_EVERY: Duration = Duration::from_secs(4);

/// The connections of this program to nodes and to Slurm. They stay open until this value is dropped.
#[derive(Debug)]
pub struct Connections {
    here: ThisNode,
    options: SshOptions,
    nodes: Mutex<BTreeMap<Login, Ssh>>,
    /// Whether a login to this machine's name reaches this machine; `None` if that cannot be determined.
    this_node_logins: Mutex<BTreeMap<Login, (Instant, Option<bool>)>>,
    liveness: Arc<(Mutex<BTreeMap<SupervisorId, LivenessEntry>>, Condvar)>,
    loads: Arc<(Mutex<BTreeMap<RunId, LoadEntry>>, Condvar)>,
    slurm: SlurmQueue,
    slurm_nodes: SlurmNodes,
    following: NewestCache,
}

/// The identity of a supervisor process, which is never reused, and the attempt that it belongs to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct SupervisorId {
    run: RunId,
    attempt: u32,
    node: NodeId,
    boot_id: String,
    pid: i32,
    start_ticks: u64,
}

/// The cached liveness of the processes of one supervisor.
#[derive(Debug, Clone, Copy, Default)]
struct LivenessEntry {
    is_querying: bool,
    last: Option<(Instant, Liveness)>,
    /// The time at which the node became unreachable, in Unix seconds.
    unreachable_since_s: Option<f64>,
}

/// The cached load of a run.
#[derive(Debug, Clone, Copy, Default)]
struct LoadEntry {
    is_measuring: bool,
    last: Option<(Instant, Load)>,
}

impl Connections {
    /// Creates the value without opening a connection.
    ///
    /// # Errors
    /// As [`this_node`].
    pub fn new(options: SshOptions) -> Result<Self, RemoteError> {
        Ok(Self {
            here: this_node()?,
            options,
            nodes: Mutex::default(),
            this_node_logins: Mutex::default(),
            liveness: Arc::default(),
            loads: Arc::default(),
            slurm: SlurmQueue::default(),
            slurm_nodes: SlurmNodes::default(),
            following: NewestCache::default(),
        })
    }

    /// Returns the SSH transport of a node. The transport connects when it is first used.
    pub fn ssh(&self, login: &Login) -> Ssh {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.entry(login.clone()).or_insert_with(|| Ssh::new(self.options.clone(), login.clone())).clone()
    }

    /// Returns this machine.
    pub fn this_node(&self) -> &ThisNode {
        &self.here
    }

    /// Returns whether a login certainly reaches this machine, so that no connection is needed. The name alone is not enough:
    /// a laptop may have the name of a node.
    pub fn is_this_node(&self, login: &Login) -> bool {
        self.detect_this_node(login) == Some(true)
    }

    /// Returns whether a login may reach this machine: it has the machine's name, and its address is not known to be another
    /// machine's. This is enough for callers that only read.
    pub fn may_be_this_node(&self, login: &Login) -> bool {
        login.node == self.here.node && self.detect_this_node(login) != Some(false)
    }

    fn detect_this_node(&self, login: &Login) -> Option<bool> {
        if login.node != self.here.node {
            return Some(false);
        }
        let known = || self.this_node_logins.lock().unwrap_or_else(PoisonError::into_inner);
        let last = known().get(login).copied();
        // A name that could not be resolved may be resolvable later.
        if let Some((at, found)) = last
            && (found.is_some() || at.elapsed() < STALE)
        {
            return found;
        }
        // The lock is not held here, because resolving a name may take as long as the name server's timeout.
        let found = self.ssh(login).is_this_node();
        known().insert(login.clone(), (Instant::now(), found));
        found
    }

    /// Connects to nodes in parallel, also to those that could not be reached a moment ago, and returns for each whether it can be reached.
    pub fn reach(&self, logins: &[Login]) -> Vec<(NodeId, Result<(), RemoteError>)> {
        let reach = |login: &Login| {
            if self.is_this_node(login) {
                return Ok(());
            }
            let command = Command { connects_now: true, ..Command::new("run a command", ":", PING_TIMEOUT) };
            self.ssh(login).run(&command).map(|_| ())
        };
        thread::scope(|scope| {
            let threads: Vec<_> =
                logins.iter().map(|login| (login.node.clone(), scope.spawn(move || reach(login)))).collect();
            let join = |(node, thread): (NodeId, thread::ScopedJoinHandle<'_, _>)| match thread.join() {
                Ok(result) => (node, result),
                Err(panic) => std::panic::resume_unwind(panic),
            };
            threads.into_iter().map(join).collect()
        })
    }

    /// Returns the transports of these logins, preceded by the transport of this machine, unless another node has this
    /// machine's name.
    ///
    /// # Errors
    /// As [`this_node`].
    pub fn transports(&self, logins: &[Login]) -> Result<Vec<Box<dyn Transport>>, RemoteError> {
        let others: Vec<&Login> = logins.iter().filter(|login| !self.is_this_node(login)).collect();
        let is_hidden = others.iter().any(|login| login.node == self.here.node);
        let local =
            (!is_hidden).then(|| Local::new().map(|local| Box::new(local) as Box<dyn Transport>)).transpose()?;
        let others = others.into_iter().map(|login| Box::new(self.ssh(login)) as Box<dyn Transport>);
        Ok(local.into_iter().chain(others).collect())
    }

    /// Reads the facts from which [`runstate::derive`] derives the state of a run, including its processes on other nodes.
    ///
    /// Nodes that do not reply within `timeout` have their last known liveness, or are unknown.
    ///
    /// # Errors
    /// When the run's files exist and cannot be read.
    pub fn read_facts(&self, dir: &RunDir, run: &Run, timeout: Duration) -> Result<RunFacts, Failure> {
        let liveness = |attempt: &Attempt, files: &[PidFile]| self.liveness(dir, &run.id, attempt, files, timeout);
        let mut facts = facts::read(dir, run, &liveness, &|job| self.slurm.job(job, timeout), &self.following)?;
        // The load is measured at half the stall time, so that it is known when the run counts as stalled.
        if facts.alive == Liveness::Alive && facts.inactive_since_s(now_s() + facts.stall_after_s() / 2.0).is_some() {
            facts.load = self.load(dir, run, &facts, timeout);
        }
        Ok(facts)
    }

    /// Drops the cached lines of a run that has ended.
    pub fn forget_lines(&self, dir: &RunDir) {
        self.following.forget(dir);
    }

    /// Returns the state of an attempt's Slurm job; `None` if it is not a job.
    pub fn job_status(&self, attempt: &Attempt, timeout: Duration) -> Option<JobStatus> {
        attempt.slurm.as_ref()?.job.map(|job| self.slurm.job(job, timeout))
    }

    /// Lists the nodes of the partitions that a job requests, as Slurm reports them. Waits for the first reply of Slurm.
    ///
    /// # Errors
    /// When Slurm does not reply, or has no such partition.
    pub fn partition_nodes(&self, spec: &SlurmSpec) -> Result<Vec<SlurmNode>, Failure> {
        self.slurm_nodes.of_partitions(spec)
    }

    /// Lists all nodes as Slurm reports them, once per partition. The list is empty if Slurm does not reply within `timeout`.
    pub fn slurm_nodes(&self, timeout: Duration) -> Vec<SlurmNode> {
        self.slurm_nodes.latest(timeout).and_then(Result::ok).unwrap_or_default()
    }

    /// Measures the CPU usage of the run's ranks on all its nodes in parallel.
    fn load(&self, dir: &RunDir, run: &Run, facts: &RunFacts, timeout: Duration) -> Load {
        let Some(attempt) = facts.attempt.as_ref().filter(|_| !facts.is_attached) else { return Load::Unknown };
        let nodes = attempt.placement.by_node();
        let files = nodes.iter().filter_map(|(node, _)| dir.read_pid(node, attempt.number).ok().flatten());
        let targets: Vec<_> = files.map(|file| (file.node.clone(), node_kill(&run.id, KillHow::Kill, &file))).collect();
        let (loads, changed) = &*self.loads;
        let mut known = loads.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = known.entry(run.id.clone()).or_default();
        let is_fresh = entry.last.is_some_and(|(at, _)| at.elapsed() < LOAD_EVERY);
        if !entry.is_measuring
            && !is_fresh
            && let Ok(mut transports) = self.transports(&attempt.ssh_logins())
        {
            entry.is_measuring = true;
            let (loads, id) = (self.loads.clone(), run.id.clone());
            threads::spawn(move || {
                let used = on_nodes(targets, &mut transports, |target, transport| {
                    load::busiest_cpu(&target, transport).ok().flatten()
                });
                let mut known = loads.0.lock().unwrap_or_else(PoisonError::into_inner);
                known.insert(id, LoadEntry { is_measuring: false, last: Some((Instant::now(), load::join(used))) });
                loads.1.notify_all();
            });
        }
        let is_measuring =
            |known: &mut BTreeMap<RunId, LoadEntry>| known.get(&run.id).is_some_and(|entry| entry.is_measuring);
        let waited = changed.wait_timeout_while(known, timeout, is_measuring);
        let known = waited.map(|(known, _)| known).unwrap_or_else(|poisoned| poisoned.into_inner().0);
        match known.get(&run.id).and_then(|entry| entry.last) {
            Some((at, load)) if at.elapsed() < STALE => load,
            _ => Load::Unknown,
        }
    }

    /// Reads the process files of a run's newest attempt, each with the liveness of its processes. They are the input for
    /// planning a kill.
    ///
    /// # Errors
    /// When the run's files exist and cannot be read.
    pub fn pid_files(&self, dir: &RunDir, timeout: Duration) -> Result<Vec<(PidFile, Liveness)>, Failure> {
        let run = dir.read_run()?.id;
        Ok(facts::pid_files_with(dir, &|attempt, files| self.liveness(dir, &run, attempt, files, timeout))?)
    }

    /// Returns the unreachable nodes of a run's attempt, each with the Unix time at which it became unreachable.
    ///
    /// Only queries for this attempt count. A run that has ended is not queried again, so the result for its nodes may be
    /// outdated.
    pub fn unreachable_since(&self, run: &RunId, attempt: u32) -> Vec<(NodeId, f64)> {
        let known = self.liveness.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_attempt = known.iter().filter(|(supervisor, _)| supervisor.run == *run && supervisor.attempt == attempt);
        of_attempt
            .filter_map(|(supervisor, entry)| Some((supervisor.node.clone(), entry.unreachable_since_s?)))
            .collect()
    }

    /// Returns the liveness of the processes in all these files. Nodes are queried in parallel.
    fn liveness(
        &self,
        dir: &RunDir,
        run: &RunId,
        attempt: &Attempt,
        files: &[PidFile],
        timeout: Duration,
    ) -> Vec<Liveness> {
        let deadline = Instant::now() + timeout;
        let (cache, changed) = &*self.liveness;
        let mut queried = Vec::new();
        for file in files {
            let login = attempt.logins.iter().find(|login| login.node == file.node);
            let Some(login) = login.filter(|login| !self.is_this_node(login)) else {
                queried.push(None);
                continue;
            };
            let supervisor = SupervisorId {
                run: run.clone(),
                attempt: file.attempt,
                node: file.node.clone(),
                boot_id: file.boot_id.clone(),
                pid: file.pid,
                start_ticks: file.start_ticks,
            };
            let mut known = cache.lock().unwrap_or_else(PoisonError::into_inner);
            let entry = known.entry(supervisor.clone()).or_default();
            // Dead processes stay dead.
            let is_fresh = entry.last.is_some_and(|(at, found)| found == Liveness::Dead || at.elapsed() < FRESH);
            if !is_fresh && !entry.is_querying {
                entry.is_querying = true;
                let (mut ssh, target) = (self.ssh(login), node_kill(run, KillHow::Kill, file));
                let (cache, supervisor) = (self.liveness.clone(), supervisor.clone());
                threads::spawn(move || {
                    let found = ssh.liveness(&target).unwrap_or(Liveness::Unknown);
                    let mut known = cache.0.lock().unwrap_or_else(PoisonError::into_inner);
                    let earlier = known.get(&supervisor).and_then(|entry| entry.unreachable_since_s);
                    let unreachable_since_s = (found == Liveness::Unknown).then(|| earlier.unwrap_or_else(now_s));
                    let last = Some((Instant::now(), found));
                    known.insert(supervisor, LivenessEntry { is_querying: false, last, unreachable_since_s });
                    cache.1.notify_all();
                });
            }
            queried.push(Some(supervisor));
        }
        let known = cache.lock().unwrap_or_else(PoisonError::into_inner);
        let is_querying = |known: &mut BTreeMap<SupervisorId, LivenessEntry>| {
            queried.iter().flatten().any(|supervisor| known.get(supervisor).is_some_and(|entry| entry.is_querying))
        };
        let wait = deadline.saturating_duration_since(Instant::now());
        let waited = changed.wait_timeout_while(known, wait, is_querying);
        let known = waited.map(|(known, _)| known).unwrap_or_else(|poisoned| poisoned.into_inner().0);
        let of_file = |(file, supervisor): (&PidFile, &Option<SupervisorId>)| {
            let Some(supervisor) = supervisor else { return liveness(dir, run, file, &self.here) };
            match known.get(supervisor).and_then(|entry| entry.last) {
                Some((_, Liveness::Dead)) => Liveness::Dead,
                Some((at, found)) if at.elapsed() < STALE => found,
                _ => Liveness::Unknown,
            }
        };
        files.iter().zip(&queried).map(of_file).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_an_earlier_attempt_or_another_run_could_not_reach_is_not_unreachable_now() {
        let connections = Connections::new(SshOptions::default()).unwrap();
        let run = |id: &str| RunId::parse(id).unwrap();
        let (this, other) = (run("2026-11-20T0340-demo-2s-k7f2"), run("2026-11-20T0341-demo-4s-k7f3"));
        let node = |name: &str| NodeId::new(name).unwrap();
        let query = |run: &RunId, attempt, name, pid, unreachable_since_s| {
            let boot_id = "b".to_owned();
            let id = SupervisorId { run: run.clone(), attempt, node: node(name), boot_id, pid, start_ticks: 1 };
            let last = Some((Instant::now(), Liveness::Unknown));
            let entry = LivenessEntry { is_querying: false, last, unreachable_since_s };
            connections.liveness.0.lock().unwrap().insert(id, entry);
        };
        query(&this, 1, "node02", 10, Some(100.0));
        query(&this, 2, "node01", 20, None);
        query(&this, 2, "node02", 21, None);
        query(&other, 2, "node01", 30, Some(200.0));
        assert_eq!(connections.unreachable_since(&this, 2), []);
        assert_eq!(connections.unreachable_since(&this, 1), [(node("node02"), 100.0)]);
        assert_eq!(connections.unreachable_since(&other, 2), [(node("node01"), 200.0)]);
        query(&this, 2, "node02", 21, Some(300.0));
        assert_eq!(connections.unreachable_since(&this, 2), [(node("node02"), 300.0)]);
    }
}
