//! The disk space that the checkpoints of an attempt need.

use camino::Utf8Path;
use recipe::Recipe;
use rundir::{ErrorCode, Failure};

use units::{counted, size};

/// The minimum free space for a run of a command, also if the size of its checkpoints is unknown. It is enough for logs, for node
/// samples (8 MB per node and day), and for the smallest checkpoint of such programs: an adapter of about 100 MB with its optimizer.
const MIN_BYTES: u64 = 1 << 30;

/// The additional disk space that the checkpoints of an attempt need; zero if it is unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DiskNeed {
    /// Size of one checkpoint in bytes.
    pub checkpoint_bytes: u64,
    /// The maximum number of checkpoints on disk at once, in addition to those on disk now.
    pub count: u64,
    /// Whether this is the need of a data set instead of checkpoints. `checkpoint_bytes` is then the size of the data set.
    #[serde(default)]
    pub is_data_set: bool,
}

impl DiskNeed {
    /// Computes the need for the steps of a run after `done`, with `saved` checkpoints on disk. The newest one has `newest_bytes` bytes.
    pub(crate) fn new(recipe: &Recipe, done: u64, saved: u64, newest_bytes: Option<u64>) -> Self {
        if recipe.job() == recipe::JobKind::Command {
            // The next checkpoint is as large as the newest and is written before an old one is removed. It is unknown how
            // many checkpoints the command keeps.
            let next = newest_bytes.filter(|bytes| *bytes > MIN_BYTES);
            return next.map_or(Self::default(), |checkpoint_bytes| Self {
                checkpoint_bytes,
                count: 1,
                is_data_set: false,
            });
        }
        let policy = &recipe.checkpoint;
        // At least the last step is saved.
        let total = recipe.train.length.steps().unwrap_or(done);
        let steps = total.saturating_sub(done);
        let written = if policy.interval == 0 { 1 } else { steps.div_ceil(policy.interval).max(1) };
        // A new checkpoint is completed before the oldest is removed, so there must be room for `keep_last` + 1.
        let room = if policy.keep_last == 0 { written } else { (policy.keep_last + 1).saturating_sub(saved).max(1) };
        Self {
            checkpoint_bytes: recipe.cost().checkpoint_bytes,
            count: written.min(room + kept_for_good(recipe, done, total)),
            is_data_set: false,
        }
    }

    /// Returns the need of a data set.
    pub(crate) fn of_data_set(bytes: u64) -> Self {
        Self { checkpoint_bytes: bytes, count: 1, is_data_set: true }
    }

    /// Returns the size of these checkpoints in bytes.
    pub fn bytes(&self) -> u64 {
        self.checkpoint_bytes.saturating_mul(self.count)
    }
}

/// Returns the number of checkpoints that are never removed: those at multiples of the interval and of `keep_every`.
fn kept_for_good(recipe: &Recipe, done: u64, total: u64) -> u64 {
    let policy = &recipe.checkpoint;
    if policy.interval == 0 || policy.keep_every == 0 || policy.keep_last == 0 {
        return 0;
    }
    let mut gcd = (policy.interval, policy.keep_every);
    while gcd.1 > 0 {
        gcd = (gcd.1, gcd.0 % gcd.1);
    }
    let Some(both) = (policy.interval / gcd.0).checked_mul(policy.keep_every) else { return 0 };
    total / both - done.min(total) / both
}

/// Checks that the disk of the folder `at` has room for the checkpoints. `setting` is the option that chooses the folder.
///
/// # Errors
/// `DiskFull` if the disk has too little free space. The error names the needed and the free space.
pub fn check_disk(what: &str, need: &DiskNeed, free_bytes: u64, at: &Utf8Path, setting: &str) -> Result<(), Failure> {
    let needed = if need.count == 0 { MIN_BYTES } else { need.bytes() };
    if needed <= free_bytes {
        return Ok(());
    }
    let (one, free) = (size(need.checkpoint_bytes), size(free_bytes));
    let missing = size(needed - free_bytes);
    let why = if need.is_data_set {
        format!("the data set needs up to {one} while it is made, and {at} has {free} free")
    } else if need.count == 0 {
        format!("logs and checkpoints of the command need at least {}, and {at} has {free} free", size(needed))
    } else if need.count == 1 {
        format!("the checkpoint needs {one}, and {at} has {free} free")
    } else {
        let count = counted(usize::try_from(need.count).unwrap_or(usize::MAX), "checkpoint");
        format!("{count} of {one} need {}, and {at} has {free} free", size(need.bytes()))
    };
    let fewer = if need.count > 2 { ", keep fewer (--set checkpoint.keep_last=1)" } else { "" };
    Err(Failure::new(
        ErrorCode::DiskFull,
        what,
        why,
        format!("free {missing} there{fewer}, or choose another disk with {setting}"),
    ))
}

