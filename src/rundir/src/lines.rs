//! Parses the lines of files, on several threads if there are many.

use crate::SCHEMA;
use memchr::{memchr, memchr_iter};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::thread;

/// The number of bytes of a bad line that are kept for display.
const MAX_SHOWN: usize = 200;
/// The number of bytes that are kept of a line of text that is too long.
const MAX_CUT: usize = 64 * 1024;
/// The bytes from which several threads are used: a shorter text is parsed faster than a thread starts.
const WORTH_THREADS: usize = 256 * 1024;
/// More threads do not help, because memory bandwidth limits them.
const MAX_THREADS: usize = 4;

/// A type that is one line of a file.
pub trait LogLine: Sized + Send {
    /// Whether an empty line is an item; otherwise it is skipped.
    const BLANK: bool = false;

    /// Parses a line without its newline.
    ///
    /// # Errors
    /// The reason why it cannot be parsed. The line is reported as a [`BadLine`], and reading continues.
    fn parse(line: &[u8]) -> Result<Self, String>;

    /// Returns the item for a line that is too long to be read, given its first bytes. `None`: it is a [`BadLine`].
    fn cut(_start: &[u8]) -> Option<Self> {
        None
    }
}

/// Any text is a line; bytes that are not UTF-8 are replaced.
impl LogLine for String {
    const BLANK: bool = true;

    fn parse(line: &[u8]) -> Result<Self, String> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        Ok(String::from_utf8_lossy(line).into_owned())
    }

    fn cut(start: &[u8]) -> Option<Self> {
        let shown = String::from_utf8_lossy(&start[..start.len().min(MAX_CUT)]);
        Some(format!("{shown}… [the rest of this line is left out, because the line is longer than 4 MiB]"))
    }
}

/// Parses a JSON object. Refuses an object of a newer version.
pub(crate) fn json_line<T: DeserializeOwned>(line: &[u8]) -> Result<T, String> {
    #[derive(Deserialize)]
    struct Head {
        v: u64,
    }
    // Parses the version first only if the line does not begin with the current version, because parsing twice takes time.
    if !line.starts_with(b"{\"v\":1,")
        && let Ok(Head { v }) = serde_json::from_slice(line)
        && v > u64::from(SCHEMA)
    {
        return Err(format!("written by a newer vidtui (v {v}; this one reads {SCHEMA}): upgrade"));
    }
    serde_json::from_slice(line).map_err(|e| e.to_string())
}

/// A complete line that cannot be parsed, most often the torn last line of a writer that was killed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadLine {
    /// Its byte offset in the file.
    pub offset: u64,
    /// Why it cannot be parsed.
    pub why: String,
    /// Its first characters.
    pub text: String,
}

impl BadLine {
    pub(crate) fn new(offset: u64, line: &[u8], why: String) -> Self {
        let text = String::from_utf8_lossy(&line[..line.len().min(MAX_SHOWN)]).into_owned();
        Self { offset, why, text }
    }
}

/// Parses whole lines, the first of which begins at byte `offset` of its file. Many lines are parsed on several threads. One core is left
/// for the thread that draws the screen, so that keys do not wait for a long file.
pub(crate) fn parse_lines<T: LogLine>(bytes: &[u8], offset: u64) -> (Vec<T>, Vec<BadLine>) {
    let threads = match bytes.len() {
        0..WORTH_THREADS => 1,
        _ => thread::available_parallelism().map_or(1, |cores| (cores.get() - 1).clamp(1, MAX_THREADS)),
    };
    parse_on(threads, bytes, offset)
}

