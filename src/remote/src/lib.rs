//! Does things on machines: starts runs, looks at their processes, signals them.
//!
//! What is done was planned by `plan` and shown to a person; here it is executed word for word. Everything that touches
//! a machine goes through a [`Transport`]; [`Local`] is the one for this machine. No process is signalled unless boot
//! id, start time, group and environment all say that it belongs to the run.

mod at_once;
mod checks;
mod command;
mod error;
mod facts;
mod fleet;
mod gpu_memory;
mod job_turn;
mod kill;
mod launch;
mod load;
mod local;
mod ownership;
mod pipes;
mod proc;
mod processes;
mod push;
mod script;
mod slurm;
mod ssh;
mod stacks;
mod trainer;
mod transport;
mod watch;
mod weights;

pub use checks::{Check, checks};
pub use command::{Command, Output, Status};
pub use error::{Refused, RemoteError};
pub use facts::{liveness, pid_files, read_facts};
pub use fleet::Fleet;
pub use gpu_memory::GpuMemory;
pub use job_turn::{begin_first, begin_next, check_turn, give_up_turn};
pub use kill::{KillProgress, KillReport, NodeReport, Patience, execute_kill, go_on_killing, unverified_failure};
pub use launch::execute_launch;
pub use local::{Here, Local, here, local_transports};
pub use proc::state_in_words;
pub use processes::{kill_orphans, list_processes, own_ancestry};
pub use slurm::{SlurmQueue, job_details};
pub use ssh::{Flow, Ssh, SshOptions, Streamed, Streaming, Tell};
pub use stacks::{NodeStacks, collect_stacks};
pub use trainer::{find_trainer, own_program, trainer_path};
pub use transport::{Addressee, Ended, Group, Process, Role, Shell, Signal, Started, Transport};
pub use watch::{See, Sight, Watching};
pub use weights::find_weights;
