//! Finds a loss that left its range and did not come back.
//!
//! The loss of a diffusion model is noisy: its noise level is drawn for each sample, and a batch may be a single clip. The rule therefore
//! compares medians and median absolute deviations (MAD), which a few losses do not move, as [`super::Spikes`] does: the lowest typical
//! loss so far with the last losses. A loss that decreases, a flat one, a spike that ends and the bump after a restart of the learning
//! rate are all below the ceiling.

use super::spikes::{Level, WARM_UP, median};

/// The number of last losses, all but one of which must be above the ceiling. With 8, 6 of 800 generated runs of 600 steps, with a batch of
/// one sample whose loss varies 500-fold, were reported; with 12, none was.
const LAST: usize = 12;
/// The number of losses whose median is a typical loss.
const TYPICAL: usize = 32;
/// The distance between the windows of typical losses.
const STRIDE: usize = 8;
/// The least rise, as a fraction of the typical loss. Warm restarts of a cosine schedule raise a loss by 10 to 30 %, and clips in another
/// order than a random one by up to two thirds. A model that diverges or predicts zero multiplies it.
const LEAST_RISE: f64 = 1.0;

/// A loss that left its range for good.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Diverged {
    /// The index of the first loss out of range.
    pub since: usize,
    /// The typical loss before.
    pub usual: f64,
    /// The median of the last losses.
    pub now: f64,
}

/// Returns since when the last losses are out of the range of those before; `None` if they are in it, or too few to say.
///
/// * `losses` — finite losses in the order of their steps.
/// * `known` — a typical loss of steps before these, if one was recorded.
/// * `times` — `log.spike`: the distance from the median in MADs; 0: a loss is never out of range.
pub(crate) fn diverged(losses: &[f64], known: Option<f64>, times: f64) -> Option<Diverged> {
    let split = losses.len().checked_sub(LAST).filter(|_| times > 0.0)?;
    let (before, last) = losses.split_at(split);
    let windows = (0..before.len()).step_by(STRIDE).map(|begin| &before[begin..before.len().min(begin + TYPICAL)]);
    let typical = windows.filter(|window| window.len() >= WARM_UP).filter_map(|window| {
        let Level { median, spike } = Level::of(window, times)?;
        Some((median, spike.max(median + LEAST_RISE * median.abs()).max(second_highest(window))))
    });
    let recorded = known.map(|usual| (usual, usual + LEAST_RISE * usual.abs()));
    let (usual, ceiling) = typical.chain(recorded).min_by(|(a, _), (b, _)| a.total_cmp(b))?;
    if last.iter().filter(|loss| **loss > ceiling).count() + 1 < LAST {
        return None;
    }
    let above = |at: usize| losses[at] > ceiling;
    let mut since = losses.len() - 1;
    // A single loss in the range is no return.
    while since > 0 && (above(since - 1) || since > 1 && above(since - 2)) {
        since -= 1;
    }
    since += usize::from(!above(since));
    Some(Diverged { since, usual, now: median(last.to_vec())? })
}

