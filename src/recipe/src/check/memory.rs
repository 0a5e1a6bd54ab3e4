//! The rules about offloading and recomputing.

use super::Advice;
use crate::{Accumulate, Device, FsdpUnit, OffloadStore, OptimizerKind, ParamSpec, Recipe};

pub(super) fn blocks_can_be_swapped(recipe: &Recipe) -> Result<(), Advice> {
    let (swap, blocks) = (recipe.memory.block_swap, recipe.model.num_layers);
    if swap <= blocks {
        return Ok(());
    }
    Err(Advice {
        why: format!("memory.block_swap is {swap}, and the model has {blocks} blocks"),
        fix: format!("set memory.block_swap = {blocks} to swap all blocks, or less"),
    })
}

pub(super) fn blocks_can_stay_gathered(recipe: &Recipe) -> Result<(), Advice> {
    let (keep, swap, blocks) = (recipe.memory.keep_gathered, recipe.memory.block_swap, recipe.model.num_layers);
    if keep == 0 {
        return Ok(());
    }
    let no_effect = |why: &str, fix: &str| {
        Err(Advice { why: format!("memory.keep_gathered has no effect: {why}"), fix: fix.into() })
    };
    if recipe.mesh.dp_shard == 1 {
        return no_effect(
            "a rank has all shards (mesh.dp_shard = 1)",
            "remove memory.keep_gathered, or set mesh.dp_shard to 2 or more",
        );
    }
    let frozen = |spec: &ParamSpec| spec.unit != FsdpUnit::Root && !recipe.train.trains(spec);
    if !recipe.param_specs().iter().any(frozen) {
        return no_effect(
            "no parameter of a block is frozen",
            "remove memory.keep_gathered, or train adapters (train.trainable = \"lora\")",
        );
    }
    if keep + swap <= blocks {
        return Ok(());
    }
    Err(Advice {
        why: format!("memory.keep_gathered is {keep} and memory.block_swap {swap}, and the model has {blocks} blocks"),
        fix: format!(
            "set memory.keep_gathered = {} or less: swapped blocks cannot stay gathered",
            blocks.saturating_sub(swap)
        ),
    })
}

pub(super) fn gradients_are_sharded(recipe: &Recipe) -> Result<(), Advice> {
    let (parts, shards) = (recipe.train.grad_accum, recipe.mesh.dp_shard);
    if recipe.train.accumulate == Accumulate::Whole || (parts > 1 && shards > 1) {
        return Ok(());
    }
    let why = if parts == 1 {
        "a step has one micro-batch (train.grad_accum = 1)"
    } else {
        "a rank has all shards (mesh.dp_shard = 1)"
    };
    Err(Advice {
        why: format!("train.accumulate = \"sharded\" has no effect: {why}"),
        fix: "remove train.accumulate, or set train.grad_accum and mesh.dp_shard to 2 or more".into(),
    })
}

pub(super) fn state_can_be_offloaded(recipe: &Recipe) -> Result<(), Advice> {
    if !recipe.memory.optimizer_offload || recipe.optimizer.kind != OptimizerKind::Adafactor {
        return Ok(());
    }
    Err(Advice {
        why: "memory.optimizer_offload has no effect: Adafactor's state is rows and columns, which every update reads together".into(),
        fix: "remove memory.optimizer_offload, or set optimizer.kind = \"adamw\"".into(),
    })
}

pub(super) fn inputs_are_saved(recipe: &Recipe) -> Result<(), Advice> {
    if !recipe.memory.activation_offload || recipe.remat.saves_inputs(recipe.model.num_layers) {
        return Ok(());
    }
    Err(Advice {
        why: "memory.activation_offload has no effect: one group holds all blocks, so that no block saves its input"
            .into(),
        fix: "set remat.mode = \"block\" and remat.group = 1, or remove memory.activation_offload".into(),
    })
}

pub(super) fn store_fits_the_device(recipe: &Recipe) -> Result<(), Advice> {
    let (why, fix) = match (recipe.memory.store, recipe.train.device) {
        _ if !recipe.memory.is_used() => return Ok(()),
        (OffloadStore::Host, Device::Cpu) => {
            ("\"host\" has no effect on the CPU: it is the memory of the device", "file")
        }
        (OffloadStore::File, Device::Cuda) => ("\"file\" is for ranks on the CPU", "host"),
        _ => return Ok(()),
    };
    Err(Advice { why: format!("memory.store {why}"), fix: format!("set memory.store = \"{fix}\" or \"auto\"") })
}
