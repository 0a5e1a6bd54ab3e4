//! `vidtui completions`: prints the completion script of a shell.

use crate::args::Args;
use crate::command_error::CommandError;
use crate::output;
use clap::CommandFactory;
use clap_complete::Shell;

/// Prints the completion script.
pub fn run(shell: Shell) -> Result<(), CommandError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "vidtui", &mut script);
    output::text(&String::from_utf8_lossy(&script))
}
