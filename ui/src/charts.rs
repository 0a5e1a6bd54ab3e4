//! The lines that the run screen draws of a metric.

use crate::series::{MAX_RANK_LINES, Statistic, Track};
use rundir::{Metric, MetricLine, MetricSource};

/// Returns the lines of a metric: track, the letter at the end of the line, and the name in the legend.
pub fn lines(metric: &Metric) -> Vec<(Track, char, String)> {
    let Some(MetricLine { mark, label, .. }) = metric.line else { return Vec::new() };
    match (Track::of(metric.name), metric.source) {
        (_, MetricSource::PerRank(_)) => (0..MAX_RANK_LINES)
            .map(|rank| (Track::Memory(rank), char::from(b'0' + rank as u8), format!("{label} {rank}")))
            .chain([
                (Track::MemoryHighest, 'h', format!("highest {label}")),
                (Track::MemoryLowest, 'l', format!("lowest {label}")),
            ])
            .collect(),
        (Track::Nodes(index, _), _) => {
            [(Statistic::Mean, mark, label), (Statistic::Highest, 'h', "highest"), (Statistic::Lowest, 'l', "lowest")]
                .map(|(statistic, mark, label)| (Track::Nodes(index, statistic), mark, label.to_owned()))
                .to_vec()
        }
        (track, _) => vec![(track, mark, label.to_owned())],
    }
}
