//! One transformer block, and its backward pass.
//!
//! The block is a plain function of its input and parameters. The forward pass runs it without a graph; the backward
//! pass runs it once more with one, given what the forward pass kept, and takes the gradients of all it used at once.

use crate::parallel::TensorParallel;
use crate::params::{Affine, SlotGrad, Slots, UnitParams};
use crate::positions::rotate;
use crate::segments::Segments;
use crate::ttt::Ttt;
use crate::vjp::{leaf, vjp};
use kernels::attention::{Attended, attend};
use recipe::{Model, Unit};
use tch::{Device, TchError, Tensor};

/// What the forward pass of a block keeps for its backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// The input alone: everything runs again.
    Input,
    /// The input and the attention output: everything but attention runs again.
    Attention,
    /// The graph itself: nothing runs again. For the last block, whose backward pass is next.
    Everything,
}

/// The same block for every layer: sizes, and where its parameters stand in the unit's table.
#[derive(Debug)]
pub struct Block {
    head_dim: i64,
    text_len: i64,
    eps: f64,
    qk_eps: f64,
    /// Of one segment.
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

/// What a block's forward pass left for [`Block::backward`].
#[derive(Debug)]
pub struct Tape {
    /// None when another block's input is what it is made of again.
    x_bld: Option<Tensor>,
    attended: Option<Attended>,
    graph: Option<Graph>,
}

/// A block that has run with a graph.
#[derive(Debug)]
struct Graph {
    x: Tensor,
    act: Tensor,
    y: Tensor,
}

/// Gradients that a block hands on.
#[derive(Debug)]
pub struct BlockGrads {
    /// Gradients of the block's trained parameters.
    pub params: Vec<SlotGrad>,
    /// `[B, L, D]`, for the block before.
    pub x_bld: Tensor,
    /// `[B, E]`, to be added over blocks.
    pub act_be: Tensor,
}

impl Tape {
    /// Gives the block's input away.
    pub fn take_input(&mut self) -> Option<Tensor> {
        self.x_bld.take()
    }

    /// Puts something else in the place of the block's input.
    ///
    /// # Errors
    /// What `change` met.
    pub fn change_input(&mut self, change: impl FnOnce(&Tensor) -> Result<Tensor, TchError>) -> Result<(), TchError> {
        self.x_bld = self.x_bld.take().map(|x| change(&x)).transpose()?;
        Ok(())
    }
}

impl Block {
    /// Finds a block's parameters by name; `rotary` are the factors of one segment for models that use them, and
    /// `scan_group` is how many mini-batches a TTT layer walks between saved states.
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

    /// Moves the fixed parts to where parameters and inputs are.
    pub fn move_to(&mut self, device: Device) {
        self.rotary = self.rotary.take().map(|rotary| rotary.to_device(device));
        if let Some(segments) = &mut self.segments {
            segments.move_to(device);
        }
        if let Some(ttt) = &mut self.ttt {
            ttt.move_to(device);
        }
    }

    /// Applies the block to tokens `[B, L, D]` under the activated time embedding `[B, E]`.
    ///
    /// # Errors
    /// When a peer of `tp` is gone.
    pub fn forward(
        &self,
        p: &UnitParams,
        x_bld: &Tensor,
        act_be: &Tensor,
        keep: Keep,
        tp: &dyn TensorParallel,
    ) -> Result<(Tensor, Tape), TchError> {
        let x_bld = x_bld.detach();
        if keep == Keep::Everything {
            let graph = self.record(p, &x_bld, act_be, None, tp)?;
            return Ok((graph.y.detach(), Tape { x_bld: None, attended: None, graph: Some(graph) }));
        }
        let (y, attended) = tch::no_grad(|| self.apply(p, &x_bld, act_be, None, tp))?;
        let attended = (keep == Keep::Attention).then_some(attended);
        Ok((y, Tape { x_bld: Some(x_bld), attended, graph: None }))
    }

