//! The lines of an open log. Equal lines of several ranks are folded into one line.
//!
//! The newest lines are in memory. The first error and some lines around it are kept too (*pinned lines*), and a divider
//! shows how much of the log is missing after them.

use crate::log_lines::{self, Level, Levels};
use crate::rank_set::RankSet;
use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};

/// The maximum number of lines in memory; older lines are only in the files.
const MAX_LINES: usize = 5000;

/// The maximum number of bytes of all variants (see [`LogLine::variants`]).
const MAX_VARIANT_BYTES: usize = 8 << 20;

/// The number of lines before the first error, and after it, that are kept with it.
const PINNED_BEFORE: u64 = 8;
const PINNED_AFTER: u64 = 3;

/// The maximum number of pinned lines and dividers: several attempts can have a first error each.
const MAX_PINNED: usize = 64;

/// If the beginning of a log is not loaded, the loaded lines begin with this number. The numbers before it are those of
/// the pinned lines that a search finds in the beginning of the log.
const LOADED_FROM: u64 = 16;

/// Lines whose times differ by more seconds than this are not folded: they are two events.
const FOLD_WITHIN_S: f64 = 10.0;

/// A line, or equal lines of several ranks.
#[derive(Debug, Clone)]
pub(crate) struct LogLine {
    pub(crate) text: String,
    pub(crate) level: Level,
    /// Whether the line is a divider between two parts of the log; no file contains it.
    pub(crate) is_divider: bool,
    /// The ranks that printed the line.
    pub(crate) ranks: RankSet,
    /// The texts that differ from `text` only in a time, an address or the rank, each with its rank.
    pub(crate) variants: Vec<(usize, String)>,
    /// Whether variants were dropped to bound memory; these texts are only in the files.
    pub(crate) lacks_variants: bool,
    key: u64,
    /// The time in the line; if it has none, the time of its arrival. Unix seconds.
    at_s: f64,
}

/// The error that is the most likely cause of the others.
#[derive(Debug, Clone)]
pub(crate) struct FirstError {
    pub(crate) line: u64,
    pub(crate) rank: usize,
    pub(crate) text: String,
    /// Whether the error is a consequence of an error of another rank.
    is_consequence: bool,
}

/// The lines of a log, and the state that adding lines needs.
#[derive(Debug, Clone, Default)]
pub(crate) struct LogStore {
    /// The newest lines.
    lines: VecDeque<LogLine>,
    /// The number of the first of `lines`, counted from the beginning of the stream.
    first: u64,
    /// The number of the first line of the stream: 0 or [`LOADED_FROM`].
    loaded_from: u64,
    /// The pinned lines and the dividers after them, with ascending numbers, all below `first`.
    pinned: VecDeque<(u64, LogLine)>,
    /// Bytes of the lines that were dropped after the last pinned line.
    dropped_bytes: u64,
    pub(crate) first_error: Option<FirstError>,
    /// The numbers of the lines in memory, ascending, by the hash of their text without its variable parts.
    folds: HashMap<u64, VecDeque<u64>>,
    writers: HashMap<usize, Writer>,
    variant_bytes: usize,
}

/// The state of one rank's log.
#[derive(Debug, Clone, Default)]
struct Writer {
    /// The number of the latest line of the rank.
    latest: Option<u64>,
    levels: Levels,
}

impl LogStore {
    /// Returns an empty store for the end of a log whose beginning is not loaded.
    pub(crate) fn of_end() -> Self {
        Self { first: LOADED_FROM, loaded_from: LOADED_FROM, ..Self::default() }
    }

    /// Returns the number of the first line in memory.
    pub(crate) fn first(&self) -> u64 {
        self.pinned.front().map_or(self.first, |(number, _)| *number)
    }

    /// Returns the number that the next line gets.
    pub(crate) fn end(&self) -> u64 {
        self.first + self.lines.len() as u64
    }

