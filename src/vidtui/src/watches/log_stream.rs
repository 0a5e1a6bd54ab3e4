//! The stream of the merged logs of all ranks of an attempt.
//!
//! A poll reads the sizes of files, and only the new bytes of files that have grown. The bytes that one poll reads are bounded, whatever
//! the number of ranks and the sizes of their logs. If a log has more bytes, only its newest lines are read. If more logs have grown
//! than fit into the bound, the next poll begins with the remaining logs.
//!
//! The bytes that are not read are searched for their first error ([`ErrorSearch`]): those before the lines that are read when the logs
//! are opened, after these lines have been sent; the beginning of a burst, or of an attempt that starts while logs are open, in the read
//! that skips it.

use super::error_search::{ErrorSearch, Part};
use super::{Ended, FOLLOW, LIST, Stream};
use camino::{Utf8Path, Utf8PathBuf};
use rundir::{Attempt, RunDir, RunId, Tail};
use std::convert::Infallible;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant, UNIX_EPOCH};
use tokio::task::block_in_place;
use ui::log_lines::{in_order, time_s};
use ui::{EarlierErrors, Msg, RankLines, RunMsg};

/// The most bytes that are read when the logs are opened: enough to fill what the screen keeps.
const OPEN_BYTES: u64 = 2 << 20;
/// The most bytes that one poll reads.
const POLL_BYTES: u64 = 1 << 20;
/// The most bytes of one log that are read at once.
const LOG_BYTES: u64 = 256 << 10;
/// The least share of a poll for one log: a few lines. This limits the number of logs that one poll reads.
const LEAST_BYTES: u64 = 2 << 10;
/// The most skipped bytes that one poll searches for errors.
const BURST_BYTES: u64 = 64 << 20;
/// The number of lines in one message, so that keys are handled in between.
const LINES: usize = 200;
/// More logs than this are polled less often.
const MANY: usize = 64;
/// All time zones differ from UTC by a multiple of this.
const ZONE_STEP_S: f64 = 900.0;
/// The seconds by which clocks may differ.
const CLOCKS_S: f64 = 60.0;

/// The log of one rank, read up to an offset.
struct RankLog {
    rank: usize,
    path: Utf8PathBuf,
    offset: u64,
    /// When the log was opened, the lines that begin at this byte or before it were not read; 0 if all were read.
    not_loaded_to: u64,
    /// The size and the inode at the last poll.
    seen: (u64, u64),
    /// Whether the log could not be read at the last poll.
    is_unreadable: bool,
}

/// The logs of an attempt.
pub(super) struct MergedLogs {
    attempt: u32,
    logs: Vec<RankLog>,
    /// The index of the log at which the next poll begins.
    next: usize,
    /// Whether the files are a copy, so that their modification times are those of the copy.
    is_copy: bool,
}

/// New lines of some logs.
#[derive(Debug, Default, PartialEq)]
pub(super) struct NewLogLines {
    pub(super) lines: Vec<(usize, String)>,
    /// The number of bytes before the lines that were not read.
    pub(super) skipped_bytes: u64,
    /// The time zone of the times in the lines, in seconds east of UTC, if it is known. Only opening the logs finds it.
    pub(super) zone_s: Option<i32>,
}

/// How a read treats skipped bytes.
#[derive(Clone, Copy)]
enum Skipped {
    /// Records them: they are searched later.
    Record,
    /// Searches at most this number of them.
    Search(u64),
}

impl MergedLogs {
    /// Returns the logs of an attempt; nothing has been read yet.
    pub(super) fn new(dir: &RunDir, attempt: &Attempt) -> Self {
        let log = |place: &cluster::RankPlace| {
            RankLog::new(place.rank, dir.rank_log(&place.node, attempt.number, place.rank))
        };
        let logs = attempt.placement.ranks.iter().map(log).collect();
        let written_s = written_s(&dir.attempt_toml(attempt.number));
        let is_copy = written_s.is_none_or(|written_s| written_s - attempt.started_s > ZONE_STEP_S);
        Self { attempt: attempt.number, logs, next: 0, is_copy }
    }

    /// Reads the last lines of all logs, in the order of [`in_order`].
    pub(super) fn open(&mut self) -> NewLogLines {
        self.read(OPEN_BYTES, Skipped::Record, true)
    }

