//! Slurm: the commands that query it, the parsers of their output, and the file in which a user requests resources.
//!
//! The commands print text in an explicit format, because their JSON changes with every version. Times are requested in Unix
//! seconds, because the console may be in another time zone. A line that cannot be parsed is kept as text; the other lines are read.

mod environment;
mod job;
mod node;
mod reason;
mod reply;
mod sbatch;
mod spec;
mod status;
mod value;

pub use environment::{Adopted, CLUSTERS, REMOVED_FROM_STEPS, is_removed};
pub use job::{Accounted, Job, JobDetails, JobState, read_accounting, read_job, read_queue};
pub use node::{NodeBase, NodeState, SlurmNode, read_nodes};
pub use reason::{PendingReason, Wait};
pub use reply::{SlurmError, parse_error, read_submitted};
pub use sbatch::{Meaning, meaning, quoted};
pub use spec::{SlurmSpec, SlurmSpecError};
pub use status::{JobReply, JobStatus, NoReply};
pub use value::{ExitCode, SlurmTime, read_duration};

/// Lists jobs, including ended jobs that Slurm still has. Append `--jobs=ID` for one job; an unknown id is an error.
///
/// The name is the last column, because it may contain the separator `|`.
pub const QUEUE: [&str; 6] = [
    "env",
    "SLURM_TIME_FORMAT=%s",
    "squeue",
    "--noheader",
    "--states=all",
    "--format=%i|%T|%r|%M|%l|%D|%N|%S|%e|%u|%P|%b|%j",
];

/// Lists nodes, each once per partition. The reason is the last column, because it may contain the separator.
pub const NODES: [&str; 6] =
    ["env", "SLURM_TIME_FORMAT=%s", "sinfo", "--noheader", "--Node", "--format=%N|%P|%T|%c|%m|%G|%H|%E"];

/// Lists jobs and their steps from accounting. Append `--jobs=ID` for one job. The command fails without an accounting database.
/// The name is the last column.
pub const ACCOUNTING: [&str; 6] = [
    "env",
    "SLURM_TIME_FORMAT=%s",
    "sacct",
    "--noheader",
    "--parsable2",
    "--format=JobID,State,ExitCode,Elapsed,NodeList,Start,End,JobName",
];

/// Shows all details of a job in one line. Append the id of the job.
pub const JOB: [&str; 6] = ["env", "SLURM_TIME_FORMAT=%s", "scontrol", "-o", "show", "job"];

/// The rows of a list, and the lines that could not be parsed.
#[derive(Debug, Clone, PartialEq)]
pub struct Rows<T> {
    /// The rows.
    pub rows: Vec<T>,
    /// The lines that could not be parsed, unchanged.
    pub odd: Vec<String>,
}

impl<T> Rows<T> {
    /// Reads lines of `count` cells with the separator `|`; the last cell may contain it.
    fn read(text: &str, count: usize, row: impl Fn(&[&str]) -> Option<T>) -> Self {
        let (mut rows, mut odd) = (Vec::new(), Vec::new());
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let cells: Vec<&str> = line.splitn(count, '|').map(str::trim).collect();
            match (cells.len() == count).then(|| row(&cells)).flatten() {
                Some(read) => rows.push(read),
                None => odd.push(line.into()),
            }
        }
        Rows { rows, odd }
    }
}

#[cfg(test)]
mod tests;
