//! What each command does: every key of the console has its twin here.

mod check;
mod checkpoints;
mod completions;
pub mod convert;
mod data;
mod ending;
mod export;
mod found;
mod inspect;
mod job;
mod launch;
mod logs;
mod nodes;
mod recipe;
mod replay;
mod runs;
mod stacks;
mod stages;
mod status;
mod supervise;
mod transfer;
mod waiting;

use crate::args::{Args, Command, DataCommand, RecipeCommand};
use crate::console::{self, End};
use crate::desk::Desk;
use crate::refusal::Refusal;
use std::time::Duration;

/// Does what the command line asks.
pub fn run(args: &Args) -> Result<End, Refusal> {
    // A command may wait for nodes that are slow to answer; a screen that waits looks dead.
    let patience = if args.command.is_some() { Duration::from_secs(5) } else { Duration::from_millis(300) };
    let desk = Desk::new(&args.runs, &args.configs, args.nodes.clone(), patience)?;
    let desk = Desk { simulate: args.simulate, ..desk };
    let Some(command) = &args.command else {
        return console::open(desk, args.open.as_deref(), args.record.as_deref());
    };
    match command {
        Command::Stages(args) => stages::run(&desk, args),
        Command::Recipe(RecipeCommand::Show(args)) => recipe::show(&desk, args),
        Command::Check(args) => check::run(&desk, args),
        Command::Launch(args) => launch::launch(&desk, args),
        Command::Resume(args) => launch::resume(&desk, args),
        Command::Next(args) => launch::next(&desk, args),
        Command::Runs(args) => runs::run(&desk, args),
        Command::Status(args) => status::run(&desk, args),
        Command::Nodes(args) => nodes::nodes(&desk, args),
        Command::Smi(args) => nodes::smi(&desk, args),
        Command::Logs(args) => logs::run(&desk, args),
        Command::Checkpoints(args) => checkpoints::run(&desk, args),
        Command::Stacks(args) => stacks::run(&desk, args),
        Command::Stop(args) => ending::stop(&desk, args),
        Command::Kill(args) => ending::kill(&desk, args),
        Command::Export(args) => export::run(&desk, args),
        Command::Data(DataCommand::Import(args)) => data::import(args),
        Command::Convert(args) => convert::run(&desk, args),
        Command::Inspect(args) => inspect::run(&desk, args),
        Command::Replay(args) => return replay::run(args),
        Command::Supervise(args) => supervise::run(args),
        Command::Job(command) => job::run(&desk, command),
        Command::Completions { shell } => completions::run(*shell),
    }?;
    Ok(End::Quit)
}
