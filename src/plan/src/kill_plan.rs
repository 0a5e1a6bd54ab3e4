//! The plan of a stop or a kill, for a run or for selected processes.

use cluster::NodeId;
use units::counted;

use crate::kill::{KillHow, RunKill};
use crate::orphans::{NodeOrphans, OrphanKill};

/// The target of a stop or a kill: a run, or processes that were selected by their command lines.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum KillPlan {
    /// The processes of a run.
    Run(RunKill),
    /// Processes that were selected by their command lines.
    Orphans(OrphanKill),
}

impl From<RunKill> for KillPlan {
    fn from(run: RunKill) -> Self {
        Self::Run(run)
    }
}

impl From<OrphanKill> for KillPlan {
    fn from(orphans: OrphanKill) -> Self {
        Self::Orphans(orphans)
    }
}

impl KillPlan {
    /// Returns the way in which the processes are ended.
    pub fn how(&self) -> KillHow {
        match self {
            Self::Run(run) => run.how,
            Self::Orphans(_) => KillHow::Kill,
        }
    }

    /// Returns the target for messages: the run's id, or `3 processes`.
    pub fn subject(&self) -> String {
        match self {
            Self::Run(run) => run.run.to_string(),
            Self::Orphans(orphans) => counted(orphans.count(), "process"),
        }
    }

    /// Returns the part of the plan that is about some nodes.
    pub fn on_nodes(&self, is_kept: impl Fn(&NodeId) -> bool) -> Self {
        match self {
            Self::Run(run) => {
                let nodes = run.nodes.iter().filter(|target| is_kept(&target.node)).cloned().collect();
                Self::Run(RunKill { nodes, ..run.clone() })
            }
            Self::Orphans(OrphanKill { scope, nodes }) => {
                let nodes: Vec<NodeOrphans> = nodes.iter().filter(|target| is_kept(&target.node)).cloned().collect();
                Self::Orphans(OrphanKill { scope: *scope, nodes })
            }
        }
    }
}
