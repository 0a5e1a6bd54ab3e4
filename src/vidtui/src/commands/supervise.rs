//! `vidtui supervise`: the supervisor of one node for recipes that train with a command. A launch runs it on every node.

use crate::args::SuperviseArgs;
use crate::command_error::CommandError;

/// Starts the ranks of one node and supervises them until they end.
pub fn run(args: &SuperviseArgs) -> Result<(), CommandError> {
    let node = args.node.clone();
    Ok(supervise::supervise(args.run_dir.clone(), args.attempt, node, &remote::trainer_path)?)
}
