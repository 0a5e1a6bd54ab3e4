//! Random numbers that depend on their purpose and never on the rank that draws them.
//!
//! Every draw has a key: the run's seed, its purpose, and a counter such as the number of the sample since the start of
//! the run. So a run draws the same numbers on any number of ranks, and after a resume.

use xxhash_rust::xxh3::xxh3_64;

/// The purpose of a random number.
#[derive(Debug, Clone, Copy)]
pub enum Purpose {
    /// The initial values of a parameter.
    Init,
    /// The order of samples in an epoch.
    Order,
    /// The noise added to a latent.
    Noise,
    /// The timesteps of a batch.
    Timestep,
    /// Whether a sample's text is dropped.
    TextDropout,
    /// A latent drawn from its mean and variance.
    Latent,
    /// The inputs of adapters that are dropped for a sample of a step.
    AdapterDropout = 16,
    /// The order of the shapes of an epoch's steps.
    StepOrder = 24,
    /// The order of the shapes of a step's micro-batches.
    MicroBatchOrder,
    /// The items of a data set that are used once more in an epoch than others.
    PartOfPass,
    /// Whether the images of a global batch are dropped.
    ImageDropout = 32,
    /// Whether the mask of a sample is dropped.
    MaskDropout,
    /// The latent of a first image, drawn from its mean and variance.
    Image,
    /// The latent of a masked video, drawn from its mean and variance.
    Masked,
    /// The mask of a clip that is encoded.
    EncodeMask = 40,
    /// The noise level of an image or a masked video that is encoded.
    EncodeNoiseLevel,
    /// The noise of an image or a masked video that is encoded.
    EncodeNoise,
    /// The noise that a sample starts from.
    SampleStart = 48,
    /// The noise of a sampling step.
    SampleStep,
    /// The latent of the first image, drawn from its mean and variance.
    SampleImage,
    /// The noise of the validation loss.
    Validation,
}

/// Returns 64 well-mixed bits for a key.
pub fn bits(seed: u64, purpose: Purpose, counter: u64) -> u64 {
    let mut key = [0; 24];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..16].copy_from_slice(&(purpose as u64).to_le_bytes());
    key[16..].copy_from_slice(&counter.to_le_bytes());
    xxh3_64(&key)
}

/// Returns a number in `0.0..1.0` for a key.
pub fn uniform(seed: u64, purpose: Purpose, counter: u64) -> f64 {
    (bits(seed, purpose, counter) >> 11) as f64 / (1u64 << 53) as f64
}

/// Returns `true` with this `probability` for a key, and never if the probability is 0.
pub fn happens(seed: u64, purpose: Purpose, counter: u64, probability: f64) -> bool {
    uniform(seed, purpose, counter) < probability
}

/// Returns a permutation of `0..n` for a key (Fisher-Yates).
pub fn permutation(seed: u64, purpose: Purpose, counter: u64, n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    shuffle(seed, purpose, counter, &mut order);
    order
}

/// Shuffles a list for a key: element `i` of the result is element `permutation(…)[i]` of the list.
pub fn shuffle<T>(seed: u64, purpose: Purpose, counter: u64, list: &mut [T]) {
    let key = bits(seed, purpose, counter);
    for i in (1..list.len()).rev() {
        list.swap(i, (uniform(key, purpose, i as u64) * (i + 1) as f64) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permutation_holds_every_number_once_and_differs_between_epochs() {
        for n in [1, 2, 11, 100] {
            let mut order = permutation(7, Purpose::Order, 0, n);
            order.sort_unstable();
            assert!(order.into_iter().eq(0..n));
        }
        assert_ne!(permutation(7, Purpose::Order, 0, 100), permutation(7, Purpose::Order, 1, 100));
    }

    #[test]
    fn equal_keys_draw_equal_bits_and_other_keys_different_ones() {
        assert_eq!(bits(1, Purpose::Noise, 5), bits(1, Purpose::Noise, 5));
        assert_ne!(bits(1, Purpose::Noise, 5), bits(1, Purpose::Timestep, 5));
    }

    #[test]
    fn uniform_numbers_fill_the_unit_interval() {
        let mean = (0..10_000).map(|i| uniform(3, Purpose::TextDropout, i)).sum::<f64>() / 1e4;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
    }

    #[test]
    fn probability_a_quarter_is_true_in_a_quarter_of_draws_and_0_never() {
        let count = |share| (0..10_000).filter(|i| happens(3, Purpose::TextDropout, *i, share)).count();
        assert!((2300..2700).contains(&count(0.25)), "{}", count(0.25));
        assert_eq!(count(0.0), 0);
    }
}
