//! The stop file: a stop that is asked for where no signal reaches.

use std::fs;

use crate::{Error, RunDir, write_atomic};

/// What is in the file when the stop is for good.
const FOR_GOOD: &str = "for good";

/// For how long a run is asked to stop by file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Until its Slurm job begins again, if it is one: the job's own script asks, when its time is nearly over.
    ForNow,
    /// Until somebody resumes it.
    ForGood,
}

impl RunDir {
    /// Tells whether the newest attempt is asked to stop by file. Whoever makes the next attempt removes the file.
    pub fn stop_request(&self) -> Option<Stop> {
        let file = self.stop_file();
        match fs::read(&file) {
            Ok(bytes) if bytes == FOR_GOOD.as_bytes() => Some(Stop::ForGood),
            // Empty, as `touch` makes it. Somebody else's may not be readable.
            _ => file.exists().then_some(Stop::ForNow),
        }
    }

    /// Asks the newest attempt to stop for good.
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

    #[test]
    fn a_stop_that_a_person_asks_for_is_for_good_whatever_a_jobs_script_asks_before_or_after() {
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
        assert_eq!(run.stop_request(), Some(Stop::ForNow), "whatever it is, it is there");
    }
}