#[cfg(test)]
mod tests {
    use recipe::Length;

    use super::*;
    use crate::fixtures;

    fn need(interval: u64, keep_last: u64, steps: u64, saved: u64) -> u64 {
        let mut recipe = fixtures::recipe();
        recipe.checkpoint.interval = interval;
        recipe.checkpoint.keep_last = keep_last;
        recipe.train.length = Length::Steps(steps);
        DiskNeed::new(&recipe, 0, saved, None).count
    }

    #[test]
    fn the_need_is_the_maximum_number_of_checkpoints_on_disk_at_once() {
        assert_eq!(need(0, 0, 60, 0), 1, "only at the end");
        assert_eq!(need(20, 0, 60, 0), 3, "all are kept");
        assert_eq!(need(25, 0, 60, 0), 3, "the last one is not a multiple");
        assert_eq!(need(20, 2, 600, 0), 3, "two, and a third before the oldest is removed");
        assert_eq!(need(20, 2, 600, 2), 1, "two are there already");
        assert_eq!(need(20, 2, 20, 0), 1, "one more is written");
        assert_eq!(need(20, 2, 600, 9), 1, "there are more than are kept");
    }

    #[test]
    fn the_need_includes_checkpoints_that_are_never_removed() {
        let mut recipe = fixtures::recipe();
        (recipe.checkpoint.interval, recipe.checkpoint.keep_last) = (20, 1);
        recipe.train.length = Length::Steps(600);
        let need = |recipe: &Recipe, done| DiskNeed::new(recipe, done, 0, None).count;
        assert_eq!(need(&recipe, 0), 2);
        recipe.checkpoint.keep_every = 200;
        assert_eq!(need(&recipe, 0), 2 + 3);
        assert_eq!(need(&recipe, 300), 2 + 2, "steps 400 and 600");
        recipe.checkpoint.keep_every = 30;
        assert_eq!(need(&recipe, 0), 2 + 10, "only multiples of 60 are saved and kept");
        recipe.checkpoint.keep_every = 20;
        assert_eq!(need(&recipe, 0), 30, "every one that is written");
    }

    #[test]
    fn a_disk_too_small_is_refused_with_the_arithmetic() {
        let at = Utf8Path::new("/runs");
        let one = DiskNeed { checkpoint_bytes: 1_288_490_189, count: 1, is_data_set: false };
        let three = DiskNeed { count: 3, ..one };
        assert_eq!(check_disk("cannot launch demo", &one, one.bytes(), at, "--runs"), Ok(()));
        let refusals = [&one, &three]
            .map(|need| check_disk("cannot launch demo", need, 300 << 20, at, "--runs").unwrap_err().to_string());
        insta::assert_snapshot!(refusals.join("\n\n"));
    }

    #[test]
    fn a_command_needs_room_for_one_more_checkpoint_and_a_minimum() {
        let recipe = Recipe { trainer: recipe::TrainerKind::Command, ..fixtures::recipe() };
        let (at, setting) = (Utf8Path::new("/out"), "command.output");
        let refusal = |newest_bytes, free_bytes| {
            let need = DiskNeed::new(&recipe, 20, 1, newest_bytes);
            check_disk("cannot resume demo", &need, free_bytes, at, setting).err().map(|failure| failure.code)
        };
        assert_eq!(refusal(None, 300 << 20), Some(ErrorCode::DiskFull));
        assert_eq!(
            refusal(Some(1000), 300 << 20),
            Some(ErrorCode::DiskFull),
            "the minimum applies to small checkpoints"
        );
        assert_eq!(refusal(None, 2 << 30), None);
        assert_eq!(refusal(Some(30 << 30), 2 << 30), Some(ErrorCode::DiskFull));
        assert_eq!(refusal(Some(30 << 30), 40 << 30), None);
    }
}
