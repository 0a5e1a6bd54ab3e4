//! Adapter files: training starts from one, and sampling merges them into the weights.

use crate::parallelize::flat_part;
use camino::Utf8Path;
use recipe::{MergedLora, ParamRole, ParamSpec, Recipe};
use rundir::{Failure, SampleLora};
use sharding::fsdp::{Fsdp, OwnedRange};
use tch::{Kind, Tensor};
use weights::{Factors, Files, LoraFile};

/// Merges adapters into the weights: each rank adds the products to the part of each weight that it owns. Returns a
/// description of each.
///
/// # Errors
/// A file cannot be read, or does not fit the model.
pub fn merge(fsdp: &Fsdp, tables: &[Vec<ParamSpec>], merged: &[MergedLora]) -> Result<Vec<SampleLora>, Failure> {
    let specs: Vec<ParamSpec> = tables.iter().flatten().cloned().collect();
    let (mut adapters, mut described) = (Vec::new(), Vec::new());
    for MergedLora { path, weight } in merged {
        let (lora, xxh3) = LoraFile::open_verified(path)?;
        lora.check_model(&specs)?;
        adapters.push((lora, *weight));
        described.push(SampleLora { path: path.clone(), weight: *weight, xxh3 });
    }
    let mut files = Files::default();
    for owned in fsdp.owned() {
        let spec = &tables[owned.unit][owned.range.slot];
        let mut added: Option<Tensor> = None;
        for (lora, weight) in &adapters {
            if let Some(factors) = lora.factors(spec, &mut files)? {
                let [down, up] = tensors(&factors);
                let product = up.matmul(&down) * (factors.scale * weight);
                added = Some(added.map_or_else(|| product.shallow_clone(), |added| added + &product));
            }
        }
        let Some(added) = added else { continue };
        let part = own_part(fsdp, spec, &owned, &added).to_device(owned.values.device());
        // The sum is rounded once to the dtype of the weights.
        let sum = owned.values.to_kind(Kind::Float) + part;
        tch::no_grad(|| owned.values.shallow_clone().copy_(&sum));
    }
    Ok(described)
}

/// Sets the adapters of a recipe to those of a file. B is rescaled if the recipe has another alpha, so that the product is
/// the same.
///
/// # Errors
/// The file cannot be read, or has other layers or another rank.
pub fn start_from(fsdp: &Fsdp, tables: &[Vec<ParamSpec>], recipe: &Recipe, path: &Utf8Path) -> Result<(), Failure> {
    let (lora, _) = LoraFile::open_verified(path)?;
    lora.check_start(recipe)?;
    let mut files = Files::default();
    for owned in fsdp.owned() {
        let table = &tables[owned.unit];
        let spec = &table[owned.range.slot];
        if spec.role != ParamRole::Adapter {
            continue;
        }
        let layer = spec.name.rsplit_once('.').map_or("", |(layer, _)| layer);
        let weight = table.iter().find(|other| other.name.strip_suffix(".weight") == Some(layer));
        let weight = weight.expect("the table has the weight of each adapter");
        let factors = lora.factors(weight, &mut files)?.expect("the file has each adapted layer");
        let [down, up] = tensors(&factors);
        let whole = if spec.name.ends_with(".lora_a") { down } else { up * (factors.scale / recipe.lora.scale()) };
        tch::no_grad(|| owned.values.shallow_clone().copy_(&own_part(fsdp, spec, &owned, &whole)));
    }
    Ok(())
}

/// Returns `[rank, in]` and `[out, rank]`.
fn tensors(factors: &Factors) -> [Tensor; 2] {
    let rank = factors.rank as i64;
    [Tensor::from_slice(&factors.down).view([rank, -1]), Tensor::from_slice(&factors.up).view([-1, rank])]
}

/// Returns this rank's part of a whole tensor.
fn own_part(fsdp: &Fsdp, spec: &ParamSpec, owned: &OwnedRange, whole: &Tensor) -> Tensor {
    flat_part(spec, whole, &fsdp.groups().tp).narrow(0, owned.range.start, owned.range.len)
}
