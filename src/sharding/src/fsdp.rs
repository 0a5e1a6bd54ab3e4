//! Fully sharded data parallelism (FSDP): gathers a unit's parameters before the unit computes, frees them afterwards,
//! and reduces its gradients to shards.
//!
//! With one shard nothing is gathered, and fp32 weights are not copied: the gathered tensors are views of the
//! master weights. With several shards, the gather of the next unit and the reduction of the previous one are in flight
//! while a unit computes. A reduced gradient is summed over the replicas while the backward pass continues.

use crate::flat::{Layout, ParamKind, ShardRange, Slot, TpLayout};
use crate::mesh::MeshGroups;
use crate::offload::{Fetched, Offload};
use c10d::ops::copy_each;
use c10d::waits::{self, Place};
use c10d::{Pending, Reduce, Result};
use recipe::Accumulate;
use std::cell::Cell;
use tch::{Kind, Tensor};

/// The bucket size in bytes of the sums over the replicas, as in PyTorch's DDP. Without buckets, each small unit, such
/// as that of an adapter, would start its own all-reduce.
const SUMMED_AT_ONCE: usize = 25 << 20;

/// The sharded parameters of a model and the gradients of this rank's shards.
pub struct Fsdp {
    groups: MeshGroups,
    compute: Kind,
    frozen: Kind,
    units: Vec<ShardedUnit>,
    offload: Option<Offload>,
    gathering: Option<(usize, Ahead)>,
    /// A unit's reduce-scatter in flight.
    reducing: Option<Reducing>,
    /// The current bucket: units whose gradients are reduced to shards and not summed over the replicas yet.
    reduced: Vec<usize>,
    /// The bucket size in bytes: [`SUMMED_AT_ONCE`], except in tests.
    summed_at_once: usize,
    /// Sums over the replicas in flight.
    summing: Vec<Pending>,
    grad_sync: GradSync,
    accumulate: Accumulate,
    /// The number of times that frozen weights have changed.
    frozen_version: Cell<u64>,
}

/// How gradients of the current micro-batch are handled, for gradient accumulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GradSync {
    /// The micro-batch is not the last one: its gradients are accumulated in fp32, whole or sharded as [`Accumulate`]
    /// sets.
    Accumulate,
    /// The micro-batch is the last or only one: each unit's gradient is complete after its reduction.
    Reduce,
}

/// A reduce-scatter in flight.
struct Reducing {
    unit: usize,
    pending: Pending,
    /// A separate destination, whose content is added to the shard's gradient later; `None` if the gradient is the
    /// destination.
    part: Option<Tensor>,
    grad_sync: GradSync,
}

/// This rank's part of one unit.
struct ShardedUnit {
    layout: Layout,
    /// Whether the shards are in the backing store.
    swapped: bool,
    /// Master weights in fp32, and their gradient.
    trained: Option<TrainedShard>,
    /// Frozen weights in the compute dtype, or in the dtype `frozen` of [`Fsdp::with`].
    frozen: Option<Tensor>,
    /// Whether the whole frozen tensor stays gathered between uses.
    keeps: bool,
    /// The whole frozen tensor, and the version of the frozen weights that it has.
    kept: Option<(u64, Tensor)>,
}

impl ShardedUnit {
    /// Returns the whole frozen tensor if it was kept and has this version of the weights.
    fn kept(&self, version: u64) -> Option<Tensor> {
        self.kept.as_ref().filter(|(of, _)| *of == version).map(|(_, whole)| whole.shallow_clone())
    }
}

/// A trained shard.
struct TrainedShard {
    master: Tensor,
    grad: Tensor,
    /// Whether `grad` already has a contribution of this step.
    filled: bool,
    /// The unit's accumulated unsharded gradient, until the last micro-batch, with [`Accumulate::Whole`].
    whole: Option<Tensor>,
}

/// A unit's whole flat tensors, and the gather that fills them.
struct Gathered {
    trained: Option<Tensor>,
    frozen: Option<Tensor>,
    pending: Option<Pending>,
}

