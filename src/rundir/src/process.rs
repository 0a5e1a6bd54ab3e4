//! Files that a node's supervisor writes about its processes: their ids, and how they ended.

use crate::files::{Versioned, present, read_toml, write_atomic, write_toml};
use crate::{Error, Failure, RunDir};
use cluster::NodeId;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use text_file::{MAX_TEXT, read_regular};

/// `NNNN.pid.toml`: the processes of an attempt on a node. A program compares running processes with this file before
/// it signals them.
///
/// The kernel may reuse a process id. Together with the boot id and the start time, it is unique.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PidFile {
    /// [`crate::SCHEMA`].
    pub schema: u32,
    /// The attempt.
    pub attempt: u32,
    /// The node.
    pub node: NodeId,
    /// The process id of the supervisor.
    pub pid: i32,
    /// The process group of the supervisor and its ranks.
    pub pgid: i32,
    /// `/proc/sys/kernel/random/boot_id` of the node.
    pub boot_id: String,
    /// Field 22 of `/proc/PID/stat`: start time in clock ticks since boot.
    pub start_ticks: u64,
    /// When the supervisor started the ranks, Unix seconds.
    pub started_s: f64,
    /// The ranks of this node.
    #[serde(default)]
    pub ranks: Vec<RankPid>,
}

impl Versioned for PidFile {
    fn version(&self) -> u32 {
        self.schema
    }
}

/// The process of a rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankPid {
    /// The rank.
    pub rank: usize,
    /// The process id.
    pub pid: i32,
    /// Its start time in clock ticks since boot.
    pub start_ticks: u64,
}

/// `NNNN.exit.toml`: the end of an attempt on a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExitFile {
    /// [`crate::SCHEMA`].
    pub schema: u32,
    /// The attempt.
    pub attempt: u32,
    /// The node.
    pub node: NodeId,
    /// When the last rank ended, Unix seconds.
    pub ended_s: f64,
    /// How the attempt ended on this node.
    pub reason: ExitReason,
    /// The first rank that failed, if it is on this node. The other ranks failed because of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_failure: Option<usize>,
    /// The error, if the attempt failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// How each rank of this node ended.
    #[serde(default)]
    pub ranks: Vec<RankExit>,
}

impl Versioned for ExitFile {
    fn version(&self) -> u32 {
        self.schema
    }
}

/// How an attempt ended on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitReason {
    /// All steps are done.
    Finished,
    /// The run saved and stopped on request.
    Stopped,
    /// A rank failed.
    Failed,
    /// A user killed the attempt before it could save.
    Killed,
}

/// The end of one rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankExit {
    /// The rank.
    pub rank: usize,
    /// Its exit code; `None` if a signal ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// The signal that ended it; `None` if it exited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// The last step that it logged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_step: Option<u64>,
    /// When it ended, Unix seconds.
    pub ended_s: f64,
    /// The last lines of its standard error.
    #[serde(default)]
    pub stderr_tail: Vec<String>,
}

impl RunDir {
    /// Returns the nodes that have a folder in the run, sorted by name.
    ///
    /// # Errors
    /// [`Error::File`]; a missing folder is an empty list.
    pub fn node_ids(&self) -> Result<Vec<NodeId>, Error> {
        let dir = self.nodes();
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(Error::io("list", &dir, e)),
        };
        let mut nodes = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|e| Error::io("list", &dir, e))?;
            if entry.path().is_dir() {
                nodes.extend(NodeId::from_file_name(&entry.file_name().to_string_lossy()));
            }
        }
        nodes.sort();
        Ok(nodes)
    }

    /// Reads a node's process file. Returns `None` while it does not exist.
    ///
    /// # Errors
    /// As [`read_toml`], except for a missing file.
    pub fn read_pid(&self, node: &NodeId, attempt: u32) -> Result<Option<PidFile>, Error> {
        present(read_toml(&self.pid_toml(node, attempt)))
    }

    /// Writes a node's process file.
    ///
    /// # Errors
    /// As [`write_toml`].
    pub fn write_pid(&self, pid: &PidFile) -> Result<(), Error> {
        write_toml(&self.pid_toml(&pid.node, pid.attempt), pid)
    }

    /// Reads the exit file of a node. Returns `None` while the attempt has not ended there.
    ///
    /// # Errors
    /// As [`read_toml`], except for a missing file.
    pub fn read_exit(&self, node: &NodeId, attempt: u32) -> Result<Option<ExitFile>, Error> {
        present(read_toml(&self.exit_toml(node, attempt)))
    }

    /// Reads the error that a rank recorded. Returns `None` if there is none or it cannot be read.
    pub fn read_rank_failure(&self, node: &NodeId, attempt: u32, rank: usize) -> Option<Failure> {
        serde_json::from_slice(&read_regular(self.rank_failure(node, attempt, rank), MAX_TEXT).ok()?).ok()
    }

    /// Records the error of a rank for the supervisor of its node.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn write_rank_failure(&self, node: &NodeId, attempt: u32, rank: usize, failure: &Failure) -> Result<(), Error> {
        let path = self.rank_failure(node, attempt, rank);
        let json = serde_json::to_vec(failure).map_err(|error| Error::malformed(&path, error.to_string()))?;
        write_atomic(&path, &json)
    }

    /// Writes the memory snapshot of a rank that ran out of memory.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn write_memory_snapshot(
        &self,
        node: &NodeId,
        attempt: u32,
        rank: usize,
        snapshot: &serde_json::Value,
    ) -> Result<(), Error> {
        write_atomic(&self.memory_snapshot(node, attempt, rank), format!("{snapshot:#}\n").as_bytes())
    }

    /// Writes how an attempt ended on a node.
    ///
    /// # Errors
    /// As [`write_toml`].
    pub fn write_exit(&self, exit: &ExitFile) -> Result<(), Error> {
        write_toml(&self.exit_toml(&exit.node, exit.attempt), exit)
    }
}

