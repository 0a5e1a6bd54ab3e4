//! `vidtui completions`: the completion script of a shell.

use crate::args::Args;
use crate::output;
use crate::refusal::Refusal;
use clap::CommandFactory;
use clap_complete::Shell;

/// Prints the completion script.
pub fn run(shell: Shell) -> Result<(), Refusal> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "vidtui", &mut script);
    output::text(&String::from_utf8_lossy(&script))
}
