//! The stable codes of errors, which scripts and tests compare.

use serde::{Deserialize, Serialize};
use std::{fmt, io};

/// The kind of an error, for programs. Its name on disk and in `--json` is in kebab case and never changes.
///
/// A code names a problem that a user can act on, not a place in the source. Error messages may change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ErrorCode {
    // The command line and the console.
    /// A flag, an argument or a value is not valid.
    InvalidArgument,
    /// A name matches nothing that exists.
    UnknownName,
    /// A name matches more than one thing.
    AmbiguousName,
    /// The user declined to confirm.
    Cancelled,
    /// A terminal is needed and there is none, or it was lost.
    NoTerminal,
    /// A defect of vidtui.
    Internal,

    // Files.
    /// The operating system refused to read, write, create or list a file.
    Io,
    /// A file or folder does not exist.
    NotFound,
    /// The user lacks the permission for the operation.
    PermissionDenied,
    /// A disk has too little space.
    DiskFull,
    /// A file would exceed the limit of file sizes of the process (`ulimit -f`) or of the file system.
    FileTooLarge,
    /// A file does not have the expected format.
    Malformed,
    /// A file was written by a newer version.
    NewerFormat,
    /// The destination exists already.
    AlreadyExists,
    /// Another process holds the lock of a file.
    Locked,
    /// Another user owns or can change a file that would start programs.
    UntrustedFile,

    // Recipes, curricula and placement.
    /// A recipe or curriculum is not valid.
    InvalidRecipe,
    /// A file of secrets is not valid, or other users can access it.
    InvalidSecrets,
    /// The settings of alerts are not valid.
    InvalidAlerts,
    /// The settings of the console are not valid.
    InvalidConfig,
    /// A mesh does not fit its ranks, or a batch does not fit the mesh.
    InvalidMesh,
    /// The curriculum has no such stage, or the stage must be named.
    UnknownStage,
    /// A hostfile is not valid, or no node remains after filtering.
    InvalidHostfile,
    /// A Slurm file is not valid.
    InvalidSlurmFile,
    /// The weights that a stage starts from are not given.
    NoWeights,
    /// There are fewer nodes or GPUs than the mesh needs.
    TooFewRanks,

    // Runs.
    /// A run id is not valid.
    InvalidRunId,
    /// There is no such run.
    RunNotFound,
    /// A run has processes that are alive.
    RunIsAlive,
    /// It cannot be determined whether a run is alive.
    RunStateUnknown,
    /// A run has no attempt, process or log yet.
    RunNotStarted,
    /// A run is not running.
    RunNotRunning,
    /// A run has done all its steps.
    RunFinished,
    /// A run was imported from the log of another tool, so it cannot be resumed or signalled.
    RunImported,
    /// A run only watches a program that another process started, so it cannot be resumed.
    RunAttached,
    /// Two consoles started the same attempt.
    AttemptConflict,

    // Checkpoints.
    /// A run has no complete checkpoint.
    NoCheckpoint,
    /// A checkpoint is incomplete.
    CheckpointIncomplete,
    /// A checkpoint cannot be read at present.
    CheckpointUnreadable,
    /// A checkpoint does not match its checksums.
    CheckpointDamaged,
    /// A checkpoint is pinned, or a run needs it.
    CheckpointInUse,
    /// A checkpoint cannot be saved.
    SaveFailed,

    // Tensor files and data sets.
    /// The model or file format is not supported.
    UnsupportedModel,
    /// Shapes, types or names of tensors do not match.
    TensorMismatch,
    /// A data set or one of its samples cannot be used.
    InvalidDataset,
    /// The share of clips that would be dropped from a data set exceeds the accepted share.
    TooManyDropped,

    // Nodes and networks.
    /// No connection to a node can be made, for a reason that has no code below.
    NodeUnreachable,
    /// The name of a node does not resolve to an address.
    NoAddress,
    /// A node refused the connection: no SSH server listens on the port.
    ConnectionRefused,
    /// The host key of a node is revoked, or cannot be checked or recorded.
    HostKey,
    /// The host key of a node is not known.
    HostKeyUnknown,
    /// The host key of a node differs from the known one.
    HostKeyChanged,
    /// A node refused the login.
    LoginRefused,
    /// No answer came in time, or the connection broke. A request that was sent may have been carried out.
    NoAnswer,
    /// A command failed on a node.
    CommandFailed,
    /// A node is not fit to train: a check failed.
    CheckFailed,
    /// A program is not installed or cannot be started.
    ProgramMissing,
    /// The trainer is missing, differs, or does not start.
    TrainerUnusable,
    /// A node has no GPU that can be used.
    NoGpu,
    /// Clocks of nodes differ.
    ClockSkew,
    /// A network port is in use.
    PortInUse,
    /// The running processes differ from those in the plan, so no process was signalled.
    NotOwned,
    /// Not all processes ended, or their end could not be verified.
    KillIncomplete,

    // Downloads.
    /// The Hugging Face Hub or its mirror does not answer.
    HubUnreachable,
    /// The Hub answered with an error or with an invalid reply.
    HubFailed,
    /// The bytes of a download do not match the listed size or checksum.
    DownloadDamaged,

    // Alerts.
    /// An alert did not reach a channel.
    AlertNotSent,

    // Slurm.
    /// Slurm refused, or one of its commands failed.
    SlurmFailed,
    /// Slurm does not answer.
    SlurmUnreachable,
    /// A job is not in the state that is needed.
    SlurmJobState,
    /// A job reached its time limit or its deadline.
    SlurmTimeLimit,
    /// A job was preempted.
    SlurmPreempted,

    // How attempts end.
    /// Processes ended without recording why.
    Crashed,
    /// A rank ended with an error.
    RankFailed,
    /// A signal that did not come from the supervisor ended a rank.
    RankKilled,
    /// The node or the GPU ran out of memory, or no settings fit its memory.
    OutOfMemory,
    /// A node was lost.
    NodeLost,
    /// A rank or a node lost contact with another one.
    PeerLost,
    /// A user killed the ranks of a node.
    RanksKilled,
    /// A loss, a gradient or a weight is not finite.
    NotFinite,
    /// Replicas or TP ranks have weights that differ.
    WeightsDiffer,
    /// A device failed: its GPU reported an error.
    DeviceFailed,
    /// The supervisor or a rank could not be started.
    StartFailed,

    /// A code of a newer version, or no code: early versions wrote none.
    #[default]
    #[serde(other)]
    Unknown,
}

/// Formats the code as in `--json`: `node-lost`.
impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl ErrorCode {
    /// Returns whether the code is that of a node that cannot be reached, so that the state of its processes is unknown.
    pub fn is_of_unreachable_node(self) -> bool {
        matches!(
            self,
            Self::NodeUnreachable
                | Self::NoAddress
                | Self::ConnectionRefused
                | Self::HostKey
                | Self::HostKeyUnknown
                | Self::HostKeyChanged
                | Self::LoginRefused
                | Self::NoAnswer
        )
    }

    /// Returns the code of an IO error.
    pub fn of_io(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull,
            io::ErrorKind::FileTooLarge => Self::FileTooLarge,
            io::ErrorKind::PermissionDenied => Self::PermissionDenied,
            io::ErrorKind::NotFound => Self::NotFound,
            io::ErrorKind::AlreadyExists => Self::AlreadyExists,
            _ => Self::Io,
        }
    }
}
