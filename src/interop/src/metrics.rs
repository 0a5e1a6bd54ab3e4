//! Converts the log of another tool into lines of `metrics.jsonl`.
//!
//! A series whose name is in the table becomes a metric. All others keep their own names.

use crate::{Log, Point};
use rundir::{MetricSample, NAMED_SERIES, NamedSeries};
use std::collections::BTreeMap;

type Set = fn(&mut MetricSample, f64);

/// The steps of a log as metrics.
#[derive(Debug, Clone, PartialEq)]
pub struct Mapped {
    /// The steps in ascending order, each once.
    pub samples: Vec<MetricSample>,
    /// The metrics, each with the series that it was read from.
    pub metrics: BTreeMap<&'static str, String>,
    /// The series that are kept by their own names.
    pub others: Vec<String>,
}

/// Converts a log into one sample per step. A value that is not finite becomes a gap; charts mark gaps of the loss.
pub fn map_metrics(log: &Log) -> Mapped {
    let (mut metrics, mut of_series) = (BTreeMap::new(), BTreeMap::new());
    for NamedSeries { metric, aliases, set } in &NAMED_SERIES {
        let mut names = std::iter::once(*metric).chain(aliases.iter().copied());
        if let Some(tag) = names.find(|tag| !log.points(tag).is_empty()) {
            metrics.insert(*metric, tag.to_owned());
            of_series.insert(tag, *set);
        }
    }
    let series: Vec<(&str, &[Point], Option<Set>)> =
        log.series().map(|(tag, points)| (tag, points, of_series.get(tag).copied())).collect();
    let mut values: Vec<(u64, usize, &Point)> = Vec::with_capacity(log.len());
    for (at, (_, points, _)) in series.iter().enumerate() {
        values.extend(points.iter().map(|point| (point.step, at, point)));
    }
    values.sort_unstable_by_key(|(step, at, _)| (*step, *at));
    let loss = metrics.get("loss").map(String::as_str);
    let of_step = |values: &[(u64, usize, &Point)]| {
        let mut sample = MetricSample { step: values[0].0, is_from_log: true, has_no_loss: true, ..Default::default() };
        for (_, at, point) in values {
            let (tag, _, set) = series[*at];
            if point.t.is_finite() {
                sample.t = sample.t.max(point.t);
            }
            // Metrics are stored as f32.
            let value = Some(point.value).filter(|value| (*value as f32).is_finite());
            match (set, value) {
                (Some(set), Some(value)) => set(&mut sample, value),
                (Some(_), None) => {}
                (None, value) => drop(sample.other.insert(tag.to_owned(), value)),
            }
            sample.has_no_loss &= Some(tag) != loss;
        }
        sample
    };
    let samples = values.chunk_by(|(a, ..), (b, ..)| a == b).map(of_step).collect();
    let others = series.iter().filter(|(.., set)| set.is_none()).map(|(tag, ..)| (*tag).to_owned()).collect();
    Mapped { samples, metrics, others }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(values: &[(&str, u64, f64)]) -> Log {
        let mut log = Log::default();
        values.iter().for_each(|(tag, step, value)| {
            log.push(tag, Point { step: *step, t: 1000.0 + *step as f64, value: *value })
        });
        log
    }

    fn value(metric: &str, sample: &MetricSample) -> Option<f64> {
        let (_, metric) = rundir::find_metric(metric).unwrap();
        let rundir::MetricSource::Step(value, _) = metric.source else { panic!("{} is of a step", metric.name) };
        value(sample)
    }

    #[test]
    fn known_series_are_metrics_and_all_others_keep_their_names() {
        let log = log(&[
            ("train/loss", 0, 2.0),
            ("train/loss", 10, 1.0),
            ("train/lr", 10, 1e-4),
            ("clip/score", 10, 0.25),
            ("clip/score", 15, f64::INFINITY),
            ("val/loss", 15, 0.5),
            ("loss", 20, 9.0),
        ]);
        let mapped = map_metrics(&log);
        assert_eq!(mapped.metrics["loss"], "loss", "its own name is preferred");
        assert_eq!(mapped.others, ["train/loss", "clip/score"]);
        assert_eq!(mapped.samples.iter().map(|sample| sample.step).collect::<Vec<_>>(), [0, 10, 15, 20]);
        assert_eq!(mapped.samples[2].other["clip/score"], None);
        assert_eq!(mapped.samples[1].other["clip/score"], Some(0.25));
        assert_eq!((mapped.samples[1].lr, mapped.samples[2].validation_loss), (1e-4, Some(0.5)));
    }

    #[test]
    fn a_missing_loss_is_not_a_loss_that_is_not_finite() {
        let log = log(&[("train/loss", 0, 2.0), ("train/loss", 1, f64::NAN), ("val/loss", 2, 0.5)]);
        let samples = map_metrics(&log).samples;
        let losses: Vec<_> = samples.iter().map(|sample| value("loss", sample)).collect();
        assert_eq!((losses[0], losses[2]), (Some(2.0), None));
        assert!(losses[1].unwrap().is_nan());
        assert_eq!(value("validation_loss", &samples[2]), Some(0.5));
    }

    #[test]
    fn values_that_a_line_cannot_hold_are_gaps() {
        let mut log = log(&[("train/loss", 1, 2.0), ("train/lr", 1, 1e300), ("score", 1, f64::NEG_INFINITY)]);
        log.push("train/loss", Point { step: 2, t: f64::INFINITY, value: 1.0 });
        let samples = map_metrics(&log).samples;
        let lines = samples.iter().map(|sample| serde_json::to_string(sample).unwrap());
        let read: Vec<MetricSample> = lines.map(|line| serde_json::from_str(&line).unwrap()).collect();
        assert_eq!((read[0].lr, read[0].other["score"], read[1].t), (0.0, None, 0.0));
    }

    #[test]
    fn a_utilization_above_one_is_in_per_cent() {
        let mfu = |logged| map_metrics(&log(&[("mfu", 3, logged)])).samples[0].mfu;
        assert_eq!((mfu(35.0), mfu(0.35)), (Some(0.35), Some(0.35)));
    }

    #[test]
    fn every_metric_is_one_of_the_table_and_its_own_series_is_read_again() {
        for NamedSeries { metric: name, aliases, .. } in &NAMED_SERIES {
            for tag in std::iter::once(name).chain(*aliases) {
                let mapped = map_metrics(&log(&[(tag, 3, 0.5)]));
                assert_eq!(value(name, &mapped.samples[0]), Some(0.5), "{tag}");
                assert!(mapped.others.is_empty());
            }
        }
    }
}
