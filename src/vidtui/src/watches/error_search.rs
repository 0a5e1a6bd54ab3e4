//! Searches the parts of logs that the console does not load for their first error.
//!
//! The console loads the newest lines of long logs, but the cause of a failure may be far above them. A search reads each part once, in
//! steps, so that its caller can follow the logs and stop in between. It needs little memory: only the lines before the current one,
//! and the best error, are kept.

use camino::Utf8PathBuf;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use ui::EarlierError;
use ui::log_lines::{self, Level, Levels};

/// The most bytes of one log that a search reads.
const LOG_BYTES: u64 = 64 << 20;
/// The most bytes of all logs that a search reads: 64 logs as far as [`LOG_BYTES`].
const ALL_BYTES: u64 = 4 << 30;
/// The bytes that one step reads.
const STEP_BYTES: u64 = 4 << 20;
/// The bytes that one read of a file requests.
const READ_BYTES: usize = 256 << 10;
/// A longer line is skipped, as [`rundir::Tail`] does.
const MAX_LINE: u64 = 4 << 20;
/// The bytes of a line that are kept; more than the screen shows.
const KEPT_BYTES: usize = 16 << 10;
/// The number of lines that are shown before an error, and after it.
const BEFORE: usize = 8;
const AFTER: usize = 3;
/// The number of lines before an error among which the time of the error is looked for: a traceback has none.
const TIMED: usize = 100;

/// A part of a log that is not loaded: the lines that begin at byte `from` or later, and at byte `to` or earlier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) rank: usize,
    pub(super) path: Utf8PathBuf,
    /// The beginning of a line.
    pub(super) from: u64,
    pub(super) to: u64,
}

/// The result of a search.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Searched {
    pub(super) found: Option<EarlierError>,
    /// Bytes that were not read, because the parts are too large.
    pub(super) unsearched_bytes: u64,
}

/// A search in parts of several logs, of which some steps have been made.
pub(super) struct ErrorSearch {
    /// The parts that have not been begun.
    parts: VecDeque<Part>,
    reading: Option<Reading>,
    /// The most bytes of each part that are read.
    most: u64,
    /// The bytes of all parts.
    bytes: u64,
    best: Option<Found>,
    unsearched_bytes: u64,
}

/// A part that is being read.
struct Reading {
    part: Part,
    reader: BufReader<File>,
    /// The offset of the next line.
    at: u64,
    /// The offset at which reading ends because the part is too large.
    limit: u64,
    line: Vec<u8>,
    /// Whether the rest of a line that is too long is skipped.
    is_skipping: bool,
    levels: Levels,
    /// The newest lines, at most [`TIMED`] and the current one.
    recent: VecDeque<Line>,
    found: Option<Found>,
}

#[derive(Debug, Clone, Default)]
struct Line {
    /// The offsets of its beginning and of its end in the file.
    span: (u64, u64),
    /// [`Level::Plain`] if the line cannot be an error; it may be a warning.
    level: Level,
    bytes: Vec<u8>,
}

/// An error, and the lines around it.
struct Found {
    rank: usize,
    lines: Vec<Line>,
    error: usize,
    is_consequence: bool,
    /// The time of the error or of the last line before it that has one.
    time_s: Option<f64>,
    /// Bytes between the error and the end of the part.
    from_end: u64,
    /// Bytes of the part up to the end of `lines`.
    read_bytes: u64,
}

impl ErrorSearch {
    /// Returns a search in these parts; `None` if there are none.
    pub(super) fn new(parts: Vec<Part>) -> Option<Self> {
        let most = (ALL_BYTES / parts.len().max(1) as u64).min(LOG_BYTES);
        Self::within(parts, most)
    }

    /// Returns a search that reads at most `most` bytes of each part.
    pub(super) fn within(parts: Vec<Part>, most: u64) -> Option<Self> {
        let bytes = parts.iter().map(|part| part.to.saturating_sub(part.from)).sum();
        let parts = VecDeque::from(parts);
        let (reading, best, unsearched_bytes) = (None, None, 0);
        (!parts.is_empty()).then_some(Self { parts, reading, most, bytes, best, unsearched_bytes })
    }

