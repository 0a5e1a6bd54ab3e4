//! The section `[condition]`: the inputs of the network besides the noised latent and the text.

use std::fmt;

use crate::resume::WEIGHTS;
use crate::schema::{BOOL, EMBEDDED, FRACTION, TEXTS, int, word};
use crate::{FamilyName, Model, ResumeEffect, VIDEO_FRAMES};

section! {
    /// The input of the network besides the noised latent and the text: an image, a masked video, or a first frame without noise.
    pub struct Conditioning("condition", EMBEDDED, ResumeEffect::Training) with Default {
        /// input of the network besides the noised latent, in model.in_channels; none: text to video; image: latent of the first image
        /// (CogVideoX, 2 x model.out_channels); inpaint: mask and latent of the masked video (CogVideoX-Fun, 2 x model.out_channels + 1);
        /// image_clip: mask, and latent of a clip that is grey after its first image (Wan 2.2 I2V A14B, 2 x model.out_channels + 4);
        /// first_frame: the first latent frame has no noise (Wan 2.2 TI2V 5B, model.out_channels)
        pub kind: ConditionKind = ConditionKind::None => word::<ConditionKind>().on_resume(WEIGHTS);
        /// probability that a step trains without its images, one draw for the global batch (image and first_frame); 0: never
        pub image_dropout: f64 = 0.05 => FRACTION;
        /// adds noise to the image and to the known pixels of a masked video before they are encoded, log sigma from N(-3, 0.5) per
        /// clip; used by encode, never on latents
        pub image_noise: bool = false => BOOL.on_resume(ResumeEffect::Data).of_family(FamilyName::CogVideoX);
        /// kinds of masks that encode draws, as "KIND=PROBABILITY" (rectangle, all, tail, middle, window, pixels, boxes, ellipse,
        /// circle, frames); default: VideoX-Fun's probabilities
        pub masks: Vec<String> = Vec::new() => TEXTS.on_resume(ResumeEffect::Data).of_family(FamilyName::CogVideoX);
        /// conditions (mask and noise) that encode draws for each clip; epoch e trains with condition e modulo draws; VideoX-Fun draws
        /// new ones in each epoch
        pub draws: usize = 1 => int(1, 1000).on_resume(ResumeEffect::Data).of_family(FamilyName::CogVideoX);
        /// probability that a wholly masked sample is trained without its mask and masked latent, as text to video (inpaint only); 0:
        /// never
        pub mask_dropout: f64 = 0.9 => FRACTION.of_family(FamilyName::CogVideoX);
    }
}

words! {
    /// The kind of condition.
    pub enum ConditionKind {
        /// Text alone.
        None = "none",
        /// The latent of the first image, followed by zero frames (CogVideoX image-to-video).
        Image = "image",
        /// A mask and the latent of the masked video (CogVideoX-Fun inpainting).
        Inpaint = "inpaint",
        /// A mask of four pixel frames, and the latent of a clip that is grey after its first image (image to video of Wan 2.2).
        ImageClip = "image_clip",
        /// A first latent frame without noise, in place of that of the noised latent (text and image to video of Wan 2.2).
        FirstFrame = "first_frame",
    }
}

impl ConditionKind {
    /// Returns the input channels of a network that predicts latents with `out_channels`.
    pub fn in_channels(self, out_channels: usize) -> usize {
        match self {
            ConditionKind::None | ConditionKind::FirstFrame => out_channels,
            ConditionKind::Image => 2 * out_channels,
            ConditionKind::Inpaint => 2 * out_channels + 1,
            ConditionKind::ImageClip => 2 * out_channels + VIDEO_FRAMES,
        }
    }
}

impl Model {
    /// Returns the condition that the channels of the network imply; `None` if no condition of its family has them.
    pub fn condition(&self) -> Option<ConditionKind> {
        self.family()
            .conditions(self)
            .iter()
            .copied()
            .find(|kind| kind.in_channels(self.out_channels) == self.in_channels)
    }
}

/// A kind of mask over the frames and pixels of a video.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MaskKind {
    /// A rectangle through all frames.
    Rectangle,
    /// Everything: text to video.
    All,
    /// All frames except the first 1 to 4: image to video.
    Tail,
    /// All frames except 1 to 4 at each end: first and last image to video.
    Middle,
    /// A rectangle in a window of frames.
    Window,
    /// Each pixel with probability 1/2.
    Pixels,
    /// Small boxes in random frames.
    Boxes,
    /// An ellipse in the first frame.
    Ellipse,
    /// A circle in the first frame.
    Circle,
    /// Each frame with probability 1/2.
    Frames,
}

