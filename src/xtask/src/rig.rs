//! `cargo xtask rig`: starts and ends a cluster of simulated nodes on this machine with the script `tests/rig/rig`.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use camino::Utf8PathBuf;

use crate::failure::{Failure, Result};
use crate::process::{command, not_started, run as run_command};
use crate::workspace::root;

const USAGE: &str = "usage: cargo xtask rig up N [--slurm] | down | status | run COMMAND… | verb VERB NODE | verbs";

/// Returns the folder of the rig that `up` starts.
pub fn folder() -> Utf8PathBuf {
    std::env::var("RIG").unwrap_or_else(|_| "/tmp/vidtui-rig".into()).into()
}

/// Runs the command: `rig up 4`. Missing packages are installed first.
pub fn run(args: &[String]) -> Result<()> {
    let known = ["up", "down", "status", "run", "on", "verb", "verbs", "install"];
    let Some(first) = args.first().filter(|first| known.contains(&first.as_str())) else {
        return Err(Failure::request("cannot run the rig", format!("{args:?} is not a command of the rig"), USAGE));
    };
    if first == "up" {
        install(args.iter().any(|arg| arg == "--slurm"))?;
    }
    // The script replaces this process, so that it has the terminal, the signals and the exit status.
    let mut rig = script(args);
    let error = rig.exec();
    Err(not_started(&rig, &error))
}

/// Starts a rig that runs until `rig down`. Missing packages are installed first.
pub fn up(args: &[&str], slurm: bool) -> Result<()> {
    install(slurm)?;
    let mut up = script(["up"]);
    up.args(args).args(slurm.then_some("--slurm"));
    run_command(&mut up, "end a rig that is already up with `cargo xtask rig down`")
}

/// Returns a command of the rig's script.
pub fn script<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Command {
    command(root().join("tests/rig/rig"), args)
}

fn install(slurm: bool) -> Result<()> {
    let with_slurm = |word| [word].into_iter().chain(slurm.then_some("--slurm"));
    if script(with_slurm("possible")).stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|s| s.success()) {
        return Ok(());
    }
    run_command(&mut script(with_slurm("install")), "see the message above")
}
