//! The whole network, one unit at a time.
//!
//! [`Network::forward_backward`] owns no parameters. Before a unit runs, it gathers the unit's tensors from [`Units`]; after
//! the unit's backward pass, it passes the gradients to [`Units::reduce`]. The caller decides what gathering and reducing
//! mean: nothing on one rank, collectives on a mesh.

use crate::block::{ActivationCheckpointing, Block, SavedForBackward};
use crate::embed::{Embedded, Embedder, Inputs};
use crate::head::Head;
use crate::parallel::{Alone, TensorParallel};
use crate::params::{Adapters, SlotGrad, UnitParams};
use recipe::{Model, Positions, Unit};
use tch::{Device, TchError, Tensor};

/// Supplies the parameters of units and receives their gradients.
pub trait Units {
    /// The error of a collective or of libtorch.
    type Error: From<TchError>;

    /// Returns the full parameters of a unit. `next` is the unit to prefetch.
    fn gather(&mut self, unit: Unit, next: Option<Unit>) -> Result<UnitParams, Self::Error>;

    /// Receives the gradients of a unit. Called once per unit in the order of the backward pass; the root comes last.
    fn reduce(&mut self, unit: Unit, grads: Vec<SlotGrad>) -> Result<(), Self::Error>;

    /// Returns the collectives of the TP group; by default, of a group of one rank.
    fn tensor_parallel(&self) -> &dyn TensorParallel {
        &Alone
    }
}

/// How the ranks of a TP group save the inputs of blocks for the backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SavedInputs {
    /// Every rank saves the whole input.
    Replicated,
    /// Each rank saves its part; the parts are gathered before the block is recomputed.
    Sharded,
}

/// A network without its parameters.
#[derive(Debug)]
pub struct Network {
    embedder: Embedder,
    block: Block,
    head: Head,
    num_blocks: usize,
    /// The number of blocks that are recomputed together, from the input of the first.
    group: usize,
    inputs: SavedInputs,
    checkpointing: ActivationCheckpointing,
    /// The adapters of each block; empty without LoRA.
    adapters: Vec<Adapters>,
}

/// The results of a forward and backward pass besides the gradients of parameters.
#[derive(Debug)]
pub struct ForwardBackward {
    /// The network's output `[B, T, C, height, width]`.
    pub output: Tensor,
    /// The gradient of the input latent, if the latent requires one.
    pub grad_latent: Option<Tensor>,
    /// Seconds of the forward pass.
    pub forward_s: f64,
}

impl Network {
    /// Prepares the network of a model.
    ///
    /// * `checkpointing` — what every block outside the last group saves for its backward pass.
    /// * `scan_group` — the number of mini-batches between the states that a TTT layer saves.
    pub fn new(model: &Model, checkpointing: ActivationCheckpointing, scan_group: usize) -> Self {
        let rotary = (model.positions != Positions::SinCos).then(|| crate::segments::attention_rotary(model));
        Self::with_rotary(model, checkpointing, scan_group, rotary)
    }

    /// As [`Network::new`], with the caller's rotary factors of one segment's attention, `[S, F/2]`.
    pub fn with_rotary(
        model: &Model,
        checkpointing: ActivationCheckpointing,
        scan_group: usize,
        rotary: Option<Tensor>,
    ) -> Self {
        Network {
            embedder: Embedder::new(model),
            block: Block::new(model, rotary, scan_group),
            head: Head::new(model),
            num_blocks: model.num_layers,
            group: 1,
            inputs: SavedInputs::Replicated,
            checkpointing,
            adapters: Vec::new(),
        }
    }

    /// Adds the LoRA adapters of each block.
    pub fn with_adapters(self, adapters: Vec<Adapters>) -> Self {
        Network { adapters, ..self }
    }

    /// Lets each group of `blocks` blocks share one saved input. Each block is still recomputed once; if one group
    /// holds all blocks, no block is recomputed.
    pub fn grouped(self, blocks: usize) -> Self {
        Network { group: blocks.clamp(1, self.num_blocks), ..self }
    }

    /// Moves the constant tensors to a device; they are on the CPU by default.
    pub fn on(mut self, device: Device) -> Self {
        self.embedder.move_to(device);
        self.block.move_to(device);
        self
    }

    /// Sets the offset (`ofs`) of models that embed it, `[1]` or `[B]`; the default is 2.
    pub fn at_offset(mut self, offset: &Tensor) -> Self {
        self.embedder.set_offset(offset);
        self
    }

    /// Sets how the inputs of blocks are saved; the default is [`SavedInputs::Replicated`].
    pub fn saving_inputs(self, inputs: SavedInputs) -> Self {
        Network { inputs, ..self }
    }

