//! Refuses to join an encode that lost too many clips, so that it leaves no data set that a training run would take for whole.

use super::failures::old_failures;
use super::index::cannot_write;
use super::names::WORK;
use super::queue::Queue;
use crate::lost::{LostClips, LostIn};
use camino::{Utf8Path, Utf8PathBuf};
use rundir::Failure;
use std::collections::HashMap;
use std::fs;

/// The file that marks a generation as refused.
const REFUSED: &str = "refused";

/// Returns the file that marks a generation as refused. An encode with the same plan then begins another generation, which keeps what is
/// stored and retries what failed.
pub(super) fn refused_file(work: &Utf8Path, generation: u32) -> Utf8PathBuf {
    work.join(generation.to_string()).join(REFUSED)
}

impl Queue {
    /// Refuses the results if all work is done and too few clips are left. Call it before [`Queue::finish`].
    ///
    /// * `excluded` — clips that the manifest excludes.
    /// * `most` — the share of the clips that may be lost, from 0 to 1, excluded ones included.
    ///
    /// # Errors
    /// [`rundir::ErrorCode::TooManyDropped`] with the first failure; or the folder cannot be read.
    pub fn refuse_if_lost(&self, excluded: usize, most: f64) -> Result<(), Failure> {
        if self.is_over()? || self.find_done()?.len() < self.ranges.len() {
            return Ok(());
        }
        let result = self.check_lost(excluded, most);
        // Another worker may have joined the parts meanwhile, and removed the files that this one was reading.
        if result.is_err() && self.is_over()? { Ok(()) } else { result }
    }

    fn check_lost(&self, excluded: usize, most: f64) -> Result<(), Failure> {
        let mut failures: HashMap<String, Failure> =
            old_failures(&self.data)?.into_iter().map(|(item, failure)| (item.key, failure)).collect();
        let entries = self.done_entries()?.into_values();
        failures.extend(entries.filter_map(|entry| Some((entry.key, entry.failure?))));
        if failures.is_empty() {
            return Ok(());
        }
        let (clips, spec) = (self.clips()?, self.spec());
        let failed = clips.iter().filter_map(|clip| {
            let texts = clip.captions.iter().map(|caption| spec.text_key(caption));
            let failure = std::iter::once(clip.latent_key(spec)).chain(texts).find_map(|key| failures.get(&key))?;
            Some((clip.id.as_str(), failure))
        });
        let lost = LostClips { all: excluded + clips.len(), excluded, failed: failed.collect() };
        lost.refuse(LostIn::ThisEncode, most).inspect_err(|_| {
            let mark = refused_file(&self.data.join(WORK), self.head.generation);
            if let Err(error) = fs::write(&mark, b"") {
                rundir::log!("{}", cannot_write(&mark, &error));
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{FakeClock, encode, finish, holder, manifest, spec, temp, timing, work};
    use super::super::{Claim, Clock, INDEX, ItemKind, Quarantined, QueueFinish, plan_encode};
    use super::*;
    use rundir::ErrorCode;
    use std::sync::Arc;

    /// Encodes the clips 1 to 4, of which the first `failing` fail; returns the failure that refuses the result.
    fn with_failures(data: &Utf8Path, failing: usize, most: f64) -> Option<Failure> {
        let clock = Arc::new(FakeClock::default());
        let plan = plan_encode(data, &manifest(&[1, 2, 3, 4]), &spec(), Quarantined::Skip).unwrap();
        let queue = Queue::create(data, &plan, &holder("a"), timing(&clock)).unwrap();
        let mut left = failing;
        while let Claim::Range(mut range) = queue.claim(ItemKind::Latent).unwrap() {
            let items = range.items().to_vec();
            for item in items.iter().take(left) {
                let why = Failure::new(ErrorCode::NotFound, format!("cannot read {}", item.name), "it is missing", "");
                range.fail(item, why).unwrap();
            }
            if items.len() > left {
                break;
            }
            left -= items.len();
            range.finish().unwrap();
        }
        // The rest, also the rest of the range that was claimed.
        clock.sleep(std::time::Duration::from_secs(3600));
        assert!(queue.refuse_if_lost(0, most).is_ok(), "there is work left");
        work(&queue).unwrap();
        let refused = queue.refuse_if_lost(0, most).err();
        if refused.is_none() {
            assert!(matches!(finish(&queue).unwrap(), QueueFinish::Joined(_)));
            assert!(queue.refuse_if_lost(0, 0.0).is_ok(), "the results are joined");
        }
        refused
    }

    #[test]
    fn an_encode_that_loses_too_many_clips_leaves_no_data_set_and_the_next_one_retries_them() {
        for (failing, most) in [(1, 0.2), (4, 1.0)] {
            let (_keep, data) = temp();
            let refused = with_failures(&data, failing, most).unwrap();
            assert_eq!(refused.code, ErrorCode::TooManyDropped);
            assert!(refused.what.starts_with(&format!("{failing} of 4 clips")), "{refused}");
            assert!(refused.why.contains("clips/1.mp4") && refused.why.contains("it is missing"), "{refused}");
            assert!(!data.join(INDEX).exists());
            // The same encode, after the cause is corrected.
            let (plan, encoded) = encode(&data, &manifest(&[1, 2, 3, 4]), &spec());
            assert_eq!((plan.quarantined.len(), encoded), (0, failing));
            assert!(data.join(INDEX).exists() && !data.join(WORK).exists());
        }
        let (_keep, data) = temp();
        assert_eq!(with_failures(&data, 1, 0.25), None);
    }
}
