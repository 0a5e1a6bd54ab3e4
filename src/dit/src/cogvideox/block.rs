//! CogVideoX's transformer block.

use super::Grid;
use super::ttt::Ttt;
use crate::mixers::Mixers;
use crate::parallel::{TensorParallel, own_split};
use crate::params::{Affine, UnitParams};
use kernels::OnGpu;
use kernels::fused::{self, Modulation, rotate};
use recipe::{FsdpUnit, Fused, Model, TttScan};
use tch::Tensor;
use torch_error::TorchError;

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
    /// The slots of the parameters that every rank of a TP group has and applies to its own tokens or heads.
    replicated: Vec<usize>,
}

impl Block {
    /// Looks up the slots of a block's parameters.
    ///
    /// * `scan_group` — the number of mini-batches between the states that a TTT layer saves.
    pub fn new(model: &Model, scan_group: usize) -> Self {
        let slots = super::slots(model, FsdpUnit::Block(0));
        let ttt = Ttt::new(model, scan_group);
        let norms = ["norm1.norm", "norm2.norm", "attn.q_norm", "attn.k_norm"].map(|name| slots.affine(name));
        let biases = ["attn.o", "mlp.down"].map(|name| slots.affine(name) + 1);
        let of_ttt = ttt.as_ref().map(Ttt::replicated).unwrap_or_default();
        Block {
            replicated: norms.into_iter().flat_map(|slot| [slot, slot + 1]).chain(biases).chain(of_ttt).collect(),
            head_dim: model.head_dim as i64,
            eps: model.cogvideox().norm_eps,
            qk_eps: model.cogvideox().qk_norm_eps,
            ttt,
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

    /// Applies the block to this rank's part of the tokens, `[B, L, D]` on one rank, modulated by the activated time embedding `[B, E]`.
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
    ) -> Result<Tensor, TorchError> {
        let modulations = [self.norm1_linear, self.norm2_linear].map(|slot| p.affine(slot).linear(act_be));
        let (p, [first, second]) = &p.copied_to(&self.replicated, modulations, tp)?;
        let text = own_split(grid.text_tokens, x_bld.size()[1], tp);
        let normed = self.modulated_norm(p.affine(self.norm1), x_bld, first, text);
        let mixed = self.mix(grid, p, &normed, mixers, tp)?;
        let x = self.gated_add(x_bld, &mixed, first, text);

        let normed = self.modulated_norm(p.affine(self.norm2), &x, second, text);
        let layers = [self.up, self.down].map(|slot| p.affine(slot));
        let update = p.feed_forward(layers, second, &normed, grid.tokens(), tp)?;
        Ok(self.gated_add(&x, &update, second, text))
    }

    /// Mixes the tokens of a sequence: attention within segments, then TTT layers across them. Takes and returns this rank's part of the
    /// tokens.
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
    ) -> Result<Tensor, TorchError> {
        let local = self.attention(grid, p, normed, mixers, tp)?;
        match (&self.ttt, &grid.scan) {
            (Some(ttt), Some(scan)) => ttt.both_ways(scan, p, &local, grid.tokens(), mixers, tp),
            _ => Ok(local),
        }
    }

    /// Applies attention within each segment and the output projection. Takes and returns this rank's part of the tokens, and computes
    /// this rank's heads for all tokens.
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
    ) -> Result<Tensor, TorchError> {
        let project = |all: &Tensor| [self.q, self.k, self.v].map(|slot| p.affine(slot).linear(all));
        let projected = p.collectives(tp).gather(normed, grid.tokens(), Tensor::shallow_clone, project)?;
        let [q, k, v] = projected.map(|x| x.unflatten(-1, [-1, self.head_dim]));
        // Frames that segments share are projected once; then each segment gets its tokens at its own positions.
        let split = |x: Tensor| grid.segments.as_ref().map_or_else(|| x.shallow_clone(), |s| s.split(&x));
        let normed_heads = |x: Tensor, norm| {
            let (rotary, norm) = (grid.rotary.as_ref(), p.affine(norm));
            let norm = (norm.weight, norm.bias());
            match &grid.segments {
                None => fused::head_norm(&x, norm, rotary, self.qk_eps, self.fused),
                Some(segments) => {
                    let x = segments.split(&fused::head_norm(&x, norm, None, self.qk_eps, self.fused));
                    rotary.map_or_else(|| x.shallow_clone(), |rotary| rotate(&x, rotary, self.fused))
                }
            }
        };
        let (q, k, v) = (normed_heads(q, self.q_norm), normed_heads(k, self.k_norm), split(v));
        let merged = mixers.attention(&q, &k, &v);
        // The projection is linear, so averaging segments before the projection equals averaging after it.
        let merged = grid.segments.as_ref().map_or_else(|| merged.shallow_clone(), |s| s.merge(&merged));
        p.project_heads(p.affine(self.o), &merged, tp)
    }

    /// Applies one LayerNorm to both streams, then the shift and scale of each stream.
    ///
    /// A modulation holds six vectors: shift, scale and gate of the video, then of the text.
    /// Source: ttt-video-dit `dit.py`.
    fn modulated_norm(&self, norm: Affine<'_>, x_bld: &Tensor, modulation: &Tensor, text_tokens: i64) -> Tensor {
        let m = modulation.unsqueeze(1).chunk(6, -1);
        let [text, video] = [3, 0].map(|i| Modulation { shift: &m[i], scale: &m[i + 1] });
        fused::modulated_norm(x_bld, (norm.weight, norm.bias()), [text, video], text_tokens, self.eps, self.fused)
    }

    /// Adds `update`, multiplied by the gate of each stream, to the residual.
    fn gated_add(&self, x_bld: &Tensor, update: &Tensor, modulation: &Tensor, text_tokens: i64) -> Tensor {
        let m = modulation.unsqueeze(1).chunk(6, -1);
        fused::gated_add(x_bld, update, [&m[5], &m[2]], text_tokens, self.fused)
    }
}
