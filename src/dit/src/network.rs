//! A network of any family, one unit at a time.
//!
//! [`Network::forward_backward`] owns no parameters. Before a unit runs, it gathers the unit's tensors from [`Units`]; after
//! the unit's backward pass, it passes the gradients to [`Units::reduce`]. The caller decides what gathering and reducing
//! mean: nothing on one rank, collectives on a mesh.
//!
//! The shape of a batch may differ from call to call: constant tensors are computed once for each shape and cached.

use crate::block::{ActivationCheckpointing, Block, SavedForBackward, backward};
use crate::family::{Family, Inputs, Tokens};
use crate::mixers::Mixers;
use crate::parallel::{Alone, TensorParallel, own_tokens};
use crate::params::{Adapters, SlotGrad, UnitParams};
use crate::vjp::{leaf, vjp_of_used};
use recipe::{FsdpUnit, Shape};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Instant;
use tch::{Device, Tensor};
use torch_error::TorchError;

/// Supplies the parameters of units and receives their gradients.
pub trait Units {
    /// The error of a collective or of libtorch.
    type Error: From<TorchError>;

    /// Returns the full parameters of a unit. `next` is the unit to prefetch.
    fn gather(&mut self, unit: FsdpUnit, next: Option<FsdpUnit>) -> Result<UnitParams, Self::Error>;

    /// Receives the gradients of a unit. Called once per unit in the order of the backward pass; the root comes last.
    fn reduce(&mut self, unit: FsdpUnit, grads: Vec<SlotGrad>) -> Result<(), Self::Error>;

    /// Stores a block's saved input until the backward pass, for example in CPU memory. By default the input stays on its
    /// device.
    ///
    /// # Errors
    /// Memory is exhausted.
    fn offload_input(&mut self, input: Tensor) -> Result<Tensor, Self::Error> {
        Ok(input)
    }

    /// Brings back an input that [`Units::offload_input`] stored. `next` is the input of the following call, to prefetch.
    ///
    /// # Errors
    /// Memory is exhausted.
    fn fetch_input(&mut self, kept: Tensor, _next: Option<&Tensor>) -> Result<Tensor, Self::Error> {
        Ok(kept)
    }

    /// Returns the collectives of the TP group; by default, of a group of one rank.
    fn tensor_parallel(&self) -> &dyn TensorParallel {
        &Alone
    }
}

/// A network without its parameters.
#[derive(Debug)]
pub struct Network<F: Family> {
    family: F,
    device: Device,
    /// The grid of each shape that a batch has had so far.
    grids: RefCell<HashMap<Shape, Rc<F::Grid>>>,
    checkpointing: ActivationCheckpointing,
    /// The number of blocks that are recomputed together, from the input of the first.
    group: usize,
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

impl<F: Family> Network<F> {
    /// Prepares a network. `checkpointing` applies to every block except those of the last group, which are not recomputed.
    pub fn of(family: F, checkpointing: ActivationCheckpointing) -> Self {
        Network {
            family,
            device: Device::Cpu,
            grids: RefCell::default(),
            checkpointing,
            group: 1,
            adapters: Vec::new(),
        }
    }

    /// Returns the family of the network.
    pub fn family(&self) -> &F {
        &self.family
    }

    /// Applies `change` to the family and discards the cached grids.
    pub(crate) fn map_family(self, change: impl FnOnce(F) -> F) -> Self {
        Network { family: change(self.family), grids: RefCell::default(), ..self }
    }

    /// Adds the LoRA adapters of each block.
    pub fn with_adapters(self, adapters: Vec<Adapters>) -> Self {
        Network { adapters, ..self }
    }

    /// Lets each group of `blocks` blocks share one saved input. Each block is still recomputed once; if one group
    /// holds all blocks, no block is recomputed.
    pub fn grouped(self, blocks: usize) -> Self {
        Network { group: blocks.clamp(1, self.family.num_blocks()), ..self }
    }

    /// Sets the device of the constant tensors; the default is the CPU.
    pub fn on(self, device: Device) -> Self {
        Network { device, grids: RefCell::default(), ..self }
    }

    /// Returns the grid of a shape. It is computed once for each shape.
    fn grid(&self, shape: Shape) -> Rc<F::Grid> {
        let mut grids = self.grids.borrow_mut();
        grids.entry(shape).or_insert_with(|| Rc::new(self.family.grid(shape, self.device))).clone()
    }

