//! The exponential moving average of the trained weights, sharded as they are.

use c10d::waits::{self, Place};
use recipe::{Ema, EmaDevice};
use sharding::fsdp::{Access, Fsdp};
use tch::{Device, Tensor};

/// The average of the trained shards of this rank.
pub struct EmaWeights {
    settings: Ema,
    shards: Vec<AverageShard>,
    /// The number of updates of the average. It is less than the optimizer's if the average began in a later attempt.
    pub updates: u64,
}

struct AverageShard {
    /// Index of the unit.
    unit: usize,
    /// fp32, one-dimensional, with the length of the shard.
    average: Tensor,
}

impl EmaWeights {
    /// Creates an average that starts as a copy of the weights; `None` if the recipe has no average.
    ///
    /// # Errors
    /// Swapped weights cannot be fetched.
    pub fn new(fsdp: &Fsdp, settings: &Ema) -> c10d::Result<Option<Self>> {
        if !settings.is_used() {
            return Ok(None);
        }
        let mut shards = Vec::new();
        fsdp.visit(Access::Read, |shard| {
            let average = match settings.device {
                EmaDevice::Cpu if shard.master.device() != Device::Cpu => shard.master.to_device(Device::Cpu),
                _ => shard.master.copy(),
            };
            shards.push(AverageShard { unit: shard.unit, average });
            Ok(())
        })?;
        Ok(Some(EmaWeights { settings: settings.clone(), shards, updates: 0 }))
    }

    /// Resets the average to the current weights.
    ///
    /// # Errors
    /// Swapped weights cannot be fetched.
    pub fn restart(&mut self, fsdp: &Fsdp) -> c10d::Result<()> {
        self.updates = 0;
        self.visit(fsdp, Access::Read, |master, average| average.copy_(master))
    }

    /// Adds the weights to the average, after a step that changed them. No snapshot may be in progress.
    ///
    /// # Errors
    /// Swapped weights cannot be fetched.
    pub fn update(&mut self, fsdp: &Fsdp) -> c10d::Result<()> {
        self.updates += 1;
        let share = 1.0 - self.settings.decay_at(self.updates);
        self.visit(fsdp, Access::Read, |master, average| {
            let _ = match average.device() == master.device() {
                true => average.lerp_(master, share),
                false => {
                    let weights = waits::at(Place::Average, || master.to_device(average.device()));
                    average.lerp_(&weights, share)
                }
            };
        })
    }

    /// Exchanges the average and the weights. No snapshot may be in progress.
    ///
    /// # Errors
    /// Swapped weights cannot be fetched or written back.
    pub fn swap(&mut self, fsdp: &Fsdp) -> c10d::Result<()> {
        self.visit(fsdp, Access::Write, |master, average| {
            let weights = master.to_device(average.device()).copy();
            master.shallow_clone().copy_(average);
            average.copy_(&weights);
        })
    }

    /// Calls `change` with the weights of each trained shard and their average.
    fn visit(&mut self, fsdp: &Fsdp, access: Access, change: impl Fn(&Tensor, &mut Tensor)) -> c10d::Result<()> {
        let mut shards = self.shards.iter_mut();
        fsdp.visit(access, |shard| {
            let average = &mut shards.next().expect("every trained shard has an average").average;
            tch::no_grad(|| change(shard.master, average));
            Ok(())
        })
    }

