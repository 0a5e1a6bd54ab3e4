//! Errors of Slurm's commands, and the reply to a submission.

use std::fmt;

/// The reason why a command of Slurm failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlurmError {
    /// The controller does not answer. Jobs keep running.
    ControllerDown,
    /// The job does not exist, or Slurm no longer has it.
    UnknownJob,
    /// The cluster has no accounting.
    NoAccounting,
    /// Slurm is not installed or not configured on this machine.
    NoSlurm,
    /// `SLURM_CLUSTERS` has this value, which is not the name of one cluster.
    SeveralClusters(String),
    /// Slurm refused the request, with this message.
    Refused(String),
}

impl fmt::Display for SlurmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SlurmError::ControllerDown => {
                write!(f, "the Slurm controller does not answer; running jobs are not affected")
            }
            SlurmError::UnknownJob => write!(f, "the job does not exist in Slurm"),
            SlurmError::NoAccounting => write!(f, "this cluster has no Slurm accounting"),
            SlurmError::NoSlurm => write!(f, "Slurm is not available on this machine"),
            SlurmError::SeveralClusters(value) => {
                write!(f, "SLURM_CLUSTERS is {value:?}, and a job has its id on one cluster only")
            }
            SlurmError::Refused(message) => write!(f, "Slurm reports {message:?}"),
        }
    }
}

impl SlurmError {
    /// Returns the hint: what to do about it.
    pub fn fix(&self) -> &'static str {
        match self {
            SlurmError::ControllerDown => {
                "retry later, or ask the administrators of the cluster; `scontrol ping` shows whether it answers"
            }
            SlurmError::UnknownJob => "list your jobs: `squeue --me`",
            SlurmError::NoAccounting => "nothing to do: the files of the run show how it ended",
            SlurmError::NoSlurm => "run this on a login node of the cluster, where `sinfo` works",
            SlurmError::SeveralClusters(_) => "export SLURM_CLUSTERS with the name of one cluster, or unset it",
            SlurmError::Refused(_) => "change the Slurm file; `sinfo` lists partitions and nodes",
        }
    }
}

/// Parts of messages, each with its meaning. The first match counts.
const MESSAGES: [(&str, SlurmError); 10] = [
    ("Unable to contact slurm controller", SlurmError::ControllerDown),
    ("Socket timed out on send/recv", SlurmError::ControllerDown),
    ("Zero Bytes were transmitted or received", SlurmError::ControllerDown),
    ("is DOWN", SlurmError::ControllerDown),
    ("Invalid job id specified", SlurmError::UnknownJob),
    ("accounting storage is disabled", SlurmError::NoAccounting),
    ("not running a supported accounting_storage plugin", SlurmError::NoAccounting),
    ("Could not establish a configuration source", SlurmError::NoSlurm),
    ("command not found", SlurmError::NoSlurm),
    ("No such file or directory", SlurmError::NoSlurm),
];

/// Interprets the output of a failed command, from both of its streams.
pub fn parse_error(output: &str) -> SlurmError {
    if let Some((_, error)) = MESSAGES.iter().find(|(part, _)| output.contains(part)) {
        return error.clone();
    }
    // `sbatch: error: Batch job submission failed: Invalid partition name specified`
    let errors = output.lines().map(str::trim).filter(|line| !line.is_empty());
    let messages = errors.map(|line| line.split_once("error: ").map_or(line, |(_, message)| message));
    SlurmError::Refused(messages.collect::<Vec<_>>().join("; ").chars().take(400).collect())
}

/// Reads the job id from the output of `sbatch --parsable`: `42` or `42;cluster`.
pub fn read_submitted(output: &str) -> Option<u64> {
    let last = output.lines().map(str::trim).rfind(|line| !line.is_empty())?;
    // Slurm counts jobs from 1.
    last.split(';').next()?.parse().ok().filter(|id| *id > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_distinguished_by_their_messages() {
        let outputs = [
            "slurm_load_jobs error: Socket timed out on send/recv operation",
            "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
            "Slurmctld(primary) at head is DOWN\n*****************************************",
            "slurm_load_jobs error: Invalid job id specified",
            "Slurm accounting storage is disabled",
            "env: ‘squeue’: No such file or directory",
            "squeue: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\nsqueue: error: fetch_config: DNS SRV lookup failed\nsqueue: error: _establish_config_source: failed to fetch config\nsqueue: fatal: Could not establish a configuration source",
            "sbatch: error: invalid partition specified: nope\nsbatch: error: Batch job submission failed: Invalid partition name specified",
            "",
        ];
        use SlurmError::*;
        let words = "invalid partition specified: nope; Batch job submission failed: Invalid partition name specified";
        assert_eq!(
            outputs.map(parse_error),
            [
                ControllerDown,
                ControllerDown,
                ControllerDown,
                UnknownJob,
                NoAccounting,
                NoSlurm,
                NoSlurm,
                Refused(words.into()),
                Refused("".into()),
            ]
        );
    }

    #[test]
    fn the_job_id_is_read_with_and_without_its_cluster() {
        let outputs = ["42\n", "42;north\n", "sbatch: a message of the site\n42\n", "", "Submitted batch job 42"];
        assert_eq!(outputs.map(read_submitted), [Some(42), Some(42), Some(42), None, None]);
    }
}
