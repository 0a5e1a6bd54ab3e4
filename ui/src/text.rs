//! Text layout: width in cells, truncation, wrapping, and removal of control characters.

use ratatui_core::text::{Line, Span};
use std::ops::Range;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};
use units::terminal::{Colours, shown};

/// Returns the width of a text in terminal cells.
pub fn width(text: &str) -> usize {
    text.width()
}

/// Cuts a text to `max` cells; a cut text ends with the ellipsis.
pub fn fit(text: &str, max: usize, ellipsis: &str) -> String {
    if width(text) <= max {
        return text.to_owned();
    }
    let room = max.saturating_sub(width(ellipsis));
    let mut out = prefix(text, room).to_owned();
    if width(ellipsis) <= max {
        out.push_str(ellipsis);
    }
    out
}

/// Cuts the beginning of a text so that the text fits `max` cells; used for paths, whose end is more useful.
pub fn fit_end(text: &str, max: usize, ellipsis: &str) -> String {
    if width(text) <= max {
        return text.to_owned();
    }
    let room = max.saturating_sub(width(ellipsis));
    let mut start = text.len();
    let mut used = 0;
    for (at, c) in text.char_indices().rev() {
        used += c.width().unwrap_or(0);
        if used > room {
            break;
        }
        start = at;
    }
    if width(ellipsis) <= max { format!("{ellipsis}{}", &text[start..]) } else { String::new() }
}

/// Cuts a styled line to `max` cells; a cut line ends with the ellipsis.
pub fn fit_line(line: Line<'static>, max: usize, ellipsis: &str) -> Line<'static> {
    if line.width() <= max {
        return line;
    }
    let mut room = max;
    let mut spans: Vec<Span<'static>> = Vec::new();
    for span in line.spans {
        let wanted = width(&span.content);
        if wanted + width(ellipsis) <= room {
            room -= wanted;
            spans.push(span);
            continue;
        }
        // This span must be cut. The spans before it leave room for the ellipsis.
        let mut text = prefix(&span.content, room.saturating_sub(width(ellipsis))).trim_end().to_owned();
        if width(ellipsis) <= room {
            text.push_str(ellipsis);
        }
        spans.push(Span::styled(text, span.style));
        break;
    }
    Line::from(spans)
}

/// Returns the longest beginning of a text that takes at most `max` cells.
fn prefix(text: &str, max: usize) -> &str {
    let mut used = 0;
    for (at, c) in text.char_indices() {
        used += c.width().unwrap_or(0);
        if used > max {
            return &text[..at];
        }
    }
    text
}

/// Breaks a text at spaces into lines of at most `max` cells. Breaks a word only if it is longer than a line.
pub fn wrap(text: &str, max: usize) -> Vec<String> {
    let max = max.max(1);
    let mut lines = Vec::new();
    for paragraph in text.lines() {
        let mut line = String::new();
        for word in paragraph.split(' ') {
            let gap = usize::from(!line.is_empty());
            if width(&line) + gap + width(word) <= max {
                if gap == 1 {
                    line.push(' ');
                }
                line.push_str(word);
                continue;
            }
            if !line.is_empty() {
                lines.push(std::mem::take(&mut line));
            }
            let mut rows = rows(word, max).map(|range| word[range].to_owned()).collect::<Vec<_>>();
            line = rows.pop().unwrap_or_default();
            lines.append(&mut rows);
        }
        lines.push(line);
    }
    lines
}

/// Returns the byte ranges of the rows of a text that is broken after `max` cells, even inside words.
///
/// An empty text takes one row.
pub fn rows(text: &str, max: usize) -> impl Iterator<Item = Range<usize>> + '_ {
    let max = max.max(1);
    let mut start = 0;
    let mut done = false;
    std::iter::from_fn(move || {
        if done {
            return None;
        }
        let rest = &text[start..];
        let mut taken = prefix(rest, max).len();
        if taken == 0 {
            // A character that is wider than the row gets a row of its own.
            taken = rest.chars().next().map_or(0, char::len_utf8);
        }
        let range = start..start + taken;
        start += taken;
        done = start >= text.len();
        Some(range)
    })
}

/// Returns the text with its first letter in upper case. Names of programs, keys, files and nodes are not changed.
pub fn capitalized(text: &str) -> String {
    let first = text.split([' ', ':']).next().unwrap_or_default();
    if PROGRAMS.contains(&first) || first.chars().any(|c| !c.is_alphabetic() && !"',\"".contains(c)) {
        return text.to_owned();
    }
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

/// Names of programs with which a sentence may begin.
const PROGRAMS: [&str; 9] = ["ffmpeg", "ffprobe", "nvidia", "sbatch", "scancel", "squeue", "srun", "ssh", "vidtui"];

/// Removes escape sequences, control characters, invisible characters and text overwritten by a carriage return from
/// the output of a program. Tabs become spaces.
pub fn clean(line: &str) -> String {
    let line = shown(line, Colours::Remove);
    let mut pieces = line.split('\t');
    let mut out = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let stop = 8 - width(&out) % 8;
        out.extend(std::iter::repeat_n(' ', stop));
        out.push_str(piece);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_set_of_tput_is_removed_with_its_last_byte() {
        assert_eq!(clean("\x1b(B\x1b[mloss 0.5\x1b(B"), "loss 0.5");
    }

    #[test]
    fn a_text_that_is_too_long_ends_with_an_ellipsis() {
        assert_eq!(fit("checkpoint", 20, "…"), "checkpoint");
        assert_eq!(fit("checkpoint", 6, "…"), "check…");
        assert_eq!(fit("長い名前です", 5, "…"), "長い…");
        assert_eq!(fit("checkpoint", 0, "…"), "");
        assert_eq!(fit_end("/home/ada/runs", 6, "…"), "…/runs");
    }

    #[test]
    fn a_styled_line_is_cut_across_its_spans() {
        let line = Line::from(vec![Span::raw("step "), Span::raw("80"), Span::raw(" of 240")]);
        assert_eq!(fit_line(line.clone(), 14, "…").to_string(), "step 80 of 240");
        assert_eq!(fit_line(line.clone(), 9, "…").to_string(), "step 80…");
        assert_eq!(fit_line(line, 1, "…").to_string(), "…");
    }

    #[test]
    fn wrapping_breaks_at_spaces_and_inside_words_only_when_it_must() {
        assert_eq!(wrap("save a checkpoint, then stop", 12), ["save a", "checkpoint,", "then stop"]);
        assert_eq!(wrap("/a/very/long/path here", 8), ["/a/very/", "long/pat", "h here"]);
        assert_eq!(wrap("", 5), Vec::<String>::new());
        assert_eq!(wrap("two\nlines", 10), ["two", "lines"]);
    }

    #[test]
    fn output_of_programs_cannot_move_the_cursor() {
        assert_eq!(clean("\x1b[31merror\x1b[0m: no\x07"), "error: no");
        assert_eq!(clean("  10%\r 20%\r 30%"), " 30%");
        assert_eq!(clean("line\r\n"), "line");
        assert_eq!(clean("a\tb"), "a       b");
        assert_eq!(clean("\x1b]0;title\x07shown \x1b]8;;http://x\x1b\\link"), "shown link");
        assert_eq!(clean("torn \x1b["), "torn ");
    }

    #[test]
    fn rows_cover_the_text_without_gaps() {
        let text = "abc長い名前def";
        for max in 1..12 {
            let joined: String = rows(text, max).map(|range| &text[range]).collect();
            assert_eq!(joined, text);
        }
        assert_eq!(rows("", 5).count(), 1);
    }
}
