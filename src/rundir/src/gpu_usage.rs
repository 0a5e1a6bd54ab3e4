//! GPU time and energy of a run.

use crate::{GpuColumns, NodeSample, RunDir, Tail};
use camino::Utf8Path;
use cluster::Reading;
use serde::{Deserialize, Serialize};
use std::ops::Add;

/// A pause between two samples that counts; over a longer one, the GPUs may have been free.
const LONGEST_S: f64 = 60.0;
/// The bytes at the end of a file that have its last line.
const BYTES: u64 = 64 * 1024;

/// The time and the energy of the GPUs that the ranks of a run use, since its first sample.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuUsage {
    /// Seconds times GPUs.
    pub gpu_s: f64,
    /// The energy in joules, of GPUs that report their power.
    pub energy_j: f64,
}

impl GpuUsage {
    /// Counts the time between two samples, at the power of the later one.
    pub fn count(&mut self, gpus: &GpuColumns, seconds: f64) {
        if !(0.0..=LONGEST_S).contains(&seconds) {
            return;
        }
        let power_w: f64 = gpus.of_ranks(&gpus.power_w).filter_map(Reading::value).sum();
        self.gpu_s += seconds * gpus.of_ranks(&gpus.power_w).count() as f64;
        self.energy_j += seconds * power_w;
    }

    /// Returns the usage to a tenth, for a line of a file.
    pub fn rounded(&self) -> Self {
        let tenth = |number: f64| (number * 10.0).round() / 10.0;
        Self { gpu_s: tenth(self.gpu_s), energy_j: tenth(self.energy_j) }
    }

    /// Returns the GPU hours.
    pub fn gpu_hours(&self) -> f64 {
        self.gpu_s / 3600.0
    }

    /// Returns the energy in kWh; `None` if no GPU has reported its power.
    pub fn kwh(&self) -> Option<f64> {
        (self.energy_j > 0.0).then_some(self.energy_j / 3.6e6)
    }

    /// Describes the usage: `12.4 GPU hours, 7.10 kWh`.
    pub fn in_words(&self) -> String {
        let energy = self.kwh().map_or(String::new(), |kwh| format!(", {} kWh", digits(kwh)));
        format!("{} GPU hours{energy}", digits(self.gpu_hours()))
    }
}

impl Add for GpuUsage {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { gpu_s: self.gpu_s + other.gpu_s, energy_j: self.energy_j + other.energy_j }
    }
}

/// Returns a number with three significant digits, at most three decimals.
fn digits(number: f64) -> String {
    let decimals = if number >= 100.0 {
        0
    } else if number >= 10.0 {
        1
    } else if number >= 1.0 {
        2
    } else {
        3
    };
    format!("{number:.decimals$}")
}

/// Returns the usage in the last sample of a node's file; `None` if there is none.
pub fn last_usage(samples: &Utf8Path) -> Option<GpuUsage> {
    let (_, last) = Tail::<NodeSample>::near_end_with(samples, BYTES, BYTES, |_| true).ok()?;
    last.last()?.usage
}

impl RunDir {
    /// Returns the usage of all nodes; `None` if none of them has GPUs. Reads only the ends of files.
    pub fn gpu_usage(&self) -> Option<GpuUsage> {
        let nodes = self.nodes().read_dir_utf8().ok()?.flatten();
        let usages = nodes.filter_map(|node| last_usage(&node.path().join("gpu.jsonl")));
        usages.reduce(Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LineAppender;
    use crate::fixtures::temp;
    use cluster::Absent;

    fn gpus(power_w: &[f64]) -> GpuColumns {
        GpuColumns {
            index: (0..power_w.len() as u32 + 1).collect(),
            power_w: power_w
                .iter()
                .map(|power| Reading::Value(*power))
                .chain([Reading::Absent(Absent::NotAsked)])
                .collect(),
            ..GpuColumns::default()
        }
    }

    #[test]
    fn usage_is_the_sum_over_the_gpus_of_the_ranks_and_leaves_out_long_pauses() {
        let mut usage = GpuUsage::default();
        usage.count(&gpus(&[600.0, 400.0]), 5.0);
        assert_eq!(usage, GpuUsage { gpu_s: 15.0, energy_j: 5000.0 });
        usage.count(&gpus(&[600.0]), 3600.0);
        usage.count(&gpus(&[600.0]), -1.0);
        assert_eq!(usage.gpu_s, 15.0);
        usage.count(&GpuColumns { used: vec![1], ..gpus(&[600.0, 400.0]) }, 10.0);
        assert_eq!(usage, GpuUsage { gpu_s: 25.0, energy_j: 9000.0 });
        let long = GpuUsage { gpu_s: 44_640.0, energy_j: 2.556e7 };
        assert_eq!(
            (long.in_words().as_str(), usage.in_words().as_str()),
            ("12.4 GPU hours, 7.10 kWh", "0.007 GPU hours, 0.003 kWh")
        );
    }

    #[test]
    fn the_usage_of_a_run_is_the_sum_of_the_last_lines_of_its_nodes() {
        let (_keep, run) = temp();
        assert_eq!(run.gpu_usage(), None);
        for (node, totals) in [("a", [5.0, 20.0]), ("b", [7.0, 30.0])] {
            let folder = run.nodes().join(node);
            std::fs::create_dir_all(&folder).unwrap();
            let mut file = LineAppender::open(&folder.join("gpu.jsonl")).unwrap();
            for gpu_s in totals {
                let usage = serde_json::json!({"gpu_s": gpu_s, "energy_j": 1.0});
                file.append(&serde_json::json!({"v": 1, "attempt": 1, "t": 1.0, "usage": usage})).unwrap();
            }
        }
        assert_eq!(run.gpu_usage(), Some(GpuUsage { gpu_s: 50.0, energy_j: 2.0 }));
    }
}
