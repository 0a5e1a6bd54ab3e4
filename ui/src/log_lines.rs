//! Facts about single lines of logs: level, time, and the text that equal lines of several ranks have in common.

use crate::text;
use regex::Regex;
use serde::{Deserialize, Serialize};
use std::sync::LazyLock;

/// The maximum number of bytes per line; the rest is cut, so that one very long line does not slow down drawing.
const MAX_LINE: usize = 4096;

/// The level of a line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Level {
    /// Neither a warning nor an error.
    #[default]
    Plain,
    /// A warning.
    Warning,
    /// An error.
    Error,
}

/// Parts of lines that report errors, in lower case.
const ERRORS: [&str; 15] = [
    "error:",
    "exception:",
    "panicked at",
    "traceback (most recent call last)",
    "out of memory",
    "cuda error",
    "nccl error",
    "ncclsystemerror",
    "ncclinternalerror",
    "ncclunhandledcudaerror",
    "ncclremoteerror",
    "watchdog caught collective operation timeout",
    "segmentation fault",
    "core dumped",
    "fatal",
];

/// Parts of lines that report warnings, in lower case.
const WARNINGS: [&str; 5] = ["warn", "error", "failed", "timed out", "retrying"];

/// The levels of logging libraries, which write them in capitals, and the beginnings of errors of the embedded trainer.
static LEVEL_WORD: LazyLock<Regex> = LazyLock::new(|| {
    pattern(r"\b(ERROR|CRITICAL|FATAL)\b|^\[?[EF]\d{4} \d\d:|^cannot [a-z]+ .*: |^lost contact with another rank: ")
});

/// Lines with an error word that report no error: PyTorch's advice about another error, counts such as `0 errors`, metrics such as
/// `mean absolute error: 0.3`, what is not fatal, and that the profiler finds no GPU (CUDA errors 35 and 100).
static NO_ERROR: LazyLock<Regex> = LazyLock::new(|| {
    pattern(concat!(
        r"(?i)might be asynchronously reported|\b(0|no|without) errors?\b|\b[a-z]+ error: *-?[\d.]|non-?fatal",
        r"|gpuGetDeviceCount failed with code (35|100)$|External init callback must run in same thread"
    ))
});

/// An error of Python without a message, such as `KeyboardInterrupt` or `AssertionError`.
static BARE_ERROR: LazyLock<Regex> = LazyLock::new(|| pattern(r"^([\w.]+\.)?\w+(Error|Exception|Interrupt)$"));

/// The last line of a traceback: the name of an exception, with a message or without. Names that do not end in `Error` have one.
static EXCEPTION: LazyLock<Regex> = LazyLock::new(|| {
    pattern(r"^(?:[A-Za-z_]\w*\.)*(?:\w*(?:Error|Exception|Interrupt|Exit|Warning)(?::|$)|[A-Z]\w*: )")
});

/// Errors that follow from the error of another rank.
const CONSEQUENCES: [&str; 11] = [
    "watchdog caught collective operation timeout",
    "ncclremoteerror",
    "connection reset by peer",
    "connection closed by peer",
    "broken pipe",
    "remote process exited",
    "childfailederror",
    "sigterm",
    "some nccl operations have failed or timed out",
    "the process group has been",
    "lost contact with another rank",
];

/// Every line that [`level`] calls an error, or that begins a traceback, contains one of these words.
static ERROR_WORD: LazyLock<regex::bytes::Regex> = LazyLock::new(|| {
    let words = concat!(
        r"(?i-u)error|exception|interrupt|traceback|panicked|out of memory|watchdog caught|segmentation fault",
        r"|core dumped|fatal|critical|cannot |lost contact|[EF]\d{4} \d\d:",
    );
    regex::bytes::Regex::new(words).expect("the pattern is constant, and a test compiles it")
});

/// Returns a line as the console shows it: without control characters, and cut to 4096 bytes.
pub fn shown(line: &str) -> String {
    let mut text = text::clean(line);
    if text.len() > MAX_LINE {
        text.truncate((0..=MAX_LINE).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0));
        text.push('…');
    }
    text
}

/// Returns whether a line may be an error or begin a traceback. This check is much faster than [`level`], and finds at
/// least the lines that `level` finds.
pub fn may_be_error(line: &[u8]) -> bool {
    ERROR_WORD.is_match(line)
}

