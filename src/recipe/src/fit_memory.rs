//! Fits the peak memory of a rank under a limit: searches for changes of the recipe that reduce it, fastest step first.

use crate::cost::{UnitSizes, link_s, speed};
use crate::{
    Accumulate, ComputeDtype, Device, EmaDevice, Flops, FrozenDtype, JobKind, OptimizerKind, RankMemory, Recipe,
    RecipeError, RecipeErrorKind, Remat, RematMode,
};
use serde::Serialize;
use std::collections::HashMap;
use units::size;

/// Changes of a recipe with which a rank fits into a memory limit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MemoryFit {
    /// The keys to set, each as the value of a `--set` flag.
    pub sets: Vec<String>,
    /// A description of each change.
    pub changes: Vec<&'static str>,
    /// The memory of one rank with these changes.
    pub memory: RankMemory,
    /// The peak memory of the process in bytes: the sum of `memory` and the overhead of a process.
    pub peak: u64,
    /// The estimated time of a step, relative to that of the recipe.
    pub time: f64,
}

impl Recipe {
    /// Returns the peak memory of a rank's process in a step, in bytes; with buckets, in a step of the largest bucket.
    pub fn peak_memory(&self) -> u64 {
        self.peak_of(&self.rank_memory())
    }

    fn peak_of(&self, memory: &RankMemory) -> u64 {
        memory.total() + self.overhead_of(memory).total()
    }

    /// Returns at most `most` combinations of changes with which a rank needs at most `limit` bytes, the fastest first. No
    /// combination has all changes of an earlier one. The first has no changes if the recipe already fits.
    ///
    /// Global batch, mesh size, model and data stay the same. With buckets, all numbers are for steps of the largest bucket. The time is an
    /// estimate: the work divided by an assumed speed, plus the transfers that do not overlap with computation.
    ///
    /// # Errors
    /// If no combination fits; the hint then gives the combination that needs the least memory. Also if the recipe does not train, or
    /// starts a command.
    pub fn fit_memory(&self, limit: u64, most: usize) -> Result<Vec<MemoryFit>, RecipeError> {
        if self.job() != JobKind::Train {
            return Err(RecipeError::new(
                RecipeErrorKind::WrongTrainer,
                format!("the memory of {} cannot be fitted", self.name),
                "only the memory of training with the embedded trainer is known",
                "use a recipe with task = \"train\" and trainer = \"embedded\"",
            ));
        }
        let search = Search::new(self);
        let mut found = search.all();
        found.sort_by(|(_, a), (_, b)| a.time.total_cmp(&b.time).then(a.sets.len().cmp(&b.sets.len())));
        let mut fits: Vec<MemoryFit> = Vec::new();
        for (number, next) in found.iter().filter(|(_, fit)| fit.peak <= limit) {
            let has_all_of = |fit: &MemoryFit| fit.changes.iter().all(|change| next.changes.contains(change));
            if !fits.iter().any(has_all_of) && search.combination(self, *number).0.check().is_ok() {
                fits.push(next.clone());
            }
            if fits.len() == most {
                break;
            }
        }
        if !fits.is_empty() {
            return Ok(fits);
        }
        let least = found.iter().map(|(_, fit)| fit).min_by_key(|fit| fit.peak);
        let least = least.map(|fit| (size(fit.peak), fit.sets.join(" --set ")));
        let (least, sets) = least.unwrap_or_default();
        Err(RecipeError::new(
            RecipeErrorKind::Memory,
            format!("{} does not fit {} per rank", self.name, size(limit)),
            format!(
                "the smallest combination of activation checkpointing, accumulation, offload and swap needs {least}"
            ),
            format!(
                "use more ranks (mesh.dp_shard, mesh.tp), fewer latent frames or a smaller size; the smallest is --set {sets}"
            ),
        ))
    }
}

/// The search space: the choices of each setting. The first choice of each setting is the recipe's own value.
struct Search {
    /// The recipe; with buckets, for latents of the largest bucket only.
    recipe: Recipe,
    settings: Vec<Vec<Choice>>,
}

/// One choice of a setting.
struct Choice {
    /// The keys that the choice sets, as values of `--set`. Empty for the recipe's own value.
    sets: Vec<String>,
    /// The change in words.
    words: &'static str,
    apply: Box<dyn Fn(&mut Recipe)>,
    /// The share that is added to the time of a step: for overhead other than work and transfers, or as a penalty for a change of
    /// the numerics.
    price: f64,
}

