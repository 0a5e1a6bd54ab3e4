//! The runs of the folder: found by name, summed up, and what is wrong with them.

use super::Workspace;
use crate::refusal::Refusal;
use health::{Disk, Evidence, Finding};
use remote::{Local, Transport};
use rundir::{Failure, RunDir};
use runstate::{Liveness, Load, RunFacts, RunSummary};

impl Workspace {
    /// Finds the run that a person means: its id, the unique beginning or end of one, or `latest`.
    pub fn find(&self, name: &str) -> Result<RunDir, Refusal> {
        let runs: Vec<RunDir> = runstate::list_runs(&self.runs).into_iter().flatten().collect();
        let unknown = |why: String, fix: String| {
            Err(Refusal::request(Failure::new(rundir::ErrorCode::Unclassified, format!("no run '{name}'"), why, fix)))
        };
        if runs.is_empty() {
            let fix = "name the folder with --runs DIR, or start a run: vidtui launch RECIPE";
            return unknown(format!("{} has no runs", self.runs), fix.into());
        }
        // Ids sort by the minute only, so that the file is asked.
        let created_s = |dir: &RunDir| dir.read_run().map_or(0.0, |run| run.created_s);
        if name == "latest"
            && let Some(latest) = runs.iter().max_by(|a, b| created_s(a).total_cmp(&created_s(b)))
        {
            return Ok(latest.clone());
        }
        if let Some(exact) = runs.iter().find(|run| run.name() == name) {
            return Ok(exact.clone());
        }
        let meant: Vec<&RunDir> =
            runs.iter().filter(|run| run.name().starts_with(name) || run.name().ends_with(name)).collect();
        match meant[..] {
            [one] => Ok(one.clone()),
            [] => {
                let last: Vec<&str> = runs.iter().rev().take(3).map(RunDir::name).collect();
                unknown(
                    format!("no id in {} begins or ends so", self.runs),
                    format!("the newest are {}", last.join(", ")),
                )
            }
            _ => {
                let some: Vec<&str> = meant.iter().rev().take(3).map(|run| run.name()).collect();
                let why = format!(
                    "{} ids begin or end so: {}{}",
                    meant.len(),
                    some.join(", "),
                    more(meant.len() - some.len())
                );
                unknown(why, "write more of the id".into())
            }
        }
    }

    /// Sums up a run: its files, and what its processes do.
    pub fn summary(&self, dir: &RunDir) -> Result<(RunSummary, RunFacts), Failure> {
        let run = dir.read_run()?;
        let mut facts = self.fleet.read_facts(dir, &run, self.patience)?;
        let own_s = rundir::now_s();
        let now_s = match facts.alive {
            Liveness::Alive => self.samples.now_s(dir, &facts, own_s),
            Liveness::Dead | Liveness::Unknown => own_s,
        };
        // GPUs tell more than processors, if they tell anything: a collective that hangs keeps a processor busy.
        if facts.silent_since_s(now_s).is_some()
            && let Some(power @ Load::Power { .. }) = health::power(&self.samples.of(dir, &facts, own_s), &facts, now_s)
        {
            facts.load = power;
        }
        Ok((RunSummary::new(run, dir.clone(), &facts, now_s), facts))
    }

    /// What a person should know of about a run, the most urgent first.
    pub fn findings(&self, summary: &RunSummary, facts: &RunFacts) -> Vec<Finding> {
        let Some(attempt) = facts.attempt.as_ref().filter(|_| !summary.state.is_end()) else { return Vec::new() };
        let own_s = rundir::now_s();
        let now_s = self.samples.now_s(&summary.dir, facts, own_s);
        let mut nodes = self.samples.of(&summary.dir, facts, own_s).to_vec();
        for (node, unseen_since_s) in self.fleet.unreachable_since(attempt) {
            nodes
                .iter_mut()
                .filter(|known| known.node == node)
                .for_each(|known| known.unseen_since_s = Some(unseen_since_s));
        }
        let recipe = summary.run.recipe().ok();
        let free_bytes = Local::new().and_then(|mut here| here.free_bytes(&summary.dir.root)).ok();
        // What a command saves is known once it has saved.
        let checkpoint_bytes = match summary.run.is_command() {
            true => summary.checkpoint.as_ref().map(|checkpoint| checkpoint.bytes),
            false => recipe.as_ref().map(|recipe| recipe.cost().checkpoint_bytes),
        };
        let disk = checkpoint_bytes.zip(free_bytes);
        let disk = disk.map(|(checkpoint_bytes, free_bytes)| Disk { free_bytes, checkpoint_bytes });
        let mut found = health::findings(&Evidence {
            run: summary.run.id.as_str(),
            now_s,
            state: &summary.state,
            facts,
            metrics: &facts.newest.metrics,
            events: &facts.newest.events,
            checkpoint: summary.checkpoint.as_ref(),
            checkpoint_interval: recipe.as_ref().map_or(0, |recipe| recipe.checkpoint.interval),
            disk,
            nodes: &nodes,
        });
        self.samples.complete(&summary.dir, &mut found, now_s);
        found
    }

    /// Sums up all runs, oldest first; then why others cannot be read.
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

fn more(count: usize) -> String {
    if count == 0 { String::new() } else { format!(" and {count} more") }
}
