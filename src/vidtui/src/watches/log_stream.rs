//! The logs of all ranks of an attempt, merged.
//!
//! A poll reads the sizes of all files, and only the new bytes of files that have grown. What is read at once is bounded,
//! whatever the number of ranks and the sizes of their logs: of the rest, only the newest lines are read.

use super::{Ended, FOLLOW, LIST, Stream};
use camino::Utf8PathBuf;
use rundir::{Attempt, RunDir, RunId, Tail};
use std::convert::Infallible;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};
use tokio::task::block_in_place;
use ui::log_lines::in_order;
use ui::{Msg, RankLines, RunMsg};

/// The most bytes that are read when the logs are opened: enough to fill what the screen keeps.
const OPEN_BYTES: u64 = 2 << 20;
/// The most bytes that one poll reads.
const POLL_BYTES: u64 = 1 << 20;
/// The most bytes of one log that are read at once.
const LOG_BYTES: u64 = 256 << 10;
/// The fewest bytes of a log that are read at once: some lines.
const LEAST_BYTES: u64 = 4 << 10;
/// The number of lines in one message, so that keys are handled in between.
const LINES: usize = 1000;
/// The number of logs from which they are polled less often.
const MANY: usize = 64;

/// The log of one rank, read up to an offset.
struct RankLog {
    rank: usize,
    path: Utf8PathBuf,
    offset: u64,
    /// Size and inode at the last poll.
    seen: (u64, u64),
}

/// The logs of an attempt.
pub(super) struct MergedLogs {
    attempt: u32,
    logs: Vec<RankLog>,
}

/// New lines of some logs, and the number of bytes before them that were not read.
#[derive(Debug, Default, PartialEq)]
pub(super) struct NewLogLines {
    pub(super) lines: Vec<(usize, String)>,
    pub(super) skipped_bytes: u64,
    /// Whether a file was replaced or truncated, so that earlier lines are no longer in it.
    pub(super) restarted: bool,
}

impl MergedLogs {
    /// Returns the logs of an attempt; nothing has been read yet.
    pub(super) fn new(dir: &RunDir, attempt: &Attempt) -> Self {
        let log = |place: &cluster::RankPlace| RankLog {
            rank: place.rank,
            path: dir.rank_log(&place.node, attempt.number, place.rank),
            offset: 0,
            seen: (0, 0),
        };
        Self { attempt: attempt.number, logs: attempt.placement.ranks.iter().map(log).collect() }
    }

    /// Reads the last lines of all logs, in the order of [`in_order`].
    pub(super) fn open(&mut self) -> io::Result<NewLogLines> {
        self.read(OPEN_BYTES)
    }

    /// Reads the lines that were added to logs.
    pub(super) fn poll(&mut self) -> io::Result<NewLogLines> {
        self.read(POLL_BYTES)
    }

    fn read(&mut self, bytes: u64) -> io::Result<NewLogLines> {
        let mut new = NewLogLines::default();
        let mut grown = Vec::new();
        for log in &mut self.logs {
            let seen = match fs::metadata(&log.path) {
                Ok(meta) => (meta.len(), meta.ino()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => (0, 0),
                Err(error) => return Err(error),
            };
            if seen == log.seen {
                continue;
            }
            let is_replaced = log.seen.1 != 0 && log.seen.1 != seen.1;
            if seen.0 < log.offset || is_replaced {
                new.restarted = true;
                log.offset = 0;
            }
            log.seen = seen;
            grown.push(log);
        }
        let each = (bytes / grown.len().max(1) as u64).clamp(LEAST_BYTES, LOG_BYTES);
        let mut read = Vec::new();
        for log in grown {
            let unread = log.seen.0.saturating_sub(log.offset);
            let mut tail = if unread > each {
                Tail::<String>::near_end(&log.path, each)?
            } else {
                Tail::at(&log.path, log.offset)
            };
            new.skipped_bytes += tail.offset().saturating_sub(log.offset);
            let batch = tail.poll()?;
            log.offset = tail.offset();
            read.push((log.rank, batch.items));
        }
        new.lines = in_order(read);
        Ok(new)
    }

    /// Returns how often the logs are polled: reading the sizes of many files over a network is not free.
    fn interval(&self) -> Duration {
        if self.logs.len() > MANY { LIST } else { FOLLOW }
    }
}

impl Stream {
    pub(super) async fn logs(&self, run: &RunId, pinned: Option<u32>) -> Result<Infallible, Ended> {
        let dir = self.workspace.dir(run);
        let mut open: Option<MergedLogs> = None;
        let mut listed = Instant::now();
        loop {
            let is_due = open.is_none() || pinned.is_none() && listed.elapsed() >= LIST;
            let mut is_new = false;
            if is_due {
                listed = Instant::now();
                // An attempt that cannot be read now may be readable next time.
                let attempt = block_in_place(|| match pinned {
                    Some(number) => dir.read_attempt(number).ok(),
                    None => dir.latest_attempt().ok().flatten(),
                });
                let is_other = |attempt: &Attempt| open.as_ref().is_none_or(|open| open.attempt != attempt.number);
                if let Some(attempt) = attempt.filter(is_other) {
                    is_new = true;
                    let is_first = open.is_none();
                    let mut logs = MergedLogs::new(&dir, &attempt);
                    if let Some(new) = block_in_place(|| self.or_lost(run, logs.open()))? {
                        self.send_lines(run, logs.attempt, is_first, new).await?;
                        open = Some(logs);
                    }
                }
            }
            if let Some(logs) = open.as_mut().filter(|_| !is_new)
                && let Some(new) = block_in_place(|| self.or_lost(run, logs.poll()))?
                && (new.restarted || !new.lines.is_empty() || new.skipped_bytes > 0)
            {
                self.send_lines(run, logs.attempt, false, new).await?;
            }
            self.pause(open.as_ref().map_or(LIST, MergedLogs::interval)).await?;
        }
    }

