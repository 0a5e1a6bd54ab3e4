//! An event whose line the user looks for in a log.

use crate::event_text::{self, Severity};
use crate::log_lines::{self, Level};
use crate::model::{LogLine, LogsScreen};
use regex::Regex;
use rundir::{Event, EventKind};

/// A line whose time differs from that of the event by more seconds than this is not about the event.
const NEAR_S: f64 = 60.0;

/// The minimum length of a text: a shorter one may be in any line.
const MIN_TEXT: usize = 4;

const NO_LINE: &str = "No loaded line mentions this event";
const FAR_AWAY: &str = "No loaded line is near the time of this event; the nearest one is marked";

/// The facts by which the line of an event is found.
#[derive(Debug, Clone, PartialEq)]
pub struct SoughtEvent {
    /// When the event happened, Unix seconds.
    pub t: f64,
    /// The last finished step.
    pub step: Option<u64>,
    /// Texts that a line about the event contains: of an error, or the name of a file.
    pub texts: Vec<String>,
    /// Whether the event is a failure, whose line is an error.
    pub is_failure: bool,
}

/// The line to which a log goes for an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FoundLine {
    /// The number of the line; `None` for the end of the log.
    pub(super) number: Option<u64>,
    /// A text for the user, if the line is probably not about the event.
    pub(super) notice: Option<&'static str>,
    /// Whether lines that are not loaded cannot be better.
    pub(super) is_certain: bool,
}

/// A line that passes the filters.
struct TimedLine<'a> {
    number: u64,
    line: &'a LogLine,
    /// Whether the line has a time.
    is_dated: bool,
    /// Seconds between the event and the time at which the line was printed; 0 if the times are unknown.
    away_s: f64,
}

impl SoughtEvent {
    /// Returns the facts of an event.
    pub fn new(event: &Event) -> Self {
        let is_bad = event_text::describe(event).1 == Severity::Bad;
        // A failure that follows from another one is not coloured as an error.
        let is_failure = is_bad || matches!(event.kind, EventKind::Failed { .. } | EventKind::RankDied { .. });
        let first_lines = texts(&event.kind).into_iter().filter_map(|text| text.trim().lines().next());
        let texts = first_lines.filter(|text| text.len() >= MIN_TEXT).map(str::to_owned).collect();
        Self { t: event.t, step: event.step, texts, is_failure }
    }

