//! AdamW over sharded parameters, in four groups: TTT or rest, decayed or not.

use c10d::ops::AdamW;
use recipe::{Family, Optimizer, ParamSpec};
use sharding::flat::ParamKind;
use sharding::fsdp::Fsdp;
use std::convert::Infallible;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use tch::Tensor;

/// The learning rates of one step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LearningRates {
    /// Of TTT layers and their gates.
    pub ttt: f64,
    /// Of everything else.
    pub rest: f64,
}

impl LearningRates {
    /// The rates of the step that comes after `step` finished ones, in a run of `total`.
    ///
    /// Source: reference/ttt-video `optimizers.py`; the formulas are [`recipe::Schedule::lr_at`].
    pub fn at(o: &Optimizer, step: u64, total: u64) -> Self {
        LearningRates {
            ttt: o.schedule_ttt.lr_at(step, o.lr_ttt, o.lr_end, o.warmup_steps, total),
            rest: o.schedule.lr_at(step, o.lr, o.lr_end, o.warmup_steps, total),
        }
    }
}

/// AdamState of this rank's trained shards.
pub struct AdamState {
    shards: Vec<ShardState>,
    /// Optimizer steps taken, for the bias correction. Skipped steps do not count.
    pub steps: u64,
    /// Closed once the thread that reads aside has read.
    reading: Option<Receiver<Infallible>>,
    held_up: Duration,
}

/// Held by a thread that reads weights and moments while training goes on: until it is dropped, nothing changes them.
pub struct SnapshotGuard {
    _open: Sender<Infallible>,
}

struct ShardState {
    /// Number of the unit.
    unit: usize,
    /// Mean of gradients, one-dimensional, as long as the shard.
    exp_avg: Tensor,
    /// Mean of squared gradients.
    exp_avg_sq: Tensor,
    segments: Vec<Segment>,
}

/// Neighbouring elements of one parameter group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Segment {
    start: i64,
    len: i64,
    family: Family,
    decay: bool,
}

/// Which moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// Mean of gradients.
    First,
    /// Mean of squared gradients.
    Second,
}

impl AdamState {
    /// Zeros for every trained shard.
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
                        Some(last) if (last.family, last.decay) == (spec.family, decay) => last.len += o.range.len,
                        _ => segments.push(Segment {
                            start: o.range.shard_start,
                            len: o.range.len,
                            family: spec.family,
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
        AdamState { shards, steps: 0, reading: None, held_up: Duration::ZERO }
    }

    /// Lets another thread read weights and moments as they are now. Forward and backward passes go on meanwhile.
    pub fn begin_snapshot(&mut self) -> SnapshotGuard {
        self.wait_for_snapshot();
        let (open, reading) = channel();
        self.reading = Some(reading);
        SnapshotGuard { _open: open }
    }

    /// Waits until the thread that reads aside, if there is one, has read. What changes weights or moments begins with this.
    pub fn wait_for_snapshot(&mut self) {
        let Some(reading) = self.reading.take() else { return };
        let start = Instant::now();
        // Nothing is ever sent: the channel is closed when the reader is done, and also when it panics.
        let _ = reading.recv();
        self.held_up += start.elapsed();
    }

    /// Returns the seconds spent waiting for readers since the last call.
    pub fn take_stall_s(&mut self) -> f64 {
        std::mem::take(&mut self.held_up).as_secs_f64()
    }

    /// Updates the master weights with their gradients times `grad_scale`.
    pub fn step(&mut self, fsdp: &Fsdp, o: &Optimizer, lr: LearningRates, grad_scale: f64) -> c10d::Result<()> {
        self.wait_for_snapshot();
        self.steps += 1;
        for (shard, moments) in fsdp.shards().zip(&self.shards) {
            for segment in &moments.segments {
                let part = |t: &Tensor| t.narrow(0, segment.start, segment.len);
                let adamw = AdamW {
                    lr: if segment.family == Family::Ttt { lr.ttt } else { lr.rest },
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

    /// A moment of a unit's trained shard; none when the unit is frozen.
    pub fn of(&self, unit: usize, moment: Moment) -> Option<&Tensor> {
        self.shards.iter().find(|s| s.unit == unit).map(|s| match moment {
            Moment::First => &s.exp_avg,
            Moment::Second => &s.exp_avg_sq,
        })
    }
}
