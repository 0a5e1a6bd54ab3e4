//! The whole network, one unit at a time.
//!
//! [`Network::forward_backward`] is the only walk over the units. It owns no parameter: before a unit runs it asks its
//! [`Units`] for the unit's tensors, and after a unit's backward pass it hands the gradients over. What gathering and
//! reducing mean (nothing at all, or collectives over a mesh) is the caller's affair.

use crate::block::{Block, Keep, Tape};
use crate::embed::{Embedded, Embedder, Inputs};
use crate::head::Head;
use crate::parallel::{Alone, TensorParallel};
use crate::params::{SlotGrad, UnitParams};
use recipe::{Model, Positions, Unit};
use tch::{Device, TchError, Tensor};

/// Where the parameters of a unit come from, and where its gradients go.
pub trait Units {
    /// Why a unit could not be had, or a block not be run.
    type Error: From<TchError>;

    /// Returns the whole parameters of a unit; `next` is the unit that will be asked for after it.
    fn gather(&mut self, unit: Unit, next: Option<Unit>) -> Result<UnitParams, Self::Error>;

    /// Takes the gradients of a unit. Called once per unit in the order in which they become ready; the root comes last.
    fn reduce(&mut self, unit: Unit, grads: Vec<SlotGrad>) -> Result<(), Self::Error>;

    /// The ranks that share the heads and hidden units of a block, when what is gathered are parts.
    fn tensor_parallel(&self) -> &dyn TensorParallel {
        &Alone
    }
}

/// How the inputs of blocks are kept for the backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepInput {
    /// On every rank of a TP group.
    Whole,
    /// Each rank of a TP group keeps its part, and they are joined before the block runs again.
    SharedOut,
}

/// The network's fixed parts.
#[derive(Debug)]
pub struct Network {
    embedder: Embedder,
    block: Block,
    head: Head,
    num_blocks: usize,
    /// Blocks that run again together, from the input of the first.
    group: usize,
    inputs: KeepInput,
    keep: Keep,
}

/// What one walk forward and back gave besides the parameters' gradients.
#[derive(Debug)]
pub struct Walk {
    /// The network's output `[B, T, C, height, width]`.
    pub output: Tensor,
    /// The gradient of the input latent, when the latent asked for one.
    pub grad_latent: Option<Tensor>,
    /// Seconds spent until the head's output stood.
    pub forward_s: f64,
}

impl Network {
    /// Prepares the network of a model. `keep` says what every block but the last keeps for its backward pass,
    /// `scan_group` how many mini-batches a TTT layer walks between saved states.
    pub fn new(model: &Model, keep: Keep, scan_group: usize) -> Self {
        let rotary = (model.positions != Positions::SinCos).then(|| crate::segments::attention_rotary(model));
        Self::with_rotary(model, keep, scan_group, rotary)
    }

    /// As [`Network::new`], with rotary factors of one segment's attention, `[S, F/2]`, of the caller's own.
    pub fn with_rotary(model: &Model, keep: Keep, scan_group: usize, rotary: Option<Tensor>) -> Self {
        Network {
            embedder: Embedder::new(model),
            block: Block::new(model, rotary, scan_group),
            head: Head::new(model),
            num_blocks: model.num_layers,
            group: 1,
            inputs: KeepInput::Whole,
            keep,
        }
    }

    /// Lets so many blocks share a saved input: each still runs again once. With all of them nothing runs again.
    pub fn grouped(self, blocks: usize) -> Self {
        Network { group: blocks.clamp(1, self.num_blocks), ..self }
    }

    /// Moves the fixed parts to where parameters and inputs are; the CPU when nobody says.
    pub fn on(mut self, device: Device) -> Self {
        self.embedder.move_to(device);
        self.block.move_to(device);
        self
    }

    /// Says where the first image is, `[1]` or `[B]`, for models that embed it; 2 when nobody says.
    pub fn at_offset(mut self, offset: &Tensor) -> Self {
        self.embedder.set_offset(offset);
        self
    }

    /// Says how the inputs of blocks are kept for the backward pass; [`KeepInput::Whole`] when nobody says.
    pub fn keeping(self, inputs: KeepInput) -> Self {
        Network { inputs, ..self }
    }

    /// Runs forward and back. `objective` turns the output into the scalar whose gradients are taken.
    ///
    /// # Errors
    /// Whatever gathering, reducing or running a unit met.
    pub fn forward_backward<U: Units>(
        &self,
        units: &mut U,
        inputs: &Inputs,
        objective: impl FnOnce(&Tensor) -> Tensor,
    ) -> Result<Walk, U::Error> {
        let start = std::time::Instant::now();
        // The last group's graphs and parameters stay in hand for its backward pass, which comes next.
        let last = (self.num_blocks - 1) / self.group * self.group;
        let root = units.gather(Unit::Root, Some(Unit::Block(0)))?;
        let Embedded { mut x_bld, act_be } = tch::no_grad(|| self.embedder.forward(&root, inputs));
        let mut tapes: Vec<Tape> = Vec::with_capacity(self.num_blocks);
        let mut in_hand: Vec<UnitParams> = Vec::new();
        for i in 0..self.num_blocks {
            let next = if i + 1 < self.num_blocks { Some(i + 1) } else { last.checked_sub(self.group) };
            let params = units.gather(Unit::Block(i), next.map(Unit::Block))?;
            let keep = if i >= last { Keep::Everything } else { self.keep };
            let (y, mut tape) = self.block.forward(&params, &x_bld, &act_be, keep, units.tensor_parallel())?;
            if !i.is_multiple_of(self.group) {
                // It comes out of the block before when that runs again.
                drop(tape.take_input());
            } else if self.inputs == KeepInput::SharedOut {
                tape.change_input(|x| units.tensor_parallel().scatter_to(x))?;
            }
            x_bld = y;
            tapes.push(tape);
            if i >= last {
                in_hand.push(params);
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
            if in_hand.is_empty() {
                let start = i / self.group * self.group;
                let mut x = tapes[start].take_input().expect("the first of a group keeps its input");
                if self.inputs == KeepInput::SharedOut {
                    x = units.tensor_parallel().gather_from(&x)?;
                }
                for (j, tape) in tapes.iter_mut().enumerate().skip(start) {
                    let next = if j < i { Some(j + 1) } else { start.checked_sub(self.group) };
                    let params = units.gather(Unit::Block(j), next.map(Unit::Block))?;
                    x = self.block.again(&params, tape, &x, &act_be, units.tensor_parallel())?;
                    in_hand.push(params);
                }
            }
            let tape = tapes.pop().expect("one tape per block");
            let params = in_hand.pop().expect("a group is in hand");
            let grads = self.block.backward(&params, tape, &act_be, &grad_x, units.tensor_parallel())?;
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
        Ok(Walk { output, grad_latent, forward_s })
    }
}
