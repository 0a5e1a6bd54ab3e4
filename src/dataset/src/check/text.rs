//! Formats the report of a check as text for a terminal.

use super::report::{Count, Report};
use crate::BucketClips;
use std::fmt::Write;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The maximum number of sizes, rates or codecs on one line.
const LISTED: usize = 4;
/// The maximum number of clips of a group that are named.
const NAMED: usize = 3;
/// The maximum number of bars of the histogram.
const BARS: usize = 24;
/// The maximum width of the caption that is shown as an example. A template often adds to the end.
const EXAMPLE_WIDTH: usize = 70;
/// The maximum width of the column with conditions.
const CONDITION_WIDTH: usize = 52;
/// The maximum width of the column with the ids of dropped clips.
const ID_WIDTH: usize = 28;

impl Report {
    /// Formats the report. The lines of dropped clips are cut to `width` columns; `None` for a pipe or file, where nothing is cut.
    pub fn text(&self, width: Option<usize>) -> String {
        let mut text = format!("{}: {}\n\n", self.layout, one_line(&self.layout_why));
        if !self.histogram.is_empty() {
            text += &self.bars(width.unwrap_or(80));
            text.push('\n');
        }
        if !self.columns.is_empty() {
            text += &super::columns::table(&self.columns);
            text.push('\n');
        }
        if !self.conditions.is_empty() {
            text += &self.condition_table();
            text.push('\n');
        }
        if !self.buckets.is_empty() {
            text += &self.bucket_table();
            text.push('\n');
        }
        if !self.dropped.is_empty() {
            text += &self.dropped_table(width);
            text.push('\n');
        }
        for (name, value) in self.facts() {
            let _ = writeln!(text, "{name:<9} {}", one_line(&value));
        }
        text
    }

    fn condition_table(&self) -> String {
        let cells = |text: &str| UnicodeWidthStr::width(text);
        let widest = self.conditions.iter().map(|count| cells(&count.condition)).max().unwrap_or(0);
        let width = widest.clamp("condition".len(), CONDITION_WIDTH);
        let line = |condition: &str, left_out: &str, missing: &str| {
            let condition = cut(&one_line(condition), width, End::End);
            let pad = " ".repeat(width - cells(&condition));
            format!("{condition}{pad}{left_out:>10}{missing:>18}\n")
        };
        let mut text = line("condition", "left out", "without a number");
        for count in &self.conditions {
            text += &line(&count.condition, &count.left_out.to_string(), &count.missing.to_string());
        }
        text
    }

    fn bucket_table(&self) -> String {
        let mut text = format!("{:<14}{:>8}{:>9}\n", "bucket", "clips", "hours");
        for BucketClips { bucket, clips, hours } in &self.buckets {
            let _ = writeln!(text, "{bucket:<14}{clips:>8}{hours:>9.2}");
        }
        text
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let share = format!("{:.1}", self.dropped_share() * 100.0);
        let share = share.trim_end_matches(".0");
        let dropped = match self.dropped.len() {
            0 => "all usable".into(),
            dropped => format!("{} usable, {dropped} dropped ({share} %)", self.usable),
        };
        let mut facts = vec![("clips", format!("{}: {dropped}", self.clips))];
        if !self.conditions.is_empty() {
            let conditions = units::counted(self.conditions.len(), "condition");
            facts.push(("left out", format!("{} by {conditions}", units::counted(self.left_out, "row"))));
        }
        if let Some(lengths) = self.lengths {
            let each = format!("{:.1} to {:.1} s each, median {:.1} s", lengths.min_s, lengths.max_s, lengths.median_s);
            facts.push(("length", format!("{}, {each}", hours(self.hours))));
            facts.push(("size", with(list(&self.sizes, ""), &[(self.enlarged, "smaller than wanted, enlarged")])));
            let rate =
                [(self.variable_rate, "variable"), (self.repeated_frames, "slower than wanted, frames repeated")];
            facts.push(("rate", with(list(&self.rates, " fps"), &rate)));
            facts.push(("codec", with(list(&self.codecs, ""), &[(self.hdr, "HDR, tone-mapped")])));
        }
        if !self.empty_buckets.is_empty() {
            facts.push(("no clip", units::listed(&self.empty_buckets, LISTED, ToString::to_string)));
        }
        facts.push(("captions", self.caption_text()));
        if let Some([template, first]) = &self.template {
            facts.push(("template", template.clone()));
            facts.push(("example", cut(&one_line(first), EXAMPLE_WIDTH, End::Start)));
        }
        if let (Some(median), Some(most), Some(cut)) =
            (self.captions.median_tokens, self.captions.most_tokens, self.captions.cut)
        {
            let cut = if cut == 0 { "none is cut".into() } else { format!("{cut} too long and cut") };
            facts.push(("tokens", format!("median {median}, longest {most}; {cut}")));
        }
        let known =
            if self.cached == 0 { String::new() } else { format!(", {} known from an earlier check", self.cached) };
        facts.push(("videos", format!("{}, {}{known}", self.videos, units::short_size(self.bytes))));
        let unusual = nonzero(&[
            (self.interlaced, "interlaced"),
            (self.rotated, "rotated"),
            (self.non_square_pixels, "with non-square pixels"),
            (self.nonzero_start, "with a nonzero start time"),
            (self.several_video_streams, "with several video streams"),
        ]);
        if !unusual.is_empty() {
            facts.push(("notes", unusual));
        }
        if self.stated_wrong > 0 {
            let differ =
                format!("{} differ in size or length from the table", units::counted(self.stated_wrong, "clip"));
            facts.push(("note", differ));
        }
        if self.same_bytes > 0 {
            let clips = units::counted(self.same_bytes, "clip");
            let groups = units::listed(&self.same_bytes_groups, LISTED, |group| equal(group));
            facts.push(("note", format!("{clips} with the bytes of another file and another caption: {groups}")));
        }
        facts.extend(self.notes.iter().map(|note| ("note", note.clone())));
        facts
    }

