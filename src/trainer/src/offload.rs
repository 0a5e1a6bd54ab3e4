//! Creates the backing store of a rank, after a check that it has enough space for all ranks of the node.

use crate::exchange::device_failed;
use crate::memory::node_available;
use camino::{Utf8Path, Utf8PathBuf};
use recipe::{OFFLOAD_FIX, OFFLOAD_SHARE, OffloadStore, Recipe};
use rundir::{ErrorCode, Failure};
use sharding::offload::{BackingStore, FileStore, HostStore, Offload};
use sharding::slab::HostMemory;
use std::sync::Arc;
use tch::Device;
use units::size;

/// Returns the backing store of a rank, and for each unit whether it is swapped; `None` if the recipe keeps everything on the device.
///
/// # Errors
/// The recipe's kind of store is not for this device, its folder is unusable, or it has too little space for the ranks of this node.
pub fn of(recipe: &Recipe, device: Device, ranks_on_node: usize) -> Result<Option<(Offload, Vec<bool>)>, Failure> {
    let memory = &recipe.memory;
    if !memory.is_used() {
        return Ok(None);
    }
    let store = memory.store.on(device != Device::Cpu);
    let needed = recipe.rank_memory().offloaded.in_store(store).saturating_mul(ranks_on_node as u64);
    let store: Arc<dyn BackingStore> = match (store, device) {
        (OffloadStore::File, Device::Cpu) => {
            let folder = folder(recipe);
            check_folder(&folder, needed)?;
            Arc::new(FileStore::new(folder.into_std_path_buf()))
        }
        (_, Device::Cpu) => {
            return Err(refuse(
                "memory.store is \"host\", and the ranks compute on the CPU and use that memory already".into(),
                "set memory.store = \"auto\", or train on GPUs",
            ));
        }
        (OffloadStore::File, _) => {
            return Err(refuse(
                "memory.store is \"file\", which is for ranks on the CPU".into(),
                "set memory.store = \"auto\", which uses the memory of the node",
            ));
        }
        _ => {
            let free = node_available().map(|free| (free as f64 * OFFLOAD_SHARE) as u64);
            check_space(needed, free, "the memory of this node")?;
            let store = HostStore::with_places(HostMemory::Pinned, &recipe.offloaded_tensors());
            Arc::new(store.map_err(device_failed)?)
        }
    };
    let mut offload = Offload::new(store, device);
    offload.takes_inputs = memory.activation_offload;
    offload.takes_state = memory.optimizer_offload;
    offload.input_bytes = recipe.offloaded_input() as usize;
    // The root, the first unit, is never swapped.
    let swapped = std::iter::once(false).chain(memory.swapped(recipe.model.num_layers)).collect();
    Ok(Some((offload, swapped)))
}

/// Returns the folder of the store's files.
fn folder(recipe: &Recipe) -> Utf8PathBuf {
    let temporary = || Utf8PathBuf::from_path_buf(std::env::temp_dir()).unwrap_or_else(|_| "/tmp".into());
    recipe.memory.folder().map_or_else(temporary, Utf8Path::to_owned)
}

fn check_folder(folder: &Utf8Path, needed: u64) -> Result<(), Failure> {
    let elsewhere = "set memory.folder to a folder on a disk of the node that you may write to";
    let disk = nix::sys::statfs::statfs(folder.as_std_path())
        .map_err(|error| refuse(format!("{folder} cannot be used: {error}"), elsewhere))?;
    if disk.filesystem_type() == nix::sys::statfs::TMPFS_MAGIC {
        return Err(refuse(format!("{folder} is on tmpfs, which is memory itself"), elsewhere));
    }
    check_space(
        needed,
        Some(disk.blocks_available() * disk.block_size().max(0) as u64),
        &format!("the disk of {folder}"),
    )
}

fn check_space(needed: u64, free: Option<u64>, place: &str) -> Result<(), Failure> {
    let Some(free) = free.filter(|free| *free < needed) else { return Ok(()) };
    let mut failure = refuse(
        format!("the ranks of this node offload {}, and {place} has {} free", size(needed), size(free)),
        OFFLOAD_FIX,
    );
    failure.code = ErrorCode::OutOfMemory;
    Err(failure)
}

fn refuse(why: String, fix: &str) -> Failure {
    Failure::new(ErrorCode::InvalidRecipe, "cannot keep tensors outside the memory of the device", why, fix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::support::recipe;

    #[test]
    fn a_store_that_does_not_fit_is_refused_before_anything_is_allocated() {
        let swapping = |folder: &str| {
            let folder = format!("memory.folder={folder}");
            recipe([1, 1, 1], &["memory.block_swap=2", "train.dtype=float32", &folder])
        };
        assert!(of(&recipe([1, 1, 1], &[]), Device::Cpu, 1).unwrap().is_none());
        let code = |recipe: &Recipe, ranks| of(recipe, Device::Cpu, ranks).unwrap_err().code;
        assert_eq!(code(&swapping("/no/such/folder"), 1), ErrorCode::InvalidRecipe);
        // More ranks than any disk has room for.
        assert_eq!(code(&swapping(env!("CARGO_MANIFEST_DIR")), 1 << 40), ErrorCode::OutOfMemory);
        if Utf8Path::new("/dev/shm").is_dir() {
            assert_eq!(code(&swapping("/dev/shm"), 1), ErrorCode::InvalidRecipe);
        }
        let mut host = swapping(env!("CARGO_MANIFEST_DIR"));
        host.memory.store = OffloadStore::Host;
        assert_eq!(code(&host, 1), ErrorCode::InvalidRecipe);
    }
}
