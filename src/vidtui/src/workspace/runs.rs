//! The runs in the runs folder: summaries and findings.

use super::Workspace;
use super::known_runs::{KnownRun, RecipeValues};
use health::{Disk, Evidence, Finding};
use remote::{Local, Transport};
use rundir::{Failure, RunDir, StepTimes, Tail};
use runstate::{Goodput, GoodputReader, Liveness, Load, RunFacts, RunSummary, StepLog};
use std::sync::Arc;

impl Workspace {
    /// Summarizes a run from its files and processes.
    pub fn summary(&self, dir: &RunDir) -> Result<(RunSummary, RunFacts), Failure> {
        let known = self.known_runs.read(dir)?;
        let mut facts = self.connections.read_facts(dir, &known.run, self.patience)?;
        let own_s = rundir::now_s();
        let now_s = match facts.alive {
            Liveness::Alive => self.samples.now_s(dir, &facts, own_s),
            Liveness::Dead | Liveness::Unknown => own_s,
        };
        // GPU power is preferred to CPU load, because a hanging collective keeps a CPU busy.
        if facts.inactive_since_s(now_s).is_some()
            && let Some(power @ Load::Power { .. }) = health::power(&self.samples.of(dir, &facts, own_s), &facts, now_s)
        {
            facts.load = power;
        }
        let summary = RunSummary::new(known.run.clone(), dir.clone(), &facts, now_s);
        if summary.state.is_end() {
            self.known_runs.forget(dir);
        }
        Ok((summary, facts))
    }

    /// Returns the goodput of a run: how its time was spent. `None` if the run does not train or has not been started.
    pub fn goodput(&self, summary: &RunSummary) -> Result<Option<Goodput>, Failure> {
        let Some(mut reader) = GoodputReader::new(&summary.dir, &summary.run) else { return Ok(None) };
        let (mut lines, mut steps) = (Tail::<StepTimes>::new(summary.dir.metrics()), StepLog::default());
        steps.extend(lines.poll_all().map_err(|error| rundir::Error::io("read", lines.path(), error))?.0);
        Ok(reader.read(&steps, &summary.state, rundir::now_s())?)
    }

    /// Returns the findings about a run, the most urgent first.
    pub fn findings(&self, summary: &RunSummary, facts: &RunFacts) -> Vec<Finding> {
        let Some(attempt) = facts.attempt.as_ref() else { return Vec::new() };
        if summary.state.is_end() {
            return past_findings(summary, facts);
        }
        let own_s = rundir::now_s();
        let now_s = self.samples.now_s(&summary.dir, facts, own_s);
        let mut nodes = self.samples.of(&summary.dir, facts, own_s).to_vec();
        for (node, unreachable_since_s) in self.connections.unreachable_since(&summary.run.id, attempt.number) {
            nodes
                .iter_mut()
                .filter(|known| known.node == node)
                .for_each(|known| known.unreachable_since_s = Some(unreachable_since_s));
        }
        let known = self.known_runs.read(&summary.dir).unwrap_or_else(|_| Arc::new(KnownRun::new(summary.run.clone())));
        let values = known.values();
        let free_bytes = Local::new().and_then(|mut here| here.free_bytes(&summary.dir.root)).ok();
        // The size of a command's checkpoint is known after the first one.
        let checkpoint_bytes = match summary.run.is_command() {
            _ if facts.is_independent => None,
            true => summary.checkpoint.as_ref().map(|checkpoint| checkpoint.bytes),
            false => values.map(|values| values.checkpoint_bytes),
        };
        let disk = checkpoint_bytes.zip(free_bytes);
        let disk = disk.map(|(checkpoint_bytes, free_bytes)| Disk { free_bytes, checkpoint_bytes });
        let evidence = evidence(summary, facts, values, now_s);
        let mut found = health::findings(&Evidence { disk, nodes: &nodes, ..evidence });
        self.samples.complete(&summary.dir, &mut found, now_s);
        found
    }

    /// Summarizes all runs, oldest first. Also returns why others cannot be read.
    pub fn summaries(&self) -> (Vec<RunSummary>, Vec<Failure>) {
        let (mut runs, mut unreadable) = (Vec::new(), Vec::new());
        for dir in runstate::list_runs(&self.runs) {
            match dir.and_then(|dir| self.summary(&dir)) {
                Ok((summary, _)) => runs.push(summary),
                Err(failure) => unreadable.push(failure),
            }
        }
        runs.sort_by(|a, b| a.run.created_s.total_cmp(&b.run.created_s));
        (runs, unreadable)
    }
}

/// Returns the evidence that needs neither nodes nor disks.
fn evidence<'a>(
    summary: &'a RunSummary,
    facts: &'a RunFacts,
    values: Option<&'a RecipeValues>,
    now_s: f64,
) -> Evidence<'a> {
    Evidence {
        run: summary.run.id.as_str(),
        now_s,
        state: &summary.state,
        facts,
        metrics: &facts.newest.metrics,
        events: &facts.newest.events,
        checkpoint: summary.checkpoint.as_ref(),
        checkpoint_interval: values.map_or(0, |values| values.checkpoint_interval),
        // A recipe of another version may be unreadable. Then use the default of `log.spike`.
        spike: values.map_or(10.0, |values| values.spike),
        lr: values.and_then(|values| values.lr),
        data: values.map_or(&[], |values| &values.data),
        disk: None,
        nodes: &[],
    }
}

/// Returns the findings about a run that has ended. Few such runs have any, so the recipe is parsed only if the most sensitive value of
/// `log.spike` gives findings.
fn past_findings(summary: &RunSummary, facts: &RunFacts) -> Vec<Finding> {
    let now_s = rundir::now_s();
    let any = Evidence { spike: f64::MIN_POSITIVE, ..evidence(summary, facts, None, now_s) };
    if health::findings(&any).is_empty() {
        return Vec::new();
    }
    let known = KnownRun::new(summary.run.clone());
    health::findings(&evidence(summary, facts, known.values(), now_s))
}
