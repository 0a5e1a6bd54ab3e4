//! Fully sharded parameters: a unit's parameters are gathered before it runs and freed after it; gradients are reduced to shards.
//!
//! With one shard nothing is copied: the gathered tensors are views of the master weights. With several, the next
//! unit's gather and the last unit's reduction are in flight while a unit computes.

use crate::flat::{Layout, ParamKind, ShardRange, Slot, TpLayout};
use crate::mesh::MeshGroups;
use crate::offload::{Fetched, Offload};
use c10d::waits::{self, Place};
use c10d::{Pending, Reduce, Result};
use tch::{Kind, Tensor};

/// The sharded parameters of a model and the gradients of this rank's shards.
pub struct Fsdp {
    groups: MeshGroups,
    compute: Kind,
    frozen: Kind,
    units: Vec<ShardedUnit>,
    offload: Option<Offload>,
    gathering: Option<(usize, Ahead)>,
    /// A reduce-scatter in flight.
    reducing: Option<Pending>,
    grad_sync: GradSync,
}

/// The current part of a batch, for gradient accumulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GradSync {
    /// Not the last part: this rank accumulates unsharded gradients in fp32.
    Accumulate,
    /// The last or only part: each unit's accumulated gradient is reduced once, and freed.
    Reduce,
}

/// This rank's part of one unit.
struct ShardedUnit {
    layout: Layout,
    /// Whether the shards are in the backing store.
    swapped: bool,
    /// Master weights in fp32, and their gradient.
    trained: Option<TrainedShard>,
    /// Weights in the compute dtype, or another that [`Fsdp::keeping_frozen_in`] sets.
    frozen: Option<Tensor>,
}

/// A trained shard.
struct TrainedShard {
    master: Tensor,
    grad: Tensor,
    /// Whether `grad` already has a contribution of this step. Used only with one shard.
    filled: bool,
    /// The unit's accumulated unsharded gradient, until the last part of the batch.
    whole: Option<Tensor>,
}

/// A unit's whole flat tensors, and the gathers that fill them.
struct Gathered {
    trained: Option<Tensor>,
    frozen: Option<Tensor>,
    pending: Vec<Pending>,
}

/// A unit that was requested ahead of its use.
enum Ahead {
    /// Its gathers are in flight.
    Gathered(Gathered),
    /// Its shards are being fetched: the trained one and the frozen one. They are gathered after that.
    Fetched([Option<Fetched>; 2]),
}

/// The tensors that a visit of shards changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Nothing.
    Read,
    /// Weights or gradients.
    Write,
}

/// One trained shard as the optimizer sees it; all tensors are one-dimensional, fp32 and of equal length.
#[derive(Debug)]
pub struct ShardView<'a> {
    /// The number of the unit.
    pub unit: usize,
    /// Master weights.
    pub master: &'a Tensor,
    /// Gradient of this step, summed over ranks.
    pub grad: &'a Tensor,
}

/// A run of a tensor's elements that this rank owns.
#[derive(Debug)]
pub struct OwnedRange {
    /// The number of the unit.
    pub unit: usize,
    /// The slot and the range of elements.
    pub range: ShardRange,
    /// The elements themselves, a view of the shard.
    pub values: Tensor,
}

impl Fsdp {
    /// Allocates this rank's shards, filled with zeros, on the device of its groups. Gathered weights have the dtype `compute`.
    pub fn new(layouts: Vec<Layout>, groups: MeshGroups, compute: Kind) -> Self {
        Self::with(layouts, groups, compute, compute, None).expect("only a backing store reports that it is exhausted")
    }

