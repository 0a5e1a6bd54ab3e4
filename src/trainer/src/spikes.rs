//! Notices a loss that is far above those before it.

use std::collections::VecDeque;

/// Steps that the usual is taken from.
const WINDOW: usize = 64;
/// Steps before which nothing is usual yet.
const FEWEST: usize = 16;

/// The losses of the last steps.
///
/// The usual is their median, and the scatter is the median distance from it: a spike among them moves neither.
#[derive(Debug, Default)]
pub struct Spikes {
    losses: VecDeque<f64>,
    /// Whether the last loss was one: a plateau after a jump is one spike.
    in_spike: bool,
}

impl Spikes {
    /// Takes in a finite loss; returns the median before it when it begins a spike, being `times` the scatter above it.
    pub fn see(&mut self, loss: f64, times: f64) -> Option<f64> {
        let usual = median(self.losses.iter().copied());
        let scatter = usual.and_then(|usual| median(self.losses.iter().map(|l| (l - usual).abs())));
        let spike = match (usual, scatter) {
            // Losses that all but agree still differ by a thousandth without meaning anything.
            (Some(usual), Some(scatter)) if times > 0.0 && self.losses.len() >= FEWEST => {
                loss > usual + times * scatter.max(usual.abs() * 1e-3)
            }
            _ => false,
        };
        self.losses.push_back(loss);
        if self.losses.len() > WINDOW {
            self.losses.pop_front();
        }
        let begins = spike && !self.in_spike;
        self.in_spike = spike;
        usual.filter(|_| begins)
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

    /// A falling loss with some scatter.
    fn usual(step: usize) -> f64 {
        1.0 / (1.0 + step as f64 * 0.01) + 0.05 * ((step * 7919) % 13) as f64 / 13.0
    }

    #[test]
    fn a_spike_is_told_once_and_ordinary_scatter_never() {
        let mut spikes = Spikes::default();
        let mut told = Vec::new();
        for step in 0..300 {
            let loss = if (100..103).contains(&step) || step == 200 { 5.0 } else { usual(step) };
            if spikes.see(loss, 10.0).is_some() {
                told.push(step);
            }
        }
        assert_eq!(told, [100, 200]);
    }

    #[test]
    fn the_first_steps_and_a_rule_of_zero_tell_nothing() {
        let mut spikes = Spikes::default();
        assert!((0..FEWEST).all(|step| spikes.see(if step == 10 { 9.0 } else { 1.0 }, 10.0).is_none()));
        assert_eq!(spikes.see(9.0, 0.0), None);
    }
}
