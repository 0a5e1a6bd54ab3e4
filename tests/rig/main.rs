//! Tests of the rig: nodes, faults, simulated GPUs, Slurm, and the end of a rig.

#![expect(clippy::unwrap_used, reason = "a panic shows the failing line")]

mod cleanup;
mod faults;
mod gpus;
mod nodes;
mod probe;
mod slurm;

use std::process::{Command, Output};

/// Runs a command; returns its standard output or, if it fails, its exit status and all output.
fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    let Output { status, stdout, stderr } = &output;
    if status.success() { Ok(text(stdout)) } else { Err(format!("{status}: {}{}", text(stdout), text(stderr))) }
}

/// Runs a shell command on a node, over SSH.
fn ssh(rig: &rig::Rig, node: &str, command: &str) -> Result<String, String> {
    ssh_within(rig, node, command, 60)
}

/// Runs a shell command on a node over SSH, with a timeout for the connection.
fn ssh_within(rig: &rig::Rig, node: &str, command: &str, seconds: u64) -> Result<String, String> {
    run(rig.command("ssh").arg(format!("-oConnectTimeout={seconds}")).args([node, command]))
}
