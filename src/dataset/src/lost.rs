//! Refuses an encode that would lose too many clips.

use rundir::{ErrorCode, Failure};

/// The clips that an encode cannot store.
pub(crate) struct LostClips<'a> {
    /// Clips of the manifest, excluded ones included.
    pub all: usize,
    /// Clips that the manifest excludes.
    pub excluded: usize,
    /// The ids of the clips whose video or caption could not be encoded, with their failures.
    pub failed: Vec<(&'a str, &'a Failure)>,
}

/// The encode in which clips failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LostIn {
    /// This encode, which stores nothing if it is refused.
    ThisEncode,
    /// An earlier encode into the same folder, which this one does not repeat.
    EarlierEncode,
}

impl LostClips<'_> {
    /// Refuses an encode that leaves no clip, or loses a larger share than `most` (0 to 1).
    ///
    /// # Errors
    /// [`ErrorCode::TooManyDropped`] with the first failure.
    pub fn refuse(&self, lost_in: LostIn, most: f64) -> Result<(), Failure> {
        let Some((id, first)) = self.failed.first() else { return Ok(()) };
        let lost = self.excluded + self.failed.len();
        let share = lost as f64 / self.all as f64;
        if share <= most && lost < self.all {
            return Ok(());
        }
        let (failed, all) = (self.failed.len(), units::counted(self.all, "clip"));
        let (what, again) = match lost_in {
            LostIn::ThisEncode => (
                format!("{failed} of {all} could not be encoded"),
                "correct the cause, and start the encode again: it retries these clips",
            ),
            LostIn::EarlierEncode => (
                format!("{failed} of {all} could not be encoded by an earlier encode"),
                "correct the cause, and retry these clips: --retry-failed",
            ),
        };
        let excluded = match self.excluded {
            0 => String::new(),
            excluded => format!("; the manifest excludes {excluded} more"),
        };
        let percent = format!("{:.1}", most * 100.0);
        let (limit, accept) = match lost == self.all {
            true => ("no clip is left".to_owned(), String::new()),
            false => (
                format!("at most {} % may be dropped", percent.trim_end_matches(".0")),
                format!("; or accept the loss: --max-dropped {}%", (share * 100.0).ceil()),
            ),
        };
        let why = format!("{id}: {}: {}{excluded}; {limit}", first.what, first.why);
        Err(Failure::new(ErrorCode::TooManyDropped, what, why, format!("{again}{accept}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encode_without_a_clip_or_above_the_accepted_share_is_refused() {
        let failure = Failure::new(ErrorCode::NotFound, "cannot read a.mp4", "No such file or directory", "");
        let refused = |all, excluded, failed, most| {
            let failed = vec![("a.mp4", &failure); failed];
            LostClips { all, excluded, failed }.refuse(LostIn::ThisEncode, most).err()
        };
        assert_eq!(refused(20, 1, 0, 0.0), None, "the check of the manifest decides about excluded clips");
        assert_eq!(refused(20, 0, 1, 0.05), None);
        assert_eq!(refused(20, 1, 1, 0.05).map(|failure| failure.code), Some(ErrorCode::TooManyDropped));
        assert_eq!(refused(20, 1, 18, 1.0), None);
        let all = refused(20, 1, 19, 1.0).unwrap();
        assert!(all.why.contains("No such file") && !all.fix.contains("--max-dropped"), "{all}");
        let most = refused(40, 0, 3, 0.05).unwrap();
        assert!(most.why.contains("at most 5 %") && most.fix.contains("--max-dropped 8%"), "{most}");
    }
}
