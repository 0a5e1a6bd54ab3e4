//! The runs in the runs folder: look-up by name, summaries and findings.

use super::Workspace;
use super::known_runs::{KnownRun, RecipeValues};
use crate::command_error::CommandError;
use camino::Utf8Path;
use health::{Disk, Evidence, Finding};
use recipe::Task;
use remote::{Local, Transport};
use rundir::{ErrorCode, Failure, RunDir, RunId, StepTimes, Tail};
use runstate::{Goodput, GoodputReader, Liveness, Load, RunFacts, RunSummary, StepLog};
use std::sync::Arc;

/// The name that stands for the newest run that a command can use.
const LATEST: &str = "latest";
/// The most runs that the error of an ambiguous name lists.
const LISTED: usize = 10;

impl Workspace {
    /// Finds a run by its id, by its name or a prefix or suffix of its id if only one run has it, or as `latest`.
    pub fn find(&self, name: &str) -> Result<RunDir, CommandError> {
        let runs: Vec<RunDir> = runstate::list_runs(&self.runs).into_iter().flatten().collect();
        let not_found = |code, why: String, fix: String| {
            Err(CommandError::request(Failure::new(code, format!("there is no run '{name}'"), why, fix)))
        };
        if name.trim().is_empty() {
            let why = "the name is blank, which every id starts with".to_owned();
            return not_found(ErrorCode::RunNotFound, why, "write the name, a part of the id, or `latest`".into());
        }
        if runs.is_empty() {
            let fix = "name the folder with --runs DIR, or start a run: vidtui launch RECIPE";
            return not_found(ErrorCode::RunNotFound, format!("{} has no runs", self.runs), fix.into());
        }
        if name == LATEST
            && let Some(latest) = newest(&runs)
        {
            return Ok(latest.clone());
        }
        if let Some(exact) = runs.iter().find(|run| run.name() == name) {
            return Ok(exact.clone());
        }
        // A name and a part of an id count alike: if they match different runs, neither is safe to stop or delete.
        let matching: Vec<&RunDir> = runs
            .iter()
            .filter(|run| run.name().starts_with(name) || run.name().ends_with(name) || is_named(run, name))
            .collect();
        match matching[..] {
            [one] => Ok(one.clone()),
            [] => {
                let last: Vec<&str> = runs.iter().rev().take(3).map(RunDir::name).collect();
                not_found(
                    ErrorCode::RunNotFound,
                    format!("no run in {} has this name, or an id that starts or ends with it", self.runs),
                    format!("the newest are {}", last.join(", ")),
                )
            }
            _ => {
                let some: Vec<&str> = matching.iter().rev().take(LISTED).map(|run| run.name()).collect();
                let which = match matching.iter().all(|run| is_named(run, name)) {
                    true => "runs have this name",
                    false => "runs have this name, or an id that starts or ends with it",
                };
                let more = more(matching.len() - some.len());
                let why = format!("{} {which}: {}{more}", matching.len(), some.join(", "));
                not_found(ErrorCode::AmbiguousName, why, "write the id, or its end".into())
            }
        }
    }

    /// Finds a run for its weights. `latest` is the newest run that trains: runs that encode or sample have no weights.
    pub fn find_with_weights(&self, name: &str) -> Result<RunDir, CommandError> {
        self.find_that(name, |dir| dir.read_run().is_ok_and(|run| run.task() == Task::Train))
    }

    /// Finds a run. `latest` is the newest run that meets a condition, or the newest run if none does.
    pub fn find_that(&self, name: &str, meets: impl Fn(&RunDir) -> bool) -> Result<RunDir, CommandError> {
        if name == LATEST {
            let runs = runstate::list_runs(&self.runs).into_iter().flatten();
            let mut runs: Vec<(f64, RunDir)> = runs.map(|run| (created_s(&run), run)).collect();
            runs.sort_by(|(a, _), (b, _)| b.total_cmp(a));
            if let Some(found) = runs.into_iter().map(|(_, run)| run).find(meets) {
                return Ok(found);
            }
        }
        self.find(name)
    }

    /// Returns a message that names the run, if `given` is `latest` and the command uses another run than the newest.
    pub fn latest_in_words(&self, given: &str, run: &Utf8Path) -> Option<String> {
        let is_other = given == LATEST && self.find(LATEST).is_ok_and(|newest| newest.root != run);
        is_other.then(|| format!("{LATEST} is {}", run.file_name().unwrap_or_default()))
    }

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

/// Returns the newest of some runs. Ids sort by the minute only; the file has the exact time.
fn newest(runs: &[RunDir]) -> Option<&RunDir> {
    let runs = runs.iter().map(|run| (created_s(run), run));
    runs.max_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, run)| run)
}

/// Returns whether a run has a name: that of its launch, or the form of it that the id contains.
fn is_named(dir: &RunDir, name: &str) -> bool {
    RunId::parse(dir.name()).is_ok_and(|id| id.name() == name) || dir.read_run().is_ok_and(|run| run.name == name)
}

fn created_s(dir: &RunDir) -> f64 {
    dir.read_run().map_or(0.0, |run| run.created_s)
}

fn more(count: usize) -> String {
    if count == 0 { String::new() } else { format!(" and {count} more") }
}
