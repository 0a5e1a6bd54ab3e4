//! Standard normal numbers that depend only on a key and their place, and have the same bits on every CPU and GPU.
//!
//! Philox4x32-10 makes random words, and the inverse of the cumulative distribution turns them into numbers; `cuda/normal.h` has the sources.

use crate::ffi;
use std::ffi::c_int;
use tch::{Device, Tensor};

/// Draws normal numbers of a shape, fp32, on a device. Number `n` of a key has the same bits in every shape and on every device.
///
/// # Panics
/// Memory is short, or the GPU does not exist or has failed. tch's own functions panic too.
pub fn normal(key: u64, shape: &[i64], device: Device) -> Tensor {
    let gpu = match device {
        Device::Cuda(gpu) => gpu as c_int,
        _ => -1,
    };
    let mut out = std::ptr::null_mut();
    // SAFETY: the shape outlives the call, which writes one new tensor on success.
    let status = unsafe { ffi::vidtui_normal(key, shape.as_ptr(), shape.len(), gpu, &mut out) };
    ffi::expect_done(status, "draw normal numbers");
    // SAFETY: the call above created the tensor and transfers ownership to us.
    unsafe { Tensor::from_ptr(out) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Cuda, Kind};

    fn bits(numbers: &Tensor) -> Vec<u32> {
        let numbers: Vec<f32> = Vec::try_from(numbers.flatten(0, -1).to_device(Device::Cpu)).unwrap();
        numbers.into_iter().map(f32::to_bits).collect()
    }

    #[test]
    fn the_numbers_of_a_key_never_change() {
        let numbers = normal(0x0123_4567_89ab_cdef, &[6], Device::Cpu);
        assert_eq!(bits(&numbers), [0xbf45_b47e, 0xbf1b_953c, 0x3fb3_4362, 0x3d5b_e7d3, 0xbf6b_7178, 0x3eed_a905]);
    }

    /// `tests/fused` records the same hash for code that is compiled without AVX2.
    #[test]
    fn many_numbers_of_a_key_have_the_recorded_hash() {
        // FNV-1a, of words instead of bytes.
        let hash = |hash: u64, bits: u32| (hash ^ u64::from(bits)).wrapping_mul(0x0100_0000_01b3);
        let numbers = bits(&normal(7, &[100_000], Device::Cpu));
        assert_eq!(numbers.into_iter().fold(0xcbf2_9ce4_8422_2325, hash), 0x5538_d430_96e3_404d);
    }

    #[test]
    fn a_number_depends_on_its_key_and_place_alone() {
        // Chunks of 32,768 numbers are drawn by different threads, and pieces of 256 together.
        let long = bits(&normal(7, &[3, 30_011], Device::Cpu));
        for len in [1, 2, 5, 255, 257, 32_769] {
            assert_eq!(bits(&normal(7, &[len], Device::Cpu)), long[..len as usize], "{len}");
        }
        assert_ne!(bits(&normal(8, &[4], Device::Cpu)), long[..4]);
        assert_eq!(normal(7, &[0, 3], Device::Cpu).size(), [0, 3]);
    }

    #[test]
    fn the_numbers_have_the_moments_and_tails_of_the_normal_distribution() {
        let numbers = normal(1, &[4_000_000], Device::Cpu).to_kind(Kind::Double);
        let mean = |x: &Tensor| x.mean(Kind::Double).double_value(&[]);
        // Bounds of five standard errors.
        for (power, wanted, deviation) in [(1, 0.0, 1.0), (2, 1.0, 1.42), (3, 0.0, 3.88), (4, 3.0, 9.8)] {
            let found = mean(&numbers.pow_tensor_scalar(power));
            assert!((found - wanted).abs() < 5.0 * deviation / 2000.0, "moment {power}: {found}");
        }
        for (limit, wanted) in [(1.0, 0.317_310_5), (2.0, 0.045_500_3), (3.0, 0.002_699_8), (4.5, 6.795e-6)] {
            let found = mean(&numbers.abs().gt(limit).to_kind(Kind::Double));
            assert!((found - wanted).abs() < 5.0 * (wanted / 4e6f64).sqrt(), "beyond {limit}: {found}");
        }
        let neighbours = mean(&(numbers.narrow(0, 0, 3_999_999) * numbers.narrow(0, 1, 3_999_999)));
        assert!(neighbours.abs() < 5.0 / 2000.0, "correlation of neighbours: {neighbours}");
    }

    #[test]
    fn a_gpu_draws_the_numbers_of_the_cpu() {
        if !Cuda::is_available() {
            println!("skipped: this machine has no GPU");
            return;
        }
        for len in [1, 6, 1024, 1_000_003] {
            let [cpu, gpu] = [Device::Cpu, Device::Cuda(0)].map(|device| bits(&normal(7, &[len], device)));
            assert!(cpu == gpu, "{len}");
        }
    }
}
