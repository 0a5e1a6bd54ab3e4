//! One training step: the computation on every rank, and the values that ranks exchange afterwards.

use crate::batches::{Batches, Samples};
#[cfg(test)]
use crate::data::Batch;
use crate::data::Data;
use crate::device::{Mark, upload};
use crate::exchange::all_gather_small;
use crate::memory::Memory;
use crate::noising::Noising;
use crate::optim::{LearningRates, OptimizerState};
use crate::parallelize::{Sharded, Training};
use crate::phase::{self, Phase};
use crate::requests::SaveStopRequests;
use crate::seeds::{self, Purpose};
use crate::torch_failure::failed;
use c10d::waits::{self, Place};
use dataset::order::StepPlan;
use dit::diffusion::Target;
use dit::dropout::Dropout;
use dit::family::{Family, Inputs};
use dit::network::Network;
use dit::objective::Objective;
use recipe::{ComputeDtype, Recipe};
use rundir::Failure;
use serde::{Deserialize, Serialize};
use sharding::clip::{clip_factor, grad_norm_squared, weight_norm};
use sharding::fsdp::{Fsdp, GradSync};
use sharding::mesh::Waited;
use std::ops::Range;
use std::time::Instant;
use tch::{Device, Kind, Tensor};

/// The inputs that all steps share.
pub struct Step<'a, F: Family, O> {
    /// The recipe, complete.
    pub recipe: &'a Recipe,
    /// The network without its parameters.
    pub network: &'a Network<F>,
    /// The training objective, such as v-prediction.
    pub objective: &'a O,
    /// The seed of every random draw.
    pub seed: u64,
}

/// The results of a step. All but the times are the same on every rank.
#[derive(Debug)]
pub struct Outcome {
    /// The mean loss over the global batch; NaN if the loss of a rank is not finite.
    pub loss: f64,
    /// The norm of the gradient before clipping.
    pub grad_norm: f64,
    /// Whether the optimizer ran. It is skipped if the gradient is not finite.
    pub applied: bool,
    /// The learning rates of the step.
    pub lr: LearningRates,
    /// The merged requests of all ranks.
    pub requests: SaveStopRequests,
    /// The norm of all trained weights after the step; `None` if the step is not logged.
    pub weight_norm: Option<f64>,
    /// Seconds that this rank waited for data and, on the CPU, added noise.
    pub data_s: f64,
    /// Seconds of the forward pass.
    pub forward_s: f64,
    /// Seconds of the backward pass and of the norm of the gradient.
    pub backward_s: f64,
    /// Seconds spent waiting for gathers, reductions and sums over shards and replicas. On a GPU they are those of its stream.
    pub reduce_s: f64,
    /// Seconds of the optimizer. On a GPU they are those of its kernels in logged steps, and otherwise those of the host.
    pub optimizer_s: f64,
    /// Seconds that the optimizer waited for a save. Neither the other times nor `step_s_by_rank` include them. The wait of a GPU's stream
    /// is measured when the host waits for the stream anyway: in a step that is logged, otherwise in the step after.
    pub checkpoint_s: f64,
    /// The part of `checkpoint_s` that ended before the step began, which `step_s_by_rank` does not include anyway: the host waited for
    /// the stream between the steps.
    pub stall_before_s: f64,
    /// Seconds of the step that were not spent waiting for other ranks, those of the TP group included, by rank. On GPUs, waits for the
    /// sums of Adafactor and Prodigy are not subtracted.
    pub busy_s_by_rank: Vec<f64>,
    /// Seconds of the whole step, by rank.
    pub step_s_by_rank: Vec<f64>,
    /// Memory, by rank.
    pub memory_by_rank: Vec<Memory>,
}

