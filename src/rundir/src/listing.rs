//! Lists the step directories of a run, and chooses the newest checkpoint of a list and the old ones to remove.

use crate::layout::{parse_step_dir, step_files};
use crate::{Checkpoint, Error, RunDir};
use camino::{Utf8Path, Utf8PathBuf};
use failure::{FileError, is_no_answer};
use std::fs;
use std::io;

/// A checkpoint in a list, complete or not.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub enum CheckpointEntry {
    /// The checkpoint can be loaded.
    Complete(CheckpointSummary),
    /// The checkpoint cannot be loaded.
    Incomplete {
        /// The step in its name.
        step: u64,
        /// The folder.
        dir: Utf8PathBuf,
        /// The first thing that is missing or wrong.
        why: String,
    },
    /// It is unknown whether the checkpoint can be loaded, because the file system did not answer or refused access.
    Unreadable {
        /// The step in its name.
        step: u64,
        /// The folder.
        dir: Utf8PathBuf,
        /// The file system's error.
        why: String,
    },
}

/// A complete checkpoint, in short.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct CheckpointSummary {
    /// The steps done.
    pub step: u64,
    /// Its step directory.
    pub dir: Utf8PathBuf,
    /// The attempt that saved it.
    pub attempt: u32,
    /// Its size in bytes.
    pub bytes: u64,
    /// When it was saved, Unix seconds.
    pub saved_s: f64,
    /// Whether a user pinned it, so that it stays when old checkpoints are removed.
    #[serde(default)]
    pub is_pinned: bool,
}

impl CheckpointEntry {
    /// Returns the step in the name of the folder.
    pub fn step(&self) -> u64 {
        match self {
            Self::Complete(summary) => summary.step,
            Self::Incomplete { step, .. } | Self::Unreadable { step, .. } => *step,
        }
    }

    /// Returns the folder.
    pub fn dir(&self) -> &Utf8Path {
        match self {
            Self::Complete(summary) => &summary.dir,
            Self::Incomplete { dir, .. } | Self::Unreadable { dir, .. } => dir,
        }
    }

    /// Returns the summary, if the checkpoint is complete.
    pub fn complete(&self) -> Option<&CheckpointSummary> {
        self.summary().ok()
    }

    /// Returns the summary.
    ///
    /// # Errors
    /// The word `incomplete` or `unreadable`, and the reason, if the checkpoint is not complete.
    pub fn summary(&self) -> Result<&CheckpointSummary, (&'static str, &str)> {
        match self {
            Self::Complete(summary) => Ok(summary),
            Self::Incomplete { why, .. } => Err(("incomplete", why)),
            Self::Unreadable { why, .. } => Err(("unreadable", why)),
        }
    }
}

/// Lists the step directories of a run by ascending step. `other_trainers::checkpoints` also lists the
/// checkpoints of other trainers.
///
/// Sizes are checked and checksums are not, so this is cheap.
///
/// # Errors
/// [`Error::File`] if the folder of checkpoints cannot be listed; a missing one is an empty list.
pub fn step_checkpoints(run: &RunDir) -> Result<Vec<CheckpointEntry>, Error> {
    let dir = run.checkpoints();
    let folder = match fs::read_dir(&dir) {
        Ok(folder) => folder,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(Error::io("list", &dir, e)),
    };
    let mut entries = Vec::new();
    for entry in folder {
        let entry = entry.map_err(|e| Error::io("list", &dir, e))?;
        let name = entry.file_name();
        if let Some((name, step)) = name.to_str().and_then(|name| Some((name, parse_step_dir(name)?))) {
            entries.push(look_at(step, dir.join(name)));
        }
    }
    entries.sort_by_key(CheckpointEntry::step);
    Ok(entries)
}

/// Opens a step directory.
fn look_at(step: u64, dir: Utf8PathBuf) -> CheckpointEntry {
    match Checkpoint::open(&dir) {
        Ok(Checkpoint { step, dir, manifest, bytes }) => CheckpointEntry::Complete(CheckpointSummary {
            step,
            // If the file system does not answer, the checkpoint counts as pinned, so that it is not removed.
            is_pinned: fs::exists(dir.join(step_files::PINNED)).unwrap_or(true),
            dir,
            attempt: manifest.attempt,
            bytes,
            saved_s: manifest.saved_s,
        }),
        Err(Error::Incomplete { why, .. }) => CheckpointEntry::Incomplete { step, dir, why },
        Err(Error::File(FileError::Io { path, source, .. })) if is_no_answer(&source) => {
            let why = format!("{}: {source}", path.strip_prefix(&dir).unwrap_or(&path));
            CheckpointEntry::Unreadable { step, dir, why }
        }
        Err(e) => CheckpointEntry::Incomplete { step, dir, why: e.to_string() },
    }
}