    async fn send_lines(&self, run: &RunId, attempt: u32, is_first: bool, new: NewLogLines) -> Result<(), Ended> {
        let (mut from_start, mut skipped_bytes) = (is_first, new.skipped_bytes);
        let mut lines = new.lines.into_iter();
        loop {
            let part: Vec<(usize, String)> = lines.by_ref().take(LINES).collect();
            let is_caught_up = lines.len() == 0;
            let lines = RankLines {
                attempt,
                from_start: std::mem::take(&mut from_start),
                is_caught_up,
                skipped_bytes: std::mem::take(&mut skipped_bytes),
                lines: part,
            };
            self.send(Msg::Run { run: run.clone(), what: RunMsg::Logs(lines) }).await?;
            if is_caught_up {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::{Node, NodeId, Placement};
    use std::io::Write;

    struct Site {
        _keep: tempfile::TempDir,
        dir: RunDir,
        logs: MergedLogs,
    }

    impl Site {
        fn new(ranks: usize) -> Self {
            let keep = tempfile::tempdir().unwrap();
            let dir = RunDir::new(Utf8PathBuf::from_path_buf(keep.path().join("run")).unwrap());
            let nodes = [Node { id: NodeId::new("n0").unwrap(), slots: ranks }];
            fs::create_dir_all(dir.rank_log(&nodes[0].id, 1, 0).parent().unwrap()).unwrap();
            let ranks = Placement::new(&nodes, ranks).unwrap().ranks.into_iter();
            let logs = ranks
                .map(|place| RankLog {
                    rank: place.rank,
                    path: dir.rank_log(&place.node, 1, place.rank),
                    offset: 0,
                    seen: (0, 0),
                })
                .collect();
            Self { _keep: keep, dir, logs: MergedLogs { attempt: 1, logs } }
        }

        fn write(&self, rank: usize, text: &str) {
            let path = self.dir.rank_log(&NodeId::new("n0").unwrap(), 1, rank);
            fs::OpenOptions::new().create(true).append(true).open(path).unwrap().write_all(text.as_bytes()).unwrap();
        }
    }

    #[test]
    fn new_lines_of_every_rank_are_read_once() {
        let mut site = Site::new(3);
        site.write(0, "a\nb\n");
        site.write(2, "c\nhalf");
        let mut opened = site.logs.open().unwrap().lines;
        opened.sort();
        assert_eq!(opened, [(0, "a".into()), (0, "b".into()), (2, "c".into())]);
        assert_eq!(site.logs.poll().unwrap(), NewLogLines::default());
        site.write(2, " line\n");
        site.write(1, "late\n");
        assert_eq!(site.logs.poll().unwrap().lines, [(1, "late".into()), (2, "half line".into())]);
        assert_eq!(site.logs.poll().unwrap(), NewLogLines::default());
    }

    #[test]
    fn a_burst_of_many_ranks_is_bounded_and_its_newest_lines_are_read() {
        let mut site = Site::new(16);
        site.logs.open().unwrap();
        let burst: String = (0..40_000).map(|n| format!("line {n}\n")).collect();
        (0..16).for_each(|rank| site.write(rank, &burst));
        let new = site.logs.poll().unwrap();
        let read: u64 = new.lines.iter().map(|(_, line)| line.len() as u64 + 1).sum();
        assert!(read <= POLL_BYTES, "{read}");
        assert!(new.skipped_bytes > 0);
        for rank in 0..16 {
            let last = new.lines.iter().rfind(|(of, _)| *of == rank).unwrap();
            assert_eq!(last.1, "line 39999");
        }
        assert_eq!(site.logs.poll().unwrap(), NewLogLines::default());
    }

    #[test]
    fn a_truncated_log_is_read_from_its_start() {
        let mut site = Site::new(1);
        site.write(0, "one\ntwo\n");
        site.logs.open().unwrap();
        fs::write(&site.logs.logs[0].path, "new\n").unwrap();
        let new = site.logs.poll().unwrap();
        assert_eq!((new.lines, new.restarted), (vec![(0, "new".to_owned())], true));
    }
}
