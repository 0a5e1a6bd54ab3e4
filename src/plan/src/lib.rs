//! Plans launches, resumes, next stages and kills before anything runs.
//!
//! This crate makes a plan from data that other crates read, the user confirms it, and the crate `remote` executes it
//! unchanged. Planning is pure: no files, no processes, no clock. It rejects a request that cannot work, with the numbers
//! that show why, before anything starts.

mod context;
mod cost_rows;
mod delete_checkpoint;
mod delete_run;
mod disk;
#[cfg(test)]
mod fixtures;
mod heal;
mod job;
mod job_script;
mod kill;
mod kill_plan;
mod launch;
mod launch_plan;
mod next;
mod nodes_kill;
mod orphans;
mod quote;
mod resume;
mod script;

pub use context::{Context, EncodeFacts, Master, StartOptions, Target, TrainerBinary, Weights};
pub use cost_rows::cost_rows;
pub use delete_checkpoint::{CheckpointDelete, CheckpointUse, DeleteRequest, UseOf, delete_checkpoint};
pub use delete_run::{DeleteRunRequest, RunDelete, delete_run};
pub use disk::{DiskNeed, check_disk};
pub use heal::{FailedAttempt, HealDecision, heal_decision, healed_too_often};
pub use job::{JobStart, JobStartRequest, job_start, requeue};
pub use kill::{JobKill, KillHow, NodeKill, RunKill, kill, node_kill};
pub use kill_plan::KillPlan;
pub use launch::{LaunchRequest, launch};
pub use launch_plan::{LaunchPlan, NodeLaunch};
pub use next::{NextRequest, check_weights, next, parent_of};
pub use nodes_kill::{NodesKill, ProcessKey, Spared, SparedProcess, kill_on_nodes};
pub use orphans::{
    Ancestry, DetectedRun, KillScope, ListedProcess, NodeOrphans, NodeProcesses, OrphanKill, detect_runs,
    kill_detected, matches_anything, select_orphans,
};
pub use quote::{command_line, quote};
pub use resume::{
    ResumeKind, ResumeOptions, ResumeRequest, ScheduleChoice, checkpoint_of_step, heal, last_ranks, longer_steps,
    resume,
};
pub use script::{script, supervise_command};
