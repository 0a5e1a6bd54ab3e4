//! An open log: its lines, the visible part, and the search.

use crate::model::run_screen::RunScreen;
use crate::msg::LogChunk;
use crate::text;
use cluster::RankPlace;
use regex::Regex;
use std::collections::VecDeque;

/// The maximum number of lines that are kept; older lines are only in the file.
const MAX_LINES: usize = 5000;

/// The maximum number of bytes of a line that are kept, so that one very long line does not slow down drawing.
const MAX_LINE: usize = 4096;

/// An open log.
#[derive(Debug, Clone)]
pub struct LogsScreen {
    /// Position among the run's ranks.
    pub rank: usize,
    pub(crate) lines: VecDeque<LogLine>,
    /// Number of the first kept line since the stream began.
    pub(crate) first: u64,
    pub(crate) attempt: Option<u32>,
    pub(crate) skipped_bytes: u64,
    /// The line, and the row in it, at the top of the screen; `None` to follow the newest lines.
    pub(crate) top: Option<(u64, usize)>,
    pub(crate) wrap: bool,
    /// The search.
    pub search: Option<Search>,
}

#[derive(Debug, Clone)]
pub(crate) struct LogLine {
    pub(crate) text: String,
    pub(crate) kind: LineKind,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum LineKind {
    Plain,
    Bad,
    /// A divider between two attempts; not part of the file.
    Divider,
}

/// A search in a log.
#[derive(Debug, Clone)]
pub struct Search {
    /// The search text.
    pub text: String,
    pub(crate) regex: Option<Regex>,
    /// Line of the current match.
    pub(crate) at: Option<u64>,
}

impl Default for LogsScreen {
    fn default() -> Self {
        Self {
            rank: 0,
            lines: VecDeque::new(),
            first: 0,
            attempt: None,
            skipped_bytes: 0,
            top: None,
            wrap: true,
            search: None,
        }
    }
}

impl LogsScreen {
    /// Returns the placement of the shown rank, once it has loaded.
    pub fn place<'a>(&self, run: &'a RunScreen) -> Option<&'a RankPlace> {
        run.places().get(self.rank)
    }

    /// Adds lines of the shown rank. Lines of another rank come from a stream that is being stopped, and are ignored.
    pub fn add(&mut self, chunk: LogChunk) {
        if chunk.rank != self.rank {
            return;
        }
        if chunk.from_start {
            self.lines.clear();
            (self.first, self.top, self.attempt) = (0, None, None);
            self.skipped_bytes = chunk.skipped_bytes;
        }
        if self.attempt.is_some_and(|attempt| attempt != chunk.attempt) {
            self.push(LogLine { text: format!("attempt {}", chunk.attempt), kind: LineKind::Divider });
        }
        self.attempt = Some(chunk.attempt);
        for line in chunk.lines {
            let mut text = text::clean(&line);
            if text.len() > MAX_LINE {
                text.truncate((0..=MAX_LINE).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0));
                text.push('…');
            }
            let kind = if looks_bad(&text) { LineKind::Bad } else { LineKind::Plain };
            self.push(LogLine { text, kind });
        }
    }

    pub(crate) fn push(&mut self, line: LogLine) {
        self.lines.push_back(line);
        if self.lines.len() > MAX_LINES {
            self.lines.pop_front();
            self.first += 1;
        }
    }

    pub(crate) fn end(&self) -> u64 {
        self.first + self.lines.len() as u64
    }

    pub(crate) fn line(&self, number: u64) -> Option<&LogLine> {
        self.lines.get(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    pub(crate) fn rows_of(&self, number: u64, width: usize) -> usize {
        match self.line(number) {
            Some(line) if self.wrap => text::rows(&line.text, width).count(),
            _ => 1,
        }
    }

    /// Returns the position `rows` rows above another, or the beginning.
    pub(crate) fn above(&self, (mut line, mut row): (u64, usize), mut rows: usize, width: usize) -> (u64, usize) {
        while rows > 0 {
            if row >= rows {
                return (line, row - rows);
            }
            rows -= row;
            if line <= self.first {
                return (self.first, 0);
            }
            line -= 1;
            row = self.rows_of(line, width);
        }
        (line, row)
    }

    /// Returns the position `rows` rows below another, or the end.
    pub(crate) fn below(&self, (mut line, mut row): (u64, usize), mut rows: usize, width: usize) -> (u64, usize) {
        while line < self.end() {
            let left = self.rows_of(line, width) - row;
            if rows < left {
                return (line, row + rows);
            }
            rows -= left;
            (line, row) = (line + 1, 0);
        }
        (self.end(), 0)
    }

    /// Returns the position at the top of the screen when the newest lines are shown.
    pub(crate) fn bottom_top(&self, size: (usize, usize)) -> (u64, usize) {
        self.above((self.end(), 0), size.1, size.0)
    }

    /// Returns the position at the top of the screen.
    pub(crate) fn shown_top(&self, size: (usize, usize)) -> (u64, usize) {
        let newest = self.bottom_top(size);
        // The wanted line may have been dropped meanwhile.
        let wanted = self.top.map(|(line, row)| {
            let line = line.max(self.first);
            (line, row.min(self.rows_of(line, size.0).saturating_sub(1)))
        });
        wanted.filter(|top| *top < newest).unwrap_or(newest)
    }

    pub(crate) fn scroll_up(&mut self, rows: usize, size: (usize, usize)) {
        let top = self.above(self.shown_top(size), rows, size.0);
        // A log that fits on the screen is still followed.
        self.top = (top < self.bottom_top(size)).then_some(top);
    }

    pub(crate) fn scroll_down(&mut self, rows: usize, size: (usize, usize)) {
        let top = self.below(self.shown_top(size), rows, size.0);
        self.top = (top < self.bottom_top(size)).then_some(top);
    }

    /// Goes to the next matching line, from the current match or the top of the screen; wraps around.
    pub(crate) fn find(&mut self, forward: bool, size: (usize, usize)) -> bool {
        let from = self.shown_top(size).0;
        let Some(search) = &self.search else { return false };
        let Some(regex) = &search.regex else { return false };
        let count = self.lines.len();
        let start = search.at.unwrap_or(if forward { from.wrapping_sub(1) } else { from });
        let start = start.wrapping_sub(self.first) as usize;
        let found = (1..=count).find_map(|offset| {
            let index = if forward {
                start.wrapping_add(offset) % count
            } else {
                start.wrapping_add(count).wrapping_sub(offset) % count
            };
            regex.is_match(&self.lines[index].text).then_some(index)
        });
        let Some(index) = found else { return false };
        let line = self.first + index as u64;
        // The match is placed a third down the screen, below its context.
        let top = self.above((line, 0), size.1 / 3, size.0);
        self.top = (top < self.bottom_top(size)).then_some(top);
        if let Some(search) = &mut self.search {
            search.at = Some(line);
        }
        true
    }

    pub(crate) fn show_rank(&mut self, rank: usize) {
        *self = Self { rank, wrap: self.wrap, search: self.search.take(), ..Self::default() };
        if let Some(search) = &mut self.search {
            search.at = None;
        }
    }
}

/// Returns whether a line looks like an error; such lines are coloured.
fn looks_bad(text: &str) -> bool {
    const SIGNS: [&str; 5] = ["error", "panicked", "failed", "out of memory", "fatal"];
    let lower = text.to_ascii_lowercase();
    SIGNS.iter().any(|sign| lower.contains(sign))
}
