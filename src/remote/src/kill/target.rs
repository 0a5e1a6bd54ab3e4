//! The processes that a kill signals on one node: those of a run, or orphans.

use cluster::NodeId;
use plan::{KillPlan, KillScope, NodeKill, NodeOrphans};

use crate::RemoteError;
use crate::processes;
use crate::transport::{Process, Recipient, RunProcesses, Signal, Transport};

/// The processes of one node that a plan names.
#[derive(Clone, Copy)]
pub(super) enum NodeTarget<'a> {
    /// The processes of a run.
    Run(&'a NodeKill),
    /// Processes that were selected by their command lines.
    Orphans(&'a NodeOrphans, KillScope),
}

/// The processes that were signalled; empty if all are gone.
pub(super) struct Signalled {
    pub processes: Vec<Process>,
    /// The reason why some processes could not be signalled. This happens only with orphans of other users.
    pub refused: Option<RemoteError>,
}

impl<'a> NodeTarget<'a> {
    /// Returns the targets of a plan, one for each node.
    pub fn all(plan: &'a KillPlan) -> Vec<Self> {
        match plan {
            KillPlan::Run(run) => run.nodes.iter().map(Self::Run).collect(),
            KillPlan::Orphans(orphans) => orphans.nodes.iter().map(|node| Self::Orphans(node, orphans.scope)).collect(),
        }
    }

    pub fn node(&self) -> &'a NodeId {
        match self {
            Self::Run(target) => &target.node,
            Self::Orphans(target, _) => &target.node,
        }
    }

    /// Returns the process ids that the plan lists. More processes may be found when it is executed.
    pub fn pids(&self) -> Vec<i32> {
        match self {
            Self::Run(target) => target.ranks.iter().map(|rank| rank.pid).collect(),
            Self::Orphans(target, _) => target.processes.iter().map(|process| process.pid).collect(),
        }
    }

    /// Lists the processes of the target that still run. A process that reuses a process id is not listed.
    pub fn find(&self, transport: &mut dyn Transport) -> Result<RunProcesses, RemoteError> {
        match self {
            Self::Run(target) => transport.find_processes(target),
            Self::Orphans(target, _) => Ok(match processes::remaining(target, transport)? {
                none if none.is_empty() => RunProcesses::Gone,
                left => RunProcesses::Owned(left),
            }),
        }
    }

    /// Identifies the processes again and signals them.
    pub fn signal(
        &self,
        transport: &mut dyn Transport,
        to: Recipient,
        signal: Signal,
    ) -> Result<Signalled, RemoteError> {
        match self {
            Self::Run(target) => Ok(Signalled { processes: transport.signal(target, to, signal)?, refused: None }),
            Self::Orphans(target, scope) => {
                let left = processes::remaining(target, transport)?;
                let refused = match processes::signal(&target.boot_id, &left, signal, *scope, transport) {
                    // The other processes have received the signal.
                    Err(error @ RemoteError::CommandFailed { .. }) => Some(error),
                    result => result.map(|()| None)?,
                };
                Ok(Signalled { processes: left, refused })
            }
        }
    }
}
