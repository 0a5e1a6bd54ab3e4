//! The files in which a rank reports its step and phase, and the collectives that it waits for.

use crate::{Error, Failure, RunDir, SCHEMA, Unwritten};
use camino::{Utf8Path, Utf8PathBuf};
use cluster::NodeId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::os::unix::fs::FileExt;
use std::{fs, io};
use text_file::{MAX_TEXT, read_regular};

/// The seconds between the heartbeats of a rank.
pub const HEARTBEAT_EVERY_S: f64 = 5.0;

/// The step and phase of a rank. A thread of the rank replaces the file every [`HEARTBEAT_EVERY_S`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// [`SCHEMA`].
    pub v: u32,
    /// The rank.
    pub rank: usize,
    /// When, Unix seconds.
    pub t: f64,
    /// The number of complete steps.
    pub step: u64,
    /// The phase, such as `backward`.
    pub phase: String,
    /// When the phase began, Unix seconds.
    pub phase_t: f64,
    /// The lines of metrics and events that this rank could not write yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unwritten: Option<Unwritten>,
    /// The newest save, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_save: Option<FailedSave>,
}

impl Heartbeat {
    /// Returns whether heartbeats of the rank are missing at a time, Unix seconds: the process is stopped, or its node or file system does
    /// not respond.
    pub fn is_late(&self, now_s: f64) -> bool {
        now_s - self.t > 3.0 * HEARTBEAT_EVERY_S
    }
}

/// A checkpoint that could not be saved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FailedSave {
    /// When, Unix seconds.
    pub t: f64,
    /// The step.
    pub step: u64,
    /// Why.
    pub failure: Failure,
}

/// The collectives of one rank. The rank replaces the file once a minute while it stays in the same phase.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankCollectives {
    /// [`SCHEMA`].
    pub v: u32,
    /// The rank.
    pub rank: usize,
    /// When, Unix seconds.
    pub t: f64,
    /// The process groups of the rank.
    pub groups: Vec<GroupCollectives>,
}

/// The collectives of one rank in one process group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GroupCollectives {
    /// The name of the group, such as `tp-of-replica-0-shard-1`.
    pub group: String,
    /// The ranks of the group.
    pub ranks: Vec<usize>,
    /// The number of the last collective that the rank started; 0 before the first.
    pub started: u64,
    /// The collectives that are not complete, in the order in which the rank started them.
    pub waiting: Vec<WaitingCollective>,
}

/// A collective that a rank started and that is not complete.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WaitingCollective {
    /// Its number in the group.
    pub number: u64,
    /// The operation, such as `nccl:all_reduce`.
    pub operation: String,
    /// When the rank started it, Unix seconds.
    pub started_s: f64,
}

impl RunDir {
    /// Reads the heartbeat of a rank. Returns `None` before the first one.
    pub fn read_heartbeat(&self, node: &NodeId, attempt: u32, rank: usize) -> Option<Heartbeat> {
        read(&self.heartbeat(node, attempt, rank)).filter(|beat: &Heartbeat| beat.v <= SCHEMA)
    }

    /// Writes the heartbeat of a rank. The file is not synced, because a heartbeat is useless after a crash of the
    /// node.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn write_heartbeat(&self, node: &NodeId, attempt: u32, beat: &Heartbeat) -> Result<(), Error> {
        replace(&self.heartbeat(node, attempt, beat.rank), beat)
    }

    /// Reads the collectives of a rank, if it recorded them.
    pub fn read_rank_collectives(&self, node: &NodeId, attempt: u32, rank: usize) -> Option<RankCollectives> {
        read(&self.rank_collectives(node, attempt, rank)).filter(|record: &RankCollectives| record.v <= SCHEMA)
    }

    /// Records the collectives of a rank. The file is not synced.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn write_rank_collectives(&self, node: &NodeId, attempt: u32, record: &RankCollectives) -> Result<(), Error> {
        replace(&self.rank_collectives(node, attempt, record.rank), record)
    }

    /// Returns the paths of the records that libtorch wrote when NCCL timed out on a node, sorted.
    pub fn nccl_dumps(&self, node: &NodeId, attempt: u32) -> Vec<Utf8PathBuf> {
        let prefix = self.nccl_dump_prefix(node, attempt);
        let entries = self.node_dir(node).read_dir_utf8().into_iter().flatten().flatten();
        let mut dumps: Vec<_> = entries.map(|entry| entry.into_path()).collect();
        dumps.retain(|path| path.as_str().starts_with(prefix.as_str()));
        dumps.sort();
        dumps
    }
}

