//! Reads the logs and checkpoints of other trainers.
//!
//! Each trainer is described in a file of its own: the phrases of its log, its progress bar, the names of its checkpoints and the files
//! in them. [`LogReader`] reads a log without touching files or clocks. [`checkpoints`], [`latest`], [`latest_strict`] and
//! [`checkpoint_folders`] work for runs of any trainer; for the embedded trainer they call `rundir`.

mod accelerate;
mod adapter_reader;
mod auto;
mod bar;
mod checkpoints;
mod contents;
mod fields;
mod finetrainers;
mod formats;
mod found;
mod lines;
mod log_event;
mod measured;
mod open_sora;
mod pace;
mod parallel;
mod presets;
mod reader;
mod report;
mod steps_total;
mod table;
mod ttt_video_dit;

pub use checkpoints::{checkpoint_folders, checkpoints, latest, latest_strict, written_over_s};
pub use lines::clean;
pub use log_event::{LogEvent, ReaderOptions};
pub use reader::LogReader;
pub use report::{LineYield, LogReport, NamedValues, report};
pub use steps_total::steps_total;