impl<F: Family, O: Objective> Step<'_, F, O> {
    /// Trains on the samples of `plan`, as optimizer step `step + 1`.
    ///
    /// # Errors
    /// Data cannot be read, or a peer is lost.
    pub fn run(
        &self,
        fsdp: &mut Fsdp,
        moments: &mut OptimizerState,
        (data, batches): (&mut Data, &mut Batches),
        step: u64,
        plan: &StepPlan,
        requests: SaveStopRequests,
    ) -> Result<Outcome, Failure> {
        let train = &self.recipe.train;
        let own = fsdp.groups().data_place().0 * train.grad_accum;
        let device = fsdp.groups().device;
        let mut micro_batch = own;
        self.run_on(fsdp, moments, step, plan, requests, |places| {
            micro_batch += 1;
            let samples = |plan: &StepPlan, places| Samples { step: plan.numbers(), places };
            // The last micro-batch of a step is followed by the first one of the next step.
            let next = match micro_batch - own < train.grad_accum {
                true => Some(samples(plan, plan.places(micro_batch))),
                false if step + 1 < train.steps() => {
                    let next = data.step(plan.numbers().end);
                    Some(samples(&next, next.places(own)))
                }
                false => None,
            };
            batches.take(data, samples(plan, places), next, || self.noising(), device)
        })
    }

    /// Trains as [`Step::run`] does. `read` returns the inputs and the target of the samples at some places of the step.
    pub fn run_on(
        &self,
        fsdp: &mut Fsdp,
        moments: &mut OptimizerState,
        step: u64,
        plan: &StepPlan,
        requests: SaveStopRequests,
        mut read: impl FnMut(Range<u64>) -> Result<(Inputs, Target), Failure>,
    ) -> Result<Outcome, Failure> {
        let start = Instant::now();
        let device = fsdp.groups().device;
        fsdp.groups().drop_waited();
        let began = Mark::now(device).map_err(failed)?;
        let (mut data_s, mut losses, mut forward) = (0.0, Vec::new(), Vec::new());
        let train = &self.recipe.train;
        let rank = fsdp.groups().data_place().0;
        for accum in 0..train.grad_accum {
            fsdp.set_grad_sync(if accum + 1 == train.grad_accum { GradSync::Reduce } else { GradSync::Accumulate });
            phase::enter(Phase::Forward);
            let places = plan.places(rank * train.grad_accum + accum);
            let reading = Instant::now();
            let (inputs, target) = read(places.clone())?;
            let inputs = inputs.map(|tensor| upload(tensor, device));
            let target = target.map(|tensor| upload(tensor, device));
            data_s += reading.elapsed().as_secs_f64();
            let (here, mut ahead) = (Mark::now(device).map_err(failed)?, None);
            let dropout = self.dropout(plan.first, places, fsdp.groups().tp.rank());
            self.network
                .forward_backward(&mut Training { units: Sharded(fsdp), dropout }, &inputs, |output| {
                    let loss = target.loss(output).sum(Kind::Float) / plan.samples() as f64;
                    losses.push(loss.detach().to_kind(Kind::Double).view(1));
                    ahead = Some(Mark::now(device));
                    phase::enter(Phase::Backward);
                    loss
                })
                .map_err(failed)?;
            let ahead = ahead.expect("the head has run").map_err(failed)?;
            forward.push((here, ahead));
        }
        fsdp.finish_reduce().map_err(failed)?;
        phase::enter(Phase::Optimizer);
        let squared = grad_norm_squared(fsdp).map_err(failed)?;
        let back = Mark::now(device).map_err(failed)?;
        // The host waits for the GPU here, and nowhere else in a step that is not logged: the norm decides whether the optimizer runs, and
        // all ranks exchange the loss.
        losses.insert(0, squared);
        let numbers = waits::read(Place::LossAndNorm, &Tensor::cat(&losses, 0));
        let read_s = start.elapsed().as_secs_f64();
        let (norm, loss) = (numbers[0].sqrt(), numbers[1..].iter().sum::<f64>());
        let times = waits::at(Place::Times, || Times::of(fsdp, moments, &began, &forward, &back)).map_err(failed)?;
        let stall_before_s = times.stall_before_s(read_s);
        let Times { spent_s, forward_s, waited, stalled_s } = times;
        let reduce_s = waited.data_s;
        // The waits of the forward pass are short. They are part of `reduce_s`, so they are subtracted from the
        // backward pass.
        let backward_s = (spent_s - data_s - forward_s - reduce_s).max(0.0);

        let lr = LearningRates::at(&self.recipe.optimizer, step, train.steps());
        let applied = norm.is_finite();
        if applied {
            let scale = clip_factor(norm, self.recipe.optimizer.clip_limit(step, norm));
            moments.step(fsdp, &self.recipe.optimizer, lr, scale).map_err(failed)?;
        }
        let updated = Mark::now(device).map_err(failed)?;
        let host_stalled_s = moments.take_stall_s();
        let mut checkpoint_s = stalled_s + host_stalled_s;
        let step_s = (start.elapsed().as_secs_f64() - (checkpoint_s - stall_before_s)).max(0.0);
        let mut waited_s = waited.data_s + waited.tp_s;
        if device == Device::Cpu {
            // Adafactor and Prodigy sum over ranks.
            let Waited { data_s, tp_s } = fsdp.groups().take_waited_s().map_err(failed)?;
            waited_s += data_s + tp_s;
        }
        let busy_s = (step_s - waited_s).max(0.0);
        let logged = (step + 1).is_multiple_of(self.recipe.log.interval) || step + 1 == train.steps();
        let weight_norm = if logged { Some(weight_norm(fsdp).map_err(failed)?) } else { None };
        // The norm of the weights is ready after the update. Without it, a GPU may still update them.
        let optimizer_s = if weight_norm.is_some() || device == Device::Cpu {
            let times = || c10d::Result::Ok((updated.seconds_since(&back)?, moments.take_stream_stall_s()?));
            let (spent_s, stream_stalled_s) = waits::at(Place::Times, times).map_err(failed)?;
            checkpoint_s += stream_stalled_s;
            spent_s - host_stalled_s - stream_stalled_s
        } else {
            step_s - spent_s
        };
        let optimizer_s = optimizer_s.max(0.0);
        let loss = loss.is_finite().then_some(loss);
        let report = RankReport { loss, step_s, busy_s, memory: Memory::of(device), requests };
        // All ranks see the same requests, so all stop at the same step.
        let ranks = all_gather_small(&fsdp.groups().world, &report).map_err(failed)?;
        Ok(Outcome {
            // The ranks of a TP group have the same samples, and so the same loss.
            loss: ranks.iter().step_by(fsdp.groups().tp.size()).map(|r| r.loss.unwrap_or(f64::NAN)).sum(),
            grad_norm: norm,
            applied,
            lr,
            requests: SaveStopRequests::merged(ranks.iter().map(|r| r.requests)),
            data_s,
            forward_s,
            backward_s,
            reduce_s,
            optimizer_s,
            checkpoint_s,
            stall_before_s,
            weight_norm,
            busy_s_by_rank: ranks.iter().map(|r| r.busy_s).collect(),
            step_s_by_rank: ranks.iter().map(|r| r.step_s).collect(),
            memory_by_rank: ranks.iter().map(|r| r.memory).collect(),
        })
    }

    /// Returns the dropout of the adapters for the samples at `places` of a step; `None` without dropout. `first` is the number of the
    /// step's first sample.
    fn dropout(&self, first: u64, places: Range<u64>, tp_rank: usize) -> Option<Dropout> {
        let probability = self.recipe.lora.dropout;
        let key = |place| seeds::bits(self.seed, Purpose::AdapterDropout, first + place);
        (probability > 0.0).then(|| Dropout::new(probability, places.map(key), tp_rank))
    }

    /// Returns the [`Noising`] of the run's batches.
    pub fn noising(&self) -> Noising<O> {
        Noising::new(self.recipe, self.network.family(), self.objective.clone(), self.seed)
    }

    /// Noises a batch on the CPU, as [`Noising::clean`] and [`Noising::noised`] do.
    ///
    /// # Errors
    /// The batch lacks a condition of the recipe.
    #[cfg(test)]
    pub fn noised(&self, batch: Batch, step: Range<u64>, place: u64) -> Result<(Inputs, Target), Failure> {
        let noising = self.noising();
        Ok(noising.noised(noising.clean(batch, step, place)?))
    }
}

