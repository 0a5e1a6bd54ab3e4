use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cluster::NodeId;
use cluster::slurm::{JobSight, SlurmNode, SlurmSpec};
use plan::{KillHow, node_kill};
use rundir::{Attempt, Failure, Login, PidFile, Run, RunDir, RunId, now_s};
use runstate::{Following, Liveness, Load, RunFacts};

use crate::command::Command;
use crate::facts::{self, liveness};
use crate::parallel::on_nodes;
use crate::slurm::{SlurmNodes, SlurmQueue};
use crate::ssh::{Ssh, SshOptions};
use crate::transport::{Shell, Transport};
use crate::{Local, RemoteError, ThisNode, load, this_node};

/// How long a node may take to say that it is there.
const ANSWER: Duration = Duration::from_secs(10);
/// A look this young need not be repeated,
const FRESH: Duration = Duration::from_secs(1);
/// and one this old tells nothing any more.
const STALE: Duration = Duration::from_secs(10);
/// How often it is measured what the processes of a silent run use.
const WEIGH_EVERY: Duration = Duration::from_secs(4);

/// The nodes that this program has to do with. Each keeps its connection for as long as this lives.
#[derive(Debug)]
pub struct Fleet {
    here: ThisNode,
    options: SshOptions,
    nodes: Mutex<BTreeMap<Login, Ssh>>,
    /// Which logins by this machine's name lead here, as far as that can be found out.
    this_node_logins: Mutex<BTreeMap<Login, (Instant, Option<bool>)>>,
    sights: Arc<(Mutex<BTreeMap<Named, Sight>>, Condvar)>,
    loads: Arc<(Mutex<BTreeMap<RunId, Weighed>>, Condvar)>,
    slurm: SlurmQueue,
    slurm_nodes: SlurmNodes,
    following: Following,
}

/// A supervisor's process, by what names it for good.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Named {
    node: NodeId,
    boot_id: String,
    pid: i32,
    start_ticks: u64,
}

/// What is known of processes on another node.
#[derive(Debug, Clone, Copy, Default)]
struct Sight {
    asking: bool,
    last: Option<(Instant, Liveness)>,
    /// Since when the node does not answer, Unix seconds.
    unseen_since_s: Option<f64>,
}

/// What is known of the work of a run.
#[derive(Debug, Clone, Copy, Default)]
struct Weighed {
    asking: bool,
    last: Option<(Instant, Load)>,
}

impl Fleet {
    /// Knows no node yet but this machine.
    ///
    /// # Errors
    /// As [`this_node`].
    pub fn new(options: SshOptions) -> Result<Self, RemoteError> {
        Ok(Self {
            here: this_node()?,
            options,
            nodes: Mutex::default(),
            this_node_logins: Mutex::default(),
            sights: Arc::default(),
            loads: Arc::default(),
            slurm: SlurmQueue::default(),
            slurm_nodes: SlurmNodes::default(),
            following: Following::default(),
        })
    }

    /// Returns the way to a node by SSH; nothing is connected before it is used.
    pub fn ssh(&self, login: &Login) -> Ssh {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.entry(login.clone()).or_insert_with(|| Ssh::new(self.options.clone(), login.clone())).clone()
    }

    /// Returns this machine.
    pub fn this_node(&self) -> &ThisNode {
        &self.here
    }

    /// Tells whether a login leads to this machine, so that no connection is needed. Only then is what is true here true of
    /// the node: a laptop may have the name of a node.
    pub fn is_this_node(&self, login: &Login) -> bool {
        self.detect_this_node(login) == Some(true)
    }

    /// The same for whoever only looks, and would find nothing elsewhere: a machine whose name nothing resolves is this one.
    pub fn may_be_this_node(&self, login: &Login) -> bool {
        login.node == self.here.node && self.detect_this_node(login) != Some(false)
    }

    fn detect_this_node(&self, login: &Login) -> Option<bool> {
        if login.node != self.here.node {
            return Some(false);
        }
        let known = || self.this_node_logins.lock().unwrap_or_else(PoisonError::into_inner);
        let last = known().get(login).copied();
        // A name that nothing resolved may be resolved later.
        if let Some((at, found)) = last
            && (found.is_some() || at.elapsed() < STALE)
        {
            return found;
        }
        // Nobody waits for the lock meanwhile: the answer may take a name server's patience.
        let found = self.ssh(login).is_this_node();
        known().insert(login.clone(), (Instant::now(), found));
        found
    }

