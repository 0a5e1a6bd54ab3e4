//! The floating-point operations (FLOPs) of a forward pass and of a training step.

use serde::Serialize;
use std::ops::Add;

use crate::{Model, Recipe};

/// Floating-point operations of matrix products and attention, which are about 99 % of the work. A multiply-add counts
/// as two.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
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
    pub fn forward(model: &Model) -> Self {
        model.family().forward_flops(model)
    }

    /// Counts a step for one sample: forward, recomputation, and twice the forward for gradients.
    ///
    /// All blocks except those of the last group are recomputed; their attention and their scans are recomputed only if the
    /// outputs are not kept. A TTT layer repeats its scan within its backward pass, from the saved states.
    pub fn step(recipe: &Recipe) -> Self {
        let ends = Flops { ends: 3.0 * Flops::forward(&recipe.model).ends, ..Flops::default() };
        let recomputed = recipe.recomputed_blocks();
        recipe.blocks().iter().enumerate().fold(ends, |sum, (number, block)| {
            let recompute = if number < recomputed { 1.0 } else { 0.0 };
            let attention_recompute = if recipe.remat.keep_attention { 0.0 } else { recompute };
            let scan_recompute = if recipe.remat.keep_scan { 0.0 } else { recompute };
            let once = block.flops;
            sum + Flops {
                attention: once.attention * (3.0 + attention_recompute),
                projections: once.projections * (3.0 + recompute),
                ttt_projections: once.ttt_projections * (3.0 + recompute),
                ttt_scan: once.ttt_scan * (4.0 + scan_recompute),
                mlp: once.mlp * (3.0 + recompute),
                modulation: once.modulation * (3.0 + recompute),
                ends: 0.0,
            }
        })
    }

    /// Returns the sum of all fields.
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

impl Add for Flops {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Flops {
            attention: self.attention + other.attention,
            projections: self.projections + other.projections,
            ttt_projections: self.ttt_projections + other.ttt_projections,
            ttt_scan: self.ttt_scan + other.ttt_scan,
            mlp: self.mlp + other.mlp,
            modulation: self.modulation + other.modulation,
            ends: self.ends + other.ends,
        }
    }
}
