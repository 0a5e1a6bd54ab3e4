//! Generates the initial values of tensors that the source does not have: the tensors of new TTT layers.
//!
//! Each value depends only on the seed, the tensor's name and the element's index, so that conversions are reproducible.

use recipe::ParamInit;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The standard deviation of [`ParamInit::Normal`].
const DEVIATION: f64 = 0.02;
/// The value of [`ParamInit::Gate`].
const GATE: f32 = 0.1;

/// The initial values of a tensor, with random access.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct InitialValues {
    init: ParamInit,
    key: u64,
}

impl InitialValues {
    /// Returns the values of the tensor `name`; `None` for an init that depends on the model's shape.
    pub fn new(init: ParamInit, seed: u64, name: &str) -> Option<Self> {
        let known = !matches!(init, ParamInit::Positions | ParamInit::Xavier);
        known.then(|| Self { init, key: xxh3_64_with_seed(name.as_bytes(), seed) })
    }

    /// Describes the distribution of the values.
    pub fn words(init: ParamInit) -> String {
        match init {
            ParamInit::Zeros => "zeros".into(),
            ParamInit::Ones => "ones".into(),
            ParamInit::Gate => format!("{GATE}"),
            ParamInit::Normal => format!("normal, std {DEVIATION}"),
            ParamInit::Gaussian { rank } => format!("normal, std 1/{rank}"),
            ParamInit::Linear { fan_in } => format!("uniform within ±1/√{fan_in}"),
            ParamInit::Xavier => "Xavier uniform".into(),
            ParamInit::Positions => "position table".into(),
        }
    }

    /// Returns the value of the element at `index`.
    pub fn value(&self, index: u64) -> f32 {
        match self.init {
            ParamInit::Ones => 1.0,
            ParamInit::Gate => GATE,
            ParamInit::Normal => (normal(self.key, index) * DEVIATION) as f32,
            ParamInit::Gaussian { rank } => (normal(self.key, index) / rank as f64) as f32,
            ParamInit::Linear { fan_in } => ((2.0 * unit(self.key, index) - 1.0) / (fan_in as f64).sqrt()) as f32,
            ParamInit::Zeros | ParamInit::Xavier | ParamInit::Positions => 0.0,
        }
    }
}

/// Returns a number in `0.0..1.0`: the `index`-th output of SplitMix64 with the seed `key`.
fn unit(key: u64, index: u64) -> f64 {
    let mut z = key.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

/// Returns a standard normal number by the Box-Muller transform. Two neighbouring indices share a pair of uniform numbers.
fn normal(key: u64, index: u64) -> f64 {
    let first = index & !1;
    let radius = (-2.0 * (1.0 - unit(key, first)).ln()).sqrt();
    let angle = std::f64::consts::TAU * unit(key, first + 1);
    radius * if index & 1 == 0 { angle.cos() } else { angle.sin() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(init: ParamInit) -> (f64, f64, f64) {
        let made = InitialValues::new(init, 7, "blocks.0.ttt.q.weight").unwrap();
        let values: Vec<f64> = (0..20_000).map(|n| f64::from(made.value(n))).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / values.len() as f64;
        (mean, variance.sqrt(), values.iter().fold(0.0, |most, v| v.abs().max(most)))
    }

    #[test]
    fn values_have_the_mean_and_deviation_of_their_init() {
        let (mean, deviation, most) = moments(ParamInit::Normal);
        assert!(mean.abs() < 5e-4 && (deviation - 0.02).abs() < 5e-4 && most < 0.12, "{mean} {deviation} {most}");
        let (mean, deviation, most) = moments(ParamInit::Linear { fan_in: 3072 });
        // The deviation of a uniform distribution within ±b is b/√3.
        let bound = 1.0 / 3072f64.sqrt();
        assert!(mean.abs() < 5e-4 && (deviation - bound / 3f64.sqrt()).abs() < 2e-4, "{mean} {deviation}");
        assert!(most <= bound && most > 0.999 * bound, "{most}");
        assert_eq!(moments(ParamInit::Gate).2, f64::from(0.1f32));
    }

    #[test]
    fn values_depend_on_seed_and_name() {
        let first = |seed, name| InitialValues::new(ParamInit::Normal, seed, name).unwrap().value(0);
        assert_eq!(first(1, "a"), first(1, "a"));
        assert_ne!(first(1, "a"), first(2, "a"));
        assert_ne!(first(1, "a"), first(1, "b"));
    }
}