    /// Gathers a block with its adapters.
    fn gather<U: Units>(&self, units: &mut U, block: usize, next: Option<usize>) -> Result<UnitParams, U::Error> {
        let params = units.gather(FsdpUnit::Block(block), next.map(FsdpUnit::Block))?;
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
        let (grid, blocks) = (self.grid(inputs.shape()), self.family.num_blocks());
        let root = units.gather(FsdpUnit::Root, Some(FsdpUnit::Block(0)))?;
        let mut tokens = self.family.embed(&grid, &root, inputs);
        let lens = lens(&tokens.streams);
        tokens.streams = own_parts(&tokens.streams, units.tensor_parallel());
        for i in 0..blocks {
            let params = self.gather(units, i, (i + 1 < blocks).then_some(i + 1))?;
            let mixers = Mixers::default();
            tokens.streams = self.family.block(&grid, i, &params, &tokens, &mixers, units.tensor_parallel())?;
        }
        tokens.streams = gathered(&tokens.streams, &lens, units.tensor_parallel())?;
        Ok(self.family.head(&grid, &root, &tokens))
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
        let start = Instant::now();
        let (grid, blocks) = (self.grid(inputs.shape()), self.family.num_blocks());
        // The last group keeps its graphs and parameters, because its backward pass comes next.
        let last = (blocks - 1) / self.group * self.group;
        let root = units.gather(FsdpUnit::Root, Some(FsdpUnit::Block(0)))?;
        let Tokens { mut streams, shared } = tch::no_grad(|| self.family.embed(&grid, &root, inputs));
        let lens = lens(&streams);
        streams = own_parts(&streams, units.tensor_parallel());
        // Only the gradients of the embedding's parameters and input depend on the gradients of the shared tensors.
        let needs_shared_grads = root.trained().next().is_some() || inputs.latent.requires_grad();
        let block = |number| Block { family: &self.family, grid: &*grid, number, shared: &shared, needs_shared_grads };
        let mut saved: Vec<SavedForBackward> = Vec::with_capacity(blocks);
        let mut held: Vec<UnitParams> = Vec::new();
        for i in 0..blocks {
            let next = if i + 1 < blocks { Some(i + 1) } else { last.checked_sub(self.group) };
            let params = self.gather(units, i, next)?;
            let checkpointing = if i >= last { ActivationCheckpointing::None } else { self.checkpointing };
            let (out, mut kept) = block(i).forward(&params, &streams, checkpointing, units.tensor_parallel())?;
            if !i.is_multiple_of(self.group) {
                // Recomputing the previous block yields this input.
                drop(kept.take_input());
            } else {
                kept.change_input(|x| units.offload_input(x))?;
            }
            streams = out;
            saved.push(kept);
            if i >= last {
                held.push(params);
            }
        }
        let mut output = None;
        let mut forward_s = 0.0;
        streams = gathered(&streams, &lens, units.tensor_parallel())?;
        let leaves = Tokens::leaves_of(&streams, &shared, needs_shared_grads);
        drop(streams);
        let mut grads = self.head_backward(&grid, &root, leaves, |out| {
            output = Some(out.detach());
            forward_s = start.elapsed().as_secs_f64();
            objective(out)
        })?;
        grads.streams = own_parts(&grads.streams, units.tensor_parallel());
        for i in (0..blocks).rev() {
            if held.is_empty() {
                let start = i / self.group * self.group;
                let kept = saved[start].take_input().expect("the first block of a group saves its input");
                let before = start.checked_sub(self.group).and_then(|start| saved[start].input());
                let mut x = Vec::with_capacity(kept.len());
                let mut rest = kept.into_iter().peekable();
                while let Some(stream) = rest.next() {
                    let next = rest.peek().or_else(|| before.and_then(<[Tensor]>::first));
                    x.push(units.fetch_input(stream, next)?);
                }
                for (j, kept) in saved.iter_mut().enumerate().skip(start) {
                    let next = if j < i { Some(j + 1) } else { start.checked_sub(self.group) };
                    let params = self.gather(units, j, next)?;
                    // The output of the last block of the group is not used again.
                    let params = if j == i { params.for_gradients_only() } else { params };
                    x = block(j).recompute(&params, kept, &x, units.tensor_parallel())?;
                    held.push(params);
                }
            }
            let kept = saved.pop().expect("every block saved its tensors");
            let params = held.pop().expect("the parameters of the group are held");
            let of_block = backward(&params, kept, &grads.streams)?;
            drop(params);
            grads.streams = of_block.streams;
            for (sum, grad) in grads.shared.iter_mut().zip(of_block.shared) {
                if let (Some(sum), Some(grad)) = (sum, grad) {
                    *sum += grad;
                }
            }
            units.reduce(FsdpUnit::Block(i), of_block.params)?;
        }
        let grad_latent = self.embed_backward(&grid, &root, inputs, &mut grads, |grads| {
            gathered(grads, &lens, units.tensor_parallel())
        })?;
        let root_grads = grads.of_every_slot(&root);
        drop(root);
        units.reduce(FsdpUnit::Root, root_grads)?;
        let output = output.expect("the head has run");
        Ok(ForwardBackward { output, grad_latent, forward_s })
    }