    /// Allocates as [`Fsdp::new`] does, with frozen weights in dtype `frozen`. The shards of units with a `true` in `swapped` are in the
    /// backing store, and are fetched before they are used.
    ///
    /// # Errors
    /// The backing store is exhausted.
    pub fn with(
        layouts: Vec<Layout>,
        groups: MeshGroups,
        compute: Kind,
        frozen: Kind,
        offload: Option<(Offload, Vec<bool>)>,
    ) -> Result<Self> {
        let device = groups.device;
        let (offload, swapped) = offload.map_or((None, Vec::new()), |(offload, swapped)| (Some(offload), swapped));
        let unit = |(number, layout): (usize, Layout)| -> Result<ShardedUnit> {
            let swapped = swapped.get(number).copied().unwrap_or(false);
            let zeros = |len: i64, kind| match offload.as_ref().filter(|_| swapped) {
                Some(offload) => offload.store().zeros(&[len], kind),
                None => Ok(Tensor::zeros([len], (kind, device))),
            };
            let trained = || -> Result<TrainedShard> {
                Ok(TrainedShard {
                    master: zeros(layout.trained_shard, Kind::Float)?,
                    grad: zeros(layout.trained_shard, Kind::Float)?,
                    filled: false,
                    whole: None,
                })
            };
            Ok(ShardedUnit {
                swapped,
                trained: (layout.trained_shard > 0).then(trained).transpose()?,
                frozen: (layout.frozen_shard > 0).then(|| zeros(layout.frozen_shard, frozen)).transpose()?,
                layout,
            })
        };
        let units = layouts.into_iter().enumerate().map(unit).collect::<Result<_>>()?;
        Ok(Fsdp {
            groups,
            compute,
            frozen,
            units,
            offload,
            gathering: None,
            reducing: None,
            grad_sync: GradSync::Reduce,
        })
    }

    /// Returns the backing store and its copies, if there is one.
    pub fn offload(&self) -> Option<&Offload> {
        self.offload.as_ref()
    }

    /// Returns the backing store and its copies, if there is one.
    pub fn offload_mut(&mut self) -> Option<&mut Offload> {
        self.offload.as_mut()
    }

