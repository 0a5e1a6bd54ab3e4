//! Profiles steps of this rank on request.

use crate::phase;
use crate::rank::node;
use crate::torch_failure::failed;
use c10d::profile::{Recording, Scope};
use camino::Utf8PathBuf;
use cluster::NodeId;
use rundir::{Failure, RunDir};
use std::ops::RangeInclusive;
use std::time::Duration;
use tch::Device;

/// A trace that is being recorded.
pub struct Profile {
    /// The range of the current step. It ends before that of the next step begins, and before the recording.
    step: Option<Scope>,
    recording: Recording,
    path: Utf8PathBuf,
    steps: RangeInclusive<u64>,
}

/// The age at which an empty request file is complete. A shell creates a file before it writes the number.
const COMPLETE: Duration = Duration::from_secs(1);

/// Returns the number of steps that a request file asks to profile, and removes the file; 0 without a request. If the file holds no
/// number, the request is for one step.
pub fn requested(run: &RunDir) -> u64 {
    let file = run.profile_file();
    let Ok(text) = std::fs::read_to_string(&file) else { return 0 };
    let age = std::fs::metadata(&file).and_then(|meta| meta.modified()).ok().and_then(|time| time.elapsed().ok());
    let steps = steps(&text, age);
    if steps > 0 {
        let _ = std::fs::remove_file(&file);
    }
    steps
}

/// Returns the number of steps of a request whose file has this text and this age, if the age is known.
fn steps(text: &str, age: Option<Duration>) -> u64 {
    let may_grow = text.is_empty() && age.is_some_and(|age| age < COMPLETE);
    if may_grow { 0 } else { text.trim().parse().unwrap_or(1).max(1) }
}

impl Profile {
    /// Begins to record `steps`. The next step must be the first of them.
    ///
    /// # Errors
    /// The profiler cannot be started.
    pub fn begin(
        run: &RunDir,
        attempt: u32,
        rank: usize,
        device: Device,
        steps: RangeInclusive<u64>,
    ) -> Result<Self, Failure> {
        let node = node().unwrap_or_else(|| NodeId::from_hostname("local"));
        let path = run.trace(&node, attempt, rank, *steps.start());
        let recording = Recording::begin(device != Device::Cpu).map_err(failed)?;
        Ok(Profile { step: Some(range(*steps.start())?), recording, path, steps })
    }

    /// Ends the range of the step that is done, and begins that of the next one. Returns false if that step was the last one.
    ///
    /// # Errors
    /// The profiler fails.
    pub fn next_step(&mut self, done: u64) -> Result<bool, Failure> {
        let is_last = done >= *self.steps.end();
        if !is_last {
            phase::end_range();
            self.step = None;
            self.step = Some(range(done + 1)?);
        }
        Ok(!is_last)
    }

    /// Writes the trace, after the step `done`. Returns its path and its number of steps.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn end(self, done: u64) -> Result<(Utf8PathBuf, u64), Failure> {
        let Profile { step, recording, path, steps } = self;
        phase::end_range();
        drop(step);
        // Rename the complete file, so that readers never see half a trace.
        let writing = path.with_extension("part");
        recording.end(writing.as_std_path()).map_err(failed)?;
        std::fs::rename(&writing, &path).map_err(|error| {
            let what = format!("cannot write {path}");
            Failure::new(rundir::ErrorCode::of_io(&error), what, error.to_string(), "check the disk of the run")
        })?;
        Ok((path, done + 1 - steps.start()))
    }
}

/// Begins the range of a step.
fn range(step: u64) -> Result<Scope, Failure> {
    Scope::begin(&format!("step {step}")).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_request_is_for_one_step_if_no_number_follows() {
        let age = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!((steps("", age(0)), steps("", age(1)), steps("", None)), (0, 1, 1));
        assert_eq!((steps("20\n", age(0)), steps("x", age(0)), steps("0", age(0))), (20, 1, 1));
    }

    #[test]
    fn a_request_is_read_once() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDir::new(Utf8PathBuf::from_path_buf(folder.path().to_owned()).unwrap());
        assert_eq!(requested(&run), 0);
        std::fs::write(run.profile_file(), "20\n").unwrap();
        assert_eq!((requested(&run), requested(&run)), (20, 0));
    }
}
