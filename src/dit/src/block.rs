//! One transformer block and its backward pass, with activation checkpointing.
//!
//! The block is a function of its input and parameters. The forward pass runs it without an autograd graph. The backward
//! pass recomputes it with a graph from the saved tensors, and takes the gradients of input and parameters in one call.

use crate::parallel::TensorParallel;
use crate::params::{Affine, SlotGrad, Slots, UnitParams};
use crate::positions::rotate;
use crate::segments::Segments;
use crate::ttt::Ttt;
use crate::vjp::{leaf, vjp};
use kernels::attention::{Attended, attend};
use recipe::{Model, Unit};
use tch::{Device, TchError, Tensor};

/// What the forward pass of a block saves for its backward pass, named as in torchtitan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActivationCheckpointing {
    /// Saves the input only: the backward pass recomputes the whole block.
    Full,
    /// Saves the input and the attention output: the backward pass recomputes all but attention.
    Selective,
    /// Saves the graph: nothing is recomputed. For the last block, whose backward pass comes next.
    None,
}

/// The block of every layer: sizes, and the slots of its parameters in the unit's table.
#[derive(Debug)]
pub struct Block {
    head_dim: i64,
    text_len: i64,
    eps: f64,
    qk_eps: f64,
    /// Rotary factors of one segment.
    rotary: Option<Tensor>,
    segments: Option<Segments>,
    ttt: Option<Ttt>,
    norm1_linear: usize,
    norm1: usize,
    q: usize,
    k: usize,
    v: usize,
    o: usize,
    q_norm: usize,
    k_norm: usize,
    norm2_linear: usize,
    norm2: usize,
    up: usize,
    down: usize,
}

/// The tensors that [`Block::forward`] saved for [`Block::backward`].
#[derive(Debug)]
pub struct SavedForBackward {
    /// `None` when it is recomputed from the input of an earlier block.
    x_bld: Option<Tensor>,
    attended: Option<Attended>,
    graph: Option<Graph>,
}

/// A block that ran with an autograd graph.
#[derive(Debug)]
struct Graph {
    x: Tensor,
    act: Tensor,
    y: Tensor,
}

/// The gradients of a block.
#[derive(Debug)]
pub struct BlockGrads {
    /// Gradients of the block's trained parameters.
    pub params: Vec<SlotGrad>,
    /// Gradient of the input, `[B, L, D]`.
    pub x_bld: Tensor,
    /// Gradient of the time embedding, `[B, E]`; the caller sums it over blocks.
    pub act_be: Tensor,
}

impl SavedForBackward {
    /// Takes the saved input out.
    pub fn take_input(&mut self) -> Option<Tensor> {
        self.x_bld.take()
    }

    /// Replaces the saved input.
    ///
    /// # Errors
    /// The error of `change`.
    pub fn change_input(&mut self, change: impl FnOnce(&Tensor) -> Result<Tensor, TchError>) -> Result<(), TchError> {
        self.x_bld = self.x_bld.take().map(|x| change(&x)).transpose()?;
        Ok(())
    }
}

impl Block {
    /// Looks up the slots of a block's parameters.
    ///
    /// * `rotary` — the rotary factors of one segment, for models that use them.
    /// * `scan_group` — the number of mini-batches between the states that a TTT layer saves.
    pub fn new(model: &Model, rotary: Option<Tensor>, scan_group: usize) -> Self {
        let slots = Slots::of(model, Unit::Block(0));
        Block {
            head_dim: model.head_dim as i64,
            text_len: model.text_tokens() as i64,
            eps: model.norm_eps,
            qk_eps: model.qk_norm_eps,
            rotary,
            segments: Segments::new(model),
            ttt: Ttt::new(model, scan_group),
            norm1_linear: slots.affine("norm1.linear"),
            norm1: slots.affine("norm1.norm"),
            q: slots.affine("attn.q"),
            k: slots.affine("attn.k"),
            v: slots.affine("attn.v"),
            o: slots.affine("attn.o"),
            q_norm: slots.affine("attn.q_norm"),
            k_norm: slots.affine("attn.k_norm"),
            norm2_linear: slots.affine("norm2.linear"),
            norm2: slots.affine("norm2.norm"),
            up: slots.affine("mlp.up"),
            down: slots.affine("mlp.down"),
        }
    }

    /// Moves the constant tensors to a device.
    pub fn move_to(&mut self, device: Device) {
        self.rotary = self.rotary.take().map(|rotary| rotary.to_device(device));
        if let Some(segments) = &mut self.segments {
            segments.move_to(device);
        }
        if let Some(ttt) = &mut self.ttt {
            ttt.move_to(device);
        }
    }

