use recipe::Adapter;
use rundir::MetricSample;

use crate::bar;
use crate::lines::Lines;
use crate::system::{self, Line, Step};

/// Reads the log of the rank that tells of the whole run.
#[derive(Debug)]
pub struct LogReader {
    system: Adapter,
    attempt: u32,
    /// What the system calls steps, in one step of the run.
    accumulation: u64,
    lines: Lines,
    /// The step that was told last; it may be told again.
    latest: Option<Told>,
    /// The last step that was passed on, and when it was told.
    passed_on: u64,
    passed_on_t: Option<f64>,
    peak_gib: Option<f64>,
    evaluating: bool,
}

#[derive(Debug)]
struct Told {
    step: Step,
    t: f64,
}

/// What a log said.
#[derive(Debug, Clone, PartialEq)]
pub enum Said {
    /// How a step went.
    Metric(Box<MetricSample>),
    /// Training begins.
    Started,
    /// It goes on from a checkpoint.
    Resumed,
    /// A checkpoint is being written.
    Saving,
    /// A checkpoint was written, or soon will be: look at its folder.
    Saved,
    /// An evaluation begins, in which no steps are made.
    EvaluationStarted,
    /// It is over.
    EvaluationEnded,
}

impl LogReader {
    /// Reads a log that begins with an attempt, which begins after `start_step`. `accumulation` is what the system takes
    /// apart a step of the run into.
    pub fn new(system: Adapter, attempt: u32, start_step: u64, accumulation: u64) -> Self {
        let accumulation = if system == Adapter::OpenSora { accumulation.max(1) } else { 1 };
        let (lines, latest) = (Lines::default(), None);
        let (passed_on, passed_on_t, peak_gib, evaluating) = (start_step, None, None, false);
        Self { system, attempt, accumulation, lines, latest, passed_on, passed_on_t, peak_gib, evaluating }
    }

    /// Takes in what the log has grown by until `now`, Unix seconds.
    pub fn read(&mut self, bytes: &[u8], now: f64) -> Vec<Said> {
        let mut said = Vec::new();
        for line in self.lines.push(bytes) {
            for part in bar::apart(&line) {
                self.see(part, now, &mut said);
            }
        }
        said
    }

    /// Says what was held back in case more would follow: nothing does, for a while or for good.
    pub fn pause(&mut self, now: f64) -> Vec<Said> {
        let mut said = Vec::new();
        // A bar ends when the next one is drawn over it. It is looked at again when it is.
        if let Some(Line::Step(step)) = self.lines.half().and_then(|line| system::read(self.system, &line)) {
            self.see_step(step, now, &mut said);
        }
        self.pass_on(&mut said);
        said
    }

    fn see(&mut self, line: &str, now: f64, said: &mut Vec<Said>) {
        let Some(line) = system::read(self.system, line) else { return };
        if let Line::Step(step) = line {
            return self.see_step(step, now, said);
        }
        // What is said of a step comes after it.
        self.pass_on(said);
        match line {
            Line::Started => said.push(Said::Started),
            Line::Resumed => said.push(Said::Resumed),
            Line::Saving => said.push(Said::Saving),
            Line::Saved => said.push(Said::Saved),
            // One line for each prompt, in some.
            Line::Evaluating if !std::mem::replace(&mut self.evaluating, true) => said.push(Said::EvaluationStarted),
            Line::Evaluated if std::mem::take(&mut self.evaluating) => said.push(Said::EvaluationEnded),
            Line::Evaluating | Line::Evaluated => {}
            Line::Memory(gib) => self.peak_gib = Some(gib),
            Line::Step(_) => {}
        }
    }

    fn see_step(&mut self, step: Step, now: f64, said: &mut Vec<Said>) {
        match &mut self.latest {
            // Drawn again: the count moves on before the loss does.
            Some(latest) if latest.step.done == step.done => latest.step = step,
            _ => {
                self.pass_on(said);
                self.latest = Some(Told { step, t: now });
            }
        }
    }

    fn pass_on(&mut self, said: &mut Vec<Said>) {
        let Some(Told { step, t }) = &self.latest else { return };
        let done = step.done / self.accumulation;
        if done <= self.passed_on {
            return;
        }
        // Before a bar knows its speed, the clock does, roughly.
        let by_clock = || Some((t - self.passed_on_t?) / (done - self.passed_on) as f64);
        let step_s = step.step_s.map(|step_s| step_s * self.accumulation as f64).or_else(by_clock);
        (self.passed_on, self.passed_on_t) = (done, Some(*t));
        if std::mem::take(&mut self.evaluating) {
            said.push(Said::EvaluationEnded);
        }
        let finite = |value: Option<f64>| value.filter(|value| value.is_finite());
        said.push(Said::Metric(Box::new(MetricSample {
            attempt: self.attempt,
            step: done,
            t: *t,
            adapted: true,
            loss: finite(Some(step.loss)),
            grad_norm: finite(step.grad_norm),
            lr: finite(step.lr).unwrap_or(0.0),
            step_s: finite(step_s).unwrap_or(0.0),
            data_s: finite(step.data_s).unwrap_or(0.0),
            mem_peak_gib_by_rank: self.peak_gib.into_iter().collect(),
            ..MetricSample::default()
        })));
    }
}
