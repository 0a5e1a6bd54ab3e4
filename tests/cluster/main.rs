//! Runs over nodes that SSH reaches or Slurm chooses: real servers, the real console, the real trainer. Skipped aloud where there is no rig.

#![expect(clippy::unwrap_used, reason = "a failed unwrap reports its line")]

mod command;
mod console;
mod encode;
mod faults;
mod life;
mod power;
mod preflight;
#[path = "../console/pty.rs"]
#[expect(dead_code, reason = "the tests of the console use the rest")]
mod pty;
mod sight;
mod site;
mod slurm;
mod start;
