//! CogVideoX with and without TTT layers: one kind of block, with one stream of text and video tokens.

pub mod block;
pub mod embed;
pub mod head;
pub mod positions;
pub mod segments;
pub mod ttt;

use crate::block::ActivationCheckpointing;
use crate::family::{Family, Inputs, Tokens};
use crate::mixers::Mixers;
use crate::network::Network;
use crate::parallel::TensorParallel;
use crate::params::{Slots, UnitParams, unit_specs};
use block::Block;
use embed::Embedder;
use head::Head;
use recipe::{FsdpUnit, Fused, Layer, Model, ParamSpec, Positions, Shape, TttScan};
use segments::{ScanOrder, Segments};
use tch::{Device, Kind, Tensor};
use torch_error::TorchError;

/// CogVideoX at the sizes of one model.
#[derive(Debug)]
pub struct CogVideoX {
    model: Model,
    embedder: Embedder,
    block: Block,
    head: Head,
    /// Rotary factors that the caller sets for every shape; `None`: computed for each shape.
    rotary: Option<Tensor>,
    /// The offset (`ofs`) that the caller sets; `None`: [`embed::OFS`].
    offset: Option<Tensor>,
}

impl CogVideoX {
    /// Finds the parameters of a model by name. `scan_group` is the number of mini-batches between the states that a TTT layer saves.
    pub fn new(model: &Model, scan_group: usize) -> Self {
        CogVideoX {
            embedder: Embedder::new(model),
            block: Block::new(model, scan_group),
            head: Head::new(model),
            rotary: None,
            offset: None,
            model: model.clone(),
        }
    }

    /// Selects libtorch's operators or the CUDA kernels on GPUs: `scan` for the scan of TTT layers, `fused` for norms, gates
    /// and rotary embeddings.
    #[must_use]
    pub fn on_gpu(mut self, scan: TttScan, fused: Fused) -> Self {
        self.block.on_gpu(scan, fused);
        self
    }
}

/// Returns whether this build has the CUDA kernel for the model's TTT scan and GPU number `gpu` can run it.
pub fn has_scan_kernel(model: &Model, gpu: usize) -> bool {
    kernels::ttt::supports(
        model.cogvideox().layer == Layer::TttMlp,
        model.head_dim as i64,
        model.cogvideox().ttt_mini_batch as i64,
        gpu,
    )
}

/// Returns whether this build has the CUDA kernels for norms, gates and rotary embeddings, and GPU number `gpu` can run them for the model
/// in this dtype.
pub fn has_fused_kernels(model: &Model, kind: Kind, gpu: usize) -> bool {
    kernels::fused::supports(model.dim() as i64, model.head_dim as i64, kind, gpu)
}

/// The constant tensors for one shape of a batch.
#[derive(Debug)]
pub struct Grid {
    /// Text tokens of a sample.
    pub(crate) text_tokens: i64,
    /// Frames, rows and columns of video tokens.
    pub(crate) video: [i64; 3],
    /// The sine and cosine table that is added to the tokens, `[1, L, D]`.
    pub(crate) added: Option<Tensor>,
    /// Whether the learned position table has this shape and is added to the tokens.
    pub(crate) has_learned: bool,
    /// Rotary factors of the attention in one segment, `[S, F/2]`.
    pub(crate) rotary: Option<Tensor>,
    pub(crate) segments: Option<Segments>,
    pub(crate) scan: Option<Scan>,
    /// The offset of the first image, `[1]` or `[B]`, for models that embed it.
    pub(crate) offset: Tensor,
}

/// The sequence that a TTT layer scans.
#[derive(Debug)]
pub struct Scan {
    pub(crate) text_tokens: i64,
    pub(crate) order: ScanOrder,
    /// The rotary factors of the whole sequence, with frames counted from its start.
    pub(crate) rotary: Tensor,
}

impl Grid {
    /// Computes the grid of a model's own shape, on the CPU.
    pub fn new(model: &Model) -> Self {
        let own = model.cogvideox();
        // If the number of frames differs from that of the learned table, diffusers adds the sine and cosine table
        // instead.
        let learned = own.positions == Positions::Learned && !own.ignore_learned_positions;
        let same_frames = model.base()[0].div_ceil(model.patch_size_t) == model.token_frames();
        let sin_cos = own.positions == Positions::SinCos || (learned && !same_frames);
        Grid {
            text_tokens: model.text_tokens() as i64,
            video: positions::grid(model).into(),
            added: sin_cos.then(|| positions::sin_cos(model)),
            has_learned: learned && same_frames,
            rotary: (own.positions != Positions::SinCos).then(|| segments::attention_rotary(model)),
            segments: Segments::new(model),
            scan: (own.layer != Layer::None).then(|| Scan::new(model)),
            offset: Tensor::full([1], embed::OFS, (Kind::Float, Device::Cpu)),
        }
    }