/// The levels of the lines of one log, one line after the other.
#[derive(Debug, Clone, Copy, Default)]
pub struct Levels {
    is_in_traceback: bool,
}

impl Levels {
    /// Returns the level of the next line, and whether the line is an error message rather than other lines of a
    /// traceback.
    pub fn of_next(&mut self, text: &str) -> (Level, bool) {
        if begins_traceback(text) {
            self.is_in_traceback = true;
            return (Level::Error, false);
        }
        if self.is_in_traceback {
            // Other threads of the rank may print lines in between.
            let is_end = ends_traceback(text);
            self.is_in_traceback = !is_end;
            if is_end || continues_traceback(text) {
                return (Level::Error, is_end);
            }
        }
        let level = level(text);
        (level, level == Level::Error)
    }

    /// Returns whether a traceback has begun and not ended.
    pub fn is_in_traceback(&self) -> bool {
        self.is_in_traceback
    }
}

/// Returns the level of a line by its words.
pub fn level(text: &str) -> Level {
    let lower = text.to_ascii_lowercase();
    let has = |parts: &[&str]| parts.iter().any(|part| lower.contains(part));
    if NO_ERROR.is_match(text) {
        return if lower.contains("warn") { Level::Warning } else { Level::Plain };
    }
    if has(&ERRORS) && !lower.contains("warning:") || LEVEL_WORD.is_match(text) || BARE_ERROR.is_match(text.trim()) {
        return Level::Error;
    }
    if has(&WARNINGS) { Level::Warning } else { Level::Plain }
}

/// Returns whether a line begins a traceback of Python.
pub fn begins_traceback(text: &str) -> bool {
    text.contains("Traceback (most recent call last)")
}

/// The prefix that PyTorch adds to each line of a traceback: `[rank3]: `.
static RANK_PREFIX: LazyLock<Regex> = LazyLock::new(|| pattern(r"^\[rank\d+\]: ?"));

/// Returns whether a line is a part of a traceback between its first and its last line, which are not indented.
pub fn continues_traceback(text: &str) -> bool {
    let text = without_rank(text);
    text.is_empty() || text.starts_with([' ', '|'])
}

/// Returns whether a line is the last one of a traceback: `ValueError: bad shape`.
pub fn ends_traceback(text: &str) -> bool {
    EXCEPTION.is_match(without_rank(text))
}

fn without_rank(text: &str) -> &str {
    RANK_PREFIX.find(text).map_or(text, |prefix| &text[prefix.end()..])
}

/// Returns whether an error usually follows from the error of another rank: a peer that was lost, a collective that timed out.
pub fn is_consequence(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    CONSEQUENCES.iter().any(|part| lower.contains(part))
}

static TIME: LazyLock<Regex> = LazyLock::new(|| {
    pattern(concat!(
        r"(?:(?P<y>\d{4})-(?P<m>\d\d)-(?P<d>\d\d)|(?P<m2>\d\d)/(?P<d2>\d\d)/(?P<y2>\d{4}))",
        r"[T ](?P<h>\d\d):(?P<min>\d\d):(?P<s>\d\d)(?:[.,](?P<f>\d{1,9}))?",
    ))
});

/// The number of bytes at the beginning of a line that are searched for a time.
const TIME_WITHIN: usize = 64;

