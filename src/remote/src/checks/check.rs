//! One check of a launch: its subject, its node and its result.

use cluster::NodeId;
use plan::LaunchPlan;
use rundir::Failure;
use serde::Serialize;
use units::counted;

/// The subject of a check. Its name in `--json` is in kebab case and never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum CheckId {
    // Before the launch is planned.
    /// The recipe is valid.
    Recipe,
    /// The mesh has as many ranks as the target.
    Mesh,
    /// The target has ranks for a command.
    Ranks,
    /// The data set fits the model, and each node can read it.
    Data,
    /// The starting weights are complete, and each node can read them.
    Weights,
    /// The trainer can be executed, here and on each node.
    Trainer,
    /// The program that supervises a command can be executed.
    Supervisor,
    /// The launch can be planned.
    Plan,
    /// The command line that will be started.
    Starts,
    /// All checks that need a plan, which are not run if an input is invalid.
    DiskAndRunFolder,

    // On this machine.
    /// The run directory can be written.
    RunDirectory,
    /// The file of secrets can be read.
    Secrets,

    // On each node.
    /// The node answers.
    Node,
    /// The node has the device that the recipe requires.
    Device,
    /// No other node of the launch is the same machine.
    Machine,
    /// The clock agrees with those of the other nodes.
    Clock,
    /// libtorch loads, has the version of the other nodes, and finds GPUs where they do.
    Libtorch,
    /// The run folder is shared and can be written.
    RunFolder,
    /// The disk has enough space for the checkpoints.
    Disk,
    /// The disk has enough free inodes.
    Inodes,
    /// The folder that a command saves to can be written and has enough space.
    Output,
    /// The memory of the node has room for its ranks.
    Memory,
    /// The disk of the node has room for the tensors that its ranks offload.
    Offload,
    /// The rendezvous ports are free, and the node can connect to them.
    Rendezvous,
    /// The program and working folder of a command exist.
    Command,
    /// The programs that read and write videos start.
    Ffmpeg,
    /// The node has enough GPUs.
    Gpus,
    /// No other process uses the GPUs.
    GpuProcesses,
    /// The memory of the GPUs is free.
    GpuMemory,
    /// The GPUs have reported no error that requires a reset.
    GpuErrors,

    // Slurm.
    /// The Slurm controller answers.
    Slurm,
    /// The partition exists.
    Partition,
    /// The partition has enough nodes.
    Nodes,
    /// Slurm accepts the job.
    Job,
}

impl CheckId {
    /// Every check, in the order of the variants.
    const ALL: [Self; 34] = [
        Self::Recipe,
        Self::Mesh,
        Self::Ranks,
        Self::Data,
        Self::Weights,
        Self::Trainer,
        Self::Supervisor,
        Self::Plan,
        Self::Starts,
        Self::DiskAndRunFolder,
        Self::RunDirectory,
        Self::Secrets,
        Self::Node,
        Self::Device,
        Self::Machine,
        Self::Clock,
        Self::Libtorch,
        Self::RunFolder,
        Self::Disk,
        Self::Inodes,
        Self::Output,
        Self::Memory,
        Self::Offload,
        Self::Rendezvous,
        Self::Command,
        Self::Ffmpeg,
        Self::Gpus,
        Self::GpuProcesses,
        Self::GpuMemory,
        Self::GpuErrors,
        Self::Slurm,
        Self::Partition,
        Self::Nodes,
        Self::Job,
    ];

    /// Returns the checks that `--waive` can name.
    pub fn waivable() -> impl DoubleEndedIterator<Item = Self> + Clone {
        Self::ALL.into_iter().filter(|check| check.is_waivable())
    }

    /// Returns whether a launch can continue if this check fails. Without a recipe, ranks or a program, there is no plan.
    fn is_waivable(self) -> bool {
        match self {
            Self::Recipe
            | Self::Mesh
            | Self::Ranks
            | Self::Supervisor
            | Self::Plan
            | Self::Starts
            | Self::DiskAndRunFolder => false,
            Self::Data
            | Self::Weights
            | Self::Trainer
            | Self::RunDirectory
            | Self::Secrets
            | Self::Node
            | Self::Device
            | Self::Machine
            | Self::Clock
            | Self::Libtorch
            | Self::RunFolder
            | Self::Disk
            | Self::Inodes
            | Self::Output
            | Self::Memory
            | Self::Offload
            | Self::Rendezvous
            | Self::Command
            | Self::Ffmpeg
            | Self::Gpus
            | Self::GpuProcesses
            | Self::GpuMemory
            | Self::GpuErrors
            | Self::Slurm
            | Self::Partition
            | Self::Nodes
            | Self::Job => true,
        }
    }

    /// Returns the name that users see and pass to `--waive`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Recipe => "recipe",
            Self::Mesh => "mesh",
            Self::Ranks => "ranks",
            Self::Data => "data",
            Self::Weights => "weights",
            Self::Trainer => "trainer",
            Self::Supervisor => "supervisor",
            Self::Plan => "plan",
            Self::Starts => "starts",
            Self::DiskAndRunFolder => "disk and run folder",
            Self::RunDirectory => "run directory",
            Self::Secrets => "secrets",
            Self::Node => "node",
            Self::Device => "device",
            Self::Machine => "machine",
            Self::Clock => "clock",
            Self::Libtorch => "libtorch",
            Self::RunFolder => "run folder",
            Self::Disk => "disk",
            Self::Inodes => "inodes",
            Self::Output => "output",
            Self::Memory => "memory",
            Self::Offload => "offload",
            Self::Rendezvous => "rendezvous",
            Self::Command => "command",
            Self::Ffmpeg => "ffmpeg",
            Self::Gpus => "GPUs",
            Self::GpuProcesses => "GPU processes",
            Self::GpuMemory => "GPU memory",
            Self::GpuErrors => "GPU errors",
            Self::Slurm => "Slurm",
            Self::Partition => "partition",
            Self::Nodes => "nodes",
            Self::Job => "job",
        }
    }
}

