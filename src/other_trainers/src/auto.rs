//! Reads the log of a program that vidtui does not know: decides by the first lines which of them have the steps, and then reads only
//! those.
//!
//! A number is shown only if it is certain which step it belongs to. Lines about validation give only a validation loss, bars of other
//! work (downloads, caches, samples) are left out, and dictionaries of Hugging Face's Trainer get the step of the bar that is redrawn
//! after them.

use crate::bar::{self, Bar};
use crate::formats::Phrase;
use crate::found::{self, Found, Kind, find, find_by};
use crate::lines::Lines;
use crate::log_event::{LogEvent, ReaderOptions};
use crate::measured::Values;
use crate::pace::Pace;
use crate::parallel;
use rundir::MetricSample;
use std::collections::BTreeMap;

/// The number of lines without steps after which the reader reports that it has found none. It still looks for them.
const FIRST_LINES: u64 = 400;
/// The most lines that are kept until the reader has decided.
const MOST_HELD: usize = 400;

/// The maximum number of kinds of lines, and of bars, that are remembered.
const MOST_SOURCES: usize = 256;

/// Phrases that many trainers log.
const PHRASES: [(&str, Phrase); 12] = [
    ("***** Running training *****", Phrase::Started),
    ("Resuming from checkpoint", Phrase::Resumed),
    ("Resuming training from checkpoint", Phrase::Resumed),
    ("Saved state to", Phrase::Saved),
    ("Saving model checkpoint to", Phrase::Saving),
    ("Saving the checkpoint", Phrase::Saving),
    ("Saving at step", Phrase::Saving),
    ("saving checkpoint:", Phrase::Saving),
    ("successfully saved checkpoint", Phrase::Saved),
    ("Finished saving the checkpoint", Phrase::Saved),
    ("***** Running Evaluation *****", Phrase::Evaluating),
    ("Running validation", Phrase::Evaluating),
];

/// Lines of one kind that may have the steps.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Source {
    kind: Kind,
    name: String,
    /// Of a bar: bars of the same name with another total show other work.
    total: Option<u64>,
}

impl Source {
    fn of(found: &Found) -> Self {
        let total = found.total.filter(|_| found.kind == Kind::Bar);
        Self { kind: found.kind, name: found.name.clone(), total }
    }

    fn in_words(&self) -> String {
        match (self.kind, self.name.as_str()) {
            (Kind::Bar, name) if !name.is_empty() => format!("{} named '{name}'", self.kind.in_words()),
            _ => self.kind.in_words().to_owned(),
        }
    }
}

/// The counts of a bar, or of lines such as `Step [10/100]`, so far.
#[derive(Debug, Default)]
struct BarState {
    first: u64,
    count: u64,
    /// The steps between the last two lines.
    stride: u64,
    tail: String,
    /// Whether the program shows new values before it raises the count, as FastVideo and ai-toolkit do. Others raise the count first.
    values_first: bool,
    /// Steps of earlier epochs, if the bar begins again in each.
    offset: u64,
}

/// The lines of a source that were seen before the decision.
#[derive(Debug, Default)]
struct Evidence {
    steps: u64,
    last: u64,
}

#[derive(Debug)]
struct Pending {
    step: u64,
    t: f64,
    values: Values,
    /// Whether the values are certainly those of the step. A bar shows a new count with the old values first.
    is_fresh: bool,
}

/// The content of a line, which does not depend on the lines before it.
struct Content {
    is_bar: bool,
    yields: Option<Yield>,
}

enum Yield {
    Pattern(Box<Found>),
    Found(Box<Found>),
    Phrase(Phrase),
}

impl Content {
    fn of(line: &str, options: &ReaderOptions) -> Self {
        let bar = Bar::read(line);
        let is_bar = bar.is_some();
        let yields = find_by(&options.patterns, line).map(|found| Yield::Pattern(Box::new(found)));
        let yields = yields.or_else(|| {
            let found = match &bar {
                Some(bar) => found::of_bar(bar),
                None => found::of_line(line, options.ranks),
            };
            found.map(|found| Yield::Found(Box::new(found)))
        });
        let phrase = || PHRASES.iter().find(|(text, _)| line.contains(text)).map(|(_, phrase)| Yield::Phrase(*phrase));
        Self { is_bar, yields: yields.or_else(phrase) }
    }
}

