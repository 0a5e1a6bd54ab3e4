//! Finds the run that an argument names, and decides which run `latest` is.

use super::Workspace;
use crate::command_error::CommandError;
use recipe::Task;
use rundir::{ErrorCode, Failure, RunDir, RunId};

/// The name that stands for the newest run that a command can use.
pub const LATEST: &str = "latest";
/// The most runs that the error of an ambiguous name lists.
const LISTED: usize = 10;

/// What a command needs of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// The command can use any run.
    Nothing,
    /// The run trains.
    Training,
    /// The run can be resumed: it trains or encodes, and was started here.
    Resume,
    /// The run trains and has a complete checkpoint.
    Weights,
}

impl Workspace {
    /// Finds a run by its id, by its name or a prefix or suffix of its id if only one run has it, or as `latest`, the newest run.
    pub fn find(&self, name: &str) -> Result<RunDir, CommandError> {
        self.find_for(name, Needs::Nothing)
    }

    /// Finds a run for a command. `latest` is the newest run that has what the command needs.
    pub fn find_for(&self, name: &str, needs: Needs) -> Result<RunDir, CommandError> {
        match needs {
            Needs::Nothing => self.find_among(name, &[]),
            Needs::Training => self.find_among(name, &[&trains]),
            Needs::Resume => self.find_among(name, &[&can_be_resumed]),
            // Without a checkpoint, the command fails with the name of the run that should have one.
            Needs::Weights => self.find_among(name, &[&has_weights, &trains]),
        }
    }

    /// Finds a run. `latest` is the newest run that meets a condition, or the newest run if none does.
    pub fn find_that(&self, name: &str, meets: impl Fn(&RunDir) -> bool) -> Result<RunDir, CommandError> {
        self.find_among(name, &[&meets])
    }

    /// Finds a run. `latest` is the newest run that meets the first condition; if no run does, the second, and so on.
    fn find_among(&self, name: &str, conditions: &[&dyn Fn(&RunDir) -> bool]) -> Result<RunDir, CommandError> {
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
            && let Some(latest) = latest(&runs, conditions)
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
                let last: Vec<&str> = newest_first(&runs).take(3).map(RunDir::name).collect();
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
                Err(CommandError::request(Failure::new(
                    ErrorCode::AmbiguousName,
                    format!("cannot choose a run by '{name}'"),
                    why,
                    "write the id, or its end",
                )))
            }
        }
    }
}

/// Returns the newest run that meets the first condition that any run meets, or the newest run.
fn latest<'a>(runs: &'a [RunDir], conditions: &[&dyn Fn(&RunDir) -> bool]) -> Option<&'a RunDir> {
    let newest: Vec<&RunDir> = newest_first(runs).collect();
    let found = conditions.iter().find_map(|meets| newest.iter().find(|run| meets(run)));
    found.or(newest.first()).copied()
}

/// Returns the runs, newest first. Ids sort by the minute only; the files have the exact times.
fn newest_first(runs: &[RunDir]) -> impl Iterator<Item = &RunDir> {
    let mut newest: Vec<(f64, &RunDir)> = runs.iter().map(|run| (created_s(run), run)).collect();
    newest.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    newest.into_iter().map(|(_, run)| run)
}

fn trains(dir: &RunDir) -> bool {
    dir.read_run().is_ok_and(|run| run.task() == Task::Train)
}

/// A run that samples is not meant by `latest`: it would hide the run whose weights it samples.
fn can_be_resumed(dir: &RunDir) -> bool {
    dir.read_run().is_ok_and(|run| run.task() != Task::Sample && run.imported.is_none() && run.attached.is_none())
}

/// Returns whether a run trains and has a complete checkpoint, or one that cannot be read, which the command reports.
fn has_weights(dir: &RunDir) -> bool {
    trains(dir) && !matches!(other_trainers::latest_strict(dir), Ok(None))
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
