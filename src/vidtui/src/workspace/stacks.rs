//! Collects the stacks of the processes of a run.

use super::Workspace;
use camino::Utf8Path;
use remote::NodeStacks;
use rundir::{ErrorCode, Failure, RunDir};

impl Workspace {
    /// Writes the stacks of the processes of a run into the folder of the run.
    pub fn stacks(&self, dir: &RunDir) -> Result<Vec<NodeStacks>, Failure> {
        let run = dir.read_run()?;
        run.refuse_if_imported(format!("cannot collect the stacks of {}", run.id))?;
        let run = run.id;
        let attempt = dir.latest_attempt()?;
        let mut files = Vec::new();
        for (node, _) in attempt.iter().flat_map(|attempt| attempt.placement.by_node()) {
            files.extend(dir.read_pid(node, attempt.as_ref().map_or(0, |attempt| attempt.number))?);
        }
        let mut nodes = self.transports(&attempt.map_or_else(Vec::new, |attempt| attempt.ssh_logins()))?;
        let stacks = remote::collect_stacks(&run, dir, rundir::now_s(), &files, &mut nodes)?;
        match stacks.iter().all(|node| node.result.is_err()) {
            true => Err(stacks.into_iter().find_map(|node| node.result.err()).unwrap_or_else(|| {
                Failure::new(
                    ErrorCode::RunNotStarted,
                    format!("cannot collect the stacks of {run}"),
                    "its newest attempt has no nodes",
                    format!("check its state: `vidtui status {run}`"),
                )
            })),
            false => Ok(stacks),
        }
    }
}

/// Returns the result of collecting stacks, in one line.
pub fn stacks_in_words(stacks: &[NodeStacks]) -> String {
    let written: Vec<_> = stacks.iter().filter_map(|node| node.result.as_ref().ok()).collect();
    let processes = units::counted(written.iter().map(|(_, count)| count).sum(), "process");
    let folder = written.first().and_then(|(path, _)| path.parent()).map_or("", Utf8Path::as_str);
    let failed: Vec<String> =
        stacks.iter().filter(|node| node.result.is_err()).map(|node| node.node.to_string()).collect();
    let without = if failed.is_empty() { String::new() } else { format!("; failed on {}", failed.join(", ")) };
    format!("stacks of {processes} are in {folder}{without}")
}