    /// Runs the block once more, with a graph that [`Block::backward`] then takes; returns its output. `x_bld` is its input.
    ///
    /// # Errors
    /// When a peer of `tp` is gone.
    pub fn again(
        &self,
        p: &UnitParams,
        tape: &mut Tape,
        x_bld: &Tensor,
        act_be: &Tensor,
        tp: &dyn TensorParallel,
    ) -> Result<Tensor, TchError> {
        let graph = self.record(p, x_bld, act_be, tape.attended.take().as_ref(), tp)?;
        let y = graph.y.detach();
        tape.graph = Some(graph);
        Ok(y)
    }

    /// Returns the block's gradients, given that of its output `[B, L, D]`.
    ///
    /// # Errors
    /// When a peer of `tp` is gone.
    pub fn backward(
        &self,
        p: &UnitParams,
        tape: Tape,
        act_be: &Tensor,
        grad_y: &Tensor,
        tp: &dyn TensorParallel,
    ) -> Result<BlockGrads, TchError> {
        let Tape { x_bld, attended, graph } = tape;
        let Graph { x, act, y } = match graph {
            Some(graph) => graph,
            None => {
                let x_bld = x_bld.expect("a block that has not run again has its input");
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

    /// Applies the block with a graph that begins at copies of its inputs.
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

    /// The block itself. `known` is the result of attention on the same input, if it is at hand.
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

    /// Lets the tokens of a sequence, `[B, L, D]` after modulation, tell each other something: attention within
    /// segments, then TTT layers across them.
    ///
    /// # Errors
    /// When a peer of `tp` is gone.
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

    /// Attention within each segment, projected: `[B, L, D]` to the same. Each rank of `tp` attends with its own heads.
    ///
    /// # Errors
    /// When a peer of `tp` is gone.
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
        // Shared frames are projected once; each segment then sees its tokens at its own positions.
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
        // The mean over segments before the projection is the mean after it, which is linear.
        let merged = self.segments.as_ref().map_or_else(|| merged.shallow_clone(), |s| s.merge(&merged));
        Ok((p.affine(self.o).row_linear(&merged, tp)?, attended))
    }

    /// Gain and bias of the norms of queries, then of keys. Every rank has them whole and applies them to heads of its
    /// own, so their gradients are summed up: those of all four at once.
    fn head_norms(&self, p: &UnitParams, tp: &dyn TensorParallel) -> Result<Vec<Tensor>, TchError> {
        let four = [self.q_norm, self.q_norm + 1, self.k_norm, self.k_norm + 1].map(|slot| p.tensor(slot));
        if tp.size() == 1 {
            return Ok(four.map(Tensor::shallow_clone).into());
        }
        Ok(tp.copy_to(&Tensor::cat(&four, 0))?.chunk(4, 0))
    }

    /// One LayerNorm for both streams, then each stream's own shift and scale.
    ///
    /// A modulation is six vectors: shift, scale and gate of the video, then of the text (reference `dit.py`).
    fn modulated_norm(&self, norm: Affine<'_>, x_bld: &Tensor, modulation: &Tensor) -> Tensor {
        let normed = norm.layer_norm(x_bld, self.eps);
        let m = modulation.unsqueeze(1).chunk(6, -1);
        let (text, video) = self.streams(&normed);
        Tensor::cat(&[m[3].addcmul(&text, &(&m[4] + 1.0)), m[0].addcmul(&video, &(&m[1] + 1.0))], 1)
    }

    /// Adds `update` to the residual stream, scaled by each stream's gate.
    fn gated_add(&self, x_bld: &Tensor, update: &Tensor, modulation: &Tensor) -> Tensor {
        let m = modulation.unsqueeze(1).chunk(6, -1);
        let (x_text, x_video) = self.streams(x_bld);
        let (text, video) = self.streams(update);
        Tensor::cat(&[x_text.addcmul(&m[5], &text), x_video.addcmul(&m[2], &video)], 1)
    }

    /// Text and video tokens.
    fn streams(&self, x_bld: &Tensor) -> (Tensor, Tensor) {
        let len = x_bld.size()[1];
        (x_bld.narrow(1, 0, self.text_len), x_bld.narrow(1, self.text_len, len - self.text_len))
    }
}
