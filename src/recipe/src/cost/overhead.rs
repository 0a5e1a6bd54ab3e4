//! The memory of a rank besides its tensors: CUDA context, NCCL buffers, workspaces and libraries.

use serde::Serialize;
use units::size;

use super::RankMemory;
use crate::{Mesh, Recipe};

const MIB: u64 = 1 << 20;

/// The memory of a rank besides its tensors, in bytes. The numbers for GPUs are estimates; those for the CPU were measured with small models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Overhead {
    /// The CUDA context and the kernels that are loaded; 0 on the CPU.
    pub context: u64,
    /// The buffers of NCCL's groups; 0 on the CPU.
    pub nccl: u64,
    /// The workspaces of cuBLAS and cuBLASLt; 0 on the CPU.
    pub cublas: u64,
    /// Memory that the allocator has reserved and cannot use for the next tensor.
    pub slack: u64,
    /// The libraries of the process; 0 on a GPU.
    pub libraries: u64,
}

/// A context with libtorch's, cuBLAS's and NCCL's kernels, which are loaded when they are used first. nvidia-smi shows 500 to 650 MiB for
/// a PyTorch process on an H100.
const CONTEXT: u64 = 640 * MIB;
/// The buffers of one NCCL group: on NVLink, NCCL uses about 16 channels with rings and trees, each with buffers of 4 MiB
/// (NCCL_BUFFSIZE) and smaller buffers for the low-latency protocols.
const NCCL_GROUP: u64 = 256 * MIB;
/// libtorch gives cuBLAS and cuBLASLt 32 MiB each on Hopper, per handle and stream.
const CUBLAS: u64 = 64 * MIB;
/// The share of the tensors that libtorch's allocator on GPUs cannot use. With expandable segments, only the ends of segments are lost.
const SLACK: f64 = 0.03;
/// The share of the tensors that the allocator of the C library cannot use, because free blocks lie between blocks in use. The peaks of
/// 14 runs with tensors of 0.1 to 2.3 GiB, on one and two ranks, are within 19 % of this plan.
const CPU_SLACK: f64 = 0.65;
/// The libraries and threads of a process on the CPU.
const LIBRARIES: u64 = 190 * MIB;

impl Overhead {
    /// Returns the overhead of a rank with this memory on a GPU or on the CPU.
    pub(crate) fn of(mesh: &Mesh, memory: &RankMemory, on_gpu: bool) -> Self {
        let slack = |share: f64| (memory.total() as f64 * share) as u64;
        if !on_gpu {
            return Overhead { libraries: LIBRARIES, slack: slack(CPU_SLACK), ..Overhead::default() };
        }
        let groups = [mesh.dp_replicate, mesh.dp_shard, mesh.tp].into_iter().filter(|size| *size > 1).count() as u64;
        Overhead { context: CONTEXT, nccl: groups * NCCL_GROUP, cublas: CUBLAS, slack: slack(SLACK), libraries: 0 }
    }

    /// Returns the sum of all fields in bytes.
    pub fn total(&self) -> u64 {
        self.parts().iter().map(|(_, bytes)| bytes).sum()
    }

    /// Returns the name and the bytes of each part.
    pub fn parts(&self) -> [(&'static str, u64); 5] {
        [
            ("CUDA context", self.context),
            ("NCCL buffers", self.nccl),
            ("cuBLAS workspace", self.cublas),
            ("allocator slack", self.slack),
            ("libraries", self.libraries),
        ]
    }
}

impl Recipe {
    /// Formats the largest `most` parts of [`Recipe::peak_parts`] in one line: `weights 20.0 GiB, CUDA context 640.0 MiB`.
    pub fn largest_parts(&self, most: usize) -> String {
        let part = |(name, bytes): &(&str, u64)| format!("{name} {}", size(*bytes));
        self.peak_parts().iter().take(most).map(part).collect::<Vec<_>>().join(", ")
    }

    /// Returns how much of `total` device memory a recipe may plan to use: [`GPU_SHARE`] on a GPU, everything on the CPU.
    pub fn usable_memory(&self, total: u64) -> u64 {
        if self.expects_gpus() { (total as f64 * GPU_SHARE) as u64 } else { total }
    }

    /// Returns the memory that a rank takes besides its tensors; with buckets, in steps of the largest bucket.
    pub fn overhead(&self) -> Overhead {
        self.overhead_of(&self.rank_memory())
    }

    pub(crate) fn overhead_of(&self, memory: &RankMemory) -> Overhead {
        Overhead::of(&self.mesh, memory, self.expects_gpus())
    }

    /// Returns the non-zero parts of the peak memory of a rank's process, largest first.
    pub fn peak_parts(&self) -> Vec<(&'static str, u64)> {
        let memory = self.rank_memory();
        let mut parts: Vec<_> = memory
            .parts()
            .into_iter()
            .chain(self.overhead_of(&memory).parts())
            .filter(|(_, bytes)| *bytes > 0)
            .collect();
        parts.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        parts
    }
}

/// The share of a GPU's memory that a recipe may plan to use. The rest covers errors of the estimate.
pub const GPU_SHARE: f64 = 0.95;

#[cfg(test)]
mod tests {
    use crate::cost::tests::recipe;

    #[test]
    fn each_group_of_several_gpus_has_buffers_and_a_cpu_has_none() {
        let overhead = |sets: &[&str]| recipe(&[sets, &["train.global_batch=8"]].concat()).overhead();
        let [one, two, three] = [
            &["mesh.dp_shard=1"][..],
            &["mesh.dp_shard=2", "mesh.dp_replicate=2"],
            &["mesh.dp_shard=2", "mesh.dp_replicate=2", "mesh.tp=2"],
        ]
        .map(|mesh| overhead(mesh).nccl);
        assert_eq!((one, two > 0, three), (0, true, two / 2 * 3));
        let cpu = overhead(&["train.device=cpu", "mesh.dp_shard=2"]);
        assert_eq!((cpu.context, cpu.nccl, cpu.cublas, cpu.total()), (0, 0, 0, cpu.libraries + cpu.slack));
        assert!(cpu.slack > 0);
    }

    #[test]
    fn the_parts_of_the_peak_sum_to_it_largest_first() {
        let recipe = recipe(&["model.layer=ttt_mlp", "model.ttt_mini_batch=16", "train.device=cuda"]);
        let parts = recipe.peak_parts();
        assert_eq!(parts.iter().map(|(_, bytes)| bytes).sum::<u64>(), recipe.peak_memory());
        assert!(parts.is_sorted_by(|one, next| one.1 >= next.1), "{parts:?}");
        let states = parts.iter().find(|part| part.0 == "states of TTT scans").unwrap().1;
        assert_eq!(states, recipe.rank_memory().scan_states);
    }
}
