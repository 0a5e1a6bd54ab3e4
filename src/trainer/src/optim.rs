//! The optimizer of sharded parameters: learning rates, updates and state.

mod adafactor;
mod adamw;
mod prodigy;

use adafactor::Adafactor;
use adamw::AdamW;
use c10d::cuda::Event;
use prodigy::Prodigy;
use recipe::{Optimizer, OptimizerKind, ParamGroup, ParamSpec};
use sharding::flat::{ParamKind, TpLayout};
use sharding::fsdp::{Fsdp, OwnedRange};
use sharding::mesh::MeshGroups;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use tch::{Kind, Tensor};

/// The learning rates of one step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LearningRates {
    /// The rate of TTT layers and their gates.
    pub ttt: f64,
    /// The rate of all other parameters.
    pub rest: f64,
    /// The decay rate of the first moment.
    pub beta1: f64,
    step: u64,
    total: u64,
}

impl LearningRates {
    /// Returns the rates of the step that follows `step` finished steps, in a run of `total` steps.
    ///
    /// The formulas are in [`recipe::Optimizer::lr_at`].
    pub fn at(o: &Optimizer, step: u64, total: u64) -> Self {
        LearningRates {
            ttt: o.lr_at(o.schedule_ttt, o.lr_ttt, step, total),
            rest: o.lr_at(o.schedule, o.lr, step, total),
            beta1: o.beta1_at(step, total),
            step,
            total,
        }
    }

    fn of(&self, o: &Optimizer, rate: Rate) -> f64 {
        match rate {
            Rate { group: ParamGroup::Ttt, peak: None } => self.ttt,
            Rate { peak: None, .. } => self.rest,
            Rate { group: ParamGroup::Ttt, peak: Some(peak) } => o.lr_at(o.schedule_ttt, peak, self.step, self.total),
            Rate { peak: Some(peak), .. } => o.lr_at(o.schedule, peak, self.step, self.total),
        }
    }
}

/// Selects the learning rate of a parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Rate {
    group: ParamGroup,
    /// The peak that a pattern of the recipe sets for the parameter; `None` for the peak of the group.
    peak: Option<f64>,
}

/// Neighbouring elements of a shard with the same rate and weight decay.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Segment {
    start: i64,
    len: i64,
    rate: Rate,
    weight_decay: f64,
}

impl Segment {
    fn of(o: &Optimizer, spec: &ParamSpec, owned: &OwnedRange) -> Self {
        let rate = Rate { group: spec.group, peak: o.peak_of(&spec.name) };
        Segment { start: owned.range.shard_start, len: owned.range.len, rate, weight_decay: o.weight_decay_of(spec) }
    }

    fn part(&self, of: &Tensor) -> Tensor {
        of.narrow(0, self.start, self.len)
    }

    /// Returns whether both have the same rate and weight decay.
    fn has_settings_of(&self, other: &Self) -> bool {
        (self.rate, self.weight_decay) == (other.rate, other.weight_decay)
    }
}

/// Returns the trained ranges of this rank.
fn trained(fsdp: &Fsdp) -> impl Iterator<Item = OwnedRange> {
    fsdp.owned().into_iter().filter(|owned| owned.range.kind == ParamKind::Trained)
}

/// Returns the segments of a unit's trained shard.
fn segments(fsdp: &Fsdp, tables: &[Vec<ParamSpec>], o: &Optimizer, unit: usize) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::new();
    for owned in trained(fsdp).filter(|owned| owned.unit == unit) {
        let next = Segment::of(o, &tables[unit][owned.range.slot], &owned);
        match segments.last_mut() {
            // The padding between both is zero, and so are its gradients, so an update leaves it zero.
            Some(last) if last.has_settings_of(&next) => {
                last.len = next.start + next.len - last.start;
            }
            _ => segments.push(next),
        }
    }
    segments
}

/// Creates fp32 state of zeros with the size of a flat tensor, in the backing store if it holds the optimizer's state.
fn state_like(fsdp: &Fsdp, shard: &Tensor) -> c10d::Result<Tensor> {
    state_zeros(fsdp, shard.size()[0], Kind::Float)
}

/// Creates state of zeros, in the backing store if it holds the optimizer's state.
fn state_zeros(fsdp: &Fsdp, len: i64, kind: Kind) -> c10d::Result<Tensor> {
    match fsdp.offload().filter(|offload| offload.takes_state) {
        Some(offload) => offload.store().zeros(&[len], kind),
        None => Ok(Tensor::zeros([len], (kind, fsdp.groups().device))),
    }
}

