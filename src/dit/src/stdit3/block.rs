//! A block: attention along a frame or along time, attention to the text, and feed-forward layers.

use super::{EPS, Grid, shared};
use crate::family::Tokens;
use crate::mixers::Mixers;
use crate::parallel::{TensorParallel, own_tokens};
use crate::params::{Slots, UnitParams};
use kernels::OnGpu;
use kernels::fused::rotate;
use recipe::families::stdit3::{BlockKind, MODULATIONS, Stdit3};
use tch::{Kind, Tensor};
use torch_error::TorchError;

/// The sizes of a block and the slots of its parameters, which are indices into the unit's table. All blocks share it.
#[derive(Debug)]
pub(super) struct Block {
    head_dim: i64,
    table: usize,
    attention: Projections,
    norms: Option<[usize; 2]>,
    to_text: Projections,
    up: usize,
    down: usize,
    /// The slots of the parameters that every rank of a TP group has and applies to its own tokens or heads.
    replicated: Vec<usize>,
}

/// The slots of the linear layers of an attention.
#[derive(Debug)]
struct Projections {
    q: usize,
    k: usize,
    v: usize,
    o: usize,
}

impl Projections {
    fn of(slots: &Slots, name: &str) -> Self {
        let [q, k, v, o] = ["q", "k", "v", "o"].map(|layer| slots.affine(&format!("{name}.{layer}")));
        Projections { q, k, v, o }
    }
}

/// The vectors that modulate this rank's tokens: shift, scale and gate of the attention, then of the feed-forward layers.
struct Modulation {
    /// `[B, 6, D]`; with a frame mask `[B, 12, D]`, where the second half is that of clean frames.
    vectors: Tensor,
    /// Whether each token has noise, `[B, L, 1]`.
    noised: Option<Tensor>,
}

impl Modulation {
    /// Returns a vector for each token: `[B, 1, D]`, or `[B, L, D]` with a frame mask.
    fn vector(&self, which: i64) -> Tensor {
        let of = |first: i64| self.vectors.narrow(1, first + which, 1);
        match &self.noised {
            None => of(0),
            Some(noised) => of(0).where_self(noised, &of(MODULATIONS as i64)),
        }
    }

    /// Normalizes tokens, and applies the shift and scale that start at vector `first`.
    fn normed(&self, x_bld: &Tensor, first: i64) -> Tensor {
        let normed = x_bld.layer_norm([x_bld.size()[2]], None::<&Tensor>, None::<&Tensor>, EPS, true);
        normed * (self.vector(first + 1) + 1.0) + self.vector(first)
    }

    /// Adds `update`, multiplied by the gate with number `which`.
    fn gated_add(&self, x_bld: &Tensor, update: &Tensor, which: i64) -> Tensor {
        x_bld + self.vector(which) * update
    }
}

impl Block {
    /// Looks up the slots of a block's parameters.
    pub fn new(model: &Stdit3, slots: &Slots) -> Self {
        let norm = |name: &str| slots.find(name).expect("the parameter table has the norms of queries and keys");
        let norms = model.normalizes_qk.then(|| ["attn.q_norm.weight", "attn.k_norm.weight"].map(norm));
        let biases = ["attn.o", "cross_attn.o", "mlp.down"].map(|name| slots.affine(name) + 1);
        Block {
            head_dim: model.head_dim as i64,
            table: slots.find("table").expect("the parameter table has the modulation of a block"),
            attention: Projections::of(slots, "attn"),
            norms,
            to_text: Projections::of(slots, "cross_attn"),
            up: slots.affine("mlp.up"),
            down: slots.affine("mlp.down"),
            replicated: norms.into_iter().flatten().chain(biases).collect(),
        }
    }

    /// Applies the block to this rank's part of the tokens, `[B, L, D]` on one rank.
    ///
    /// # Errors
    /// A collective of `tp` failed.
    pub fn forward(
        &self,
        grid: &Grid,
        kind: BlockKind,
        p: &UnitParams,
        tokens: &Tokens,
        mixers: &Mixers,
        tp: &dyn TensorParallel,
    ) -> Result<Tensor, TorchError> {
        let of_time = &tokens.shared[shared::MODULATION];
        let table = p.tensor(self.table);
        let vectors = of_time + table.repeat([of_time.size()[1] / MODULATIONS as i64, 1]);
        let text = tokens.shared[shared::TEXT].shallow_clone();
        let (p, [vectors, text]) = &p.copied_to(&self.replicated, [vectors, text], tp)?;
        let noised = tokens.shared.get(shared::NOISED).map(|noised| own_tokens(noised, tp));
        let modulation = Modulation { vectors: vectors.shallow_clone(), noised };

        let x = &tokens.streams[0];
        let mixed = self.attention(grid, kind, p, &modulation.normed(x, 0), mixers, tp)?;
        let x = modulation.gated_add(x, &mixed, 2);
        let x = &x + self.attention_to_text(grid, p, &x, text, &tokens.shared[shared::TEXT_MASK], tp)?;
        let layers = [self.up, self.down].map(|slot| p.affine(slot));
        let update = p.feed_forward(layers, vectors, &modulation.normed(&x, 3), grid.len(), tp)?;
        Ok(modulation.gated_add(&x, &update, 5))
    }

