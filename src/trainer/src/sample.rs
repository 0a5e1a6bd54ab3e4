//! Makes videos from weights, for the task `sample` and for the samples and validation losses of a training run.
//!
//! All ranks of a shard group and of a TP group walk through the network together. Each data rank makes its own sample,
//! in rounds of samples with the same number of steps. A rank without a sample repeats the last one of the round and
//! discards it. The noise depends on the seed of a sample alone, so the mesh does not change a video.

mod decode;
mod denoise;
mod task;
mod texts;
mod training;
mod validation;

pub use task::run;
pub use training::TrainingSamples;
pub use validation::LEVELS;

use crate::exchange::agree_on;
use decode::{Pictures, encode_image};
use denoise::Denoiser;
use recipe::{Recipe, SampleSpec};
use rundir::{ErrorCode, Failure, Sample, now_s};
use std::time::Instant;
use texts::Texts;

/// The weights that samples are made from, in the form in which sidecars describe them.
#[derive(Debug, Clone)]
pub struct Source {
    /// The number of optimizer steps that the weights were trained for.
    pub step: u64,
    /// The checkpoint or folder, or the run if samples are made during training.
    pub weights: camino::Utf8PathBuf,
    /// XXH3 of the manifest, or a hash of the run's id and step if samples are made during training.
    pub weights_xxh3: String,
}

/// Returns the samples of a recipe.
///
/// # Errors
/// A prompt cannot be sampled.
pub fn specs(recipe: &Recipe) -> Result<Vec<SampleSpec>, Failure> {
    recipe.samples().map_err(|bad| {
        let flag = bad.flag.map(|flag| format!("{flag}: ")).unwrap_or_default();
        let what = format!("cannot sample prompt {} of sample.prompts", bad.index + 1);
        Failure::new(ErrorCode::InvalidRecipe, what, format!("{flag}{}", bad.why), bad.fix)
    })
}

/// Returns rounds of samples: at most `ranks` in each, all with the same number of steps, in the order of `wanted`.
fn rounds(specs: &[SampleSpec], wanted: &[usize], ranks: usize) -> Vec<Vec<usize>> {
    let mut rounds: Vec<Vec<usize>> = Vec::new();
    for &index in wanted {
        match rounds.last_mut() {
            Some(round) if round.len() < ranks && specs[round[0]].steps == specs[index].steps => round.push(index),
            _ => rounds.push(vec![index]),
        }
    }
    rounds
}

/// Makes the samples of a round and writes them. A collective.
///
/// # Arguments
/// * `after_step` — called after each sampling step.
///
/// # Errors
/// A peer is lost, or a rank cannot decode or write its sample.
fn make_round(
    denoiser: &mut Denoiser<'_>,
    recipe: &Recipe,
    specs: &[SampleSpec],
    round: &[usize],
    texts: &Texts,
    target: &Target<'_>,
    after_step: &mut dyn FnMut(usize) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let started = Instant::now();
    let (place, _) = denoiser.fsdp.groups().data_place();
    let device = denoiser.fsdp.groups().device;
    // The first rank of a TP group decodes; the others have computed the same latent.
    let own = round.get(place).copied().filter(|_| denoiser.fsdp.groups().tp.rank() == 0);
    let index = round[place.min(round.len() - 1)];
    let spec = &specs[index];
    let image = match &spec.image {
        None => Ok(None),
        Some(path) => encode_image(recipe, spec, path, device).map(Some),
    };
    let image = agree_on(&denoiser.fsdp.groups().world, image)?;
    let latent = denoiser.sample(spec, texts, image.as_ref(), after_step)?;
    let written = own.map_or(Ok(()), |index| {
        let pictures = Pictures::decode(recipe, &latent, device)?;
        target.write(recipe, &specs[index], index, &pictures, started.elapsed().as_secs_f64())
    });
    agree_on(&denoiser.fsdp.groups().world, written)
}

/// The folder and format of samples.
struct Target<'a> {
    run: &'a rundir::RunDir,
    source: &'a Source,
}

