//! The process groups of a mesh.

use c10d::{Group, Reduce, Store};
use recipe::{Mesh, TokenPieces};
use std::time::Duration;
use tch::{Device, Tensor};

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
    /// The ranks of the tensor-parallel group, which share the work on the same samples.
    pub tp: Group,
    /// The pieces in which the ranks of `tp` exchange tokens. The caller of the collectives divides them.
    pub tp_pieces: TokenPieces,
}

/// The seconds that a rank waited for others.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Waited {
    /// Seconds that it waited for collectives over shards and replicas.
    pub data_s: f64,
    /// Seconds that it waited for collectives of its TP group.
    pub tp_s: f64,
}

impl MeshGroups {
    /// Joins the groups of `rank`: `world` with gloo, the others with NCCL on a GPU and with gloo on a CPU.
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
        let world = Self::join_world(store, mesh, rank, timeout, interface)?;
        Self::join_others(world, store, mesh, rank, device, timeout, interface)
    }

    /// Joins the group of all ranks, which is the first one, with gloo.
    ///
    /// # Errors
    /// As [`MeshGroups::join`].
    pub fn join_world(
        store: &Store,
        mesh: Mesh,
        rank: usize,
        timeout: Duration,
        interface: Option<&str>,
    ) -> c10d::Result<Group> {
        let [name, ..] = group_names(mesh, rank);
        Group::gloo(&store.prefix(&name), rank, mesh.world(), timeout, interface)
    }

    /// Joins the other groups of `rank`, after [`MeshGroups::join_world`].
    ///
    /// # Errors
    /// As [`MeshGroups::join`].
    pub fn join_others(
        world: Group,
        store: &Store,
        mesh: Mesh,
        rank: usize,
        device: Device,
        timeout: Duration,
        interface: Option<&str>,
    ) -> c10d::Result<Self> {
        let (replicate, shard, tp) = mesh.coords(rank);
        let [_, of_shard, replicas, of_tp] = group_names(mesh, rank);
        let join = |name: String, rank, size| match device {
            Device::Cuda(gpu) => Group::nccl(&store.prefix(&name), rank, size, timeout, gpu),
            _ => Group::gloo(&store.prefix(&name), rank, size, timeout, interface),
        };
        Ok(MeshGroups {
            device,
            world,
            shard: join(of_shard, shard, mesh.dp_shard)?,
            replicate: join(replicas, replicate, mesh.dp_replicate)?,
            tp: join(of_tp, tp, mesh.tp)?,
            tp_pieces: TokenPieces::default(),
        })
    }

    /// Sums a tensor over the shards and TP parts of a replica, with the same bits on every rank of the run.
    ///
    /// The first replica computes the sum. Replicas may add the same numbers in different orders. If their sums differed in one bit, they
    /// would apply different updates and drift apart.
    ///
    /// # Errors
    /// A peer is lost.
    pub fn sum_over_replica(&self, tensor: &Tensor) -> c10d::Result<()> {
        self.shard.all_reduce(tensor, Reduce::Sum)?.wait()?;
        self.tp.all_reduce(tensor, Reduce::Sum)?.wait()?;
        self.replicate.broadcast(tensor, 0)?.wait()
    }

    /// Returns the seconds that this rank waited in collectives, without those of `world`, since the last call or
    /// [`MeshGroups::drop_waited`]. On a GPU these are the seconds that its stream waited; call this after the host has
    /// waited for the stream anyway.
    ///
    /// # Errors
    /// The waits of the stream cannot be read, because the GPU has failed.
    pub fn take_waited_s(&self) -> c10d::Result<Waited> {
        let data_s = self.shard.take_waited_s()? + self.replicate.take_waited_s()?;
        Ok(Waited { data_s, tp_s: self.tp.take_waited_s()? })
    }

    /// Discards the waits so far.
    pub fn drop_waited(&self) {
        [&self.shard, &self.replicate, &self.tp].into_iter().for_each(Group::drop_waited);
    }

    /// Sets the timeout of all later collectives.
    ///
    /// # Errors
    /// libtorch cannot set the timeout of a group.
    pub fn set_timeout(&self, timeout: Duration) -> c10d::Result<()> {
        [&self.world, &self.shard, &self.replicate, &self.tp]
            .into_iter()
            .try_for_each(|group| group.set_timeout(timeout))
    }

    /// Returns the index of this rank's TP group among all TP groups, which work on different samples, and their
    /// number.
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
            tp_pieces: TokenPieces::default(),
        }
    }
}

/// Returns the names of the groups that a rank joins, in the order of the fields of [`MeshGroups`].
fn group_names(mesh: Mesh, rank: usize) -> [String; 4] {
    let (replicate, shard, tp) = mesh.coords(rank);
    [
        "world".to_owned(),
        format!("shard-of-replica-{replicate}-tp-{tp}"),
        format!("replicas-of-shard-{shard}-tp-{tp}"),
        format!("tp-of-replica-{replicate}-shard-{shard}"),
    ]
}

/// Returns the names of the groups that a rank joins and the ranks in each, without groups of one rank.
pub fn groups_of(mesh: Mesh, rank: usize) -> Vec<(String, Vec<usize>)> {
    let names: Vec<[String; 4]> = (0..mesh.world()).map(|rank| group_names(mesh, rank)).collect();
    let members = |axis: usize| (0..mesh.world()).filter(|&other| names[other][axis] == names[rank][axis]).collect();
    let all = names[rank].iter().enumerate().map(|(axis, name)| (name.clone(), members(axis)));
    all.filter(|(_, ranks): &(String, Vec<usize>)| ranks.len() > 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_groups_of_a_rank_are_those_along_the_axes_of_the_mesh() {
        let groups = groups_of(Mesh { dp_replicate: 2, dp_shard: 1, tp: 2 }, 3);
        let ranks: Vec<_> = groups.iter().map(|(name, ranks)| (name.as_str(), ranks.as_slice())).collect();
        assert_eq!(
            ranks,
            [("world", &[0, 1, 2, 3][..]), ("replicas-of-shard-0-tp-1", &[1, 3]), ("tp-of-replica-1-shard-0", &[2, 3])]
        );
    }
}
