//! The history of a node at two resolutions: each sample of the last minutes, and means over minutes of the last hours.
//!
//! Memory is bounded: a node with eight GPUs takes at most 100 KB.

use std::collections::{BTreeSet, VecDeque};

/// Samples that are kept: ten minutes at one every two seconds.
const SAMPLES: usize = 300;
/// Means over a minute that are kept: twelve hours.
const MINUTES: usize = 720;
const MINUTE_S: f64 = 60.0;
/// The longest time between two samples that a line joins. nvidia-smi takes several seconds on busy nodes.
const SAMPLES_JOINED_S: f64 = 15.0;
/// The longest time between two means that a line joins.
const MINUTES_JOINED_S: f64 = 150.0;
/// A recorded sample this close to a known sample shows nothing new. Supervisors sample every five seconds.
const SAME_SAMPLE_S: f64 = 3.0;
/// GPUs of a node that have a history. A larger index means that the row was misread.
const MOST_GPUS: u32 = 64;

/// The part of the history that is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "the names explain themselves")]
pub enum HistoryWindow {
    #[default]
    TenMinutes,
    Hour,
    TwelveHours,
}

impl HistoryWindow {
    const ALL: [Self; 3] = [Self::TenMinutes, Self::Hour, Self::TwelveHours];

    /// Returns the length of the window in seconds.
    pub fn seconds(self) -> f64 {
        match self {
            Self::TenMinutes => 600.0,
            Self::Hour => 3600.0,
            Self::TwelveHours => 43_200.0,
        }
    }

    /// Returns the next shorter part; the shortest one stays.
    pub fn shorter(self) -> Self {
        Self::ALL[(self as usize).saturating_sub(1)]
    }

    /// Returns the next longer part; the longest one stays.
    pub fn longer(self) -> Self {
        Self::ALL[(self as usize + 1).min(Self::ALL.len() - 1)]
    }
}

/// The values of a node at one time. A value that was not reported is NaN.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moment {
    /// The time, Unix seconds.
    pub t: f64,
    /// Mean power per GPU.
    pub power_w: f32,
    /// Mean GPU utilization.
    pub util_pct: f32,
    /// GPU memory in use, as a share; node memory in a node without GPUs.
    pub mem_share: f32,
    /// CPU utilization.
    pub cpu_pct: f32,
    /// Bytes per second that the network interfaces receive.
    pub net_rx: f32,
    /// Bytes per second that the network interfaces send.
    pub net_tx: f32,
    /// Bytes per second that the InfiniBand ports receive.
    pub ib_rx: f32,
    /// Bytes per second that the InfiniBand ports send.
    pub ib_tx: f32,
    /// Temperature of the hottest GPU, °C.
    pub temp_c: f32,
}

impl Moment {
    fn values(&mut self) -> [&mut f32; 9] {
        let Self { t: _, power_w, util_pct, mem_share, cpu_pct, net_rx, net_tx, ib_rx, ib_tx, temp_c } = self;
        [power_w, util_pct, mem_share, cpu_pct, net_rx, net_tx, ib_rx, ib_tx, temp_c]
    }
}

/// The values of a GPU at one time, rounded to six bytes, because a cluster has thousands of GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuMoment {
    power_w: u16,
    util_pct: u8,
    /// In steps of 0.4 %.
    mem_share: u8,
    temp_c: u8,
}

impl GpuMoment {
    const UNKNOWN: Self = Self { power_w: u16::MAX, util_pct: u8::MAX, mem_share: u8::MAX, temp_c: u8::MAX };
    const MEM_STEPS: f64 = 250.0;

    /// Rounds the values of a GPU.
    pub fn new(power_w: Option<f64>, util_pct: Option<f64>, mem_share: Option<f64>, temp_c: Option<f64>) -> Self {
        let byte = |value: Option<f64>| value.map_or(u8::MAX, |value| value.round().clamp(0.0, 254.0) as u8);
        Self {
            power_w: power_w.map_or(u16::MAX, |value| value.round().clamp(0.0, 65_534.0) as u16),
            util_pct: byte(util_pct),
            mem_share: byte(mem_share.map(|share| share * Self::MEM_STEPS)),
            temp_c: byte(temp_c),
        }
    }

