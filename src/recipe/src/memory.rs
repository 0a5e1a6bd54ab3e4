//! The `[memory]` section: which frozen weights stay gathered, and which tensors are swapped or offloaded from the device.

use camino::{Utf8Path, Utf8PathBuf};

use crate::schema::{BOOL, OPTIONAL_PATH, TRAIN, int, word};
use crate::{ComputeDtype, Device, Fused, Recipe, Remat, ResumeEffect, TttScan};

section! {
    /// Which frozen weights a rank keeps gathered, and which tensors it keeps in a backing store outside its device (block swap and
    /// offload).
    pub struct MemorySettings("memory", TRAIN, ResumeEffect::None) with Default {
        /// blocks whose weights and gradients are kept outside the memory of the device; each is fetched while the block before it
        /// computes; 0: none
        pub block_swap: usize = 0 => int(0, 10_000);
        /// blocks whose frozen weights stay gathered between uses, with mesh.dp_shard > 1, for example the base of adapters; takes their
        /// whole size on each rank; 0: none
        pub keep_gathered: usize = 0 => int(0, 10_000);
        /// keeps the optimizer's state outside the memory of the device; the update fetches one block at a time
        pub optimizer_offload: bool = false => BOOL;
        /// keeps the saved inputs of blocks outside the memory of the device between the forward and the backward pass
        pub activation_offload: bool = false => BOOL;
        /// memory beside that of the device; host: of the node, page-locked (GPUs only); file: files on a disk of the node, which end
        /// with the rank (CPU only); auto: host for ranks on GPUs, file for ranks on the CPU
        pub store: OffloadStore = OffloadStore::Auto => word::<OffloadStore>();
        /// folder of the files of memory.store, on a disk of each node, not on tmpfs; default: $TMPDIR or /tmp
        pub folder: Utf8PathBuf = Utf8PathBuf::new() => OPTIONAL_PATH;
    }
}

words! {
    /// The backing store: where offloaded tensors are kept.
    pub enum OffloadStore {
        /// [`OffloadStore::Host`] for ranks on GPUs, [`OffloadStore::File`] for ranks on the CPU.
        Auto = "auto",
        /// Page-locked memory of the node.
        Host = "host",
        /// Files on a disk of the node.
        File = "file",
    }
}

/// The share of the free memory of a node that offloaded tensors may take: the kernel, data and saves need the rest.
pub const OFFLOAD_SHARE: f64 = 0.9;

/// The hint for an error when the store of a node has too little space for its ranks.
pub const OFFLOAD_FIX: &str = "lower memory.block_swap, use more nodes (mesh.dp_shard), or free some space; \
    `vidtui check RECIPE --fit-memory SIZE` proposes other settings";

impl OffloadStore {
    /// Returns the store that a rank on a GPU or on the CPU uses; never [`OffloadStore::Auto`].
    pub fn on(self, gpu: bool) -> Self {
        match (self, gpu) {
            (OffloadStore::Auto, true) => OffloadStore::Host,
            (OffloadStore::Auto, false) => OffloadStore::File,
            (chosen, _) => chosen,
        }
    }
}

impl MemorySettings {
    /// Returns whether any tensor is kept in the backing store.
    pub fn is_used(&self) -> bool {
        self.block_swap > 0 || self.optimizer_offload || self.activation_offload
    }

    /// Returns the folder of the files, if the recipe names one.
    pub fn folder(&self) -> Option<&Utf8Path> {
        Some(self.folder.as_path()).filter(|path| !path.as_str().is_empty())
    }

    /// Returns for each of `blocks` blocks whether it is swapped. Swapped blocks are spread evenly, so that each is fetched while
    /// others compute.
    pub fn swapped(&self, blocks: usize) -> Vec<bool> {
        let swap = self.block_swap.min(blocks);
        (0..blocks).map(|block| (block + 1) * swap / blocks > block * swap / blocks).collect()
    }

    /// Returns for each of `blocks` blocks whether its frozen weights stay gathered: the first ones that are not swapped.
    pub fn kept(&self, blocks: usize) -> Vec<bool> {
        let mut left = self.keep_gathered;
        let keeps = |is_swapped: bool| {
            let keeps = left > 0 && !is_swapped;
            left -= usize::from(keeps);
            keeps
        };
        self.swapped(blocks).into_iter().map(keeps).collect()
    }
}