    /// Takes tensors out of the process's memory if they are in the backing store. Call it after the host has read or written a shard or
    /// state, so that loading, for example, needs the memory of one unit.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn release(&self, tensors: &[&Tensor]) -> Result<()> {
        release(self.offload.as_ref(), tensors)
    }

    /// Calls `visit` with each trained shard on the device of this rank, in the order of units. Swapped shards are fetched one after
    /// another; with [`Access::Write`] they are written back.
    ///
    /// # Errors
    /// The error of `visit`, or of a fetch.
    pub fn visit(&self, access: Access, mut visit: impl FnMut(ShardView<'_>) -> Result<()>) -> Result<()> {
        for (number, unit) in self.units.iter().enumerate() {
            let Some(TrainedShard { master, grad, .. }) = &unit.trained else { continue };
            let Some(offload) = self.offload.as_ref().filter(|_| unit.swapped) else {
                visit(ShardView { unit: number, master, grad })?;
                continue;
            };
            let here = offload.on_device([master, grad])?;
            visit(ShardView { unit: number, master: &here[0], grad: &here[1] })?;
            match access {
                Access::Write => offload.write_back([master, grad], &here)?,
                Access::Read => offload.store().release(&[master, grad])?,
            }
        }
        Ok(())
    }

    /// Returns the layout of a unit.
    pub fn layout(&self, unit: usize) -> &Layout {
        &self.units[unit].layout
    }

    /// Returns the process groups of this rank.
    pub fn groups(&self) -> &MeshGroups {
        &self.groups
    }

    /// Returns the bytes of the weights of a kind over the ranks of one replica.
    pub fn bytes(&self, kind: ParamKind) -> u64 {
        let of = |slot: &Slot| {
            let parts = if slot.tp_layout == TpLayout::Sharded { self.groups.tp.size() } else { 1 };
            let each = if slot.kind == ParamKind::Trained { Kind::Float } else { self.frozen }.elt_size_in_bytes();
            slot.len as u64 * (parts * each) as u64
        };
        self.units.iter().flat_map(|unit| &unit.layout.slots).filter(|slot| slot.kind == kind).map(of).sum()
    }

    /// Returns the runs of tensors that this rank owns, in the order of units and slots.
    pub fn owned(&self) -> Vec<OwnedRange> {
        let mut owned = Vec::new();
        for (number, unit) in self.units.iter().enumerate() {
            for range in unit.layout.ranges(self.groups.shard.rank()) {
                let shard = match range.kind {
                    ParamKind::Trained => unit.trained.as_ref().map(|t| &t.master),
                    ParamKind::Frozen => unit.frozen.as_ref(),
                };
                let shard = shard.expect("a run lies in a shard that exists");
                owned.push(OwnedRange { unit: number, range, values: shard.narrow(0, range.shard_start, range.len) });
            }
        }
        owned
    }

    /// Returns the trained shards, in the order of units.
    pub fn shards(&self) -> impl Iterator<Item = ShardView<'_>> {
        self.units
            .iter()
            .enumerate()
            .filter_map(|(unit, u)| u.trained.as_ref().map(|t| ShardView { unit, master: &t.master, grad: &t.grad }))
    }

    /// Returns the elements of a trained shard of a unit that this rank counts for its TP group, so that each element counts
    /// once: all elements on the group's first rank, only those of split slots on the others.
    pub fn own(&self, unit: usize, shard: &Tensor) -> Vec<Tensor> {
        if self.groups.tp.rank() == 0 {
            return vec![shard.shallow_clone()];
        }
        let runs = self.units[unit].layout.ranges(self.groups.shard.rank()).into_iter();
        let own = runs.filter(|range| range.kind == ParamKind::Trained && range.tp_layout == TpLayout::Sharded);
        own.map(|range| shard.narrow(0, range.shard_start, range.len)).collect()
    }

    /// Returns the whole tensors of a unit in slot order, and starts gathering `next`.
    ///
    /// Trained tensors are leaves that require a gradient. Their memory is freed when the caller drops them.
    pub fn gather(&mut self, unit: usize, next: Option<usize>) -> Result<Vec<Tensor>> {
        let ahead = match self.gathering.take() {
            Some((ready, ahead)) if ready == unit => ahead,
            _ => self.start_gather(unit)?,
        };
        let gathered = match ahead {
            Ahead::Gathered(gathered) => gathered,
            Ahead::Fetched(shards) => {
                let [trained, frozen] = shards.map(|shard| shard.map(Fetched::wait).transpose());
                self.gather_whole(trained?.as_ref(), frozen?.as_ref())?
            }
        };
        gathered.pending.into_iter().try_for_each(Pending::wait)?;
        if let Some(next) = next {
            self.gathering = Some((next, self.start_gather(next)?));
        }
        let view = |slot: &Slot| {
            let (flat, trained) = match slot.kind {
                ParamKind::Trained => (&gathered.trained, true),
                ParamKind::Frozen => (&gathered.frozen, false),
            };
            let flat = flat.as_ref().expect("a slot lies in a flat tensor that exists");
            flat.narrow(0, slot.offset, slot.len).view(slot.shape.as_slice()).detach().set_requires_grad(trained)
        };
        Ok(self.units[unit].layout.slots.iter().map(view).collect())
    }

    fn start_gather(&self, unit: usize) -> Result<Ahead> {
        let unit = &self.units[unit];
        let trained = unit.trained.as_ref().map(|t| &t.master);
        let Some(offload) = self.offload.as_ref().filter(|_| unit.swapped) else {
            return self.gather_whole(trained, unit.frozen.as_ref()).map(Ahead::Gathered);
        };
        let fetch = |shard: Option<&Tensor>| shard.map(|shard| offload.fetch(shard, self.compute)).transpose();
        Ok(Ahead::Fetched([fetch(trained)?, fetch(unit.frozen.as_ref())?]))
    }

    /// Starts to gather flat tensors of a unit from the shards of all ranks.
    fn gather_whole(&self, trained: Option<&Tensor>, frozen: Option<&Tensor>) -> Result<Gathered> {
        let shard = &self.groups.shard;
        let mut pending = Vec::new();
        let mut whole = |part: &Tensor| -> Result<Tensor> {
            // Cast before the gather: this halves the traffic for bf16, and changes nothing for fp32.
            let part = part.to_kind(self.compute);
            if shard.size() == 1 {
                return Ok(part);
            }
            let out = Tensor::empty([part.size()[0] * shard.size() as i64], (self.compute, part.device()));
            pending.push(shard.all_gather_into(&out, &part)?);
            Ok(out)
        };
        let trained = trained.map(&mut whole).transpose()?;
        let frozen = frozen.map(&mut whole).transpose()?;
        Ok(Gathered { trained, frozen, pending })
    }

    /// Sets the part of the batch to which the next gradients belong.
    pub fn set_grad_sync(&mut self, grad_sync: GradSync) {
        self.grad_sync = grad_sync;
    }

    /// Accumulates the gradients of a unit's slots, and reduces them over the mesh in the last part of a batch.
    ///
    /// Returns while the reduction is in flight; [`Fsdp::finish_reduce`] waits for the last one.
    pub fn reduce(&mut self, unit: usize, grads: Vec<(usize, Tensor)>) -> Result<()> {
        self.wait_reduce()?;
        let grads = self.summed_over_tp(unit, grads)?;
        let swapped = self.units[unit].swapped;
        let ShardedUnit { layout, trained: Some(trained), .. } = &mut self.units[unit] else { return Ok(()) };
        let shards = self.groups.shard.size();
        let device = self.groups.device;
        let place = |flat: &Tensor, slot: usize| flat.narrow(0, layout.slots[slot].offset, layout.slots[slot].len);
        if shards == 1 {
            for (slot, grad) in grads {
                let mut to = place(&trained.grad, slot);
                let from = grad.view(-1);
                if to.device() != from.device() && !trained.filled {
                    c10d::cuda::copy(&to, &from)?;
                    continue;
                }
                // The host adds to a gradient that is in its memory.
                let from = match to.device() == from.device() {
                    true => from,
                    false => waits::at(Place::SwappedGradients, || from.to_device(to.device())),
                };
                tch::no_grad(|| if trained.filled { to += from } else { to.copy_(&from) });
            }
            trained.filled = true;
            return release(self.offload.as_ref().filter(|_| swapped), &[&trained.grad]);
        }
        // Reduced in fp32 for every compute dtype, as the reference requires (parallelisms.py:157).
        let before = trained.whole.take();
        let first = before.is_none();
        let flat = before.unwrap_or_else(|| {
            let whole = layout.trained_shard * shards as i64;
            let flat = Tensor::empty([whole], (Kind::Float, device));
            let used: i64 = layout.slots.iter().filter(|s| s.kind == ParamKind::Trained).map(|s| s.len).sum();
            let _ = flat.narrow(0, used, whole - used).zero_();
            flat
        });
        for (slot, grad) in grads {
            let mut to = place(&flat, slot);
            let from = grad.view(-1);
            tch::no_grad(|| if first { to.copy_(&from) } else { to += from });
        }
        if self.grad_sync == GradSync::Accumulate {
            trained.whole = Some(flat);
            return Ok(());
        }
        if swapped {
            // NCCL reduces to memory of the device. The shard leaves it at once.
            let here = Tensor::empty([layout.trained_shard], (Kind::Float, device));
            self.groups.shard.reduce_scatter_into(&here, &flat, Reduce::Sum)?.wait()?;
            waits::at(Place::SwappedGradients, || tch::no_grad(|| trained.grad.copy_(&here)));
            return release(self.offload.as_ref(), &[&trained.grad]);
        }
        let pending = self.groups.shard.reduce_scatter_into(&trained.grad, &flat, Reduce::Sum)?;
        self.reducing = Some(pending);
        Ok(())
    }

    /// Sums the gradients of partial slots over the TP group, in one collective.
    fn summed_over_tp(&mut self, unit: usize, mut grads: Vec<(usize, Tensor)>) -> Result<Vec<(usize, Tensor)>> {
        let slots = &self.units[unit].layout.slots;
        let is_partial = |(slot, _): &&mut (usize, Tensor)| slots[*slot].tp_layout == TpLayout::Partial;
        let mut partial: Vec<&mut (usize, Tensor)> = grads.iter_mut().filter(is_partial).collect();
        if self.groups.tp.size() == 1 || partial.is_empty() {
            return Ok(grads);
        }
        let flat = Tensor::cat(&partial.iter().map(|(_, grad)| grad.view(-1)).collect::<Vec<_>>(), 0);
        self.groups.tp.all_reduce(&flat, Reduce::Sum)?.wait()?;
        let mut at = 0;
        for (_, grad) in &mut partial {
            let len = grad.numel() as i64;
            *grad = flat.narrow(0, at, len).view(grad.size().as_slice());
            at += len;
        }
        Ok(grads)
    }

    fn wait_reduce(&mut self) -> Result<()> {
        self.reducing.take().map_or(Ok(()), Pending::wait)
    }

    /// Completes the gradients of a step: waits for reductions in flight and sums over the replicas.
    pub fn finish_reduce(&mut self) -> Result<()> {
        self.wait_reduce()?;
        if self.groups.replicate.size() > 1 {
            let mut sums = Vec::new();
            self.visit(Access::Write, |shard| {
                let sum = self.groups.replicate.all_reduce(shard.grad, Reduce::Sum)?;
                // A swapped shard leaves the memory of the device after its sum.
                if self.units[shard.unit].swapped {
                    return sum.wait();
                }
                sums.push(sum);
                Ok(())
            })?;
            sums.into_iter().try_for_each(Pending::wait)?;
        }
        for trained in self.units.iter_mut().filter_map(|unit| unit.trained.as_mut()) {
            trained.filled = false;
        }
        Ok(())
    }
}

fn release(offload: Option<&Offload>, tensors: &[&Tensor]) -> Result<()> {
    offload.map_or(Ok(()), |offload| offload.store().release(tensors))
}