/// Returns the time that a line begins with, in seconds on a clock without a zone: only differences between lines of the same
/// program have a meaning.
pub fn time_s(text: &str) -> Option<f64> {
    let end = (0..=TIME_WITHIN.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let found = TIME.captures(&text[..end])?;
    let number = |name: &str| found.name(name).and_then(|part| part.as_str().parse::<i64>().ok());
    let (year, month) = (number("y").or(number("y2"))?, number("m").or(number("m2"))?);
    let days = days_from_civil(year, month, number("d").or(number("d2"))?);
    let fraction = found.name("f").and_then(|part| format!("0.{}", part.as_str()).parse::<f64>().ok());
    let second_of_day = number("h")? * 3600 + number("min")? * 60 + number("s")?;
    Some((days * 86_400 + second_of_day) as f64 + fraction.unwrap_or(0.0))
}

/// Returns the days since 1970-01-01 of a date of the Gregorian calendar.
///
/// Source: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", `days_from_civil`.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// The parts that differ between ranks in otherwise equal lines: times, addresses, the process that NCCL names, and ranks.
static VARYING: LazyLock<Regex> = LazyLock::new(|| {
    pattern(concat!(
        r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?",
        r"|\d\d/\d\d/\d{4} \d\d:\d\d:\d\d(?:[.,]\d+)?",
        r"|\b\d{1,2}:\d\d:\d\d(?:[.,]\d+)?",
        r"|\b0x[0-9a-fA-F]+",
        r"|^[\w.-]+:\d+:\d+ \[\d+\] NCCL",
        r"|(?i:\brank)(?:\s*[:=]\s*|[\s_]*)(?P<rank>\d+)\b",
    ))
});

/// Returns a line without the parts that differ between ranks that print the same. The number of a rank is removed only if
/// that rank printed the line: "rank 3 was lost" and "rank 5 was lost" differ.
pub fn fold_key(text: &str, rank: usize) -> String {
    let mut key = String::with_capacity(text.len());
    let mut at = 0;
    for found in VARYING.captures_iter(text) {
        let Some(whole) = found.get(0) else { continue };
        if found.name("rank").is_some_and(|number| number.as_str().parse() != Ok(rank)) {
            continue;
        }
        key.push_str(&text[at..whole.start()]);
        key.push('\u{1}');
        at = whole.end();
    }
    key.push_str(&text[at..]);
    key
}

/// Puts the last lines of several logs into one order, when they are read at once.
///
/// If each log has a line with a time, the lines are ordered by time; a line without one belongs to the line before it.
/// Otherwise they are ordered by their distance from the end of their log. Lines of one log keep their order in both cases.
pub fn in_order(logs: Vec<(usize, Vec<String>)>) -> Vec<(usize, String)> {
    let times: Vec<Option<Vec<f64>>> =
        logs.iter().filter(|(_, lines)| !lines.is_empty()).map(|(_, lines)| times_of(lines)).collect();
    let are_dated = times.iter().all(Option::is_some);
    let mut times = times.into_iter().flatten();
    let mut all = Vec::new();
    for (rank, lines) in logs.into_iter().filter(|(_, lines)| !lines.is_empty()) {
        let count = lines.len();
        let times = if are_dated { times.next().unwrap_or_default() } else { Vec::new() };
        all.extend(lines.into_iter().enumerate().map(|(at, line)| {
            let key = times.get(at).copied().unwrap_or(at as f64 - count as f64);
            (key, rank, line)
        }));
    }
    // A stable sort: lines of equal times are ordered by rank.
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    all.into_iter().map(|(_, rank, line)| (rank, line)).collect()
}

/// Returns a time for each line, which never decreases; `None` if no line has one.
fn times_of(lines: &[String]) -> Option<Vec<f64>> {
    let mut latest = lines.iter().find_map(|line| time_s(line))?;
    let time_of = |line: &String| {
        latest = time_s(line).map_or(latest, |time| latest.max(time));
        latest
    };
    Some(lines.iter().map(time_of).collect())
}

fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("the pattern is constant, and a test compiles it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_the_level_of_their_words() {
        let errors = [
            "RuntimeError: CUDA out of memory. Tried to allocate 3.2 GiB",
            "torch.cuda.OutOfMemoryError",
            "KeyboardInterrupt",
            "thread 'main' panicked at src/main.rs:3:5:",
            "[rank3]:[E1120 04:00:00.1 ProcessGroupNCCL.cpp:607] Watchdog caught collective operation timeout",
            "2026-11-20 04:00:00,123 - ERROR - cannot read the index",
            "E1120 04:00:00.123456 12 loader.cc:9] cannot open",
            "node03:1204:1300 [0] NCCL WARN Cuda failure: ncclSystemError",
        ];
        for line in errors {
            assert_eq!(level(line), Level::Error, "{line}");
            assert!(may_be_error(line.as_bytes()), "{line}");
        }
        let warnings = ["UserWarning: Error: old format", "failed to connect, retrying in 2 s", "W: loss error grows"];
        for line in warnings {
            assert_eq!(level(line), Level::Warning, "{line}");
        }
        let advice = "CUDA error: kernel errors might be asynchronously reported at some other API call";
        let metrics = ["reconstruction error: 0.012", "mean absolute error: -3", "a non-fatal event"];
        for line in ["step 20 loss 0.31", "done with 0 errors", advice, ""].into_iter().chain(metrics) {
            assert_eq!(level(line), Level::Plain, "{line}");
        }
    }

    #[test]
    fn the_fast_check_finds_each_word_of_an_error() {
        for part in ERRORS {
            assert!(may_be_error(part.to_uppercase().as_bytes()), "{part}");
        }
        let others = ["CRITICAL: disk", "F1120 04:00:00.1 12 a.cc:9] x", "cannot open /data/x: it is missing"];
        for line in others.into_iter().chain(["Traceback (most recent call last):", "AssertionError", "AnException"]) {
            assert!(may_be_error(line.as_bytes()), "{line}");
        }
        assert!(!may_be_error(b"step 20 loss 0.31, 1.2 s per step"));
    }

    #[test]
    fn a_shown_line_has_no_control_characters_and_is_cut() {
        assert_eq!(shown("10 %\r\x1b[31m20 %\x1b[0m\r"), "20 %");
        assert_eq!(shown(&"長".repeat(2000)).chars().count(), MAX_LINE / 3 + 1);
    }

    #[test]
    fn an_error_of_a_peer_is_a_consequence() {
        assert!(is_consequence("[rank3]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)"));
        assert!(is_consequence("RuntimeError: Connection closed by peer [10.0.0.4]:3301"));
        let no_gpu =
            "ERROR:2026-11-29 12:52:49 21355:25802 DeviceProperties.cpp:48] gpuGetDeviceCount failed with code 35";
        assert!(level(no_gpu) == Level::Plain);
        let lost = "lost contact with another rank: cannot reduce-scatter over 2 ranks: Connection reset by peer";
        assert!(level(lost) == Level::Error && may_be_error(lost.as_bytes()) && is_consequence(lost));
        assert!(!is_consequence("RuntimeError: CUDA out of memory"));
    }

    #[test]
    fn the_time_of_a_line_is_read_in_the_usual_forms() {
        let base = time_s("2026-11-20T04:00:00Z started").unwrap();
        let after = |text: &str| time_s(text).map(|time| ((time - base) * 1e3).round() / 1e3);
        assert_eq!(base, 1_795_147_200.0);
        assert_eq!(after("[\x1b[34m2026-11-20 04:00:01\x1b[0m] epoch"), Some(1.0));
        assert_eq!(after("11/20/2026 04:00:02 - INFO - saved"), Some(2.0));
        assert_eq!(after("[2026-11-20 04:00:03,250][root] step"), Some(3.25));
        assert_eq!(after("2024-02-29 00:00:00 leap day").map(|days| (days / 86_400.0).round()), Some(-995.0));
        assert_eq!(after("step 20 took 1.2 s"), None);
        assert_eq!(after(&format!("{} 2026-11-20 04:00:00", "長".repeat(40))), None);
    }

    #[test]
    fn equal_lines_of_ranks_have_the_same_key() {
        let same = |a: &str, b: &str| fold_key(a, 3) == fold_key(b, 8);
        assert!(same("[rank3]: 2026-11-20 04:00:00 loaded", "[rank8]: 2026-11-20 04:00:07 loaded"));
        assert!(same("Rank: 3 object at 0x7f12ab", "Rank: 8 object at 0x7fffff"));
        assert!(same("node01:120:99 [3] NCCL INFO ready", "node02:77:1 [0] NCCL INFO ready"));
        assert!(!same("rank 3 was lost", "rank 5 was lost"), "both lines name another rank");
        assert!(!same("loss 0.31", "loss 0.32"));
        assert!(!same("cuda:3", "cuda:8"), "the device may be what matters");
    }

    #[test]
    fn logs_with_times_are_ordered_by_time_and_others_from_their_end() {
        let log = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
        let ranks =
            |logs: Vec<(usize, Vec<String>)>| in_order(logs).into_iter().map(|(rank, _)| rank).collect::<Vec<_>>();
        let dated = vec![
            (0, log(&["2026-11-20 04:00:00 a", "no time", "2026-11-20 04:00:05 b"])),
            (1, log(&["2026-11-20 04:00:02 a"])),
            (2, vec![]),
        ];
        assert_eq!(ranks(dated), [0, 0, 1, 0]);
        let plain = vec![(0, log(&["2026-11-20 04:00:00 a", "b", "c"])), (1, log(&["x", "y"]))];
        assert_eq!(ranks(plain), [0, 0, 1, 0, 1]);
    }
}
