//! Tests of runs over several nodes, through SSH and Slurm: real servers, the real console and the real trainer. Without a rig,
//! each test prints that it is skipped.

#![expect(clippy::unwrap_used, reason = "a failed unwrap reports its line")]

mod attach;
mod command;
mod console;
mod encode;
mod faults;
mod heal;
mod life;
#[path = "../faults/mod.rs"]
mod operator_faults;
mod power;
mod preflight;
#[path = "../console/pty.rs"]
#[expect(dead_code, reason = "the tests of the console use the rest")]
mod pty;
mod sight;
mod site;
mod slurm;
mod start;