    /// Applies the block to tokens `[B, L, D]`, modulated by the activated time embedding `[B, E]`.
    ///
    /// # Errors
    /// A collective of `tp` failed.
    pub fn forward(
        &self,
        p: &UnitParams,
        x_bld: &Tensor,
        act_be: &Tensor,
        checkpointing: ActivationCheckpointing,
        tp: &dyn TensorParallel,
    ) -> Result<(Tensor, SavedForBackward), TchError> {
        let x_bld = x_bld.detach();
        if checkpointing == ActivationCheckpointing::None {
            let graph = self.record(p, &x_bld, act_be, None, tp)?;
            return Ok((graph.y.detach(), SavedForBackward { x_bld: None, attended: None, graph: Some(graph) }));
        }
        let (y, attended) = tch::no_grad(|| self.apply(p, &x_bld, act_be, None, tp))?;
        let attended = (checkpointing == ActivationCheckpointing::Selective).then_some(attended);
        Ok((y, SavedForBackward { x_bld: Some(x_bld), attended, graph: None }))
    }

    /// Recomputes the block with a graph for [`Block::backward`], and returns its output. `x_bld` is its input.
    ///
    /// # Errors
    /// A collective of `tp` failed.
    pub fn recompute(
        &self,
        p: &UnitParams,
        saved: &mut SavedForBackward,
        x_bld: &Tensor,
        act_be: &Tensor,
        tp: &dyn TensorParallel,
    ) -> Result<Tensor, TchError> {
        let graph = self.record(p, x_bld, act_be, saved.attended.take().as_ref(), tp)?;
        let y = graph.y.detach();
        saved.graph = Some(graph);
        Ok(y)
    }

    /// Returns the block's gradients, given the gradient of its output `[B, L, D]`.
    ///
    /// # Errors
    /// A collective of `tp` failed.
    pub fn backward(
        &self,
        p: &UnitParams,
        saved: SavedForBackward,
        act_be: &Tensor,
        grad_y: &Tensor,
        tp: &dyn TensorParallel,
    ) -> Result<BlockGrads, TchError> {
        let SavedForBackward { x_bld, attended, graph } = saved;
        let Graph { x, act, y } = match graph {
            Some(graph) => graph,
            None => {
                let x_bld = x_bld.expect("a block that was not recomputed has its input");
                self.record(p, &x_bld, act_be, attended.as_ref(), tp)?
            }
        };
        drop(attended);
        let (slots, trained): (Vec<usize>, Vec<&Tensor>) = p.trained().unzip();
        let wanted: Vec<&Tensor> = [&x, &act].into_iter().chain(trained).collect();
        let mut grads = vjp(&[(&y, grad_y)], &wanted)?;
        let params = slots.into_iter().zip(grads.split_off(2)).collect();
        let [x_bld, act_be] = grads.try_into().expect("two gradients besides those of the parameters");
        Ok(BlockGrads { params, x_bld, act_be })
    }

    /// Applies the block with a graph whose leaves are copies of its inputs.
    fn record(
        &self,
        p: &UnitParams,
        x_bld: &Tensor,
        act_be: &Tensor,
        known: Option<&Attended>,
        tp: &dyn TensorParallel,
    ) -> Result<Graph, TchError> {
        let (x, act) = (leaf(x_bld), leaf(act_be));
        let (y, _) = self.apply(p, &x, &act, known, tp)?;
        Ok(Graph { x, act, y })
    }

    /// Applies the block. `known` is the saved attention output on the same input, if there is one.
    fn apply(
        &self,
        p: &UnitParams,
        x_bld: &Tensor,
        act_be: &Tensor,
        known: Option<&Attended>,
        tp: &dyn TensorParallel,
    ) -> Result<(Tensor, Attended), TchError> {
        let modulation = p.affine(self.norm1_linear).linear(act_be);
        let normed = self.modulated_norm(p.affine(self.norm1), x_bld, &modulation);
        let (mixed, attended) = self.mix(p, &normed, known, tp)?;
        let x = self.gated_add(x_bld, &mixed, &modulation);

        let modulation = p.affine(self.norm2_linear).linear(act_be);
        let normed = tp.copy_to(&self.modulated_norm(p.affine(self.norm2), &x, &modulation))?;
        let hidden = p.affine(self.up).linear(&normed).gelu("tanh");
        let update = p.affine(self.down).row_linear(&hidden, tp)?;
        Ok((self.gated_add(&x, &update, &modulation), attended))
    }

