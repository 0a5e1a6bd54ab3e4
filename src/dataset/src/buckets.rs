//! Assigns each clip to a bucket: the number of frames and the size at which the clip is encoded.

use crate::store::seed_of;
use crate::{Clip, ClipManifest, ExclusionReason};
use recipe::{Bucket, Buckets, ClipSize, Misfit, Recipe};
use serde::Serialize;
use std::collections::BTreeMap;
use video::{FrameChoice, FrameMode};

/// Assigns clips to buckets. Random draws depend only on the seed and the content of a clip, so the bucket of a clip does not change
/// when other clips are added.
#[derive(Debug, Clone, PartialEq)]
pub struct Assigner {
    buckets: Buckets,
    /// The choice of frames, whose number of frames is not used.
    choice: FrameChoice,
}

impl Assigner {
    /// Makes the assigner of a recipe; `None` if the recipe has no buckets. `choice` is how an encode takes frames from a clip; its
    /// number of frames is not used, because the bucket sets it.
    pub fn new(recipe: &Recipe, choice: FrameChoice) -> Option<Self> {
        Some(Self { buckets: recipe.buckets()?, choice })
    }

    /// Returns the rate at which frames are taken, if they are taken at a rate.
    pub(crate) fn rate(&self) -> Option<f64> {
        self.choice.fps
    }

    /// Returns the bucket of a clip.
    ///
    /// # Errors
    /// The reason why no bucket takes the clip.
    pub fn bucket_of(&self, clip: &Clip) -> Result<Bucket, Misfit> {
        let size = ClipSize { frames: available(clip, &self.choice), height: clip.height, width: clip.width };
        self.buckets.assign(size, seed_of(self.choice.seed, &clip.content))
    }

    /// Returns the buckets that are not among the `used` ones.
    pub fn unused(&self, used: &[Bucket]) -> Vec<Bucket> {
        let mut all = self.buckets.all();
        all.retain(|bucket| !used.contains(bucket));
        all
    }
}

/// Returns the number of frames that can be taken from a clip.
pub(crate) fn available(clip: &Clip, choice: &FrameChoice) -> usize {
    let last = clip.frames.saturating_sub(1);
    let choice = clip.choice(choice);
    match (choice.mode, choice.fps) {
        (FrameMode::Linspace, _) => clip.frames,
        // Same tolerance as in `choose`: the last wanted time may be up to half a period after the last frame.
        (mode, Some(fps)) if mode != FrameMode::Stride && clip.fps > 0.0 => {
            (last as f64 / clip.fps * fps + 0.5) as usize + 1
        }
        _ => last / choice.stride.max(1) + 1,
    }
}

/// The clips of a bucket.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BucketClips {
    /// Frames × height × width.
    pub bucket: Bucket,
    /// The number of clips.
    pub clips: usize,
    /// The total length of these videos in hours.
    pub hours: f64,
}

impl ClipManifest {
    /// Sets the bucket of each usable clip and excludes clips that no bucket takes, after undoing an earlier call. With `None`, only
    /// undoes the earlier call.
    pub fn assign(&mut self, assigner: Option<&Assigner>) {
        for clip in &mut self.clips {
            clip.bucket = None;
            if matches!(clip.excluded, Some(ExclusionReason::NoBucket { .. })) {
                clip.excluded = None;
            }
            let Some(assigner) = assigner.filter(|_| clip.is_usable()) else { continue };
            match assigner.bucket_of(clip) {
                Ok(bucket) => clip.bucket = Some(bucket),
                Err(misfit) => {
                    let frames = available(clip, &assigner.choice);
                    let (height, width) = (clip.height, clip.width);
                    clip.excluded = Some(ExclusionReason::NoBucket { misfit, frames, height, width });
                }
            }
        }
    }