    /// Returns the average of a unit's trained shard; `None` if the unit is frozen.
    pub fn of(&self, unit: usize) -> Option<&Tensor> {
        self.shards.iter().find(|shard| shard.unit == unit).map(|shard| &shard.average)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle;
    use camino::Utf8Path;
    use recipe::EmaWarmup;
    use sharding::flat::{Layout, ParamKind, TpLayout};
    use sharding::mesh::MeshGroups;
    use std::collections::HashMap;
    use tch::Kind;

    /// Averages the recorded weights, and compares the average after each update with the recorded one.
    fn compare(path: &Utf8Path, settings: &Ema, weights: &Tensor, recorded: &Tensor) {
        let layout = Layout::new([(vec![weights.size()[1]], ParamKind::Trained, TpLayout::Replicated)], 1);
        let fsdp = Fsdp::new(vec![layout], MeshGroups::alone(), Kind::Float);
        let set = |row: i64| {
            let shard = fsdp.shards().next().unwrap();
            tch::no_grad(|| shard.master.shallow_clone().copy_(&weights.get(row)));
        };
        set(0);
        let mut ema = EmaWeights::new(&fsdp, settings).unwrap().unwrap();
        for row in 1..weights.size()[0] {
            set(row);
            ema.update(&fsdp).unwrap();
            let (ours, theirs) = (ema.of(0).unwrap(), recorded.get(row));
            let off = ((ours - &theirs).abs().max() / theirs.abs().max()).double_value(&[]);
            assert!(off <= 1e-6, "{path}, update {row}: off by {off:e}");
        }
    }

    #[test]
    fn oracle_averages_of_recorded_weights() {
        let wanted = |path: &Utf8Path| path.file_name().is_some_and(|name| name.starts_with("ema_"));
        for path in oracle::entries("schedules", "ema_*.safetensors", wanted) {
            let tensors: HashMap<String, Tensor> = Tensor::read_safetensors(&path).unwrap().into_iter().collect();
            let header = weights::Header::read(&path).unwrap();
            let config: serde_json::Value = serde_json::from_str(&header.metadata["config"]).unwrap();
            let float = |key: &str| config[key].as_f64().unwrap_or_else(|| panic!("{path} has {key}"));
            let plain = Ema { decay: float("decay"), warmup: EmaWarmup::None, ..Ema::default() };
            let weights = &tensors["in.param"];
            if let Some(recorded) = tensors.get("out.shadow") {
                let power = config["use_ema_warmup"].as_bool().unwrap();
                let settings = Ema {
                    warmup: if power { EmaWarmup::Power } else { EmaWarmup::Ratio },
                    inv_gamma: float("inv_gamma"),
                    power: float("power"),
                    min_decay: float("min_decay"),
                    after_step: config["update_after_step"].as_u64().unwrap(),
                    ..plain
                };
                compare(&path, &settings, weights, recorded);
                for (i, theirs) in Vec::<f64>::try_from(&tensors["out.decay"]).unwrap().into_iter().enumerate() {
                    let ours = settings.decay_at(i as u64 + 1);
                    assert!((ours - theirs).abs() <= 1e-12, "{path}, update {}: {ours} {theirs}", i + 1);
                }
            } else {
                compare(&path, &plain, weights, &tensors["out.shadow_plain"]);
                // `AveragedModel` of torch copies the weights in its first update.
                compare(&path, &Ema { after_step: 1, ..plain }, weights, &tensors["out.shadow_torch"]);
            }
        }
    }

    #[test]
    fn a_swap_exchanges_weights_and_average_and_a_second_one_restores_them() {
        let layout = Layout::new([(vec![5], ParamKind::Trained, TpLayout::Replicated)], 1);
        let fsdp = Fsdp::new(vec![layout], MeshGroups::alone(), Kind::Float);
        let weights = || Vec::<f32>::try_from(fsdp.shards().next().unwrap().master).unwrap();
        let settings = Ema { decay: 0.75, warmup: EmaWarmup::None, ..Ema::default() };
        let mut ema = EmaWeights::new(&fsdp, &settings).unwrap().unwrap();
        let _ = tch::no_grad(|| fsdp.shards().next().unwrap().master.shallow_clone().fill_(1.0));
        ema.update(&fsdp).unwrap();
        ema.swap(&fsdp).unwrap();
        assert_eq!((weights(), Vec::try_from(ema.of(0).unwrap()).unwrap()), (vec![0.25; 5], vec![1f32; 5]));
        ema.swap(&fsdp).unwrap();
        assert_eq!((weights(), Vec::try_from(ema.of(0).unwrap()).unwrap()), (vec![1.0; 5], vec![0.25f32; 5]));
    }
}
