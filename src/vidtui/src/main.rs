//! `vidtui`: the console, and a command for everything that the console can do.

// Only `output` prints, so that text from files cannot control the terminal.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod adapter_file;
mod appearance;
mod args;
mod chart_export;
mod checks;
mod command_error;
mod commands;
mod comparison;
mod console;
mod curves;
mod dataset;
mod documents;
mod effects;
mod file_stamp;
mod git_commit;
mod html;
mod inbox;
mod last_screen;
mod listings;
mod node_samples;
mod output;
mod pictures;
mod queue;
mod record;
mod settings;
mod signals;
mod simulate;
mod terminal;
mod watches;
mod workspace;

use command_error::ErrorFormat;
use console::End;
use std::process::ExitCode;

fn main() -> ExitCode {
    heap::return_freed_memory();
    // A write beyond the limit of file sizes (ulimit -f) then returns an error. Without a handler, the signal ends the process.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, std::sync::Arc::default());
    // The reader of the damaged file reports the error.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !rundir::is_panic_caught() {
            report(panic);
        }
    }));
    // clap exits with 2 when the arguments are invalid.
    let (args, blank) = args::read();
    let is_json = args.command.as_ref().is_some_and(args::Command::is_json);
    match blank.map_or_else(|| commands::run(&args), Err) {
        Ok(End::Signal(signal)) => signals::exit_by(signal),
        Ok(End::Quit | End::Gone) => ExitCode::SUCCESS,
        Err(refusal) => refusal.report(if is_json { ErrorFormat::Json } else { ErrorFormat::Text }),
    }
}