    /// Counts the clips of each bucket.
    pub fn buckets(&self) -> Vec<BucketClips> {
        let mut buckets: BTreeMap<Bucket, (usize, f64)> = BTreeMap::new();
        for clip in self.usable() {
            let Some(bucket) = clip.bucket else { continue };
            let (clips, seconds) = buckets.entry(bucket).or_default();
            *clips += 1;
            *seconds += clip.duration_s;
        }
        let counted = buckets.into_iter();
        counted.map(|(bucket, (clips, seconds))| BucketClips { bucket, clips, hours: seconds / 3600.0 }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use recipe::Encode;
    use video::choose;

    fn clip(frames: usize, fps: f64) -> Clip {
        let content = format!("{frames} {fps}");
        Clip { frames, fps, height: 480, width: 720, duration_s: frames as f64 / fps, content, ..Clip::default() }
    }

    fn choice(mode: FrameMode, fps: Option<f64>, stride: usize) -> FrameChoice {
        FrameChoice { mode, frames: 1, fps, stride, seed: 0 }
    }

    #[test]
    fn available_frames_can_be_chosen_and_one_more_cannot() {
        let choices = [
            choice(FrameMode::Head, None, 1),
            choice(FrameMode::Head, Some(8.0), 1),
            choice(FrameMode::Random, Some(24.0), 1),
            choice(FrameMode::Stride, None, 3),
            choice(FrameMode::Linspace, None, 1),
            choice(FrameMode::TimeFps, Some(7.0), 1),
        ];
        let folder = |frames, fps| Clip { frame_folder: true, ..clip(frames, fps) };
        let clips = [clip(1, 25.0), clip(2, 25.0), clip(100, 25.0), clip(97, 29.97), folder(60, 8.0), folder(60, 0.0)];
        for clip in clips {
            let rate = if clip.fps > 0.0 { clip.fps } else { 1.0 };
            let times: Vec<f64> = (0..clip.frames).map(|at| at as f64 / rate).collect();
            for choice in &choices {
                let frames = available(&clip, choice);
                let choice = clip.choice(choice);
                let chosen = |frames| choose(&times, &FrameChoice { frames, ..choice.clone() }).is_ok();
                assert_eq!((chosen(frames), chosen(frames + 1)), (true, false), "{frames} of {clip:?} by {choice:?}");
            }
        }
    }

    fn recipe(sets: &[&str]) -> Recipe {
        let file = "../../tests/fixtures/configs/valid/minimal.toml";
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        recipe::load(file.into(), &sets).unwrap().recipe
    }

    #[test]
    fn clips_without_a_bucket_are_excluded_until_another_recipe_has_one() {
        let set =
            "data.buckets=[{ frames = 49, height = 480, width = 720 }, { frames = 9, height = 480, width = 720 }]";
        let assigner = Assigner::new(&recipe(&[set]), FrameChoice::of(&Encode::default())).unwrap();
        let small = Clip { height: 48, ..clip(60, 25.0) };
        let mut manifest = ClipManifest {
            clips: vec![clip(60, 25.0), clip(20, 25.0), clip(5, 25.0), small],
            ..ClipManifest::default()
        };
        manifest.assign(Some(&assigner));
        let misfits: Vec<Option<Misfit>> = manifest
            .clips
            .iter()
            .map(|clip| match clip.excluded {
                Some(ExclusionReason::NoBucket { misfit, .. }) => Some(misfit),
                _ => None,
            })
            .collect();
        assert_eq!(misfits, [None, None, Some(Misfit::TooShort), Some(Misfit::TooSmall)]);
        let counts: Vec<(String, usize)> =
            manifest.buckets().iter().map(|of| (of.bucket.to_string(), of.clips)).collect();
        assert_eq!(counts, [("9x480x720".to_owned(), 1), ("49x480x720".to_owned(), 1)]);
        let [short, long] = [0, 1].map(|at| manifest.buckets()[at].bucket);
        assert_eq!((assigner.unused(&[short]), assigner.unused(&[long, short])), (vec![long], vec![]));
        manifest.assign(None);
        assert!(manifest.clips.iter().all(|clip| clip.is_usable() && clip.bucket.is_none()));
    }

    #[test]
    fn the_bucket_of_a_clip_does_not_depend_on_the_other_clips() {
        let rule = "data.bucket_rule=open_sora_2";
        let set = "data.buckets=[{ size = '256px', frames = [9, 33], accept = 0.5, skip = 0.5 }]";
        let assigner = Assigner::new(&recipe(&[rule, set]), FrameChoice::of(&Encode::default())).unwrap();
        let clips: Vec<Clip> = (0..40).map(|n| clip(40 + n, 25.0)).collect();
        let assigned = |clips: Vec<Clip>| {
            let mut manifest = ClipManifest { clips, ..ClipManifest::default() };
            manifest.assign(Some(&assigner));
            manifest.clips.into_iter().map(|clip| (clip.content, clip.bucket)).collect::<BTreeMap<_, _>>()
        };
        let all = assigned(clips.clone());
        let found: std::collections::BTreeSet<_> = all.values().copied().collect();
        assert_eq!(found.len(), 3, "both lengths and none");
        assert!(assigned(clips[7..9].to_vec()).into_iter().all(|(content, bucket)| all[&content] == bucket));
    }
}