impl MaskKind {
    /// All kinds with VideoX-Fun's probabilities for videos, in its order.
    ///
    /// Source: VideoX-Fun `get_random_mask`.
    pub const VIDEO: [(MaskKind, f64); 10] = [
        (MaskKind::Rectangle, 0.05),
        (MaskKind::All, 0.2),
        (MaskKind::Tail, 0.2),
        (MaskKind::Middle, 0.2),
        (MaskKind::Window, 0.05),
        (MaskKind::Pixels, 0.05),
        (MaskKind::Boxes, 0.05),
        (MaskKind::Ellipse, 0.1),
        (MaskKind::Circle, 0.05),
        (MaskKind::Frames, 0.05),
    ];

    /// The kinds of a single image, with VideoX-Fun's probabilities.
    pub const IMAGE: [(MaskKind, f64); 4] =
        [(MaskKind::Rectangle, 0.2), (MaskKind::All, 0.7), (MaskKind::Ellipse, 0.05), (MaskKind::Circle, 0.05)];

    /// Returns the name in recipes.
    pub fn name(self) -> &'static str {
        match self {
            MaskKind::Rectangle => "rectangle",
            MaskKind::All => "all",
            MaskKind::Tail => "tail",
            MaskKind::Middle => "middle",
            MaskKind::Window => "window",
            MaskKind::Pixels => "pixels",
            MaskKind::Boxes => "boxes",
            MaskKind::Ellipse => "ellipse",
            MaskKind::Circle => "circle",
            MaskKind::Frames => "frames",
        }
    }
}

impl fmt::Display for MaskKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Conditioning {
    /// Returns the number of different conditions of a clip. Without noise, all image conditions are equal and count as one.
    pub fn draws(&self) -> usize {
        match self.kind {
            // The first latent frame is part of the latent.
            ConditionKind::None | ConditionKind::FirstFrame => 0,
            ConditionKind::ImageClip => 1,
            ConditionKind::Image if !self.image_noise => 1,
            ConditionKind::Image | ConditionKind::Inpaint => self.draws,
        }
    }

    /// Returns the kinds of masks with their probabilities, which sum to 1.
    ///
    /// # Errors
    /// The reason why `masks` is not a list of kinds with probabilities.
    pub fn mask_kinds(&self) -> Result<Vec<(MaskKind, f64)>, String> {
        if self.masks.is_empty() {
            return Ok(MaskKind::VIDEO.to_vec());
        }
        let kinds = self.masks.iter().map(|text| {
            let (name, share) = text.split_once('=').ok_or_else(|| format!("'{text}' is not KIND=PROBABILITY"))?;
            let kind = MaskKind::VIDEO.into_iter().map(|(kind, _)| kind).find(|kind| kind.name() == name.trim());
            let kind = kind.ok_or_else(|| {
                let names: Vec<_> = MaskKind::VIDEO.iter().map(|(kind, _)| kind.name()).collect();
                format!("'{}' is not a kind of mask; the kinds are {}", name.trim(), names.join(", "))
            })?;
            let share: f64 = share.trim().parse().map_err(|_| format!("'{text}' has no number after ="))?;
            if share.is_finite() && share >= 0.0 {
                Ok((kind, share))
            } else {
                Err(format!("the probability in '{text}' is not from 0 to 1"))
            }
        });
        let kinds = kinds.collect::<Result<Vec<_>, String>>()?;
        let sum: f64 = kinds.iter().map(|(_, share)| share).sum();
        if (sum - 1.0).abs() > 1e-6 {
            return Err(format!("the probabilities sum to {sum}, not to 1"));
        }
        Ok(kinds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probabilities_of_masks_sum_to_one() {
        for kinds in [&MaskKind::VIDEO[..], &MaskKind::IMAGE] {
            assert!((kinds.iter().map(|(_, share)| share).sum::<f64>() - 1.0).abs() < 1e-9);
        }
        let of = |masks: &[&str]| {
            Conditioning { masks: masks.iter().map(|m| (*m).to_owned()).collect(), ..Conditioning::default() }
                .mask_kinds()
        };
        assert_eq!(of(&[]), Ok(MaskKind::VIDEO.to_vec()));
        assert_eq!(of(&["all=0.25", "tail = 0.75"]), Ok(vec![(MaskKind::All, 0.25), (MaskKind::Tail, 0.75)]));
        for wrong in [&["all=0.5"][..], &["all"], &["most=1"], &["all=much"], &["all=2", "tail=-1"]] {
            assert!(of(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_published_models_have_the_channels_of_their_conditions() {
        use ConditionKind::{FirstFrame, Image, ImageClip, Inpaint, None};
        let kinds = [None, Image, Inpaint, ImageClip, FirstFrame];
        assert_eq!(kinds.map(|kind| kind.in_channels(16)), [16, 32, 33, 36, 16]);
    }
}