    /// Returns power in watts; NaN if it was not reported.
    pub fn power_w(self) -> f32 {
        if self.power_w == u16::MAX { f32::NAN } else { f32::from(self.power_w) }
    }

    /// Returns utilization in percent; NaN if it was not reported.
    pub fn util_pct(self) -> f32 {
        if self.util_pct == u8::MAX { f32::NAN } else { f32::from(self.util_pct) }
    }

    /// Returns memory in use as a share; NaN if it was not reported.
    pub fn mem_share(self) -> f32 {
        if self.mem_share == u8::MAX { f32::NAN } else { f32::from(self.mem_share) / Self::MEM_STEPS as f32 }
    }

    /// Returns the temperature in °C; NaN if it was not reported.
    pub fn temp_c(self) -> f32 {
        if self.temp_c == u8::MAX { f32::NAN } else { f32::from(self.temp_c) }
    }

    fn mean(all: impl Iterator<Item = Self> + Clone) -> Self {
        let mean = |of: fn(Self) -> f32| mean(all.clone().map(of)).map(f64::from);
        Self::new(mean(Self::power_w), mean(Self::util_pct), mean(Self::mem_share), mean(Self::temp_c))
    }
}

fn mean(values: impl Iterator<Item = f32>) -> Option<f32> {
    let (sum, count) = values.filter(|value| value.is_finite()).fold((0.0, 0), |(sum, n), value| (sum + value, n + 1));
    (count > 0).then(|| sum / count as f32)
}

/// A value of the history.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// The time, Unix seconds.
    pub t: f64,
    /// The value; NaN if it was not reported.
    pub value: f32,
    /// The longest time since the previous point over which a line joins the two points.
    pub joined_s: f64,
}

/// The history of a node and its GPUs.
#[derive(Debug, Clone, Default)]
pub struct History {
    samples: Level,
    minutes: Level,
    /// The minute of the newest sample, since 1970.
    minute: Option<i64>,
}

/// The values of a node at one time, and those of each GPU by its index.
type Row = (Moment, Vec<(u32, GpuMoment)>);

/// Values of one resolution, oldest first. Each GPU has one entry per moment.
#[derive(Debug, Clone, Default)]
struct Level {
    moments: VecDeque<Moment>,
    gpus: Vec<VecDeque<GpuMoment>>,
}

impl Level {
    /// Makes a level with the newest `most` of these rows, which are in time order.
    fn of(rows: impl Iterator<Item = Row>, most: usize) -> Self {
        let mut level = Self::default();
        rows.for_each(|(moment, gpus)| level.push(moment, gpus.into_iter(), most));
        level
    }

    /// Returns the rows from this place on.
    fn rows(&self, from: usize) -> impl Iterator<Item = Row> {
        let gpus = move |at: usize| (0..).zip(self.gpus.iter().map(|gpu| gpu[at])).collect::<Vec<(u32, GpuMoment)>>();
        (from..self.moments.len()).map(move |at| (self.moments[at], gpus(at)))
    }

    fn push(&mut self, moment: Moment, gpus: impl Iterator<Item = (u32, GpuMoment)>, most: usize) {
        if self.moments.len() == most {
            self.moments.pop_front();
            for gpu in &mut self.gpus {
                gpu.pop_front();
            }
        }
        let before = self.moments.len();
        push_within(&mut self.moments, moment, most);
        for (index, values) in gpus.filter(|(index, _)| *index < MOST_GPUS) {
            let at = index as usize;
            if self.gpus.len() <= at {
                self.gpus.resize_with(at + 1, VecDeque::new);
            }
            self.gpus[at].resize(before, GpuMoment::UNKNOWN);
            push_within(&mut self.gpus[at], values, most);
        }
        // Each GPU that has no row in this sample gets unknown values.
        for gpu in self.gpus.iter_mut().filter(|gpu| gpu.len() <= before) {
            gpu.resize(before, GpuMoment::UNKNOWN);
            push_within(gpu, GpuMoment::UNKNOWN, most);
        }
    }
}

