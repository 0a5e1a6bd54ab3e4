//! Dropout of the inputs of LoRA adapters.
//!
//! Whether an element is dropped depends only on the key of its sample, the layer, and the element's row and column. So
//! recomputation, a run on another mesh and a resumed run drop the same elements.

use std::sync::Arc;
use tch::{Device, Kind, Tensor};

/// Drops elements of the inputs of adapters in a forward pass of training.
#[derive(Debug, Clone)]
pub struct Dropout {
    probability: f64,
    /// A random key for each sample of the batch.
    keys: Arc<[u64]>,
    /// The rank in its TP group.
    tp_rank: i64,
    unit: u64,
}

/// The number of mask elements that are computed at a time, `[CPU, GPU]`: on the CPU, their temporary integers must fit in
/// the cache; on a GPU, they must take little memory.
const AT_ONCE: [i64; 2] = [1 << 17, 1 << 24];

impl Dropout {
    /// Drops elements with a probability, for samples with these keys.
    pub fn new(probability: f64, keys: impl Iterator<Item = u64>, tp_rank: usize) -> Self {
        Dropout { probability, keys: keys.collect(), tp_rank: tp_rank as i64, unit: 0 }
    }

    /// Returns the dropout of a unit of the network.
    pub fn of_unit(&self, unit: usize) -> Self {
        Dropout { unit: unit as u64, ..self.clone() }
    }

    /// Returns `x` `[B, …, D]` with zeros for dropped elements, the others divided by 1 - p, as PEFT does.
    ///
    /// * `slot` — the number of the layer in its unit.
    /// * `parts` — the number of TP ranks over which the columns of the input are split; TP rank i holds part i.
    pub(crate) fn apply(&self, x: &Tensor, slot: usize, parts: i64) -> Tensor {
        let size = x.size();
        let width = size[size.len() - 1];
        let rows = size[1..size.len() - 1].iter().product();
        let first = if parts > 1 { self.tp_rank * width } else { 0 };
        let of_sample = |key: &u64| {
            self.dropped(mixed(key ^ mixed((self.unit << 32) | slot as u64)), rows, first, width, x.device())
        };
        let dropped = Tensor::stack(&self.keys.iter().map(of_sample).collect::<Vec<_>>(), 0).view(&size[..]);
        x.masked_fill(&dropped, 0.0) / (1.0 - self.probability)
    }

    /// Returns which elements of `[rows, width]` are dropped, for columns from `first` on.
    fn dropped(&self, key: u64, rows: i64, first: i64, width: i64, device: Device) -> Tensor {
        let whole = |from, len| Tensor::arange_start(from, from + len, (Kind::Int64, device));
        let (low, high) = ((key & LOW) as i64, (key >> 32) as i64);
        let columns = whole(first, width) * STEP;
        // A key for each row.
        let rows_keys = mix(mix(whole(0, rows).bitwise_xor(low)).bitwise_xor(high)).unsqueeze(1);
        let limit = (self.probability * (LOW + 1) as f64) as i64;
        let at_once = AT_ONCE[usize::from(device != Device::Cpu)];
        let parts = rows_keys.split((at_once / width).max(1), 0);
        let dropped = parts.iter().map(|keys| mix((keys + &columns).bitwise_and(LOW as i64)).lt(limit));
        Tensor::cat(&dropped.collect::<Vec<_>>(), 0)
    }
}

/// The low 32 bits. The numbers stay below 2^32 and the multipliers below 2^31, so that products fit an i64.
const LOW: u64 = 0xffff_ffff;
/// The distance of the counters of adjacent columns: an odd number without pattern in its bits.
const STEP: i64 = 0x1e37_79b9;

