//! Initializes parameters that no checkpoint provides.

use crate::parallelize::flat_part;
use crate::seeds::{self, Purpose};
use dit::family::Family;
use recipe::{ParamInit, ParamSpec};
use sharding::fsdp::Fsdp;
use tch::{Device, Kind, Tensor};
use xxhash_rust::xxh3::xxh3_64;

/// Initializes this rank's shards. The values of a tensor depend only on the seed and its name.
///
/// # Errors
/// The memory of swapped blocks cannot be released.
pub fn randomize(fsdp: &Fsdp, tables: &[Vec<ParamSpec>], family: &impl Family, seed: u64) -> c10d::Result<()> {
    // A shard holds at most one piece of a tensor, so each full tensor is computed once and then dropped.
    for mut owned in fsdp.owned() {
        let spec = &tables[owned.unit][owned.range.slot];
        let whole = first_values(spec, family, seed);
        let piece = flat_part(spec, &whole, &fsdp.groups().tp).narrow(0, owned.range.start, owned.range.len);
        tch::no_grad(|| owned.values.copy_(&piece));
        fsdp.release(&[&owned.values])?;
    }
    fsdp.frozen_changed();
    Ok(())
}

fn first_values(spec: &ParamSpec, family: &impl Family, seed: u64) -> Tensor {
    let shape: Vec<i64> = spec.shape.iter().map(|&d| d as i64).collect();
    match spec.init {
        ParamInit::Zeros => Tensor::zeros(&shape, (Kind::Float, Device::Cpu)),
        ParamInit::Ones => Tensor::ones(&shape, (Kind::Float, Device::Cpu)),
        ParamInit::Positions => family.positions(spec),
        ParamInit::Gaussian { rank } => {
            seeds::normal(seed, Purpose::Init, name_key(spec), &shape, Device::Cpu) / rank as f64
        }
        ParamInit::Gate => Tensor::full(&shape, 0.1, (Kind::Float, Device::Cpu)),
        ParamInit::Normal => seeds::normal(seed, Purpose::Init, name_key(spec), &shape, Device::Cpu) * 0.02,
        ParamInit::Linear { fan_in } => {
            seeds::uniform_tensor(seed, Purpose::Init, name_key(spec), &shape, 1.0 / (fan_in as f64).sqrt())
        }
        ParamInit::Xavier => {
            let fan_in: usize = spec.shape[1..].iter().product();
            let bound = (6.0 / (fan_in + spec.shape[0]) as f64).sqrt();
            seeds::uniform_tensor(seed, Purpose::Init, name_key(spec), &shape, bound)
        }
    }
}

fn name_key(spec: &ParamSpec) -> u64 {
    xxh3_64(spec.name.as_bytes())
}
