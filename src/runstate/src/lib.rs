//! The state of a run, derived from its directory and never stored.

mod facts;
mod goodput;
mod job_end;
mod newest;
mod progress;
mod state;
mod summary;

pub use facts::{Liveness, Load, RunFacts, RunState, START_GRACE};
pub use goodput::{AttemptTimes, Down, EndCause, Goodput, GoodputReader, Loss, Record, StepLog, goodput};
pub use newest::{Newest, NewestCache, recent_metrics};
pub use progress::{EncodeStageProgress, Epochs, Progress, progress_of};
pub use state::derive;
pub use summary::{RunSummary, list_runs};
