//! State of an open log: its lines, the visible part, the filters and the search.

use crate::log_lines::{self, Level};
use crate::model::log_store::{LogLine, LogStore};
use crate::model::run_screen::RunScreen;
use crate::model::sought_event::{FoundLine, SoughtEvent};
use crate::msg::{EarlierErrors, LogChunk, RankLines};
use crate::rank_set::RankSet;
use crate::text;
use cluster::RankPlace;
use regex::{Regex, RegexBuilder};
use std::collections::BTreeSet;

/// Memory limit of a compiled search expression, so that a typo cannot freeze the screen.
const MAX_REGEX: usize = 1 << 20;

/// An open log: of one rank, or of all ranks merged.
#[derive(Debug, Clone)]
pub struct LogsScreen {
    /// The position of the rank among the run's ranks; `None` for the merged log.
    pub rank: Option<usize>,
    /// The attempt to show; `None` for the newest one.
    pub pinned: Option<u32>,
    pub(crate) store: LogStore,
    pub(crate) attempt: Option<u32>,
    /// Bytes before the first line that were not loaded.
    pub(crate) skipped_bytes: u64,
    /// The search for an error in the part that is not loaded.
    pub(crate) earlier: EarlierSearch,
    /// The time zone of the times in the lines, in seconds east of UTC; `None` if it is unknown.
    pub(crate) zone_s: Option<i32>,
    /// The line at the top of the screen, and the row within that line; `None` to follow the newest lines.
    pub(crate) top: Option<(u64, usize)>,
    pub(crate) wrap: bool,
    /// The marked line: a match, an error or a clicked line.
    pub(crate) current: Option<u64>,
    /// The lowest level that passes the filter.
    pub level: Level,
    /// The ranks that pass the filter; empty for all ranks.
    pub only: RankSet,
    /// Whether folded lines show the text of each rank by default.
    pub(crate) is_unfolded: bool,
    /// Lines for which the user has reversed `is_unfolded`.
    pub(crate) toggled: BTreeSet<u64>,
    /// The line to go to once the existing lines have been received; if there is none, the end of the log is shown.
    pub(crate) seeks: Option<Target>,
    /// The line to go to once the part that is not loaded has been searched; a key of the user cancels this.
    pub(crate) seeks_later: Option<Target>,
    /// The search.
    pub search: Option<Search>,
}

/// A line that a log goes to when it opens.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    /// The first error of the shown ranks.
    FirstError,
    /// The line of an event.
    Event(SoughtEvent),
}

/// The search for an error in the part of a log that is not loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EarlierSearch {
    /// The log is loaded from its beginning.
    NotNeeded,
    /// The search has not ended.
    Running,
    /// The search has ended.
    Done {
        /// Bytes that were not searched, because the logs are too large.
        unsearched_bytes: u64,
    },
}

/// A search in a log.
#[derive(Debug, Clone)]
pub struct Search {
    /// The search text.
    pub text: String,
    pub(crate) regex: Option<Regex>,
}

impl Default for LogsScreen {
    fn default() -> Self {
        Self {
            rank: None,
            pinned: None,
            store: LogStore::default(),
            attempt: None,
            skipped_bytes: 0,
            earlier: EarlierSearch::NotNeeded,
            zone_s: None,
            top: None,
            wrap: true,
            current: None,
            level: Level::Plain,
            only: RankSet::default(),
            is_unfolded: false,
            toggled: BTreeSet::new(),
            seeks: None,
            seeks_later: None,
            search: None,
        }
    }
}

impl LogsScreen {
    /// Sets the text to search for. Returns whether there is one; an empty text ends the search.
    pub(crate) fn search_for(&mut self, text: &str) -> bool {
        self.current = None;
        if text.is_empty() {
            self.search = None;
            return false;
        }
        // A lower-case pattern ignores case, as in editors.
        let build = |pattern: &str| {
            let any_case = !text.chars().any(char::is_uppercase);
            RegexBuilder::new(pattern).case_insensitive(any_case).size_limit(MAX_REGEX).build()
        };
        // An incomplete expression, such as "(", is searched as plain text.
        let regex = build(text).or_else(|_| build(&regex::escape(text))).ok();
        self.search = Some(Search { text: text.to_owned(), regex });
        true
    }

    /// Returns the merged log of an attempt, which goes to the first error. A non-empty `only` filters the ranks.
    pub fn at_error(attempt: Option<u32>, only: RankSet) -> Self {
        Self { pinned: attempt, only, seeks: Some(Target::FirstError), ..Self::default() }
    }

    /// Returns the merged log of an attempt, which goes to the line of an event. A non-empty `only` filters the ranks.
    pub fn at_event(attempt: Option<u32>, only: RankSet, event: SoughtEvent) -> Self {
        Self { pinned: attempt, only, seeks: Some(Target::Event(event)), ..Self::default() }
    }