    /// Returns the number of tokens of a sample, text and video.
    pub(crate) fn tokens(&self) -> i64 {
        self.text_tokens + self.video.iter().product::<i64>()
    }

    /// Returns the grid on a device.
    #[must_use]
    pub fn on(mut self, device: Device) -> Self {
        let there = |tensor: Tensor| tensor.to_device(device);
        self.added = self.added.map(there);
        self.rotary = self.rotary.map(there);
        self.offset = there(self.offset);
        if let Some(segments) = &mut self.segments {
            segments.move_to(device);
        }
        self.scan = self.scan.map(|scan| scan.on(device));
        self
    }
}

impl Scan {
    /// Computes the order and the rotary factors of a model's own shape.
    pub fn new(model: &Model) -> Self {
        Scan { text_tokens: model.text_tokens() as i64, order: ScanOrder::new(model), rotary: positions::rotary(model) }
    }

    /// Returns the order and the factors on a device.
    #[must_use]
    pub fn on(mut self, device: Device) -> Self {
        self.order.move_to(device);
        Scan { rotary: self.rotary.to_device(device), ..self }
    }
}

impl Family for CogVideoX {
    type Grid = Grid;

    fn num_blocks(&self) -> usize {
        self.model.num_layers
    }

    /// Returns 2 for CogVideoX 1.5, whose patches span two latent frames, and 1 for CogVideoX.
    fn patch_frames(&self) -> usize {
        self.model.patch_size_t
    }

    fn grid(&self, shape: Shape, device: Device) -> Grid {
        let own = Shape { frames: self.model.padded_frames(), ..self.model.shape() };
        let mut grid = match shape == own {
            true => Grid::new(&self.model),
            false => Grid::new(&self.model.resized(shape.frames, shape.height, shape.width)),
        };
        if let Some(rotary) = &self.rotary {
            grid.rotary = Some(rotary.shallow_clone());
        }
        if let Some(offset) = &self.offset {
            grid.offset = offset.shallow_clone();
        }
        grid.on(device)
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
        Ok(vec![self.block.forward(grid, params, &tokens.streams[0], &tokens.shared[0], mixers, tp)?])
    }

    fn head(&self, grid: &Grid, root: &UnitParams, tokens: &Tokens) -> Tensor {
        self.head.forward(grid, root, &tokens.streams[0], &tokens.shared[0])
    }

    fn positions(&self, _: &ParamSpec) -> Tensor {
        positions::sin_cos(&self.model.at_base())
    }
}

impl Network<CogVideoX> {
    /// Prepares the network of a model.
    ///
    /// * `checkpointing` — what each block saves for its backward pass, except the blocks of the last group.
    /// * `scan_group` — the number of mini-batches between the states that a TTT layer saves.
    pub fn new(model: &Model, checkpointing: ActivationCheckpointing, scan_group: usize) -> Self {
        Network::of(CogVideoX::new(model, scan_group), checkpointing)
    }

    /// As [`Network::new`], with the caller's rotary factors of one segment's attention, `[S, F/2]`.
    pub fn with_rotary(
        model: &Model,
        checkpointing: ActivationCheckpointing,
        scan_group: usize,
        rotary: Option<Tensor>,
    ) -> Self {
        Network::of(CogVideoX { rotary, ..CogVideoX::new(model, scan_group) }, checkpointing)
    }

    /// Sets the offset (`ofs`) of models that embed it, `[1]` or `[B]`; the default is 2.
    pub fn at_offset(self, offset: &Tensor) -> Self {
        self.map_family(|mut family| {
            family.offset = Some(offset.shallow_clone());
            family
        })
    }
}

/// Returns the slots of a unit's parameters by their names in the unit.
fn slots(model: &Model, unit: FsdpUnit) -> Slots {
    Slots::of(&unit_specs(model, unit), unit)
}

/// Returns the frames, rows and columns of a patch.
fn patch(model: &Model) -> [i64; 3] {
    [model.patch_size_t, model.patch_size, model.patch_size].map(|size| size as i64)
}