impl Target<'_> {
    /// Returns the path of a video.
    fn video(&self, recipe: &Recipe, index: usize) -> camino::Utf8PathBuf {
        match recipe.sample.out() {
            Some(folder) => folder.join(format!("{index:03}.mp4")),
            None => self.run.sample_video(self.source.step, index),
        }
    }

    /// Returns the sidecar of a complete sample, without its times.
    fn sidecar(&self, recipe: &Recipe, spec: &SampleSpec, index: usize) -> Sample {
        Sample {
            v: rundir::SCHEMA,
            step: self.source.step,
            index,
            prompt: spec.prompt(),
            image: spec.image.clone(),
            seed: spec.seed,
            width: spec.width,
            height: spec.height,
            frames: spec.frames,
            fps: spec.fps,
            sampling_steps: spec.steps,
            scheduler: spec.scheduler.name().to_owned(),
            guidance: spec.guidance,
            dtype: recipe.train.dtype.name().to_owned(),
            ema: false,
            weights: self.source.weights.clone(),
            weights_xxh3: self.source.weights_xxh3.clone(),
            trainer: env!("CARGO_PKG_VERSION").to_owned(),
            took_s: 0.0,
            t: 0.0,
        }
    }

    /// Returns whether an earlier attempt made a sample.
    fn is_whole(&self, recipe: &Recipe, spec: &SampleSpec, index: usize) -> bool {
        let video = self.video(recipe, index);
        let Ok(Some(found)) = Sample::read(&video.with_extension("json")) else { return false };
        let wanted =
            Sample { took_s: found.took_s, t: found.t, frames: found.frames, ..self.sidecar(recipe, spec, index) };
        video.is_file() && found == wanted
    }

    /// Writes the video, its frames if requested, and then its sidecar.
    fn write(
        &self,
        recipe: &Recipe,
        spec: &SampleSpec,
        index: usize,
        pictures: &Pictures,
        took_s: f64,
    ) -> Result<(), Failure> {
        let video = self.video(recipe, index);
        let folder = video.parent().expect("a video is in a folder");
        let io =
            |path: &camino::Utf8Path, source| rundir::Error::Io { action: "create", path: path.to_owned(), source };
        std::fs::create_dir_all(folder).map_err(|error| io(folder, error))?;
        // Remove an earlier sidecar first, because it describes another video.
        let sidecar = video.with_extension("json");
        let _ = std::fs::remove_file(&sidecar);
        video::write_mp4(&video, &pictures.frames, spec.fps)?;
        if recipe.sample.png {
            let frames = video.with_extension("");
            std::fs::create_dir_all(&frames).map_err(|error| io(&frames, error))?;
            for frame in 0..pictures.frames.count {
                video::write_png(&frames.join(format!("{frame:04}.png")), &pictures.frames, frame)?;
            }
        }
        let frames = pictures.frames.count;
        let sample = Sample { took_s, t: now_s(), frames, ..self.sidecar(recipe, spec, index) };
        Ok(sample.write(&sidecar)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use recipe::load;

    #[test]
    fn a_round_has_samples_of_equal_steps_for_as_many_ranks_as_there_are() {
        let mut recipe = load("../../tests/fixtures/configs/valid/minimal.toml".into(), &[]).unwrap().recipe;
        recipe.sample.prompts = ["a", "b", "c --s 7", "d --s 7", "e"].map(String::from).to_vec();
        let specs = recipe.samples().unwrap();
        let all: Vec<usize> = (0..5).collect();
        assert_eq!(rounds(&specs, &all, 2), [vec![0, 1], vec![2, 3], vec![4]]);
        assert_eq!(rounds(&specs, &[1, 2, 3], 1), [vec![1], vec![2], vec![3]]);
        assert_eq!(rounds(&specs, &[0, 1, 4], 8), [vec![0, 1, 4]]);
        assert!(rounds(&specs, &[], 2).is_empty());
    }
}
