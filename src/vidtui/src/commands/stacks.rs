//! `vidtui stacks`: collects the stack traces and the phases of all ranks, and the collectives that they wait for.

use crate::args::RunArgs;
use crate::command_error::CommandError;
use crate::commands::named_run;
use crate::output::{self, note};
use crate::workspace::{CollectedStacks, Needs, Workspace, stacks_in_words};

/// Writes the stack traces of the processes of a run into its folder and prints the paths. Signals no process.
pub fn run(workspace: &Workspace, args: &RunArgs) -> Result<(), CommandError> {
    let dir = named_run(workspace, &args.run, Needs::Nothing, args.output.json)?;
    let CollectedStacks { nodes: stacks, ranks } = workspace.stacks(&dir)?;
    if args.output.json {
        let nodes: Vec<_> = stacks
            .iter()
            .map(|node| match &node.result {
                Ok((path, count)) => serde_json::json!({ "node": node.node, "file": path, "processes": count }),
                Err(failure) => serde_json::json!({ "node": node.node, "failure": failure }),
            })
            .collect();
        let beats: Vec<_> = ranks
            .heartbeats
            .iter()
            .map(|(node, beat)| serde_json::json!({ "node": node, "heartbeat": beat }))
            .collect();
        return output::json(&serde_json::json!({
            "run": dir.name(),
            "nodes": nodes,
            "ranks": beats,
            "collectives": ranks.waits,
            "nccl_dumps": ranks.nccl_dumps.iter().map(|dump| &dump.path).collect::<Vec<_>>(),
        }));
    }
    for failure in stacks.iter().filter_map(|node| node.result.as_ref().err()) {
        note!("{failure}");
    }
    let summary = ranks.in_words(rundir::now_s());
    output::line(&format!("{summary}{}", stacks_in_words(&stacks)))
}