    /// Reads some bytes. Returns the result when all parts have been read.
    ///
    /// A part that cannot be read has no error: the lines that are loaded from the same file report the reason.
    pub(super) fn step(&mut self) -> Option<Searched> {
        if self.reading.is_none() {
            let Some(part) = self.parts.pop_front() else { return Some(self.end()) };
            self.reading = Reading::begin(part, self.most).ok();
        }
        if let Some(reading) = &mut self.reading
            && reading.step().unwrap_or(true)
        {
            let (found, unsearched_bytes) = self.reading.take().map_or((None, 0), Reading::end);
            self.unsearched_bytes += unsearched_bytes;
            self.best = match (self.best.take(), found) {
                (Some(best), Some(found)) => Some(if found.is_before(&best) { found } else { best }),
                (best, found) => best.or(found),
            };
        }
        None
    }

    /// Makes all steps.
    pub(super) fn finish(mut self) -> Searched {
        loop {
            if let Some(searched) = self.step() {
                return searched;
            }
        }
    }

    fn end(&mut self) -> Searched {
        let bytes = self.bytes;
        let found = self.best.take().map(|found| found.into_error(bytes));
        Searched { found, unsearched_bytes: self.unsearched_bytes }
    }
}

impl Reading {
    fn begin(part: Part, most: u64) -> io::Result<Self> {
        let mut file = rundir::open_regular(&part.path)?;
        file.seek(SeekFrom::Start(part.from))?;
        Ok(Self {
            reader: BufReader::with_capacity(READ_BYTES, file),
            at: part.from,
            limit: part.from.saturating_add(most),
            part,
            line: Vec::new(),
            is_skipping: false,
            levels: Levels::default(),
            recent: VecDeque::new(),
            found: None,
        })
    }

    /// Reads some lines. Returns whether the search in this part is complete.
    fn step(&mut self) -> io::Result<bool> {
        let until = self.at.saturating_add(STEP_BYTES);
        while self.at < until {
            let is_found = self.found.as_ref().is_some_and(|found| !found.is_consequence && found.is_complete());
            if is_found || self.at > self.part.to || self.at >= self.limit {
                return Ok(true);
            }
            let start = self.at;
            if !self.next_line()? {
                return Ok(true);
            }
            if !self.line.is_empty() {
                self.take(start);
            }
        }
        Ok(false)
    }

    /// Reads the next line, or a piece of a line that is too long, which is left empty. Returns whether there is one.
    fn next_line(&mut self) -> io::Result<bool> {
        self.line.clear();
        let read = self.reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut self.line)? as u64;
        self.at += read;
        let is_end = self.line.ends_with(b"\n");
        if !is_end && read < MAX_LINE {
            // The end of the file, perhaps within a line.
            return Ok(false);
        }
        let was_skipping = std::mem::replace(&mut self.is_skipping, !is_end);
        if was_skipping || !is_end {
            self.line.clear();
        }
        Ok(true)
    }

    /// Takes the line that was read, which begins at `start`.
    fn take(&mut self, start: u64) {
        let bytes = shown_part(&self.line);
        let (mut level, mut is_error, mut is_consequence) = (Level::Plain, false, false);
        if self.levels.is_in_traceback() || log_lines::may_be_error(bytes) {
            let text = log_lines::shown(&String::from_utf8_lossy(bytes));
            (level, is_error) = self.levels.of_next(&text);
            is_consequence = is_error && log_lines::is_consequence(&text);
        }
        // The memory of the oldest line is used again.
        let is_full = self.recent.len() > TIMED;
        let mut line = if is_full { self.recent.pop_front().unwrap_or_default() } else { Line::default() };
        (line.span, line.level) = ((start, self.at), level);
        line.bytes.clear();
        line.bytes.extend_from_slice(bytes);
        if let Some(found) = self.found.as_mut().filter(|found| !found.is_complete()) {
            found.lines.push(line.clone());
            found.read_bytes = self.at - self.part.from;
        }
        self.recent.push_back(line);
        if is_error && self.found.as_ref().is_none_or(|found| found.is_consequence && !is_consequence) {
            self.found = Some(self.found_now(is_consequence));
        }
    }

    /// Returns the current line as an error, with the lines before it.
    fn found_now(&self, is_consequence: bool) -> Found {
        let from = self.recent.len().saturating_sub(BEFORE + 1);
        let lines: Vec<Line> = self.recent.range(from..).cloned().collect();
        let time_of = |line: &Line| log_lines::time_s(&String::from_utf8_lossy(&line.bytes));
        Found {
            rank: self.part.rank,
            error: lines.len().saturating_sub(1),
            lines,
            is_consequence,
            time_s: self.recent.iter().rev().find_map(time_of),
            from_end: self.part.to.saturating_sub(self.at),
            read_bytes: self.at - self.part.from,
        }
    }

    /// Returns the first error, and the bytes that were not read because the part is too large.
    fn end(self) -> (Option<Found>, u64) {
        let has_cause = self.found.as_ref().is_some_and(|found| !found.is_consequence);
        let is_cut = !has_cause && self.at >= self.limit;
        (self.found, if is_cut { self.part.to.saturating_sub(self.at) } else { 0 })
    }
}