    /// Returns the placement of the shown rank, once it has loaded.
    pub fn place<'a>(&self, run: &'a RunScreen) -> Option<&'a RankPlace> {
        run.places().get(self.rank?)
    }

    /// Adds lines of the shown rank. Lines of another rank come from a stream that is being stopped; they are
    /// ignored.
    pub fn add(&mut self, chunk: LogChunk, now: f64) {
        if self.rank != Some(chunk.rank) {
            return;
        }
        self.begin(chunk.attempt, chunk.from_start, chunk.skipped_bytes);
        for line in chunk.lines {
            self.store.add(chunk.rank, log_lines::shown(&line), now, false);
        }
    }

    /// Adds lines of the merged log, and goes to the line that `seeks` names. `size` is the width and height of the
    /// text. Returns a text for the user if the line of an event was not found.
    pub fn add_merged(&mut self, chunk: RankLines, now: f64, size: (usize, usize)) -> Option<&'static str> {
        if self.rank.is_some() || self.pinned.is_some_and(|attempt| attempt != chunk.attempt) {
            return None;
        }
        self.begin(chunk.attempt, chunk.from_start, chunk.skipped_bytes);
        if chunk.from_start {
            self.zone_s = chunk.zone_s;
        }
        if chunk.skipped_bytes > 0 && !chunk.from_start {
            self.store.divide(format!("{} are only in the files", units::short_size(chunk.skipped_bytes)));
        }
        for (rank, line) in chunk.lines {
            self.store.add(rank, log_lines::shown(&line), now, true);
        }
        let target = if chunk.is_caught_up { self.seeks.take() } else { None };
        self.seek(target?, size)
    }

    /// Adds the error that a search found in the part of the log that is not loaded, and goes to it if the log was
    /// opened at an error. Returns a text as [`Self::add_merged`].
    pub fn add_earlier(&mut self, errors: EarlierErrors, size: (usize, usize)) -> Option<&'static str> {
        if self.rank != errors.of || self.attempt != Some(errors.attempt) || self.earlier != EarlierSearch::Running {
            return None;
        }
        self.earlier = EarlierSearch::Done { unsearched_bytes: errors.unsearched_bytes };
        if let Some(found) = errors.found {
            let lines = found.lines.iter().map(|(level, line)| (*level, log_lines::shown(line))).collect();
            if self.store.add_earlier_error(found.rank, lines, found.error, found.hidden_bytes) {
                self.skipped_bytes = found.bytes_before;
            }
        }
        let target = self.seeks_later.take();
        self.seek(target?, size)
    }

    /// Goes to a line. If it is not certain to be the right one and the part that is not loaded is still searched, this
    /// is repeated after the search.
    fn seek(&mut self, target: Target, size: (usize, usize)) -> Option<&'static str> {
        let found = match &target {
            Target::FirstError => FoundLine { number: self.first_error(), notice: None, is_certain: false },
            Target::Event(event) => event.line_in(self),
        };
        if let Some(line) = found.number {
            self.go_to(line, size);
        }
        if self.earlier == EarlierSearch::Running && !found.is_certain {
            self.seeks_later = Some(target);
            return None;
        }
        found.notice
    }

    fn begin(&mut self, attempt: u32, from_start: bool, skipped_bytes: u64) {
        if from_start {
            let is_whole = skipped_bytes == 0;
            self.store = if is_whole { LogStore::default() } else { LogStore::of_end() };
            self.earlier = if is_whole { EarlierSearch::NotNeeded } else { EarlierSearch::Running };
            (self.top, self.attempt, self.current, self.seeks_later) = (None, None, None, None);
            self.toggled.clear();
            self.skipped_bytes = skipped_bytes;
        }
        if self.attempt.is_some_and(|before| before != attempt) {
            self.store.begin_attempt(attempt);
            // The result of a search in the log of the earlier attempt is not used.
            (self.earlier, self.seeks_later) = (EarlierSearch::NotNeeded, None);
        }
        self.attempt = Some(attempt);
    }

    /// Returns the line of the first error that passes the filters; the most likely cause of the failure is
    /// preferred.
    pub(crate) fn first_error(&self) -> Option<u64> {
        let first = self.store.first_error.as_ref();
        let of_all =
            first.map(|first| first.line).filter(|line| self.store.line(*line).is_some_and(|at| self.passes(at)));
        let is_bad =
            |number: &u64| self.store.line(*number).is_some_and(|line| line.level == Level::Error && self.passes(line));
        of_all.or_else(|| self.store.numbers().find(is_bad))
    }

    /// Returns whether a line passes the filters.
    pub(crate) fn passes(&self, line: &LogLine) -> bool {
        if line.is_divider {
            return self.level == Level::Plain;
        }
        line.level >= self.level && (self.only.is_empty() || line.ranks.intersects(&self.only))
    }

    /// Returns the visible texts of a line, each with the ranks that printed it.
    pub(crate) fn texts<'a>(&self, number: u64, line: &'a LogLine) -> Vec<(RankSet, &'a str)> {
        line.texts(&self.only, self.is_unfolded == self.toggled.contains(&number))
    }

    /// Unfolds a line into the texts of its ranks, or folds it again.
    pub(crate) fn toggle(&mut self, number: u64) {
        if !self.toggled.remove(&number) {
            self.toggled.insert(number);
        }
    }

    pub(crate) fn rows_of(&self, number: u64, width: usize) -> usize {
        let Some(line) = self.store.line(number).filter(|line| self.passes(line)) else { return 0 };
        let texts = self.texts(number, line);
        if self.wrap { texts.iter().map(|(_, text)| text::rows(text, width).count()).sum() } else { texts.len() }
    }

    /// Returns the position `rows` rows above another, or the first position.
    pub(crate) fn above(&self, (mut line, mut row): (u64, usize), mut rows: usize, width: usize) -> (u64, usize) {
        while rows > 0 {
            if row >= rows {
                return (line, row - rows);
            }
            rows -= row;
            let Some(before) = self.store.before(line) else { return (self.store.first(), 0) };
            line = before;
            row = self.rows_of(line, width);
        }
        (line, row)
    }

    /// Returns the position `rows` rows below another, or the end.
    pub(crate) fn below(&self, (mut line, mut row): (u64, usize), mut rows: usize, width: usize) -> (u64, usize) {
        while line < self.store.end() {
            let left = self.rows_of(line, width) - row;
            if rows < left {
                return (line, row + rows);
            }
            rows -= left;
            (line, row) = (self.store.at_or_after(line + 1), 0);
        }
        (self.store.end(), 0)
    }

    /// Returns the position at the top of the screen when the screen ends with the newest line.
    pub(crate) fn bottom_top(&self, size: (usize, usize)) -> (u64, usize) {
        self.above((self.store.end(), 0), size.1, size.0)
    }

    /// Returns the position at the top of the screen.
    pub(crate) fn shown_top(&self, size: (usize, usize)) -> (u64, usize) {
        let newest = self.bottom_top(size);
        // The line at the top may have been dropped from memory since.
        let wanted = self.top.map(|(line, row)| {
            let line = self.store.at_or_after(line);
            (line, row.min(self.rows_of(line, size.0).saturating_sub(1)))
        });
        wanted.filter(|top| *top < newest).unwrap_or(newest)
    }

    pub(crate) fn scroll_up(&mut self, rows: usize, size: (usize, usize)) {
        let top = self.above(self.shown_top(size), rows, size.0);
        // A log that fits on the screen is always followed.
        self.top = (top < self.bottom_top(size)).then_some(top);
    }

    pub(crate) fn scroll_down(&mut self, rows: usize, size: (usize, usize)) {
        let top = self.below(self.shown_top(size), rows, size.0);
        self.top = (top < self.bottom_top(size)).then_some(top);
    }

    /// Places a line in the upper third of the screen, with some context above it, and marks it.
    pub(crate) fn go_to(&mut self, line: u64, size: (usize, usize)) {
        let top = self.above((line, 0), size.1 / 3, size.0);
        self.top = (top < self.bottom_top(size)).then_some(top);
        self.current = Some(line);
    }

    /// Goes to the next or previous matching line, from the marked line or the top of the screen, and wraps around.
    /// Returns whether there is a match.
    pub(crate) fn find(&mut self, forward: bool, size: (usize, usize)) -> bool {
        let Some(regex) = self.search.as_ref().and_then(|search| search.regex.as_ref()) else { return false };
        let from = self.current.filter(|line| self.store.line(*line).is_some());
        let matches = |number: &u64| self.matches(*number, regex);
        let numbers = || self.store.numbers();
        let found = if forward {
            let start = from.map_or_else(|| self.shown_top(size).0, |line| line + 1);
            let after = numbers().filter(|number| *number >= start);
            after.chain(numbers().filter(|number| *number < start)).find(matches)
        } else {
            let start = from.unwrap_or_else(|| self.shown_top(size).0);
            let before = numbers().rev().filter(|number| *number < start);
            before.chain(numbers().rev().filter(|number| *number >= start)).find(matches)
        };
        let Some(line) = found else { return false };
        self.go_to(line, size);
        true
    }

    /// Returns the number of lines that match the search.
    pub(crate) fn matching(&self) -> usize {
        let Some(regex) = self.search.as_ref().and_then(|search| search.regex.as_ref()) else { return 0 };
        self.store.numbers().filter(|number| self.matches(*number, regex)).count()
    }

    /// Returns whether a visible text of a line matches.
    fn matches(&self, number: u64, regex: &Regex) -> bool {
        let line = self.store.line(number).filter(|line| self.passes(line));
        line.is_some_and(|line| self.texts(number, line).iter().any(|(_, text)| regex.is_match(text)))
    }

    /// Shows the log of one rank, or the merged log if `rank` is `None`. The attempt, the wrapping, the search and
    /// the level stay.
    pub(crate) fn show(&mut self, rank: Option<usize>) {
        let (search, level, pinned) = (self.search.take(), self.level, self.pinned);
        *self = Self { rank, pinned, wrap: self.wrap, search, level, ..Self::default() };
    }
}
