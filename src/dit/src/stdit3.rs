//! STDiT3, the network of Open-Sora 1.2: spatial and temporal blocks in turn, with one stream of video tokens.
//!
//! Every block attends to its tokens, along a frame or along time, and then to the text. The tokens of frames that the mask
//! [`FRAME_MASK`] names as clean are modulated as at timestep 0.
//!
//! [`RectifiedFlow`] is its objective, [`FlowSampler`] its sampler.
//!
//! Source: hpcaitech/Open-Sora v1.2.0, `opensora/models/stdit/stdit3.py`.

mod block;
mod embed;
mod flow;
mod head;
pub mod masks;
pub mod positions;
pub mod references;
mod sampler;

pub use flow::RectifiedFlow;
pub use sampler::{FlowSampler, Noisy};

use crate::family::{Family, Inputs, Tokens};
use crate::mixers::Mixers;
use crate::parallel::TensorParallel;
use crate::params::{Slots, UnitParams};
use block::Block;
use embed::Embedder;
use head::Head;
use recipe::families::stdit3::{BlockKind, Stdit3, param_specs};
use recipe::{FsdpUnit, Shape};
use tch::{Device, Tensor};
use torch_error::TorchError;

/// The condition of the frame rate of each sample, `[B]`; 120 for images.
pub const FPS: &str = "fps";
/// The condition of the rows of pixels of each sample, `[B]`.
pub const HEIGHT: &str = "height";
/// The condition of the columns of pixels of each sample, `[B]`.
pub const WIDTH: &str = "width";
/// The condition of the real tokens of a text, `[B, text tokens]`; 0 for padding. Without it, all tokens are real.
pub const TEXT_MASK: &str = "text_mask";
/// The condition of the frames with noise, `[B, T]`; 0 for clean frames. Without it, all frames have noise.
pub const FRAME_MASK: &str = "frame_mask";
/// The condition of the samples whose text is replaced by the empty text, `[B]`, as in training without a text and in guidance. The
/// tokens are those of the caption: the network was trained with its mask.
pub const NO_TEXT: &str = "no_text";

/// The epsilon of all norms.
const EPS: f64 = 1e-6;

/// STDiT3 at the sizes of one model.
#[derive(Debug)]
pub struct SpaceTime {
    model: Stdit3,
    embedder: Embedder,
    block: Block,
    head: Head,
}

impl SpaceTime {
    /// Finds the parameters of a model by name.
    pub fn new(model: &Stdit3) -> Self {
        let specs = param_specs(model);
        let root = Slots::of(&specs, FsdpUnit::Root);
        SpaceTime {
            embedder: Embedder::new(model, &root),
            block: Block::new(model, &Slots::of(&specs, FsdpUnit::Block(0))),
            head: Head::new(model, &root),
            model: model.clone(),
        }
    }
}

/// The constants for one shape of a batch.
#[derive(Debug)]
pub struct Grid {
    /// Frames, rows and columns of the latent.
    latent: [i64; 3],
    /// Frames, rows and columns of tokens.
    tokens: [i64; 3],
    /// Rotary factors of frames, `[frames, F/2]`, exact.
    rotary: Tensor,
    /// The same, with angles in bf16.
    rotary_bf16: Tensor,
}

impl Grid {
    /// Returns the number of tokens of a sample.
    fn len(&self) -> i64 {
        self.tokens.iter().product()
    }

    /// Returns the tokens of a frame.
    fn per_frame(&self) -> i64 {
        self.tokens[1] * self.tokens[2]
    }
}

/// The places of shared tensors.
mod shared {
    /// The modulation of noised frames, `[B, 6, D]`, to which each block adds its table; then that of clean frames.
    pub const MODULATION: usize = 0;
    /// The embedded text, `[B, text tokens, D]`.
    pub const TEXT: usize = 1;
    /// The real tokens of the text, `[B, text tokens]`.
    pub const TEXT_MASK: usize = 2;
    /// The embedded time, `[B, 1, D]`; with a frame mask `[B, 2, D]`, where the second is timestep 0.
    pub const TIME: usize = 3;
    /// Whether each token has noise, `[B, L, 1]`; only with a frame mask.
    pub const NOISED: usize = 4;
}

impl Family for SpaceTime {
    type Grid = Grid;

    fn num_blocks(&self) -> usize {
        self.model.num_blocks()
    }

    fn grid(&self, shape: Shape, device: Device) -> Grid {
        let whole = |[frames, rows, columns]: [usize; 3]| [frames as i64, rows as i64, columns as i64];
        let tokens = whole(self.model.tokens(shape));
        let [rotary, rotary_bf16] = positions::rotary(tokens[0], self.model.head_dim as i64);
        Grid {
            latent: whole([shape.frames, shape.height, shape.width]),
            tokens,
            rotary: rotary.to_device(device),
            rotary_bf16: rotary_bf16.to_device(device),
        }
    }

    /// Embeds latents, texts and timesteps. The conditions are [`FPS`], [`HEIGHT`] and [`WIDTH`], and may be [`TEXT_MASK`],
    /// [`FRAME_MASK`] and [`NO_TEXT`].
    ///
    /// # Panics
    /// A condition is missing.
    fn embed(&self, grid: &Grid, root: &UnitParams, inputs: &Inputs) -> Tokens {
        self.embedder.forward(grid, root, inputs)
    }

    fn block(
        &self,
        grid: &Grid,
        number: usize,
        params: &UnitParams,
        tokens: &Tokens,
        mixers: &Mixers,
        tp: &dyn TensorParallel,
    ) -> Result<Vec<Tensor>, TorchError> {
        let kind: BlockKind = self.model.kind(number);
        Ok(vec![self.block.forward(grid, kind, params, tokens, mixers, tp)?])
    }

    /// Returns the velocity, and after it a variance for each channel if the network learns it. Frames without noise have values that
    /// nothing uses.
    fn head(&self, grid: &Grid, root: &UnitParams, tokens: &Tokens) -> Tensor {
        self.head.forward(grid, root, tokens)
    }
}
