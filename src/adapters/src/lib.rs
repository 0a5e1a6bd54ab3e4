//! What vidtui knows of other programs' trainers: what their log lines mean, and which folders are their checkpoints.
//!
//! Each system has one file, which holds a [`System`](system::System): the phrases of its log, its progress bar, the names of its
//! checkpoints and the files in them. [`LogReader`] reads a log with it and never reads a file or a clock. [`checkpoints`] and its
//! siblings list the checkpoints of a run, whichever program wrote them: for the embedded trainer they call `rundir`.

mod accelerate;
mod bar;
mod checkpoints;
mod contents;
mod finetrainers;
mod lines;
mod open_sora;
mod reader;
mod system;
mod ttt_video_dit;

pub use checkpoints::{checkpoint_folders, checkpoints, latest, latest_for_sure, written_over_s};
pub use lines::clean;
pub use reader::{LogEvent, LogReader};
