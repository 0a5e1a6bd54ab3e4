//! Arguments of the commands that queue runs.

use super::HowArgs;
use clap::{Args as Arguments, Subcommand};

/// `vidtui queue`.
#[derive(Debug, Arguments)]
pub struct QueueArgs {
    /// Prints one JSON document. Failures are JSON too
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub command: Option<QueueCommand>,
}

/// `vidtui queue …`.
#[derive(Debug, Subcommand)]
pub enum QueueCommand {
    /// Adds runs to the end of the queue and prints their numbers. They start without the console, each when its nodes are free
    Add(Box<QueueAddArgs>),
    /// Keeps entries from starting
    Hold(QueueEntriesArgs),
    /// Lets entries start that are held, or that failed to start
    Release(QueueEntriesArgs),
    /// Changes the place of an entry
    Move(QueueMoveArgs),
    /// Removes entries from the list. A run that was started continues
    Remove(QueueRemoveArgs),
    /// Starts the runs of the queue until none is left; adding a run starts this
    Work(QueueWorkArgs),
}

/// `vidtui queue add`.
#[derive(Debug, Arguments)]
pub struct QueueAddArgs {
    /// Recipe files, CURRICULUM:STAGE, or a curriculum with all of its stages
    #[arg(required = true, value_name = "RECIPE|CURRICULUM")]
    pub recipes: Vec<String>,
    /// Changes mesh and gradient accumulation to fit N ranks. The global batch stays the same
    #[arg(long, value_name = "N")]
    pub fit: Option<usize>,
    #[command(flatten)]
    pub how: HowArgs,
    /// Starts from these weights: a checkpoint folder, or the newest checkpoint of a run when it starts [default: the source in the
    /// stage, else random]
    #[arg(long, value_name = "PATH|RUN")]
    pub init: Option<String>,
    /// Name of the runs [default: the name in the recipe]
    #[arg(long)]
    pub name: Option<String>,
    /// Keeps the entries from starting until they are released
    #[arg(long)]
    pub hold: bool,
}

/// Entries of the queue.
#[derive(Debug, Arguments)]
pub struct QueueEntriesArgs {
    /// The numbers of the entries
    #[arg(required = true, value_name = "ID")]
    pub ids: Vec<u32>,
}

/// `vidtui queue remove`.
#[derive(Debug, Arguments)]
pub struct QueueRemoveArgs {
    /// The numbers of the entries
    #[arg(required_unless_present = "ended", value_name = "ID")]
    pub ids: Vec<u32>,
    /// Removes your entries whose runs have ended, except those that a waiting entry starts from
    #[arg(long, conflicts_with = "ids")]
    pub ended: bool,
}

/// `vidtui queue move`.
#[derive(Debug, Arguments)]
pub struct QueueMoveArgs {
    /// The number of the entry
    pub id: u32,
    /// Its new place
    pub place: MovePlace,
    /// The entry that follows it, for `before`
    #[arg(value_name = "OTHER", required_if_eq("place", "before"))]
    pub other: Option<u32>,
}

/// A place in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum MovePlace {
    /// The first entry that waits
    First,
    /// The last one
    Last,
    /// Before another entry
    Before,
}

/// `vidtui queue work`.
#[derive(Debug, Arguments)]
pub struct QueueWorkArgs {
    /// Starts it in the background, where it continues after the end of this terminal, and returns
    #[arg(long)]
    pub detached: bool,
    /// Leaves the session of the program that started it
    #[arg(long, hide = true, conflicts_with = "detached")]
    pub own_session: bool,
}
