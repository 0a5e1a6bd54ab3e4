//! The lines that the run screen draws for each metric.

use crate::memo::Memo;
use crate::series::{Column, MAX_RANK_LINES, Segment, Series, Statistic, Track};
use rundir::{Chart, METRICS, find_metric};
use std::rc::Rc;

/// A line of a chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// The track with the values of the line.
    pub track: Track,
    /// The tracks of the lowest and the highest value, if the line is a mean.
    pub band: Option<(Track, Track)>,
    /// The letter at the end of the line.
    pub mark: char,
    /// The name in the legend.
    pub label: String,
}

/// Returns the lines of a metric, by its index in [`METRICS`]. With `each_rank`, the memory of a few ranks has one line per rank.
pub fn curves(index: usize, each_rank: bool) -> Vec<Curve> {
    let metric = &METRICS[index];
    // A metric without a line in the table is marked with the first letter of its label.
    let (mark, label) =
        metric.line.map_or_else(|| (first_letter(metric.label), metric.label), |line| (line.mark, line.label));
    let curve = |track, mark, label: String| Curve { track, band: None, mark, label };
    let [mean, lowest, highest] = [Statistic::Mean, Statistic::Lowest, Statistic::Highest];
    match Track::of_metric(index) {
        Track::MemoryMean if each_rank => (0..MAX_RANK_LINES)
            .map(|rank| curve(Track::Memory(rank), char::from(b'0' + rank as u8), format!("{label} {rank}")))
            .collect(),
        Track::MemoryMean => {
            let band = Some((Track::MemoryLowest, Track::MemoryHighest));
            vec![Curve { band, ..curve(Track::MemoryMean, 'm', "mean".to_owned()) }]
        }
        Track::Ranks(..) => {
            let [mean, lowest, highest] = [mean, lowest, highest].map(|statistic| Track::Ranks(index, statistic));
            vec![Curve { band: Some((lowest, highest)), ..curve(mean, 'm', "mean".to_owned()) }]
        }
        Track::Nodes(..) => {
            let [mean, lowest, highest] = [mean, lowest, highest].map(|statistic| Track::Nodes(index, statistic));
            let (mark, label) = metric.line.map_or(('m', "mean"), |line| (line.mark, line.label));
            vec![Curve { band: Some((lowest, highest)), ..curve(mean, mark, label.to_owned()) }]
        }
        track => vec![curve(track, mark, label.to_owned())],
    }
}

/// Returns the lines of a chart. `has_gpu_power` is true if a node of the run reports GPU power.
pub fn curves_of(chart: Chart, has_gpu_power: bool, each_rank: bool) -> impl Iterator<Item = Curve> {
    let metrics = chart.metrics(has_gpu_power).filter_map(|metric| find_metric(metric.name));
    metrics.flat_map(move |(index, _)| curves(index, each_rank))
}

/// Returns the letter that marks a line, if the table of metrics has no mark for it.
pub fn first_letter(label: &str) -> char {
    label.chars().find(|c| c.is_ascii_alphanumeric()).map_or('x', |c| c.to_ascii_lowercase())
}

thread_local! {
    /// The results of [`first_equals`] for the charts on the screen.
    static FIRST_EQUALS: Memo<(u64, Vec<Track>), Vec<usize>> = const { Memo::empty() };
}

/// Returns for each track of a run the index of the first track in the list whose line coincides with its own: its own index, if
/// there is none before it.
pub fn first_equals(series: &Series, tracks: Vec<Track>) -> Rc<Vec<usize>> {
    FIRST_EQUALS.with(|known| {
        known.get((series.version(), tracks), |(_, tracks)| {
            let first = |at: usize| (0..at).find(|before| coincide(series, tracks[*before], tracks[at])).unwrap_or(at);
            (0..tracks.len()).map(first).collect()
        })
    })
}

/// Returns whether two lines of a run coincide. The cost does not grow with the number of samples.
fn coincide(series: &Series, a: Track, b: Track) -> bool {
    /// Parts of a line that are compared by their extremes.
    const PARTS: usize = 32;
    let (piece, other) = (series.of_track(a), series.of_track(b));
    let same = |piece: &Segment| {
        let len = piece.len();
        // The extremes of whole buckets are computed fastest.
        let bucket = Column::bucket(len / PARTS);
        let part = |at: usize| if at == PARTS { len } else { at * len / PARTS / bucket * bucket };
        let extent = |track: Track, at: usize| piece.column(track).extent(part(at), part(at + 1));
        (0..PARTS).all(|at| extent(a, at) == extent(b, at))
    };
    std::ptr::eq(piece, other) && !piece.is_empty() && same(piece)
}
