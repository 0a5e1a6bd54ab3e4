//! Splits the bytes of a log into lines. Handles carriage returns, colours, characters that are split between reads, and
//! lines that never end.

use units::terminal::{Colours, shown};

/// The maximum length of a line in bytes. A longer line is truncated; lines with metrics are shorter.
const LONGEST: usize = 64 * 1024;

/// Splits a growing log into lines.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    /// The start of a line whose end has not been read yet.
    half: Vec<u8>,
}

impl Lines {
    /// Appends bytes and returns the lines that they complete. A carriage return ends a line too, because a progress
    /// bar is redrawn after it. Only complete lines are decoded, because a character may be split between two calls.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut whole = Vec::new();
        for piece in bytes.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
            let ends = matches!(piece.last(), Some(b'\n' | b'\r'));
            let text = &piece[..piece.len() - usize::from(ends)];
            self.half.extend(&text[..text.len().min(LONGEST.saturating_sub(self.half.len()))]);
            if ends {
                let line = clean(&self.half);
                self.half.clear();
                whole.extend(Some(line).filter(|line| !line.is_empty()));
            }
        }
        whole
    }

    /// Returns the text after the last line end, such as a progress bar.
    pub fn half(&self) -> Option<String> {
        Some(clean(&self.half)).filter(|line| !line.is_empty())
    }
}

/// Decodes a line and removes the control sequences of terminals.
pub fn clean(line: &[u8]) -> String {
    shown(&String::from_utf8_lossy(line), Colours::Remove).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_do_not_depend_on_the_size_of_the_reads() {
        let log = "[\u{1b}[34m2026-11-20\u{1b}[0m] Épochs\r\nSteps:  1%|█▏ |\rSteps:  2%|█▍ |\n\n\u{1b}]0;title\u{7}end\u{1b}[A\n half"
            .as_bytes();
        let mut at_once = Lines::default();
        let lines = at_once.push(log);
        assert_eq!(lines, ["[2026-11-20] Épochs", "Steps:  1%|█▏ |", "Steps:  2%|█▍ |", "end"]);
        assert_eq!(at_once.half().as_deref(), Some("half"));
        for size in 1..7 {
            let mut torn = Lines::default();
            let pieces: Vec<_> = log.chunks(size).flat_map(|piece| torn.push(piece)).collect();
            assert_eq!(pieces, lines, "in pieces of {size}");
            assert_eq!(torn.half().as_deref(), Some("half"));
        }
    }

    #[test]
    fn a_line_without_end_takes_limited_memory() {
        let mut lines = Lines::default();
        for _ in 0..100 {
            assert!(lines.push(&[b'x'; 10_000]).is_empty());
        }
        assert_eq!(lines.push(b"\nnext\n"), ["x".repeat(LONGEST), "next".to_owned()]);
    }

    #[test]
    fn bytes_that_are_not_utf_8_are_replaced() {
        assert_eq!(Lines::default().push(b"\xff\xfe loss\x00=1\n"), ["\u{fffd}\u{fffd} loss=1"]);
    }
}
