//! Compares the sizes of the optimizer's state with those of the memory plan.

use crate::optim::OptimizerState;
use crate::parallelize::{fsdp, unit_tables};
use crate::tests::support::{on_ranks, recipe};
use recipe::Recipe;
use sharding::mesh::MeshGroups;
use sharding::offload::{BackingStore, Offload};
use std::sync::{Arc, Mutex};
use tch::{Device, Kind, Tensor};

/// A backing store that records the sizes of its tensors in bytes.
#[derive(Default)]
struct Recorded(Mutex<Vec<u64>>);

impl BackingStore for Recorded {
    fn zeros(&self, size: &[i64], kind: Kind) -> c10d::Result<Tensor> {
        let tensor = Tensor::zeros(size, (kind, Device::Cpu));
        self.0.lock().unwrap().push((tensor.numel() * kind.elt_size_in_bytes()) as u64);
        Ok(tensor)
    }
}

/// Returns the number of a rank in its shard group, and the sizes of the tensors of its optimizer's state.
fn allocated(recipe: &Recipe, groups: MeshGroups) -> (usize, Vec<u64>) {
    let (store, tables, shard) = (Arc::new(Recorded::default()), unit_tables(recipe), groups.shard.rank());
    let mut offload = Offload::new(Arc::clone(&store) as Arc<dyn BackingStore>, Device::Cpu);
    offload.takes_state = true;
    let fsdp = fsdp(recipe, &tables, groups, Some((offload, Vec::new()))).unwrap();
    OptimizerState::new(&fsdp, &tables, &recipe.optimizer).unwrap();
    let sizes = store.0.lock().unwrap().clone();
    (shard, sizes)
}

#[test]
fn the_state_of_the_optimizer_has_the_planned_tensors_on_every_rank() {
    for kind in ["adamw", "adamw8bit", "prodigy"] {
        for mesh in [[1, 1, 1], [1, 2, 1], [1, 3, 1], [1, 1, 2], [1, 2, 2]] {
            let kind = format!("optimizer.kind={kind}");
            // Tensors of 16 to 65,536 elements: those below 4096 have no 8-bit moments.
            let sets = ["memory.optimizer_offload=true", "train.global_batch=12", "train.threads=1", kind.as_str()];
            let recipe = recipe(mesh, &sets);
            let ranks = match recipe.mesh.world() {
                1 => vec![allocated(&recipe, MeshGroups::alone())],
                _ => on_ranks(recipe.mesh, |groups| allocated(&recipe, groups)),
            };
            for (shard, sizes) in &ranks {
                let mut planned = recipe.offloaded_tensors(*shard);
                planned.retain(|bytes| *bytes > 0);
                assert_eq!(*sizes, planned, "{kind} {mesh:?}, shard {shard}");
            }
            let most = ranks.iter().map(|(_, sizes)| sizes.iter().sum::<u64>()).max();
            assert_eq!(most, Some(recipe.rank_memory().offloaded.optimizer), "{kind} {mesh:?}");
        }
    }
}