/// Adds a value to at most `most` values. The capacity doubles up to `most`; without this, it would be a power of two.
fn push_within<T>(values: &mut VecDeque<T>, value: T, most: usize) {
    let count = values.len();
    if count == values.capacity() {
        values.reserve_exact(count.max(4).min(most.saturating_sub(count)));
    }
    values.push_back(value);
}

impl History {
    /// Adds a sample with the values of each GPU by its index.
    pub fn push(&mut self, moment: Moment, gpus: impl Iterator<Item = (u32, GpuMoment)>) {
        let minute = minute_of(moment.t);
        if let Some(done) = self.minute.replace(minute).filter(|done| *done != minute) {
            self.close_minute(done);
        }
        self.samples.push(moment, gpus, SAMPLES);
    }

    /// Adds the means over the samples of a minute.
    fn close_minute(&mut self, minute: i64) {
        let samples = &self.samples.moments;
        let count = samples.iter().rev().take_while(|moment| minute_of(moment.t) == minute).count();
        let rows: Vec<Row> = self.samples.rows(samples.len() - count).collect();
        if let Some((means, gpus)) = mean_row(&rows) {
            self.minutes.push(means, gpus.into_iter(), MINUTES);
        }
    }

    /// Adds recorded samples, in any order and also in pieces. They must not be from the future. They fill only the times without
    /// samples: known samples and known means of minutes stay.
    pub fn seed(&mut self, recorded: impl IntoIterator<Item = Row>) {
        let known = &self.samples.moments;
        let is_known = |t: f64| known.iter().any(|moment| (moment.t - t).abs() < SAME_SAMPLE_S);
        let mut samples: Vec<Row> = recorded.into_iter().filter(|(moment, _)| !is_known(moment.t)).collect();
        samples.extend(self.samples.rows(0));
        samples.sort_by(|(a, _), (b, _)| a.t.total_cmp(&b.t));
        let Some(newest_s) = samples.last().map(|(newest, _)| newest.t) else { return };
        let open = minute_of(newest_s);
        let mut minutes: Vec<Row> = self.minutes.rows(0).collect();
        let known: BTreeSet<i64> = minutes.iter().map(|(means, _)| minute_of(means.t)).collect();
        for of_minute in samples.chunk_by(|(a, _), (b, _)| minute_of(a.t) == minute_of(b.t)) {
            let minute = minute_of(of_minute[0].0.t);
            if minute != open && !known.contains(&minute) {
                minutes.extend(mean_row(of_minute));
            }
        }
        minutes.sort_by(|(a, _), (b, _)| a.t.total_cmp(&b.t));
        // Means are shown only before the oldest sample. A sample from before a long pause would hide the means after it.
        let first = samples.partition_point(|(moment, _)| moment.t < newest_s - HistoryWindow::TenMinutes.seconds());
        self.minutes = Level::of(minutes.into_iter(), MINUTES);
        self.samples = Level::of(samples.drain(first..), SAMPLES);
        self.minute = Some(open);
    }

    /// Moves times after `now` to `now`, because the clock was set back.
    pub fn clock_set_back(&mut self, now: f64) {
        for level in [&mut self.samples, &mut self.minutes] {
            level.moments.iter_mut().for_each(|moment| moment.t = moment.t.min(now));
        }
    }

    /// Returns the newest sample.
    pub fn newest(&self) -> Option<&Moment> {
        self.samples.moments.back()
    }

    /// Returns the values nearest to a time: a sample, or means over a minute before the first sample. In a gap, where charts
    /// have no line, all values are NaN. `None` if there are no values at all.
    pub fn at(&self, t: f64) -> Option<Moment> {
        let (level, at, is_gap) = self.nearest(t)?;
        let mut found = level.moments[at];
        if is_gap {
            found.values().into_iter().for_each(|value| *value = f32::NAN);
        }
        Some(found)
    }

