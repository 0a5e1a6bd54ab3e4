use cluster::NodeId;
use plan::command_line;

use crate::command::{Command, Output};
use crate::transport::Shell;
use crate::{Local, RemoteError};

/// Asks a node of the job that this program runs in, by a step of it: many clusters take no logins.
pub(crate) struct Step {
    node: NodeId,
    here: Local,
}

impl Step {
    pub fn new(node: NodeId) -> Result<Self, RemoteError> {
        Ok(Self { node, here: Local::new()? })
    }

    /// As the ranks will be started there: with the same environment, and the same GPUs in sight.
    fn words<'a>(&'a self, script: &'a str) -> [&'a str; 9] {
        ["srun", "--nodes=1", "--ntasks=1", "--cpu-bind=none", "--nodelist", self.node.as_str(), "sh", "-c", script]
    }
}

impl Shell for Step {
    fn node(&self) -> &NodeId {
        &self.node
    }

    fn run(&mut self, command: &Command) -> Result<Output, RemoteError> {
        // As --overlap, which versions before 20.11 do not know: what the step before had may not be free yet.
        let script = format!("SLURM_OVERLAP=1 exec {}", command_line(&self.words(&command.script)));
        self.here.run(&Command { script, ..command.clone() }).map_err(|error| match error {
            RemoteError::Timeout { action, after, .. } => {
                RemoteError::Timeout { node: self.node.clone(), action, after }
            }
            other => other,
        })
    }
}
