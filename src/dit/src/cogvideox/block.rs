//! CogVideoX's transformer block.

use super::Grid;
use super::ttt::Ttt;
use crate::mixers::Mixers;
use crate::parallel::TensorParallel;
use crate::params::{Affine, UnitParams};
use kernels::OnGpu;
use kernels::fused::{self, Modulation, rotate};
use recipe::{FsdpUnit, Fused, Model, TttScan};
use tch::{TchError, Tensor};

/// The sizes of a block and the slots of its parameters, which are indices into the unit's table. All blocks share it.
#[derive(Debug)]
pub struct Block {
    head_dim: i64,
    eps: f64,
    qk_eps: f64,
    ttt: Option<Ttt>,
    /// The implementation of norms, gates and rotary embeddings on GPUs.
    fused: OnGpu,
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

impl Block {
    /// Looks up the slots of a block's parameters.
    ///
    /// * `scan_group` — the number of mini-batches between the states that a TTT layer saves.
    pub fn new(model: &Model, scan_group: usize) -> Self {
        let slots = super::slots(model, FsdpUnit::Block(0));
        Block {
            head_dim: model.head_dim as i64,
            eps: model.norm_eps,
            qk_eps: model.qk_norm_eps,
            ttt: Ttt::new(model, scan_group),
            fused: OnGpu::Operators,
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

    /// Selects libtorch's operators or the CUDA kernels on GPUs: `scan` for the scan of TTT layers, `fused` for norms,
    /// gates and rotary embeddings.
    pub fn on_gpu(&mut self, scan: TttScan, fused: Fused) {
        self.fused = match fused {
            Fused::Auto => OnGpu::Auto,
            Fused::Operators => OnGpu::Operators,
            Fused::Kernel => OnGpu::Kernel,
        };
        if let Some(ttt) = &mut self.ttt {
            ttt.on_gpu(scan, self.fused);
        }
    }

    /// Applies the block to tokens `[B, L, D]`, modulated by the activated time embedding `[B, E]`.
    ///
    /// # Errors
    /// A collective of `tp` failed.
    pub fn forward(
        &self,
        grid: &Grid,
        p: &UnitParams,
        x_bld: &Tensor,
        act_be: &Tensor,
        mixers: &Mixers,
        tp: &dyn TensorParallel,
    ) -> Result<Tensor, TchError> {
        let text = grid.text_tokens;
        let modulation = p.affine(self.norm1_linear).linear(act_be);
        let normed = self.modulated_norm(p.affine(self.norm1), x_bld, &modulation, text);
        let mixed = self.mix(grid, p, &normed, mixers, tp)?;
        let x = self.gated_add(x_bld, &mixed, &modulation, text);

        let modulation = p.affine(self.norm2_linear).linear(act_be);
        let normed = tp.copy_to(&self.modulated_norm(p.affine(self.norm2), &x, &modulation, text))?;
        let hidden = p.affine(self.up).linear(&normed).gelu("tanh");
        // Only the gate's gradient needs the value of the last linear layer.
        let is_value_used = !p.is_for_gradients_only() || modulation.requires_grad();
        let down = p.affine(self.down);
        let update = if is_value_used { down } else { down.without_value() }.row_linear(&hidden, tp)?;
        Ok(self.gated_add(&x, &update, &modulation, text))
    }

    /// Mixes the tokens of a sequence, `[B, L, D]` after modulation: attention within segments, then TTT layers across
    /// them.
    ///
    /// # Errors
    /// A collective of `tp` failed.
    pub fn mix(
        &self,
        grid: &Grid,
        p: &UnitParams,
        normed: &Tensor,
        mixers: &Mixers,
        tp: &dyn TensorParallel,
    ) -> Result<Tensor, TchError> {
        let local = self.attention(grid, p, normed, mixers, tp)?;
        match (&self.ttt, &grid.scan) {
            (Some(ttt), Some(scan)) => ttt.both_ways(scan, p, &local, mixers, tp),
            _ => Ok(local),
        }
    }

    /// Applies attention within each segment and the output projection, `[B, L, D]` to `[B, L, D]`. Each rank of `tp`
    /// computes its own heads.
    ///
    /// # Errors
    /// A collective of `tp` failed.
    pub fn attention(
        &self,
        grid: &Grid,
        p: &UnitParams,
        normed: &Tensor,
        mixers: &Mixers,
        tp: &dyn TensorParallel,
    ) -> Result<Tensor, TchError> {
        let normed = tp.copy_to(normed)?;
        let size = normed.size();
        let heads = |slot| p.affine(slot).linear(&normed).view([size[0], size[1], -1, self.head_dim]);
        // Frames that segments share are projected once; then each segment gets its tokens at its own positions.
        let split = |x: Tensor| grid.segments.as_ref().map_or_else(|| x.shallow_clone(), |s| s.split(&x));
        let norms = self.head_norms(p, tp)?;
        let normed_heads = |slot, norm: (&Tensor, &Tensor)| {
            let (x, rotary) = (heads(slot), grid.rotary.as_ref());
            match &grid.segments {
                None => fused::head_norm(&x, norm, rotary, self.qk_eps, self.fused),
                Some(segments) => {
                    let x = segments.split(&fused::head_norm(&x, norm, None, self.qk_eps, self.fused));
                    rotary.map_or_else(|| x.shallow_clone(), |rotary| rotate(&x, rotary, self.fused))
                }
            }
        };
        let q = normed_heads(self.q, (&norms[0], &norms[1]));
        let k = normed_heads(self.k, (&norms[2], &norms[3]));
        let v = split(heads(self.v));
        let out = mixers.scaled_dot_product(&q.transpose(1, 2), &k.transpose(1, 2), &v.transpose(1, 2));
        let merged = out.transpose(1, 2).flatten(2, 3);
        // The projection is linear, so averaging segments before the projection equals averaging after it.
        let merged = grid.segments.as_ref().map_or_else(|| merged.shallow_clone(), |s| s.merge(&merged));
        p.affine(self.o).row_linear(&merged, tp)
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
    fn modulated_norm(&self, norm: Affine<'_>, x_bld: &Tensor, modulation: &Tensor, text_tokens: i64) -> Tensor {
        let m = modulation.unsqueeze(1).chunk(6, -1);
        let [text, video] = [3, 0].map(|i| Modulation { shift: &m[i], scale: &m[i + 1] });
        fused::modulated_norm(x_bld, (norm.weight, norm.bias), [text, video], text_tokens, self.eps, self.fused)
    }

    /// Adds `update`, multiplied by the gate of each stream, to the residual.
    fn gated_add(&self, x_bld: &Tensor, update: &Tensor, modulation: &Tensor, text_tokens: i64) -> Tensor {
        let m = modulation.unsqueeze(1).chunk(6, -1);
        fused::gated_add(x_bld, update, [&m[5], &m[2]], text_tokens, self.fused)
    }
}
