//! Reads the logs and checkpoints of other trainers.
//!
//! Each system is described in a file of its own: the phrases of its log, its progress bar, the names of its checkpoints and the files
//! in them. [`LogReader`] reads a log without touching files or clocks. [`checkpoints`], [`latest`], [`latest_for_sure`] and
//! [`checkpoint_folders`] work for runs of any trainer; for the embedded trainer they call `rundir`.

mod accelerate;
mod bar;
mod checkpoints;
mod contents;
mod finetrainers;
mod lines;
mod open_sora;
mod reader;
mod system;
mod systems;
mod ttt_video_dit;

pub use checkpoints::{checkpoint_folders, checkpoints, latest, latest_for_sure, written_over_s};
pub use lines::clean;
pub use reader::{LogEvent, LogReader};