    /// Tries to reach nodes, all at once, and says which can be.
    pub fn reach(&self, logins: &[Login]) -> Vec<(NodeId, Result<(), RemoteError>)> {
        let reach = |login: &Login| {
            if self.is_this_node(login) {
                return Ok(());
            }
            let command = Command::new("answer", ":", ANSWER);
            self.ssh(login).run(&command).map(|_| ())
        };
        thread::scope(|scope| {
            let asked: Vec<_> =
                logins.iter().map(|login| (login.node.clone(), scope.spawn(move || reach(login)))).collect();
            let told = |(node, thread): (NodeId, thread::ScopedJoinHandle<'_, _>)| match thread.join() {
                Ok(result) => (node, result),
                Err(panic) => std::panic::resume_unwind(panic),
            };
            asked.into_iter().map(told).collect()
        })
    }

    /// Returns the ways to the nodes of these logins, and first to this machine unless one of them has its name and is another.
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

    /// Reads everything from which the state of a run follows ([`runstate::derive`]), its processes on other nodes among it.
    ///
    /// Nodes that have not answered when `patience` is over are as they were seen last, or unknown.
    ///
    /// # Errors
    /// When the run's files exist and cannot be read.
    pub fn read_facts(&self, dir: &RunDir, run: &Run, patience: Duration) -> Result<RunFacts, Failure> {
        let look = |attempt: &Attempt, files: &[PidFile]| self.see(dir, &run.id, attempt, files, patience);
        let mut facts = facts::read(dir, run, &look, &|job| self.slurm.see(job, patience), &self.following)?;
        // Before the silence is long enough to be alarming, so that the answer is there when it is.
        if facts.alive == Liveness::Alive && facts.silent_since_s(now_s() + facts.stall_after_s() / 2.0).is_some() {
            facts.load = self.load(dir, run, &facts, patience);
        }
        Ok(facts)
    }

    /// Says what is known of an attempt's Slurm job; none when it is no such job.
    pub fn job_sight(&self, attempt: &Attempt, patience: Duration) -> Option<JobSight> {
        attempt.slurm.as_ref()?.job.map(|job| self.slurm.see(job, patience))
    }

    /// Lists the nodes of the partitions that a job asks for, as Slurm sees them. Waits for Slurm's first answer.
    ///
    /// # Errors
    /// When Slurm does not answer now, or has no such partition.
    pub fn partition_nodes(&self, spec: &SlurmSpec) -> Result<Vec<SlurmNode>, Failure> {
        self.slurm_nodes.of(spec)
    }

    /// Lists all nodes as Slurm sees them, once for each of their partitions; none when it says nothing in so long.
    pub fn slurm_nodes(&self, patience: Duration) -> Vec<SlurmNode> {
        self.slurm_nodes.see(patience).and_then(Result::ok).unwrap_or_default()
    }

    /// Measures how busy the processors are that the run's ranks have, on all its nodes at once.
    fn load(&self, dir: &RunDir, run: &Run, facts: &RunFacts, patience: Duration) -> Load {
        let Some(attempt) = &facts.attempt else { return Load::Unknown };
        let nodes = attempt.placement.by_node();
        let files = nodes.iter().filter_map(|(node, _)| dir.read_pid(node, attempt.number).ok().flatten());
        let targets: Vec<_> = files.map(|file| (file.node.clone(), node_kill(&run.id, KillHow::Kill, &file))).collect();
        let (loads, changed) = &*self.loads;
        let mut known = loads.lock().unwrap_or_else(PoisonError::into_inner);
        let weighed = known.entry(run.id.clone()).or_default();
        let fresh = weighed.last.is_some_and(|(at, _)| at.elapsed() < WEIGH_EVERY);
        if !weighed.asking
            && !fresh
            && let Ok(mut transports) = self.transports(&attempt.ways())
        {
            weighed.asking = true;
            let (loads, id) = (self.loads.clone(), run.id.clone());
            thread::spawn(move || {
                let used = on_nodes(targets, &mut transports, |target, transport| {
                    load::most_used(&target, transport).ok().flatten()
                });
                let mut known = loads.0.lock().unwrap_or_else(PoisonError::into_inner);
                known.insert(id, Weighed { asking: false, last: Some((Instant::now(), load::join(used))) });
                loads.1.notify_all();
            });
        }
        let asking = |known: &mut BTreeMap<RunId, Weighed>| known.get(&run.id).is_some_and(|weighed| weighed.asking);
        let waited = changed.wait_timeout_while(known, patience, asking);
        let known = waited.map(|(known, _)| known).unwrap_or_else(|poisoned| poisoned.into_inner().0);
        match known.get(&run.id).and_then(|weighed| weighed.last) {
            Some((at, load)) if at.elapsed() < STALE => load,
            _ => Load::Unknown,
        }
    }

