//! `cargo xtask rig`: a cluster of nodes on this machine, to try things on. The work is done by `tests/rig/rig`.

use std::os::unix::process::CommandExt;

use crate::failure::{Failure, Result};
use crate::process::{command, not_started, run as run_command, works};
use crate::workspace::root;

const USAGE: &str = "usage: cargo xtask rig up N [--slurm] | down | status | run COMMAND… | verb VERB NODE | verbs";

/// Runs the command: `rig up 4`. What a new rig lacks is installed first.
pub fn run(args: &[String]) -> Result<()> {
    let script = root().join("tests/rig/rig");
    let known = ["up", "down", "status", "run", "on", "verb", "verbs", "install"];
    let Some(first) = args.first().filter(|first| known.contains(&first.as_str())) else {
        return Err(Failure::request("cannot run the rig", format!("{args:?} is not understood"), USAGE));
    };
    let slurm = args.iter().any(|arg| arg == "--slurm").then_some("--slurm");
    let with_slurm = |word| [word].into_iter().chain(slurm).collect::<Vec<_>>();
    if first == "up" && !works(script.as_str(), &with_slurm("possible")) {
        run_command(&mut command(&script, with_slurm("install")), "see the message above")?;
    }
    // In this process's place, so that the terminal, signals and exit status are the command's own.
    let mut rig = command(&script, args);
    let error = rig.exec();
    Err(not_started(&rig, &error))
}