impl Recipe {
    /// Returns the setting that requires GPUs, worded for an error; `None` if ranks of the embedded trainer can run on CPUs.
    pub fn requires_gpus(&self) -> Option<&'static str> {
        match self.train.device {
            Device::Cuda => Some("train.device is \"cuda\""),
            _ if self.requires_scan_kernel() => Some(self.train.ttt_scan.setting()),
            _ if self.train.fused == Fused::Kernel => Some("train.fused is \"kernel\""),
            _ => None,
        }
    }

    /// Returns whether ranks of the embedded trainer use GPUs. `finds` is whether the trainer finds GPUs.
    pub fn on_gpus(&self, finds: bool) -> bool {
        self.requires_gpus().is_some() || self.train.device.on_gpus(finds)
    }

    /// Returns whether the CUDA kernel must compute the scans of TTT layers.
    pub fn requires_scan_kernel(&self) -> bool {
        self.model.has_ttt() && self.train.ttt_scan.requires_kernel()
    }

    /// Returns whether the CUDA kernel computes the scans of TTT layers, on the GPUs that estimates assume.
    pub(crate) fn expects_scan_kernel(&self) -> bool {
        let can_run = || {
            let (model, is_bf16) = (&self.model, self.train.dtype == ComputeDtype::Bfloat16);
            self.expects_gpus() && is_bf16 && model.has_ttt() && model.family().unfit_for_scan_kernel(model).is_none()
        };
        self.requires_scan_kernel() || (self.train.ttt_scan == TttScan::Auto && can_run())
    }

    /// Returns the recipe with `train.device = "cpu"`, so that estimates assume CPUs.
    pub fn on_cpus(&self) -> Recipe {
        let mut recipe = self.clone();
        recipe.train.device = Device::Cpu;
        recipe
    }

    /// Returns the bytes of node memory that a rank needs, without what CUDA itself takes: on the CPU the peak of its process; on a GPU the
    /// average, the copy of a save and, with `memory.store = "host"`, the offloaded tensors.
    pub fn node_memory(&self) -> u64 {
        if !self.expects_gpus() {
            return self.peak_memory();
        }
        let (memory, store) = (self.rank_memory(), self.memory.store.on(true));
        let offloaded = if store == OffloadStore::Host { memory.offloaded.in_store(store) } else { 0 };
        memory.ema_on_node + offloaded + memory.save_copy(store)
    }

    /// Returns whether estimates assume GPUs: always, unless `train.device` is `cpu`.
    pub(crate) fn expects_gpus(&self) -> bool {
        self.train.device != Device::Cpu
    }
}

impl Remat {
    /// Returns whether any block of a model with `blocks` blocks saves its input for recomputation.
    pub(crate) fn saves_inputs(&self, blocks: usize) -> bool {
        self.blocks_per_input(blocks) < blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swapped_blocks_are_spread_evenly() {
        let swapped = |block_swap, blocks| {
            let of = MemorySettings { block_swap, ..MemorySettings::default() }.swapped(blocks);
            (0..blocks).filter(|block| of[*block]).collect::<Vec<_>>()
        };
        assert!(swapped(0, 4).is_empty());
        assert_eq!(swapped(2, 6), [2, 5]);
        assert_eq!(swapped(3, 4), [1, 2, 3]);
        assert_eq!(swapped(9, 3), [0, 1, 2]);
        for blocks in 1..50 {
            assert!((0..=blocks).all(|n| swapped(n, blocks).len() == n), "{blocks} blocks");
        }
    }

    #[test]
    fn blocks_that_are_not_swapped_stay_gathered() {
        let kept = |block_swap, keep_gathered| {
            let of = MemorySettings { block_swap, keep_gathered, ..MemorySettings::default() }.kept(6);
            (0..6).filter(|block| of[*block]).collect::<Vec<_>>()
        };
        assert_eq!(kept(0, 2), [0, 1]);
        assert_eq!(kept(2, 3), [0, 1, 3]);
        assert!(kept(0, 0).is_empty() && kept(6, 1).is_empty());
    }

    #[test]
    fn a_rank_on_a_gpu_swaps_to_its_node_and_one_on_the_cpu_to_a_file() {
        assert_eq!([true, false].map(|gpu| OffloadStore::Auto.on(gpu)), [OffloadStore::Host, OffloadStore::File]);
        assert_eq!(OffloadStore::File.on(true), OffloadStore::File);
    }
}
