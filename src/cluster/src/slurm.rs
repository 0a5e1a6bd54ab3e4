//! Slurm: what a job asks for, and what Slurm's commands say.
//!
//! Texts with an explicit format are read, since the JSON of these commands changes with every version. Times are asked
//! for as Unix seconds: a console far away does not know the cluster's time zone. Lines that are not understood are kept
//! and never stop the others from being read.

mod job;
mod node;
mod reply;
mod sight;
mod spec;
mod value;

pub use job::{Accounted, Job, JobDetails, JobState, read_accounting, read_job, read_queue};
pub use node::{NodeBase, NodeState, SlurmNode, read_nodes};
pub use reply::{SlurmTrouble, read_submitted, trouble};
pub use sight::{JobSeen, JobSight, Silence};
pub use spec::{SlurmSpec, SlurmSpecError};
pub use value::{ExitCode, SlurmTime, read_duration};

/// Lists jobs, finished ones too while Slurm remembers them. `--jobs=ID` makes it one; an unknown id is an error.
///
/// The name is last, for it may hold the separator.
pub const QUEUE: [&str; 6] = [
    "env",
    "SLURM_TIME_FORMAT=%s",
    "squeue",
    "--noheader",
    "--states=all",
    "--format=%i|%T|%r|%M|%l|%D|%N|%S|%e|%u|%P|%b|%j",
];

/// Lists nodes, once for each partition that they are in. The reason is last.
pub const NODES: [&str; 6] =
    ["env", "SLURM_TIME_FORMAT=%s", "sinfo", "--noheader", "--Node", "--format=%N|%P|%T|%c|%m|%G|%H|%E"];

/// Lists jobs and their steps as they were accounted. `--jobs=ID` makes it one. Where there is no database it fails. The name is
/// last.
pub const ACCOUNTING: [&str; 6] = [
    "env",
    "SLURM_TIME_FORMAT=%s",
    "sacct",
    "--noheader",
    "--parsable2",
    "--format=JobID,State,ExitCode,Elapsed,NodeList,Start,End,JobName",
];

/// Shows a job in full, in one line; its id comes after.
pub const JOB: [&str; 6] = ["env", "SLURM_TIME_FORMAT=%s", "scontrol", "-o", "show", "job"];

/// Says whether the controller answers: the cheapest of Slurm's questions.
pub const PING: [&str; 2] = ["scontrol", "ping"];

/// What could be read of a list, and the lines that could not.
#[derive(Debug, Clone, PartialEq)]
pub struct Rows<T> {
    /// The rows.
    pub rows: Vec<T>,
    /// Lines that are not rows, as they were.
    pub odd: Vec<String>,
}

impl<T> Rows<T> {
    /// Reads lines of `count` cells that are separated by `|`; the last may hold more of them.
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