impl Found {
    /// Returns whether the lines after the error have been read.
    fn is_complete(&self) -> bool {
        self.lines.len() > self.error + AFTER
    }

    /// Returns whether this error, rather than one of another log, is the first: causes come before consequences. If both errors
    /// have a time, the earlier one is the first, and otherwise the one that is farther from the end of its log, as in
    /// [`log_lines::in_order`].
    fn is_before(&self, other: &Self) -> bool {
        if self.is_consequence != other.is_consequence {
            return other.is_consequence;
        }
        match (self.time_s, other.time_s) {
            (Some(time), Some(other)) => time < other,
            _ => self.from_end > other.from_end,
        }
    }

    /// Returns the error for the screen. `bytes` are the bytes of all parts.
    fn into_error(self, bytes: u64) -> EarlierError {
        let bytes_before = self.lines.first().map_or(0, |line| line.span.0);
        let line = |line: Line| {
            let text = String::from_utf8_lossy(&line.bytes).into_owned();
            (line.level.max(log_lines::level(&text)), text)
        };
        EarlierError {
            rank: self.rank,
            lines: self.lines.into_iter().map(line).collect(),
            error: self.error,
            bytes_before,
            hidden_bytes: bytes.saturating_sub(self.read_bytes),
        }
    }
}

/// Returns the part of a line that the screen shows: the text after the last carriage return, cut to [`KEPT_BYTES`].
fn shown_part(line: &[u8]) -> &[u8] {
    let end = line.iter().rposition(|byte| !matches!(byte, b'\r' | b'\n')).map_or(0, |last| last + 1);
    let start = line[..end].iter().rposition(|byte| *byte == b'\r').map_or(0, |last| last + 1);
    &line[start..end.min(start + KEPT_BYTES)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    struct Logs {
        keep: tempfile::TempDir,
        parts: Vec<Part>,
    }

    impl Logs {
        fn new() -> Self {
            Self { keep: tempfile::tempdir().unwrap(), parts: Vec::new() }
        }

        /// Writes the log of the next rank. The part that is not loaded ends at byte `to`.
        fn with(mut self, text: &str, to: u64) -> Self {
            let rank = self.parts.len();
            let path = Utf8PathBuf::from_path_buf(self.keep.path().join(rank.to_string())).unwrap();
            fs::write(&path, text).unwrap();
            self.parts.push(Part { rank, path, from: 0, to });
            self
        }

        fn search(&self) -> Searched {
            ErrorSearch::new(self.parts.clone()).unwrap().finish()
        }
    }

    /// Returns lines of training, about `bytes` long.
    fn steps(bytes: usize) -> String {
        let line = "2026-11-20 05:00:00 step 20 loss 0.31, mean absolute error: 0.3\n";
        line.repeat(bytes / line.len())
    }

    fn texts(searched: &Searched) -> Vec<&str> {
        let found = searched.found.iter();
        found.flat_map(|found| &found.lines).map(|(_, text)| text.as_str()).collect()
    }

    fn error(searched: &Searched) -> Option<(usize, &str)> {
        let found = searched.found.as_ref()?;
        Some((found.rank, found.lines[found.error].1.as_str()))
    }

    #[test]
    fn the_only_error_at_the_beginning_of_a_long_log_is_found_with_its_context() {
        let head =
            "start\nTraceback (most recent call last):\n  File \"a.py\", line 3\nValueError: bad shape\ngoes on\n";
        let log = format!("{head}{}", steps(9 << 20));
        let searched = Logs::new().with(&log, 8 << 20).search();
        assert_eq!(error(&searched), Some((0, "ValueError: bad shape")));
        let found = searched.found.as_ref().unwrap();
        let are_errors: Vec<bool> = found.lines.iter().map(|(level, _)| *level == Level::Error).collect();
        assert_eq!(are_errors, [false, true, true, true, false, false, false]);
        assert_eq!((found.bytes_before, texts(&searched)[0], found.error), (0, "start", 3));
        assert!(found.hidden_bytes > 7 << 20 && found.hidden_bytes < 8 << 20, "{}", found.hidden_bytes);
        assert_eq!(searched.unsearched_bytes, 0);
    }

    #[test]
    fn only_some_lines_before_an_error_are_shown_and_their_offset_is_known() {
        let log = format!("{}RuntimeError: x\n{}", "0123456\n".repeat(1000), steps(1 << 20));
        let searched = Logs::new().with(&log, 100_000).search();
        let found = searched.found.as_ref().unwrap();
        assert_eq!((found.error, found.lines.len()), (BEFORE, BEFORE + 1 + AFTER));
        assert_eq!(found.bytes_before, 8 * (1000 - BEFORE as u64));
    }

    #[test]
    fn loaded_lines_are_not_searched() {
        let before = "one\ntwo\n";
        let log = format!("{before}RuntimeError: loaded\nthree\n");
        let to = before.len() as u64 - 1;
        assert_eq!(Logs::new().with(&log, to).search(), Searched::default());
        let searched = Logs::new().with(&log, to + 1).search();
        assert_eq!(texts(&searched), ["one", "two", "RuntimeError: loaded"], "the line begins in the part");
        assert_eq!(searched.found.unwrap().hidden_bytes, 0);
    }

    #[test]
    fn a_cause_comes_before_consequences_and_the_earliest_cause_is_the_first() {
        let consequence = "2026-11-20 04:00:00 RuntimeError: Connection closed by peer\n";
        let cause = |minute: u32| format!("2026-11-20 04:{minute:02}:00 ERROR out of memory\n");
        let searched = |logs: &[String]| {
            let logs = logs.iter().fold(Logs::new(), |logs, log| logs.with(log, log.len() as u64));
            logs.search().found.map(|found| found.rank)
        };
        assert_eq!(searched(&[consequence.to_owned(), cause(30), cause(20), cause(25)]), Some(2));
        assert_eq!(searched(&[format!("{consequence}{}", cause(1)), cause(2)]), Some(0));
        assert_eq!(searched(&[consequence.to_owned(), steps(1000)]), Some(0));
        assert_eq!(searched(&["RuntimeError: a\n".to_owned(), "RuntimeError: b\nmore\nmore\n".to_owned()]), Some(1));
        assert_eq!(searched(&[steps(1000)]), None);
    }

    #[test]
    fn a_log_that_is_too_long_is_searched_up_to_the_limit_and_the_rest_is_reported() {
        let log = format!("{}RuntimeError: late\n", steps(6 << 20));
        let logs = Logs::new().with(&log, 6 << 20);
        let searched = ErrorSearch::within(logs.parts.clone(), 1 << 20).unwrap().finish();
        assert_eq!(searched.found, None);
        let unsearched = searched.unsearched_bytes;
        assert!(unsearched > (5 << 20) - 100 && unsearched <= 5 << 20, "{unsearched}");
    }

    #[test]
    fn a_line_without_an_end_and_a_missing_log_are_skipped() {
        let bar = "\rSteps: 1 error: 2".repeat(600_000);
        let logs = Logs::new().with(&format!("{bar}\nRuntimeError: after\n"), 1 << 30).with("", 10);
        fs::remove_file(&logs.parts[1].path).unwrap();
        let searched = logs.search();
        assert_eq!(texts(&searched), ["RuntimeError: after"]);
        assert_eq!(Logs::new().with(&bar, 1 << 30).search(), Searched::default());
    }

    #[test]
    fn only_the_text_after_the_last_carriage_return_is_shown() {
        assert_eq!(shown_part(b"10 %\r20 %\r\n"), b"20 %");
        assert_eq!(shown_part(b"\r\n"), b"");
        assert_eq!(shown_part(b"a\n"), b"a");
    }
}
