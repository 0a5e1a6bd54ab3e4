//! The run directory: the contract between console and trainer.
//!
//! A run is a directory that the trainer appends to and the console reads, possibly from another machine and while it grows. Four rules
//! hold for every file in it:
//!
//! 1. **One writer per file.** Rank 0 writes the files of the run. The supervisor and the ranks of a node write those
//!    under `nodes/<node>/`.
//! 2. **Whole lines, one write each.** Readers read only up to the last newline and remember a byte offset.
//! 3. **Completion is a rename.** A checkpoint is complete when its manifest exists, and the manifest is written last.
//! 4. **Lines are never edited.** A correction is a later line or a later attempt. If two lines disagree, the later one
//!    wins.
//!
//! The crate `runstate` derives the state of a run from these files; the state is never stored. Unknown fields and
//! events of a newer version are ignored. A newer *schema* is refused, because the same name may mean something else
//! there.

mod alert;
mod append;
mod attempt;
mod checkpoint;
mod command;
mod diagnostics;
mod environment;
mod error;
mod events;
mod files;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
mod gpu_usage;
mod healer;
mod heartbeat;
mod history;
mod id;
mod items;
mod layout;
mod lines;
mod listing;
mod lock;
mod metric_table;
mod metrics;
mod node_sample;
mod node_series;
mod note;
mod peer_token;
mod process;
mod queue;
mod removal;
mod request_source;
mod run;
mod sample;
mod series_names;
mod staging;
mod stop;
mod summed_file;
mod tail;
mod tensor_box;
mod trash;
mod trust;
mod unwritten;
mod whole_folder;

pub use alert::{Alert, AlertKind, AlertLine, AlertReader, AlertState, AlertWriter, Mute, NotSent};
pub use append::LineAppender;
pub use attempt::{Allocation, Attempt, AttemptWhy, ChangedKey, Login, SlurmJob, SpareNode, Submitted};
pub use checkpoint::{
    BaseWeights, CONVERTED, Checkpoint, CheckpointManifest, FileSum, LogicalTensor, Slice, TrainState, file_sum,
    model_config, model_section, xxh3_hex,
};
pub use command::{CommandPlace, command_folder, command_output, command_ranks, command_template, command_words};
pub use diagnostics::write_diagnostic;
pub use environment::{GpuModel, NodeEnvironment};
pub use error::Error;
pub use events::{Event, EventKind, read_events};
pub use failure::{
    Cause, ErrorCode, Failure, FileError, catch_panic, is_no_answer, is_panic_caught, read_text, room_for,
};
pub use files::{
    Versioned, is_exposed, is_file_name, read_toml, user_folder, without_links, write_atomic, write_private, write_toml,
};
pub use gpu_usage::GpuUsage;
pub use healer::{Healer, HealerLock};
pub use heartbeat::{FailedSave, GroupCollectives, HEARTBEAT_EVERY_S, Heartbeat, RankCollectives, WaitingCollective};
pub use history::{History, median_step_s};
pub use id::RunId;
pub use items::{EncodeStageCount, EncodeStages, ItemCounts, ItemsSample, QueueReady, RankProgress};
pub use layout::RunDir;
pub use lines::{BadLine, LogLine};
pub use listing::{
    CheckpointEntry, CheckpointSummary, latest_among, latest_before, latest_strict_among, step_checkpoints, to_prune,
    unreadable_after,
};
pub use lock::{LockHolder, lock_holder};
pub use metric_table::{Chart, ChartInfo, METRICS, Metric, MetricLine, MetricSource, Reduction, find_metric};
pub use metrics::{MetricSample, SamplingProgress, StepTimes};
pub use node_sample::{GpuColumns, NodeSample, SAMPLE_EVERY_S, last_usage};
pub use node_series::{NodePoint, NodeSeries, Spread};
pub use note::{read_note, tags, write_note};
pub use peer_token::PeerToken;
pub use process::{ExitFile, ExitReason, PidFile, RankExit, RankPid};
pub use queue::{Queue, QueueEntry, QueueState, QueueWorker, next_entry};
pub use removal::{pin_checkpoint, remove_checkpoint, unpin_checkpoint};
pub use request_source::RequestSource;
pub use run::{Attached, Imported, LaunchedFrom, Lineage, Run, StartFrom};
pub use sample::{BadVideo, SampleClaim, SampleFolder, SampleLora, SampleSidecar};
pub use series_names::{NAMED_SERIES, NamedSeries, find_series};
pub use staging::Staging;
pub use stop::Stop;
pub use summed_file::SummedFile;
pub use tail::{NewLines, Tail};
pub use tensor_box::{Overlap, TensorBox};
pub use text_file::{MAX_TEXT, open_regular, read_named, read_regular};
pub use trash::{DeletedRun, TRASH_DAYS, Trash};
pub use trust::{Mistrust, mistrust, user_name};
pub use unwritten::{Unwritten, unwritten};
pub use whole_folder::WholeFolder;

use std::time::{SystemTime, UNIX_EPOCH};

/// The version of every format of this crate: `schema` in TOML files, `format` in manifests, `v` in each line.
///
/// Adding an optional field does not raise the version. Renaming or removing a field or changing a unit raises it, and
/// needs a reader for the old format.
pub const SCHEMA: u32 = 1;

/// Returns the time of this machine's clock, in Unix seconds.
pub fn now_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
