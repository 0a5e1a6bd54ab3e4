//! Makes videos from weights, for the task `sample` and for the samples and validation losses of a training run.
//!
//! All ranks of a shard group and of a TP group compute the network together. Each data rank makes its own sample,
//! in rounds of samples with the same number of steps. A rank without a sample repeats the last one of the round and
//! discards it. The noise depends on the seed of a sample alone, so the mesh does not change a video.

mod decode;
mod denoise;
#[cfg(test)]
mod recorded;
mod task;
mod texts;
mod training;
mod validation;

pub use task::run;
pub use training::TrainingSamples;
pub use validation::LEVELS;

use crate::exchange::{agree, agree_on};
use c10d::Group;
use camino::{Utf8Path, Utf8PathBuf};
use decode::{conditions, decode, frames};
use denoise::{Denoiser, drawn};
use dit::family::Family;
use recipe::{Recipe, SampleSpec};
use rundir::{ErrorCode, Failure, RequestSource, SampleFolder, SampleLora, SampleSidecar, now_s};
use std::time::Instant;
use texts::Texts;
use video::Frames;

/// The weights that samples are made from, in the form in which sidecars describe them.
#[derive(Debug, Clone)]
struct Source {
    /// The number of optimizer steps that the weights were trained for.
    step: u64,
    /// The checkpoint or folder, or the run if samples are made during training.
    weights: Utf8PathBuf,
    /// XXH3 of the manifest, or of the weights in memory if samples are made during training.
    weights_xxh3: String,
    /// Whether the weights are the moving average of trained weights.
    ema: bool,
    /// The adapters that were merged into the weights.
    lora: Vec<SampleLora>,
}

/// Why sampling ended early.
#[derive(Debug)]
enum Ended {
    /// A rank failed or is lost.
    Failed(Failure),
    /// A stop was requested.
    Stopped(RequestSource),
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Self {
        Ended::Failed(failure)
    }
}

/// A function that is called after each sampling step with the group of all ranks.
type AfterStep<'a> = dyn FnMut(&Group) -> Result<(), Ended> + 'a;

/// Returns the samples of a recipe.
///
/// # Errors
/// A prompt of the recipe is invalid.
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
/// A peer is lost, a rank cannot decode or write its sample, or a stop is requested.
fn make_round<F: Family>(
    denoiser: &mut Denoiser<'_, F>,
    recipe: &Recipe,
    specs: &[SampleSpec],
    round: &[usize],
    texts: &Texts,
    target: &Target<'_>,
    after_step: &mut AfterStep<'_>,
) -> Result<(), Ended> {
    let started = Instant::now();
    let (place, _) = denoiser.fsdp.groups().data_place();
    let device = denoiser.fsdp.groups().device;
    // The first rank of a TP group decodes; the others have computed the same latent.
    let own = round.get(place).copied().filter(|_| denoiser.fsdp.groups().tp.rank() == 0);
    let index = round[place.min(round.len() - 1)];
    let spec = &specs[index];
    let conditions = agree_on(&denoiser.fsdp.groups().world, conditions(recipe, spec, device))?;
    let latent = denoiser.sample(spec, texts, &conditions, &mut drawn(spec, device), after_step)?;
    let written = own.map_or(Ok(()), |index| {
        let frames = frames(&decode(recipe, &latent, device)?);
        target.write(recipe, &specs[index], index, &frames, started.elapsed().as_secs_f64())
    });
    Ok(agree_on(&denoiser.fsdp.groups().world, written)?)
}

/// The folder of the samples, and the weights that they are made from.
struct Target<'a> {
    folder: SampleFolder,
    source: &'a Source,
}

impl Target<'_> {
    /// Returns the path of the video of a sample.
    fn video(&self, index: usize) -> Utf8PathBuf {
        self.folder.video(self.source.step, index)
    }

    /// Returns the sidecar of a complete sample, without its times.
    fn sidecar(&self, recipe: &Recipe, spec: &SampleSpec, index: usize) -> SampleSidecar {
        SampleSidecar {
            v: rundir::SCHEMA,
            step: self.source.step,
            index,
            prompt: spec.prompt(),
            negative: spec.negative(),
            image: spec.image.clone(),
            image_end: spec.image_end.clone(),
            video: spec.masked.as_ref().map(|masked| masked.video.clone()),
            mask: spec.masked.as_ref().map(|masked| masked.mask.clone()),
            seed: spec.seed,
            width: spec.width,
            height: spec.height,
            frames: spec.frames,
            fps: spec.fps,
            sampling_steps: spec.steps,
            scheduler: spec.scheduler.name().to_owned(),
            guidance: spec.guidance,
            dynamic_guidance: spec.dynamic_guidance,
            dtype: recipe.train.dtype.name().to_owned(),
            ema: self.source.ema,
            weights: self.source.weights.clone(),
            weights_xxh3: self.source.weights_xxh3.clone(),
            lora: self.source.lora.clone(),
            trainer: env!("CARGO_PKG_VERSION").to_owned(),
            libtorch: crate::LIBTORCH.to_owned(),
            took_s: 0.0,
            t: 0.0,
        }
    }

    /// Returns the indices of the samples that earlier attempts completed from the same weights. A collective.
    ///
    /// # Errors
    /// A peer is lost.
    fn whole(&self, recipe: &Recipe, specs: &[SampleSpec], world: &Group) -> Result<Vec<usize>, Failure> {
        // Only rank 0 checks which videos exist: a shared file system may show an older state on other nodes.
        let whole: Vec<usize> = match world.rank() {
            0 => (0..specs.len()).filter(|&index| self.is_whole(recipe, &specs[index], index)).collect(),
            _ => Vec::new(),
        };
        Ok(agree(world, Ok(whole))?.swap_remove(0))
    }

    fn is_whole(&self, recipe: &Recipe, spec: &SampleSpec, index: usize) -> bool {
        let video = self.video(index);
        let Ok(Some(found)) = SampleSidecar::read(&video.with_extension("json")) else { return false };
        let wanted = SampleSidecar {
            took_s: found.took_s,
            t: found.t,
            frames: found.frames,
            ..self.sidecar(recipe, spec, index)
        };
        video.is_file() && found == wanted
    }

    /// Writes the video, its frames if requested, and then its sidecar. If one cannot be written, all are removed.
    fn write(
        &self,
        recipe: &Recipe,
        spec: &SampleSpec,
        index: usize,
        frames: &Frames,
        took_s: f64,
    ) -> Result<(), Failure> {
        let video = self.video(index);
        let (sidecar, pictures) = (video.with_extension("json"), video.with_extension(""));
        // Remove an earlier sidecar first, because it describes another video.
        let _ = std::fs::remove_file(&sidecar);
        let create =
            |path: &Utf8Path| std::fs::create_dir_all(path).map_err(|error| rundir::Error::io("create", path, error));
        let all = || {
            create(video.parent().expect("a video is in a folder"))?;
            video::write_mp4(&video, frames, spec.fps)?;
            if recipe.sample.png {
                create(&pictures)?;
                for frame in 0..frames.count {
                    video::write_png(&pictures.join(format!("{frame:04}.png")), frames, frame)?;
                }
            }
            let sample =
                SampleSidecar { took_s, t: now_s(), frames: frames.count, ..self.sidecar(recipe, spec, index) };
            Ok(sample.write(&sidecar)?)
        };
        all().inspect_err(|_: &Failure| {
            let _ = std::fs::remove_file(&video);
            let _ = recipe.sample.png.then(|| std::fs::remove_dir_all(&pictures));
        })
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
