//! The trait of a family of networks: the functions that differ between CogVideoX and other diffusion transformers.
//!
//! A family has one root unit (embeddings and head) and blocks, which are numbered over all kinds of blocks. A block takes and
//! returns a list of tensors, the streams, and reads tensors that all blocks share. A kind of block is a branch in
//! [`Family::block`]:
//!
//! * CogVideoX has one stream (text, then video) and shares the time embedding.
//! * MMDiT (Open-Sora 2, Flux) has the streams of video and text in its first blocks and one joined stream in the others; the first block
//!   of the second kind joins them, and the last one splits them again. The blocks share the time embedding; the grid holds the rotary factors.
//! * STDiT3 (Open-Sora 1.2) and Wan have one stream and share the time embedding and the text, which every block attends to.
//!
//! [`crate::network::Network`] chains the gradients of streams and sums those of shared tensors over the blocks.

use crate::mixers::Mixers;
use crate::parallel::TensorParallel;
use crate::params::UnitParams;
use recipe::{ParamSpec, Shape};
use tch::{Device, Tensor};
use torch_error::TorchError;

/// A family of networks, at the sizes of one model.
pub trait Family {
    /// The constant tensors for one shape of a batch: rotary factors, segments, tables of positions.
    type Grid;

    /// Returns the number of blocks of all kinds.
    fn num_blocks(&self) -> usize;

    /// Returns the latent frames of a patch. The network takes whole patches.
    fn patch_frames(&self) -> usize {
        1
    }

    /// Returns `latent_frames` rounded up to whole patches.
    fn frames(&self, latent_frames: i64) -> i64 {
        (latent_frames as usize).next_multiple_of(self.patch_frames()) as i64
    }

    /// Computes the grid of a shape on a device. [`crate::network::Network`] calls this once for each shape.
    fn grid(&self, shape: Shape, device: Device) -> Self::Grid;

    /// Embeds a batch. Builds a graph if the parameters or the latent require gradients.
    fn embed(&self, grid: &Self::Grid, root: &UnitParams, inputs: &Inputs) -> Tokens;

    /// Applies a block and returns the streams after it. With TP the streams are a rank's part of the tokens
    /// ([`crate::parallel::own_tokens`]). The streams after the last block have the lengths of those that [`Family::embed`] returns.
    ///
    /// # Errors
    /// A collective of `tp` failed.
    fn block(
        &self,
        grid: &Self::Grid,
        number: usize,
        params: &UnitParams,
        tokens: &Tokens,
        mixers: &Mixers,
        tp: &dyn TensorParallel,
    ) -> Result<Vec<Tensor>, TorchError>;

    /// Returns the network's output `[B, T, C, height, width]`.
    fn head(&self, grid: &Self::Grid, root: &UnitParams, tokens: &Tokens) -> Tensor;

    /// Returns the first values of a tensor whose init is [`recipe::ParamInit::Positions`]. Most families have none.
    fn positions(&self, spec: &ParamSpec) -> Tensor {
        unreachable!("{} is no table of positions", spec.name)
    }
}

/// The tensors between two blocks.
#[derive(Debug)]
pub struct Tokens {
    /// The tensors that blocks change, `[B, tokens, width]`.
    pub streams: Vec<Tensor>,
    /// The tensors that all blocks and the head read. Those of a floating-point kind get gradients.
    pub shared: Vec<Tensor>,
}

/// A batch as the network takes it, in the compute dtype except the timestep.
#[derive(Debug)]
pub struct Inputs {
    /// The noised latent, `[B, T, C, height, width]`.
    pub latent: Tensor,
    /// `[B, text tokens, text_dim]`
    pub text: Tensor,
    /// `[B]`, integers or fractions, as the objective draws them; or `[B, G]` for families whose groups of tokens have their own.
    pub timestep: Tensor,
    /// Other inputs, which get no noise.
    pub conditions: Conditions,
}

/// Named tensors of a batch besides latent and text, in the order that the family expects. The family combines them
/// with the noised latent.
pub type Conditions = Vec<(&'static str, Tensor)>;

/// Returns a condition by its name.
pub fn condition<'a>(conditions: &'a Conditions, name: &str) -> Option<&'a Tensor> {
    conditions.iter().find(|(own, _)| *own == name).map(|(_, tensor)| tensor)
}

impl Inputs {
    /// Returns the latent frames, rows and columns of the batch.
    pub fn shape(&self) -> Shape {
        shape_of(&self.latent)
    }

    /// Returns a condition by its name.
    pub fn condition(&self, name: &str) -> Option<&Tensor> {
        condition(&self.conditions, name)
    }

    /// Applies `change` to every tensor, for example a copy to another device, and returns the new inputs.
    pub fn map(&self, change: impl Fn(&Tensor) -> Tensor) -> Inputs {
        Inputs {
            latent: change(&self.latent),
            text: change(&self.text),
            timestep: change(&self.timestep),
            conditions: self.conditions.iter().map(|(name, tensor)| (*name, change(tensor))).collect(),
        }
    }
}

/// Returns the frames, rows and columns of a latent `[B, T, C, height, width]`.
pub fn shape_of(latent: &Tensor) -> Shape {
    let size = latent.size();
    Shape { frames: size[1] as usize, height: size[3] as usize, width: size[4] as usize }
}
