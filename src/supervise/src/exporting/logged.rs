//! Reads the metrics of a run and of its nodes, and returns them as named values for other tools.

use std::io;

use cluster::NodeId;
use interop::Log;
use rundir::{
    Attempt, METRICS, MetricSample, MetricSource, NodePoint, NodeSample, NodeSeries, RunDir, Tail, find_metric,
};

/// Follows the metrics of a run and the samples of its nodes.
pub struct Logged {
    attempt: u32,
    metrics: Tail<MetricSample>,
    nodes: Vec<(NodeId, Tail<NodeSample>)>,
    points: NodeSeries,
}

impl Logged {
    pub fn new(run: &RunDir, attempt: &Attempt) -> Self {
        let nodes = attempt.placement.by_node().into_iter();
        Self {
            attempt: attempt.number,
            metrics: Tail::new(run.metrics()),
            nodes: nodes.map(|(node, _)| (node.clone(), run.tail_gpu_samples(node))).collect(),
            points: NodeSeries::default(),
        }
    }

    /// Returns new logged steps of all attempts, and whether the file has more.
    pub fn steps(&mut self) -> io::Result<(Vec<MetricSample>, bool)> {
        let batch = self.metrics.poll()?;
        Ok((batch.items, batch.more))
    }

    /// Returns new points of this attempt's nodes; at the end, also points that lack samples of some nodes.
    pub fn node_points(&mut self, is_end: bool) -> io::Result<Vec<NodePoint>> {
        for (node, tail) in &mut self.nodes {
            loop {
                let batch = tail.poll()?;
                let own = batch.items.iter().filter(|sample| sample.attempt == self.attempt);
                own.for_each(|sample| self.points.push(node, sample));
                if !batch.more {
                    break;
                }
            }
        }
        Ok(if is_end { self.points.take_rest() } else { self.points.take() })
    }
}

/// The last step that the files of a tool contain.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Written {
    pub step: u64,
    pub t: f64,
}

impl Written {
    /// Returns the last step in the newest log that has one. The files are the only record, so the result is right even after a supervisor
    /// was killed.
    ///
    /// * `logs` — the newest first.
    pub fn last(mut logs: impl Iterator<Item = Log>) -> Option<Self> {
        let is_of_step = |tag: &str| find_metric(tag).is_some_and(|(_, m)| matches!(m.source, MetricSource::Step(..)));
        logs.find_map(|log| {
            let last = log.series().filter(|(tag, _)| is_of_step(tag)).filter_map(|(_, points)| points.last());
            last.max_by(|a, b| a.t.total_cmp(&b.t)).map(|last| Self { step: last.step, t: last.t })
        })
    }

    /// Returns whether the files contain a step already. The supervisors of earlier attempts wrote the steps of their
    /// attempts, unless they were killed before.
    pub fn contains(last: Option<Self>, sample: &MetricSample, attempt: u32) -> bool {
        sample.attempt != attempt && last.is_some_and(|last| sample.t <= last.t)
    }
}

/// Returns the metrics of a step, by their names. A `/` makes a group in TensorBoard and W&B.
pub fn step_values(sample: &MetricSample) -> Vec<(String, f64)> {
    let mut values = Vec::new();
    for metric in METRICS {
        match metric.source {
            MetricSource::Step(value, _) => values.extend(value(sample).map(|value| (metric.name.to_owned(), value))),
            MetricSource::PerRank(of_ranks) => {
                let ranks = of_ranks(sample).iter().enumerate();
                values.extend(ranks.map(|(rank, value)| (format!("{}/rank_{rank}", metric.name), *value)));
            }
            MetricSource::Nodes { .. } => {}
        }
    }
    values
}

/// Returns the values of the nodes by their names: the mean and, if several GPUs or nodes have values, the extremes.
pub fn node_values(point: &NodePoint) -> Vec<(String, f64)> {
    let mut values = Vec::new();
    for metric in METRICS {
        if let MetricSource::Nodes { column, value } = metric.source
            && let Some(spread) = value(point)
        {
            values.push((format!("{column}/mean"), spread.mean));
            if spread.of_several {
                values.extend([(format!("{column}/min"), spread.min), (format!("{column}/max"), spread.max)]);
            }
        }
    }
    values
}
