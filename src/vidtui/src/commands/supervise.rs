//! `vidtui supervise`: what a launch runs on every node, without libtorch.

use crate::args::SuperviseArgs;
use crate::refusal::Refusal;

/// Runs the ranks of one node to their end.
pub fn run(args: &SuperviseArgs) -> Result<(), Refusal> {
    let node = args.node.clone();
    Ok(supervise::supervise(args.run_dir.clone(), args.attempt, node, &remote::trainer_path)?)
}
