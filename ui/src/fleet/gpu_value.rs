//! One value of every GPU: its scale, its spread over the GPUs of all nodes, and the GPUs that are outliers.

use crate::fleet::{Link, NodeView};
use crate::rank_times::RankTimes;
use cluster::{GpuSample, NodeId, RankPlace};
use std::collections::HashMap;
use units::Unit;

/// The upper end of the scale of temperatures: most GPUs throttle between 85 and 95 °C.
pub const HOTTEST_C: f64 = 95.0;

/// A quantity of each GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names explain themselves")]
pub enum GpuValue {
    Power,
    Utilization,
    Memory,
    Temperature,
    /// The time of the newest step of the open run. The run's metrics have it; the samples of GPUs do not.
    StepTime,
}

impl GpuValue {
    /// All quantities, in the sequence of the key that changes them.
    pub const ALL: [Self; 5] = [Self::Power, Self::Utilization, Self::Memory, Self::Temperature, Self::StepTime];

    /// Returns the next quantity; `None` after the last one.
    pub fn next(self) -> Option<Self> {
        let at = Self::ALL.iter().position(|value| *value == self)?;
        Self::ALL.get(at + 1).copied()
    }

    /// Returns the name of the quantity.
    pub fn word(self) -> &'static str {
        match self {
            Self::Power => "power",
            Self::Utilization => "utilization",
            Self::Memory => "memory",
            Self::Temperature => "temperature",
            Self::StepTime => "step time",
        }
    }

    /// Formats a value with its unit.
    pub fn shown(self, value: f64) -> String {
        match self {
            Self::Power => format!("{value:.0} W"),
            Self::Utilization => format!("{value:.0} %"),
            Self::Memory => format!("{:.1} GiB", value / 1024.0),
            Self::Temperature => format!("{value:.0} °C"),
            Self::StepTime => units::value(value, Unit::Seconds),
        }
    }

    /// Returns the value in the sample of a GPU; `None` if the GPU does not report it.
    pub fn of(self, gpu: &GpuSample) -> Option<f64> {
        let value = match self {
            Self::Power => gpu.power_w.value(),
            Self::Utilization => gpu.util_pct.value(),
            Self::Memory => gpu.mem_used_mib.value().map(|mib| mib as f64),
            Self::Temperature => gpu.temp_c.value(),
            Self::StepTime => None,
        };
        value.filter(|value| value.is_finite())
    }

    /// Returns the ends of the scale of a GPU. The scale of step times is in [`GpuReader::scale`].
    pub fn scale(self, gpu: &GpuSample) -> (f64, f64) {
        match self {
            Self::Power => (0.0, gpu.power_limit_w.value().unwrap_or(700.0)),
            Self::Utilization => (0.0, 100.0),
            Self::Memory => (0.0, gpu.mem_total_mib.value().map_or(81_920.0, |mib| mib as f64)),
            // An idle GPU in a cool room has about 30 °C.
            Self::Temperature => (20.0, HOTTEST_C),
            Self::StepTime => (0.0, 1.0),
        }
    }

    /// Returns the name of the quantity and the scale that these GPUs share: `power, 0 to 700 W`.
    pub fn name_and_scale<'a>(self, gpus: impl Iterator<Item = &'a GpuSample>) -> String {
        let name = self.word();
        let mut scales = gpus.filter(|gpu| self.of(gpu).is_some()).map(|gpu| self.scale(gpu));
        let Some((low, high)) = scales.next() else { return name.to_owned() };
        if scales.all(|scale| scale == (low, high)) {
            format!("{name}, {low:.0} to {}", self.shown(high))
        } else {
            format!("{name}, 0 to the limit of each GPU")
        }
    }

    /// Returns the value of a GPU as a share of its scale, 0 to 1.
    pub fn share(self, gpu: &GpuSample) -> Option<f64> {
        Some(share_of(self.of(gpu)?, self.scale(gpu)))
    }
}

fn share_of(value: f64, (low, high): (f64, f64)) -> f64 {
    let share = (value - low) / (high - low);
    if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 }
}

/// The step times of a run's ranks on the GPUs of its nodes.
#[derive(Debug)]
pub struct StepTimes<'a> {
    /// The step.
    pub step: u64,
    /// The time of the median rank, seconds.
    pub median_s: f64,
    of_node: HashMap<&'a NodeId, Vec<f64>>,
}

