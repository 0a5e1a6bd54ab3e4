//! Detects a loss that is far above the losses before it.

use std::collections::VecDeque;

/// Number of steps of the median.
const WINDOW: usize = 64;
/// Number of steps before the first detection.
const WARM_UP: usize = 16;

/// Detects spikes in the losses of the last steps.
///
/// A spike is a loss that is several median absolute deviations above the median. Earlier spikes hardly change either
/// value.
#[derive(Debug, Default)]
pub struct Spikes {
    losses: VecDeque<f64>,
    /// Whether the last loss was a spike: a plateau after a jump is one spike.
    in_spike: bool,
}

impl Spikes {
    /// Adds a finite loss. If the loss begins a spike, that is, if it is more than `times` deviations above the median,
    /// returns that median.
    pub fn push(&mut self, loss: f64, times: f64) -> Option<f64> {
        let center = median(self.losses.iter().copied());
        let deviation = center.and_then(|center| median(self.losses.iter().map(|l| (l - center).abs())));
        let spike = match (center, deviation) {
            // Differences below a thousandth of the median are noise.
            (Some(center), Some(deviation)) if times > 0.0 && self.losses.len() >= WARM_UP => {
                loss > center + times * deviation.max(center.abs() * 1e-3)
            }
            _ => false,
        };
        self.losses.push_back(loss);
        if self.losses.len() > WINDOW {
            self.losses.pop_front();
        }
        let begins = spike && !self.in_spike;
        self.in_spike = spike;
        center.filter(|_| begins)
    }
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A falling loss with noise.
    fn usual(step: usize) -> f64 {
        1.0 / (1.0 + step as f64 * 0.01) + 0.05 * ((step * 7919) % 13) as f64 / 13.0
    }

    #[test]
    fn a_spike_is_reported_once_and_noise_never() {
        let mut spikes = Spikes::default();
        let mut found = Vec::new();
        for step in 0..300 {
            let loss = if (100..103).contains(&step) || step == 200 { 5.0 } else { usual(step) };
            if spikes.push(loss, 10.0).is_some() {
                found.push(step);
            }
        }
        assert_eq!(found, [100, 200]);
    }

    #[test]
    fn the_warm_up_and_a_threshold_of_zero_report_nothing() {
        let mut spikes = Spikes::default();
        assert!((0..WARM_UP).all(|step| spikes.push(if step == 10 { 9.0 } else { 1.0 }, 10.0).is_none()));
        assert_eq!(spikes.push(9.0, 0.0), None);
    }
}