    /// Runs the head with a graph, computes the scalar loss with `objective`, and returns the gradients of the loss.
    fn head_backward(
        &self,
        grid: &F::Grid,
        root: &UnitParams,
        leaves: Tokens,
        objective: impl FnOnce(&Tensor) -> Tensor,
    ) -> Result<EndGrads, TorchError> {
        let scalar = objective(&self.family.head(grid, root, &leaves));
        let one = scalar.ones_like();
        let inputs = leaves.leaves();
        let (slots, trained): (Vec<usize>, Vec<&Tensor>) = root.trained().unzip();
        let wanted: Vec<&Tensor> = inputs.iter().copied().chain(trained).collect();
        let mut grads = vjp_of_used(&[(&scalar, &one)], &wanted)?;
        let params = slots.into_iter().zip(grads.split_off(inputs.len())).collect();
        let or_zeros = |(grad, input): (Option<Tensor>, &&Tensor)| grad.unwrap_or_else(|| input.zeros_like());
        let (streams, shared) = leaves.split_grads(grads.into_iter().zip(&inputs).map(or_zeros).collect());
        Ok(EndGrads { params, streams, shared })
    }

    /// Recomputes the embedding with a graph and adds the gradients of its parameters. Returns the gradient of the latent, if
    /// the latent requires one. `gathered` makes the gradients of whole streams from those of each rank's parts.
    fn embed_backward(
        &self,
        grid: &F::Grid,
        root: &UnitParams,
        inputs: &Inputs,
        grads: &mut EndGrads,
        gathered: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>, TorchError>,
    ) -> Result<Option<Tensor>, TorchError> {
        let latent = inputs.latent.requires_grad().then(|| leaf(&inputs.latent));
        let mut wanted: Vec<&Tensor> = root.trained().map(|(_, tensor)| tensor).collect();
        wanted.extend(&latent);
        if wanted.is_empty() {
            return Ok(None);
        }
        let mut again = inputs.map(Tensor::shallow_clone);
        if let Some(latent) = &latent {
            again.latent = latent.shallow_clone();
        }
        let tokens = self.family.embed(grid, root, &again);
        let shared = tokens.shared.iter().zip(&grads.shared).filter_map(|(out, grad)| Some((out, grad.as_ref()?)));
        let of_streams = gathered(&grads.streams)?;
        let outputs: Vec<_> = tokens.streams.iter().zip(&of_streams).chain(shared).collect();
        let mut more = vjp_of_used(&outputs, &wanted)?;
        let of_latent = latent.map(|latent| more.pop().flatten().unwrap_or_else(|| latent.zeros_like()));
        for ((_, sum), grad) in grads.params.iter_mut().zip(more) {
            *sum = match (sum.take(), grad) {
                (Some(sum), Some(grad)) => Some(sum + grad),
                (sum, grad) => sum.or(grad),
            };
        }
        Ok(of_latent)
    }
}

/// Returns the number of tokens of each stream.
fn lens(streams: &[Tensor]) -> Vec<i64> {
    streams.iter().map(|stream| stream.size()[1]).collect()
}

/// Returns this rank's part of the tokens of each stream.
fn own_parts(streams: &[Tensor], tp: &dyn TensorParallel) -> Vec<Tensor> {
    streams.iter().map(|stream| own_tokens(stream, tp)).collect()
}

/// Gathers streams of these lengths from the parts of all ranks, without a graph.
fn gathered(parts: &[Tensor], lens: &[i64], tp: &dyn TensorParallel) -> Result<Vec<Tensor>, TorchError> {
    tch::no_grad(|| parts.iter().zip(lens).map(|(part, len)| tp.gather_tokens(part, *len)).collect())
}

/// The gradients of the head, to which those of the blocks and of the embedding are added.
struct EndGrads {
    /// Gradients of the root's trained slots; `None` until a function uses the slot.
    params: Vec<(usize, Option<Tensor>)>,
    /// Gradients of the streams: first those after the last block, then those before each block.
    streams: Vec<Tensor>,
    /// Gradients of the shared tensors; `None` for those without a gradient.
    shared: Vec<Option<Tensor>>,
}

impl EndGrads {
    /// Returns the gradient of every trained slot of the root.
    fn of_every_slot(self, root: &UnitParams) -> Vec<SlotGrad> {
        let or_zeros =
            |(slot, grad): (usize, Option<Tensor>)| (slot, grad.unwrap_or_else(|| root.tensors()[slot].zeros_like()));
        self.params.into_iter().map(or_zeros).collect()
    }
}
