//! The planned memory of a model for each way to train it on one device, next to the peaks that cogvideox-factory published.

use crate::{Accumulate, ComputeDtype, Lora, MemorySettings, Mesh, OptimizerKind, Recipe, RematMode, Trainable};
use serde::Serialize;

/// One way to train a model on one device, and its memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MemoryRow {
    /// The rank of the adapters; 0: all weights are trained.
    pub lora_rank: usize,
    /// Whether blocks are recomputed.
    pub recompute: bool,
    /// The optimizer.
    pub optimizer: OptimizerKind,
    /// Whether the optimizer's state is kept in node memory. If all weights are trained, all blocks are swapped too.
    pub offload: bool,
    /// Samples per step.
    pub batch: usize,
    /// The planned peak memory of the process in bytes.
    pub planned: u64,
    /// The peak that cogvideox-factory measured; `None` if it published no number for this row.
    pub published: Option<PublishedPeak>,
}

/// A measured peak on a GPU of 80 GB.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PublishedPeak {
    /// In GB.
    Gb(f64),
    /// The GPU ran out of memory.
    #[serde(rename = "out_of_80_gb")]
    OutOf80Gb,
}

/// A published peak: blocks of the model, rank of the adapters, recomputation, optimizer, offload, batch, GB.
type Published = (usize, usize, bool, OptimizerKind, bool, usize, f64);

use OptimizerKind::{Adamw, Adamw8bit};

/// Peak memory during training from cogvideox-factory's README, on an A100 with 80 GB: 49 frames of 480 × 720 pixels, latents and texts
/// precomputed. Infinity means out of memory.
///
/// Source: `a-r-r-o-w/cogvideox-factory`, README, "Memory Requirements" (January 2025).
#[rustfmt::skip]
const PUBLISHED: &[Published] = &[
    (30, 16, false, Adamw, false, 1, 43.764), (30, 64, false, Adamw, false, 1, 44.314), (30, 256, false, Adamw, false, 1, 45.826),
    (30, 16, true, Adamw, false, 1, 12.945), (30, 64, true, Adamw, false, 1, 13.035), (30, 256, true, Adamw, false, 1, 13.095),
    (30, 16, true, Adamw, false, 4, 21.803), (30, 64, true, Adamw, false, 4, 22.254), (30, 256, true, Adamw, false, 4, 22.020),
    (42, 16, false, Adamw, false, 1, f64::INFINITY), (42, 64, false, Adamw, false, 1, f64::INFINITY), (42, 256, false, Adamw, false, 1, f64::INFINITY),
    (42, 16, true, Adamw, false, 1, 19.742), (42, 64, true, Adamw, false, 1, 20.818), (42, 256, true, Adamw, false, 1, 22.119),
    (42, 16, true, Adamw, false, 4, 46.492), (42, 64, true, Adamw, false, 4, 47.805), (42, 256, true, Adamw, false, 4, 47.268),
    (30, 16, false, Adamw8bit, false, 1, 43.732), (30, 64, false, Adamw8bit, false, 1, 44.004), (30, 256, false, Adamw8bit, false, 1, 45.291),
    (30, 16, true, Adamw8bit, false, 1, 12.945), (30, 64, true, Adamw8bit, false, 1, 13.035), (30, 256, true, Adamw8bit, false, 1, 13.035),
    (30, 16, true, Adamw8bit, false, 4, 21.734), (30, 64, true, Adamw8bit, false, 4, 21.941), (30, 256, true, Adamw8bit, false, 4, 22.020),
    (42, 16, true, Adamw8bit, false, 1, 19.742), (42, 64, true, Adamw8bit, false, 1, 20.818), (42, 256, true, Adamw8bit, false, 1, 21.352),
    (42, 16, true, Adamw8bit, false, 4, 46.320), (42, 64, true, Adamw8bit, false, 4, 46.820), (42, 256, true, Adamw8bit, false, 4, 47.920),
    (30, 16, false, Adamw, true, 1, 43.705), (30, 64, false, Adamw, true, 1, 43.916), (30, 256, false, Adamw, true, 1, 44.947),
    (30, 16, true, Adamw, true, 1, 12.945), (30, 64, true, Adamw, true, 1, 13.035), (30, 256, true, Adamw, true, 1, 13.095),
    (30, 16, true, Adamw, true, 4, 21.709), (30, 64, true, Adamw, true, 4, 21.844), (30, 256, true, Adamw, true, 4, 22.020),
    (42, 16, true, Adamw, true, 1, 19.742), (42, 64, true, Adamw, true, 1, 20.006), (42, 256, true, Adamw, true, 1, 20.771),
    (42, 16, true, Adamw, true, 4, 46.262), (42, 64, true, Adamw, true, 4, 46.561), (42, 256, true, Adamw, true, 4, 47.268),
    (30, 0, true, Adamw, false, 1, 33.934), (30, 0, true, Adamw, false, 4, 38.281),
    (42, 0, true, Adamw, false, 1, f64::INFINITY), (42, 0, true, Adamw, false, 4, f64::INFINITY),
    (30, 0, true, Adamw8bit, false, 1, 16.447), (30, 0, true, Adamw8bit, false, 4, 27.930),
    (42, 0, true, Adamw8bit, false, 1, 52.826), (42, 0, true, Adamw8bit, false, 4, 66.648),
    (30, 0, true, Adamw, true, 1, 16.396), (30, 0, true, Adamw, true, 4, 27.916),
    (42, 0, true, Adamw, true, 1, 39.359), (42, 0, true, Adamw, true, 4, 66.607),
];