/// Reads the log of an unknown program.
#[derive(Debug)]
pub(crate) struct AutoReader {
    options: ReaderOptions,
    lines: Lines,
    /// The lines read, without bars.
    lines_read: u64,
    /// Whether a line was read, which may be a bar.
    has_read: bool,
    evidence: BTreeMap<Source, Evidence>,
    held: Vec<(Source, u64, Found, f64)>,
    decided: Option<Source>,
    /// Whether a bar without a loss was decided for.
    is_provisional: bool,
    bars: BTreeMap<Source, BarState>,
    /// A dictionary whose step is that of the next bar.
    waiting: Option<(Found, f64)>,
    /// The last bar without a loss, and the one that shows the steps of dictionaries.
    last_bar: Option<Source>,
    position: Option<Source>,
    /// Whether dictionaries came without bars between them: their order in the log is then not that of the program.
    is_unordered: bool,
    pending: Option<Pending>,
    pace: Pace,
    /// The newest sample that was returned.
    last: Option<MetricSample>,
    validation_loss: Option<f64>,
    evaluating: bool,
    has_reported: bool,
}

impl AutoReader {
    pub fn new(options: ReaderOptions) -> Self {
        Self {
            options,
            lines: Lines::default(),
            lines_read: 0,
            has_read: false,
            evidence: BTreeMap::new(),
            held: Vec::new(),
            decided: None,
            is_provisional: false,
            bars: BTreeMap::new(),
            waiting: None,
            last_bar: None,
            position: None,
            is_unordered: false,
            pending: None,
            pace: Pace::default(),
            last: None,
            validation_loss: None,
            evaluating: false,
            has_reported: false,
        }
    }

    pub fn read(&mut self, bytes: &[u8], now: f64) -> Vec<LogEvent> {
        let mut events = Vec::new();
        let lines = self.lines.push(bytes);
        let options = &self.options;
        let contents = |line: &String| -> Vec<Content> {
            bar::apart(line).into_iter().map(|part| Content::of(part, options)).collect()
        };
        for content in parallel::map(&lines, contents).into_iter().flatten() {
            self.take_content(content, now, &mut events);
        }
        events
    }

    pub fn pause(&mut self, now: f64) -> Vec<LogEvent> {
        let mut events = Vec::new();
        self.take_half_line(now, &mut events);
        self.pass_on_complete(&mut events);
        events
    }

    pub fn end(&mut self, now: f64) -> Vec<LogEvent> {
        let mut events = Vec::new();
        self.take_half_line(now, &mut events);
        // A log of a single step is too short for a decision, unless only one kind of line can have it.
        let mut sources = self.evidence.iter().filter(|(_, evidence)| evidence.steps > 0);
        if let (None, Some((source, _)), None) = (&self.decided, sources.next(), sources.next()) {
            self.decide(source.clone(), &mut events);
        }
        self.pass_on(&mut events);
        self.report_none(&mut events);
        events
    }

    fn take_half_line(&mut self, now: f64, events: &mut Vec<LogEvent>) {
        // The line of a bar has no end until the bar is redrawn; the redrawn line is read again. Other lines may still grow.
        let half = self.lines.half().and_then(|line| find(&line, self.options.ranks));
        if let Some(found) = half.filter(|found| found.kind == Kind::Bar) {
            self.take_found(found, now, events);
        }
    }

    fn take_content(&mut self, content: Content, now: f64, events: &mut Vec<LogEvent>) {
        // A bar is redrawn many times in one line.
        self.lines_read += u64::from(!content.is_bar);
        self.has_read = true;
        match content.yields {
            Some(Yield::Pattern(found)) => self.take_by_pattern(*found, now, events),
            Some(Yield::Found(found)) => self.take_found(*found, now, events),
            Some(Yield::Phrase(phrase)) => {
                self.pass_on_complete(events);
                self.take_phrase(phrase, events);
            }
            None => {}
        }
        if self.lines_read >= FIRST_LINES {
            self.report_none(events);
        }
    }

