//! AdamW over sharded parameters, in four groups: TTT or rest, decayed or not.

use c10d::ops::AdamW;
use recipe::{Optimizer, ParamGroup, ParamSpec};
use sharding::flat::ParamKind;
use sharding::fsdp::Fsdp;
use std::convert::Infallible;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use tch::Tensor;

/// The learning rates of one step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LearningRates {
    /// The rate of TTT layers and their gates.
    pub ttt: f64,
    /// The rate of all other parameters.
    pub rest: f64,
}

impl LearningRates {
    /// Returns the rates of the step that follows `step` finished steps, in a run of `total` steps.
    ///
    /// Source: reference/ttt-video `optimizers.py`; the formulas are [`recipe::Schedule::lr_at`].
    pub fn at(o: &Optimizer, step: u64, total: u64) -> Self {
        LearningRates {
            ttt: o.schedule_ttt.lr_at(step, o.lr_ttt, o.lr_end, o.warmup_steps, total),
            rest: o.schedule.lr_at(step, o.lr, o.lr_end, o.warmup_steps, total),
        }
    }
}

/// The state of AdamW for the trained shards of this rank.
pub struct AdamState {
    shards: Vec<ShardState>,
    /// Optimizer steps taken, for the bias correction. Skipped steps do not count.
    pub steps: u64,
    /// A channel that closes when the snapshot of a save is complete.
    snapshot: Option<Receiver<Infallible>>,
    stalled: Duration,
}

/// Held by the thread that copies weights and optimizer state while training continues. Until it is dropped, no update
/// changes them.
pub struct SnapshotGuard {
    _open: Sender<Infallible>,
}

struct ShardState {
    /// Index of the unit.
    unit: usize,
    /// Mean of gradients, one-dimensional, with the length of the shard.
    exp_avg: Tensor,
    /// Mean of squared gradients.
    exp_avg_sq: Tensor,
    segments: Vec<Segment>,
}

/// Adjacent elements of one parameter group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Segment {
    start: i64,
    len: i64,
    group: ParamGroup,
    decay: bool,
}

/// One of Adam's two moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// Mean of gradients.
    First,
    /// Mean of squared gradients.
    Second,
}

impl AdamState {
    /// Makes a state of zeros for every trained shard.
    pub fn new(fsdp: &Fsdp, tables: &[Vec<ParamSpec>], optimizer: &Optimizer) -> Self {
        let owned = fsdp.owned();
        let shards = fsdp
            .shards()
            .map(|shard| {
                let mut segments: Vec<Segment> = Vec::new();
                for o in owned.iter().filter(|o| o.unit == shard.unit && o.range.kind == ParamKind::Trained) {
                    let spec = &tables[o.unit][o.range.slot];
                    let decay = optimizer.decays(spec);
                    match segments.last_mut() {
                        Some(last) if (last.group, last.decay) == (spec.group, decay) => last.len += o.range.len,
                        _ => segments.push(Segment {
                            start: o.range.shard_start,
                            len: o.range.len,
                            group: spec.group,
                            decay,
                        }),
                    }
                }
                ShardState {
                    unit: shard.unit,
                    exp_avg: shard.master.zeros_like(),
                    exp_avg_sq: shard.master.zeros_like(),
                    segments,
                }
            })
            .collect();
        AdamState { shards, steps: 0, snapshot: None, stalled: Duration::ZERO }
    }

    /// Starts a snapshot: another thread may copy the current weights and state until it drops the guard. Forward and
    /// backward passes may run meanwhile; [`AdamState::step`] waits.
    pub fn begin_snapshot(&mut self) -> SnapshotGuard {
        self.wait_for_snapshot();
        let (open, snapshot) = channel();
        self.snapshot = Some(snapshot);
        SnapshotGuard { _open: open }
    }

    /// Waits for a snapshot in progress. Every change of weights or state calls this first.
    pub fn wait_for_snapshot(&mut self) {
        let Some(snapshot) = self.snapshot.take() else { return };
        let start = Instant::now();
        // No message is sent. The channel closes when the thread ends, even by a panic.
        let _ = snapshot.recv();
        self.stalled += start.elapsed();
    }

    /// Returns the seconds spent waiting for snapshots since the last call.
    pub fn take_stall_s(&mut self) -> f64 {
        std::mem::take(&mut self.stalled).as_secs_f64()
    }

    /// Updates the master weights with their gradients times `grad_scale`.
    pub fn step(&mut self, fsdp: &Fsdp, o: &Optimizer, lr: LearningRates, grad_scale: f64) -> c10d::Result<()> {
        self.wait_for_snapshot();
        self.steps += 1;
        for (shard, moments) in fsdp.shards().zip(&self.shards) {
            for segment in &moments.segments {
                let part = |t: &Tensor| t.narrow(0, segment.start, segment.len);
                let adamw = AdamW {
                    lr: if segment.group == ParamGroup::Ttt { lr.ttt } else { lr.rest },
                    beta1: o.beta1,
                    beta2: o.beta2,
                    eps: o.eps,
                    weight_decay: if segment.decay { o.weight_decay } else { 0.0 },
                    step: self.steps,
                    grad_scale,
                };
                adamw.step(
                    &part(shard.master),
                    &part(shard.grad),
                    &part(&moments.exp_avg),
                    &part(&moments.exp_avg_sq),
                )?;
            }
        }
        Ok(())
    }

    /// Returns a moment of a unit's trained shard; `None` if the unit is frozen.
    pub fn of(&self, unit: usize, moment: Moment) -> Option<&Tensor> {
        self.shards.iter().find(|s| s.unit == unit).map(|s| match moment {
            Moment::First => &s.exp_avg,
            Moment::Second => &s.exp_avg_sq,
        })
    }
}