    /// Mixes the tokens of a sequence, `[B, L, D]` after modulation: attention within segments, then TTT layers across
    /// them.
    ///
    /// # Errors
    /// A collective of `tp` failed.
    pub fn mix(
        &self,
        p: &UnitParams,
        normed: &Tensor,
        known: Option<&Attended>,
        tp: &dyn TensorParallel,
    ) -> Result<(Tensor, Attended), TchError> {
        let (local, attended) = self.attention(p, normed, known, tp)?;
        let mixed = match &self.ttt {
            Some(ttt) => ttt.both_ways(p, &local, tp)?,
            None => local,
        };
        Ok((mixed, attended))
    }

    /// Applies attention within each segment and the output projection, `[B, L, D]` to `[B, L, D]`. Each rank of `tp`
    /// computes its own heads.
    ///
    /// # Errors
    /// A collective of `tp` failed.
    pub fn attention(
        &self,
        p: &UnitParams,
        normed: &Tensor,
        known: Option<&Attended>,
        tp: &dyn TensorParallel,
    ) -> Result<(Tensor, Attended), TchError> {
        let normed = tp.copy_to(normed)?;
        let size = normed.size();
        let heads = |slot| p.affine(slot).linear(&normed).view([size[0], size[1], -1, self.head_dim]);
        // Frames that segments share are projected once; then each segment gets its tokens at its own positions.
        let split = |x: Tensor| self.segments.as_ref().map_or_else(|| x.shallow_clone(), |s| s.split(&x));
        let turned = |x: Tensor| match &self.rotary {
            Some(rotary) => rotate(&x, rotary),
            None => x,
        };
        let norms = self.head_norms(p, tp)?;
        let normed_heads = |slot, gain: &Tensor, bias: &Tensor| {
            heads(slot).layer_norm([self.head_dim], Some(gain), Some(bias), self.qk_eps, true)
        };
        let q = turned(split(normed_heads(self.q, &norms[0], &norms[1])));
        let k = turned(split(normed_heads(self.k, &norms[2], &norms[3])));
        let attended = attend(&q.transpose(1, 2), &k.transpose(1, 2), &split(heads(self.v)).transpose(1, 2), known);
        let merged = attended.out.transpose(1, 2).flatten(2, 3);
        // The projection is linear, so averaging segments before the projection equals averaging after it.
        let merged = self.segments.as_ref().map_or_else(|| merged.shallow_clone(), |s| s.merge(&merged));
        Ok((p.affine(self.o).row_linear(&merged, tp)?, attended))
    }

    /// Returns gain and bias of the query norm, then of the key norm. Every rank of `tp` has all four and applies them
    /// to its own heads, so one collective sums their gradients.
    fn head_norms(&self, p: &UnitParams, tp: &dyn TensorParallel) -> Result<Vec<Tensor>, TchError> {
        let four = [self.q_norm, self.q_norm + 1, self.k_norm, self.k_norm + 1].map(|slot| p.tensor(slot));
        if tp.size() == 1 {
            return Ok(four.map(Tensor::shallow_clone).into());
        }
        Ok(tp.copy_to(&Tensor::cat(&four, 0))?.chunk(4, 0))
    }

    /// Applies one LayerNorm to both streams, then the shift and scale of each stream.
    ///
    /// A modulation holds six vectors: shift, scale and gate of the video, then of the text.
    /// Source: ttt-video-dit `dit.py`.
    fn modulated_norm(&self, norm: Affine<'_>, x_bld: &Tensor, modulation: &Tensor) -> Tensor {
        let normed = norm.layer_norm(x_bld, self.eps);
        let m = modulation.unsqueeze(1).chunk(6, -1);
        let (text, video) = self.streams(&normed);
        Tensor::cat(&[m[3].addcmul(&text, &(&m[4] + 1.0)), m[0].addcmul(&video, &(&m[1] + 1.0))], 1)
    }

    /// Adds `update`, multiplied by the gate of each stream, to the residual.
    fn gated_add(&self, x_bld: &Tensor, update: &Tensor, modulation: &Tensor) -> Tensor {
        let m = modulation.unsqueeze(1).chunk(6, -1);
        let (x_text, x_video) = self.streams(x_bld);
        let (text, video) = self.streams(update);
        Tensor::cat(&[x_text.addcmul(&m[5], &text), x_video.addcmul(&m[2], &video)], 1)
    }

    /// Splits a sequence into text and video tokens.
    fn streams(&self, x_bld: &Tensor) -> (Tensor, Tensor) {
        let len = x_bld.size()[1];
        (x_bld.narrow(1, 0, self.text_len), x_bld.narrow(1, self.text_len, len - self.text_len))
    }
}
