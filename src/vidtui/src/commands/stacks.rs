//! `vidtui stacks`: the stacks of all ranks.

use crate::args::RunArgs;
use crate::command_error::CommandError;
use crate::output;
use crate::workspace::{Workspace, stacks_in_words};

/// Writes the stacks of the processes of a run into its folder and prints the path. Signals no process.
pub fn run(workspace: &Workspace, args: &RunArgs) -> Result<(), CommandError> {
    let dir = workspace.find(&args.run)?;
    let stacks = workspace.stacks(&dir)?;
    if args.output.json {
        let nodes: Vec<_> = stacks
            .iter()
            .map(|node| match &node.result {
                Ok((path, count)) => serde_json::json!({ "node": node.node, "file": path, "processes": count }),
                Err(failure) => serde_json::json!({ "node": node.node, "failure": failure }),
            })
            .collect();
        return output::json(&serde_json::json!({ "run": dir.name(), "nodes": nodes }));
    }
    for failure in stacks.iter().filter_map(|node| node.result.as_ref().err()) {
        eprintln!("{failure}");
    }
    output::line(&stacks_in_words(&stacks))
}
