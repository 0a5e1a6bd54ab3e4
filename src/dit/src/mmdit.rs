//! MMDiT, the network of Open-Sora 2 and of Flux: text and video have their own weights in the first blocks and share them in the others.
//!
//! The streams are `[video, text]`. The first block with one stream joins them, text first, and the last one splits them again. All blocks
//! share the activated sum of the embeddings of the timestep, of the pooled text and of the scale of guidance.
//!
//! Shapes are written as in the crate's documentation, with N for the video tokens of a sample.
//!
//! Sources: Open-Sora `opensora/models/mmdit/model.py` and `layers.py`; Esser et al. 2024, "Scaling Rectified Flow Transformers for
//! High-Resolution Image Synthesis".

pub mod block;
pub mod conditions;
pub mod embed;
pub mod flow;
pub mod head;
pub mod positions;
pub mod sampler;

use crate::family::{Family, Inputs, Tokens};
use crate::mixers::Mixers;
use crate::parallel::TensorParallel;
use crate::params::{Slots, UnitParams};
use block::Block;
use embed::Embedder;
use head::Head;
use kernels::OnGpu;
use positions::JoinedOrder;
use recipe::families::mmdit::{Mmdit as Sizes, param_specs};
use recipe::{FsdpUnit, Shape};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use tch::{Device, Tensor};
use torch_error::TorchError;

/// The name of the pooled text `[B, pooled]` among the conditions of a batch. Every batch has it.
pub const POOLED: &str = "pooled";
/// The name of the given frames among the conditions of a batch: `[B, T, 1 + C, h, w]`, a mask with 1 for given pixels, then the given
/// latent, which is 0 elsewhere. A batch without it has no given frames.
pub const GIVEN: &str = "given";
/// The name of the scale of guidance `[B]` among the conditions of a batch, for networks that embed it.
pub const GUIDANCE: &str = "guidance";

/// The eps of every norm.
const EPS: f64 = 1e-6;

/// An MMDiT at its sizes.
#[derive(Debug)]
pub struct Mmdit {
    sizes: Sizes,
    embedder: Embedder,
    block: Block,
    head: Head,
}

impl Mmdit {
    /// Finds the parameters of a network by name.
    pub fn new(sizes: &Sizes) -> Self {
        let specs = param_specs(sizes);
        let slots = |unit| Slots::of(&specs, unit);
        let root = slots(FsdpUnit::Root);
        Mmdit {
            embedder: Embedder::new(sizes, &root),
            head: Head::new(sizes, &root),
            block: Block::new(sizes, |number| slots(FsdpUnit::Block(number))),
            sizes: sizes.clone(),
        }
    }

    /// Selects libtorch's operators or the CUDA kernels on GPUs, for norms, gates and rotary embeddings.
    #[must_use]
    pub fn on_gpu(mut self, on_gpu: OnGpu) -> Self {
        self.block.on_gpu(on_gpu);
        self
    }
}

/// The constant tensors for one shape of a batch.
#[derive(Debug)]
pub struct Grid {
    /// Text tokens of a sample.
    pub(crate) text_tokens: i64,
    /// Frames, rows and columns of video tokens.
    pub(crate) video: [i64; 3],
    /// The rotary factors of text and video, `[L, F/2]`.
    pub(crate) rotary: Tensor,
    /// The orders of a joined stream by the number of ranks of a TP group.
    orders: RefCell<HashMap<i64, Rc<JoinedOrder>>>,
}

impl Grid {
    /// Returns the number of video tokens of a sample.
    pub(crate) fn video_tokens(&self) -> i64 {
        self.video.iter().product()
    }

    /// Returns the order of the tokens of a joined stream that `ranks` ranks gather.
    pub(crate) fn joined_order(&self, ranks: i64) -> Rc<JoinedOrder> {
        let mut orders = self.orders.borrow_mut();
        let order = || Rc::new(JoinedOrder::new([self.text_tokens, self.video_tokens()], ranks, &self.rotary));
        orders.entry(ranks).or_insert_with(order).clone()
    }
}

impl Family for Mmdit {
    type Grid = Grid;

    fn num_blocks(&self) -> usize {
        self.sizes.num_blocks()
    }

    fn grid(&self, shape: Shape, device: Device) -> Grid {
        Grid {
            text_tokens: self.sizes.text_tokens as i64,
            video: self.sizes.grid(shape).map(|len| len as i64),
            rotary: positions::rotary(&self.sizes, shape).to_device(device),
            orders: RefCell::default(),
        }
    }

    fn embed(&self, _: &Grid, root: &UnitParams, inputs: &Inputs) -> Tokens {
        self.embedder.forward(root, inputs)
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
        self.block.forward(grid, number, params, tokens, mixers, tp)
    }

    fn head(&self, grid: &Grid, root: &UnitParams, tokens: &Tokens) -> Tensor {
        self.head.forward(grid, root, &tokens.streams[0], &tokens.shared[0])
    }
}

/// Returns the frames, rows and columns of a patch.
fn patch(sizes: &Sizes) -> [i64; 3] {
    [1, sizes.patch_size as i64, sizes.patch_size as i64]
}