/// Returns the second highest loss, below which almost all losses are, however heavy the tail of their distribution is.
fn second_highest(losses: &[f64]) -> f64 {
    let add = |(first, second): (f64, f64), loss: f64| (first.max(loss), second.max(loss.min(first)));
    losses.iter().copied().fold((f64::NEG_INFINITY, f64::NEG_INFINITY), add).1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns numbers from 0 to 1 that look random, and are the same in each run.
    fn random(seed: u64) -> impl FnMut() -> f64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1u64 << 53) as f64
        }
    }

    /// Returns the losses of a run. The loss of a sample depends on its noise level, about exponentially from 5 % to 3 times the mean, and
    /// a step has the mean of `batch` samples.
    fn run(seed: u64, steps: usize, batch: usize, mean: impl Fn(usize) -> f64) -> Vec<f64> {
        let mut random = random(seed);
        let mut sample = move || 0.05 * 60f64.powf(random());
        let usual = (0..10_000).map(|_| sample()).sum::<f64>() / 10_000.0;
        (0..steps).map(|step| mean(step) * (0..batch).map(|_| sample()).sum::<f64>() / batch as f64 / usual).collect()
    }

    /// Returns the number of steps after which a run that is watched as it trains is reported.
    fn reported(losses: &[f64]) -> Option<usize> {
        // The number of logged steps that are kept.
        (1..=losses.len()).step_by(2).find(|end| diverged(&losses[end.saturating_sub(128)..*end], None, 10.0).is_some())
    }

    #[test]
    fn healthy_runs_are_never_reported() {
        let decreasing = |step: usize| 0.12 + 0.9 / (1.0 + step as f64 / 60.0);
        let warm_up = |step: usize| if step < 40 { 1.0 + 0.15 * step as f64 / 40.0 } else { decreasing(step - 40) };
        // A cosine schedule with restarts every 100 steps, each of which raises the loss by 30 %, and it falls within 60 steps.
        let restarts = |step: usize| decreasing(step) * (1.0 + 0.3 * (-((step % 100) as f64) / 20.0).exp());
        // A data set whose order is not random: the mean rises and falls by a quarter.
        let wave = |step: usize| 0.3 * (1.0 + 0.25 * (step as f64 / 40.0).sin());
        let flat = |_: usize| 0.3;
        // One batch in fifty is far off, and once three in a row.
        let spikes = |step: usize| if step % 50 == 49 || (300..303).contains(&step) { 20.0 } else { 0.3 };
        let curves: [&dyn Fn(usize) -> f64; 6] = [&decreasing, &warm_up, &restarts, &wave, &flat, &spikes];
        for (number, curve) in curves.iter().enumerate() {
            for batch in [1, 2, 8, 64, 512] {
                for seed in 0..6 {
                    let found = reported(&run(seed, 600, batch, curve));
                    assert_eq!(found, None, "curve {number}, batch {batch}, seed {seed}");
                }
            }
        }
    }

    #[test]
    fn a_loss_that_stays_high_is_reported_within_a_few_lines() {
        let jumps = |step: usize| if step < 200 { 0.5 } else { 14_291.0 };
        // The model predicts zero from step 200 on: the loss of a velocity with unit variance.
        let collapses = |step: usize| if step < 200 { 0.1 } else { 1.0 };
        // With two samples, a tenfold rise is within the noise.
        let jumps: (&dyn Fn(usize) -> f64, &[usize]) = (&jumps, &[1, 2, 8, 64, 512]);
        for (curve, batches) in [jumps, (&collapses, &[8, 64, 512])] {
            for (batch, seed) in batches.iter().flat_map(|batch| (0..10).map(move |seed| (*batch, seed))) {
                let found = reported(&run(seed, 320, batch, curve));
                assert!(found.is_some_and(|at| (209..240).contains(&at)), "batch {batch}, seed {seed}: {found:?}");
            }
        }
        let losses = run(1, 240, 8, jumps.0);
        let found = diverged(&losses, None, 10.0).unwrap();
        assert_eq!(found.since, 200);
        assert!((0.3..0.7).contains(&found.usual) && found.now > 9000.0, "{found:?}");
    }

    #[test]
    fn a_slow_rise_is_reported_and_a_return_ends_the_report() {
        let rises = |step: usize| if step < 100 { 0.2 } else { 0.2 * 1.02f64.powi(step as i32 - 100) };
        assert!(reported(&run(3, 400, 64, rises)).is_some());
        let mut losses = run(3, 200, 64, |step| if step < 100 { 0.2 } else { 5.0 });
        assert!(diverged(&losses, None, 10.0).is_some());
        losses.extend([0.2; 3]);
        assert_eq!(diverged(&losses, None, 10.0), None);
    }

    #[test]
    fn a_recorded_loss_is_the_reference_once_all_kept_losses_are_high() {
        let high = [14_000.0; 128];
        assert_eq!(diverged(&high, None, 10.0), None);
        let found = diverged(&high, Some(0.5), 10.0).unwrap();
        assert_eq!((found.since, found.usual, found.now), (0, 0.5, 14_000.0));
        assert_eq!(diverged(&[0.9; 128], Some(0.5), 10.0), None);
        assert_eq!(diverged(&high, Some(0.5), 0.0), None, "log.spike = 0 turns it off");
    }

    #[test]
    fn too_few_losses_say_nothing() {
        let rise = |before: usize| [vec![0.5; before], vec![9.0; LAST]].concat();
        assert_eq!(diverged(&rise(WARM_UP - 1), None, 10.0), None);
        assert!(diverged(&rise(WARM_UP), None, 10.0).is_some());
        assert_eq!(diverged(&[], None, 10.0), None);
    }
}
