//! The lines of an open log. Equal lines of several ranks are folded into one line.

use crate::log_lines::{self, Level};
use crate::rank_set::RankSet;
use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};

/// The maximum number of lines in memory; older lines are only in the files.
const MAX_LINES: usize = 5000;

/// The maximum number of bytes of all variants (see [`LogLine::variants`]).
const MAX_VARIANT_BYTES: usize = 8 << 20;

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
    lines: VecDeque<LogLine>,
    /// The number of the first line in memory, counted from the beginning of the stream.
    first: u64,
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
    is_in_traceback: bool,
}

impl LogStore {
    /// Returns the number of the first line in memory.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// Returns the number that the next line gets.
    pub(crate) fn end(&self) -> u64 {
        self.first + self.lines.len() as u64
    }

    /// Returns whether there are no lines.
    pub(crate) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Returns a line; `None` if it is no longer in memory.
    pub(crate) fn line(&self, number: u64) -> Option<&LogLine> {
        self.lines.get(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    /// Returns the lines in memory.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &LogLine> {
        self.lines.iter()
    }

    /// Begins another attempt: adds a divider, and resets the first error.
    pub(crate) fn begin_attempt(&mut self, number: u32) {
        self.first_error = None;
        self.divide(format!("attempt {number}"));
    }

    /// Adds a divider. Lines before and after it are not folded together.
    pub(crate) fn divide(&mut self, text: String) {
        let end = self.end();
        self.writers.values_mut().for_each(|writer| *writer = Writer { latest: Some(end), is_in_traceback: false });
        self.folds.clear();
        self.push(LogLine {
            text,
            level: Level::Plain,
            is_divider: true,
            ranks: RankSet::default(),
            variants: Vec::new(),
            lacks_variants: false,
            key: 0,
            at_s: 0.0,
        });
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
        let (level, is_cause) = self.level(rank, &text);
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
                let ranks = RankSet::one(rank);
                let (variants, lacks_variants) = (Vec::new(), false);
                self.push(LogLine { text, level, is_divider: false, ranks, variants, lacks_variants, key, at_s });
                number
            }
        };
        self.writers.entry(rank).or_default().latest = Some(number);
    }

    /// Returns the level of a rank's next line, and whether the line is an error message rather than other lines of a
    /// traceback.
    fn level(&mut self, rank: usize, text: &str) -> (Level, bool) {
        let writer = self.writers.entry(rank).or_default();
        if log_lines::begins_traceback(text) {
            writer.is_in_traceback = true;
            return (Level::Error, false);
        }
        if writer.is_in_traceback {
            // Other threads of the rank may print lines in between.
            let is_end = log_lines::ends_traceback(text);
            writer.is_in_traceback = !is_end;
            if is_end || log_lines::continues_traceback(text) {
                return (Level::Error, is_end);
            }
        }
        let level = log_lines::level(text);
        (level, level == Level::Error)
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
        self.first += 1;
    }
}

impl LogLine {
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