    fn take_phrase(&mut self, phrase: Phrase, events: &mut Vec<LogEvent>) {
        match phrase {
            Phrase::Started => events.push(LogEvent::Started),
            Phrase::Resumed => events.push(LogEvent::Resumed),
            Phrase::Saving => events.push(LogEvent::Saving),
            Phrase::Saved => events.push(LogEvent::Saved),
            Phrase::Evaluating if !std::mem::replace(&mut self.evaluating, true) => {
                events.push(LogEvent::EvaluationStarted);
            }
            Phrase::Evaluating | Phrase::Evaluated => {}
        }
    }

    /// Reports once that no line has steps.
    fn report_none(&mut self, events: &mut Vec<LogEvent>) {
        if self.decided.is_none() && self.has_read && !std::mem::replace(&mut self.has_reported, true) {
            events.push(LogEvent::NotRecognized { lines: self.lines_read.max(1), is_unordered: self.is_unordered });
        }
    }

    fn take_found(&mut self, found: Found, now: f64, events: &mut Vec<LogEvent>) {
        match (found.kind, found.step) {
            (Kind::Bar, Some(count)) => self.take_bar(found, count, now, events),
            (Kind::Dict | Kind::Json, None) => {
                // Between two dictionaries, a program that writes in order redraws its bar.
                let is_other = |before: &Found| before.values.loss.is_some() && before.values != found.values;
                self.is_unordered |= self.waiting.as_ref().is_some_and(|(before, _)| is_other(before));
                self.waiting = Some((found, now));
            }
            (Kind::Text, Some(count)) => {
                let source = Source::of(&found);
                let Some((step, _)) = self.count(&source, count, found.total) else { return };
                self.observe(source, step, found, true, now, events);
            }
            (_, Some(step)) => self.observe(Source::of(&found), step, found, true, now, events),
            (_, None) => {}
        }
    }

    fn take_by_pattern(&mut self, found: Found, now: f64, events: &mut Vec<LogEvent>) {
        match found.step {
            Some(step) => self.observe(Source::of(&found), step, found, true, now, events),
            // A line without a step belongs to the newest one.
            None => {
                if let Some(pending) = &mut self.pending {
                    pending.values.merge(found.values);
                } else if let Some(mut sample) = self.last.take() {
                    if let Some(loss) = found.values.loss {
                        (sample.loss, sample.has_no_loss) = (Some(loss).filter(|loss| loss.is_finite()), false);
                    }
                    found.values.write_to(&mut sample);
                    self.give(sample, events);
                }
            }
        }
    }

    /// Returns whether a group of a pattern has this name.
    fn has_group(&self, name: &str) -> bool {
        self.options.patterns.iter().any(|pattern| pattern.pattern.groups().any(|group| group == name))
    }

    /// Takes the count of a bar, or of a line such as `Step [10/100]`. Returns the step of the run, and whether the source is new; `None` if there
    /// are too many sources.
    fn count(&mut self, source: &Source, count: u64, total: Option<u64>) -> Option<(u64, bool)> {
        let (start_step, steps_total) = (self.options.start_step, self.options.steps_total);
        let is_first = !self.bars.contains_key(source);
        // Bars of downloads have the names of their files.
        if is_first && self.bars.len() >= MOST_SOURCES {
            self.bars.retain(|source, state| source.total != Some(state.count));
            if self.bars.len() >= MOST_SOURCES {
                return None;
            }
        }
        let state = self.bars.entry(source.clone()).or_insert_with(|| BarState {
            first: count,
            count,
            // A run that continues draws a bar of the steps that are left, or within a later epoch the bar of that epoch.
            offset: total.filter(|total| *total > 0 && source.kind == Kind::Bar).map_or(0, |total| {
                match start_step.checked_add(total) == steps_total {
                    true => start_step,
                    false => start_step / total * total,
                }
            }),
            ..BarState::default()
        });
        // A count that begins again is that of the next epoch. The last steps of an epoch may be missing: tqdm draws at most ten times a second,
        // and other programs print every tenth step. If all ranks print, their counts are a few steps apart.
        let begins_again = |total: &u64| {
            let is_near_end = is_near_end(state.count, *total) || state.count.saturating_add(state.stride) > *total;
            count < state.count && count <= total / 2 && is_near_end
        };
        if let Some(total) = total.filter(begins_again) {
            state.offset = state.offset.saturating_add(total);
        } else if count > state.count {
            state.stride = count - state.count;
        }
        state.count = count;
        Some((state.offset.saturating_add(count), is_first))
    }

