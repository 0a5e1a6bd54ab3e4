//! Embeddings of the prompts: rank 0 encodes each distinct text once, and the other ranks receive them.

use crate::exchange::agree_on;
use crate::step::compute_kind;
use crate::torch_failure::failed;
use c10d::{Group, Reduce};
use encoders::T5Encoder;
use recipe::{Encoders, Model, SampleSpec, Task};
use rundir::Failure;
use std::collections::BTreeSet;
use tch::{Device, Kind, Tensor};

/// The number of texts that are encoded together.
const BATCH: usize = 4;

/// The embeddings of some texts, fp32 on the CPU.
#[derive(Debug)]
pub struct Texts {
    texts: Vec<String>,
    /// `[N, text_len, text_dim]`
    embeddings: Tensor,
}

impl Texts {
    /// Encodes the texts of samples, and frees the encoder. A collective.
    ///
    /// # Errors
    /// The encoder cannot be read or does not belong to the model, or a peer is lost.
    pub fn encode(
        encoders: &Encoders,
        model: &Model,
        specs: &[SampleSpec],
        world: &Group,
        device: Device,
    ) -> Result<Self, Failure> {
        let texts: BTreeSet<&String> = specs.iter().flat_map(|spec| spec.texts.iter().chain(&spec.negatives)).collect();
        let texts: Vec<String> = texts.into_iter().cloned().collect();
        let encoded = match world.rank() {
            0 => encode(encoders, model, &texts, device),
            _ => {
                let shape = [texts.len(), model.text_len, model.text_dim].map(|size| size as i64);
                Ok(Tensor::zeros(shape, (Kind::Float, Device::Cpu)))
            }
        };
        let embeddings = agree_on(world, encoded)?;
        // The other ranks contribute zeros, so this sum is a broadcast.
        world.all_reduce(&embeddings, Reduce::Sum).and_then(|sum| sum.wait()).map_err(failed)?;
        Ok(Texts { texts, embeddings })
    }

    /// Creates the embeddings of two texts, `[1, text_len, text_dim]` each.
    #[cfg(test)]
    pub fn of(mut pairs: [(String, Tensor); 2]) -> Self {
        pairs.sort_by(|a, b| a.0.cmp(&b.0));
        let embeddings = Tensor::cat(&pairs.each_ref().map(|(_, embedding)| embedding), 0);
        Texts { texts: pairs.map(|(text, _)| text).into(), embeddings }
    }

    /// Returns the concatenated embeddings of some texts, `[1, L, D]`.
    pub fn joined(&self, texts: &[String]) -> Tensor {
        let of = |text: &String| {
            let row = self.texts.binary_search(text).expect("every text of a sample was encoded");
            self.embeddings.get(row as i64)
        };
        Tensor::cat(&texts.iter().map(of).collect::<Vec<_>>(), 0).unsqueeze(0)
    }
}

fn encode(encoders: &Encoders, model: &Model, texts: &[String], device: Device) -> Result<Tensor, Failure> {
    dataset::check_encoders(encoders, model, Task::Sample)?;
    let tokenizer = dataset::open_tokenizer(encoders)?;
    let folder = encoders.folder.join("text_encoder");
    let encoder = T5Encoder::open(&folder, compute_kind(encoders.dtype), device)?;
    let embed = |batch: &[String]| {
        let ids: Vec<i64> = batch.iter().flat_map(|text| tokenizer.encode(text, model.text_len)).collect();
        let ids = Tensor::from_slice(&ids).view([batch.len() as i64, model.text_len as i64]);
        Ok(encoder.embed(&ids)?.to_kind(Kind::Float).to_device(Device::Cpu))
    };
    let batches = texts.chunks(BATCH).map(embed).collect::<Result<Vec<_>, Failure>>()?;
    Ok(Tensor::cat(&batches, 0))
}