/// Returns the dtype that units are gathered and computed in.
pub fn compute_kind(dtype: ComputeDtype) -> Kind {
    match dtype {
        ComputeDtype::Float32 => Kind::Float,
        ComputeDtype::Bfloat16 => Kind::BFloat16,
    }
}

/// The times of a step that are known after the host has waited for its gradient.
struct Times {
    /// From the start of the step to the norm of the gradient.
    spent_s: f64,
    forward_s: f64,
    waited: Waited,
    /// The wait of a GPU's stream for a save before the last update, if that step was not logged.
    stalled_s: f64,
}

impl Times {
    /// Measures the times between marks that the device has reached.
    fn of(
        fsdp: &Fsdp,
        moments: &mut OptimizerState,
        began: &Mark,
        forward: &[(Mark, Mark)],
        back: &Mark,
    ) -> c10d::Result<Self> {
        let mut forward_s = 0.0;
        for (here, ahead) in forward {
            forward_s += ahead.seconds_since(here)?;
        }
        let waited = fsdp.groups().take_waited_s()?;
        let stalled_s = moments.take_stream_stall_s()?;
        Ok(Times { spent_s: back.seconds_since(began)?, forward_s, waited, stalled_s })
    }

    /// Returns the part of `stalled_s` that ended before the step began. Usually the host reaches the next step while the stream still
    /// waits. It does not if it waits for the stream first, such as for an average in host memory or a comparison of weights.
    ///
    /// * `read_s` — from the start of the step until the host has read the norm. The stream spent all of it but `spent_s` on work of the
    ///   step before.
    fn stall_before_s(&self, read_s: f64) -> f64 {
        let earlier_work_s = (read_s - self.spent_s).max(0.0);
        (self.stalled_s - earlier_work_s).max(0.0)
    }
}