    fn take_bar(&mut self, found: Found, count: u64, now: f64, events: &mut Vec<LogEvent>) {
        let source = Source::of(&found);
        let Some((counted, is_first)) = self.count(&source, count, source.total) else { return };
        let Some(state) = self.bars.get_mut(&source) else { return };
        let is_redrawn = state.tail != found.tail;
        if is_redrawn && state.tail.is_empty() && !is_first {
            state.values_first = count == state.first;
        }
        let ahead = u64::from(is_redrawn && state.values_first);
        let step = counted.saturating_add(ahead);
        state.tail.clone_from(&found.tail);
        if found.values.loss.is_some() {
            return self.observe(source, step, found, is_redrawn || is_first, now, events);
        }
        let before = self.last_bar.replace(source.clone());
        let expected = self.position.clone().or(before);
        if let Some((mut waiting, t)) = self.waiting.take_if(|_| expected.as_ref() == Some(&source)) {
            if let Some(step_s) = found.values.get("step_s") {
                waiting.values.set_metric("step_s", step_s);
            }
            self.position = Some(source.clone());
            if waiting.is_validation {
                self.validate(Some(step), &waiting.values, events);
            } else if !self.is_unordered {
                self.observe(Source::of(&waiting), step, waiting, true, t, events);
            }
            return;
        }
        // A bar without a loss counts as the progress only if it has as many steps as the run.
        if self.options.steps_total.is_some() && source.total == self.options.steps_total && count > 0 {
            self.observe(source, step, found, true, now, events);
        }
    }

    /// Takes a line with a step: as evidence before the decision, and for the metrics after it.
    fn observe(
        &mut self,
        source: Source,
        step: u64,
        found: Found,
        is_fresh: bool,
        now: f64,
        events: &mut Vec<LogEvent>,
    ) {
        let has_loss = found.values.loss.is_some();
        if self.decided.is_some() && !(self.is_provisional && has_loss) {
            return self.take(&source, step, found, is_fresh, now, events);
        }
        // If the user has described the lines with the step, no others have it.
        let is_described = source.kind == Kind::Pattern || !self.has_group("step");
        if self.evidence.len() >= MOST_SOURCES && !self.evidence.contains_key(&source) {
            return;
        }
        let evidence = self.evidence.entry(source.clone()).or_default();
        let is_progress = matches!(source.kind, Kind::Bar | Kind::Pattern);
        let counts = is_described && (has_loss || is_progress) && !found.is_validation && step > 0;
        if counts && (evidence.steps == 0 || step > evidence.last) {
            evidence.steps += 1;
            evidence.last = step;
        }
        let steps = evidence.steps;
        if self.held.len() >= MOST_HELD {
            self.held.remove(0);
        }
        self.held.push((source.clone(), step, found, now));
        let needed = match source.kind {
            // Text may mention a step and a loss without being the log of a step: two of them with ascending steps are.
            Kind::Text => 2,
            Kind::Bar if !has_loss => 3,
            _ => 1,
        };
        if steps >= needed {
            // Lines with a loss may follow, as after the bar of Hugging Face's Trainer. They then have the steps.
            self.is_provisional = source.kind == Kind::Bar && !has_loss;
            self.decide(source, events);
        }
    }

    fn decide(&mut self, source: Source, events: &mut Vec<LogEvent>) {
        let held = std::mem::take(&mut self.held);
        let mut metrics: Vec<String> = Vec::new();
        for (_, _, found, _) in held.iter().filter(|(of, ..)| *of == source) {
            for name in found.values.names() {
                if !metrics.iter().any(|known| known == name) {
                    metrics.push(name.to_owned());
                }
            }
        }
        events.push(LogEvent::Recognized { format: source.in_words(), metrics });
        self.decided = Some(source);
        self.has_reported = true;
        for (source, step, found, t) in held {
            self.take(&source, step, found, true, t, events);
        }
    }

