//! Runs the forward and backward pass of one block of any model family, with activation checkpointing.
//!
//! A block is a function of its input and parameters. The forward pass runs it without an autograd graph. The backward
//! pass recomputes it with a graph from the saved tensors, and takes the gradients of input and parameters in one call.

use crate::family::{Family, Tokens};
use crate::mixers::{Kept, Mixers, Saved};
use crate::parallel::TensorParallel;
use crate::params::{SlotGrad, UnitParams};
use crate::vjp::{leaf, vjp};
use tch::Tensor;
use torch_error::TorchError;

/// The tensors that the forward pass of a block saves for its backward pass. The variants have torchtitan's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActivationCheckpointing {
    /// Saves the input only: the backward pass recomputes the whole block.
    Full,
    /// Saves the input and the outputs of some mixers: the backward pass recomputes the rest.
    Selective(Kept),
    /// Saves the autograd graph: the backward pass recomputes nothing. Used for the last blocks, whose backward passes come first.
    None,
}

/// A block of a family, with the inputs that its passes share.
pub(crate) struct Block<'a, F: Family> {
    pub family: &'a F,
    pub grid: &'a F::Grid,
    pub number: usize,
    /// The tensors that all blocks share.
    pub shared: &'a [Tensor],
    /// Whether the caller needs gradients of the shared tensors.
    pub needs_shared_grads: bool,
}

/// The tensors that [`Block::forward`] saved for [`backward`].
pub(crate) struct SavedForBackward {
    /// The input streams; `None` if the graph is saved, or if the input is recomputed from that of an earlier block.
    streams: Option<Vec<Tensor>>,
    /// The saved outputs of mixers.
    mixed: Saved,
    /// The autograd graph; `None` until [`Block::recompute`] has run, unless the forward pass saved it.
    graph: Option<Graph>,
}

/// A block that ran with an autograd graph.
struct Graph {
    /// The leaves of the graph: copies of the inputs.
    tokens: Tokens,
    /// The streams after the block.
    out: Vec<Tensor>,
}

/// The gradients of a block.
pub(crate) struct BlockGrads {
    /// Gradients of the block's trained parameters.
    pub params: Vec<SlotGrad>,
    /// Gradients of the input streams.
    pub streams: Vec<Tensor>,
    /// Gradients of the shared tensors, which the caller sums over blocks. `None` for a tensor without a gradient.
    pub shared: Vec<Option<Tensor>>,
}

impl SavedForBackward {
    /// Removes the saved input and returns it.
    pub fn take_input(&mut self) -> Option<Vec<Tensor>> {
        self.streams.take()
    }

    /// Returns the saved input.
    pub fn input(&self) -> Option<&[Tensor]> {
        self.streams.as_deref()
    }

    /// Replaces each stream of the saved input with the result of `change`. After an error, no input is saved.
    pub fn change_input<E>(&mut self, change: impl FnMut(Tensor) -> Result<Tensor, E>) -> Result<(), E> {
        self.streams = self.streams.take().map(|streams| streams.into_iter().map(change).collect()).transpose()?;
        Ok(())
    }
}

