//! GPU time and energy of a run.

use cluster::Reading;
use serde::{Deserialize, Serialize};
use std::ops::Add;

/// A pause between two samples that counts; over a longer one, the GPUs may have been free.
const LONGEST_S: f64 = 60.0;

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
    ///
    /// * `power_w` — the power of each GPU that the ranks use.
    pub fn count<'a>(&mut self, power_w: impl Iterator<Item = &'a Reading<f64>>, seconds: f64) {
        if !(0.0..=LONGEST_S).contains(&seconds) {
            return;
        }
        for reading in power_w {
            self.gpu_s += seconds;
            self.energy_j += seconds * reading.value().unwrap_or(0.0);
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::Absent;

    fn gpus(power_w: &[f64]) -> Vec<Reading<f64>> {
        power_w.iter().map(|power| Reading::Value(*power)).chain([Reading::Absent(Absent::NotAsked)]).collect()
    }

    #[test]
    fn usage_is_the_sum_over_the_gpus_of_the_ranks_and_leaves_out_long_pauses() {
        let mut usage = GpuUsage::default();
        usage.count(gpus(&[600.0, 400.0]).iter(), 5.0);
        assert_eq!(usage, GpuUsage { gpu_s: 15.0, energy_j: 5000.0 });
        usage.count(gpus(&[600.0]).iter(), 3600.0);
        usage.count(gpus(&[600.0]).iter(), -1.0);
        assert_eq!(usage.gpu_s, 15.0);
        usage.count(gpus(&[600.0, 400.0]).iter().skip(1).take(1), 10.0);
        assert_eq!(usage, GpuUsage { gpu_s: 25.0, energy_j: 9000.0 });
        let long = GpuUsage { gpu_s: 44_640.0, energy_j: 2.556e7 };
        assert_eq!(
            (long.in_words().as_str(), usage.in_words().as_str()),
            ("12.4 GPU hours, 7.10 kWh", "0.007 GPU hours, 0.003 kWh")
        );
    }
}