    /// Returns the numbers of the lines in memory, ascending. After pinned lines, numbers are missing.
    pub(crate) fn numbers(&self) -> impl DoubleEndedIterator<Item = u64> + '_ {
        self.pinned.iter().map(|(number, _)| *number).chain(self.first..self.end())
    }

    /// Returns the first number of a line in memory that is at least `number`, or the end.
    pub(crate) fn at_or_after(&self, number: u64) -> u64 {
        let pinned = self.pinned.iter().map(|(at, _)| *at).find(|at| *at >= number);
        pinned.unwrap_or_else(|| number.clamp(self.first, self.end()))
    }

    /// Returns the last number of a line in memory that is less than `number`.
    pub(crate) fn before(&self, number: u64) -> Option<u64> {
        let loaded = number.min(self.end()).checked_sub(1).filter(|before| *before >= self.first);
        loaded.or_else(|| self.pinned.iter().rev().map(|(at, _)| *at).find(|at| *at < number))
    }

    /// Returns the number of lines of the stream before a line; `None` if the line is before the stream.
    pub(crate) fn lines_before(&self, number: u64) -> Option<u64> {
        number.checked_sub(self.loaded_from)
    }

    /// Returns whether lines of the stream before the first line in memory were dropped.
    pub(crate) fn is_cut(&self) -> bool {
        self.first() > self.loaded_from
    }

    /// Returns whether there are no lines.
    pub(crate) fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.pinned.is_empty()
    }

    /// Returns a line; `None` if it is no longer in memory.
    pub(crate) fn line(&self, number: u64) -> Option<&LogLine> {
        match number.checked_sub(self.first) {
            Some(index) => self.lines.get(usize::try_from(index).ok()?),
            None => self.pinned.iter().find(|(at, _)| *at == number).map(|(_, line)| line),
        }
    }

    /// Returns the lines in memory.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &LogLine> {
        self.pinned.iter().map(|(_, line)| line).chain(&self.lines)
    }

    /// Begins another attempt: adds a divider, and resets the first error.
    pub(crate) fn begin_attempt(&mut self, number: u32) {
        self.first_error = None;
        self.divide(format!("attempt {number}"));
    }

    /// Adds a divider. Lines before and after it are not folded together.
    pub(crate) fn divide(&mut self, text: String) {
        let end = self.end();
        self.writers.values_mut().for_each(|writer| *writer = Writer { latest: Some(end), ..Writer::default() });
        self.folds.clear();
        self.push(LogLine::divider(text));
    }

    /// Adds an error that a search found in the beginning of the log, which is not loaded, and the lines around it.
    /// `error` is the index of the error in `lines`, and `hidden_bytes` are the bytes between these lines and the loaded
    /// ones.
    ///
    /// Does nothing, and returns `false`, if the beginning of the log is loaded or has its error already, or if the error
    /// is a consequence and the loaded lines have a cause.
    pub(crate) fn add_earlier_error(
        &mut self,
        rank: usize,
        lines: Vec<(Level, String)>,
        error: usize,
        hidden_bytes: u64,
    ) -> bool {
        let has_room = self.first() >= self.loaded_from && (lines.len() as u64) < self.loaded_from;
        let Some((_, text)) = lines.get(error).filter(|_| has_room) else { return false };
        let is_consequence = log_lines::is_consequence(text);
        if is_consequence && self.first_error.as_ref().is_some_and(|first| !first.is_consequence) {
            return false;
        }
        self.first_error = Some(FirstError { line: error as u64, rank, text: text.clone(), is_consequence });
        let hidden_bytes = if self.pinned.is_empty() {
            self.dropped_bytes += hidden_bytes;
            self.dropped_bytes
        } else {
            hidden_bytes
        };
        let lines = lines.into_iter().map(|(level, text)| LogLine::of_rank(rank, text, level));
        let divider = (hidden_bytes > 0).then(|| LogLine::divider(not_shown(hidden_bytes)));
        for (number, line) in (0..).zip(lines.chain(divider)).collect::<Vec<_>>().into_iter().rev() {
            self.pinned.push_front((number, line));
        }
        true
    }

    /// Adds a line that a rank printed and that arrived at `now`. With `fold`, the line joins an equal line of other
    /// ranks.
    ///
    /// A line joins only a line after the latest line of its own rank, so that the lines of each rank keep their
    /// order.
    pub(crate) fn add(&mut self, rank: usize, text: String, now: f64, fold: bool) {
        let mut hasher = DefaultHasher::new();
        let at_s = if fold {
            log_lines::fold_key(&text, rank).hash(&mut hasher);
            log_lines::time_s(&text).unwrap_or(now)
        } else {
            now
        };
        let key = hasher.finish();
        let (level, is_cause) = self.writers.entry(rank).or_default().levels.of_next(&text);
        let number = match self.to_join(rank, key, at_s).filter(|_| fold) {
            Some(number) => {
                self.join(number, rank, text);
                number
            }
            None => {
                let number = self.end();
                if is_cause {
                    self.note_error(number, rank, &text);
                }
                if fold {
                    self.folds.entry(key).or_default().push_back(number);
                }
                self.push(LogLine { key, at_s, ..LogLine::of_rank(rank, text, level) });
                number
            }
        };
        self.writers.entry(rank).or_default().latest = Some(number);
    }

    fn note_error(&mut self, line: u64, rank: usize, text: &str) {
        let is_consequence = log_lines::is_consequence(text);
        if self.first_error.as_ref().is_none_or(|first| first.is_consequence && !is_consequence) {
            self.first_error = Some(FirstError { line, rank, text: text.to_owned(), is_consequence });
        }
    }

    fn to_join(&self, rank: usize, key: u64, at_s: f64) -> Option<u64> {
        let latest = self.writers.get(&rank).and_then(|writer| writer.latest);
        let numbers = self.folds.get(&key)?;
        let at_of = |number: u64| self.line(number).map_or(f64::NEG_INFINITY, |line| line.at_s);
        let is_before =
            |number: &u64| latest.is_some_and(|latest| *number <= latest) || at_of(*number) < at_s - FOLD_WITHIN_S;
        let number = *numbers.get(numbers.partition_point(is_before))?;
        ((at_of(number) - at_s).abs() <= FOLD_WITHIN_S).then_some(number)
    }

    fn join(&mut self, number: u64, rank: usize, text: String) {
        let Some(index) = number.checked_sub(self.first).and_then(|index| usize::try_from(index).ok()) else { return };
        let Some(line) = self.lines.get_mut(index) else { return };
        line.ranks.insert(rank);
        if line.text != text {
            self.variant_bytes += text.len();
            line.variants.push((rank, text));
        }
        while self.variant_bytes > MAX_VARIANT_BYTES {
            let Some(oldest) = self.lines.iter_mut().find(|line| !line.variants.is_empty()) else { break };
            self.variant_bytes -= oldest.variants.drain(..).map(|(_, text)| text.len()).sum::<usize>();
            oldest.lacks_variants = true;
        }
    }

    fn push(&mut self, line: LogLine) {
        self.lines.push_back(line);
        if self.lines.len() <= MAX_LINES {
            return;
        }
        let Some(old) = self.lines.pop_front() else { return };
        self.variant_bytes -= old.variants.iter().map(|(_, text)| text.len()).sum::<usize>();
        if let Some(numbers) = self.folds.get_mut(&old.key) {
            numbers.pop_front_if(|number| *number == self.first);
            if numbers.is_empty() {
                self.folds.remove(&old.key);
            }
        }
        self.drop_or_pin(self.first, old);
        self.first += 1;
    }

    /// Keeps a line that is near the first error, and drops another one.
    fn drop_or_pin(&mut self, number: u64, mut line: LogLine) {
        let error = self.first_error.as_ref().map(|first| first.line).filter(|line| *line >= self.loaded_from);
        let is_near = |line: u64| (line.saturating_sub(PINNED_BEFORE)..=line + PINNED_AFTER).contains(&number);
        if error.is_some_and(is_near) {
            line.lacks_variants |= !line.variants.is_empty();
            line.variants = Vec::new();
            self.pinned.push_back((number, line));
            self.dropped_bytes = 0;
        } else {
            self.dropped_bytes += (line.text.len() as u64 + 1) * line.ranks.count() as u64;
            if self.pinned.back().is_some_and(|(_, last)| !last.is_divider) {
                self.pinned.push_back((number, LogLine::divider(String::new())));
            }
            if let Some((_, divider)) = self.pinned.back_mut() {
                divider.text = not_shown(self.dropped_bytes);
            }
        }
        if self.pinned.len() > MAX_PINNED {
            self.pinned.pop_front();
        }
    }
}

