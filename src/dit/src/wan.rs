//! Wan 2.1 and 2.2: one kind of block, with one stream of video tokens that attends to itself, to the text and, in image-to-video of
//! Wan 2.1, to embeddings of an image.
//!
//! Blocks share three tensors: the time embedding `[B, G, D]` and the modulation `[B, G, 6·D]` that follows from it, both fp32, and the embedded
//! text followed by the embedded images, `[B, rows, D]`. G is the number of groups of tokens that have a timestep of their own: 1, the latent
//! frames, or all tokens. The tokens of a group are neighbours.
//!
//! Source: Wan Team 2025, "Wan: Open and Advanced Large-Scale Video Generative Models", and its code.

pub mod block;
pub mod conditions;
pub mod embed;
pub mod head;
mod modulation;
pub mod objective;
pub mod positions;
pub mod sampling;

use crate::family::{Family, Inputs, Tokens};
use crate::mixers::Mixers;
use crate::parallel::TensorParallel;
use crate::params::{Slots, UnitParams};
use block::Block;
use embed::Embedder;
use head::Head;
use recipe::families::wan::{WanModel, param_specs};
use recipe::{FsdpUnit, ParamSpec, Shape};
use tch::{Device, Tensor};
use torch_error::TorchError;

/// The condition with embeddings of images, `[B, rows, dim]`, those of both images of a first and last frame one after the other.
pub const IMAGE_EMBEDS: &str = "image_embeds";
/// The condition with a clean first latent frame, `[B, 1, C, height, width]`, which replaces that of the noised latent. The time of its tokens is 0.
pub const FIRST_FRAME: &str = "first_frame";

/// Wan at the sizes of one model.
#[derive(Debug)]
pub struct Wan {
    model: WanModel,
    embedder: Embedder,
    block: Block,
    head: Head,
}

impl Wan {
    /// Finds the parameters of a model by name.
    pub fn new(model: &WanModel) -> Self {
        let specs = param_specs(model);
        let root = Slots::of(&specs, FsdpUnit::Root);
        Wan {
            embedder: Embedder::new(model, &root),
            block: Block::new(model, &Slots::of(&specs, FsdpUnit::Block(0))),
            head: Head::new(model, &root),
            model: model.clone(),
        }
    }
}

/// The constant tensors for one shape of a batch.
#[derive(Debug)]
pub struct Grid {
    /// Frames, rows and columns of tokens.
    pub(crate) video: [i64; 3],
    /// Rotary factors, `[L, F/2]`.
    pub(crate) rotary: Tensor,
}

impl Grid {
    /// Returns the number of tokens.
    pub(crate) fn tokens(&self) -> i64 {
        self.video.iter().product()
    }
}

impl Family for Wan {
    type Grid = Grid;

    fn num_blocks(&self) -> usize {
        self.model.num_layers
    }

    fn patch_frames(&self) -> usize {
        self.model.patch_size[0]
    }

    fn grid(&self, shape: Shape, device: Device) -> Grid {
        let video = self.model.token_grid(shape).map(|count| count as i64);
        Grid { video, rotary: positions::rotary(self.model.head_dim as i64, video).to_device(device) }
    }

    fn embed(&self, grid: &Grid, root: &UnitParams, inputs: &Inputs) -> Tokens {
        self.embedder.forward(grid, root, inputs)
    }

    fn block(
        &self,
        grid: &Grid,
        _: usize,
        params: &UnitParams,
        tokens: &Tokens,
        mixers: &Mixers,
        tp: &dyn TensorParallel,
    ) -> Result<Vec<Tensor>, TorchError> {
        Ok(vec![self.block.forward(grid, params, tokens, mixers, tp)?])
    }

    fn head(&self, grid: &Grid, root: &UnitParams, tokens: &Tokens) -> Tensor {
        self.head.forward(grid, root, &tokens.streams[0], &tokens.shared[0])
    }
}

/// Returns the specs of one unit, in table order.
pub fn unit_specs(model: &WanModel, unit: FsdpUnit) -> Vec<ParamSpec> {
    param_specs(model).into_iter().filter(|spec| spec.unit == unit).collect()
}