/// Parses whole lines on `threads` threads, including the calling one.
fn parse_on<T: LogLine>(threads: usize, bytes: &[u8], offset: u64) -> (Vec<T>, Vec<BadLine>) {
    let (mine, rest) = bytes.split_at(first_part(bytes, threads));
    if rest.is_empty() {
        return parse_here(mine, offset);
    }
    thread::scope(|scope| {
        let mut others = Vec::new();
        let (mut rest, mut at) = (rest, offset + mine.len() as u64);
        for threads in (1..threads).rev() {
            let (part, later) = rest.split_at(first_part(rest, threads));
            let thread = thread::Builder::new().spawn_scoped(scope, move || parse_here(part, at));
            others.push((thread, part, at));
            (rest, at) = (later, at + part.len() as u64);
        }
        let (mut items, mut bad) = parse_here(mine, offset);
        for (thread, part, at) in others {
            let (more_items, more_bad) = match thread {
                Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                // The thread could not be started.
                Err(_) => parse_here(part, at),
            };
            items.extend(more_items);
            bad.extend(more_bad);
        }
        (items, bad)
    })
}

/// Returns the end of the first part, if `bytes` is split at line ends into `parts` parts of about equal size.
fn first_part(bytes: &[u8], parts: usize) -> usize {
    let about = bytes.len() / parts;
    if parts == 1 { bytes.len() } else { memchr(b'\n', &bytes[about..]).map_or(bytes.len(), |n| about + n + 1) }
}

fn parse_here<T: LogLine>(bytes: &[u8], offset: u64) -> (Vec<T>, Vec<BadLine>) {
    let (mut items, mut bad) = (Vec::new(), Vec::new());
    let mut start = 0;
    for end in memchr_iter(b'\n', bytes) {
        let line = &bytes[start..end];
        if T::BLANK || !line.is_empty() {
            match T::parse(line) {
                Ok(item) => items.push(item),
                Err(why) => bad.push(BadLine::new(offset + start as u64, line, why)),
            }
        }
        start = end + 1;
    }
    (items, bad)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MetricSample;

    #[test]
    fn lines_that_several_threads_parse_keep_their_order_and_offsets() {
        let mut text = String::new();
        let mut places = Vec::new();
        for step in 0..20_000 {
            if step % 1000 == 0 {
                places.push(10 + text.len() as u64);
                text += "not a sample\n";
            }
            text += &serde_json::to_string(&MetricSample { step, ..MetricSample::default() }).unwrap();
            text += "\n";
        }
        let (samples, bad) = parse_on::<MetricSample>(MAX_THREADS, text.as_bytes(), 10);
        assert!(samples.iter().enumerate().all(|(n, sample)| sample.step == n as u64));
        assert_eq!(samples.len(), 20_000);
        assert_eq!(bad.iter().map(|b| b.offset).collect::<Vec<_>>(), places);
    }

    #[test]
    fn a_line_longer_than_the_part_of_a_thread_is_read_once() {
        let text = "x".repeat(3 * WORTH_THREADS) + "\nlast\n";
        let (lines, bad) = parse_on::<String>(MAX_THREADS, text.as_bytes(), 0);
        assert_eq!((lines.len(), bad.len()), (2, 0));
        assert_eq!(lines[1], "last");
    }

    #[test]
    fn an_empty_line_is_an_item_of_a_log_and_skipped_between_samples() {
        assert_eq!(parse_lines::<String>(b"a\n\nb\r\n", 0).0, ["a", "", "b"]);
        assert_eq!(parse_lines::<MetricSample>(b"\n\n", 0), (vec![], vec![]));
    }

    #[test]
    fn a_line_of_a_newer_version_is_refused() {
        let line = serde_json::to_string(&MetricSample::default()).unwrap();
        let newer = line.replace("\"v\":1", "\"v\":2");
        let why = MetricSample::parse(newer.as_bytes()).unwrap_err();
        insta::assert_snapshot!(why, @"written by a newer vidtui (v 2; this one reads 1): upgrade");
        let more = line.replace("\"v\":1,", "\"mood\":\"good\",\"v\":1,");
        assert_eq!(MetricSample::parse(more.as_bytes()), Ok(MetricSample::default()));
    }
}