impl ExitFile {
    /// Returns whether the node's ranks ended only because another rank failed or another node was lost.
    pub fn is_consequence(&self) -> bool {
        let follows = self.failure.as_ref().is_some_and(Failure::is_consequence);
        // The node had ranks, and none of them was the first to fail.
        let was_ended = self.first_failure.is_none() && !self.ranks.is_empty();
        self.reason == ExitReason::Failed && (follows || was_ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{node, temp};
    use crate::{ErrorCode, SCHEMA};

    fn pid() -> PidFile {
        PidFile {
            schema: SCHEMA,
            attempt: 2,
            node: node("ml-1"),
            pid: 4321,
            pgid: 4321,
            boot_id: "7b1d3c56-8a51-4d0c-9f0b-2f8e2a6f1c11".into(),
            start_ticks: 123_456,
            started_s: 1000.5,
            ranks: vec![RankPid { rank: 0, pid: 4330, start_ticks: 123_460 }],
        }
    }

    fn exit() -> ExitFile {
        ExitFile {
            schema: SCHEMA,
            attempt: 2,
            node: node("ml-1"),
            ended_s: 1100.25,
            reason: ExitReason::Failed,
            first_failure: Some(1),
            failure: Some(Failure::new(ErrorCode::RankKilled, "rank 1 died", "signal 9\n\"killed\"", "resume")),
            ranks: vec![
                RankExit {
                    rank: 0,
                    code: Some(1),
                    signal: None,
                    last_step: Some(40),
                    ended_s: 1100.0,
                    stderr_tail: vec![],
                },
                RankExit {
                    rank: 1,
                    code: None,
                    signal: Some(9),
                    last_step: None,
                    ended_s: 1099.0,
                    stderr_tail: vec!["a \"quoted\" line".into(), "\u{1b}[31mred".into()],
                },
            ],
        }
    }

    #[test]
    fn process_and_exit_files_are_read_as_they_were_written() {
        let (_keep, run) = temp();
        fs::create_dir_all(run.node_dir(&node("ml-1"))).unwrap();
        run.write_pid(&pid()).unwrap();
        run.write_exit(&exit()).unwrap();
        assert_eq!(run.read_pid(&node("ml-1"), 2).unwrap(), Some(pid()));
        assert_eq!(run.read_exit(&node("ml-1"), 2).unwrap(), Some(exit()));
    }

    #[test]
    fn a_node_ended_as_a_consequence_unless_one_of_its_ranks_failed_first() {
        assert!(!exit().is_consequence());
        let lost = Some(Failure::new(ErrorCode::NodeLost, "node ml-3 was lost", "no heartbeat for 10 s", ""));
        let ended = ExitFile { first_failure: None, failure: lost, ..exit() };
        assert!(ended.is_consequence());
        let cannot_start = ExitFile { ranks: vec![], ..ended };
        assert!(!cannot_start.is_consequence());
        let hung_up = Some(Failure::peer_lost(None, "connection reset", ""));
        assert!(ExitFile { failure: hung_up, ..exit() }.is_consequence());
        assert!(!ExitFile { reason: ExitReason::Killed, first_failure: None, ..exit() }.is_consequence());
    }

    #[test]
    fn a_missing_or_torn_failure_of_a_rank_is_none() {
        let (_keep, run) = temp();
        let ml_1 = node("ml-1");
        fs::create_dir_all(run.node_dir(&ml_1)).unwrap();
        assert_eq!(run.read_rank_failure(&ml_1, 2, 7), None);
        let failure = Failure::peer_lost(None, "connection reset", "");
        run.write_rank_failure(&ml_1, 2, 7, &failure).unwrap();
        assert_eq!(run.read_rank_failure(&ml_1, 2, 7), Some(failure));
        fs::write(run.rank_failure(&ml_1, 2, 7), "{\"what\": \"").unwrap();
        assert_eq!(run.read_rank_failure(&ml_1, 2, 7), None);
    }

    #[test]
    fn a_file_that_does_not_exist_yet_is_none() {
        let (_keep, run) = temp();
        assert_eq!(run.read_pid(&node("ml-1"), 1).unwrap(), None);
        assert_eq!(run.read_exit(&node("ml-1"), 1).unwrap(), None);
        assert!(run.node_ids().unwrap().is_empty());
    }

    #[test]
    fn an_error_names_the_file_that_cannot_be_read() {
        let (_keep, run) = temp();
        fs::create_dir_all(run.node_dir(&node("ml-1"))).unwrap();
        fs::write(run.pid_toml(&node("ml-1"), 1), "schema = 1\npid = 'x'").unwrap();
        let error = run.read_pid(&node("ml-1"), 1).unwrap_err();
        assert!(matches!(&error, Error::Malformed { path, .. } if *path == run.pid_toml(&node("ml-1"), 1)), "{error}");
    }

    #[test]
    fn only_folders_with_the_name_of_a_node_are_nodes() {
        let (_keep, run) = temp();
        for name in ["ml-2", "ml-1", ".hidden", "not a node", "fe80++1@eth0", "::1"] {
            fs::create_dir_all(run.nodes().join(name)).unwrap();
        }
        fs::write(run.nodes().join("file"), "").unwrap();
        assert_eq!(run.node_ids().unwrap(), [node("fe80::1%eth0"), node("ml-1"), node("ml-2")]);
        assert_eq!(run.node_dir(&node("fe80::1%eth0")), run.nodes().join("fe80++1@eth0"));
    }
}