    /// Applies attention among the tokens of a frame, or of a place in all frames, and the output projection. Takes and returns this rank's
    /// part of the tokens, and computes this rank's heads for all tokens.
    fn attention(
        &self,
        grid: &Grid,
        kind: BlockKind,
        p: &UnitParams,
        normed: &Tensor,
        mixers: &Mixers,
        tp: &dyn TensorParallel,
    ) -> Result<Tensor, TorchError> {
        let Projections { q, k, v, o } = &self.attention;
        let project = |all: &Tensor| [q, k, v].map(|&slot| p.affine(slot).linear(all));
        let projected = p.collectives(tp).gather(normed, grid.len(), Tensor::shallow_clone, project)?;
        let [frames, places] = [grid.tokens[0], grid.per_frame()];
        let [q, k, v] = projected.map(|x| {
            let heads = x.unflatten(-1, [-1, self.head_dim]).unflatten(1, [frames, places]);
            let sequences = match kind {
                BlockKind::Spatial => heads,
                BlockKind::Temporal => heads.transpose(1, 2),
            };
            sequences.flatten(0, 1)
        });
        let [q, k] = match self.norms {
            Some([q_norm, k_norm]) => [rms_norm(&q, p.tensor(q_norm)), rms_norm(&k, p.tensor(k_norm))],
            None => [q, k],
        };
        let [q, k] = match kind {
            BlockKind::Spatial => [q, k],
            BlockKind::Temporal => {
                let factors = if q.kind() == Kind::BFloat16 { &grid.rotary_bf16 } else { &grid.rotary };
                [q, k].map(|x| rotate(&x.contiguous(), factors, OnGpu::Operators))
            }
        };
        let merged = mixers.attention(&q, &k, &v);
        let merged = match kind {
            BlockKind::Spatial => merged.unflatten(0, [-1, frames]),
            BlockKind::Temporal => merged.unflatten(0, [-1, places]).transpose(1, 2),
        };
        p.project_heads(p.affine(*o), &merged.flatten(1, 2), tp)
    }

    /// Applies attention of tokens to the real tokens of their text, and the output projection. Takes and returns this rank's part of the
    /// tokens.
    ///
    /// libtorch's operator takes the mask. T5 ends every text with a token; for a text without tokens the operator returns zeros on the
    /// CPU.
    fn attention_to_text(
        &self,
        grid: &Grid,
        p: &UnitParams,
        x: &Tensor,
        text: &Tensor,
        text_mask: &Tensor,
        tp: &dyn TensorParallel,
    ) -> Result<Tensor, TorchError> {
        let Projections { q, k, v, o } = &self.to_text;
        let project = |all: &Tensor| [p.affine(*q).linear(all)];
        let [q] = p.collectives(tp).gather(x, grid.len(), Tensor::shallow_clone, project)?;
        let [k, v] = [k, v].map(|&slot| p.affine(slot).linear(text));
        let [q, k, v] = [q, k, v].map(|x| x.unflatten(-1, [-1, self.head_dim]).transpose(1, 2));
        // The same for all heads and tokens.
        let mask = text_mask.unsqueeze(1).unsqueeze(1);
        let out = Tensor::scaled_dot_product_attention(&q, &k, &v, Some(&mask), 0.0, false, None, false);
        p.project_heads(p.affine(*o), &out.transpose(1, 2).flatten(2, 3), tp)
    }
}

/// Divides each head by the root of its mean square, computed in fp32, and multiplies by the gain `[F]`.
fn rms_norm(x: &Tensor, gain: &Tensor) -> Tensor {
    let exact = x.to_kind(Kind::Float);
    let mean = exact.square().mean_dim(-1, true, Kind::Float);
    (exact * (mean + EPS).rsqrt()).to_kind(x.kind()) * gain
}
