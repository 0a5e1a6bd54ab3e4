//! One value of every GPU: its scale, its spread over the GPUs of all nodes, and the GPUs that are outliers.

use crate::fleet::{Link, NodeView};
use cluster::GpuSample;

/// The quantity of the heat map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names explain themselves")]
pub enum GpuValue {
    Power,
    Utilization,
    Memory,
    Temperature,
}

impl GpuValue {
    /// All quantities, in the sequence of the key that changes them.
    pub const ALL: [Self; 4] = [Self::Power, Self::Utilization, Self::Memory, Self::Temperature];

    /// Returns the next quantity; `None` after the last one.
    pub fn next(self) -> Option<Self> {
        let at = Self::ALL.iter().position(|value| *value == self)?;
        Self::ALL.get(at + 1).copied()
    }

    /// Returns its name.
    pub fn word(self) -> &'static str {
        match self {
            Self::Power => "power",
            Self::Utilization => "utilization",
            Self::Memory => "memory",
            Self::Temperature => "temperature",
        }
    }

    /// Formats a value with its unit.
    pub fn shown(self, value: f64) -> String {
        match self {
            Self::Power => format!("{value:.0} W"),
            Self::Utilization => format!("{value:.0} %"),
            Self::Memory => format!("{:.1} GiB", value / 1024.0),
            Self::Temperature => format!("{value:.0} °C"),
        }
    }

    /// Returns the value of a GPU, if it reports it.
    pub fn of(self, gpu: &GpuSample) -> Option<f64> {
        let value = match self {
            Self::Power => gpu.power_w.value(),
            Self::Utilization => gpu.util_pct.value(),
            Self::Memory => gpu.mem_used_mib.value().map(|mib| mib as f64),
            Self::Temperature => gpu.temp_c.value(),
        };
        value.filter(|value| value.is_finite())
    }

    /// Returns the ends of the scale of a GPU.
    pub fn scale(self, gpu: &GpuSample) -> (f64, f64) {
        match self {
            Self::Power => (0.0, gpu.power_limit_w.value().unwrap_or(700.0)),
            Self::Utilization => (0.0, 100.0),
            Self::Memory => (0.0, gpu.mem_total_mib.value().map_or(81_920.0, |mib| mib as f64)),
            // An idle GPU in a cool room has about 30 °C; most throttle between 85 and 95 °C.
            Self::Temperature => (20.0, 95.0),
        }
    }

    /// Returns the value of a GPU as a share of its scale, 0 to 1.
    pub fn share(self, gpu: &GpuSample) -> Option<f64> {
        let (low, high) = self.scale(gpu);
        let share = (self.of(gpu)? - low) / (high - low);
        Some(if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 })
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
    pub fn of(value: GpuValue, nodes: &[NodeView]) -> Option<Self> {
        let gpus = || nodes.iter().filter(|view| is_current(view)).flat_map(|view| view.gpus());
        let mut values: Vec<f64> = gpus().filter_map(|gpu| value.of(gpu)).collect();
        let (lowest, highest) = (values.iter().copied().reduce(f64::min)?, values.iter().copied().reduce(f64::max)?);
        let median = middle(&mut values);
        let mut distances: Vec<f64> = values.iter().map(|value| (value - median).abs()).collect();
        let spread = gpus().map(|gpu| value.scale(gpu)).map(|(low, high)| high - low).fold(0.0, f64::max);
        Some(Self { value, lowest, median, highest, far: (5.0 * middle(&mut distances)).max(spread / 10.0) })
    }

    /// Returns whether a GPU is far from the others.
    pub fn is_outlier(&self, gpu: &GpuSample) -> bool {
        self.value.of(gpu).is_some_and(|value| (value - self.median).abs() > self.far)
    }
}

/// Returns whether the latest sample of a node is current: the node can be reached.
pub fn is_current(view: &NodeView) -> bool {
    !matches!(view.link, Link::Unreachable { .. })
}

/// Returns the median of values, which must not be empty.
fn middle(values: &mut [f64]) -> f64 {
    let at = values.len() / 2;
    *values.select_nth_unstable_by(at, f64::total_cmp).1
}