/// Returns the text of the divider after pinned lines.
fn not_shown(bytes: u64) -> String {
    format!("{} not shown", units::short_size(bytes))
}

impl LogLine {
    fn of_rank(rank: usize, text: String, level: Level) -> Self {
        Self {
            text,
            level,
            is_divider: false,
            ranks: RankSet::one(rank),
            variants: Vec::new(),
            lacks_variants: false,
            key: 0,
            at_s: 0.0,
        }
    }

    fn divider(text: String) -> Self {
        Self { is_divider: true, ranks: RankSet::default(), ..Self::of_rank(0, text, Level::Plain) }
    }

    /// Returns the texts of the line, each with the ranks that printed it; only those of the ranks in `only`, unless
    /// `only` is empty. A folded line, or one whose variants were dropped, has one text. Otherwise, all ranks that
    /// printed the same text share an entry, and each other rank has its own.
    pub(crate) fn texts(&self, only: &RankSet, is_folded: bool) -> Vec<(RankSet, &str)> {
        let wanted = |rank: &usize| only.is_empty() || only.contains(*rank);
        let is_variant = |rank: usize| self.variants.iter().any(|(other, _)| *other == rank);
        let variants = || self.variants.iter().filter(|(rank, _)| wanted(rank));
        if is_folded || self.lacks_variants || self.variants.is_empty() {
            // One text of the selected ranks, labelled with all ranks that printed the line.
            let is_same =
                only.is_empty() || self.variants.is_empty() || only.iter_in(&self.ranks).any(|r| !is_variant(r));
            let text = if is_same { &self.text } else { variants().next().map_or(&self.text, |(_, text)| text) };
            return vec![(self.ranks.clone(), text)];
        }
        let same: RankSet = self.ranks.iter().filter(|rank| wanted(rank) && !is_variant(*rank)).collect();
        let first = (!same.is_empty()).then_some((same, self.text.as_str()));
        first.into_iter().chain(variants().map(|(rank, text)| (RankSet::one(*rank), text.as_str()))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn store(lines: &[(usize, &str)]) -> LogStore {
        let mut store = LogStore::default();
        lines.iter().for_each(|(rank, text)| store.add(*rank, (*text).to_owned(), 0.0, true));
        store
    }

    fn folded(store: &LogStore) -> Vec<String> {
        store.iter().map(|line| format!("{} {}", line.ranks, line.text)).collect()
    }

    #[test]
    fn equal_lines_of_several_ranks_are_one_line() {
        let store = store(&[
            (0, "loaded"),
            (0, "step 1"),
            (1, "loaded"),
            (2, "loaded"),
            (2, "[rank2]: go"),
            (0, "[rank0]: go"),
        ]);
        assert_eq!(folded(&store), ["0-2 loaded", "0 step 1", "0,2 [rank2]: go"]);
        let texts = store.line(2).unwrap().texts(&RankSet::default(), false);
        assert_eq!(texts, [(RankSet::one(2), "[rank2]: go"), (RankSet::one(0), "[rank0]: go")]);
        assert_eq!(store.line(2).unwrap().texts(&RankSet::one(0), true)[0].1, "[rank0]: go");
    }

    #[test]
    fn a_line_that_a_rank_repeats_stays_two_lines() {
        let store = store(&[(0, "retry"), (0, "retry"), (1, "retry"), (1, "retry"), (1, "retry")]);
        assert_eq!(folded(&store), ["0-1 retry", "0-1 retry", "1 retry"]);
    }

    #[test]
    fn equal_lines_at_different_times_stay_two_lines() {
        let mut store = LogStore::default();
        store.add(0, "2026-11-20 04:00:00 saved".into(), 0.0, true);
        store.add(1, "2026-11-20 04:00:09 saved".into(), 0.0, true);
        store.add(2, "2026-11-20 04:05:00 saved".into(), 0.0, true);
        store.add(3, "undated".into(), 100.0, true);
        store.add(4, "undated".into(), 111.0, true);
        let ranks: Vec<String> = store.iter().map(|line| line.ranks.to_string()).collect();
        assert_eq!(ranks, ["0-1", "2", "3", "4"]);
    }

    #[test]
    fn the_last_line_of_a_traceback_is_the_first_error() {
        let store = store(&[
            (1, "[rank1]: Watchdog caught collective operation timeout"),
            (0, "Traceback (most recent call last):"),
            (0, "  File \"train.py\", line 3, in <module>"),
            (0, "    raise ValueError(error: text)"),
            (0, "ValueError: bad shape"),
            (0, "RuntimeError: later"),
        ]);
        let first = store.first_error.as_ref().unwrap();
        assert_eq!((first.line, first.rank), (4, 0), "the timeout of rank 1 is a consequence");
        assert_eq!(store.iter().filter(|line| line.level == Level::Error).count(), 6);
    }

    #[test]
    fn a_line_of_another_thread_within_a_traceback_is_not_its_error() {
        let store = store(&[
            (0, "Traceback (most recent call last):"),
            (0, "step 12 loss 0.31"),
            (0, "  File \"train.py\", line 3, in <module>"),
            (0, "torch.OutOfMemoryError: CUDA out of memory"),
        ]);
        assert_eq!(store.first_error.as_ref().unwrap().line, 3);
        assert_eq!(store.line(1).unwrap().level, Level::Plain);
    }

    #[test]
    fn another_attempt_has_its_own_first_error() {
        let mut store = store(&[(0, "RuntimeError: CUDA out of memory")]);
        store.begin_attempt(2);
        assert!(store.first_error.is_none());
        store.add(1, "ValueError: bad shape".into(), 0.0, true);
        assert_eq!(store.first_error.as_ref().unwrap().rank, 1);
    }

    #[test]
    fn the_oldest_texts_of_folded_lines_are_dropped_first_and_their_line_records_it() {
        let mut store = LogStore::default();
        let long = "x".repeat(MAX_VARIANT_BYTES / 3);
        for number in 0..4 {
            for rank in 0..2 {
                store.add(rank, format!("rank {rank} line {number} {long}"), 0.0, true);
            }
        }
        let lacking: Vec<bool> = store.iter().map(|line| line.lacks_variants).collect();
        assert_eq!(lacking, [true, true, false, false]);
        assert!(store.variant_bytes <= MAX_VARIANT_BYTES);
    }

    /// Returns a store of `count` lines, of which only line `error` is an error.
    fn with_error_at(error: usize, count: usize) -> LogStore {
        let mut store = LogStore::default();
        for number in 0..count {
            let text = if number == error { "ValueError: bad shape".to_owned() } else { format!("line {number}") };
            store.add(0, text, 0.0, true);
        }
        store
    }

    #[test]
    fn the_first_error_stays_with_its_context_when_newer_lines_replace_it() {
        let store = with_error_at(20, MAX_LINES + 100);
        let error = store.first_error.as_ref().unwrap().line;
        assert_eq!((error, store.line(20).unwrap().text.as_str()), (20, "ValueError: bad shape"));
        let pinned: Vec<u64> = store.numbers().take_while(|number| *number < 100).collect();
        assert_eq!(pinned, (12..=24).collect::<Vec<_>>(), "8 lines before, 3 after, and a divider");
        assert!(store.line(24).unwrap().is_divider && store.line(25).is_none());
        assert!(store.is_cut());
        assert_eq!((store.before(100), store.at_or_after(25), store.before(12)), (Some(24), 100, None));
        assert_eq!(store.numbers().count(), MAX_LINES + 13);
    }

    #[test]
    fn an_error_that_is_among_the_newest_lines_has_no_divider() {
        let store = with_error_at(20, MAX_LINES);
        assert!(store.iter().all(|line| !line.is_divider) && !store.is_cut());
        assert_eq!(store.numbers().collect::<Vec<_>>(), (0..MAX_LINES as u64).collect::<Vec<_>>());
    }

    #[test]
    fn an_error_of_the_part_that_is_not_loaded_comes_before_the_loaded_lines() {
        let earlier = || vec![(Level::Plain, "step 1".to_owned()), (Level::Error, "ValueError: bad shape".to_owned())];
        let mut store = LogStore::of_end();
        store.add(1, "RuntimeError: later".into(), 0.0, true);
        assert!(store.add_earlier_error(3, earlier(), 1, 12 << 20));
        assert_eq!(store.first_error.as_ref().map(|first| (first.line, first.rank)), Some((1, 3)));
        assert_eq!(
            folded(&store),
            ["3 step 1", "3 ValueError: bad shape", " 12 MiB not shown", "1 RuntimeError: later"]
        );
        assert_eq!((store.at_or_after(3), store.lines_before(LOADED_FROM)), (LOADED_FROM, Some(0)));
        assert!(!store.is_cut());
        assert!(!store.add_earlier_error(3, earlier(), 1, 0), "only one error is added");
        assert!(!LogStore::default().add_earlier_error(3, earlier(), 1, 0), "the log is loaded from its beginning");
    }

    #[test]
    fn an_earlier_consequence_does_not_replace_a_loaded_cause() {
        let earlier = || vec![(Level::Error, "RuntimeError: Connection closed by peer".to_owned())];
        let mut store = LogStore::of_end();
        store.add(1, "ValueError: bad shape".into(), 0.0, true);
        assert!(!store.add_earlier_error(3, earlier(), 0, 100));
        let mut store = LogStore::of_end();
        assert!(store.add_earlier_error(3, earlier(), 0, 0));
        store.add(1, "ValueError: bad shape".into(), 0.0, true);
        assert_eq!(store.first_error.as_ref().unwrap().rank, 1);
        assert_eq!(store.iter().filter(|line| line.is_divider).count(), 0, "no line is missing");
    }

    proptest! {
        #[test]
        fn folding_keeps_every_line_and_the_order_of_each_rank(
            lines in prop::collection::vec((0usize..4, "[abc]", 0.0..40.0f64), 0..80),
        ) {
            let mut store = LogStore::default();
            for (rank, text, at) in &lines {
                store.add(*rank, text.clone(), *at, true);
            }
            for rank in 0..4 {
                let printed: Vec<&str> = lines.iter().filter(|line| line.0 == rank).map(|line| line.1.as_str()).collect();
                let kept: Vec<&str> = store.iter().filter(|line| line.ranks.contains(rank)).map(|line| line.text.as_str()).collect();
                prop_assert_eq!(printed, kept);
            }
        }
    }
}