fn choice(
    key: &'static str,
    value: impl ToString,
    words: &'static str,
    price: f64,
    apply: impl Fn(&mut Recipe) + 'static,
) -> Choice {
    Choice { sets: vec![format!("{key}={}", value.to_string())], words, apply: Box::new(apply), price }
}

impl Choice {
    /// Sets one more key.
    fn and(mut self, key: &str, value: impl ToString) -> Self {
        self.sets.push(format!("{key}={}", value.to_string()));
        self
    }
}

/// Returns a setting: the recipe's own value, then `choices`.
fn setting(choices: impl IntoIterator<Item = Choice>) -> Vec<Choice> {
    let unchanged = Choice { sets: Vec::new(), words: "", apply: Box::new(|_| {}), price: 0.0 };
    std::iter::once(unchanged).chain(choices).collect()
}

impl Search {
    fn new(recipe: &Recipe) -> Self {
        let (r, layers) = (recipe, recipe.model.num_layers);
        let when = |wanted: bool, choice: Choice| wanted.then_some(choice);
        let block = "recompute each block alone";
        let remat = if r.remat.mode == RematMode::None {
            let recomputed = choice("remat.mode", "block", block, 0.0, |r| {
                r.remat.mode = RematMode::Block;
                r.remat.group = 1;
            });
            Some(if r.remat.group > 1 { recomputed.and("remat.group", 1) } else { recomputed })
        } else {
            when(r.remat.group > 1, choice("remat.group", 1, block, 0.0, |r| r.remat.group = 1))
        };
        let attention =
            choice("remat.keep_attention", false, "recompute attention", 0.0, |r| r.remat.keep_attention = false);
        let scans =
            choice("remat.keep_scan", false, "recompute the scans of TTT layers", 0.0, |r| r.remat.keep_scan = false);
        let share = r.train.global_batch / r.mesh.data_ranks();
        // The samples of a micro-batch are those of its bucket, if there are buckets.
        let most_parts = if r.data.buckets.is_empty() { share } else { r.train.grad_accum };
        let parts = (r.train.grad_accum + 1..=most_parts).filter(|parts| share.is_multiple_of(*parts));
        let accumulated = parts.map(|parts| {
            let doublings = (parts as f64 / r.train.grad_accum as f64).log2();
            choice("train.grad_accum", parts, "smaller micro-batches, accumulated", 0.01 * doublings, move |r| {
                r.train.grad_accum = parts;
            })
        });
        let shards = (2..=r.mesh.dp_replicate).filter(|by| r.mesh.dp_replicate.is_multiple_of(*by)).map(|by| {
            let (shard, replicate) = (r.mesh.dp_shard * by, r.mesh.dp_replicate / by);
            choice("mesh.dp_shard", shard, "shard the model over more ranks", 0.01 * (by as f64).log2(), move |r| {
                r.mesh.dp_shard = shard;
                r.mesh.dp_replicate = replicate;
            })
            .and("mesh.dp_replicate", replicate)
        });
        let sharded = when(
            r.train.accumulate == Accumulate::Whole && r.mesh.data_ranks() > 1 && most_parts > 1,
            choice("train.accumulate", "sharded", "accumulate the gradients of shards", 0.02, |r| {
                r.train.accumulate = Accumulate::Sharded;
            }),
        );
        let swap_more =
            [4, 2, 1].into_iter().map(|part| layers.div_ceil(part)).filter(|blocks| *blocks > r.memory.block_swap);
        let mut swap_more: Vec<usize> = swap_more.collect();
        swap_more.dedup();
        let swap = swap_more.into_iter().map(|blocks| {
            choice("memory.block_swap", blocks, "swap blocks", 0.0, move |r| r.memory.block_swap = blocks)
        });
        let gathered = when(
            r.memory.keep_gathered > 0,
            choice("memory.keep_gathered", 0, "gather frozen weights at each use", 0.01, |r| {
                r.memory.keep_gathered = 0
            }),
        );
        let dtype = when(
            r.train.dtype == ComputeDtype::Float32,
            choice("train.dtype", "bfloat16", "compute in bfloat16", 0.05, |r| r.train.dtype = ComputeDtype::Bfloat16),
        );
        let frozen = when(
            r.train.frozen_dtype == FrozenDtype::Float32,
            choice("train.frozen_dtype", "compute", "keep frozen weights in the dtype of the computation", 0.03, |r| {
                r.train.frozen_dtype = FrozenDtype::Compute;
            }),
        );
        let adamw8bit = when(
            r.optimizer.kind == OptimizerKind::Adamw,
            choice("optimizer.kind", "adamw8bit", "8-bit AdamW", 0.02, |r| r.optimizer.kind = OptimizerKind::Adamw8bit),
        );
        let state = when(
            !r.memory.optimizer_offload && r.optimizer.kind != OptimizerKind::Adafactor,
            choice("memory.optimizer_offload", true, "offload the optimizer's state", 0.0, |r| {
                r.memory.optimizer_offload = true
            }),
        );
        let inputs = when(
            !r.memory.activation_offload,
            choice("memory.activation_offload", true, "offload saved inputs", 0.0, |r| {
                r.memory.activation_offload = true
            }),
        );
        let average = when(
            r.ema.is_used() && r.ema.device == EmaDevice::Weights && r.train.device != Device::Cpu,
            choice("ema.device", "cpu", "keep the average in node memory", 0.01, |r| r.ema.device = EmaDevice::Cpu),
        );
        let settings = vec![
            setting(remat),
            setting(when(r.remat.keep_attention, attention)),
            setting(when(r.remat.keep_scan && r.model.has_ttt(), scans)),
            setting(accumulated),
            setting(shards),
            setting(dtype),
            setting(frozen),
            setting(adamw8bit),
            setting(average),
            setting(state),
            setting(inputs),
            setting(swap),
            setting(sharded),
            setting(gathered),
        ];
        Search { recipe: recipe.in_largest_bucket(), settings }
    }

