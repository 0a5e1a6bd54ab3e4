//! Prepares the next batch in a thread while the current step computes: reads, draws and uploads its samples. The noise is drawn on the
//! device when the step begins.
//!
//! The thread is one batch ahead. It uses a single libtorch thread, because more would compete with the step. On a GPU it copies from
//! page-locked memory on a stream for batches, and the compute stream waits for an event.

use crate::data::{Data, Reading};
use crate::device::{self, upload_beside};
use crate::noising::{CleanBatch, Noising};
use crate::torch_failure::failed;
use c10d::cuda::Event;
use dit::diffusion::Target;
use dit::family::Inputs;
use dit::objective::Objective;
use rundir::Failure;
use std::cell::RefCell;
use std::ops::Range;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tch::{Device, Tensor};

/// The longest wait for the thread at the end of a run.
const END: Duration = Duration::from_secs(2);

/// The samples of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Samples {
    /// The numbers of all samples of the step.
    pub step: Range<u64>,
    /// The places of the batch's samples within the step.
    pub places: Range<u64>,
}

impl Samples {
    /// Returns the numbers of the batch's samples.
    fn numbers(&self) -> Range<u64> {
        self.step.start + self.places.start..self.step.start + self.places.end
    }
}

/// Supplies the batches of a run, and prepares the next one ahead of time.
#[derive(Debug, Default)]
pub struct Batches {
    ahead: Option<Ahead>,
}

/// A batch that a thread prepares.
#[derive(Debug)]
struct Ahead {
    samples: Samples,
    making: JoinHandle<Result<Made, Failure>>,
}

/// A batch on the device.
#[derive(Debug)]
struct Made {
    batch: CleanBatch,
    /// The event after the last copy to a GPU; `None` on the CPU.
    copied: Option<Event>,
}

impl Batches {
    /// Returns the inputs and the target of a batch, and starts to make `next`, the batch of the following call.
    ///
    /// # Errors
    /// A file cannot be read, or the device failed.
    pub fn take<O: Objective>(
        &mut self,
        data: &mut Data,
        samples: Samples,
        next: Option<Samples>,
        noising: impl Fn() -> Noising<O>,
        device: Device,
    ) -> Result<(Inputs, Target), Failure> {
        let ahead = self.ahead.take().map(|ahead| (ahead.samples == samples, ahead.making.join()));
        let made = match ahead {
            Some((true, Ok(made))) => made?,
            // Resume the panic in this thread: it may be an out-of-memory error of libtorch.
            Some((true, Err(panic))) => std::panic::resume_unwind(panic),
            _ => make(&data.reading(samples.numbers()), &noising(), &samples, device)?,
        };
        if let Some(next) = next {
            let (reading, noising, samples) = (data.reading(next.numbers()), noising(), next.clone());
            let make = move || {
                c10d::compute_alone();
                device::set_current(device).map_err(failed)?;
                make(&reading, &noising, &samples, device)
            };
            // If no thread can be started, the next call makes the batch itself.
            let making = thread::Builder::new().name("batch".into()).spawn(make).ok();
            self.ahead = making.map(|making| Ahead { samples: next, making });
        }
        if let Some(copied) = &made.copied {
            copied.block().map_err(failed)?;
        }
        Ok(noising().noised(made.batch))
    }
}