/// The values that each rank reports to all others after a step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct RankReport {
    /// `None` if not finite, which JSON cannot hold.
    loss: Option<f64>,
    step_s: f64,
    busy_s: f64,
    memory: Memory,
    requests: SaveStopRequests,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::cogvideox;
    use crate::parallelize::unit_tables;
    use crate::tests::support::{Rank, on_ranks, recipe};

    #[test]
    fn a_wait_for_a_save_that_ended_before_the_step_is_no_part_of_its_time() {
        let before_s = |stalled_s, read_s| {
            Times { spent_s: 2.0, forward_s: 1.0, waited: Waited::default(), stalled_s }.stall_before_s(read_s)
        };
        // The stream was busy with the step before for the first half second.
        assert_eq!([0.0, 0.5, 0.75].map(|stalled_s| before_s(stalled_s, 2.5)), [0.0, 0.0, 0.25]);
        // The stream was idle when the step began. The clocks of host and GPU differ a little.
        assert_eq!([2.0, 1.75].map(|read_s| before_s(3.0, read_s)), [3.0, 3.0]);
    }

    #[test]
    fn all_replicas_clip_by_the_norm_of_the_first_one() {
        for mesh in [[2, 1, 1], [2, 2, 1], [2, 1, 2]] {
            let recipe = recipe(mesh, &["train.global_batch=4"]);
            let norms = on_ranks(recipe.mesh, |groups| {
                let first = groups.replicate.rank() == 0;
                let rank = Rank::new(&recipe, unit_tables(&recipe), cogvideox(&recipe).family(), groups);
                for shard in rank.fsdp.shards() {
                    // Simulate a rounding error on the second replica.
                    let _ = tch::no_grad(|| shard.grad.shallow_clone().fill_(if first { 0.5 } else { 0.5 + 1e-7 }));
                }
                let norm = grad_norm_squared(&rank.fsdp).unwrap().double_value(&[0]).sqrt();
                (norm, clip_factor(norm, 0.1))
            });
            assert!(norms.iter().all(|norm| norm == &norms[0]), "{mesh:?}: {norms:?}");
        }
    }
}