/// Returns the newest complete checkpoint of a list.
///
/// If a user went back with `resume --step`, checkpoints of earlier attempts beyond that step are no longer part of the
/// run's history. They are skipped if there is another checkpoint.
pub fn latest_among(run: &RunDir, entries: &[CheckpointEntry]) -> Option<CheckpointSummary> {
    let complete: Vec<_> = entries.iter().filter_map(CheckpointEntry::complete).collect();
    let numbers = run.attempt_numbers().unwrap_or_default();
    let starts: Vec<(u32, u64)> =
        numbers.into_iter().filter_map(|n| Some((n, run.read_attempt(n).ok()?.start_step))).collect();
    let left = |c: &CheckpointSummary| starts.iter().any(|(number, start)| *number > c.attempt && *start < c.step);
    let newest = complete.iter().filter(|c| !left(c)).max_by_key(|c| age(c)).or(complete.iter().max_by_key(|c| age(c)));
    newest.map(|c| (*c).clone())
}

/// Returns the newest complete step directory before the step `damaged`. The checkpoint of step `damaged` may lack the
/// mark of a damaged one, because the mark cannot be written.
///
/// # Errors
/// As [`latest_strict_among`] and [`step_checkpoints`].
pub fn latest_before(run: &RunDir, damaged: u64) -> Result<Option<CheckpointSummary>, Error> {
    let mut entries = step_checkpoints(run)?;
    entries.retain(|entry| entry.step() < damaged);
    latest_strict_among(run, &entries)
}

/// Returns the checkpoint from which a run continues if the user has not chosen one: the newest complete one of a list.
///
/// # Errors
/// [`Error::Unreadable`] if a checkpoint that cannot be read may be newer.
pub fn latest_strict_among(run: &RunDir, entries: &[CheckpointEntry]) -> Result<Option<CheckpointSummary>, Error> {
    let latest = latest_among(run, entries);
    match unreadable_after(entries, latest.as_ref()) {
        Some((dir, why)) => Err(Error::Unreadable { dir: dir.to_owned(), why: why.to_owned() }),
        None => Ok(latest),
    }
}

/// Returns the folder and the error of a checkpoint that cannot be read and may be newer than the newest complete one.
/// Continuing from the older one without the user's consent would lose the steps in between.
pub fn unreadable_after<'a>(
    entries: &'a [CheckpointEntry],
    latest: Option<&CheckpointSummary>,
) -> Option<(&'a Utf8Path, &'a str)> {
    entries.iter().rev().find_map(|entry| match entry {
        CheckpointEntry::Unreadable { step, dir, why } if latest.is_none_or(|latest| *step > latest.step) => {
            Some((dir.as_path(), why.as_str()))
        }
        _ => None,
    })
}

/// Returns the steps whose checkpoints are to be removed. The newest `keep_last` complete ones, those at multiples
/// of `keep_every` and pinned ones stay. A `keep_last` of 0 keeps all; a `keep_every` of 0 keeps no multiples.
///
/// Called after saving. The newest complete checkpoint is never removed. An incomplete one is not removed either: its
/// save may be in progress, or a newer version may be able to load it.
pub fn to_prune(entries: &[CheckpointEntry], keep_last: u64, keep_every: u64) -> Vec<u64> {
    if keep_last == 0 {
        return Vec::new();
    }
    let mut complete: Vec<&CheckpointSummary> = entries.iter().filter_map(CheckpointEntry::complete).collect();
    complete.sort_by_key(|c| age(c));
    let remove = complete.len().saturating_sub(usize::try_from(keep_last).unwrap_or(usize::MAX));
    let for_good = |step: u64| keep_every > 0 && step.is_multiple_of(keep_every);
    complete[..remove].iter().filter(|c| !c.is_pinned && !for_good(c.step)).map(|c| c.step).collect()
}

