//! Watches the files of one attempt on the node of rank 0, and raises the alerts of the attempt.

use crate::derive::{of_end, of_event, of_finding, of_repeated_fault};
use crate::outbox::Outbox;
use health::{Disk, Evidence, FirstSeen, NodeEvidence};
use nix::sys::statvfs::statvfs;
use recipe::Recipe;
use rundir::{Attempt, Error, EventKind, Failure, NodeSample, Run, RunDir, Tail};
use runstate::{Liveness, NewestCache, RunFacts, RunState, derive};
use std::thread;
use std::time::Duration;

/// How long to wait for the root cause: the exit file of the node that failed first.
const ROOT_CAUSE: Duration = Duration::from_secs(3);
/// The interval at which the exit files are read again.
const LOOK: Duration = Duration::from_millis(200);

/// Watches one attempt and raises its alerts. The supervisor of the first node owns it.
pub struct Watch {
    run: RunDir,
    meta: Run,
    recipe: Recipe,
    attempt: Attempt,
    outbox: Outbox,
    newest: NewestCache,
    nodes: Vec<NodeFile>,
    first_seen: FirstSeen,
}

/// The file with the samples of a node, and the evidence from them.
struct NodeFile {
    samples: Tail<NodeSample>,
    /// The number of ranks on the node. They use its first GPUs.
    ranks: usize,
    evidence: NodeEvidence,
}

impl Watch {
    /// Begins to watch.
    pub fn new(run: &RunDir, meta: Run, recipe: Recipe, attempt: Attempt, outbox: Outbox) -> Self {
        let file = |(node, ranks): (&cluster::NodeId, usize)| NodeFile {
            samples: run.tail_gpu_samples(node),
            ranks,
            evidence: NodeEvidence::new(node.clone()),
        };
        let nodes = attempt.placement.by_node().into_iter().map(|(node, ranks)| file((node, ranks.len()))).collect();
        let (run, newest, first_seen) = (run.clone(), NewestCache::default(), FirstSeen::default());
        Self { run, meta, recipe, attempt, outbox, newest, nodes, first_seen }
    }

    /// Raises the alerts about new events and about the findings at `now_s`, Unix seconds.
    ///
    /// # Errors
    /// A file of the run cannot be read. A later call can succeed.
    pub fn look(&mut self, now_s: f64) -> Result<(), Error> {
        let facts = self.facts()?;
        self.raise_events(&facts, now_s);
        self.raise_findings(facts, now_s);
        Ok(())
    }

    /// Raises the alert about a failure of the attempt, and waits until all alerts are sent. If the run has a healer (the program that
    /// resumes it after failures), the healer raises that alert instead.
    ///
    /// * `limit` — the longest wait for alerts that are not sent yet.
    ///
    /// # Errors
    /// A file of the run cannot be read.
    pub fn end(mut self, now_s: f64, limit: Duration) -> Result<(), Error> {
        let read = self.raise_end(now_s);
        self.outbox.end(limit);
        read
    }

    fn raise_end(&mut self, now_s: f64) -> Result<(), Error> {
        let facts = self.facts()?;
        self.raise_events(&facts, now_s);
        // The healer reports whether it resumes the run. In a Slurm job, the job script resumes the run but sends no alerts.
        if self.attempt.slurm.is_none() && self.run.healer().is_some() {
            return Ok(());
        }
        let mut failure = self.failure(facts, now_s)?;
        let mut waited = Duration::ZERO;
        while failure.as_ref().is_some_and(Failure::is_consequence) && waited < ROOT_CAUSE {
            thread::sleep(LOOK);
            waited += LOOK;
            failure = self.failure(self.facts()?, now_s)?;
        }
        if let Some(failure) = failure {
            let step = self.facts()?.last_metric.map(|(step, _)| step);
            self.outbox.raise(of_end(&self.meta, self.attempt.number, step, &failure, now_s));
        }
        Ok(())
    }