/// Mixes the bits of 32-bit numbers. Source: C. Wellons, "hash-prospector", the two-round function with bias 0.107.
fn mix(mut x: Tensor) -> Tensor {
    for (shift, multiplier) in [(16, 0x21f0_aaad_i64), (15, 0x735a_2d97)] {
        x = x.bitwise_xor_tensor(&x.bitwise_right_shift_tensor_scalar(shift));
        x = (x * multiplier).bitwise_and(LOW as i64);
    }
    x.bitwise_xor_tensor(&x.bitwise_right_shift_tensor_scalar(15))
}

/// Mixes the bits of a number. Source: S. Vigna, SplitMix64.
fn mixed(key: u64) -> u64 {
    let key = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let key = (key ^ (key >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let key = (key ^ (key >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    key ^ (key >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ones(rows: i64, width: i64) -> Tensor {
        Tensor::ones([2, rows, width], (Kind::Float, Device::Cpu))
    }

    fn dropout(unit: usize, keys: [u64; 2], tp_rank: usize) -> Dropout {
        Dropout::new(0.3, keys.into_iter(), tp_rank).of_unit(unit)
    }

    fn mean(x: &Tensor) -> f64 {
        x.mean(Kind::Double).double_value(&[])
    }

    #[test]
    fn the_dropped_share_is_the_probability_and_the_mean_stays() {
        let y = dropout(1, [5, 6], 0).apply(&ones(700, 320), 3, 1);
        let dropped = mean(&y.eq(0.0).to_kind(Kind::Double));
        // 448,000 draws: a standard deviation of 7e-4.
        assert!((dropped - 0.3).abs() < 3e-3, "{dropped}");
        assert!((y.max().double_value(&[]) - 1.0 / 0.7).abs() < 1e-6);
        // The share of each row and each column is close to the probability too.
        for dim in [1i64, 2] {
            let shares = y.eq(0.0).to_kind(Kind::Double).mean_dim(dim, false, Kind::Double);
            assert!((shares - 0.3).abs().max().double_value(&[]) < 0.15);
        }
    }

    #[test]
    fn draws_of_other_samples_layers_rows_and_columns_are_independent() {
        let signs = |unit, key, slot| {
            let y = dropout(unit, [key, key + 1], 0).apply(&ones(512, 256), slot, 1);
            y.eq(0.0).to_kind(Kind::Double) - 0.3
        };
        let one = signs(1, 5, 3);
        let (rows, columns) = (one.narrow(1, 1, 511), one.narrow(2, 1, 255));
        let pairs = [
            ("samples", one.get(0) * one.get(1)),
            ("units", &one * signs(2, 5, 3)),
            ("slots", &one * signs(1, 5, 4)),
            ("keys", &one * signs(1, 1005, 3)),
            ("rows", rows * one.narrow(1, 0, 511)),
            ("columns", columns * one.narrow(2, 0, 255)),
        ];
        for (what, products) in pairs {
            // The products of 131,072 independent draws have the mean 0 and a standard deviation of 0.21.
            assert!(mean(&products).abs() < 4.0 * 0.21 / 131_072f64.sqrt(), "{what}: {}", mean(&products));
        }
    }

    #[test]
    fn ranks_that_hold_columns_drop_those_of_the_whole() {
        let x = Tensor::arange(2 * 6 * 8, (Kind::Float, Device::Cpu)).view([2, 6, 8]);
        let whole = dropout(0, [7, 8], 0).apply(&x, 2, 1);
        let parts = [0, 1].map(|rank| dropout(0, [7, 8], rank).apply(&x.narrow(2, 4 * rank as i64, 4), 2, 2));
        assert_eq!(Tensor::cat(&parts, 2), whole);
        // A replicated input is the same on each rank.
        assert_eq!(dropout(0, [7, 8], 1).apply(&x, 2, 1), whole);
        // The modulation has one vector per sample.
        let vectors = x.narrow(1, 0, 1).squeeze_dim(1);
        assert_eq!(dropout(0, [7, 8], 0).apply(&vectors, 2, 1), whole.narrow(1, 0, 1).squeeze_dim(1));
    }
}
