//! Makes the samples and measures the validation losses of a training run, between its steps.

use super::denoise::Denoiser;
use super::texts::Texts;
use super::validation::{LEVELS, Validation};
use super::{Ended, Source, Target, make_round, rounds, specs};
use crate::exchange::{agree, agree_on};
use crate::requests::StopSources;
use crate::step::compute_kind;
use crate::torch_failure::failed;
use c10d::Group;
use dit::family::Family;
use dit::network::Network;
use dit::objective::Objective;
use recipe::{Recipe, SampleSpec, UseEma};
use rundir::{Failure, RunDir, SampleFolder};
use sharding::fsdp::Fsdp;
use sharding::mesh::MeshGroups;
use tch::{Device, Kind};
use xxhash_rust::xxh3::Xxh3;

/// The prompts and held-out clips of a training run.
pub struct TrainingSamples {
    specs: Vec<SampleSpec>,
    /// The embeddings of the prompts; `None` without prompts.
    texts: Option<Texts>,
    validation: Option<Validation>,
    compute: Kind,
}

impl TrainingSamples {
    /// Encodes the prompts and opens the held-out clips. A collective.
    ///
    /// # Errors
    /// The encoders or the clips cannot be read, or a peer is lost.
    pub fn open(recipe: &Recipe, groups: &MeshGroups) -> Result<Self, Failure> {
        let compute = compute_kind(recipe.train.dtype);
        let checked = specs(recipe).and_then(|specs| {
            if groups.world.rank() == 0 && !specs.is_empty() {
                video::check_installed()?;
            }
            Ok(specs)
        });
        let specs = agree_on(&groups.world, checked)?;
        let validation = Validation::open(recipe, compute, &groups.world)?;
        let texts = match specs.is_empty() {
            true => None,
            false => Some(Texts::encode(&recipe.encoders, &recipe.model, &specs, &groups.world, groups.device)?),
        };
        Ok(TrainingSamples { specs, texts, validation, compute })
    }

    /// Returns whether there are prompts.
    pub fn has_prompts(&self) -> bool {
        !self.specs.is_empty()
    }

    /// Returns whether there are held-out clips.
    pub fn has_validation(&self) -> bool {
        self.validation.is_some()
    }

    /// Returns the validation loss at each level, if there are held-out clips. A collective.
    ///
    /// # Errors
    /// As [`Validation::measure`].
    pub fn validate<F: Family>(
        &mut self,
        fsdp: &mut Fsdp,
        network: &Network<F>,
        objective: &impl Objective,
    ) -> Result<Option<[f64; LEVELS]>, Failure> {
        self.validation.as_mut().map(|validation| validation.measure(fsdp, network, objective)).transpose()
    }

    /// Makes a video of each prompt from the weights in `fsdp`, except videos that are already complete. If the recipe samples from the
    /// average, the caller swaps it into `fsdp` before. Returns the indices of the prompts with new videos; after a stop request, not
    /// every prompt has one. A collective.
    ///
    /// # Errors
    /// A video cannot be made, or a peer is lost.
    pub fn make<F: Family>(
        &self,
        recipe: &Recipe,
        run: &RunDir,
        step: u64,
        fsdp: &mut Fsdp,
        network: &Network<F>,
        stop: StopSources<'_>,
    ) -> Result<Vec<usize>, Failure> {
        let Some(texts) = &self.texts else { return Ok(Vec::new()) };
        let source = Source {
            step,
            weights: run.root.clone(),
            weights_xxh3: weights_xxh3(fsdp)?,
            ema: recipe.ema.is_used() && recipe.sample.ema != UseEma::Off,
            lora: Vec::new(),
        };
        // `sample.out` is used only by the task `sample`.
        let target = Target { folder: SampleFolder::OfRun(run.clone()), source: &source };
        let (_, ranks) = fsdp.groups().data_place();
        let whole = target.whole(recipe, &self.specs, &fsdp.groups().world)?;
        let wanted: Vec<usize> = (0..self.specs.len()).filter(|index| !whole.contains(index)).collect();
        let mut denoiser = Denoiser { fsdp, network, compute: self.compute };
        let mut made = Vec::new();
        for round in rounds(&self.specs, &wanted, ranks) {
            let mut after_step = |world: &Group| match stop.agreed(world)? {
                Some(why) => Err(Ended::Stopped(why)),
                None => Ok(()),
            };
            match make_round(&mut denoiser, recipe, &self.specs, &round, texts, &target, &mut after_step) {
                Ok(()) => made.extend(round),
                // The training loop stops after its next step.
                Err(Ended::Stopped(_)) => break,
                Err(Ended::Failed(failure)) => return Err(failure),
            }
        }
        Ok(made)
    }
}

/// The number of elements that are hashed at a time.
const CHUNK: i64 = 1 << 22;

/// Returns a hash of the weights in memory, because they may never be saved. The hash depends on the mesh. A collective.
fn weights_xxh3(fsdp: &Fsdp) -> Result<String, Failure> {
    let mut hash = Xxh3::new();
    let mut bytes = Vec::new();
    for owned in fsdp.owned() {
        for part in owned.values.split(CHUNK, 0) {
            let part = part.detach().to_device(Device::Cpu).contiguous().view_dtype(Kind::Uint8);
            bytes.resize(part.numel(), 0);
            let len = bytes.len();
            part.copy_data_u8(&mut bytes, len);
            hash.update(&bytes);
        }
        fsdp.release(&[&owned.values]).map_err(failed)?;
    }
    let all: Vec<u64> = agree(&fsdp.groups().world, Ok(hash.digest()))?;
    let all: Vec<u8> = all.into_iter().flat_map(u64::to_le_bytes).collect();
    Ok(rundir::xxh3_hex(&all))
}
