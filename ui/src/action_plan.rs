//! Actions on several nodes, processes or runs, and on a checkpoint: what a user requests, the plan that a dialog shows, and the
//! result for each.

use crate::fleet::FleetSource;
use cluster::NodeId;
use plan::{CheckpointDelete, KillScope, LaunchPlan, NodesKill, ProcessKey, RunDelete, RunKill};
use rundir::{Failure, RunId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// An action that is planned first.
#[derive(Debug, Clone, PartialEq)]
pub enum ActionRequest {
    /// End processes on nodes.
    KillOnNodes {
        /// The source of the node list.
        of: FleetSource,
        /// The nodes on which processes end.
        nodes: Vec<NodeId>,
        /// The users whose processes may be ended.
        scope: KillScope,
        /// The processes; `None` for all that train or use GPUs.
        chosen: Option<BTreeSet<ProcessKey>>,
    },
    /// Resume, stop, kill or delete runs.
    Runs {
        /// Whether the runs are resumed, stopped, killed or deleted.
        verb: RunVerb,
        /// The runs.
        runs: Vec<RunId>,
    },
    /// Delete a checkpoint.
    DeleteCheckpoint {
        /// The run that the checkpoint belongs to.
        run: RunId,
        /// The step of the checkpoint.
        step: u64,
    },
}

/// An action on several runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunVerb {
    /// Continue from the newest checkpoint.
    Resume,
    /// Save and stop.
    Stop,
    /// End all processes.
    Kill,
    /// Move the folder into the trash.
    Delete,
}

impl RunVerb {
    /// Returns the verb: `resume`, `stop` or `kill`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Resume => "resume",
            Self::Stop => "stop",
            Self::Kill => "kill",
            Self::Delete => "delete",
        }
    }
}

/// The plan of an action. It is shown and then executed unchanged.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum ActionPlan {
    /// End processes on nodes.
    KillOnNodes {
        /// The source of the node list.
        of: FleetSource,
        /// The processes, and those that are left alone.
        kill: NodesKill,
    },
    /// Resume, stop, kill or delete runs.
    Runs {
        /// Whether the runs are resumed, stopped, killed or deleted.
        verb: RunVerb,
        /// The runs, each with its plan, or why it is refused.
        runs: Vec<(RunId, Result<RunPlan, Failure>)>,
    },
    /// Delete a checkpoint.
    DeleteCheckpoint(Box<CheckpointDelete>),
}

/// The plan for one run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum RunPlan {
    /// Start the next attempt of the run.
    Start(Box<LaunchPlan>),
    /// Stop or kill the run.
    End(Box<RunKill>),
    /// Move the run into the trash.
    Delete(Box<RunDelete>),
}

impl ActionPlan {
    /// Returns whether the plan changes anything.
    pub fn is_possible(&self) -> bool {
        match self {
            Self::KillOnNodes { kill, .. } => !kill.plans.is_empty(),
            Self::Runs { runs, .. } => runs.iter().any(|(_, plan)| plan.is_ok()),
            Self::DeleteCheckpoint(_) => true,
        }
    }

    /// Returns the runs that the plan changes by name. A run has at most one such action in progress.
    pub fn runs(&self) -> Vec<RunId> {
        match self {
            Self::KillOnNodes { kill, .. } => {
                let runs = kill.plans.iter().filter_map(|plan| match plan {
                    plan::KillPlan::Run(run) => Some(run.run.clone()),
                    plan::KillPlan::Orphans(_) => None,
                });
                runs.collect()
            }
            Self::Runs { runs, .. } => {
                runs.iter().filter(|(_, plan)| plan.is_ok()).map(|(run, _)| run.clone()).collect()
            }
            Self::DeleteCheckpoint(delete) => vec![delete.run.clone()],
        }
    }
}

/// The result of an action on one node or run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActionResult {
    /// The node, run or checkpoint.
    pub subject: String,
    /// How the action ended.
    pub end: ActionEnd,
    /// The result in one sentence.
    pub text: String,
}

/// How an action on one node or run ended. The most serious comes last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ActionEnd {
    /// The action is done and verified.
    Done,
    /// The action is in progress.
    Pending,
    /// The result could not be verified.
    Unknown,
    /// The action failed.
    Failed,
}