impl<'a> StepTimes<'a> {
    /// Joins the newest step of a run with the placement of its ranks; `None` if the run lacks either. The local rank of a
    /// rank is the index of its GPU.
    pub fn of(times: &RankTimes, places: &'a [RankPlace]) -> Option<Self> {
        let row = times.at(u64::MAX)?;
        let median_s = f64::from(row.median_s);
        let mut of_node: HashMap<&NodeId, Vec<f64>> = HashMap::new();
        for place in places {
            let over = row.over.get(place.rank)?;
            let times = of_node.entry(&place.node).or_default();
            times.resize(times.len().max(place.local_rank + 1), f64::NAN);
            times[place.local_rank] = median_s * (1.0 + f64::from(*over));
        }
        (!of_node.is_empty()).then_some(Self { step: row.step, median_s, of_node })
    }

    fn at(&self, node: &NodeId, gpu: u32) -> Option<f64> {
        self.of_node.get(node)?.get(gpu as usize).copied().filter(|time_s| time_s.is_finite())
    }
}

/// Reads a quantity of the GPUs of nodes.
#[derive(Debug)]
pub struct GpuReader<'a> {
    /// The quantity.
    pub value: GpuValue,
    /// The step times, if they are the quantity and the open run has them.
    pub steps: Option<StepTimes<'a>>,
}

impl<'a> GpuReader<'a> {
    /// Makes a reader. `steps` returns the step times of the open run.
    pub fn new(value: GpuValue, steps: impl FnOnce() -> Option<StepTimes<'a>>) -> Self {
        let steps = if value == GpuValue::StepTime { steps() } else { None };
        Self { value, steps }
    }

    /// Returns the value of a GPU, if it is known.
    pub fn of(&self, view: &NodeView, gpu: &GpuSample) -> Option<f64> {
        match &self.steps {
            Some(steps) => steps.at(&view.node.id, gpu.index),
            None => self.value.of(gpu),
        }
    }

    /// Returns the ends of the scale of a GPU. The median step time is in the middle.
    pub fn scale(&self, gpu: &GpuSample) -> (f64, f64) {
        self.steps.as_ref().map_or_else(|| self.value.scale(gpu), |steps| (0.0, 2.0 * steps.median_s))
    }

    /// Returns the value of a GPU as a share of its scale, 0 to 1.
    pub fn share(&self, view: &NodeView, gpu: &GpuSample) -> Option<f64> {
        Some(share_of(self.of(view, gpu)?, self.scale(gpu)))
    }
}

/// The spread of a quantity over the GPUs of all nodes that can be reached.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GpuSpread {
    /// The quantity.
    pub value: GpuValue,
    /// The smallest value.
    pub lowest: f64,
    /// The median.
    pub median: f64,
    /// The largest value.
    pub highest: f64,
    /// The distance from the median beyond which a GPU is an outlier.
    pub far: f64,
}

impl GpuSpread {
    /// Returns the spread, if any GPU reports the quantity.
    ///
    /// An outlier is more than five times the median absolute deviation from the median, and at least a tenth of the scale, so
    /// that the noise of GPUs that are all alike marks none.
    pub fn of(reader: &GpuReader<'_>, nodes: &[NodeView]) -> Option<Self> {
        let current = || nodes.iter().filter(|view| is_current(view));
        let gpus = || current().flat_map(|view| view.gpus().iter().map(move |gpu| (view, gpu)));
        let mut values: Vec<f64> = gpus().filter_map(|(view, gpu)| reader.of(view, gpu)).collect();
        let (lowest, highest) = (values.iter().copied().reduce(f64::min)?, values.iter().copied().reduce(f64::max)?);
        let median = middle(&mut values);
        let mut distances: Vec<f64> = values.iter().map(|value| (value - median).abs()).collect();
        let spread = gpus().map(|(_, gpu)| reader.scale(gpu)).map(|(low, high)| high - low).fold(0.0, f64::max);
        let far = (5.0 * middle(&mut distances)).max(spread / 10.0);
        Some(Self { value: reader.value, lowest, median, highest, far })
    }

    /// Returns whether a value is far from the others.
    pub fn is_outlier(&self, value: Option<f64>) -> bool {
        value.is_some_and(|value| (value - self.median).abs() > self.far)
    }
}

/// Returns whether the latest sample of a node counts as current: the node is not unreachable.
pub fn is_current(view: &NodeView) -> bool {
    !matches!(view.link, Link::Unreachable { .. })
}

/// Returns the median of values, which must not be empty.
fn middle(values: &mut [f64]) -> f64 {
    let at = values.len() / 2;
    *values.select_nth_unstable_by(at, f64::total_cmp).1
}
