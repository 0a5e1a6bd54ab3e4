//! Samples and validation losses of a training run, between its steps.

use super::denoise::Denoiser;
use super::texts::Texts;
use super::validation::{LEVELS, Validation};
use super::{Source, Target, make_round, rounds, specs};
use crate::exchange::agree_on;
use crate::step::compute_kind;
use dit::diffusion::Schedule;
use dit::network::Network;
use recipe::{Recipe, SampleSpec};
use rundir::{Failure, RunDir};
use sharding::fsdp::Fsdp;
use sharding::mesh::MeshGroups;
use tch::Kind;
use xxhash_rust::xxh3::xxh3_64;

/// The prompts and held-out clips of a training run.
pub struct TrainingSamples {
    specs: Vec<SampleSpec>,
    /// The samples to make; `None` without prompts.
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
    pub fn validate(
        &mut self,
        fsdp: &mut Fsdp,
        network: &Network,
        schedule: &Schedule,
    ) -> Result<Option<[f64; LEVELS]>, Failure> {
        self.validation.as_mut().map(|validation| validation.measure(fsdp, network, schedule)).transpose()
    }

    /// Makes a video of each prompt from the current weights. Returns the number of videos. A collective.
    ///
    /// # Errors
    /// A video cannot be made, or a peer is lost.
    pub fn make(
        &self,
        recipe: &Recipe,
        run: &RunDir,
        step: u64,
        fsdp: &mut Fsdp,
        schedule: &Schedule,
    ) -> Result<usize, Failure> {
        let Some(texts) = &self.texts else { return Ok(0) };
        // These weights may never be saved: the run and the step identify them.
        let name = format!("{}-{step}", run.root);
        let source =
            Source { step, weights: run.root.clone(), weights_xxh3: format!("{:016x}", xxh3_64(name.as_bytes())) };
        // Each step has its own folder in the run; `sample.out` is used only by the task `sample`.
        let mut inside = recipe.clone();
        inside.sample.out = camino::Utf8PathBuf::new();
        let target = Target { run, source: &source };
        let (_, ranks) = fsdp.groups().data_place();
        let mut denoiser = Denoiser { fsdp, schedule, compute: self.compute, scan_group: recipe.remat.scan_group };
        let all: Vec<usize> = (0..self.specs.len()).collect();
        for round in rounds(&self.specs, &all, ranks) {
            make_round(&mut denoiser, &inside, &self.specs, &round, texts, &target, &mut |_| Ok(()))?;
        }
        Ok(self.specs.len())
    }
}
