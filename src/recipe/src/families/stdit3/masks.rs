//! The kinds of masks over the frames of a clip: frames that the network gets clean, to continue or join them.

use std::fmt;

/// A kind of mask. A kind keeps some latent frames of a clip clean; the others are noised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FrameMask {
    /// Keeps each frame with a probability from 0.1 to 0.9.
    Random,
    /// Keeps every second frame.
    Interpolate,
    /// Keeps up to a quarter of the frames, at a random place.
    QuarterRandom,
    /// Keeps up to a quarter of the frames, at the start.
    QuarterHead,
    /// Keeps up to a quarter of the frames, at the end.
    QuarterTail,
    /// Keeps up to a quarter of the frames at each end.
    QuarterHeadTail,
    /// Keeps a random frame.
    ImageRandom,
    /// Keeps the first frame: image to video.
    ImageHead,
    /// Keeps the last frame.
    ImageTail,
    /// Keeps the first and the last frame.
    ImageHeadTail,
}

use FrameMask::{
    ImageHead, ImageHeadTail, ImageRandom, ImageTail, Interpolate, QuarterHead, QuarterHeadTail, QuarterRandom,
    QuarterTail, Random,
};

impl FrameMask {
    /// All kinds, in the order in which their probabilities are summed.
    pub const ALL: [FrameMask; 10] = [
        Random,
        Interpolate,
        QuarterRandom,
        QuarterHead,
        QuarterTail,
        QuarterHeadTail,
        ImageRandom,
        ImageHead,
        ImageTail,
        ImageHeadTail,
    ];

    /// The probabilities of [`FrameMask::ALL`] in Open-Sora 1.2's adaptation from images to videos.
    pub const ADAPTATION: [f64; 10] = [0.2, 0.01, 0.01, 0.01, 0.01, 0.01, 0.05, 0.1, 0.05, 0.05];
    /// The probabilities in stages 1 and 2 of Open-Sora 1.2.
    pub const STAGE_1: [f64; 10] = [0.05, 0.005, 0.005, 0.005, 0.005, 0.005, 0.025, 0.05, 0.025, 0.025];
    /// The probabilities in stage 2 in versions after 1.2.0.
    pub const STAGE_2: [f64; 10] = [0.005, 0.002, 0.007, 0.002, 0.002, 0.002, 0.0, 0.22, 0.005, 0.005];
    /// The probabilities in stage 3 of Open-Sora 1.2.
    pub const STAGE_3: [f64; 10] = [0.01, 0.002, 0.002, 0.002, 0.002, 0.002, 0.0, 0.22, 0.005, 0.005];

    /// Returns the name in Open-Sora's configs, with its typing error in `interpolate` corrected.
    pub fn name(self) -> &'static str {
        match self {
            Random => "random",
            Interpolate => "interpolate",
            QuarterRandom => "quarter_random",
            QuarterHead => "quarter_head",
            QuarterTail => "quarter_tail",
            QuarterHeadTail => "quarter_head_tail",
            ImageRandom => "image_random",
            ImageHead => "image_head",
            ImageTail => "image_tail",
            ImageHeadTail => "image_head_tail",
        }
    }

    /// Returns the kind with a name, also with Open-Sora's name `intepolate`.
    pub fn named(name: &str) -> Option<FrameMask> {
        if name == "intepolate" {
            return Some(Interpolate);
        }
        FrameMask::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl fmt::Display for FrameMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_their_names() {
        for (place, kind) in FrameMask::ALL.into_iter().enumerate() {
            assert_eq!((kind as usize, FrameMask::named(kind.name())), (place, Some(kind)));
        }
        assert_eq!((FrameMask::named("intepolate"), FrameMask::named("none")), (Some(Interpolate), None));
    }

    #[test]
    fn a_quarter_of_the_clips_has_a_mask_in_stage_3() {
        for (shares, want) in [
            (FrameMask::ADAPTATION, 0.5),
            (FrameMask::STAGE_1, 0.2),
            (FrameMask::STAGE_2, 0.25),
            (FrameMask::STAGE_3, 0.25),
        ] {
            assert!((shares.iter().sum::<f64>() - want).abs() < 1e-12, "{shares:?}");
        }
    }
}
