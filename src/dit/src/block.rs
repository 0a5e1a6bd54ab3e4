//! One transformer block: two modulated halves around attention, and their backward pass.
//!
//! The block runs in three parts: *before* attention (norm, projections, rotation), attention itself, and *after* it
//! (output projection, residual, MLP). The forward pass builds no graph. The backward pass builds the graph of each part
//! when its turn comes, so one part of one block is the most that is ever alive; attention has a backward formula of its
//! own and needs no graph at all.

use crate::attention::{Attended, Qkv, attend, attend_backward, rotate};
use crate::params::{Affine, SlotGrad, Slots, UnitParams};
use crate::vjp::{leaf, vjp};
use recipe::{Model, Unit};
use tch::Tensor;

/// What the forward pass of a block keeps for its backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// The input alone: attention runs again.
    Input,
    /// The input and the attention output: everything but attention runs again.
    Attention,
    /// The graph itself: nothing runs again. For the last block, whose backward pass is next.
    Everything,
}

/// The same block for every layer: sizes, and where its parameters stand in the unit's table.
#[derive(Debug)]
pub struct Block {
    heads: i64,
    head_dim: i64,
    text_len: i64,
    eps: f64,
    qk_eps: f64,
    rotary: Option<Tensor>,
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
    x_bld: Tensor,
    attended: Option<Attended>,
    graph: Option<Graph>,
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

/// Modulations of both halves, `[B, 6D]` each.
#[derive(Debug)]
struct Modulations {
    first: Tensor,
    second: Tensor,
}

/// The graphs of both parts, kept by [`Keep::Everything`].
#[derive(Debug)]
struct Graph {
    before: Before,
    after: After,
}

/// The part before attention with its graph.
#[derive(Debug)]
struct Before {
    x: Tensor,
    first: Tensor,
    qkv: Qkv,
}

/// The part after attention with its graph.
#[derive(Debug)]
struct After {
    x: Tensor,
    out: Tensor,
    first: Tensor,
    second: Tensor,
    y: Tensor,
}

impl Block {
    /// Finds a block's parameters by name; `rotary` is [`crate::positions::rotary`] for models that use it.
    pub fn new(model: &Model, rotary: Option<Tensor>) -> Self {
        let slots = Slots::of(model, Unit::Block(0));
        Block {
            heads: model.num_heads as i64,
            head_dim: model.head_dim as i64,
            text_len: model.text_len as i64,
            eps: model.norm_eps,
            qk_eps: model.qk_norm_eps,
            rotary,
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

    /// Applies the block to tokens `[B, L, D]` under the activated time embedding `[B, E]`.
    pub fn forward(&self, p: &UnitParams, x_bld: &Tensor, act_be: &Tensor, keep: Keep) -> (Tensor, Tape) {
        let x_bld = x_bld.detach();
        if keep == Keep::Everything {
            let modulations = tch::no_grad(|| self.modulations(p, act_be));
            let before = self.record_before(p, &x_bld, &modulations);
            let attended = attend(&before.qkv);
            let after = self.record_after(p, &x_bld, &attended, &modulations);
            let y = after.y.detach();
            return (y, Tape { x_bld, attended: Some(attended), graph: Some(Graph { before, after }) });
        }
        tch::no_grad(|| {
            let modulations = self.modulations(p, act_be);
            let attended = attend(&self.before(p, &x_bld, &modulations.first));
            let y = self.after(p, &x_bld, &attended.out, &modulations.first, &modulations.second);
            let attended = (keep == Keep::Attention).then_some(attended);
            (y, Tape { x_bld, attended, graph: None })
        })
    }

    /// Returns the block's gradients, given that of its output `[B, L, D]`.
    pub fn backward(&self, p: &UnitParams, tape: Tape, act_be: &Tensor, grad_y: &Tensor) -> BlockGrads {
        let act = leaf(act_be);
        let modulations = self.modulations(p, &act);
        let Tape { x_bld, attended, graph } = tape;
        let (mut before, after) = graph.map_or((None, None), |g| (Some(g.before), Some(g.after)));

        let attended = attended.unwrap_or_else(|| {
            let recorded = self.record_before(p, &x_bld, &modulations);
            let attended = attend(&recorded.qkv);
            before = Some(recorded);
            attended
        });

        let after = after.unwrap_or_else(|| self.record_after(p, &x_bld, &attended, &modulations));
        let affines = [self.o, self.norm2, self.up, self.down].map(|slot| p.affine(slot));
        let After { x, out, first, second, y } = after;
        let (mut params, [mut grad_x, grad_out, mut grad_first, grad_second]) =
            pull(&affines, [&x, &out, &first, &second], &[(&y, grad_y)]);
        drop(y);

        let before = before.unwrap_or_else(|| self.record_before(p, &x_bld, &modulations));
        let grad_qkv = attend_backward(&before.qkv, &attended, &grad_out);
        drop(attended);
        let affines = [self.norm1, self.q, self.k, self.v, self.q_norm, self.k_norm].map(|slot| p.affine(slot));
        let Before { x, first, qkv } = before;
        let pairs = [(&qkv.q, &grad_qkv.q), (&qkv.k, &grad_qkv.k), (&qkv.v, &grad_qkv.v)];
        let (more, [more_x, more_first]) = pull(&affines, [&x, &first], &pairs);
        params.extend(more);
        grad_x += more_x;
        grad_first += more_first;

        let affines = [self.norm1_linear, self.norm2_linear].map(|slot| p.affine(slot));
        let pairs = [(&modulations.first, &grad_first), (&modulations.second, &grad_second)];
        let (more, [act_be]) = pull(&affines, [&act], &pairs);
        params.extend(more);
        BlockGrads { params, x_bld: grad_x, act_be }
    }

    fn modulations(&self, p: &UnitParams, act_be: &Tensor) -> Modulations {
        Modulations {
            first: p.affine(self.norm1_linear).linear(act_be),
            second: p.affine(self.norm2_linear).linear(act_be),
        }
    }

    fn record_before(&self, p: &UnitParams, x_bld: &Tensor, modulations: &Modulations) -> Before {
        let (x, first) = (leaf(x_bld), leaf(&modulations.first));
        let qkv = self.before(p, &x, &first);
        Before { x, first, qkv }
    }

    fn record_after(&self, p: &UnitParams, x_bld: &Tensor, attended: &Attended, modulations: &Modulations) -> After {
        let (x, out) = (leaf(x_bld), leaf(&attended.out));
        let (first, second) = (leaf(&modulations.first), leaf(&modulations.second));
        let y = self.after(p, &x, &out, &first, &second);
        After { x, out, first, second, y }
    }

    fn before(&self, p: &UnitParams, x_bld: &Tensor, first: &Tensor) -> Qkv {
        let normed = self.modulated_norm(p.affine(self.norm1), x_bld, first);
        let size = normed.size();
        let heads = |slot| p.affine(slot).linear(&normed).view([size[0], size[1], self.heads, self.head_dim]);
        let turned = |x: Tensor| match &self.rotary {
            Some(rotary) => rotate(&x, rotary),
            None => x,
        };
        let q = turned(p.affine(self.q_norm).layer_norm(&heads(self.q), self.qk_eps));
        let k = turned(p.affine(self.k_norm).layer_norm(&heads(self.k), self.qk_eps));
        Qkv { q: q.transpose(1, 2), k: k.transpose(1, 2), v: heads(self.v).transpose(1, 2) }
    }

    fn after(&self, p: &UnitParams, x_bld: &Tensor, out_bhlf: &Tensor, first: &Tensor, second: &Tensor) -> Tensor {
        let size = x_bld.size();
        let merged = out_bhlf.transpose(1, 2).reshape([size[0], size[1], size[2]]);
        let x = self.gated_add(x_bld, &p.affine(self.o).linear(&merged), first);
        let normed = self.modulated_norm(p.affine(self.norm2), &x, second);
        let hidden = p.affine(self.up).linear(&normed).gelu("tanh");
        self.gated_add(&x, &p.affine(self.down).linear(&hidden), second)
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

/// Gradients of the trained ones among `affines`, and of `inputs`.
fn pull<const N: usize>(
    affines: &[Affine<'_>],
    inputs: [&Tensor; N],
    pairs: &[(&Tensor, &Tensor)],
) -> (Vec<SlotGrad>, [Tensor; N]) {
    let (slots, trained): (Vec<usize>, Vec<&Tensor>) = affines.iter().flat_map(|a| a.trained()).unzip();
    let wanted: Vec<&Tensor> = inputs.into_iter().chain(trained).collect();
    let mut grads = vjp(pairs, &wanted);
    let params = slots.into_iter().zip(grads.split_off(N)).collect();
    (params, grads.try_into().expect("one gradient per input"))
}
