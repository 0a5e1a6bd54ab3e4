//! The process groups of a mesh.

use c10d::{Group, Store};
use recipe::Mesh;
use std::time::Duration;
use tch::Device;

/// This rank's groups along each axis of the mesh.
pub struct MeshGroups {
    /// The device of this rank, and of the tensors of all its groups except `world`.
    pub device: Device,
    /// All ranks, for small tensors on the CPU.
    pub world: Group,
    /// The ranks that together hold one copy of the parameters, or of this rank's TP part of them.
    pub shard: Group,
    /// The ranks that hold the same shard in different replicas.
    pub replicate: Group,
    /// The ranks that share the work on the same samples.
    pub tp: Group,
}

impl MeshGroups {
    /// Joins the groups of `rank`: with NCCL for ranks that compute on GPUs, with gloo for CPU tensors.
    /// Every rank of the mesh must call this at about the same time.
    ///
    /// # Errors
    /// The other ranks do not join within `timeout`, which is also the timeout of every later collective.
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

    /// Returns the number of this rank's TP group among the groups that work on different samples, and the number of groups.
    pub fn data_place(&self) -> (usize, usize) {
        let rank = self.replicate.rank() * self.shard.size() + self.shard.rank();
        (rank, self.replicate.size() * self.shard.size())
    }

    /// Returns the mesh of one rank on the CPU, without a network.
    pub fn alone() -> Self {
        Self::alone_on(Device::Cpu)
    }

    /// Returns the mesh of one rank, without a network.
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
