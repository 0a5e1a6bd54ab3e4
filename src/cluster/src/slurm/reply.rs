//! What Slurm's commands say when they have done something, or cannot.

use std::fmt;

/// Says why a command of Slurm failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlurmTrouble {
    /// The controller does not answer. Jobs go on.
    ControllerDown,
    /// There is no such job, or Slurm has forgotten it.
    UnknownJob,
    /// Jobs are not accounted on this cluster.
    NoAccounting,
    /// There is no Slurm on this machine, or it is not set up.
    NoSlurm,
    /// Slurm says no, in its own words.
    Refused(String),
}

impl fmt::Display for SlurmTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SlurmTrouble::ControllerDown => write!(f, "Slurm's controller does not answer; jobs go on without it"),
            SlurmTrouble::UnknownJob => write!(f, "Slurm knows no such job"),
            SlurmTrouble::NoAccounting => write!(f, "this cluster does not account jobs"),
            SlurmTrouble::NoSlurm => write!(f, "there is no Slurm here"),
            SlurmTrouble::Refused(words) => write!(f, "Slurm says {words:?}"),
        }
    }
}

impl SlurmTrouble {
    /// Says what to do about it.
    pub fn fix(&self) -> &'static str {
        match self {
            SlurmTrouble::ControllerDown => "wait, or ask who runs the cluster; `scontrol ping` says when it is back",
            SlurmTrouble::UnknownJob => "see `squeue --me` for the jobs there are",
            SlurmTrouble::NoAccounting => "none is needed: the run's own files say how it ended",
            SlurmTrouble::NoSlurm => "run this on a login node of the cluster, where `sinfo` works",
            SlurmTrouble::Refused(_) => "change the Slurm file; `sinfo` lists partitions and nodes",
        }
    }
}

/// Parts of messages, and what they mean. The first that is found counts.
const SAID: [(&str, SlurmTrouble); 10] = [
    ("Unable to contact slurm controller", SlurmTrouble::ControllerDown),
    ("Socket timed out on send/recv", SlurmTrouble::ControllerDown),
    ("Zero Bytes were transmitted or received", SlurmTrouble::ControllerDown),
    ("is DOWN", SlurmTrouble::ControllerDown),
    ("Invalid job id specified", SlurmTrouble::UnknownJob),
    ("accounting storage is disabled", SlurmTrouble::NoAccounting),
    ("not running a supported accounting_storage plugin", SlurmTrouble::NoAccounting),
    ("Could not establish a configuration source", SlurmTrouble::NoSlurm),
    ("command not found", SlurmTrouble::NoSlurm),
    ("No such file or directory", SlurmTrouble::NoSlurm),
];

/// Reads what a command said that failed, on both of its streams.
pub fn trouble(said: &str) -> SlurmTrouble {
    if let Some((_, trouble)) = SAID.iter().find(|(part, _)| said.contains(part)) {
        return trouble.clone();
    }
    // `sbatch: error: Batch job submission failed: Invalid partition name specified`
    let errors = said.lines().map(str::trim).filter(|line| !line.is_empty());
    let words = errors.map(|line| line.split_once("error: ").map_or(line, |(_, words)| words));
    SlurmTrouble::Refused(words.collect::<Vec<_>>().join("; ").chars().take(400).collect())
}

/// Reads the job's number out of what `sbatch --parsable` says: `42`, or `42;cluster`.
pub fn read_submitted(said: &str) -> Option<u64> {
    let last = said.lines().map(str::trim).rfind(|line| !line.is_empty())?;
    last.split(';').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_told_apart() {
        let said = [
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
        use SlurmTrouble::*;
        let words = "invalid partition specified: nope; Batch job submission failed: Invalid partition name specified";
        assert_eq!(
            said.map(trouble),
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
    fn the_number_of_a_job_is_read_with_and_without_its_cluster() {
        let said = ["42\n", "42;north\n", "sbatch: a word from the site\n42\n", "", "Submitted batch job 42"];
        assert_eq!(said.map(read_submitted), [Some(42), Some(42), Some(42), None, None]);
    }
}
