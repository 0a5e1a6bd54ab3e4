//! The stop file: a stop request for a run that signals cannot reach.

use crate::{Error, RunDir, write_atomic};
use text_file::{MAX_TEXT, read_regular};

/// The content of the file if the stop is permanent.
const FOR_GOOD: &str = "for good";

/// The duration for which a stop request by file is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Until the Slurm job of the run is requeued. The job script requests this stop shortly before the time limit.
    ForNow,
    /// Until a user resumes the run.
    ForGood,
}

impl RunDir {
    /// Returns the stop request for the newest attempt, if any. The next attempt removes the file.
    pub fn stop_request(&self) -> Option<Stop> {
        let file = self.stop_file();
        match read_regular(&file, MAX_TEXT) {
            Ok(bytes) if bytes == FOR_GOOD.as_bytes() => Some(Stop::ForGood),
            // The file is empty, as `touch` creates it, or not readable, because another user created it.
            _ => file.exists().then_some(Stop::ForNow),
        }
    }

    /// Requests that the newest attempt stops permanently ([`Stop::ForGood`]).
    ///
    /// # Errors
    /// As [`write_atomic`].
    pub fn request_stop(&self) -> Result<(), Error> {
        write_atomic(&self.stop_file(), FOR_GOOD.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::temp;
    use std::fs;

    #[test]
    fn the_stop_request_of_a_user_is_permanent_even_if_a_job_script_requests_another() {
        let (_keep, run) = temp();
        let touch = || fs::OpenOptions::new().create(true).append(true).open(run.stop_file()).map(drop).unwrap();
        assert_eq!(run.stop_request(), None);
        touch();
        assert_eq!(run.stop_request(), Some(Stop::ForNow));
        run.request_stop().unwrap();
        assert_eq!(run.stop_request(), Some(Stop::ForGood));
        touch();
        assert_eq!(run.stop_request(), Some(Stop::ForGood));
        fs::remove_file(run.stop_file()).unwrap();
        fs::create_dir(run.stop_file()).unwrap();
        assert_eq!(run.stop_request(), Some(Stop::ForNow), "anything with this name is a request");
    }
}
