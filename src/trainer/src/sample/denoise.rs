//! Denoises latents: the sampler around the forward pass of the sharded network.

use super::texts::Texts;
use super::{AfterStep, Ended};
use crate::conditions;
use crate::device::upload;
use crate::parallelize::Sharded;
use crate::seeds::{self, Purpose};
use crate::torch_failure::failed;
use dit::diffusion::NoiseSchedule;
use dit::family::{Conditions, Family, Inputs};
use dit::network::Network;
use dit::sampler::{Guidance, Prediction, Sampler, Stepped};
use dit::wan::FIRST_FRAME;
use dit::wan::sampling::{FlowGuidance, FlowSampler, with_first_frame};
use recipe::{SampleScheduler, SampleSpec};
use sharding::fsdp::Fsdp;
use std::cell::RefCell;
use tch::{Device, Kind, Tensor};

/// Samples latents with the weights of this rank's groups.
pub struct Denoiser<'a, F: Family> {
    pub fsdp: &'a mut Fsdp,
    pub network: &'a Network<F>,
    /// The dtype of the network's computation.
    pub compute: Kind,
}

impl<F: Family> Denoiser<'_, F> {
    /// Samples a latent `[1, T, C, h, w]`, fp32 on the CPU. A collective.
    ///
    /// * `conditions` — the scaled tensors of the condition, fp32: `image` or `first_frame` `[1, 1, C, h, w]`; or `known` `[1, T, 1, h, w]` or
    ///   `mask` `[1, T, 4, h, w]`, and `masked` `[1, T, C, h, w]`.
    /// * `noise` — returns the noise of a draw with a shape, on the CPU or on the device of the rank.
    /// * `after_step` — called after each step.
    ///
    /// # Errors
    /// A peer is lost, or `after_step` fails.
    pub fn sample(
        &mut self,
        spec: &SampleSpec,
        texts: &Texts,
        conditions: &Conditions,
        noise: &mut dyn FnMut(Draw, &[i64]) -> Tensor,
        after_step: &mut AfterStep<'_>,
    ) -> Result<Tensor, Ended> {
        let (device, compute) = (self.fsdp.groups().device, self.compute);
        let scheduler = Scheduler::of(spec);
        // An odd number of latent frames is padded at the front to whole patches. The added frames are dropped at the
        // end.
        let (model, network) = (&spec.model, self.network);
        let latent_frames = model.latent_frames as i64;
        let frames = network.family().frames(latent_frames);
        let [channels, height, width] =
            [model.out_channels, model.latent_height, model.latent_width].map(|size| size as i64);
        let size = [1, frames, channels, height, width];
        let mut noise = |draw| upload(&noise(draw, &size), device);
        let prepared = |tensor: &Tensor| upload(&tensor.to_kind(compute), device);
        let mut text = prepared(&texts.joined(&spec.texts));
        if scheduler.is_guided() {
            text = Tensor::cat(&[&prepared(&texts.joined(&spec.negatives)), &text], 0);
        }
        let batch = text.size()[0];
        let first_frame = conditions.iter().find(|(role, _)| *role == FIRST_FRAME).map(|(_, tensor)| tensor);
        let conditions = conditions.iter().map(|(role, tensor)| {
            let whole = conditions::whole(role, tensor, frames);
            (*role, prepared(&whole).repeat([batch, 1, 1, 1, 1]))
        });
        let conditions: Conditions = conditions.collect();
        // `predict` gathers parameters through this cell, and `after_step` uses its groups. They never run at the same
        // time.
        let fsdp = RefCell::new(&mut *self.fsdp);
        let predict = |x: &Tensor, timestep: Tensor| {
            let inputs = Inputs {
                latent: x.to_kind(compute).repeat([batch, 1, 1, 1, 1]),
                text: text.shallow_clone(),
                timestep: upload(&timestep, device).repeat([batch]),
                conditions: conditions.iter().map(|(role, tensor)| (*role, tensor.shallow_clone())).collect(),
            };
            let velocity =
                network.forward(&mut Sharded(*fsdp.borrow_mut()), &inputs).map_err(failed)?.to_kind(Kind::Float);
            Ok(match batch {
                1 => Prediction { with_text: velocity, without_text: None },
                _ => Prediction { with_text: velocity.narrow(0, 1, 1), without_text: Some(velocity.narrow(0, 0, 1)) },
            })
        };
        let start = noise(Draw::Start);
        let latent = scheduler.sample(
            &start,
            predict,
            |step| noise(Draw::Step(step)),
            |_| {
                let fsdp = fsdp.borrow();
                // Drop the events of waits, which only a training step reads. They would accumulate.
                fsdp.groups().drop_waited();
                after_step(&fsdp.groups().world)
            },
        )?;
        let latent = latent.narrow(1, frames - latent_frames, latent_frames).to_device(Device::Cpu);
        // The network has seen this frame in place of that of the latent.
        Ok(match first_frame {
            Some(first) => with_first_frame(&latent, first),
            None => latent,
        })
    }
}