    /// Returns the values of a GPU nearest to a time, as [`History::at`]; all are unknown in a gap.
    pub fn gpu_at(&self, index: u32, t: f64) -> GpuMoment {
        let found = self.nearest(t).filter(|(.., is_gap)| !is_gap);
        let found = found.and_then(|(level, at, _)| level.gpus.get(index as usize)?.get(at));
        found.copied().unwrap_or(GpuMoment::UNKNOWN)
    }

    /// Finds the values nearest to a time: their level, their place in it, and whether the time is in a gap.
    fn nearest(&self, t: f64) -> Option<(&Level, usize, bool)> {
        let oldest = self.samples.moments.front().map_or(f64::INFINITY, |moment| moment.t);
        let places = |level: &'_ Level| 0..level.moments.len();
        let distance = |level: &Level, at: usize| (level.moments[at].t - t).abs();
        let (minutes, samples) = (&self.minutes, &self.samples);
        let older = places(minutes).filter(|at| minutes.moments[*at].t < oldest);
        let older = older.map(|at| (minutes, at, MINUTES_JOINED_S));
        let newer = places(samples).map(|at| (samples, at, SAMPLES_JOINED_S));
        let nearest = older.chain(newer).min_by(|a, b| distance(a.0, a.1).total_cmp(&distance(b.0, b.1)));
        nearest.map(|(level, at, joined_s)| (level, at, distance(level, at) > joined_s))
    }

    /// Returns the samples that are kept one by one, oldest first.
    pub fn samples(&self) -> impl ExactSizeIterator<Item = &Moment> {
        self.samples.moments.iter()
    }

    /// Returns a value of the node over time, oldest first: means over minutes, then samples.
    pub fn points(&self, of: fn(&Moment) -> f32) -> impl Iterator<Item = Point> + Clone {
        self.joined(move |level, at| of(&level.moments[at]))
    }

    /// Returns a value of a GPU over time, oldest first: means over minutes, then samples.
    pub fn gpu_points(&self, index: u32, of: fn(GpuMoment) -> f32) -> impl Iterator<Item = Point> + Clone {
        self.joined(move |level, at| {
            level.gpus.get(index as usize).and_then(|gpu| gpu.get(at)).map_or(f32::NAN, |values| of(*values))
        })
    }

    fn joined(&self, of: impl Fn(&Level, usize) -> f32 + Copy) -> impl Iterator<Item = Point> + Clone {
        let oldest = self.samples.moments.front().map_or(f64::INFINITY, |moment| moment.t);
        let level = move |level: &'_ Level, joined_s: f64, at: usize| Point {
            t: level.moments[at].t,
            value: of(level, at),
            joined_s,
        };
        let (minutes, samples) = (&self.minutes, &self.samples);
        let older = (0..minutes.moments.len()).map(move |at| level(minutes, MINUTES_JOINED_S, at));
        let older = older.filter(move |point| point.t < oldest);
        // The first sample continues the line of the means.
        let joined_s = move |at: usize| if at == 0 { MINUTES_JOINED_S } else { SAMPLES_JOINED_S };
        let newer = (0..samples.moments.len()).map(move |at| level(samples, joined_s(at), at));
        older.chain(newer)
    }
}

fn minute_of(t: f64) -> i64 {
    (t / MINUTE_S).floor() as i64
}

