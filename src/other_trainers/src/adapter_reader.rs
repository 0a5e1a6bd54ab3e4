//! Reads the log of a trainer whose format is known.

use crate::bar;
use crate::formats::{Line, Phrase, Step};
use crate::lines::Lines;
use crate::log_event::{LogEvent, ReaderOptions};
use crate::pace::Pace;
use crate::table::formats;
use recipe::OtherTrainer;
use rundir::MetricSample;

/// Reads the log of the rank that logs the metrics of the whole run.
#[derive(Debug)]
pub(crate) struct AdapterReader {
    trainer: OtherTrainer,
    attempt: u32,
    /// The number of the trainer's steps per step of the run.
    accumulation: u64,
    lines: Lines,
    /// The newest step in the log; later lines may repeat it with better numbers.
    pending: Option<PendingStep>,
    /// The last step that was returned.
    passed_on: u64,
    pace: Pace,
    /// The numbers of the last step that was returned.
    numbers: Option<Numbers>,
    peak_gib: Option<f64>,
    evaluating: bool,
}

#[derive(Debug)]
struct PendingStep {
    step: Step,
    t: f64,
}

/// Loss, gradient norm and learning rate.
type Numbers = (f64, Option<f64>, Option<f64>);

impl AdapterReader {
    pub fn new(options: &ReaderOptions) -> Self {
        let ReaderOptions { trainer, attempt, start_step, accumulation, .. } = *options;
        let counts_micro_batches = formats(trainer).is_some_and(|it| it.counts_micro_batches);
        let accumulation = if counts_micro_batches { accumulation.max(1) } else { 1 };
        let (lines, pending) = (Lines::default(), None);
        Self {
            trainer,
            attempt,
            accumulation,
            lines,
            pending,
            passed_on: start_step,
            pace: Pace::default(),
            numbers: None,
            peak_gib: None,
            evaluating: false,
        }
    }

    pub fn read(&mut self, bytes: &[u8], now: f64) -> Vec<LogEvent> {
        let mut events = Vec::new();
        for line in self.lines.push(bytes) {
            for part in bar::apart(&line) {
                self.read_line(part, now, &mut events);
            }
        }
        events
    }

    pub fn pause(&mut self, now: f64) -> Vec<LogEvent> {
        let mut events = Vec::new();
        self.take_half_line(now, &mut events);
        self.pass_on_new_numbers(&mut events);
        events
    }

    pub fn end(&mut self, now: f64) -> Vec<LogEvent> {
        let mut events = Vec::new();
        self.take_half_line(now, &mut events);
        self.pass_on(&mut events);
        events
    }

    fn take_half_line(&mut self, now: f64, events: &mut Vec<LogEvent>) {
        // The line of a progress bar has no end until the bar is redrawn; the redrawn line is read again.
        let half = self.lines.half();
        if let Some(Line::Step(step)) = half.and_then(|line| formats(self.trainer)?.read(&line)) {
            self.take_step(step, now, events);
        }
    }

    fn read_line(&mut self, line: &str, now: f64, events: &mut Vec<LogEvent>) {
        let Some(line) = formats(self.trainer).and_then(|it| it.read(line)) else { return };
        if let Line::Step(step) = line {
            return self.take_step(step, now, events);
        }
        self.pass_on_new_numbers(events);
        match line {
            Line::Phrase(Phrase::Started) => events.push(LogEvent::Started),
            Line::Phrase(Phrase::Resumed) => events.push(LogEvent::Resumed),
            Line::Phrase(Phrase::Saving) => events.push(LogEvent::Saving),
            Line::Phrase(Phrase::Saved) => events.push(LogEvent::Saved),
            // Some trainers log one line for each prompt.
            Line::Phrase(Phrase::Evaluating) => {
                if !std::mem::replace(&mut self.evaluating, true) {
                    events.push(LogEvent::EvaluationStarted);
                }
            }
            Line::Phrase(Phrase::Evaluated) => self.end_evaluation(events),
            Line::Memory(gib) => self.peak_gib = Some(gib),
            Line::Step(_) => {}
        }
    }

    fn end_evaluation(&mut self, events: &mut Vec<LogEvent>) {
        if std::mem::take(&mut self.evaluating) {
            events.push(LogEvent::EvaluationEnded);
        }
    }

    fn take_step(&mut self, step: Step, now: f64, events: &mut Vec<LogEvent>) {
        match &mut self.pending {
            // A redrawn bar shows the new count before the new loss.
            Some(pending) if pending.step.done == step.done => pending.step = step,
            _ => {
                self.pass_on(events);
                self.pending = Some(PendingStep { step, t: now });
            }
        }
    }

    /// Returns the pending step, unless its numbers are still those of the previous step.
    fn pass_on_new_numbers(&mut self, events: &mut Vec<LogEvent>) {
        if self.pending.as_ref().is_some_and(|pending| self.numbers != Some(numbers(&pending.step))) {
            self.pass_on(events);
        }
    }

    fn pass_on(&mut self, events: &mut Vec<LogEvent>) {
        let Some(PendingStep { step, t }) = &self.pending else { return };
        let (t, done) = (*t, step.done / self.accumulation);
        if done <= self.passed_on {
            return;
        }
        // The first bars show no speed, so it is estimated from the clock.
        let by_clock = self.pace.take(done, t);
        let step_s = step.step_s.map(|step_s| step_s * self.accumulation as f64).or(by_clock);
        let finite = |value: Option<f64>| value.filter(|value| value.is_finite());
        let sample = MetricSample {
            attempt: self.attempt,
            step: done,
            t,
            is_from_log: true,
            loss: finite(Some(step.loss)),
            grad_norm: finite(step.grad_norm),
            lr: finite(step.lr).unwrap_or(0.0),
            step_s: finite(step_s).unwrap_or(0.0),
            data_s: finite(step.data_s).unwrap_or(0.0),
            mem_peak_gib_by_rank: self.peak_gib.into_iter().collect(),
            ..MetricSample::default()
        };
        self.numbers = Some(numbers(step));
        self.passed_on = done;
        self.end_evaluation(events);
        events.push(LogEvent::Metric(Box::new(sample)));
    }
}

fn numbers(step: &Step) -> Numbers {
    (step.loss, step.grad_norm, step.lr)
}
