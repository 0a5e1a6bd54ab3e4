//! Operations on nodes: starts runs, finds their processes and signals them.
//!
//! The crate `plan` creates a plan and the user confirms it; this crate executes exactly that plan. Every access to a node
//! goes through a [`Transport`]: [`Local`] for this machine, [`Ssh`] for others. A process is signalled only if its boot id,
//! start time, process group and environment all match the run.

mod attempt_files;
mod backoff;
mod checks;
mod child;
mod command;
mod connections;
mod error;
mod facts;
mod frame;
mod gpu_memory;
mod job_start;
mod kill;
mod launch;
mod load;
mod local;
mod ownership;
mod parallel;
mod proc;
mod processes;
mod push;
mod script;
mod slurm;
mod ssh;
mod stacks;
mod threads;
mod trainer;
mod transport;
mod watch;
mod weights;

pub use checks::{Check, CheckId, CheckStatus, LaunchInputs, check_launch, merge_passed, run_checks};
pub use command::{Command, Output, Status};
pub use connections::Connections;
pub use error::{ConnectStep, ConnectionError, RemoteError};
pub use facts::{liveness, pid_files, read_facts};
pub use gpu_memory::GpuMemory;
pub use job_start::{begin_first_attempt, begin_next_attempt, check_job_nodes, record_failed_checks};
pub use kill::{KillProgress, KillReport, NodeReport, Patience, SentSignal, execute_kill, retry_unreachable};
pub use launch::execute_launch;
pub use local::{Local, ThisNode, local_transports, this_node};
pub use proc::state_in_words;
pub use processes::{list_processes, own_ancestry};
pub use slurm::{SlurmQueue, job_details};
pub use ssh::{OnStreamEvent, Ssh, SshOptions, Stream, StreamEvent};
pub use stacks::{NodeStacks, collect_stacks};
pub use threads::{run_blocking_work_with, spawn};
pub use trainer::{TrainerFinder, own_program, trainer_path};
pub use transport::{
    Process, ProcessRole, Recipient, RunProcesses, ScriptExit, Shell, Signal, StartedScript, Transport,
};
pub use watch::{NodeUpdate, NodeWatch, OnUpdate};
pub use weights::find_weights;
