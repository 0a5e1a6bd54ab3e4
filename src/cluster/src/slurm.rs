//! Slurm: requests for jobs, and the output of Slurm's commands.
//!
//! The commands print text in an explicit format, because their JSON changes with every version. Times are requested in Unix
//! seconds, because the console may be in another time zone. Lines that cannot be parsed are kept and do not affect others.

mod job;
mod node;
mod reply;
mod spec;
mod status;
mod value;

pub use job::{Accounted, Job, JobDetails, JobState, read_accounting, read_job, read_queue};
pub use node::{NodeBase, NodeState, SlurmNode, read_nodes};
pub use reply::{SlurmError, parse_error, read_submitted};
pub use spec::{SlurmSpec, SlurmSpecError};
pub use status::{JobReply, JobStatus, NoReply};
pub use value::{ExitCode, SlurmTime, read_duration};

/// Lists jobs, including finished ones that Slurm still has. `--jobs=ID` restricts it to one; an unknown id is an error.
///
/// The name is last, because it may contain the separator.
pub const QUEUE: [&str; 6] = [
    "env",
    "SLURM_TIME_FORMAT=%s",
    "squeue",
    "--noheader",
    "--states=all",
    "--format=%i|%T|%r|%M|%l|%D|%N|%S|%e|%u|%P|%b|%j",
];

/// Lists nodes, once per partition. The reason is last.
pub const NODES: [&str; 6] =
    ["env", "SLURM_TIME_FORMAT=%s", "sinfo", "--noheader", "--Node", "--format=%N|%P|%T|%c|%m|%G|%H|%E"];

/// Lists jobs and their steps from accounting. `--jobs=ID` restricts it to one. Fails without an accounting database. The name
/// is last.
pub const ACCOUNTING: [&str; 6] = [
    "env",
    "SLURM_TIME_FORMAT=%s",
    "sacct",
    "--noheader",
    "--parsable2",
    "--format=JobID,State,ExitCode,Elapsed,NodeList,Start,End,JobName",
];

/// Shows all details of a job in one line; append its id.
pub const JOB: [&str; 6] = ["env", "SLURM_TIME_FORMAT=%s", "scontrol", "-o", "show", "job"];

/// The rows of a list, and the lines that could not be parsed.
#[derive(Debug, Clone, PartialEq)]
pub struct Rows<T> {
    /// The rows.
    pub rows: Vec<T>,
    /// Lines that are not rows, unchanged.
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
