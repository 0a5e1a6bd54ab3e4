//! Creates the backing store of a rank, after a check that it has enough space for all ranks of the node.

use crate::exchange::agree_on;
use crate::memory::node_available;
use crate::torch_failure::failed;
use camino::{Utf8Path, Utf8PathBuf};
use recipe::{OFFLOAD_FIX, OFFLOAD_SHARE, OffloadStore, Recipe};
use rundir::{ErrorCode, Failure};
use sharding::mesh::MeshGroups;
use sharding::offload::{BackingStore, FileStore, HostStore, Offload};
use sharding::slab::HostMemory;
use std::sync::Arc;
use tch::Device;
use units::size;

/// Returns the backing store of a rank, and for each unit whether it is swapped; `None` if the recipe keeps everything on the device. A
/// collective: no rank allocates before every rank has checked the space. A check after the allocations of other ranks of the node would
/// count their tensors twice: as needed, and as not free.
///
/// # Errors
/// The recipe's kind of store is not for this device, its folder is unusable, or it has too little space for the ranks of this node. Every
/// rank returns the failure of the rank that found it.
pub fn of(recipe: &Recipe, groups: &MeshGroups, ranks_on_node: usize) -> Result<Option<(Offload, Vec<bool>)>, Failure> {
    let (memory, device) = (&recipe.memory, groups.device);
    if !memory.is_used() {
        return Ok(None);
    }
    agree_on(&groups.world, check(recipe, device, ranks_on_node))?;
    let store = agree_on(&groups.world, open(recipe, groups))?;
    let mut offload = Offload::new(store, device);
    offload.takes_inputs = memory.activation_offload;
    offload.takes_state = memory.optimizer_offload;
    offload.input_bytes = recipe.offloaded_input() as usize;
    // The root, the first unit, is never swapped.
    let swapped = std::iter::once(false).chain(memory.swapped(recipe.model.num_layers)).collect();
    Ok(Some((offload, swapped)))
}

/// Checks that the store is for this device and has space for all ranks of this node. Allocates nothing.
fn check(recipe: &Recipe, device: Device, ranks_on_node: usize) -> Result<(), Failure> {
    let store = recipe.memory.store.on(device != Device::Cpu);
    let needed = recipe.rank_memory().offloaded.in_store(store);
    match (store, device) {
        (OffloadStore::File, Device::Cpu) => check_folder(&folder(recipe), needed, ranks_on_node),
        (_, Device::Cpu) => Err(refuse(
            "memory.store is \"host\", and the ranks compute on the CPU and use that memory already".into(),
            "set memory.store = \"auto\", or train on GPUs",
        )),
        (OffloadStore::File, _) => Err(refuse(
            "memory.store is \"file\", which is for ranks on the CPU".into(),
            "set memory.store = \"auto\", which uses the memory of the node",
        )),
        _ => {
            let free = node_available().map(|free| (free as f64 * OFFLOAD_SHARE) as u64);
            check_space(needed, ranks_on_node, free, "the memory of this node")
        }
    }
}

/// Opens the store that was checked. In the memory of the node, this allocates all of it.
fn open(recipe: &Recipe, groups: &MeshGroups) -> Result<Arc<dyn BackingStore>, Failure> {
    if groups.device == Device::Cpu {
        return Ok(Arc::new(FileStore::new(folder(recipe).into_std_path_buf())));
    }
    let sizes = recipe.offloaded_tensors(groups.shard.rank());
    Ok(Arc::new(HostStore::with_places(HostMemory::Pinned, &sizes).map_err(failed)?))
}

/// Returns the folder of the store's files.
fn folder(recipe: &Recipe) -> Utf8PathBuf {
    let temporary = || Utf8PathBuf::from_path_buf(std::env::temp_dir()).unwrap_or_else(|_| "/tmp".into());
    recipe.memory.folder().map_or_else(temporary, Utf8Path::to_owned)
}

fn check_folder(folder: &Utf8Path, needed: u64, ranks_on_node: usize) -> Result<(), Failure> {
    let elsewhere = "set memory.folder to a folder on a disk of the node that you may write to";
    let disk = nix::sys::statfs::statfs(folder.as_std_path())
        .map_err(|error| refuse(format!("{folder} cannot be used: {error}"), elsewhere))?;
    if disk.filesystem_type() == nix::sys::statfs::TMPFS_MAGIC {
        return Err(refuse(format!("{folder} is on tmpfs, which is memory itself"), elsewhere));
    }
    let free = disk.blocks_available() * disk.block_size().max(0) as u64;
    check_space(needed, ranks_on_node, Some(free), &format!("the disk of {folder}"))
}

/// Checks that `free` bytes are enough for all ranks of this node, each of which needs `needed` bytes.
fn check_space(needed: u64, ranks_on_node: usize, free: Option<u64>, place: &str) -> Result<(), Failure> {
    let needed = needed.saturating_mul(ranks_on_node as u64);
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
    use crate::tests::support::{on_ranks, recipe};

    #[test]
    fn a_store_that_does_not_fit_is_refused_before_anything_is_allocated() {
        let swapping = |folder: &str| {
            let folder = format!("memory.folder={folder}");
            recipe([1, 1, 1], &["memory.block_swap=2", "train.dtype=float32", &folder])
        };
        assert!(of(&recipe([1, 1, 1], &[]), &MeshGroups::alone(), 1).unwrap().is_none());
        let code = |recipe: &Recipe, ranks| of(recipe, &MeshGroups::alone(), ranks).unwrap_err().code;
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

    #[test]
    fn the_space_is_checked_for_all_ranks_of_the_node() {
        let check = |ranks, free| check_space(10, ranks, free, "the disk").map_err(|failure| failure.code);
        assert_eq!([check(1, Some(10)), check(4, Some(40)), check(4, None)], [Ok(()); 3]);
        assert_eq!([check(1, Some(9)), check(4, Some(39))], [Err(ErrorCode::OutOfMemory); 2]);
    }

    #[test]
    fn a_rank_whose_node_lacks_space_ends_all_ranks() {
        let folder = concat!("memory.folder=", env!("CARGO_MANIFEST_DIR"));
        let recipe = recipe([1, 2, 1], &["memory.block_swap=2", "train.dtype=float32", folder]);
        let codes = on_ranks(recipe.mesh, |groups| {
            // The second rank is on a node with more ranks than any disk has room for.
            let ranks_on_node = if groups.world.rank() == 0 { 1 } else { 1 << 40 };
            of(&recipe, &groups, ranks_on_node).map(drop).map_err(|failure| failure.code)
        });
        assert_eq!(codes, [Err(ErrorCode::OutOfMemory); 2]);
    }
}