/// Returns the means over rows; `None` if there are none.
fn mean_row(rows: &[Row]) -> Option<Row> {
    let mut means = rows.first()?.0;
    means.t = rows.iter().map(|(moment, _)| moment.t).sum::<f64>() / rows.len() as f64;
    for (at, value) in means.values().into_iter().enumerate() {
        let column = rows.iter().map(|(moment, _)| *{ *moment }.values()[at]);
        *value = mean(column).unwrap_or(f32::NAN);
    }
    let indices: BTreeSet<u32> = rows.iter().flat_map(|(_, gpus)| gpus.iter().map(|(index, _)| *index)).collect();
    let mean_of = |index: u32| {
        let of_gpu = rows.iter().flat_map(|(_, gpus)| gpus).filter(move |(at, _)| *at == index);
        (index, GpuMoment::mean(of_gpu.map(|(_, values)| *values)))
    };
    Some((means, indices.into_iter().map(mean_of).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(t: f64, power_w: f32) -> Moment {
        let none = f32::NAN;
        Moment {
            t,
            power_w,
            util_pct: 100.0,
            mem_share: 0.5,
            cpu_pct: none,
            net_rx: none,
            net_tx: none,
            ib_rx: none,
            ib_tx: none,
            temp_c: none,
        }
    }

    fn gpu(power_w: f64) -> GpuMoment {
        GpuMoment::new(Some(power_w), None, Some(0.5), None)
    }

    #[test]
    fn minutes_are_means_of_their_samples_and_come_before_the_samples() {
        let mut history = History::default();
        // Two hours: the second one has twice the power.
        for at in 0..3600 {
            let power = if at < 1800 { 300.0 } else { 600.0 };
            history.push(moment(f64::from(at) * 2.0, power), [(0, gpu(f64::from(power) / 2.0))].into_iter());
        }
        let points: Vec<Point> = history.points(|moment| moment.power_w).collect();
        assert!(points.is_sorted_by(|a, b| a.t < b.t));
        assert_eq!(points.iter().filter(|point| point.joined_s == SAMPLES_JOINED_S).count(), SAMPLES - 1);
        assert_eq!((points[0].value, points[59].value, points[60].value), (300.0, 300.0, 600.0));
        assert_eq!(points[0].t, 29.0, "the middle of its samples");
        let gpus: Vec<f32> = history.gpu_points(0, GpuMoment::power_w).map(|point| point.value).collect();
        assert_eq!((gpus.len(), gpus[0], gpus[points.len() - 1]), (points.len(), 150.0, 300.0));
        assert!(history.gpu_points(1, GpuMoment::power_w).all(|point| point.value.is_nan()));
    }

    #[test]
    fn a_day_takes_no_more_memory_than_twelve_hours() {
        let mut history = History::default();
        for at in 0..43_200 {
            let gpus = (0..8).map(|index| (index, gpu(500.0)));
            history.push(moment(f64::from(at) * 2.0, 500.0), gpus);
        }
        assert_eq!((history.samples.moments.len(), history.minutes.moments.len()), (SAMPLES, MINUTES));
        let bytes = |level: &Level| {
            let gpus: usize = level.gpus.iter().map(|gpu| gpu.capacity() * size_of::<GpuMoment>()).sum();
            level.moments.capacity() * size_of::<Moment>() + gpus
        };
        let bytes = bytes(&history.samples) + bytes(&history.minutes);
        assert!(bytes <= 100_000, "{bytes}");
    }

    #[test]
    fn recorded_samples_fill_the_times_without_samples_and_are_not_doubled() {
        let mut history = History::default();
        // Three hours of watching: the first five minutes and the last two.
        for at in (0..150).chain(5340..5400) {
            history.push(moment(f64::from(at) * 2.0, 600.0), [(0, gpu(600.0))].into_iter());
        }
        let recorded: Vec<Row> =
            (0..1540).map(|at| (moment(f64::from(at) * 7.0, 300.0), vec![(0, gpu(300.0))])).collect();
        for piece in recorded.chunks(250).rev() {
            history.seed(piece.to_vec());
        }
        let shown = |history: &History| history.points(|moment| moment.power_w).collect::<Vec<_>>();
        let points = shown(&history);
        assert!(points.windows(2).all(|pair| (1.0..100.0).contains(&(pair[1].t - pair[0].t))), "{points:?}");
        let watched = |point: &&Point| point.t < 300.0 || point.t >= 10_680.0;
        assert!(points.iter().filter(watched).all(|point| point.value == 600.0), "known values stay");
        assert!(points.iter().filter(|point| !watched(point)).all(|point| point.value == 300.0));
        assert!(history.gpu_points(0, GpuMoment::power_w).all(|point| point.value.is_finite()));
        history.seed(recorded);
        assert_eq!(shown(&history), points);
        history.push(moment(10_801.0, 600.0), [(0, gpu(600.0))].into_iter());
        assert_eq!(shown(&history).last().unwrap().t, 10_801.0);
    }

    #[test]
    fn values_at_a_time_are_those_of_the_nearest_sample_and_unknown_in_a_gap() {
        let mut history = History::default();
        assert!(history.at(0.0).is_none());
        // The node is unreachable for five minutes.
        for t in [0.0, 2.0, 4.0, 304.0, 306.0] {
            history.push(moment(t, 100.0 + t as f32), std::iter::empty());
        }
        let power = |t: f64| history.at(t).unwrap().power_w;
        assert_eq!((power(-1.0), power(2.4), power(10.0), power(900.0).is_nan()), (100.0, 102.0, 104.0, true));
        assert!(power(150.0).is_nan());
        assert_eq!((power(300.0), power(306.0)), (404.0, 406.0));
    }

    #[test]
    fn values_of_a_gpu_at_a_time_are_unknown_in_a_gap_and_where_it_has_no_row() {
        let mut history = History::default();
        assert_eq!(history.gpu_at(0, 0.0), GpuMoment::UNKNOWN);
        history.push(moment(0.0, 1.0), [(0, gpu(10.0))].into_iter());
        history.push(moment(300.0, 1.0), [(1, gpu(20.0))].into_iter());
        let power = |index, t| history.gpu_at(index, t).power_w();
        assert_eq!((power(0, 3.0), power(1, 299.0)), (10.0, 20.0));
        assert!([power(0, 150.0), power(0, 300.0), power(1, 0.0), power(9, 0.0)].iter().all(|watts| watts.is_nan()));
    }

    #[test]
    fn a_gpu_that_is_missing_in_a_sample_has_a_gap_there() {
        let mut history = History::default();
        history.push(moment(0.0, 1.0), [(0, gpu(10.0))].into_iter());
        history.push(moment(2.0, 1.0), [(1, gpu(20.0))].into_iter());
        history.push(moment(4.0, 1.0), [(0, gpu(30.0)), (1, gpu(40.0)), (900, gpu(1.0))].into_iter());
        let of = |index| history.gpu_points(index, GpuMoment::power_w).map(|point| point.value).collect::<Vec<_>>();
        assert!(of(0)[1].is_nan() && of(1)[0].is_nan());
        assert_eq!(([of(0)[0], of(0)[2]], &of(1)[1..]), ([10.0, 30.0], &[20.0, 40.0][..]));
    }

    #[test]
    fn rounded_values_of_a_gpu_are_close_and_missing_ones_are_not_zero() {
        let values = GpuMoment::new(Some(631.95), Some(99.6), Some(0.861), Some(58.7));
        assert_eq!((values.power_w(), values.util_pct(), values.mem_share()), (632.0, 100.0, 0.86));
        assert_eq!(values.temp_c(), 59.0);
        let none = GpuMoment::new(None, None, None, None);
        assert!([none.power_w(), none.util_pct(), none.mem_share(), none.temp_c()].iter().all(|value| value.is_nan()));
    }

    #[test]
    fn a_clock_that_is_set_back_neither_panics_nor_loses_the_newest_sample() {
        let mut history = History::default();
        for t in [1000.0, 1002.0, 400.0, 402.0, -5.0, 2000.0] {
            history.push(moment(t, 1.0), std::iter::empty());
        }
        assert_eq!((history.newest().unwrap().t, history.samples().len()), (2000.0, 6));
        assert!(history.points(|moment| moment.power_w).count() >= 6);
    }

    #[test]
    fn the_window_is_zoomed_in_three_steps() {
        let longest = HistoryWindow::default().longer().longer().longer();
        assert_eq!((longest.seconds(), longest.shorter().seconds()), (43_200.0, 3600.0));
        assert_eq!(longest.shorter().shorter().shorter(), HistoryWindow::TenMinutes);
    }
}
