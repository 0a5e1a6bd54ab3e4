//! Draws random tensors that depend only on a seed, a purpose and a counter, like the numbers of [`dataset::seeds`].

pub use dataset::seeds::{Purpose, bits, happens, permutation, uniform};
use std::sync::{Mutex, PoisonError};
use tch::{Device, Kind, Tensor};

/// Returns standard normal numbers, fp32.
pub fn normal(seed: u64, purpose: Purpose, counter: u64, shape: &[i64]) -> Tensor {
    drawn(seed, purpose, counter, || Tensor::randn(shape, (Kind::Float, Device::Cpu)))
}

/// Returns numbers that are uniform within ±`bound`, fp32.
pub fn uniform_tensor(seed: u64, purpose: Purpose, counter: u64, shape: &[i64], bound: f64) -> Tensor {
    drawn(seed, purpose, counter, || Tensor::empty(shape, (Kind::Float, Device::Cpu)).uniform_(-bound, bound))
}

/// Seeds libtorch's global generator, the only one that tch exposes, and draws from it. No other code of the trainer
/// uses the generator. The lock keeps other threads, such as ranks in a test, from drawing in between.
fn drawn(seed: u64, purpose: Purpose, counter: u64, draw: impl FnOnce() -> Tensor) -> Tensor {
    static GENERATOR: Mutex<()> = Mutex::new(());
    let _locked = GENERATOR.lock().unwrap_or_else(PoisonError::into_inner);
    tch::manual_seed((bits(seed, purpose, counter) >> 1) as i64);
    draw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_keys_draw_equal_numbers_and_other_keys_different_ones() {
        let draw = |counter| normal(1, Purpose::Noise, counter, &[64]);
        assert_eq!(draw(5), draw(5));
        assert_ne!(draw(5), draw(6));
    }
}