/// One check and its result.
#[derive(Debug, Clone, PartialEq)]
pub struct Check {
    /// The subject.
    pub id: CheckId,
    /// The node; `None` for a check of the whole launch.
    pub node: Option<NodeId>,
    /// The result.
    pub status: CheckStatus,
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq)]
pub enum CheckStatus {
    /// The requirement holds; the text gives the values.
    Passed(String),
    /// The requirement does not hold, or cannot be checked: the launch is refused.
    Failed(Failure),
    /// The check failed and `--waive` names it: the launch continues.
    Waived(Failure),
    /// The check was not run, because it needs others to pass; the text names them.
    Unknown(String),
}

impl Check {
    /// Makes a check from its result.
    pub(super) fn new(id: CheckId, node: Option<&NodeId>, result: Result<String, Failure>) -> Self {
        let status = result.map_or_else(CheckStatus::Failed, CheckStatus::Passed);
        Self { id, node: node.cloned(), status }
    }

    /// Whether the requirement holds.
    pub fn is_passed(&self) -> bool {
        matches!(self.status, CheckStatus::Passed(_))
    }

    /// Returns why the launch is refused, if this check refuses it.
    pub fn failure(&self) -> Option<&Failure> {
        match &self.status {
            CheckStatus::Failed(failure) => Some(failure),
            _ => None,
        }
    }

    /// Lets the launch continue although the check failed.
    pub(crate) fn waive(&mut self) {
        if let CheckStatus::Failed(failure) = &self.status {
            self.status = CheckStatus::Waived(failure.clone());
        }
    }
}

/// Waives the checks that an attempt names.
pub(super) fn waive(checks: &mut [Check], plan: &LaunchPlan) {
    let is_waived = |check: &&mut Check| plan.attempt.waived.iter().any(|name| name == check.id.name());
    checks.iter_mut().filter(is_waived).for_each(Check::waive);
}

/// Merges checks of the same kind that passed on several nodes into one check. The other checks of nodes are kept.
pub fn merge_passed(checks: &[Check]) -> Vec<Check> {
    let mut merged: Vec<Check> = checks.iter().filter(|check| check.node.is_none()).cloned().collect();
    let mut ids: Vec<CheckId> = Vec::new();
    for check in checks.iter().filter(|check| check.node.is_some()) {
        if !ids.contains(&check.id) {
            ids.push(check.id);
        }
    }
    for id in ids {
        let of_nodes = || checks.iter().filter(|check| check.node.is_some() && check.id == id);
        let passed: Vec<(&Check, &str)> = of_nodes()
            .filter_map(|check| match &check.status {
                CheckStatus::Passed(detail) => Some((check, detail.as_str())),
                _ => None,
            })
            .collect();
        match passed[..] {
            [] => {}
            [(only, _)] => merged.push(only.clone()),
            [(_, first), ..] => {
                let all = if passed.iter().all(|(_, detail)| *detail == first) { "" } else { "first: " };
                let detail = format!("{}, {all}{first}", counted(passed.len(), "node"));
                merged.push(Check { id, node: None, status: CheckStatus::Passed(detail) });
            }
        }
        merged.extend(of_nodes().filter(|check| !check.is_passed()).cloned());
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use rundir::ErrorCode;

    #[test]
    fn a_check_can_be_waived_exactly_if_it_is_one_of_a_plan() {
        assert!(CheckId::ALL.iter().enumerate().all(|(at, check)| *check as usize == at), "{:?}", CheckId::ALL);
        let waivable: Vec<CheckId> = CheckId::waivable().collect();
        assert!(waivable.contains(&CheckId::Offload) && waivable.contains(&CheckId::Job), "{waivable:?}");
        assert!(!waivable.contains(&CheckId::Recipe) && !waivable.contains(&CheckId::Plan), "{waivable:?}");
    }

    #[test]
    fn checks_that_pass_on_several_nodes_are_merged_and_failures_are_not() {
        let node = |name: &str| Some(NodeId::from_hostname(name));
        let passed = |name, detail: &str| Check { id: CheckId::Clock, node: node(name), status: passed_with(detail) };
        fn passed_with(detail: &str) -> CheckStatus {
            CheckStatus::Passed(detail.into())
        }
        let failure = Failure::new(ErrorCode::ClockSkew, "cannot launch", "node ml-3: its clock is off", "");
        let failed = Check { id: CheckId::Clock, node: node("ml-3"), status: CheckStatus::Failed(failure) };
        let recipe = Check { id: CheckId::Recipe, node: None, status: passed_with("demo") };

        let merged = merge_passed(&[passed("ml-1", "0 ms"), failed.clone(), passed("ml-2", "1 ms"), recipe.clone()]);
        let both = Check { id: CheckId::Clock, node: None, status: passed_with("2 nodes, first: 0 ms") };
        assert_eq!(merged, [recipe, both, failed]);
        assert_eq!(merge_passed(&[passed("ml-1", "0 ms")]), [passed("ml-1", "0 ms")]);
    }
}
