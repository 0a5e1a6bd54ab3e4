//! The tools whose logs can be read.

use crate::{Log, tensorboard, wandb};
use camino::Utf8PathBuf;
use rundir::Error;

/// A tool whose logs can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// TensorBoard, with event files in one folder.
    TensorBoard,
    /// W&B, with one file for each start of the run.
    Wandb,
}

impl Tool {
    /// Returns the name of the tool.
    pub fn name(self) -> &'static str {
        match self {
            Self::TensorBoard => "TensorBoard",
            Self::Wandb => "W&B",
        }
    }

    /// Reads the files of one run, the oldest first.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn read(self, files: &[Utf8PathBuf]) -> Result<Log, Error> {
        match self {
            Self::TensorBoard => tensorboard::read_files(files),
            Self::Wandb => wandb::read_files(files),
        }
    }
}