    /// Reads the process files of a run's newest attempt, each with whether its processes exist: what a kill is planned
    /// from.
    ///
    /// # Errors
    /// When the run's files exist and cannot be read.
    pub fn pid_files(&self, dir: &RunDir, patience: Duration) -> Result<Vec<(PidFile, Liveness)>, Failure> {
        let run = dir.read_run()?.id;
        Ok(facts::pid_files_seen(dir, &|attempt, files| self.see(dir, &run, attempt, files, patience))?)
    }

    /// The nodes of an attempt that did not answer when they were asked last, with since when, Unix seconds.
    pub fn unreachable_since(&self, attempt: &Attempt) -> Vec<(NodeId, f64)> {
        let known = self.sights.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_attempt = |node: &NodeId| attempt.placement.ranks.iter().any(|place| place.node == *node);
        let unseen = known.iter().filter_map(|(named, sight)| Some((named.node.clone(), sight.unseen_since_s?)));
        unseen.filter(|(node, _)| of_attempt(node)).collect()
    }

    /// Looks for the processes of all these files at once.
    fn see(
        &self,
        dir: &RunDir,
        run: &RunId,
        attempt: &Attempt,
        files: &[PidFile],
        patience: Duration,
    ) -> Vec<Liveness> {
        let deadline = Instant::now() + patience;
        let (sights, changed) = &*self.sights;
        let mut asked = Vec::new();
        for file in files {
            let login = attempt.logins.iter().find(|login| login.node == file.node);
            let Some(login) = login.filter(|login| !self.is_this_node(login)) else {
                asked.push(None);
                continue;
            };
            let named = Named {
                node: file.node.clone(),
                boot_id: file.boot_id.clone(),
                pid: file.pid,
                start_ticks: file.start_ticks,
            };
            let mut known = sights.lock().unwrap_or_else(PoisonError::into_inner);
            let sight = known.entry(named.clone()).or_default();
            // Nothing comes back to life.
            let settled = sight.last.is_some_and(|(at, seen)| seen == Liveness::Dead || at.elapsed() < FRESH);
            if !settled && !sight.asking {
                sight.asking = true;
                let (mut ssh, target, named) = (self.ssh(login), node_kill(run, KillHow::Kill, file), named.clone());
                let sights = self.sights.clone();
                thread::spawn(move || {
                    let seen = ssh.liveness(&target).unwrap_or(Liveness::Unknown);
                    let mut known = sights.0.lock().unwrap_or_else(PoisonError::into_inner);
                    let earlier = known.get(&named).and_then(|sight| sight.unseen_since_s);
                    let unseen_since_s = (seen == Liveness::Unknown).then(|| earlier.unwrap_or_else(now_s));
                    known.insert(named, Sight { asking: false, last: Some((Instant::now(), seen)), unseen_since_s });
                    sights.1.notify_all();
                });
            }
            asked.push(Some(named));
        }
        let known = sights.lock().unwrap_or_else(PoisonError::into_inner);
        let is_asking = |known: &mut BTreeMap<Named, Sight>| {
            asked.iter().flatten().any(|named| known.get(named).is_some_and(|sight| sight.asking))
        };
        let wait = deadline.saturating_duration_since(Instant::now());
        let waited = changed.wait_timeout_while(known, wait, is_asking);
        let known = waited.map(|(known, _)| known).unwrap_or_else(|poisoned| poisoned.into_inner().0);
        let one = |(file, named): (&PidFile, &Option<Named>)| {
            let Some(named) = named else { return liveness(dir, run, file, &self.here) };
            match known.get(named).and_then(|sight| sight.last) {
                Some((_, Liveness::Dead)) => Liveness::Dead,
                Some((at, seen)) if at.elapsed() < STALE => seen,
                _ => Liveness::Unknown,
            }
        };
        files.iter().zip(&asked).map(one).collect()
    }
}