impl Recipe {
    /// Returns the planned memory of the recipe's model on one device: for adapters of several ranks and for all weights; with and
    /// without recomputation; for AdamW, 8-bit AdamW and offloaded AdamW; for batches of 1 and 4. Rows that cogvideox-factory
    /// measured also have its peak.
    pub fn memory_table(&self) -> Vec<MemoryRow> {
        let m = &self.model;
        let is_published = m.latent_frames == 13 && (m.latent_height, m.latent_width) == (60, 90) && m.text_len == 226;
        let mut rows = Vec::new();
        for lora_rank in [16, 64, 256, 0] {
            for (optimizer, offload) in [(Adamw, false), (Adamw8bit, false), (Adamw, true)] {
                for (recompute, batch) in [(false, 1), (true, 1), (true, 4)] {
                    let published = PUBLISHED.iter().find(|row| {
                        (row.0, row.1, row.2, row.3, row.4, row.5)
                            == (m.num_layers, lora_rank, recompute, optimizer, offload, batch)
                    });
                    rows.push(MemoryRow {
                        lora_rank,
                        recompute,
                        optimizer,
                        offload,
                        batch,
                        planned: self.trained_as(lora_rank, recompute, optimizer, offload, batch).peak_memory(),
                        published: published.filter(|_| is_published).map(|row| match row.6 {
                            gb if gb.is_finite() => PublishedPeak::Gb(gb),
                            _ => PublishedPeak::OutOf80Gb,
                        }),
                    });
                }
            }
        }
        rows
    }

    /// Returns the recipe on one device, in bfloat16, with the settings of one row.
    fn trained_as(
        &self,
        lora_rank: usize,
        recompute: bool,
        optimizer: OptimizerKind,
        offload: bool,
        batch: usize,
    ) -> Recipe {
        let mut recipe = self.clone();
        recipe.mesh = Mesh { dp_replicate: 1, dp_shard: 1, tp: 1 };
        recipe.lora = Lora { rank: lora_rank, ..Lora::default() };
        recipe.train.trainable = if lora_rank > 0 { Trainable::Lora } else { Trainable::All };
        recipe.train.frozen = Vec::new();
        recipe.train.dtype = ComputeDtype::Bfloat16;
        recipe.train.device = crate::Device::Cuda;
        (recipe.train.global_batch, recipe.train.grad_accum) = (batch, 1);
        recipe.train.accumulate = Accumulate::Whole;
        recipe.optimizer.kind = optimizer;
        recipe.ema.decay = 0.0;
        recipe.remat.mode = if recompute { RematMode::Block } else { RematMode::None };
        (recipe.remat.group, recipe.remat.keep_attention) = (1, false);
        let swap = if offload && lora_rank == 0 { recipe.model.num_layers } else { 0 };
        recipe.memory = MemorySettings { optimizer_offload: offload, block_swap: swap, ..MemorySettings::default() };
        recipe
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ParamRole, load};

    #[test]
    fn the_plans_of_the_published_models_are_stable() {
        let shown = |name: &str| {
            let recipe = load(format!("../../configs/cogvideox/{name}.toml").as_str().into(), &[]).unwrap().recipe;
            let row = |row: &MemoryRow| {
                let published = match row.published {
                    None => "-".into(),
                    Some(PublishedPeak::Gb(gb)) => format!("{gb:.1}"),
                    Some(PublishedPeak::OutOf80Gb) => "> 80".into(),
                };
                let planned = row.planned as f64 / 1e9;
                let MemoryRow { lora_rank, recompute, optimizer, offload, batch, .. } = row;
                format!(
                    "{lora_rank:>3} {recompute:>5} {:>9} {offload:>5} {batch} {planned:6.1} {published:>6}\n",
                    optimizer.name()
                )
            };
            format!("{name}\n{}", recipe.memory_table().iter().map(row).collect::<String>())
        };
        insta::assert_snapshot!([shown("2b-lora"), shown("5b-lora")].join("\n"));
    }

    #[test]
    fn every_published_figure_has_a_row_and_other_sizes_have_none() {
        let at = |name: &str, sets: &[&str]| {
            let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
            let recipe = load(format!("../../configs/cogvideox/{name}.toml").as_str().into(), &sets).unwrap().recipe;
            recipe.memory_table().iter().filter(|row| row.published.is_some()).count()
        };
        assert_eq!(at("2b-lora", &[]) + at("5b-lora", &[]), PUBLISHED.len());
        assert_eq!(at("5b-lora", &["model.latent_frames=7"]), 0);
    }

    #[test]
    fn adapters_are_the_only_trained_parameters_of_a_row_with_a_rank() {
        let recipe =
            load("../../configs/cogvideox/2b.toml".into(), &[]).unwrap().recipe.trained_as(16, true, Adamw, false, 1);
        let specs = recipe.param_specs();
        assert!(specs.iter().all(|spec| recipe.train.trains(spec) == (spec.role == ParamRole::Adapter)));
    }
}