    /// Returns the failure of the attempt from the exit files of its nodes; `None` if it did not fail.
    fn failure(&self, mut facts: RunFacts, now_s: f64) -> Result<Option<Failure>, Error> {
        for node in &self.nodes {
            facts.exits.extend(self.run.read_exit(&node.evidence.node, self.attempt.number)?);
        }
        Ok(match derive(&facts, now_s) {
            RunState::Failed(failure) => Some(failure),
            _ => None,
        })
    }

    /// Reads the facts of the run. The run is alive, because this process belongs to it.
    fn facts(&self) -> Result<RunFacts, Error> {
        let mut facts = RunFacts::of_run(&self.meta, Some(self.attempt.clone()));
        facts.alive = Liveness::Alive;
        facts.stopping = self.run.stop_request().is_some();
        facts.see_newest(self.newest.newest(&self.run, self.nodes.iter().map(|node| &node.evidence.node))?);
        facts.see_heartbeat(&self.run);
        Ok(facts)
    }

    fn raise_events(&mut self, facts: &RunFacts, now_s: f64) {
        for event in facts.newest.events.iter().filter(|event| event.attempt == self.attempt.number) {
            // The healer sends the alerts about its own events. In a Slurm job, the job script records these events but sends no alerts.
            if event.kind.is_of_healer() && self.attempt.slurm.is_none() {
                continue;
            }
            // Unless the ranks work independently, the loss of a node ends the attempt, and the alert about the end is enough.
            if matches!(event.kind, EventKind::NodeLost { .. }) && !facts.is_independent {
                continue;
            }
            let repeated = of_repeated_fault(&self.meta, &facts.newest.events, event, now_s);
            for alert in of_event(&self.meta, event, now_s).into_iter().chain(repeated) {
                self.outbox.raise(alert);
            }
        }
    }

    fn raise_findings(&mut self, mut facts: RunFacts, now_s: f64) {
        let step_s = facts.last_metric.map(|(_, t)| t);
        for node in &mut self.nodes {
            let (samples, _) = node.samples.poll_all().unwrap_or_default();
            let own = samples.iter().filter(|sample| sample.attempt == self.attempt.number);
            own.for_each(|sample| node.evidence.see(sample, node.ranks));
            node.evidence.forget(step_s);
        }
        let nodes: Vec<NodeEvidence> = self.nodes.iter().map(|node| node.evidence.clone()).collect();
        if facts.inactive_since_s(now_s).is_some()
            && let Some(load) = health::power(&nodes, &facts, now_s)
        {
            facts.load = load;
        }
        let checkpoint = other_trainers::latest(&self.run);
        // The size of the checkpoints of an external trainer is unknown until its first checkpoint.
        let checkpoint_bytes = match self.meta.is_command() {
            _ if facts.is_independent => None,
            true => checkpoint.as_ref().map(|checkpoint| checkpoint.bytes),
            false => Some(self.recipe.cost().checkpoint_bytes),
        };
        let disk = checkpoint_bytes.zip(statvfs(self.run.root.as_std_path()).ok()).map(|(checkpoint_bytes, disk)| {
            Disk { free_bytes: disk.blocks_available() * disk.fragment_size(), checkpoint_bytes }
        });
        let data: Vec<String> = self.recipe.data.all().iter().map(|set| set.index.to_string()).collect();
        let state = derive(&facts, now_s);
        let mut found = health::findings(&Evidence {
            run: self.meta.id.as_str(),
            now_s,
            state: &state,
            facts: &facts,
            metrics: &facts.newest.metrics,
            events: &facts.newest.events,
            checkpoint: checkpoint.as_ref(),
            checkpoint_interval: self.recipe.checkpoint.interval,
            spike: self.recipe.log.spike,
            lr: (!self.meta.is_command()).then_some(self.recipe.optimizer.lr),
            data: &data,
            disk,
            nodes: &nodes,
        });
        self.first_seen.complete(&mut found, now_s);
        let step = facts.last_metric.map(|(step, _)| step);
        let alerts = found.iter().filter_map(|found| of_finding(&self.meta, self.attempt.number, step, found, now_s));
        alerts.for_each(|alert| self.outbox.raise(alert));
    }
}
