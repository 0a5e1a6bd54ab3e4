//! Batches of precomputed latents in an order that is exact over epochs, ranks and resumes.
//!
//! Samples are numbered from the start of the run. Number `k` is item `k % n` of the permutation of epoch `k / n`, so
//! every item is seen once per epoch whatever the batch size, and the position is one integer.

use crate::seeds::{Purpose, permutation};
use rundir::Failure;
use std::ops::Range;
use tch::{Kind, Tensor};
use weights::{Dtype, Header, Index, LATENT, TEXT};

/// A data set, and the order of its current epoch.
#[derive(Debug)]
pub struct Data {
    index: Index,
    fingerprint: String,
    seed: u64,
    latent_scale: f64,
    epoch: Option<(u64, Vec<usize>)>,
}

/// Latents and texts of some samples, fp32.
#[derive(Debug)]
pub struct Batch {
    /// `[B, T, C, height, width]`
    pub latent: Tensor,
    /// `[B, text_len, text_dim]`
    pub text: Tensor,
}

impl Data {
    /// Opens and checks the data set.
    ///
    /// # Errors
    /// Names the first item that does not fit the model.
    pub fn open(recipe: &recipe::Recipe) -> Result<Self, Failure> {
        let index = Index::open(&recipe.data.index)?;
        let info = index.check(&recipe.model)?;
        Ok(Data {
            index,
            fingerprint: info.fingerprint,
            seed: recipe.train.seed,
            latent_scale: recipe.model.latent_scale,
            epoch: None,
        })
    }

    /// Identifies the data set; two data sets of the same items have the same.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The epoch of a sample, and how many samples of that epoch come before it.
    pub fn position(&self, sample: u64) -> (u64, u64) {
        let n = self.index.samples.len() as u64;
        (sample / n, sample % n)
    }

    /// Reads the samples with these numbers.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn batch(&mut self, numbers: Range<u64>) -> Result<Batch, Failure> {
        let (mut latents, mut texts) = (Vec::new(), Vec::new());
        for number in numbers {
            let item = self.item(number);
            let sample = &self.index.samples[item];
            latents.push(read(&sample.latent, LATENT)? * self.latent_scale);
            let chunks: Vec<Tensor> = sample.text.iter().map(|path| read(path, TEXT)).collect::<Result<_, _>>()?;
            texts.push(Tensor::cat(&chunks, 0));
        }
        Ok(Batch { latent: Tensor::stack(&latents, 0), text: Tensor::stack(&texts, 0) })
    }

    /// The item that sample `number` is.
    fn item(&mut self, number: u64) -> usize {
        let (epoch, position) = self.position(number);
        let n = self.index.samples.len();
        let seed = self.seed;
        let order = match &mut self.epoch {
            Some((e, order)) if *e == epoch => order,
            other => &mut other.insert((epoch, permutation(seed, Purpose::Order, epoch, n))).1,
        };
        order[position as usize]
    }
}

/// Reads one tensor of a safetensors file as fp32.
fn read(path: &camino::Utf8Path, name: &str) -> Result<Tensor, Failure> {
    let header = Header::read(path)?;
    let tensor = header.tensor(name)?;
    let bytes = header.read_tensor(name)?;
    let shape: Vec<i64> = tensor.shape.iter().map(|&d| d as i64).collect();
    Ok(Tensor::from_data_size(&bytes, &shape, kind(tensor.dtype)).to_kind(Kind::Float))
}

/// libtorch's name of a dtype.
pub fn kind(dtype: Dtype) -> Kind {
    match dtype {
        Dtype::F64 => Kind::Double,
        Dtype::F32 => Kind::Float,
        Dtype::F16 => Kind::Half,
        Dtype::BF16 => Kind::BFloat16,
        Dtype::I64 => Kind::Int64,
        Dtype::I32 => Kind::Int,
        Dtype::U8 => Kind::Uint8,
        Dtype::Bool => Kind::Bool,
        _ => Kind::Int8,
    }
}
