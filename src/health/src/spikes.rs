//! Detects a loss that is far above the losses before it.

use std::collections::VecDeque;

/// The number of losses of which the median is taken.
pub(crate) const WINDOW: usize = 64;
/// The number of losses before the first detection.
pub(crate) const WARM_UP: usize = 16;
/// The minimum spread, as a fraction of the median: smaller differences on a flat curve are noise.
const LEAST_SPREAD: f64 = 0.02;

/// The median of some losses, and the level above which the next loss is a spike.
pub(crate) struct Level {
    pub median: f64,
    pub spike: f64,
}

impl Level {
    /// Returns the level of a spike after at least [`WARM_UP`] losses: several median absolute deviations above the
    /// median. A single spike among the losses hardly changes these two.
    pub fn of(losses: &[f64], times: f64) -> Option<Self> {
        let median = median(losses.to_vec()).filter(|_| losses.len() >= WARM_UP)?;
        let spread = self::median(losses.iter().map(|loss| (loss - median).abs()).collect())?;
        Some(Self { median, spike: median + times * spread.max(median.abs() * LEAST_SPREAD) })
    }
}

/// Detects spikes in the losses of a run, which are added in the order of the steps.
#[derive(Debug, Default)]
pub struct Spikes {
    losses: VecDeque<f64>,
    /// Whether the last loss was a spike: a plateau after a jump is one spike.
    in_spike: bool,
}

impl Spikes {
    /// Adds a finite loss. Returns the median before it if the loss begins a spike. `times` is the distance from the median in
    /// median absolute deviations; 0: nothing is a spike.
    pub fn push(&mut self, loss: f64, times: f64) -> Option<f64> {
        let level = (times > 0.0).then(|| Level::of(self.losses.make_contiguous(), times)).flatten();
        let level = level.filter(|level| loss > level.spike);
        self.losses.push_back(loss);
        if self.losses.len() > WINDOW {
            self.losses.pop_front();
        }
        let was_in_spike = std::mem::replace(&mut self.in_spike, level.is_some());
        level.filter(|_| !was_in_spike).map(|level| level.median)
    }
}

pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a falling loss with noise.
    fn usual(step: usize) -> f64 {
        1.0 / (1.0 + step as f64 * 0.01) + 0.05 * ((step * 7919) % 13) as f64 / 13.0
    }

    #[test]
    fn a_spike_is_reported_once_and_noise_is_not_reported() {
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

    #[test]
    fn a_small_rise_of_a_flat_curve_is_not_a_spike() {
        let flat = [1.0; WINDOW];
        assert_eq!(Level::of(&flat, 10.0).map(|level| (level.median, level.spike)), Some((1.0, 1.2)));
    }
}
