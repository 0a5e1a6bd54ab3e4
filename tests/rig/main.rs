//! Holds the rig to what its users count on.

#![expect(clippy::unwrap_used, reason = "a test that unwraps says where it broke")]

mod ending;
mod faults;
mod gpus;
mod nodes;
mod probe;
mod slurm;

use std::process::{Command, Output};

/// Runs a command; returns its output, or with a failure everything that it said.
fn said(command: &mut Command) -> Result<String, String> {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    let Output { status, stdout, stderr } = &output;
    if status.success() { Ok(text(stdout)) } else { Err(format!("{status}: {}{}", text(stdout), text(stderr))) }
}

/// Runs a shell command on a node, over SSH.
fn ssh(rig: &rig::Rig, node: &str, command: &str) -> Result<String, String> {
    ssh_within(rig, node, command, 60)
}

/// Runs a shell command on a node that must answer a connection within so many seconds.
fn ssh_within(rig: &rig::Rig, node: &str, command: &str, seconds: u64) -> Result<String, String> {
    said(rig.command("ssh").arg(format!("-oConnectTimeout={seconds}")).args([node, command]))
}
