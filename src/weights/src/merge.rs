//! Merges a LoRA adapter into a weight while it is written: W + scale · up · down.

use crate::cast::{decode, encode, fits_f32, values};
use crate::tensor_spans::{Files, StoredTensor};
use crate::{Dtype, Error, finite};

/// The product of two LoRA factors that is added to a weight.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Merge {
    /// The down projection, `[rank, in]`.
    pub down: StoredTensor,
    /// The up projection, `[out, rank]`.
    pub up: StoredTensor,
    /// The factor of the product.
    pub scale: f64,
}

/// The factors of a [`Merge`] in memory, and the position in the weight.
pub(crate) struct Adding {
    /// `[rank, in]`.
    down: Vec<f32>,
    /// `[out, rank]`, scaled.
    up: Vec<f32>,
    columns: usize,
    at: usize,
    sums: Vec<f32>,
    /// The number of values of the factors that are not finite.
    pub not_finite: u64,
}

impl Merge {
    /// Reads the two factors into memory. They are small compared with the weight.
    pub fn read(&self, files: &mut Files) -> Result<Adding, Error> {
        let mut not_finite = 0;
        let mut numbers = |tensor: &StoredTensor, factor: f64| -> Result<Vec<f32>, Error> {
            let bytes = files.read_all(tensor)?;
            not_finite += finite::count(tensor.dtype, &bytes);
            Ok(values(tensor.dtype, &bytes).map(|value| (value * factor) as f32).collect())
        };
        let down = numbers(&self.down, 1.0)?;
        let up = numbers(&self.up, self.scale)?;
        let columns = self.down.shape[1];
        Ok(Adding { down, up, columns, at: 0, sums: Vec::new(), not_finite })
    }
}

impl Adding {
    /// Adds the product to the next elements of the weight in float32, and appends the sums to `out` as type `to`.
    ///
    /// * `raw` — the next elements, of type `from`.
    ///
    /// # Errors
    /// Returns the first number that is finite but does not fit the type.
    pub fn add_to(&mut self, from: Dtype, to: Dtype, raw: &[u8], out: &mut Vec<u8>) -> Result<(), f64> {
        self.sums.resize(raw.len() / from.size(), 0.0);
        decode(from, raw, &mut self.sums);
        fits_f32(from, raw, &self.sums)?;
        let rank = self.down.len() / self.columns;
        let mut rest = &mut self.sums[..];
        while !rest.is_empty() {
            // A row of the weight, or the part of the row that `raw` contains.
            let (row, column) = (self.at / self.columns, self.at % self.columns);
            let (part, after) = rest.split_at_mut(rest.len().min(self.columns - column));
            for (k, factor) in self.up[row * rank..][..rank].iter().enumerate() {
                let line = &self.down[k * self.columns + column..][..part.len()];
                part.iter_mut().zip(line).for_each(|(sum, value)| *sum += factor * value);
            }
            self.at += part.len();
            rest = after;
        }
        encode(to, &self.sums, out)
    }
}
