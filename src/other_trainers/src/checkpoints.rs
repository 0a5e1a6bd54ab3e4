//! The checkpoints of a run: those of the embedded trainer and those of other trainers.

use crate::contents::{Contents, Defect};
use crate::formats::Order;
use crate::presets::Finder;
use camino::{Utf8Path, Utf8PathBuf};
use recipe::Command;
use rundir::{CheckpointEntry, CheckpointSummary, Error, RunDir, is_no_answer};

/// The maximum depth of checkpoints below the output folder. Open-Sora and ttt-video-dit create a folder for each run.
const DEPTH: usize = 3;

/// Lists the checkpoints of a run by ascending step: its step directories, or those that the recipe's command has saved.
///
/// This is cheap: it checks sizes, not checksums.
///
/// # Errors
/// [`Error::File`] if the folder of checkpoints cannot be listed; a missing one is an empty list.
pub fn checkpoints(run: &RunDir) -> Result<Vec<CheckpointEntry>, Error> {
    match command_output(run) {
        Some((output, command)) => list(run, &output, &command),
        None => rundir::step_checkpoints(run),
    }
}

/// Returns the newest complete checkpoint for display; `None` if the run has none or the folder cannot be listed.
///
/// [`rundir::latest_among`] defines which one is the newest.
pub fn latest(run: &RunDir) -> Option<CheckpointSummary> {
    rundir::latest_among(run, &checkpoints(run).ok()?)
}

/// Returns the newest complete checkpoint to continue from when the user has not chosen one.
///
/// # Errors
/// [`Error::Unreadable`] if a checkpoint that cannot be read may be newer, and the errors of [`checkpoints`].
pub fn latest_strict(run: &RunDir) -> Result<Option<CheckpointSummary>, Error> {
    rundir::latest_strict_among(run, &checkpoints(run)?)
}

/// Returns the folders whose contents change when a checkpoint of a run appears, grows or is removed.
pub fn checkpoint_folders(run: &RunDir) -> Vec<Utf8PathBuf> {
    let folders = |root: &Utf8Path| -> Vec<Utf8PathBuf> {
        let entries = root.read_dir_utf8().into_iter().flatten().flatten();
        entries.map(|entry| entry.path().to_owned()).collect()
    };
    match command_output(run) {
        None => folders(&run.checkpoints()),
        Some((output, command)) => {
            let entries = list(run, &output, &command).unwrap_or_default();
            let dirs = entries.iter().map(|entry| entry.dir().to_owned());
            dirs.flat_map(|dir| folders(&dir).into_iter().chain([dir])).collect()
        }
    }
}

/// Returns how long it took to write the files of a checkpoint, in seconds: from the oldest modification time to the newest.
pub fn written_over_s(dir: &Utf8Path) -> f64 {
    let contents = Contents::read(dir);
    (contents.newest_s() - contents.oldest_s()).max(0.0)
}

/// Returns the folder in which a run's command saves, and the command; `None` for the embedded trainer.
fn command_output(run: &RunDir) -> Option<(Utf8PathBuf, Command)> {
    // This is called often. The recipe is parsed only for runs of a command, which are rare.
    let meta = run.read_run().ok().filter(rundir::Run::is_command)?;
    let recipe = meta.recipe().ok()?;
    Some((rundir::command_output(run, &meta, &recipe), recipe.command))
}

/// Lists the checkpoints of another trainer below a folder, in the order of the numbers in their names.
fn list(run: &RunDir, output: &Utf8Path, command: &Command) -> Result<Vec<CheckpointEntry>, Error> {
    if let Err(error) = output.read_dir_utf8()
        && is_no_answer(&error)
    {
        return Err(Error::io("list", output, error));
    }
    let finder = Finder::new(command);
    let mut named = Vec::new();
    find(output, output, &finder, DEPTH, &mut named);
    named.sort();
    let starts = attempt_starts(run);
    let found = named.into_iter().filter_map(|(Order { step, .. }, dir)| entry(&finder, &starts, step, dir));
    let (alone, whole): (Vec<_>, Vec<_>) = found.partition(|(is_weights_alone, _)| *is_weights_alone);
    // A program that saves its state writes its weights beside it.
    let found = if whole.is_empty() { alone } else { whole };
    Ok(found.into_iter().map(|(_, entry)| entry).collect())
}

/// Checks a folder or file that is named like a checkpoint, and returns whether it has weights alone. Returns `None` if it is none, for
/// instance because the trainer has removed its files.
fn entry(finder: &Finder, starts: &[(u32, f64)], step: u64, dir: Utf8PathBuf) -> Option<(bool, CheckpointEntry)> {
    let mut contents = Contents::read(&dir);
    if let Some(marker) = finder.marker(step) {
        contents.allow_empty(&marker);
    }
    if !finder.is_checkpoint(&dir, &contents) {
        return None;
    }
    let is_weights_alone = finder.is_weights_alone(&contents);
    let entry = match contents.check(|contents| finder.check(&dir, contents, step)) {
        Err(Defect::Incomplete(why)) => CheckpointEntry::Incomplete { step, dir, why },
        Err(Defect::Unreadable(why)) => CheckpointEntry::Unreadable { step, dir, why },
        Ok(()) => CheckpointEntry::Complete(CheckpointSummary {
            step,
            attempt: starts.iter().rev().find(|(_, began)| *began <= contents.newest_s()).map_or(1, |(n, _)| *n),
            bytes: contents.files.iter().map(|file| file.bytes).sum(),
            saved_s: contents.newest_s(),
            is_pinned: false,
            dir,
        }),
    };
    Some((is_weights_alone, entry))
}

/// Returns the numbers and start times of the attempts, oldest first. The times are by the clock of the node that saves,
/// if known, because the clock of the node that launched the attempt may differ.
fn attempt_starts(run: &RunDir) -> Vec<(u32, f64)> {
    let began = |number| {
        let attempt = run.read_attempt(number).ok()?;
        let first = attempt.placement.by_node().into_iter().next().map(|(node, _)| node.clone());
        let pid = first.and_then(|node| run.read_pid(&node, number).ok()?);
        Some((number, pid.map_or(attempt.started_s, |pid| pid.started_s)))
    };
    run.attempt_numbers().unwrap_or_default().into_iter().filter_map(began).collect()
}

/// Collects the folders and files that are named like a checkpoint.
fn find(output: &Utf8Path, folder: &Utf8Path, finder: &Finder, depth: usize, named: &mut Vec<(Order, Utf8PathBuf)>) {
    for entry in folder.read_dir_utf8().into_iter().flatten().flatten() {
        let dir = entry.path().to_owned();
        let below = dir.strip_prefix(output).unwrap_or(&dir);
        match finder.order(&dir, below) {
            Some(order) => {
                // `exp-1` and `20261120_08-03-35` have names of distributed checkpoints, and may contain checkpoints instead.
                let before = named.len();
                if depth > 0 && finder.may_contain_checkpoints(&dir) {
                    find(output, &dir, finder, depth - 1, named);
                }
                if named.len() == before {
                    named.push((order, dir));
                }
            }
            None if depth > 0 && entry.file_type().is_ok_and(|kind| kind.is_dir()) => {
                find(output, &dir, finder, depth - 1, named);
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests;
