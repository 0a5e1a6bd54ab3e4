//! Draws random tensors that depend only on a seed, a purpose and a counter, like the numbers of [`dataset::seeds`].

pub use dataset::seeds::{Purpose, bits, happens, permutation, uniform};
use std::sync::{Mutex, PoisonError};
use tch::{Device, Kind, Tensor};

/// Returns standard normal numbers, fp32, with the same bits on every device.
pub fn normal(seed: u64, purpose: Purpose, counter: u64, shape: &[i64], device: Device) -> Tensor {
    kernels::normal::normal(bits(seed, purpose, counter), shape, device)
}

/// Returns numbers that are uniform within ±`bound`, fp32, on the CPU.
///
/// Seeds libtorch's global generator, the only one that tch exposes, and draws from it. No other code of the trainer uses the generator.
/// The lock keeps other threads, such as ranks in a test, from drawing in between.
pub fn uniform_tensor(seed: u64, purpose: Purpose, counter: u64, shape: &[i64], bound: f64) -> Tensor {
    static GENERATOR: Mutex<()> = Mutex::new(());
    let _locked = GENERATOR.lock().unwrap_or_else(PoisonError::into_inner);
    tch::manual_seed((bits(seed, purpose, counter) >> 1) as i64);
    Tensor::empty(shape, (Kind::Float, Device::Cpu)).uniform_(-bound, bound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_keys_draw_equal_numbers_and_other_keys_different_ones() {
        let draw = |counter| normal(1, Purpose::Noise, counter, &[64], Device::Cpu);
        assert_eq!(draw(5), draw(5));
        assert_ne!(draw(5), draw(6));
    }
}
