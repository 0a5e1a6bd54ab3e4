//! The commands of `vidtui`. Every action of the console is also a command.

pub mod alerts;
pub mod attach;
mod check;
mod check_log;
mod checkpoints;
mod compare;
mod completions;
mod config;
mod convert;
mod data;
mod data_buckets;
mod data_check;
mod data_cut;
mod data_export;
mod data_score;
mod data_show;
mod data_verify;
pub mod encode;
mod export;
mod fetch;
mod fit_memory;
mod heal;
mod import;
mod inspect;
mod job;
mod kill;
mod kill_orphans;
mod kill_prompt;
pub mod launch;
mod logs;
mod node_listing;
mod nodes;
mod profile;
mod queue;
mod recipe;
mod recipe_keys;
mod replay;
mod report;
mod runs;
pub mod sample;
mod stacks;
mod stages;
mod status;
mod stop;
mod supervise;
mod transfer;
pub mod typed;
mod waiting;

use crate::args::{Args, Command, DataCommand, RecipeCommand};
use crate::command_error::CommandError;
use crate::console::{self, End};
use crate::output::note;
use crate::workspace::{LATEST, Needs, Workspace};
use camino::Utf8Path;
use rundir::{ErrorCode, Failure, RunDir};
use std::time::Duration;

/// Runs the command, or the console if there is none.
pub fn run(args: &Args) -> Result<End, CommandError> {
    if let Some((option, of)) = args.unused() {
        let why = format!("it is an option of {of}");
        let what = format!("cannot use {option} with this command");
        return Err(CommandError::request(Failure::new(ErrorCode::InvalidArgument, what, why, "leave it out")));
    }
    // A command can wait for slow nodes. The screen cannot: it would look frozen.
    let patience = if args.command.is_some() { Duration::from_secs(5) } else { Duration::from_millis(300) };
    let mut workspace = Workspace::new(&args.runs, &args.configs, args.nodes.clone(), patience)?;
    workspace.simulate = if let Some(Command::Nodes(nodes)) = &args.command { nodes.simulate } else { args.simulate };
    let Some(command) = &args.command else {
        return console::open(workspace, args.open.as_deref(), args.record.as_deref());
    };
    match command {
        Command::Stages(args) => stages::run(&workspace, args),
        Command::Recipe(RecipeCommand::Show(args)) => recipe::show(&workspace, args),
        Command::Recipe(RecipeCommand::Keys(args)) => recipe_keys::run(args),
        Command::Check(args) => check::run(&workspace, args),
        Command::Launch(args) => launch::launch(&workspace, args),
        Command::Resume(args) => launch::resume(&workspace, args),
        Command::Next(args) => launch::next(&workspace, args),
        Command::Runs(args) => runs::run(&workspace, args),
        Command::Sample(args) => sample::run(&workspace, args),
        Command::Status(args) => status::run(&workspace, args),
        Command::Compare(args) => compare::run(&workspace, args),
        Command::Alerts(args) => alerts::run(&workspace, args),
        Command::Nodes(args) => nodes::nodes(&workspace, args),
        Command::Smi(args) => nodes::smi(&workspace, args),
        Command::Logs(args) => logs::run(&workspace, args),
        Command::Checkpoints(args) => checkpoints::run(&workspace, args),
        Command::Profile(args) => profile::run(&workspace, args),
        Command::Heal(args) => heal::run(&workspace, args),
        Command::Queue(args) => queue::run(&workspace, args),
        Command::Stacks(args) => stacks::run(&workspace, args),
        Command::Stop(args) => stop::stop(&workspace, args),
        Command::Kill(args) => kill::kill(&workspace, args),
        Command::Export(args) => export::run(&workspace, args),
        Command::Report(args) => report::run(&workspace, args),
        Command::Attach(args) => attach::run(&workspace, args),
        Command::Import(args) => import::run(&workspace, args),
        Command::Data(DataCommand::Check(args)) => data_check::run(&workspace, args),
        Command::Data(DataCommand::Cut(args)) => data_cut::run(args),
        Command::Data(DataCommand::Score(args)) => data_score::run(args),
        Command::Data(DataCommand::Export(args)) => data_export::run(args),
        Command::Data(DataCommand::Import(args)) => data::import(args),
        Command::Data(DataCommand::Show(args)) => data_show::run(args),
        Command::Data(DataCommand::Buckets(args)) => data_buckets::run(&workspace, args),
        Command::Data(DataCommand::Verify(args)) => data_verify::run(args),
        Command::Data(DataCommand::Prune(args)) => data::prune(&workspace, args),
        Command::Fetch(args) => fetch::run(args),
        Command::Data(DataCommand::Encode(args)) => encode::encode(&workspace, args),
        Command::Convert(args) => convert::run(&workspace, args),
        Command::Inspect(args) => inspect::run(&workspace, args),
        Command::Replay(args) => return replay::run(args),
        Command::Supervise(args) => supervise::run(args),
        Command::Job(command) => job::run(&workspace, command),
        Command::Config(args) => config::run(args),
        Command::Completions { shell } => completions::run(*shell),
    }?;
    Ok(End::Quit)
}

/// Fails if a file exists that a command would write, unless the user replaces it.
pub fn refuse_existing(to: &Utf8Path, replaces: bool) -> Result<(), CommandError> {
    if replaces || to.symlink_metadata().is_err() {
        return Ok(());
    }
    let (what, fix) = (format!("cannot write {to}"), "choose another name, or replace it with --force");
    Err(CommandError::request(Failure::new(ErrorCode::AlreadyExists, what, "it exists", fix)))
}

/// Finds the run that an argument names, and reports which run `latest` is.
fn named_run(workspace: &Workspace, given: &str, needs: Needs, is_json: bool) -> Result<RunDir, CommandError> {
    let dir = workspace.find_for(given, needs)?;
    report_latest(given, &dir.root, is_json);
    Ok(dir)
}

/// Prints on standard error which run `latest` is, unless the command prints JSON.
fn report_latest(given: &str, run: &Utf8Path, is_json: bool) {
    // A file or folder may have this name too.
    let id = run.file_name().filter(|id| given == LATEST && *id != LATEST && !is_json);
    if let Some(id) = id {
        note!("{LATEST} is {id}");
    }
}