    fn caption_text(&self) -> String {
        let captions = &self.captions;
        let measured = match captions.most_characters {
            0 => "none usable".into(),
            most => format!("median {} characters, longest {most}", captions.median_characters),
        };
        let counts = [
            (captions.missing, "missing"),
            (captions.empty, "empty"),
            (captions.not_utf8, "not UTF-8"),
            (captions.too_long, "too long"),
            (captions.doubled, "doubled"),
        ];
        with(measured, &counts)
    }

    /// Draws a bar per size and range of frames.
    fn bars(&self, width: usize) -> String {
        let mut bars: Vec<_> = self.histogram.iter().collect();
        bars.sort_by_key(|bar| std::cmp::Reverse(bar.clips));
        let rest: usize = bars.iter().skip(BARS).map(|bar| bar.clips).sum();
        bars.truncate(BARS);
        bars.sort();
        let label = |bar: &super::Histogram| {
            let frames = bar.to.map_or_else(|| format!("{}+", bar.from), |to| format!("{}-{to}", bar.from));
            format!("{:<12}{frames:>8}{:>8}  ", format!("{}x{}", bar.width, bar.height), bar.clips)
        };
        let most = bars.iter().map(|bar| bar.clips).max().unwrap_or(1).max(1);
        let room = width.saturating_sub(32).max(8);
        let mut text = format!("{:<12}{:>8}{:>8}\n", "size", "frames", "clips");
        for bar in bars {
            let length = (bar.clips * room).div_ceil(most);
            let _ = writeln!(text, "{}{}", label(bar), "#".repeat(length));
        }
        if rest > 0 {
            let _ = writeln!(text, "{:<20}{rest:>8}", "other sizes");
        }
        text
    }

    fn dropped_table(&self, width: Option<usize>) -> String {
        let cells = |text: &str| UnicodeWidthStr::width(text);
        let widest = |of: &dyn Fn(&super::Dropped) -> usize| self.dropped.iter().map(of).max().unwrap_or(0);
        let id_width = widest(&|dropped| cells(&dropped.id)).max("dropped clip".len());
        let id_width = if width.is_some() { id_width.min(ID_WIDTH) } else { id_width };
        let title_width = widest(&|dropped| dropped.title.len()).max("reason".len());
        let line = |id: &str, title: &str, detail: &str| {
            let id = cut(&one_line(id), id_width, End::Start);
            let pad = " ".repeat(id_width.saturating_sub(cells(&id)));
            let line = format!("{id}{pad}  {title:<title_width$}  {}", one_line(detail));
            let line = width.map_or_else(|| line.clone(), |width| cut(&line, width, End::End));
            line.trim_end().to_owned() + "\n"
        };
        let lines = self.dropped.iter().map(|dropped| line(&dropped.id, dropped.title, &dropped.detail));
        std::iter::once(line("dropped clip", "reason", "")).chain(lines).collect()
    }
}

/// Appends the counts that are not zero.
fn with(text: String, counts: &[(usize, &str)]) -> String {
    let counts = nonzero(counts);
    if counts.is_empty() { text } else { format!("{text}; {counts}") }
}

/// Lists the counts that are not zero: `2 interlaced, 1 rotated`.
fn nonzero(counts: &[(usize, &str)]) -> String {
    let counts = counts.iter().filter(|(count, _)| *count > 0);
    counts.map(|(count, what)| format!("{count} {what}")).collect::<Vec<_>>().join(", ")
}

/// Lists the most frequent values: `1280x720 (150), 640x360 (8)`.
fn list(counts: &[Count], unit: &str) -> String {
    if let [only] = counts {
        return format!("{}{unit}", only.value);
    }
    units::listed(counts, LISTED, |count| format!("{}{unit} ({})", count.value, count.clips))
}

/// Names the first clips of a group that have the same bytes: `a.mp4 = b.mp4`.
fn equal(group: &[String]) -> String {
    let more = if group.len() > NAMED { " = …" } else { "" };
    group.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(" = ") + more
}

fn hours(hours: f64) -> String {
    if hours < 0.1 { units::duration(hours * 3600.0) } else { format!("{} h", units::number(hours)) }
}

/// The end of a text that is cut off and replaced by `…`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Start,
    End,
}

/// Cuts a text at one end to a number of columns, and puts `…` there.
fn cut(text: &str, width: usize, end: End) -> String {
    if UnicodeWidthStr::width(text) <= width {
        return text.to_owned();
    }
    let mut room = width.saturating_sub(1);
    let fits = |c: &char| {
        let cells = c.width().unwrap_or(0);
        let fits = cells <= room;
        room = if fits { room - cells } else { 0 };
        fits
    };
    match end {
        End::End => text.chars().take_while(fits).collect::<String>() + "…",
        End::Start => {
            let kept: Vec<char> = text.chars().rev().take_while(fits).collect();
            std::iter::once('…').chain(kept.into_iter().rev()).collect()
        }
    }
}

/// Replaces newlines and other control characters, which would break the table or the terminal.
pub(super) fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