    /// Gathers a block with its adapters.
    fn gather<U: Units>(&self, units: &mut U, block: usize, next: Option<usize>) -> Result<UnitParams, U::Error> {
        let params = units.gather(Unit::Block(block), next.map(Unit::Block))?;
        Ok(match self.adapters.get(block) {
            Some(adapters) => params.with_adapters(adapters),
            None => params,
        })
    }

    /// Runs a forward pass without graphs or saved tensors, and returns the output `[B, T, C, height, width]`. One block's
    /// parameters, and those that are prefetched, are in memory at a time.
    ///
    /// # Errors
    /// The error of gathering or computing a unit.
    pub fn forward<U: Units>(&self, units: &mut U, inputs: &Inputs) -> Result<Tensor, U::Error> {
        let _without_graph = tch::no_grad_guard();
        let root = units.gather(Unit::Root, Some(Unit::Block(0)))?;
        let Embedded { mut x_bld, act_be } = self.embedder.forward(&root, inputs);
        for i in 0..self.num_blocks {
            let params = self.gather(units, i, (i + 1 < self.num_blocks).then_some(i + 1))?;
            let saved = ActivationCheckpointing::Full;
            (x_bld, _) = self.block.forward(&params, &x_bld, &act_be, saved, units.tensor_parallel())?;
        }
        Ok(self.head.forward(&root, &x_bld, &act_be))
    }

    /// Runs a forward and a backward pass. `objective` computes the scalar loss from the output.
    ///
    /// # Errors
    /// The error of gathering, reducing or computing a unit.
    pub fn forward_backward<U: Units>(
        &self,
        units: &mut U,
        inputs: &Inputs,
        objective: impl FnOnce(&Tensor) -> Tensor,
    ) -> Result<ForwardBackward, U::Error> {
        let start = std::time::Instant::now();
        // The last group keeps its graphs and parameters, because its backward pass comes next.
        let last = (self.num_blocks - 1) / self.group * self.group;
        let root = units.gather(Unit::Root, Some(Unit::Block(0)))?;
        let Embedded { mut x_bld, act_be } = tch::no_grad(|| self.embedder.forward(&root, inputs));
        let mut saved: Vec<SavedForBackward> = Vec::with_capacity(self.num_blocks);
        let mut held: Vec<UnitParams> = Vec::new();
        for i in 0..self.num_blocks {
            let next = if i + 1 < self.num_blocks { Some(i + 1) } else { last.checked_sub(self.group) };
            let params = self.gather(units, i, next)?;
            let checkpointing = if i >= last { ActivationCheckpointing::None } else { self.checkpointing };
            let (y, mut block) =
                self.block.forward(&params, &x_bld, &act_be, checkpointing, units.tensor_parallel())?;
            if !i.is_multiple_of(self.group) {
                // Recomputing the previous block yields this input.
                drop(block.take_input());
            } else if self.inputs == SavedInputs::Sharded {
                block.change_input(|x| units.tensor_parallel().scatter_to(x))?;
            }
            x_bld = y;
            saved.push(block);
            if i >= last {
                held.push(params);
            }
        }
        let mut output = None;
        let mut forward_s = 0.0;
        let head = self.head.backward(&root, &x_bld, &act_be, |out| {
            output = Some(out.detach());
            forward_s = start.elapsed().as_secs_f64();
            objective(out)
        })?;
        drop(x_bld);
        let (mut grad_x, mut grad_act, mut root_grads) = (head.x_bld, head.act_be, head.params);
        for i in (0..self.num_blocks).rev() {
            if held.is_empty() {
                let start = i / self.group * self.group;
                let mut x = saved[start].take_input().expect("the first block of a group saves its input");
                if self.inputs == SavedInputs::Sharded {
                    x = units.tensor_parallel().gather_from(&x)?;
                }
                for (j, block) in saved.iter_mut().enumerate().skip(start) {
                    let next = if j < i { Some(j + 1) } else { start.checked_sub(self.group) };
                    let params = self.gather(units, j, next)?;
                    x = self.block.recompute(&params, block, &x, &act_be, units.tensor_parallel())?;
                    held.push(params);
                }
            }
            let block = saved.pop().expect("every block saved its tensors");
            let params = held.pop().expect("the parameters of the group are held");
            let grads = self.block.backward(&params, block, &act_be, &grad_x, units.tensor_parallel())?;
            drop(params);
            grad_x = grads.x_bld;
            grad_act += grads.act_be;
            units.reduce(Unit::Block(i), grads.params)?;
        }
        let grad = Embedded { x_bld: grad_x, act_be: grad_act };
        let (more, grad_latent) = self.embedder.backward(&root, inputs, &grad)?;
        root_grads.extend(more);
        drop(root);
        units.reduce(Unit::Root, root_grads)?;
        let output = output.expect("the head has run");
        Ok(ForwardBackward { output, grad_latent, forward_s })
    }
}