/// A unit that was requested ahead of its use.
enum Ahead {
    /// The gather of the unit is in flight.
    Gathered(Gathered),
    /// Its trained and its frozen shard are being fetched from the backing store. They are gathered afterwards.
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

/// A contiguous range of a tensor's elements that this rank owns.
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

    /// Allocates as [`Fsdp::new`] does, with frozen weights in dtype `frozen`. `offload` is the backing store and, for
    /// each unit, whether its shards are swapped: kept in the backing store and fetched before use.
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
                keeps: false,
                kept: None,
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
            reduced: Vec::new(),
            summed_at_once: SUMMED_AT_ONCE,
            summing: Vec::new(),
            grad_sync: GradSync::Reduce,
            accumulate: Accumulate::Whole,
            frozen_version: Cell::new(0),
        })
    }

    /// Sets whether gradients are accumulated whole or sharded over the micro-batches. Has no effect with one shard.
    #[must_use]
    pub fn accumulating(mut self, accumulate: Accumulate) -> Self {
        self.accumulate = accumulate;
        self
    }

    /// Sets the units whose frozen tensors stay gathered between uses. Has no effect with one shard, or on swapped
    /// units.
    #[must_use]
    pub fn keeping(mut self, units: &[bool]) -> Self {
        for (unit, keeps) in self.units.iter_mut().zip(units) {
            unit.keeps = *keeps && !unit.swapped && self.groups.shard.size() > 1;
        }
        self
    }

    /// Discards the frozen tensors that stayed gathered. Call it after a change of frozen weights.
    pub fn frozen_changed(&self) {
        self.frozen_version.set(self.frozen_version.get() + 1);
    }

    /// Returns the backing store and its copies, if there is one.
    pub fn offload(&self) -> Option<&Offload> {
        self.offload.as_ref()
    }

    /// Returns the backing store and its copies, if there is one.
    pub fn offload_mut(&mut self) -> Option<&mut Offload> {
        self.offload.as_mut()
    }

    /// Releases the memory of tensors that the backing store also has on disk. Call it after the host has read or
    /// written a shard or optimizer state, so that loading, for example, needs the memory of only one unit.
    ///
    /// # Errors
    /// The operating system cannot release the pages.
    pub fn release(&self, tensors: &[&Tensor]) -> Result<()> {
        release(self.offload.as_ref(), tensors)
    }

    /// Calls `visit` with each trained shard on the device of this rank, in the order of units. Swapped shards are fetched one after
    /// another; with [`Access::Write`] they are written back.
    ///
    /// # Errors
    /// The error of `visit`, or of a fetch.
    pub fn visit(&self, access: Access, visit: impl FnMut(ShardView<'_>) -> Result<()>) -> Result<()> {
        self.visit_units(access, |_| true, visit)
    }

    /// Visits as [`Fsdp::visit`] does, but only units for which `wanted` holds.
    fn visit_units(
        &self,
        access: Access,
        wanted: impl Fn(&ShardedUnit) -> bool,
        mut visit: impl FnMut(ShardView<'_>) -> Result<()>,
    ) -> Result<()> {
        for (number, unit) in self.units.iter().enumerate().filter(|(_, unit)| wanted(unit)) {
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

    /// Returns the bytes of all weights of a kind in one replica, over all its ranks.
    pub fn bytes(&self, kind: ParamKind) -> u64 {
        let of = |slot: &Slot| {
            let parts = if slot.tp_layout == TpLayout::Sharded { self.groups.tp.size() } else { 1 };
            let each = if slot.kind == ParamKind::Trained { Kind::Float } else { self.frozen }.elt_size_in_bytes();
            slot.len as u64 * (parts * each) as u64
        };
        self.units.iter().flat_map(|unit| &unit.layout.slots).filter(|slot| slot.kind == kind).map(of).sum()
    }

    /// Returns the ranges of tensors that this rank owns, in the order of units and slots.
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
    /// once: all elements on the group's first rank, and only the elements of TP-sharded slots on the others.
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
        let Gathered { trained, frozen, pending } = gathered;
        pending.map_or(Ok(()), Pending::wait)?;
        let version = self.frozen_version.get();
        let frozen = self.units[unit].kept(version).or(frozen);
        if self.units[unit].keeps {
            self.units[unit].kept = frozen.as_ref().map(|whole| (version, whole.shallow_clone()));
        }
        if let Some(next) = next {
            self.gathering = Some((next, self.start_gather(next)?));
        }
        let view = |slot: &Slot| {
            let (flat, trained) = match slot.kind {
                ParamKind::Trained => (&trained, true),
                ParamKind::Frozen => (&frozen, false),
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
            let frozen = if unit.kept(self.frozen_version.get()).is_some() { None } else { unit.frozen.as_ref() };
            return self.gather_whole(trained, frozen).map(Ahead::Gathered);
        };
        let fetch = |shard: Option<&Tensor>| shard.map(|shard| offload.fetch(shard, self.compute)).transpose();
        Ok(Ahead::Fetched([fetch(trained)?, fetch(unit.frozen.as_ref())?]))
    }

    /// Starts to gather flat tensors of a unit from the shards of all ranks.
    fn gather_whole(&self, trained: Option<&Tensor>, frozen: Option<&Tensor>) -> Result<Gathered> {
        let shard = &self.groups.shard;
        let own = |whole: &Tensor| {
            let len = whole.size()[0] / shard.size() as i64;
            whole.narrow(0, len * shard.rank() as i64, len)
        };
        // Cast before the gather: this halves the traffic for bf16, and changes nothing for fp32.
        let place = |part: &Tensor| {
            if shard.size() == 1 {
                return part.to_kind(self.compute);
            }
            let whole = Tensor::empty([part.size()[0] * shard.size() as i64], (self.compute, part.device()));
            tch::no_grad(|| own(&whole).copy_(part));
            whole
        };
        let (trained, frozen) = (trained.map(place), frozen.map(place));
        let wholes: Vec<&Tensor> = trained.iter().chain(&frozen).collect();
        let pending = if shard.size() == 1 || wholes.is_empty() {
            None
        } else {
            let parts: Vec<Tensor> = wholes.iter().map(|whole| own(whole)).collect();
            Some(shard.all_gather_many(&wholes.into_iter().zip(&parts).collect::<Vec<_>>())?)
        };
        Ok(Gathered { trained, frozen, pending })
    }

    /// Sets whether the next gradients belong to the last micro-batch.
    pub fn set_grad_sync(&mut self, grad_sync: GradSync) {
        self.grad_sync = grad_sync;
    }

    /// Accumulates the gradients of a unit's slots, and reduces them over the mesh in the last micro-batch.
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
            let mut copies = Vec::new();
            for (slot, grad) in grads {
                let mut to = place(&trained.grad, slot);
                let from = grad.view(-1);
                if to.device() == from.device() && !trained.filled {
                    copies.push((to, from));
                    continue;
                }
                if !trained.filled {
                    c10d::cuda::copy(&to, &from)?;
                    continue;
                }
                // The gradient is in host memory, so the host adds to it.
                let from = match to.device() == from.device() {
                    true => from,
                    false => waits::at(Place::SwappedGradients, || from.to_device(to.device())),
                };
                tch::no_grad(|| to += from);
            }
            copy_each(&copies)?;
            trained.filled = true;
            if self.grad_sync == GradSync::Reduce && !swapped {
                return self.sum_over_replicas(unit);
            }
            return release(self.offload.as_ref().filter(|_| swapped), &[&trained.grad]);
        }
        // Reduced in fp32 for every compute dtype, as the reference requires (parallelisms.py:157).
        let before = trained.whole.take();
        let first = before.is_none();
        let flat = before.unwrap_or_else(|| {
            let flat = Tensor::empty([layout.trained_shard * shards as i64], (Kind::Float, device));
            for (start, len) in layout.gaps(ParamKind::Trained, shards) {
                let _ = flat.narrow(0, start, len).zero_();
            }
            flat
        });
        let mut pairs: Vec<_> = grads.into_iter().map(|(slot, grad)| (place(&flat, slot), grad.view(-1))).collect();
        if first {
            copy_each(&pairs)?;
        } else {
            tch::no_grad(|| pairs.iter_mut().for_each(|(to, from)| *to += &*from));
        }
        if self.grad_sync == GradSync::Accumulate && self.accumulate == Accumulate::Whole {
            trained.whole = Some(flat);
            return Ok(());
        }
        // NCCL reduces to memory of the device, where a swapped shard is not.
        let part = (swapped || trained.filled).then(|| Tensor::empty([layout.trained_shard], (Kind::Float, device)));
        let to = part.as_ref().unwrap_or(&trained.grad);
        let pending = self.groups.shard.reduce_scatter_into(to, &flat, Reduce::Sum)?;
        self.reducing = Some(Reducing { unit, pending, part, grad_sync: self.grad_sync });
        // A swapped shard leaves the memory of the device at once.
        if swapped { self.wait_reduce() } else { Ok(()) }
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

    /// Waits for the reduce-scatter in flight, and adds its result to the shard's gradient. Adds a complete gradient to
    /// the bucket that is summed over the replicas.
    fn wait_reduce(&mut self) -> Result<()> {
        let Some(Reducing { unit, pending, part, grad_sync }) = self.reducing.take() else { return Ok(()) };
        pending.wait()?;
        let ShardedUnit { swapped, trained: Some(trained), .. } = &mut self.units[unit] else { return Ok(()) };
        if let Some(part) = part {
            waits::at(Place::SwappedGradients, || {
                let (mut to, part) = (trained.grad.shallow_clone(), part.to_device(trained.grad.device()));
                tch::no_grad(|| if trained.filled { to += part } else { to.copy_(&part) });
            });
        }
        trained.filled = true;
        if *swapped {
            return release(self.offload.as_ref(), &[&trained.grad]);
        }
        if grad_sync == GradSync::Reduce { self.sum_over_replicas(unit) } else { Ok(()) }
    }

    /// Adds a unit to the bucket, and starts to sum the bucket over the replicas if it is full.
    fn sum_over_replicas(&mut self, unit: usize) -> Result<()> {
        self.reduced.push(unit);
        let bytes = |unit: &usize| self.units[*unit].layout.trained_shard as usize * Kind::Float.elt_size_in_bytes();
        if self.reduced.iter().map(bytes).sum::<usize>() >= self.summed_at_once { self.start_sums() } else { Ok(()) }
    }

    /// Starts to sum the gradients of the bucket over the replicas.
    fn start_sums(&mut self) -> Result<()> {
        let reduced = std::mem::take(&mut self.reduced);
        if self.groups.replicate.size() > 1 && !reduced.is_empty() {
            let grads =
                reduced.iter().filter_map(|unit| self.units[*unit].trained.as_ref()).map(|trained| &trained.grad);
            let sums = self.groups.replicate.all_reduce_many(&grads.collect::<Vec<_>>(), Reduce::Sum)?;
            self.summing.push(sums);
        }
        Ok(())
    }

    /// Completes the gradients of a step: waits for the collectives in flight, and sums swapped shards over the replicas.
    pub fn finish_reduce(&mut self) -> Result<()> {
        self.wait_reduce()?;
        self.start_sums()?;
        std::mem::take(&mut self.summing).into_iter().try_for_each(Pending::wait)?;
        if self.groups.replicate.size() > 1 {
            let is_swapped = |unit: &ShardedUnit| unit.swapped;
            // A swapped shard is summed on the device. It leaves the device's memory after its sum.
            self.visit_units(Access::Write, is_swapped, |shard| {
                self.groups.replicate.all_reduce(shard.grad, Reduce::Sum)?.wait()
            })?;
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

#[cfg(test)]
mod tests;
