//! The process groups of a mesh.

use c10d::{Group, Store};
use recipe::Mesh;
use std::time::Duration;

/// This rank's groups along each axis of the mesh.
pub struct MeshGroups {
    /// All ranks.
    pub world: Group,
    /// The ranks that together hold one copy of the parameters.
    pub shard: Group,
    /// The ranks that hold the same shard of different copies.
    pub replicate: Group,
}

impl MeshGroups {
    /// Joins the groups of `rank`. Every rank of the mesh must call this at about the same time.
    ///
    /// # Errors
    /// When the others do not come within `timeout`, which is also the limit of every later collective.
    pub fn join(
        store: &Store,
        mesh: Mesh,
        rank: usize,
        timeout: Duration,
        interface: Option<&str>,
    ) -> c10d::Result<Self> {
        let (replicate, shard, _) = mesh.coords(rank);
        let join = |name: String, rank, size| Group::gloo(&store.prefix(&name), rank, size, timeout, interface);
        Ok(MeshGroups {
            world: join("world".into(), rank, mesh.world())?,
            shard: join(format!("shard-of-replica-{replicate}"), shard, mesh.dp_shard)?,
            replicate: join(format!("replicas-of-shard-{shard}"), replicate, mesh.dp_replicate)?,
        })
    }

    /// The mesh of one rank, without a network.
    pub fn alone() -> Self {
        MeshGroups { world: Group::alone(), shard: Group::alone(), replicate: Group::alone() }
    }
}