impl Drop for Batches {
    /// Waits for the thread, because a process that exits while a thread is in libtorch may crash; but not for a file system that hangs.
    fn drop(&mut self) {
        let began = Instant::now();
        while self.ahead.as_ref().is_some_and(|ahead| !ahead.making.is_finished()) && began.elapsed() < END {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Reads and uploads a batch.
fn make<O: Objective>(
    reading: &Reading,
    noising: &Noising<O>,
    samples: &Samples,
    device: Device,
) -> Result<Made, Failure> {
    let mut batch = reading.read(noising.seed())?;
    batch.text = reading.drop_texts(&batch.text, &noising.keeps_texts(samples.numbers()));
    let batch = noising.clean(batch, samples.step.clone(), samples.places.start)?;
    // `map` takes an infallible function, so an error is returned through a cell.
    let (copied, first_error) = (RefCell::new(None), RefCell::new(None));
    let there = |tensor: &Tensor| match upload_beside(tensor, device) {
        Ok((tensor, event)) => {
            // The copies are in order: the last event follows all of them.
            *copied.borrow_mut() = event;
            tensor
        }
        Err(error) => {
            *first_error.borrow_mut() = Some(error);
            tensor.shallow_clone()
        }
    };
    let batch = batch.map(there);
    if let Some(error) = first_error.into_inner() {
        return Err(failed(error));
    }
    Ok(Made { batch, copied: copied.into_inner() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::tests::{dataset, open, temp};
    use crate::families::cogvideox;
    use dit::objective::VPrediction;
    use recipe::{ComputeDtype, LossWeighting, Recipe};

    fn noising(recipe: &Recipe) -> Noising<VPrediction> {
        let objective = VPrediction::new(&recipe.model, &recipe.loss);
        Noising::new(recipe, cogvideox(recipe).family(), objective, 7)
    }

    /// Returns the samples of one of two ranks, each with two samples per step.
    fn samples(step: u64, rank: u64) -> Samples {
        Samples { step: 4 * step..4 * step + 4, places: 2 * rank..2 * rank + 2 }
    }

    fn tensors((inputs, target): (Inputs, Target)) -> Vec<Tensor> {
        let all = RefCell::new(vec![inputs.latent, inputs.text, inputs.timestep]);
        let _ = target.map(|tensor| {
            all.borrow_mut().push(tensor.shallow_clone());
            tensor.shallow_clone()
        });
        all.into_inner()
    }

    #[test]
    fn a_batch_that_is_made_ahead_has_the_bits_of_one_that_is_made_on_demand() {
        let (_keep, folder) = temp();
        let mut recipe = dataset(&folder, Some(-2.0));
        recipe.train.text_dropout = 0.5;
        recipe.train.dtype = ComputeDtype::Bfloat16;
        for rank in [0, 1] {
            let (mut data, mut ahead) = (open(&recipe).unwrap(), Batches::default());
            for step in 0..6 {
                let mut take = |batches: &mut Batches, next| {
                    batches.take(&mut data, samples(step, rank), next, || noising(&recipe), Device::Cpu).unwrap()
                };
                let made = tensors(take(&mut ahead, Some(samples(step + 1, rank))));
                assert_eq!(ahead.ahead.as_ref().unwrap().samples, samples(step + 1, rank));
                let demanded = tensors(take(&mut Batches::default(), None));
                assert!(made.len() >= 4 && made.iter().zip(&demanded).all(|(one, other)| one == other), "step {step}");
                assert_eq!(made[0].size(), [2, 3, 16, 8, 8]);
            }
            // A batch that was not prepared ahead, as after a resume.
            let mut take = |batches: &mut Batches| {
                batches.take(&mut data, samples(20, rank), None, || noising(&recipe), Device::Cpu).unwrap()
            };
            let (jumped, demanded) = (tensors(take(&mut ahead)), tensors(take(&mut Batches::default())));
            assert!(jumped.iter().zip(&demanded).all(|(one, other)| one == other));
        }
    }

    #[test]
    fn a_batch_has_the_planned_size() {
        let (_keep, folder) = temp();
        let mut recipe = dataset(&folder, None);
        for dtype in [ComputeDtype::Float32, ComputeDtype::Bfloat16] {
            for weighting in [LossWeighting::None, LossWeighting::Snr, LossWeighting::MinSnr] {
                (recipe.train.dtype, recipe.loss.weighting) = (dtype, weighting);
                let mut data = open(&recipe).unwrap();
                let made = Batches::default().take(&mut data, samples(0, 0), None, || noising(&recipe), Device::Cpu);
                let bytes = |tensor: &Tensor| (tensor.numel() * tensor.kind().elt_size_in_bytes()) as u64;
                let bytes: u64 = tensors(made.unwrap()).iter().map(bytes).sum();
                // The batch has two samples, and the plan has two micro-batches.
                let train = &recipe.train;
                let micro_batch = train.global_batch / recipe.mesh.data_ranks() / train.grad_accum;
                let planned = recipe.rank_memory().batches / micro_batch as u64;
                // Timestep, weight and noise level of a sample have at most 16 bytes.
                assert!((planned..=planned + 2 * 16).contains(&bytes), "{dtype:?} {weighting:?}: {bytes} {planned}");
            }
        }
    }

    #[test]
    fn a_file_that_is_missing_fails_the_step_that_needs_it() {
        let (_keep, folder) = temp();
        let recipe = dataset(&folder, None);
        let (mut data, mut batches) = (open(&recipe).unwrap(), Batches::default());
        std::fs::remove_file(folder.join("2")).unwrap();
        let on_demand: Vec<bool> =
            (0..10).map(|step| data.reading(samples(step, 0).numbers()).read(7).is_err()).collect();
        let mut take = |step| {
            let next = Some(samples(step + 1, 0));
            batches.take(&mut data, samples(step, 0), next, || noising(&recipe), Device::Cpu).is_err()
        };
        assert_eq!((0..10).map(&mut take).collect::<Vec<_>>(), on_demand);
        assert!(on_demand.contains(&true) && on_demand.contains(&false), "{on_demand:?}");
    }
}
