//! The output head: final norms, projection to patches, and unpatchifying to a latent.

use crate::params::{SlotGrad, Slots, UnitParams};
use crate::vjp::{leaf, vjp};
use recipe::{Model, Unit};
use tch::{TchError, Tensor};

/// Turns the last block's video tokens into the network's output.
#[derive(Debug)]
pub struct Head {
    eps: f64,
    text_len: i64,
    frames: i64,
    rows: i64,
    columns: i64,
    patch: i64,
    patch_t: i64,
    channels: i64,
    norm: usize,
    adaln_linear: usize,
    adaln_norm: usize,
    proj: usize,
}

/// The gradients of the head.
#[derive(Debug)]
pub struct HeadGrads {
    /// The gradients of the head's parameters.
    pub params: Vec<SlotGrad>,
    /// `[B, L, D]`
    pub x_bld: Tensor,
    /// `[B, E]`
    pub act_be: Tensor,
}

impl Head {
    /// Finds the root's parameters by name.
    pub fn new(model: &Model) -> Self {
        let slots = Slots::of(model, Unit::Root);
        Head {
            eps: model.norm_eps,
            text_len: model.text_tokens() as i64,
            frames: model.token_frames() as i64,
            rows: (model.latent_height / model.patch_size) as i64,
            columns: (model.latent_width / model.patch_size) as i64,
            patch: model.patch_size as i64,
            patch_t: model.patch_size_t as i64,
            channels: model.out_channels as i64,
            norm: slots.affine("final.norm"),
            adaln_linear: slots.affine("final.adaln.linear"),
            adaln_norm: slots.affine("final.adaln.norm"),
            proj: slots.affine("final.proj"),
        }
    }

    /// Returns the network's output `[B, T, C, height, width]`.
    pub fn forward(&self, root: &UnitParams, x_bld: &Tensor, act_be: &Tensor) -> Tensor {
        let video = x_bld.narrow(1, self.text_len, x_bld.size()[1] - self.text_len);
        let normed = root.affine(self.norm).layer_norm(&video, self.eps);
        let modulation = root.affine(self.adaln_linear).linear(act_be).unsqueeze(1).chunk(2, -1);
        let normed = root.affine(self.adaln_norm).layer_norm(&normed, self.eps);
        let modulated = modulation[0].addcmul(&normed, &(&modulation[1] + 1.0));
        let patches = root.affine(self.proj).linear(&modulated);
        let (p, pt, batch) = (self.patch, self.patch_t, x_bld.size()[0]);
        patches
            .view([batch, self.frames, self.rows, self.columns, self.channels, pt, p, p].as_slice())
            .permute([0, 1, 5, 4, 2, 6, 3, 7])
            .reshape([batch, self.frames * pt, self.channels, self.rows * p, self.columns * p])
    }

    /// Runs the head with a graph, lets `objective` turn the output into a scalar, and returns its gradients.
    ///
    /// # Errors
    /// libtorch's backward pass failed.
    pub fn backward(
        &self,
        root: &UnitParams,
        x_bld: &Tensor,
        act_be: &Tensor,
        objective: impl FnOnce(&Tensor) -> Tensor,
    ) -> Result<HeadGrads, TchError> {
        let (x, act) = (leaf(x_bld), leaf(act_be));
        let affines = [self.norm, self.adaln_linear, self.adaln_norm, self.proj].map(|slot| root.affine(slot));
        let (slots, trained): (Vec<usize>, Vec<&Tensor>) = affines.iter().flat_map(|a| a.trained()).unzip();
        let scalar = objective(&self.forward(root, &x, &act));
        let one = scalar.ones_like();
        let inputs: Vec<&Tensor> = [&x, &act].into_iter().chain(trained).collect();
        let mut grads = vjp(&[(&scalar, &one)], &inputs)?.into_iter();
        let (x_bld, act_be) = (
            grads.next().expect("the gradient of the tokens"),
            grads.next().expect("the gradient of the time embedding"),
        );
        Ok(HeadGrads { params: slots.into_iter().zip(grads).collect(), x_bld, act_be })
    }
}
