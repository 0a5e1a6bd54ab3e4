//! Floating-point operations of a pass and of a step.

use serde::Serialize;

use crate::{Layer, Model, Recipe};

/// Floating-point operations of matrix products and attention, which are about 99 % of the work. A multiply-add counts
/// as two.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Flops {
    /// Scores and weighted sums of attention.
    pub attention: f64,
    /// Projections of attention.
    pub projections: f64,
    /// Projections of TTT layers, in both directions.
    pub ttt_projections: f64,
    /// The inner loop of TTT layers, in both directions.
    pub ttt_scan: f64,
    /// MLPs.
    pub mlp: f64,
    /// Modulations, whose cost does not depend on the sequence length.
    pub modulation: f64,
    /// Embeddings and the final layer.
    pub ends: f64,
}

impl Flops {
    /// Counts one forward pass over one sample.
    // L tokens, D model width, E time width, F head width.
    pub fn forward(m: &Model) -> Self {
        let [l, d, e] = [m.seq_len(), m.dim(), m.time_embed_dim].map(|size| size as f64);
        let [text, video] = [m.text_tokens(), m.video_tokens()].map(|size| size as f64);
        let patch = (m.patch_size * m.patch_size * m.patch_size_t) as f64;
        let layers = m.num_layers as f64;
        let segment = m.attention_len() as f64;
        let head = m.head_dim as f64;
        // Each direction has its own projections, and scans the sequence with seven products of F × 4F per token and head
        // (TTT-MLP) or three of F × F (TTT-linear).
        let scan = match m.layer {
            Layer::None => 0.0,
            Layer::TttLinear => 3.0 * head * head,
            Layer::TttMlp => 7.0 * 4.0 * head * head,
        };
        let ttt = if m.layer == Layer::None { 0.0 } else { 2.0 * l };
        let offset = if m.ofs_embedding { 2.0 * e * e } else { 0.0 };
        let embedding =
            video * d * patch * m.in_channels as f64 + text * m.text_dim as f64 * d + e * d + e * e + offset;
        let last = 2.0 * d * e + video * d * patch * m.out_channels as f64;
        Flops {
            attention: 2.0 * layers * 2.0 * m.segments as f64 * segment * segment * d,
            projections: 2.0 * layers * 4.0 * l * d * d,
            ttt_projections: 2.0 * layers * ttt * 4.0 * d * d,
            ttt_scan: 2.0 * layers * ttt * m.num_heads as f64 * scan,
            mlp: 2.0 * layers * 8.0 * l * d * d,
            modulation: 2.0 * layers * 2.0 * 6.0 * d * e,
            ends: 2.0 * (embedding + last),
        }
    }

    /// Counts a step for one sample: forward, recomputation, and twice the forward for gradients.
    ///
    /// All blocks except those of the last group are recomputed; their attention is recomputed only if its outputs are
    /// not kept. A TTT layer
    /// repeats its scan within its backward pass, from the saved states.
    pub fn step(recipe: &Recipe) -> Self {
        let once = Flops::forward(&recipe.model);
        let layers = recipe.model.num_layers as f64;
        let recompute = recipe.recomputed_blocks() as f64 / layers;
        let attention_recompute = if recipe.remat.keep_attention { 0.0 } else { recompute };
        Flops {
            attention: once.attention * (3.0 + attention_recompute),
            projections: once.projections * (3.0 + recompute),
            ttt_projections: once.ttt_projections * (3.0 + recompute),
            ttt_scan: once.ttt_scan * (4.0 + recompute),
            mlp: once.mlp * (3.0 + recompute),
            modulation: once.modulation * (3.0 + recompute),
            ends: once.ends * 3.0,
        }
    }

    /// Returns the sum.
    pub fn total(&self) -> f64 {
        self.attention
            + self.projections
            + self.ttt_projections
            + self.ttt_scan
            + self.mlp
            + self.modulation
            + self.ends
    }
}
