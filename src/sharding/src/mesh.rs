//! The process groups of a mesh.

use c10d::{Group, Store};
use recipe::Mesh;
use std::time::Duration;
use tch::Device;

/// This rank's groups along each axis of the mesh.
pub struct MeshGroups {
    /// Where this rank computes, and where the tensors are that its groups move, but for those of `world`.
    pub device: Device,
    /// All ranks, for small tensors on the CPU.
    pub world: Group,
    /// The ranks that together hold the parameters, or this rank's TP part of them, once.
    pub shard: Group,
    /// The ranks that hold the same shard of different copies.
    pub replicate: Group,
    /// The ranks that share the work on the same samples.
    pub tp: Group,
}

impl MeshGroups {
    /// Joins the groups of `rank`: NCCL's among ranks that compute on GPUs, gloo's otherwise and for what concerns the CPU.
    /// Every rank of the mesh must call this at about the same time.
    ///
    /// # Errors
    /// When the others do not come within `timeout`, which is also the limit of every later collective.
    pub fn join(
        store: &Store,
        mesh: Mesh,
        rank: usize,
        device: Device,
        timeout: Duration,
        interface: Option<&str>,
    ) -> c10d::Result<Self> {
        let (replicate, shard, tp) = mesh.coords(rank);
        let join = |name: String, rank, size| match device {
            Device::Cuda(gpu) => Group::nccl(&store.prefix(&name), rank, size, timeout, gpu),
            _ => Group::gloo(&store.prefix(&name), rank, size, timeout, interface),
        };
        Ok(MeshGroups {
            device,
            world: Group::gloo(&store.prefix("world"), rank, mesh.world(), timeout, interface)?,
            shard: join(format!("shard-of-replica-{replicate}-tp-{tp}"), shard, mesh.dp_shard)?,
            replicate: join(format!("replicas-of-shard-{shard}-tp-{tp}"), replicate, mesh.dp_replicate)?,
            tp: join(format!("tp-of-replica-{replicate}-shard-{shard}"), tp, mesh.tp)?,
        })
    }

    /// The number of this rank's TP group among those that work on samples of their own, and how many there are.
    pub fn data_place(&self) -> (usize, usize) {
        let rank = self.replicate.rank() * self.shard.size() + self.shard.rank();
        (rank, self.replicate.size() * self.shard.size())
    }

    /// The mesh of one rank on the CPU, without a network.
    pub fn alone() -> Self {
        Self::alone_on(Device::Cpu)
    }

    /// The mesh of one rank, without a network.
    pub fn alone_on(device: Device) -> Self {
        MeshGroups {
            device,
            world: Group::alone(),
            shard: Group::alone(),
            replicate: Group::alone(),
            tp: Group::alone(),
        }
    }
}