/// Calls `change` with state on the device, and writes the state back to where it is kept.
fn with_state<const N: usize>(
    fsdp: &Fsdp,
    state: [&Tensor; N],
    change: impl FnOnce([&Tensor; N]) -> c10d::Result<()>,
) -> c10d::Result<()> {
    let Some(offload) = fsdp.offload().filter(|offload| offload.takes_state) else { return change(state) };
    let here = offload.on_device(state)?;
    change(here.each_ref())?;
    offload.write_back(state, &here)
}

/// Returns whether this rank adds a range to sums over its TP group. All its ranks hold the same elements of replicated slots, so only
/// the first one adds them.
fn counts(groups: &MeshGroups, layout: TpLayout) -> bool {
    layout == TpLayout::Sharded || groups.tp.rank() == 0
}

/// The state of the optimizer for the trained shards of this rank.
pub struct OptimizerState {
    kind: OptimizerKind,
    method: Box<dyn Method>,
    /// The number of applied updates, for the bias correction. Skipped steps do not count.
    pub steps: u64,
    /// Bytes of the state in a checkpoint, over all ranks.
    pub saved_bytes: u64,
    /// A channel that closes when the snapshot is complete. On a GPU it first sends an event that follows the copies.
    snapshot: Option<Receiver<Arc<Event>>>,
    /// How long the host waited for snapshots.
    stalled: Duration,
    /// The waits of a GPU's stream for the copies of snapshots, each between two events.
    stream_stalls: Vec<(Event, Event)>,
}

/// An update of the master weights with their gradients times `grad_scale`.
struct Update<'a> {
    fsdp: &'a Fsdp,
    optimizer: &'a Optimizer,
    lr: LearningRates,
    grad_scale: f64,
    /// The number of the update, counted from 1.
    step: u64,
}

/// An optimizer, with its state for the trained shards of this rank.
trait Method {
    /// Applies an update. A collective of Adafactor and Prodigy.
    fn step(&mut self, update: &Update<'_>) -> c10d::Result<()>;

    /// See [`OptimizerState::of`].
    fn of(&self, owned: &OwnedRange) -> Vec<StateTensor>;

    /// See [`OptimizerState::of_whole_tensors`].
    fn of_whole_tensors(&self) -> Vec<(usize, usize, StateTensor)> {
        Vec::new()
    }

    /// See [`OptimizerState::set_quantized`].
    fn set_quantized(&self, _owned: (usize, usize), _prefix: &str, _codes: &Tensor, _scales: &Tensor) {}

    /// See [`OptimizerState::numbers`].
    fn numbers(&self) -> BTreeMap<String, f64> {
        BTreeMap::new()
    }

    /// Restores the scalars of [`Method::numbers`].
    fn set_numbers(&mut self, _numbers: &BTreeMap<String, f64>) {}
}

/// Held by the thread that copies weights and optimizer state while training continues. Until it is dropped, and on a GPU until the
/// copies are complete, no update changes them.
pub struct SnapshotGuard {
    open: Sender<Arc<Event>>,
}

impl SnapshotGuard {
    /// Ends the snapshot. The update waits for the event, which follows the copies on a GPU.
    pub fn end(self, copied: Option<Arc<Event>>) {
        if let Some(copied) = copied {
            // If the optimizer has ended, nothing changes the weights.
            let _ = self.open.send(copied);
        }
    }
}

/// Optimizer state of a parameter, as a checkpoint stores it. The name of the stored tensor is the prefix and the parameter's name.
pub struct StateTensor {
    /// For example `exp_avg/`.
    pub prefix: &'static str,
    /// The numbers of the state.
    pub values: StateValues,
}

/// The numbers of a [`StateTensor`].
pub enum StateValues {
    /// One fp32 number for each element of the rank's range.
    Elements(Tensor),
    /// One code for each element of the range, and the scales of its blocks.
    Quantized {
        /// 8 bits each.
        codes: Tensor,
        /// fp32.
        scales: Tensor,
    },
    /// A tensor of this shape for the whole parameter, the same on every rank.
    Whole {
        /// Its shape.
        shape: Vec<usize>,
        /// fp32, flat.
        values: Tensor,
    },
}

impl OptimizerState {
    /// Creates the initial state of every trained shard.
    ///
    /// # Errors
    /// The backing store is exhausted.
    pub fn new(fsdp: &Fsdp, tables: &[Vec<ParamSpec>], optimizer: &Optimizer) -> c10d::Result<Self> {
        let method: Box<dyn Method> = match optimizer.kind {
            OptimizerKind::Adamw | OptimizerKind::Adamw8bit => Box::new(AdamW::new(fsdp, tables, optimizer)?),
            OptimizerKind::Adafactor => Box::new(Adafactor::new(fsdp, tables, optimizer)),
            OptimizerKind::Prodigy => Box::new(Prodigy::new(fsdp, tables, optimizer)?),
        };
        let is_trained = |unit: usize, slot: usize| fsdp.layout(unit).slots[slot].kind == ParamKind::Trained;
        let specs = tables.iter().enumerate().flat_map(|(unit, specs)| {
            specs.iter().enumerate().filter(move |(slot, _)| is_trained(unit, *slot)).map(|(_, spec)| spec)
        });
        Ok(OptimizerState {
            kind: optimizer.kind,
            saved_bytes: specs.map(|spec| optimizer.state_bytes(spec, spec.len()).saved()).sum(),
            method,
            steps: 0,
            snapshot: None,
            stalled: Duration::ZERO,
            stream_stalls: Vec::new(),
        })
    }