    /// Returns the line of the event among the lines of a log that pass its filters. The first rule that finds a line
    /// within a minute of the event decides:
    ///
    /// 1. the line that contains a text of the event; for a failure, only an error;
    /// 2. the line that mentions the step, unless the event is a failure;
    /// 3. for a failure, the first error, then the nearest error, then the line that contains a text of the event;
    /// 4. the line with the nearest time.
    ///
    /// If several lines are equally near, the last one is chosen. A line without a time was printed between the lines
    /// with times before and after it. Events have Unix times, and lines usually have local times, so that the times of
    /// lines count only if the log has its time zone. The log of the embedded trainer has no times: then, every
    /// line is equally near, and only texts and steps find a line. If no rule finds one, a failure leads to the first
    /// error; another event leads to the nearest time, even far away, or to the end of the log.
    pub(super) fn line_in(&self, logs: &LogsScreen) -> FoundLine {
        let lines = self.timed_lines(logs);
        let nearest = |matches: &dyn Fn(&TimedLine<'_>) -> bool| {
            // The last of several equally near lines.
            let near = lines.iter().rev().filter(|at| matches(at));
            near.min_by(|a, b| a.away_s.total_cmp(&b.away_s)).map(|at| (at.number, at.away_s <= NEAR_S))
        };
        let near = |found: Option<(u64, bool)>| found.filter(|(_, is_near)| *is_near).map(|(number, _)| number);
        let is_error = |at: &TimedLine<'_>| at.line.level == Level::Error;
        let is_named = |at: &TimedLine<'_>| (!self.is_failure || is_error(at)) && self.names(at.line);
        let step = self.step.filter(|_| !self.is_failure).and_then(step_pattern);
        let has_step = |at: &TimedLine<'_>| step.as_ref().is_some_and(|step| step.is_match(&at.line.text));
        if let Some(number) = near(nearest(&is_named)).or_else(|| near(nearest(&has_step))) {
            return FoundLine { number: Some(number), notice: None, is_certain: true };
        }
        let first_error = logs.first_error().filter(|_| self.is_failure);
        let is_first_error = |at: &TimedLine<'_>| Some(at.number) == first_error;
        let error = near(nearest(&is_first_error))
            .or_else(|| near(nearest(&|at: &TimedLine<'_>| self.is_failure && is_error(at))))
            .or_else(|| near(nearest(&|at: &TimedLine<'_>| self.names(at.line))));
        let dated = nearest(&|at: &TimedLine<'_>| at.is_dated);
        match (error.or_else(|| near(dated)).or(first_error), dated) {
            (Some(number), _) => FoundLine { number: Some(number), notice: None, is_certain: !self.is_failure },
            (None, Some((number, _))) => FoundLine { number: Some(number), notice: Some(FAR_AWAY), is_certain: false },
            (None, None) => FoundLine { number: None, notice: Some(NO_LINE), is_certain: false },
        }
    }

    /// Returns whether a line contains a text of the event.
    fn names(&self, line: &LogLine) -> bool {
        let is_named = |line: &str| self.texts.iter().any(|text| line.contains(text.as_str()));
        is_named(&line.text) || line.variants.iter().any(|(_, text)| is_named(text))
    }

    fn timed_lines<'a>(&self, logs: &'a LogsScreen) -> Vec<TimedLine<'a>> {
        let numbered = logs.store.numbers().filter_map(|number| Some((number, logs.store.line(number)?)));
        let lines: Vec<(u64, &LogLine)> = numbered.filter(|(_, line)| !line.is_divider && logs.passes(line)).collect();
        let time_of = |line: &LogLine| {
            let zone_s = f64::from(logs.zone_s?);
            log_lines::time_s(&line.text).map(|time| time - zone_s)
        };
        let times: Vec<Option<f64>> = lines.iter().map(|(_, line)| time_of(line)).collect();
        let mut until = vec![f64::INFINITY; lines.len()];
        let mut next = f64::INFINITY;
        for (until, time) in until.iter_mut().zip(&times).rev() {
            next = time.unwrap_or(next);
            *until = next;
        }
        let mut from = f64::NEG_INFINITY;
        let timed = lines.into_iter().zip(times).zip(until).map(|(((number, line), time), until)| {
            from = time.unwrap_or(from);
            let away_s = (from - self.t).max(self.t - until).max(0.0);
            TimedLine { number, line, is_dated: time.is_some(), away_s }
        });
        timed.collect()
    }
}

/// Returns the texts that a line about an event may contain.
fn texts(kind: &EventKind) -> Vec<&str> {
    match kind {
        EventKind::Failed { failure }
        | EventKind::CheckpointFailed { failure }
        | EventKind::SampleFailed { failure }
        | EventKind::HealEnded { failure }
        | EventKind::NodeLost { failure, .. } => vec![failure.what.as_str(), failure.why.as_str()],
        EventKind::ItemFailed { item, failure } => vec![item.as_str(), failure.what.as_str(), failure.why.as_str()],
        EventKind::RankDied { message, .. } => vec![message.as_str()],
        EventKind::CheckpointDamaged { why, .. } => vec![why.as_str()],
        EventKind::CheckpointSaved { path, .. }
        | EventKind::SampleSaved { path, .. }
        | EventKind::Profiled { path, .. } => path.file_name().into_iter().collect(),
        _ => Vec::new(),
    }
}

/// Returns a pattern of lines that mention a step: `step 12`, `global_step=12`, `checkpoint-step-00000012`, `12/3000`.
fn step_pattern(step: u64) -> Option<Regex> {
    // A date such as 11/20/2026 is not a step.
    let after_word = format!(r"(?:^|[^a-z])steps?[\s=:#_-]*0*{step}(?:\D|$)");
    let of_total = format!(r"(?:^|[\s|])0*{step}/\d+(?:[^/\d]|$)");
    Regex::new(&format!("(?i){after_word}|{of_total}")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::failure;
    use crate::msg::RankLines;
    use crate::rank_set::RankSet;
    use rundir::Cause;

    /// 2026-11-20 04:00:00 UTC.
    const FOUR_S: f64 = 1_795_147_200.0;
    const SIZE: (usize, usize) = (80, 24);

    fn logs(lines: &[(usize, &str)], zone_s: Option<i32>) -> LogsScreen {
        let lines = lines.iter().map(|(rank, line)| (*rank, (*line).to_owned())).collect();
        let mut logs = LogsScreen::default();
        let (from_start, is_caught_up) = (true, true);
        let chunk = RankLines { attempt: 1, from_start, is_caught_up, skipped_bytes: 0, zone_s, lines };
        assert_eq!(logs.add_merged(chunk, FOUR_S, SIZE), None);
        logs
    }

    fn line_of(event: &Event, logs: &LogsScreen) -> (Option<u64>, Option<&'static str>) {
        let found = SoughtEvent::new(event).line_in(logs);
        (found.number, found.notice)
    }

    fn not_finite(t: f64, step: u64) -> Event {
        Event::new(t, 1, Some(step), EventKind::LossNotFinite)
    }

    fn died(t: f64, message: &str) -> Event {
        let cause = Cause::Root;
        Event::new(
            t,
            1,
            None,
            EventKind::RankDied { rank: 0, code: Some(1), signal: None, message: message.into(), cause },
        )
    }

    #[test]
    fn a_warning_leads_to_the_line_of_its_time_in_the_time_zone_of_the_log() {
        let lines = [
            (0, "2026-11-20 05:59:00 ERROR cannot read the old index"),
            (0, "2026-11-20 06:00:01 scaler: overflow"),
            (0, "2026-11-20 06:10:00 saved"),
        ];
        let two_hours = logs(&lines, Some(7200));
        assert_eq!(line_of(&not_finite(FOUR_S, 90), &two_hours), (Some(1), None));
        assert_eq!(line_of(&not_finite(FOUR_S + 3600.0, 90), &two_hours), (Some(2), Some(FAR_AWAY)));
        assert_eq!(line_of(&not_finite(FOUR_S, 90), &logs(&lines, None)), (None, Some(NO_LINE)));
    }

    #[test]
    fn without_times_a_warning_leads_to_the_last_line_that_mentions_its_step() {
        let lines = [
            (0, "RuntimeError: unrelated"),
            (0, "step 12 loss nan"),
            (0, "step 12 skipped"),
            (0, "step 120 loss 0.3"),
            (0, "steps 13/12"),
        ];
        assert_eq!(line_of(&not_finite(FOUR_S, 12), &logs(&lines, None)), (Some(2), None));
        assert_eq!(line_of(&not_finite(FOUR_S, 14), &logs(&lines, None)), (None, Some(NO_LINE)));
    }

    #[test]
    fn steps_are_found_in_the_usual_forms() {
        let mentions = |line: &str| step_pattern(12).unwrap().is_match(line);
        let forms =
            ["Step 12 | loss", "[r] demo: Steps 12/5000 | s", "loss=0.4, global_step=12", "step-00000012", "12/300 ["];
        for line in
            forms.into_iter().chain(["Steps:   2%|▏         | 12/5000 [00:16<10:53:20", "saved finetrainers_step_12"])
        {
            assert!(mentions(line), "{line}");
        }
        for line in ["step 120", "11/12/2026 - INFO", "12/11/2026 - INFO", "footstep12", "loss 12", "112/300"] {
            assert!(!mentions(line), "{line}");
        }
    }

    #[test]
    fn a_failure_leads_to_the_error_with_its_text_and_otherwise_to_the_first_error() {
        let lines = [
            (0, "RuntimeError: the first"),
            (0, "step 3: out of memory is possible"),
            (0, "ValueError: bad shape [3, 4]"),
            (0, "exiting: bad shape"),
        ];
        let errors = logs(&lines, None);
        assert_eq!(line_of(&died(FOUR_S, "bad shape"), &errors), (Some(2), None));
        assert_eq!(line_of(&died(FOUR_S, "another text"), &errors), (Some(0), None));
        let plain = logs(&[(0, "stopping: no space is left"), (0, "end")], None);
        assert_eq!(line_of(&died(FOUR_S, "no space is left"), &plain), (Some(0), None));
        let failed = Event::new(FOUR_S, 1, None, EventKind::Failed { failure: failure() });
        assert!(SoughtEvent::new(&failed).is_failure);
    }

    #[test]
    fn a_failure_leads_to_an_error_of_its_time_not_to_an_earlier_one() {
        let lines = [
            (0, "2026-11-20 03:00:00 ERROR cannot write the sample"),
            (0, "2026-11-20 04:00:00 step 7"),
            (0, "Traceback (most recent call last):"),
            (0, "  File \"train.py\", line 3, in <module>"),
            (0, "ValueError: bad shape"),
        ];
        // The traceback has no time. The process ended five minutes after the last line with a time.
        assert_eq!(line_of(&died(FOUR_S + 300.0, "exit code 1"), &logs(&lines, Some(0))), (Some(4), None));
    }

    #[test]
    fn only_lines_of_the_shown_ranks_count() {
        let lines = [(0, "step 12 loss nan"), (3, "step 12 done")];
        let mut logs = logs(&lines, None);
        logs.only = RankSet::one(0);
        assert_eq!(line_of(&not_finite(FOUR_S, 12), &logs), (Some(0), None));
    }
}
