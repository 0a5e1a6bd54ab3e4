//! The state of a run, derived from its directory and never stored.

mod job_end;
mod newest;
mod state;
mod summary;

pub use newest::{Newest, NewestCache, recent_metrics};
pub use state::{Liveness, Load, RunFacts, RunState, START_GRACE, derive};
pub use summary::{RunSummary, list_runs};
