//! What each line of a log yields, for users who want to know why a number is shown or missing.

use crate::bar;
use crate::formats::{Line, Phrase};
use crate::found::{Found, Kind, find, find_by};
use crate::lines::Lines;
use crate::log_event::{LogEvent, ReaderOptions};
use crate::reader::LogReader;
use crate::table::formats;
use recipe::OtherTrainer;
use rundir::{METRICS, MetricSample, MetricSource};
use serde::Serialize;

/// Values by the names of metrics, or by the names in the log. `None`: not finite.
pub type NamedValues = Vec<(String, Option<f64>)>;

/// What a line yields.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LineYield {
    /// The number of the line, from 1. Drawings of a bar between two line ends have the same number.
    pub line: u64,
    /// The text.
    pub text: String,
    /// The kind of the line, in words.
    pub kind: String,
    /// Its step. A dictionary of Hugging Face's Trainer has none: its step is that of the bar after it.
    pub step: Option<u64>,
    /// Its values.
    pub values: NamedValues,
}

/// What a log yields.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct LogReport {
    /// The lines that were read.
    pub lines: u64,
    /// The lines that yield something.
    pub yields: Vec<LineYield>,
    /// The lines that have the steps; `None` if none were recognized.
    pub recognized: Option<String>,
    /// The steps that a run would show, with their values.
    pub steps: Vec<(u64, NamedValues)>,
}

/// Reads a whole log.
pub fn report(options: &ReaderOptions, log: &[u8]) -> LogReport {
    let mut report = LogReport::default();
    let mut lines = Lines::default();
    for line in log.split_inclusive(|byte| *byte == b'\n') {
        report.lines += 1;
        let mut whole = lines.push(line);
        if !line.ends_with(b"\n") {
            whole.extend(lines.half());
        }
        for text in &whole {
            let parts = bar::apart(text);
            report.yields.extend(parts.into_iter().filter_map(|part| yield_of(options, report.lines, part)));
        }
    }
    let mut reader = LogReader::new(options.clone());
    let mut events = reader.read(log, 0.0);
    events.extend(reader.end(0.0));
    for event in events {
        match event {
            LogEvent::Recognized { format, .. } => report.recognized = Some(format),
            LogEvent::Metric(sample) => {
                // Only the newest step is given again.
                report.steps.pop_if(|(step, _)| *step == sample.step);
                report.steps.push((sample.step, values(&sample)));
            }
            _ => {}
        }
    }
    if !report.steps.is_empty() && report.recognized.is_none() {
        report.recognized = options.trainer.program().map(|program| format!("lines of {program}"));
    }
    report
}

fn yield_of(options: &ReaderOptions, line: u64, text: &str) -> Option<LineYield> {
    let (kind, step, values) = match options.trainer {
        OtherTrainer::None => return None,
        OtherTrainer::Auto => {
            let found = find_by(&options.patterns, text).or_else(|| find(text, options.ranks))?;
            let kind = if found.is_validation { format!("{}, validation", kind_of(&found)) } else { kind_of(&found) };
            let loss = found.values.loss;
            let has_no_loss = loss.is_none();
            let mut sample = MetricSample { loss, is_from_log: true, has_no_loss, ..MetricSample::default() };
            found.values.write_to(&mut sample);
            (kind, found.step, values(&sample))
        }
        trainer => of_adapter(formats(trainer)?.read(text)?),
    };
    Some(LineYield { line, text: text.to_owned(), kind, step, values })
}

fn kind_of(found: &Found) -> String {
    match found.kind {
        Kind::Bar if !found.name.is_empty() => format!("bar '{}'", found.name),
        Kind::Bar => "bar".into(),
        Kind::Dict => "dictionary".into(),
        Kind::Json => "JSON".into(),
        Kind::Pattern => "pattern".into(),
        Kind::Text => "text".into(),
        Kind::Torchtitan => "torchtitan".into(),
        Kind::Megatron => "Megatron-LM".into(),
        Kind::Nemo => "NeMo".into(),
        Kind::DeepSpeed => "DeepSpeed".into(),
    }
}

fn of_adapter(line: Line) -> (String, Option<u64>, NamedValues) {
    match line {
        Line::Step(step) => {
            let sample = MetricSample {
                loss: Some(step.loss),
                grad_norm: step.grad_norm,
                lr: step.lr.unwrap_or(0.0),
                step_s: step.step_s.unwrap_or(0.0),
                data_s: step.data_s.unwrap_or(0.0),
                is_from_log: true,
                ..MetricSample::default()
            };
            ("step".into(), Some(step.done), values(&sample))
        }
        Line::Memory(gib) => ("memory".into(), None, vec![("mem_peak_gib".into(), Some(gib))]),
        Line::Phrase(phrase) => {
            let kind = match phrase {
                Phrase::Started => "training starts",
                Phrase::Resumed => "resumed",
                Phrase::Saving => "saving",
                Phrase::Saved => "saved",
                Phrase::Evaluating => "evaluation starts",
                Phrase::Evaluated => "evaluation ends",
            };
            (kind.into(), None, Vec::new())
        }
    }
}

/// Returns the values of a sample, by the names of the metrics.
fn values(sample: &MetricSample) -> NamedValues {
    let finite = |value: f64| Some(value).filter(|value| value.is_finite());
    let mut list = Vec::new();
    for metric in METRICS {
        match metric.source {
            MetricSource::Step(value, _) => {
                // The function of the loss also decides whether there is a step.
                let sample = &MetricSample { step: sample.step.max(1), ..sample.clone() };
                list.extend(value(sample).map(|value| (metric.name.to_owned(), finite(value))));
            }
            MetricSource::PerRank(values) => {
                list.extend(values(sample).iter().map(|value| (metric.name.to_owned(), finite(*value))));
            }
            MetricSource::Nodes { .. } => {}
        }
    }
    list.extend(sample.other.iter().map(|(name, value)| (name.clone(), *value)));
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_that_yields_something_is_listed_with_its_number() {
        let log = b"loads\nstep 1 loss 0.5\n\rSteps: 10%|# | 1/9 [00:01<00:09, 1.00s/it, loss=0.5]\rSteps: 20%|# | 2/9 [00:01<00:09, 1.00s/it, loss=nan]";
        let report = report(&ReaderOptions::new(OtherTrainer::Auto), log);
        let shown: Vec<_> = report.yields.iter().map(|found| (found.line, found.kind.as_str(), found.step)).collect();
        assert_eq!(shown, [(2, "text", Some(1)), (3, "bar 'Steps'", Some(1)), (3, "bar 'Steps'", Some(2))]);
        assert_eq!(report.yields[2].values[0], ("loss".into(), None));
        assert_eq!(report.lines, 3);
        assert_eq!(report.recognized.as_deref(), Some("progress bars of tqdm named 'Steps'"));
        assert_eq!(report.steps.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn the_lines_of_a_known_trainer_are_listed_too() {
        let log = std::fs::read("../../tests/fixtures/trainer-logs/open-sora-2.log").unwrap();
        let report = report(&ReaderOptions::new(OtherTrainer::OpenSora), &log);
        let kinds: std::collections::BTreeSet<&str> = report.yields.iter().map(|found| found.kind.as_str()).collect();
        assert_eq!(kinds, ["saved", "step", "training starts"].into());
        assert_eq!((report.steps.len(), report.recognized.as_deref()), (5, Some("lines of Open-Sora")));
    }
}
