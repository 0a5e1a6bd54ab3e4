//! `vidtui`: the console, and a command for everything that it can do.

mod appearance;
mod args;
mod chart_export;
mod checks;
mod commands;
mod console;
mod conversions;
mod curves;
mod dataset;
mod documents;
mod effects;
mod listings;
mod node_samples;
mod output;
mod queue;
mod record;
mod refusal;
mod signals;
mod simulate;
mod terminal;
mod watches;
mod workspace;

use clap::Parser;
use console::End;
use std::process::ExitCode;

fn main() -> ExitCode {
    // Before anything else is printed: clap ends the process with 2 when the request is wrong.
    let args = args::Args::parse();
    match commands::run(&args) {
        Ok(End::Signal(signal)) => signals::exit_by(signal),
        Ok(End::Quit | End::Gone) => ExitCode::SUCCESS,
        Err(refusal) => refusal.report(),
    }
}