    /// Reads the last lines of all logs of an attempt that follows another one. Searches the lines before them at once, because an error
    /// in them comes after the lines of the other attempt.
    pub(super) fn open_next(&mut self) -> NewLogLines {
        self.read(OPEN_BYTES, Skipped::Search(BURST_BYTES), true)
    }

    /// Reads the lines that were added to logs.
    pub(super) fn poll(&mut self) -> NewLogLines {
        self.read(POLL_BYTES, Skipped::Search(BURST_BYTES), false)
    }

    /// Returns a search in the lines that were not read when the logs were opened; `None` if all were read.
    pub(super) fn search(&self) -> Option<ErrorSearch> {
        let long = self.logs.iter().filter(|log| log.not_loaded_to > 0);
        let part = |log: &RankLog| Part { rank: log.rank, path: log.path.clone(), from: 0, to: log.not_loaded_to };
        ErrorSearch::new(long.map(part).collect())
    }

    fn read(&mut self, bytes: u64, skipped: Skipped, finds_zone: bool) -> NewLogLines {
        let most = usize::try_from(bytes / LEAST_BYTES).unwrap_or(usize::MAX);
        let (mut new, mut read, mut grown) = (NewLogLines::default(), Vec::new(), Vec::new());
        for turn in 0..self.logs.len() {
            let index = (self.next + turn) % self.logs.len();
            match self.logs[index].size() {
                Ok(size) if size != self.logs[index].seen => grown.push((index, size)),
                Ok(_) => {}
                Err(error) => read.extend(self.logs[index].fails(&error)),
            }
            if grown.len() == most {
                self.next = (index + 1) % self.logs.len();
                break;
            }
        }
        let share = |bytes: u64| bytes / grown.len().max(1) as u64;
        let each = share(bytes).min(LOG_BYTES);
        let skipped = match skipped {
            Skipped::Record => skipped,
            Skipped::Search(most) => Skipped::Search(share(most)),
        };
        let mut ahead_s: Option<f64> = None;
        for (index, size) in grown {
            let log = &mut self.logs[index];
            match log.read(size, each, skipped) {
                Ok((lines, skipped_bytes)) => {
                    if finds_zone && !self.is_copy {
                        // The largest value is the best one: the other files were written to after their last line, or copied.
                        ahead_s = log.ahead_s(&lines).into_iter().chain(ahead_s).reduce(f64::max);
                    }
                    new.skipped_bytes += skipped_bytes;
                    read.push((log.rank, lines));
                }
                Err(error) => read.extend(log.fails(&error)),
            }
        }
        new.zone_s = ahead_s.and_then(zone_s);
        new.lines = in_order(read);
        new
    }

    /// Returns how often the logs are polled. Reading the sizes of many files over a network takes time.
    fn interval(&self) -> Duration {
        if self.logs.len() > MANY { LIST } else { FOLLOW }
    }
}

impl RankLog {
    fn new(rank: usize, path: Utf8PathBuf) -> Self {
        Self { rank, path, offset: 0, not_loaded_to: 0, seen: (0, 0), is_unreadable: false }
    }