    /// Returns the kind of optimizer.
    pub fn kind(&self) -> OptimizerKind {
        self.kind
    }

    /// Starts a snapshot: another thread may copy the current weights and state until it drops the guard. Forward and
    /// backward passes may run meanwhile; [`OptimizerState::step`] waits.
    ///
    /// # Errors
    /// The GPU has failed.
    pub fn begin_snapshot(&mut self) -> c10d::Result<SnapshotGuard> {
        self.wait_for_snapshot()?;
        let (open, snapshot) = channel();
        self.snapshot = Some(snapshot);
        Ok(SnapshotGuard { open })
    }

    /// Waits for a snapshot in progress. Every change of weights or state calls this first. On a GPU, the host waits until the copies are
    /// enqueued, and the stream that computes until they are complete.
    ///
    /// # Errors
    /// The GPU has failed.
    pub fn wait_for_snapshot(&mut self) -> c10d::Result<()> {
        let Some(snapshot) = self.snapshot.take() else { return Ok(()) };
        let start = Instant::now();
        // The channel closes when the thread ends, even by a panic.
        let copied = snapshot.recv();
        self.stalled += start.elapsed();
        let Ok(copied) = copied else { return Ok(()) };
        let before = Event::record()?;
        copied.block()?;
        self.stream_stalls.push((before, Event::record()?));
        Ok(())
    }

    /// Returns the seconds that the host waited for snapshots since the last call: on the CPU until the copies were complete, on a GPU
    /// until they were enqueued.
    pub fn take_stall_s(&mut self) -> f64 {
        std::mem::take(&mut self.stalled).as_secs_f64()
    }

    /// Returns the seconds that the stream of a GPU waited for copies of snapshots since the last call; 0 on the CPU. Waits for the end of
    /// these waits, so call this after the host has waited for the stream anyway.
    ///
    /// # Errors
    /// The GPU has failed.
    pub fn take_stream_stall_s(&mut self) -> c10d::Result<f64> {
        std::mem::take(&mut self.stream_stalls).iter().map(|(before, after)| after.seconds_since(before)).sum()
    }

    /// Discards the waits so far.
    pub fn drop_stalls(&mut self) {
        self.stalled = Duration::ZERO;
        self.stream_stalls.clear();
    }

    /// Updates the master weights with their gradients times `grad_scale`. A collective of Adafactor and Prodigy. The gradients are
    /// undefined afterwards.
    pub fn step(&mut self, fsdp: &Fsdp, o: &Optimizer, lr: LearningRates, grad_scale: f64) -> c10d::Result<()> {
        self.wait_for_snapshot()?;
        self.steps += 1;
        self.method.step(&Update { fsdp, optimizer: o, lr, grad_scale, step: self.steps })
    }

    /// Returns the state of a trained range of this rank.
    pub fn of(&self, owned: &OwnedRange) -> Vec<StateTensor> {
        self.method.of(owned)
    }

    /// Returns the state that every rank has of whole tensors, by unit and slot.
    pub fn of_whole_tensors(&self) -> Vec<(usize, usize, StateTensor)> {
        self.method.of_whole_tensors()
    }

    /// Fills the quantized state of a range from codes that have one scale per code.
    pub fn set_quantized(&self, owned: (usize, usize), prefix: &str, codes: &Tensor, scales: &Tensor) {
        self.method.set_quantized(owned, prefix, codes, scales);
    }

    /// Returns the scalars of the state by name, such as Prodigy's `d`.
    pub fn numbers(&self) -> BTreeMap<String, f64> {
        self.method.numbers()
    }

    /// Restores the number of updates and the scalars of [`OptimizerState::numbers`].
    pub fn restore(&mut self, steps: u64, numbers: &BTreeMap<String, f64>) {
        self.steps = steps;
        self.method.set_numbers(numbers);
    }
}

#[cfg(test)]
mod tests;
