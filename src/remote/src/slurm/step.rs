//! Runs commands on the nodes of a Slurm job through job steps.

use cluster::NodeId;
use plan::command_line;

use crate::command::{Command, Output};
use crate::frame::Frame;
use crate::transport::Shell;
use crate::{Local, RemoteError};

/// A shell on a node of the job that this program runs in. It uses job steps, because many clusters do not allow logins.
pub(crate) struct Step {
    node: NodeId,
    here: Local,
}

impl Step {
    pub fn new(node: NodeId) -> Result<Self, RemoteError> {
        Ok(Self { node, here: Local::new()? })
    }

    /// Returns the command line, which gives the script the environment and the GPUs that the ranks will have.
    fn words<'a>(&'a self, script: &'a str) -> [&'a str; 10] {
        let node = self.node.as_str();
        ["srun", "--export=ALL", "--nodes=1", "--ntasks=1", "--cpu-bind=none", "--nodelist", node, "sh", "-c", script]
    }
}

impl Shell for Step {
    fn node(&self) -> &NodeId {
        &self.node
    }

    fn run(&mut self, command: &Command) -> Result<Output, RemoteError> {
        // The variable has the effect of `--overlap`: without it, the step waits for the resources of the previous step. Slurm
        // before 20.11 rejects the option and ignores the variable.
        let frame = Frame::new();
        let framed = frame.script(&command.script);
        let script = format!("SLURM_OVERLAP=1 exec {}", command_line(&self.words(&framed)));
        let output = self.here.run(&Command { script, ..command.clone() }).map_err(|error| match error {
            RemoteError::Timeout { action, after, printed, .. } => {
                let printed = frame.without_marks(&printed);
                RemoteError::Timeout { node: self.node.clone(), action, after, printed }
            }
            other => other,
        })?;
        // The TaskProlog of a cluster may print text too.
        frame.answer(&self.node, command, output).map_err(|error| match error {
            // `srun` did not start the step.
            RemoteError::NotRun { node, action, status, printed } => {
                RemoteError::CommandFailed { node, action, status, stderr: printed }
            }
            other => other,
        })
    }
}