    /// Returns the size and the inode of the file.
    fn size(&self) -> io::Result<(u64, u64)> {
        match fs::metadata(&self.path) {
            Ok(meta) => Ok((meta.len(), meta.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok((0, 0)),
            Err(error) => Err(error),
        }
    }

    /// Reads the new lines in the last `most` bytes. Returns them with the number of new bytes before them that were skipped. An error
    /// that is found in the skipped bytes comes first, with the lines around it.
    fn read(&mut self, size: (u64, u64), most: u64, skipped: Skipped) -> io::Result<(Vec<String>, u64)> {
        let is_replaced = self.seen.1 != 0 && self.seen.1 != size.1;
        if size.0 < self.offset || is_replaced {
            self.offset = 0;
        }
        let mut tail = if size.0.saturating_sub(self.offset) > most + 1 {
            Tail::<String>::near_end(&self.path, most)?
        } else {
            Tail::at(&self.path, self.offset)
        };
        let began = tail.offset();
        let mut lines = tail.poll()?.items;
        (self.seen, self.is_unreadable) = (size, false);
        // A line without an end, such as a progress bar, is read when it ends. If it is longer than what is read when the logs are opened,
        // the lines before it are searched.
        if lines.is_empty() {
            let skips = matches!(skipped, Skipped::Record) && began > 0;
            if skips {
                (self.not_loaded_to, self.offset) = (began, began);
            }
            return Ok((lines, if skips { began } else { 0 }));
        }
        let skipped_bytes = began.saturating_sub(self.offset);
        match skipped {
            Skipped::Record => self.not_loaded_to = began,
            Skipped::Search(most) if skipped_bytes > 0 => {
                let part = Part { rank: self.rank, path: self.path.clone(), from: self.offset, to: began };
                let found = ErrorSearch::within(vec![part], most).and_then(|search| search.finish().found);
                let found = found.into_iter().flat_map(|error| error.lines).map(|(_, line)| line);
                lines.splice(..0, found);
            }
            Skipped::Search(_) => {}
        }
        self.offset = tail.offset();
        Ok((lines, skipped_bytes))
    }

    /// Returns by how many seconds the time of the last line, which has no zone, is ahead of the time at which the file was written. `None`
    /// if lines without a time or a progress bar follow: nothing tells when they were written.
    fn ahead_s(&self, lines: &[String]) -> Option<f64> {
        let last = lines.last().filter(|_| self.offset == self.seen.0).and_then(|line| time_s(line))?;
        Some(last - written_s(&self.path)?)
    }

    /// Returns a line about an error, once until the log can be read again. The other logs are still read.
    fn fails(&mut self, error: &io::Error) -> Option<(usize, Vec<String>)> {
        let is_known = std::mem::replace(&mut self.is_unreadable, true);
        (!is_known).then(|| (self.rank, vec![format!("vidtui: cannot read {}: {error}", self.path)]))
    }
}

/// Returns the modification time of a file, Unix seconds.
fn written_s(path: &Utf8Path) -> Option<f64> {
    let written = fs::metadata(path).ok()?.modified().ok()?;
    written.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs_f64())
}

/// Returns the time zone of a log, in seconds east of UTC, from the result of [`RankLog::ahead_s`].
///
/// A line with a time is written at that time, so that the time is ahead by the zone, up to a step of zones.
fn zone_s(ahead_s: f64) -> Option<i32> {
    let zone_s = ((ahead_s - CLOCKS_S) / ZONE_STEP_S).ceil() * ZONE_STEP_S;
    (-12.0 * 3600.0..=14.0 * 3600.0).contains(&zone_s).then_some(zone_s as i32)
}

impl Stream {
    pub(super) async fn logs(&self, run: &RunId, pinned: Option<u32>) -> Result<Infallible, Ended> {
        let dir = self.workspace.dir(run);
        let mut open: Option<MergedLogs> = None;
        let mut search = None;
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
                    // Read the last lines of the previous attempt first.
                    if let Some(before) = &mut open {
                        let rest = block_in_place(|| before.poll());
                        self.send_lines(run, before.attempt, false, rest).await?;
                    }
                    let is_first = open.is_none();
                    let mut logs = MergedLogs::new(&dir, &attempt);
                    let new = block_in_place(|| if is_first { logs.open() } else { logs.open_next() });
                    self.send_lines(run, logs.attempt, is_first, new).await?;
                    // The console shows an earlier error before the first line, which is of the first attempt.
                    search = if is_first { logs.search() } else { None };
                    open = Some(logs);
                }
            }
            if let Some(logs) = open.as_mut().filter(|_| !is_new) {
                let new = block_in_place(|| logs.poll());
                if new != NewLogLines::default() {
                    self.send_lines(run, logs.attempt, false, new).await?;
                }
            }
            let pause = open.as_ref().map_or(LIST, MergedLogs::interval);
            let attempt = open.as_ref().map_or(0, |logs| logs.attempt);
            self.search_or_pause(run, (None, attempt), &mut search, pause).await?;
        }
    }

    /// Makes steps of a search until `pause` has passed, and sends its result. Without a search, only pauses. `of` is the rank whose log
    /// is open, if it is only one, and the attempt.
    pub(super) async fn search_or_pause(
        &self,
        run: &RunId,
        of: (Option<usize>, u32),
        search: &mut Option<ErrorSearch>,
        pause: Duration,
    ) -> Result<(), Ended> {
        let until = Instant::now() + pause;
        while let Some(running) = search.as_mut().filter(|_| Instant::now() < until) {
            if self.stop.is_cancelled() {
                return Err(Ended);
            }
            if let Some(searched) = block_in_place(|| running.step()) {
                *search = None;
                let ((of, attempt), unsearched_bytes) = (of, searched.unsearched_bytes);
                let errors = EarlierErrors { of, attempt, found: searched.found, unsearched_bytes };
                self.send(Msg::Run { run: run.clone(), what: RunMsg::EarlierErrors(errors) }).await?;
            }
        }
        self.pause(until.saturating_duration_since(Instant::now())).await
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
                zone_s: new.zone_s,
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
            let logs = ranks.map(|place| RankLog::new(place.rank, dir.rank_log(&place.node, 1, place.rank))).collect();
            Self { _keep: keep, dir, logs: MergedLogs { attempt: 1, logs, next: 0, is_copy: false } }
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
        let mut opened = site.logs.open().lines;
        opened.sort();
        assert_eq!(opened, [(0, "a".into()), (0, "b".into()), (2, "c".into())]);
        assert_eq!(site.logs.poll(), NewLogLines::default());
        site.write(2, " line\n");
        site.write(1, "late\n");
        assert_eq!(site.logs.poll().lines, [(1, "late".into()), (2, "half line".into())]);
        assert_eq!(site.logs.poll(), NewLogLines::default());
    }

    #[test]
    fn a_burst_of_many_ranks_is_bounded_and_its_newest_lines_are_read() {
        let mut site = Site::new(16);
        site.logs.open();
        let burst: String = (0..40_000).map(|n| format!("line {n}\n")).collect();
        (0..16).for_each(|rank| site.write(rank, &burst));
        let new = site.logs.poll();
        let read: u64 = new.lines.iter().map(|(_, line)| line.len() as u64 + 1).sum();
        assert!(read <= POLL_BYTES, "{read}");
        assert!(new.skipped_bytes > 0);
        for rank in 0..16 {
            let last = new.lines.iter().rfind(|(of, _)| *of == rank).unwrap();
            assert_eq!(last.1, "line 39999");
        }
        assert_eq!(site.logs.poll(), NewLogLines::default());
    }

    #[test]
    fn an_error_at_the_beginning_of_a_burst_comes_before_its_newest_lines() {
        let mut site = Site::new(1);
        site.write(0, "started\n");
        site.logs.open();
        let burst: String = (0..200_000).map(|n| format!("line {n}\n")).collect();
        site.write(0, &format!("RuntimeError: cause\n{burst}"));
        let new = site.logs.poll();
        let texts: Vec<&str> = new.lines.iter().map(|(_, line)| line.as_str()).collect();
        assert_eq!(texts[..4], ["RuntimeError: cause", "line 0", "line 1", "line 2"]);
        assert!(texts[4] > "line 17" && new.skipped_bytes > 1 << 20, "{}", texts[4]);
        assert!(site.logs.search().is_none(), "the burst came after the logs were opened");
    }

    #[test]
    fn the_error_that_a_next_attempt_begins_with_comes_before_its_newest_lines() {
        let mut site = Site::new(1);
        let burst: String = (0..200_000).map(|n| format!("line {n}\n")).collect();
        site.write(0, &format!("RuntimeError: cause\n{burst}"));
        let new = site.logs.open_next();
        assert_eq!(new.lines[0].1, "RuntimeError: cause");
        assert_eq!(new.lines.last().unwrap().1, "line 199999");
        assert!(new.skipped_bytes > 1 << 20);
    }

    #[test]
    fn the_part_of_a_long_log_that_is_not_loaded_is_searched_and_a_short_log_is_not() {
        let mut site = Site::new(2);
        site.write(0, "short\nRuntimeError: loaded\n");
        site.write(1, "ValueError: bad shape\n");
        for _ in 0..5 {
            site.write(1, &"step 20 loss 0.31\n".repeat(60_000));
        }
        let opened = site.logs.open();
        assert!(!opened.lines.iter().any(|(_, line)| line.starts_with("ValueError")));
        let searched = site.logs.search().unwrap().finish();
        let found = searched.found.unwrap();
        assert_eq!((found.rank, found.lines[found.error].1.as_str()), (1, "ValueError: bad shape"));
        assert!(opened.skipped_bytes > 4 << 20);
        let shown: u64 = found.lines.iter().map(|(_, line)| line.len() as u64 + 1).sum();
        assert_eq!(found.bytes_before + shown + found.hidden_bytes, opened.skipped_bytes);
        let mut site = Site::new(1);
        site.write(0, "RuntimeError: loaded\n");
        site.logs.open();
        assert!(site.logs.search().is_none());
    }

    #[test]
    fn the_lines_before_a_long_progress_bar_without_an_end_are_searched() {
        let mut site = Site::new(1);
        site.write(0, "RuntimeError: cause\n");
        site.write(0, &"\r 10 %|###       | 20/200".repeat(20_000));
        let opened = site.logs.open();
        assert!(opened.lines.is_empty() && opened.skipped_bytes > 0);
        let found = site.logs.search().unwrap().finish().found.unwrap();
        assert_eq!(found.lines[found.error].1, "RuntimeError: cause");
        site.write(0, "\rdone\nnext\n");
        assert_eq!(site.logs.poll().lines, [(0, "next".into())]);
    }

    #[test]
    fn the_time_zone_of_a_log_follows_from_its_modification_time() {
        assert_eq!([0.0, 2.0, -30.0, -800.0].map(zone_s), [Some(0); 4]);
        assert_eq!([7200.0, 7130.0, 6500.0].map(zone_s), [Some(7200); 3]);
        assert_eq!(zone_s(-4.0 * 3600.0 - 10.0), Some(-4 * 3600));
        assert_eq!(zone_s(-40.0 * 3600.0), None);
        let mut site = Site::new(2);
        site.write(0, "no time\n");
        site.write(1, "no time\n2026-11-20 05:00:00 step 1\n");
        let four = UNIX_EPOCH + Duration::from_secs(1_795_147_200 + 30);
        fs::File::options().write(true).open(&site.logs.logs[1].path).unwrap().set_modified(four).unwrap();
        assert_eq!(site.logs.open().zone_s, Some(3600));
        for later in ["no time\n", "50 %\r"] {
            let mut site = Site::new(1);
            site.write(0, &format!("2026-11-20 05:00:00 step 1\n{later}"));
            assert_eq!(site.logs.open().zone_s, None, "nothing tells when {later:?} was written");
        }
        let mut site = Site::new(1);
        site.write(0, "2026-11-20 05:00:00 step 1\n");
        site.logs.is_copy = true;
        assert_eq!(site.logs.open().zone_s, None);
    }

    #[test]
    fn a_truncated_log_is_read_from_its_start() {
        let mut site = Site::new(1);
        site.write(0, "one\ntwo\n");
        site.logs.open();
        fs::write(&site.logs.logs[0].path, "new\n").unwrap();
        let new = site.logs.poll();
        assert_eq!(new.lines, vec![(0, "new".to_owned())]);
    }

    #[test]
    fn a_line_without_an_end_is_read_when_it_ends_and_skips_nothing_before() {
        let mut site = Site::new(1);
        site.write(0, "first\n");
        site.logs.open();
        for _ in 0..3 {
            site.write(0, &"\rstep".repeat(100_000));
            assert_eq!(site.logs.poll(), NewLogLines::default());
        }
        site.write(0, "\nlast\n");
        let new = site.logs.poll();
        assert_eq!(new.lines.last(), Some(&(0, "last".to_owned())));
        assert!(new.skipped_bytes > 0);
    }

    #[test]
    fn a_log_that_cannot_be_read_is_reported_once_and_hides_no_other_log() {
        let mut site = Site::new(2);
        site.write(1, "fine\n");
        fs::create_dir(&site.logs.logs[0].path).unwrap();
        let lines = site.logs.open().lines;
        assert_eq!(lines.iter().map(|(rank, _)| *rank).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(lines[1].1, "fine");
        site.write(1, "more\n");
        assert_eq!(site.logs.poll().lines, [(1, "more".to_owned())]);
    }

    #[test]
    fn more_logs_than_fit_into_one_poll_are_read_in_turn() {
        let ranks = (POLL_BYTES / LEAST_BYTES) as usize + 10;
        let mut site = Site::new(ranks);
        site.logs.open();
        (0..ranks).for_each(|rank| site.write(rank, "line\n"));
        let mut read: Vec<usize> = Vec::new();
        for _ in 0..2 {
            read.extend(site.logs.poll().lines.iter().map(|(rank, _)| rank));
        }
        read.sort_unstable();
        assert_eq!(read, (0..ranks).collect::<Vec<_>>());
    }
}