    /// Returns `recipe` with combination `number` applied, the choices that change it, and the sum of their prices.
    fn combination(&self, recipe: &Recipe, number: usize) -> (Recipe, Vec<&Choice>, f64) {
        let (mut rest, mut recipe) = (number, recipe.clone());
        let mut chosen = Vec::new();
        for setting in &self.settings {
            let choice = &setting[rest % setting.len()];
            rest /= setting.len();
            (choice.apply)(&mut recipe);
            chosen.push(choice);
        }
        let price = chosen.iter().map(|choice| choice.price).sum();
        chosen.retain(|choice| !choice.sets.is_empty());
        (recipe, chosen, price)
    }

    /// Returns every combination with its number. The first is the recipe itself.
    fn all(&self) -> Vec<(usize, MemoryFit)> {
        let (blocks, specs) = (self.recipe.blocks(), self.recipe.param_specs());
        // Many combinations share these values, which take the most time to compute.
        let mut units: HashMap<(&str, usize), UnitSizes> = HashMap::new();
        let mut flops: HashMap<(bool, bool, usize), f64> = HashMap::new();
        let mut as_is = None;
        let fit = |number| {
            let (recipe, chosen, price) = self.combination(&self.recipe, number);
            let key = (recipe.optimizer.kind.name(), recipe.mesh.dp_shard);
            let sizes = units.entry(key).or_insert_with(|| UnitSizes::of(&recipe, &specs));
            let Remat { keep_attention, keep_scan, .. } = recipe.remat;
            let recomputed = (keep_attention, keep_scan, recipe.remat.blocks_per_input(recipe.model.num_layers));
            let work = *flops.entry(recomputed).or_insert_with(|| Flops::step(&recipe).total());
            let memory = RankMemory::of(&recipe, sizes, &blocks);
            let samples = recipe.train.global_batch as f64 / recipe.mesh.world() as f64;
            let compute_s = work * samples / speed(&self.recipe);
            let time_s = (compute_s + link_s(&recipe, &memory, compute_s)) * (1.0 + price);
            let fit = MemoryFit {
                sets: chosen.iter().flat_map(|choice| choice.sets.iter().cloned()).collect(),
                changes: chosen.iter().map(|choice| choice.words).collect(),
                peak: recipe.peak_of(&memory),
                memory,
                time: time_s / *as_is.get_or_insert(time_s),
            };
            (number, fit)
        };
        (0..self.settings.iter().map(Vec::len).product()).map(fit).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load;

    fn recipe(name: &str, sets: &[&str]) -> Recipe {
        let sets: Vec<_> = sets.iter().map(|set| set.to_string()).collect();
        load(format!("../../configs/{name}.toml").as_str().into(), &sets).unwrap().recipe
    }

    const GIB: u64 = 1 << 30;

    #[test]
    fn with_buckets_the_largest_one_must_fit() {
        let sets = ["data.buckets=[{frames=17,height=256,width=256},{frames=49,height=480,width=720}]"];
        let (small, mixed) = (recipe("cogvideox/5b-lora", &[]), recipe("cogvideox/5b-lora", &sets));
        let peak = |recipe: &Recipe| recipe.cost_at(recipe.latent_of(recipe.largest_bucket().unwrap())).memory;
        assert_eq!(mixed.peak_memory(), mixed.peak_of(&peak(&mixed)));
        let fits = mixed.fit_memory(24 * GIB, 3).unwrap();
        for fit in &fits {
            let sets: Vec<&str> = sets.into_iter().chain(fit.sets.iter().map(String::as_str)).collect();
            let changed = recipe("cogvideox/5b-lora", &sets);
            assert_eq!((peak(&changed), changed.peak_memory()), (fit.memory, fit.peak), "{:?}", fit.sets);
            assert!(fit.peak <= 24 * GIB && !fit.sets.iter().any(|set| set.starts_with("train.grad_accum")));
        }
        assert!(!fits.is_empty() && !small.fit_memory(24 * GIB, 3).unwrap().is_empty());
    }

    #[test]
    fn every_proposal_fits_is_valid_and_has_the_memory_of_its_recipe() {
        let lora = recipe("cogvideox/5b-lora", &[]);
        for limit in [80, 40, 24, 16, 12] {
            let Ok(fits) = lora.fit_memory(limit * GIB, 3) else { continue };
            assert!(fits.windows(2).all(|pair| pair[0].time <= pair[1].time));
            for fit in fits {
                let sets: Vec<&str> = fit.sets.iter().map(String::as_str).collect();
                let changed = recipe("cogvideox/5b-lora", &sets);
                assert_eq!((changed.cost().memory, changed.peak_memory()), (fit.memory, fit.peak), "{:?}", fit.sets);
                assert!(fit.peak <= limit * GIB);
                assert_eq!(changed.mesh.world(), lora.mesh.world());
            }
        }
    }

    #[test]
    fn a_recipe_that_fits_is_not_changed_and_one_that_cannot_fit_names_the_least() {
        let lora = recipe("cogvideox/5b-lora", &[]);
        let all = lora.fit_memory(10_000 * GIB, 3).unwrap();
        assert_eq!((all.len(), all[0].sets.len(), all[0].time), (1, 0, 1.0));
        assert_eq!(all[0].peak, lora.peak_memory());
        let error = lora.fit_memory(GIB, 3).unwrap_err();
        assert_eq!(error.kind, RecipeErrorKind::Memory);
    }

    #[test]
    fn a_smaller_limit_costs_more_time() {
        for name in ["cogvideox/5b-lora", "cogvideox/2b", "ttt-mlp/3s"] {
            let recipe = recipe(name, &[]);
            let times: Vec<f64> =
                (8..200).rev().map_while(|gib| Some(recipe.fit_memory(gib * GIB, 1).ok()?[0].time)).collect();
            assert!(times.len() > 1 && times.windows(2).all(|pair| pair[0] <= pair[1]), "{name}: {times:?}");
        }
    }

    #[test]
    fn proposals_for_24_gib_are_stable() {
        let shown = |name: &str, sets: &[&str]| {
            let recipe = recipe(name, sets);
            let fits = match recipe.fit_memory(24 * GIB, 3) {
                Ok(fits) => fits
                    .iter()
                    .map(|fit| format!("{} × {:.2}: {}\n", size(fit.peak), fit.time, fit.sets.join(" ")))
                    .collect(),
                Err(error) => error.to_string(),
            };
            format!("{name} {}, now {}\n{fits}", sets.join(" "), size(recipe.peak_memory()))
        };
        let one = ["mesh.dp_shard=1", "mesh.dp_replicate=1"];
        insta::assert_snapshot!(
            [shown("cogvideox/5b-lora", &one), shown("cogvideox/2b", &one), shown("cogvideox/5b", &one)].join("\n")
        );
    }
}