impl<F: Family> Block<'_, F> {
    /// Applies the block to streams. Returns the output streams and the tensors that the backward pass needs.
    pub fn forward(
        &self,
        params: &UnitParams,
        streams: &[Tensor],
        checkpointing: ActivationCheckpointing,
        tp: &dyn TensorParallel,
    ) -> Result<(Vec<Tensor>, SavedForBackward), TorchError> {
        if checkpointing == ActivationCheckpointing::None {
            let graph = self.record(params, streams, Mixers::default(), tp)?;
            let out = detached(&graph.out);
            return Ok((out, SavedForBackward { streams: None, mixed: Saved::default(), graph: Some(graph) }));
        }
        let tokens = Tokens { streams: detached(streams), shared: detached(self.shared) };
        let mixers = match checkpointing {
            ActivationCheckpointing::Selective(kept) => Mixers::saving(kept),
            _ => Mixers::default(),
        };
        let out = tch::no_grad(|| self.family.block(self.grid, self.number, params, &tokens, &mixers, tp))?;
        let mixed = mixers.into_saved();
        Ok((out, SavedForBackward { streams: Some(tokens.streams), mixed, graph: None }))
    }

    /// Recomputes the block from its input `streams` with a graph for [`backward`], and returns its output. The output is not valid
    /// if the pass is for gradients only ([`UnitParams::for_gradients_only`]).
    pub fn recompute(
        &self,
        params: &UnitParams,
        saved: &mut SavedForBackward,
        streams: &[Tensor],
        tp: &dyn TensorParallel,
    ) -> Result<Vec<Tensor>, TorchError> {
        let known = Mixers::known(std::mem::take(&mut saved.mixed));
        let graph = self.record(params, streams, known, tp)?;
        let out = detached(&graph.out);
        saved.graph = Some(graph);
        Ok(out)
    }

    /// Applies the block with a graph whose leaves are copies of its inputs.
    fn record(
        &self,
        params: &UnitParams,
        streams: &[Tensor],
        mixers: Mixers,
        tp: &dyn TensorParallel,
    ) -> Result<Graph, TorchError> {
        let tokens = Tokens::leaves_of(streams, self.shared, self.needs_shared_grads);
        let out = self.family.block(self.grid, self.number, params, &tokens, &mixers, tp)?;
        Ok(Graph { tokens, out })
    }
}

/// Returns the gradients of a block that ran with a graph. `grad_out` has the gradients of its output streams.
pub(crate) fn backward(
    params: &UnitParams,
    saved: SavedForBackward,
    grad_out: &[Tensor],
) -> Result<BlockGrads, TorchError> {
    let Graph { tokens, out } = saved.graph.expect("a block runs with a graph before its backward pass");
    let (slots, trained): (Vec<usize>, Vec<&Tensor>) = params.trained().unzip();
    let mut wanted = tokens.leaves();
    let inputs = wanted.len();
    wanted.extend(trained);
    let outputs: Vec<_> = out.iter().zip(grad_out).collect();
    let mut grads = vjp(&outputs, &wanted)?;
    let params = slots.into_iter().zip(grads.split_off(inputs)).collect();
    let (streams, shared) = tokens.split_grads(grads);
    Ok(BlockGrads { params, streams, shared })
}

impl Tokens {
    /// Returns detached copies to be the leaves of a graph. Shared tensors become leaves only if their gradients are needed.
    pub(crate) fn leaves_of(streams: &[Tensor], shared: &[Tensor], needs_shared_grads: bool) -> Tokens {
        let has_grad = |tensor: &Tensor| needs_shared_grads && tensor.is_floating_point();
        let copy = |tensor: &Tensor| if has_grad(tensor) { leaf(tensor) } else { tensor.detach() };
        Tokens { streams: streams.iter().map(leaf).collect(), shared: shared.iter().map(copy).collect() }
    }

    /// Returns the leaves that have a gradient: the streams, then the shared tensors.
    pub(crate) fn leaves(&self) -> Vec<&Tensor> {
        self.streams.iter().chain(self.shared.iter().filter(|tensor| tensor.requires_grad())).collect()
    }

    /// Splits gradients, which are in the order of [`Tokens::leaves`], into those of the streams and those of the shared tensors.
    pub(crate) fn split_grads(&self, mut grads: Vec<Tensor>) -> (Vec<Tensor>, Vec<Option<Tensor>>) {
        let mut of_shared = grads.split_off(self.streams.len()).into_iter();
        let shared = self.shared.iter().map(|tensor| tensor.requires_grad().then(|| of_shared.next()).flatten());
        (grads, shared.collect())
    }
}

/// Returns the tensors detached from their graph.
pub(crate) fn detached(tensors: &[Tensor]) -> Vec<Tensor> {
    tensors.iter().map(Tensor::detach).collect()
}
