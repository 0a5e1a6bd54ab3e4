//! Lists the processes on some nodes, and retries nodes that do not answer.

use crate::args::NodesArgs;
use crate::command_error::CommandError;
use crate::output::{self, note};
use crate::workspace::{Workspace, waits_in_words};
use cluster::NodeId;
use plan::NodeProcesses;
use remote::{RemoteError, Transport, list_processes};
use rundir::{ErrorCode, Failure};
use serde_json::{Value, json};
use std::thread;
use std::time::Duration;

/// Pauses before nodes that did not answer are retried.
const RETRY_PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(2)];
/// The pause between further retries, with `--wait`.
const WAIT_PAUSE: Duration = Duration::from_secs(10);

/// The processes of nodes.
pub struct NodeListing {
    /// The nodes that answered.
    pub listed: Vec<NodeProcesses>,
    /// The connections to all nodes.
    pub transports: Vec<Box<dyn Transport>>,
    /// The nodes that failed, each with the reason.
    failed: Vec<(NodeId, RemoteError)>,
}

impl NodeListing {
    /// Lists the processes of nodes. Nodes that do not answer are retried.
    pub fn read(workspace: &Workspace, on: &NodesArgs) -> Result<Self, CommandError> {
        let target = workspace.target(None, on, 1, 0)?;
        let transports = workspace.transports(&target.logins)?;
        let mut listing = Self { listed: Vec::new(), transports, failed: Vec::new() };
        listing.list(target.nodes.iter().map(|node| node.id.clone()).collect());
        for pause in RETRY_PAUSES {
            let nodes = listing.take_unreachable();
            if nodes.is_empty() {
                break;
            }
            thread::sleep(pause);
            listing.list(nodes);
        }
        listing.listed.sort_by(|a, b| a.node.cmp(&b.node));
        Ok(listing)
    }

    fn list(&mut self, nodes: Vec<NodeId>) {
        for (node, result) in list_processes(&nodes, &mut self.transports) {
            match result {
                Ok(processes) => self.listed.push(processes),
                Err(error) => self.failed.push((node, error)),
            }
        }
    }

    /// Removes the unreachable nodes from `failed`, and returns them.
    fn take_unreachable(&mut self) -> Vec<NodeId> {
        let failed = std::mem::take(&mut self.failed).into_iter();
        let (unreachable, failed): (Vec<_>, Vec<_>) = failed.partition(|(_, error)| error.is_unreachable());
        self.failed = failed;
        unreachable.into_iter().map(|(node, _)| node).collect()
    }

    /// Retries the unreachable nodes until some of them answer, and replaces `listed` with their processes. Returns false
    /// if no node is unreachable.
    pub fn wait_for_more(&mut self) -> bool {
        self.listed.clear();
        while self.listed.is_empty() {
            let nodes = self.take_unreachable();
            if nodes.is_empty() {
                return false;
            }
            note!("{}", waits_in_words(&nodes.iter().collect::<Vec<_>>(), WAIT_PAUSE));
            thread::sleep(WAIT_PAUSE);
            self.list(nodes);
        }
        true
    }

    /// Prints why nodes failed on standard error.
    pub fn report_failed(&self) {
        self.failed.iter().for_each(|(_, error)| note!("{error}"));
    }

    /// Returns the names of the nodes that answered.
    pub fn names(&self) -> String {
        names(self.listed.iter().map(|node| &node.node))
    }

    /// Prints the results.
    ///
    /// # Errors
    /// [`ErrorCode::NodeUnreachable`] if the processes of some nodes could not be listed.
    pub fn finish(&self, is_dry_run: bool, json: bool, found: Vec<Value>, text: &str) -> Result<(), CommandError> {
        if json {
            let of_node = |(node, error): &(NodeId, RemoteError)| {
                let (code, why) = (error.code(), error.to_string());
                json!({ "node": node, "code": code, "why": why })
            };
            let failed: Vec<Value> = self.failed.iter().map(of_node).collect();
            output::json_result(&json!({ "done": !is_dry_run, "found": found, "unreachable": failed }))?;
        } else {
            output::result(&format!("{text}\n"))?;
        }
        if self.failed.is_empty() {
            return Ok(());
        }
        let what = format!("cannot list the processes of {}", names(self.failed.iter().map(|(node, _)| node)));
        let why = "processes may still run there";
        let fix = match self.failed.iter().find(|(_, error)| !error.is_unreachable()) {
            Some((_, error)) => error.failure("").fix,
            None => "try again when these nodes answer; `kill --wait` retries until they do".into(),
        };
        Err(Failure::new(ErrorCode::NodeUnreachable, what, why, fix).into())
    }
}

/// Returns the names of nodes, separated by commas, or `no node`.
pub fn names<'a>(nodes: impl Iterator<Item = &'a NodeId>) -> String {
    let names: Vec<String> = nodes.map(ToString::to_string).collect();
    if names.is_empty() { "no node".into() } else { names.join(", ") }
}
