//! Profiles steps of this rank on request.

use crate::exchange::device_failed;
use crate::phase;
use crate::rank::node;
use c10d::profile::{Recording, Scope};
use camino::Utf8PathBuf;
use cluster::NodeId;
use rundir::{Failure, RunDir};
use tch::Device;

/// A trace that is being recorded.
pub struct Profile {
    /// `None` after the last step.
    recording: Option<Recording>,
    step: Option<Scope>,
    path: Utf8PathBuf,
    /// Steps of the trace, and those that are still to be made.
    steps: u64,
    left: u64,
}

/// Reads a request for a profile and removes it. A request that is not a number is one for a single step.
pub fn requested(run: &RunDir) -> u64 {
    let file = run.profile_file();
    let Ok(text) = std::fs::read_to_string(&file) else { return 0 };
    let _ = std::fs::remove_file(&file);
    text.trim().parse().unwrap_or(1)
}

impl Profile {
    /// Begins to record `steps` steps, of which `first` is the first.
    ///
    /// # Errors
    /// The profiler cannot be started.
    pub fn begin(
        run: &RunDir,
        attempt: u32,
        rank: usize,
        device: Device,
        first: u64,
        steps: u64,
    ) -> Result<Self, Failure> {
        let node = node().unwrap_or_else(|| NodeId::from_hostname("local"));
        let path = run.trace(&node, attempt, rank, first);
        let recording = Recording::begin(device != Device::Cpu).map_err(device_failed)?;
        let mut profile = Profile { recording: Some(recording), step: None, path, steps, left: steps };
        profile.name(first)?;
        Ok(profile)
    }

    fn name(&mut self, step: u64) -> Result<(), Failure> {
        self.step = Some(Scope::begin(&format!("step {step}")).map_err(device_failed)?);
        Ok(())
    }

    /// Counts a step that is done. After the last one, writes the trace and returns its path and its number of steps.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn stepped(&mut self, done: u64) -> Result<Option<(Utf8PathBuf, u64)>, Failure> {
        phase::end_range();
        self.step = None;
        self.left = self.left.saturating_sub(1);
        if self.left > 0 {
            self.name(done + 1)?;
            return Ok(None);
        }
        let Some(recording) = self.recording.take() else { return Ok(None) };
        // Readers never see half a trace.
        let writing = self.path.with_extension("part");
        recording.end(writing.as_std_path()).map_err(device_failed)?;
        std::fs::rename(&writing, &self.path).map_err(|error| {
            let what = format!("cannot write {}", self.path);
            Failure::new(rundir::ErrorCode::of_io(&error), what, error.to_string(), "check the disk of the run")
        })?;
        Ok(Some((self.path.clone(), self.steps)))
    }
}