/// The purpose of a draw of noise.
#[derive(Debug, Clone, Copy)]
pub enum Draw {
    /// The noise that sampling starts from.
    Start,
    /// The noise that a step adds.
    Step(usize),
}

/// Returns the noise of a sample on a device, which depends on its seed alone.
pub fn drawn(spec: &SampleSpec, device: Device) -> impl FnMut(Draw, &[i64]) -> Tensor {
    let seed = spec.seed;
    move |draw, shape| match draw {
        Draw::Start => seeds::normal(seed, Purpose::SampleStart, 0, shape, device),
        Draw::Step(step) => seeds::normal(seed, Purpose::SampleStep, step as u64, shape, device),
    }
}

/// The scheduler of a sample.
pub enum Scheduler {
    /// For v-prediction, with whole timesteps.
    Velocity(Sampler),
    /// For flow matching.
    Flow(FlowSampler, FlowGuidance),
}

impl Scheduler {
    /// Returns the scheduler of a sample.
    pub fn of(spec: &SampleSpec) -> Self {
        let guidance = if spec.dynamic_guidance && spec.guidance > 1.0 {
            Guidance::dynamic(spec.guidance)
        } else {
            Guidance::Constant(spec.guidance)
        };
        let of_cogvideox = || (NoiseSchedule::new(&spec.model), spec.model.cogvideox().timestep_spacing);
        let flow = |sampler| Scheduler::Flow(sampler, FlowGuidance { scale: spec.guidance, low: None });
        match spec.scheduler {
            SampleScheduler::Unipc => flow(FlowSampler::unipc(spec.steps, spec.shift)),
            SampleScheduler::Euler => flow(FlowSampler::euler(spec.steps, spec.shift)),
            SampleScheduler::Vpsde => Scheduler::Velocity(Sampler::vpsde(spec.steps, guidance)),
            SampleScheduler::Ddim => {
                let (schedule, spacing) = of_cogvideox();
                Scheduler::Velocity(Sampler::ddim(&schedule, spacing, spec.steps, guidance))
            }
            SampleScheduler::Dpm | SampleScheduler::Auto => {
                let (schedule, spacing) = of_cogvideox();
                Scheduler::Velocity(Sampler::dpm(&schedule, spacing, spec.steps, guidance))
            }
        }
    }

    /// Returns whether the network must also predict without the text.
    fn is_guided(&self) -> bool {
        match self {
            Scheduler::Velocity(sampler) => sampler.is_guided(),
            Scheduler::Flow(_, guidance) => guidance.scale > 1.0,
        }
    }

    /// Samples a latent from noise. `network` gets a noised latent and its timestep, a scalar.
    fn sample<E>(
        &self,
        noise: &Tensor,
        mut network: impl FnMut(&Tensor, Tensor) -> Result<Prediction, E>,
        draw: impl FnMut(usize) -> Tensor,
        after: impl FnMut(Stepped<'_>) -> Result<(), E>,
    ) -> Result<Tensor, E> {
        match self {
            Scheduler::Velocity(sampler) => {
                sampler.sample(noise, |x, timestep| network(x, Tensor::from(timestep)), draw, after)
            }
            Scheduler::Flow(sampler, guidance) => {
                sampler.sample(noise, guidance, |x, call| network(x, Tensor::from(call.timestep as f32)), after)
            }
        }
    }
}