/// Returns the sort key of checkpoints: the attempt, then the step.
fn age(checkpoint: &CheckpointSummary) -> (u32, u64) {
    (checkpoint.attempt, checkpoint.step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{latest, save, temp, write_attempt};
    use proptest::prelude::*;

    fn latest_strict(run: &RunDir) -> Result<Option<CheckpointSummary>, Error> {
        latest_strict_among(run, &step_checkpoints(run)?)
    }

    fn steps(entries: &[CheckpointEntry]) -> Vec<(u64, bool)> {
        entries.iter().map(|e| (e.step(), e.complete().is_some())).collect()
    }

    #[test]
    fn a_run_without_checkpoints_has_none() {
        let (_keep, run) = temp();
        assert!(step_checkpoints(&run).unwrap().is_empty());
        assert_eq!(latest(&run), None);
    }

    #[test]
    fn checkpoints_are_listed_by_step_and_incomplete_ones_are_marked() {
        let (_keep, run) = temp();
        for step in [9, 100, 20] {
            save(&run, step, 1);
        }
        fs::remove_file(run.step_dir(100).join("manifest.toml")).unwrap();
        fs::create_dir(run.checkpoints().join("notes")).unwrap();
        fs::write(run.step_dir(7), "a file in place of a folder").unwrap();
        let entries = step_checkpoints(&run).unwrap();
        assert_eq!(steps(&entries), [(7, false), (9, true), (20, true), (100, false)]);
        assert!(entries[3].summary().unwrap_err().1.contains("manifest.toml"));
        assert_eq!(latest(&run).unwrap().step, 20);
    }

    #[test]
    fn an_older_checkpoint_is_not_used_while_a_newer_one_cannot_be_read() {
        let (_keep, run) = temp();
        for step in [10, 20, 30] {
            save(&run, step, 1);
        }
        // Even root cannot read through a link to itself.
        let no_answer = |step: u64, name: &str| {
            let path = run.step_dir(step).join(name);
            let _ = fs::remove_file(&path);
            std::os::unix::fs::symlink(&path, &path).unwrap();
        };
        no_answer(10, "manifest.toml");
        assert_eq!(latest_strict(&run).unwrap().unwrap().step, 30, "an older one does not matter");
        assert_eq!(latest_before(&run, 30).unwrap().unwrap().step, 20);
        assert!(matches!(latest_before(&run, 20), Err(Error::Unreadable { .. })), "an older one is not used either");
        for name in ["state.toml", "manifest.toml", "damaged"] {
            no_answer(30, name);
            let entries = step_checkpoints(&run).unwrap();
            let CheckpointEntry::Unreadable { step: 30, why, .. } = &entries[2] else { panic!("{name}: {entries:?}") };
            assert!(why.starts_with(&format!("{name}: ")), "{why}");
            let error = latest_strict(&run).unwrap_err();
            assert!(matches!(&error, Error::Unreadable { dir, .. } if *dir == run.step_dir(30)), "{error}");
            assert_eq!(latest(&run).unwrap().step, 20, "for display");
            fs::remove_dir_all(run.step_dir(30)).unwrap();
            save(&run, 30, 1);
        }
    }

    #[test]
    fn a_checkpoint_of_a_newer_format_is_incomplete_and_never_removed() {
        let (_keep, run) = temp();
        save(&run, 40, 1);
        let path = run.step_dir(40).join("manifest.toml");
        fs::write(&path, "format = 3\n").unwrap();
        let entries = step_checkpoints(&run).unwrap();
        assert!(matches!(&entries[0], CheckpointEntry::Incomplete { step: 40, .. }), "{entries:?}");
        assert!(to_prune(&entries, 1, 0).is_empty());
    }

    #[test]
    fn after_going_back_later_steps_of_earlier_attempts_are_skipped() {
        let (_keep, run) = temp();
        for step in [10, 20, 30] {
            save(&run, step, 1);
        }
        write_attempt(&run, 1, 0);
        assert_eq!(latest(&run).unwrap().step, 30);
        write_attempt(&run, 2, 10);
        assert_eq!(latest(&run).unwrap().step, 10);
        save(&run, 20, 2);
        assert_eq!(latest(&run).unwrap(), *step_checkpoints(&run).unwrap()[1].complete().unwrap());
        // If all are skipped, the newest of them counts.
        write_attempt(&run, 3, 0);
        assert_eq!(latest(&run).unwrap().step, 20);
    }

    #[test]
    fn a_damaged_checkpoint_is_replaced_by_an_earlier_step_of_the_same_history() {
        let (_keep, run) = temp();
        for step in [10, 20, 40] {
            save(&run, step, 1);
        }
        save(&run, 30, 2);
        write_attempt(&run, 2, 20);
        write_attempt(&run, 3, 30);
        assert_eq!(latest(&run).unwrap().step, 30);
        let before = |damaged| latest_before(&run, damaged).unwrap().map(|c| c.step);
        // Step 40 is not part of the history: attempt 2 went back to step 20.
        assert_eq!((before(30), before(20), before(10)), (Some(20), Some(10), None));
    }

    #[test]
    fn the_newest_few_are_kept_and_incomplete_ones_are_never_removed() {
        let (_keep, run) = temp();
        for step in [10, 20, 30, 40] {
            save(&run, step, 1);
        }
        fs::remove_file(run.step_dir(20).join("state.toml")).unwrap();
        let entries = step_checkpoints(&run).unwrap();
        assert!(to_prune(&entries, 0, 0).is_empty());
        assert_eq!(to_prune(&entries, 1, 0), [10, 30]);
        assert_eq!(to_prune(&entries, 2, 0), [10]);
        assert!(to_prune(&entries, 9, 0).is_empty());
        assert!(to_prune(&[], 1, 0).is_empty());
    }

    #[test]
    fn checkpoints_at_multiples_of_keep_every_are_kept() {
        let (_keep, run) = temp();
        for step in [10, 20, 30, 40, 50] {
            save(&run, step, 1);
        }
        let entries = step_checkpoints(&run).unwrap();
        assert_eq!(to_prune(&entries, 1, 20), [10, 30]);
        assert_eq!(to_prune(&entries, 2, 30), [10, 20]);
        assert!(to_prune(&entries, 0, 20).is_empty());
    }

    #[test]
    fn after_going_back_checkpoints_of_earlier_attempts_are_removed_first() {
        let (_keep, run) = temp();
        for step in [10, 30, 40] {
            save(&run, step, 1);
        }
        save(&run, 20, 2);
        assert_eq!(to_prune(&step_checkpoints(&run).unwrap(), 1, 0), [10, 30, 40]);
    }

    /// Damage to a step directory.
    #[derive(Debug, Clone)]
    enum Harm {
        None,
        Remove(usize),
        Truncate(usize, u64),
        Garble(Vec<u8>),
    }

    fn harm() -> impl Strategy<Value = Harm> {
        prop_oneof![
            2 => Just(Harm::None),
            2 => (0usize..4).prop_map(Harm::Remove),
            3 => (0usize..4, 0u64..1200).prop_map(|(file, len)| Harm::Truncate(file, len)),
            1 => any::<Vec<u8>>().prop_map(Harm::Garble),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn an_incomplete_checkpoint_is_never_picked(harms in prop::collection::vec(harm(), 1..5), keep_last in 1u64..4) {
            let (_keep, run) = temp();
            let mut whole = Vec::new();
            for (step, harm) in (1..).zip(harms) {
                save(&run, step, 1);
                let names = ["rank-00000.safetensors", "rank-00001.safetensors", "state.toml", "manifest.toml"];
                let path = |file: usize| run.step_dir(step).join(names[file]);
                let before: Vec<_> = (0..4).map(|file| fs::read(path(file)).unwrap()).collect();
                match harm {
                    Harm::None => {}
                    Harm::Remove(file) => fs::remove_file(path(file)).unwrap(),
                    Harm::Truncate(file, len) => {
                        let file = fs::OpenOptions::new().write(true).open(path(file)).unwrap();
                        file.set_len(len.min(file.metadata().unwrap().len())).unwrap();
                    }
                    Harm::Garble(bytes) => fs::write(path(3), bytes).unwrap(),
                }
                if (0..4).all(|file| fs::read(path(file)).is_ok_and(|now| now == before[file])) {
                    whole.push(step);
                }
            }
            let entries = step_checkpoints(&run).unwrap();
            let complete: Vec<u64> = entries.iter().filter_map(|e| e.complete().map(|c| c.step)).collect();
            prop_assert_eq!(&complete, &whole);
            prop_assert_eq!(latest(&run).map(|c| c.step), whole.last().copied());
            let pruned = to_prune(&entries, keep_last, 0);
            prop_assert!(pruned.iter().all(|step| whole.contains(step) && whole.last() != Some(step)));
            prop_assert_eq!(whole.len() - pruned.len(), whole.len().min(keep_last as usize));
        }
    }
}
