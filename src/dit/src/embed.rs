//! The input embedding: latents, text and timestep become tokens and a time embedding.

use crate::params::{SlotGrad, Slots, UnitParams};
use crate::vjp::{leaf, vjp};
use recipe::{Model, Positions, Unit};
use tch::{Device, Kind, TchError, Tensor};

/// The offset of the first image in CogVideoX 1.5 image-to-video, the same in training and sampling.
const OFS: f64 = 2.0;

/// The inputs of the network, in the compute dtype except the timestep.
#[derive(Debug)]
pub struct Inputs {
    /// `[B, T, C, height, width]`
    pub latent: Tensor,
    /// `[B, text_len, text_dim]`
    pub text: Tensor,
    /// `[B]`, integers 0..1000
    pub timestep: Tensor,
}

/// Tokens `[B, L, D]` and the activated time embedding `[B, E]` that modulates every block.
#[derive(Debug)]
pub struct Embedded {
    /// `[B, L, D]`, text first
    pub x_bld: Tensor,
    /// `SiLU(time embedding)`, `[B, E]`
    pub act_be: Tensor,
}

/// Embeds patches, text and time.
#[derive(Debug)]
pub struct Embedder {
    patch: i64,
    patch_t: i64,
    dim: i64,
    video: usize,
    text: usize,
    time1: usize,
    time2: usize,
    ofs: Option<[usize; 2]>,
    /// `[1]` or `[B]`
    offset: Tensor,
    learned: Option<usize>,
    fixed: Option<Tensor>,
}

impl Embedder {
    /// Finds the root's parameters by name and prepares the position table.
    pub fn new(model: &Model) -> Self {
        let slots = Slots::of(model, Unit::Root);
        // If the number of frames differs from that of the learned table, diffusers adds the sine and cosine table
        // instead.
        let learned = model.positions == Positions::Learned && !model.ignore_learned_positions;
        let same_frames = model.base()[0] == model.latent_frames;
        Embedder {
            patch: model.patch_size as i64,
            patch_t: model.patch_size_t as i64,
            dim: model.dim() as i64,
            video: slots.affine("patch_embed.video"),
            text: slots.affine("patch_embed.text"),
            time1: slots.affine("time_embed.linear1"),
            time2: slots.affine("time_embed.linear2"),
            ofs: model.ofs_embedding.then(|| ["ofs_embed.linear1", "ofs_embed.linear2"].map(|name| slots.affine(name))),
            offset: Tensor::full([1], OFS, (Kind::Float, Device::Cpu)),
            learned: (learned && same_frames)
                .then(|| slots.find("patch_embed.positions").expect("learned positions are in the parameter table")),
            fixed: (model.positions == Positions::SinCos || (learned && !same_frames))
                .then(|| crate::positions::sin_cos(model)),
        }
    }

    /// Sets the offset of the first image, `[1]` or `[B]`, for models that embed it.
    pub fn set_offset(&mut self, offset: &Tensor) {
        self.offset = offset.shallow_clone();
    }

    /// Moves the position table and the offset to a device.
    pub fn move_to(&mut self, device: Device) {
        self.offset = self.offset.to_device(device);
        self.fixed = self.fixed.take().map(|table| table.to_device(device));
    }

    /// Embeds the inputs; builds a graph if the parameters or the latent require gradients.
    pub fn forward(&self, root: &UnitParams, inputs: &Inputs) -> Embedded {
        let latent = inputs.latent.size();
        let (batch, frames) = (latent[0], latent[1] / self.patch_t);
        let video = root.affine(self.video);
        // A strided convolution whose stride is its kernel, written as one matrix product over patches.
        let (rows, columns) = (latent[3] / self.patch, latent[4] / self.patch);
        let patches = inputs
            .latent
            .view([batch, frames, self.patch_t, latent[2], rows, self.patch, columns, self.patch].as_slice())
            .permute([0, 1, 4, 6, 3, 2, 5, 7].as_slice())
            .reshape([batch, frames * rows * columns, latent[2] * self.patch_t * self.patch * self.patch]);
        let video_tokens = patches.linear(&video.weight.view([self.dim, -1]), Some(video.bias));
        let mut x_bld = Tensor::cat(&[root.affine(self.text).linear(&inputs.text), video_tokens], 1);
        if let Some(positions) = self.learned.map(|slot| root.tensor(slot)).or(self.fixed.as_ref()) {
            x_bld += positions.to_kind(inputs.latent.kind());
        }
        let embed = |[first, second]: [usize; 2], number: &Tensor| {
            let width = root.affine(first).weight.size()[1];
            let waves = sinusoid(number, width).to_kind(inputs.latent.kind());
            root.affine(second).linear(&root.affine(first).linear(&waves).silu())
        };
        let time = embed([self.time1, self.time2], &inputs.timestep);
        let time = match self.ofs {
            Some(ofs) => time + embed(ofs, &self.offset),
            None => time,
        };
        Embedded { x_bld, act_be: time.silu() }
    }

    /// Recomputes the embedding with a graph and returns the gradients of its parameters and, when the latent requires
    /// one, of the latent.
    ///
    /// # Errors
    /// libtorch's backward pass failed.
    pub fn backward(
        &self,
        root: &UnitParams,
        inputs: &Inputs,
        grad: &Embedded,
    ) -> Result<(Vec<SlotGrad>, Option<Tensor>), TchError> {
        let affines: Vec<_> = [self.video, self.text, self.time1, self.time2]
            .into_iter()
            .chain(self.ofs.into_iter().flatten())
            .map(|slot| root.affine(slot))
            .collect();
        let (slots, mut wanted): (Vec<usize>, Vec<&Tensor>) = affines.iter().flat_map(|a| a.trained()).unzip();
        let latent = inputs.latent.requires_grad().then(|| leaf(&inputs.latent));
        if let Some(latent) = &latent {
            wanted.push(latent);
        }
        if wanted.is_empty() {
            return Ok((Vec::new(), None));
        }
        let again = Inputs {
            latent: latent.as_ref().unwrap_or(&inputs.latent).shallow_clone(),
            text: inputs.text.shallow_clone(),
            timestep: inputs.timestep.shallow_clone(),
        };
        let out = self.forward(root, &again);
        let mut outputs = vec![];
        for (value, cotangent) in [(&out.x_bld, &grad.x_bld), (&out.act_be, &grad.act_be)] {
            if value.requires_grad() {
                outputs.push((value, cotangent));
            }
        }
        let mut grads = vjp(&outputs, &wanted)?;
        let latent_grad = latent.is_some().then(|| grads.pop()).flatten();
        Ok((slots.into_iter().zip(grads).collect(), latent_grad))
    }
}

/// Returns the sinusoidal embedding `[B, width]` of timesteps `[B]`, fp32, cosines first.
///
/// Source: reference `dit.py` and diffusers `Timesteps(flip_sin_to_cos=True, downscale_freq_shift=0)`.
pub fn sinusoid(timestep: &Tensor, width: i64) -> Tensor {
    let half = width / 2;
    let exponent = Tensor::arange(half, (Kind::Float, timestep.device())) * (-10_000f64.ln()) / half as f64;
    let angles = timestep.to_kind(Kind::Float).outer(&exponent.exp());
    Tensor::cat(&[angles.cos(), angles.sin()], -1)
}