    fn take(&mut self, source: &Source, step: u64, found: Found, is_fresh: bool, now: f64, events: &mut Vec<LogEvent>) {
        let mut values = found.values;
        let validation_loss = values.get("validation_loss");
        let is_of_validation_alone = values.loss.is_none() && validation_loss.is_some() && source.kind != Kind::Bar;
        if found.is_validation || is_of_validation_alone {
            return self.validate(Some(step), &values, events);
        }
        let is_main = self.decided.as_ref() == Some(source);
        // A program may repeat its last validation loss in every line.
        if validation_loss == self.validation_loss {
            values.remove("validation_loss");
        } else if validation_loss.is_some() {
            self.validation_loss = validation_loss;
        }
        if !is_main {
            // Another line about the step adds what the main line lacks.
            values.loss = None;
        }
        match &mut self.pending {
            Some(pending) if pending.step == step => {
                pending.values.merge(values);
                pending.is_fresh |= is_fresh;
            }
            // The first drawings of a bar may show a lower count.
            Some(pending) if step < pending.step && source.kind == Kind::Bar => {}
            // Steps that begin again: a later line with the pending step would not belong to it.
            Some(pending) if step < pending.step => self.pass_on(events),
            _ => {
                if is_main || source.kind == Kind::DeepSpeed {
                    self.pass_on(events);
                    self.pending = Some(Pending { step, t: now, values, is_fresh });
                }
            }
        }
    }

    /// Adds a validation loss to its step, or to the newest one.
    fn validate(&mut self, step: Option<u64>, values: &Values, events: &mut Vec<LogEvent>) {
        let Some(loss) = values.get("validation_loss") else { return };
        if self.decided.is_none() || self.validation_loss == Some(loss) {
            return;
        }
        let is_of = |of: u64| step.is_none_or(|step| step == of);
        if let Some(pending) = self.pending.as_mut().filter(|pending| is_of(pending.step)) {
            self.validation_loss = Some(loss);
            pending.values.set_metric("validation_loss", loss);
        } else if let Some(sample) = self.last.take_if(|sample| is_of(sample.step)) {
            self.validation_loss = Some(loss);
            // A later line of the same step replaces the earlier one.
            self.give(MetricSample { validation_loss: Some(loss), ..sample }, events);
        }
    }

    /// Returns the pending step, unless a later line may still change it.
    fn pass_on_complete(&mut self, events: &mut Vec<LogEvent>) {
        let is_progress = self.is_progress();
        let is_complete = |pending: &Pending| pending.is_fresh && (pending.values.loss.is_some() || is_progress);
        if self.pending.as_ref().is_some_and(is_complete) {
            self.pass_on(events);
        }
    }

    /// Returns whether a step without a loss counts: bars of a program without a loss show its progress. Other lines without a loss
    /// are incomplete.
    fn is_progress(&self) -> bool {
        self.decided.as_ref().is_some_and(|source| match source.kind {
            Kind::Bar => true,
            Kind::Pattern => !self.has_group("loss"),
            _ => false,
        })
    }

    /// Returns a sample, and keeps it for values that come later.
    fn give(&mut self, sample: MetricSample, events: &mut Vec<LogEvent>) {
        self.last = Some(sample.clone());
        events.push(LogEvent::Metric(Box::new(sample)));
    }

    fn pass_on(&mut self, events: &mut Vec<LogEvent>) {
        let Some(Pending { step, t, values, .. }) = self.pending.take() else { return };
        let before = self.last.as_ref().map_or(self.options.start_step, |sample| sample.step);
        let has_no_loss = values.loss.is_none();
        if step <= before || (has_no_loss && !self.is_progress()) {
            return;
        }
        let mut sample = MetricSample {
            attempt: self.options.attempt,
            step,
            t,
            is_from_log: true,
            has_no_loss,
            loss: values.loss.filter(|loss| loss.is_finite()),
            ..MetricSample::default()
        };
        values.write_to(&mut sample);
        let by_clock = self.pace.take(step, t);
        if sample.step_s == 0.0 {
            sample.step_s = by_clock.unwrap_or(0.0);
        }
        if std::mem::take(&mut self.evaluating) {
            events.push(LogEvent::EvaluationEnded);
        }
        self.give(sample, events);
    }
}

/// Returns whether a bar was at its end, or within a tenth of it.
fn is_near_end(count: u64, total: u64) -> bool {
    count <= total && count >= total - total / 10
}

#[cfg(test)]
mod tests;
