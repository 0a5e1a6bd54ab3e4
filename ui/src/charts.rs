//! The lines that the run screen draws of a metric.

use crate::series::{MAX_RANK_LINES, Segment, Series, Statistic, Track};
use rundir::{Metric, MetricLine, MetricSource};

/// A line of a chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// The track.
    pub track: Track,
    /// The lowest and the highest value around a mean.
    pub band: Option<(Track, Track)>,
    /// The letter at the end of the line.
    pub mark: char,
    /// The name in the legend.
    pub label: String,
}

/// Returns the lines of a metric. With `each_rank`, the memory of a few ranks has one line per rank.
pub fn curves(metric: &Metric, each_rank: bool) -> Vec<Curve> {
    let Some(MetricLine { mark, label, .. }) = metric.line else { return Vec::new() };
    let curve = |track, mark, label: String| Curve { track, band: None, mark, label };
    match (Track::of(metric.name), metric.source) {
        (_, MetricSource::PerRank(_)) if each_rank => (0..MAX_RANK_LINES)
            .map(|rank| curve(Track::Memory(rank), char::from(b'0' + rank as u8), format!("{label} {rank}")))
            .collect(),
        (_, MetricSource::PerRank(_)) => {
            let band = Some((Track::MemoryLowest, Track::MemoryHighest));
            vec![Curve { band, ..curve(Track::MemoryMean, 'm', "mean".to_owned()) }]
        }
        (Track::Nodes(index, _), _) => {
            let [mean, lowest, highest] = [Statistic::Mean, Statistic::Lowest, Statistic::Highest];
            let [mean, lowest, highest] = [mean, lowest, highest].map(|statistic| Track::Nodes(index, statistic));
            vec![Curve { band: Some((lowest, highest)), ..curve(mean, mark, label.to_owned()) }]
        }
        (track, _) => vec![curve(track, mark, label.to_owned())],
    }
}

/// Returns whether two lines of a run lie on each other. The cost does not grow with the number of samples.
pub fn coincide(series: &Series, a: Track, b: Track) -> bool {
    /// Parts of a line that are compared by their extremes.
    const PARTS: usize = 32;
    let (piece, other) = (series.of_track(a), series.of_track(b));
    let same = |piece: &Segment| {
        let part = |at: usize| at * piece.len() / PARTS;
        let extent = |track: Track, at: usize| piece.column(track).extent(part(at), part(at + 1));
        (0..PARTS).all(|at| extent(a, at) == extent(b, at))
    };
    std::ptr::eq(piece, other) && !piece.is_empty() && same(piece)
}