fn read<T: DeserializeOwned>(path: &Utf8Path) -> Option<T> {
    serde_json::from_slice(&read_regular(path, MAX_TEXT).ok()?).ok()
}

/// Replaces a file, so that a reader sees the whole old or the whole new content. If the disk has no room for the new file, overwrites the
/// old one, which needs none; a reader may then see a mixture, which is no JSON.
fn replace<T: Serialize>(path: &Utf8Path, value: &T) -> Result<(), Error> {
    let text =
        serde_json::to_vec(value).map_err(|e| Error::malformed(path, format!("the value has no JSON form: {e}")))?;
    let new = Utf8PathBuf::from(format!("{path}.new"));
    let replaced = fs::write(&new, &text).and_then(|()| fs::rename(&new, path));
    replaced.or_else(|error| overwrite(path, text).map_err(|_| Error::io("write", path, error)))
}

/// Overwrites a file with a text and spaces up to the old length.
fn overwrite(path: &Utf8Path, mut text: Vec<u8>) -> io::Result<()> {
    let file = fs::OpenOptions::new().write(true).open(path)?;
    let old = usize::try_from(file.metadata()?.len()).unwrap_or(0);
    text.resize(text.len().max(old), b' ');
    file.write_all_at(&text, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{node, temp};

    #[test]
    fn the_newest_heartbeat_is_read_and_one_of_a_newer_version_is_not() {
        let (_keep, run) = temp();
        let node = node("ml-1");
        fs::create_dir_all(run.node_dir(&node)).unwrap();
        assert_eq!(run.read_heartbeat(&node, 1, 3), None);
        let beat = |v, step| Heartbeat {
            v,
            rank: 3,
            t: 2.5,
            step,
            phase: "backward".into(),
            phase_t: 1.5,
            unwritten: None,
            failed_save: None,
        };
        for step in [1, 2] {
            run.write_heartbeat(&node, 1, &beat(SCHEMA, step)).unwrap();
            assert_eq!(run.read_heartbeat(&node, 1, 3), Some(beat(SCHEMA, step)));
        }
        run.write_heartbeat(&node, 1, &beat(SCHEMA + 1, 3)).unwrap();
        assert_eq!(run.read_heartbeat(&node, 1, 3), None);
    }

    #[test]
    fn a_heartbeat_is_overwritten_if_there_is_no_room_for_a_new_file() {
        let (_keep, run) = temp();
        let node = node("ml-1");
        fs::create_dir_all(run.node_dir(&node)).unwrap();
        let why = Unwritten {
            since_s: 1.0,
            path: "metrics.jsonl".into(),
            code: crate::ErrorCode::DiskFull,
            why: "full".repeat(99),
            lines: 2,
            lost: 0,
        };
        let beat = |step, unwritten| Heartbeat {
            v: SCHEMA,
            rank: 3,
            t: 2.5,
            step,
            phase: "backward".into(),
            phase_t: 1.5,
            unwritten,
            failed_save: None,
        };
        run.write_heartbeat(&node, 1, &beat(1, None)).unwrap();
        // A folder in the place of the new file stands in for a full disk.
        fs::create_dir(format!("{}.new", run.heartbeat(&node, 1, 3))).unwrap();
        for (step, unwritten) in [(2, Some(why)), (3, None)] {
            run.write_heartbeat(&node, 1, &beat(step, unwritten.clone())).unwrap();
            assert_eq!(run.read_heartbeat(&node, 1, 3), Some(beat(step, unwritten)));
        }
    }

    #[test]
    fn the_records_of_nccl_are_those_of_the_attempt() {
        let (_keep, run) = temp();
        let node = node("ml-1");
        assert_eq!(run.nccl_dumps(&node, 1), [""; 0]);
        fs::create_dir_all(run.node_dir(&node)).unwrap();
        for (attempt, rank) in [(1, 2), (1, 0), (2, 0)] {
            fs::write(format!("{}{rank}", run.nccl_dump_prefix(&node, attempt)), "").unwrap();
        }
        let names: Vec<_> = run.nccl_dumps(&node, 1).iter().map(|path| path.file_name().unwrap().to_owned()).collect();
        assert_eq!(names, ["0001-nccl-rank-0", "0001-nccl-rank-2"]);
    }
}
