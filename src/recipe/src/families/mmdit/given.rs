//! The frames that a sample gives to the network: none, images at its ends, or a video at one end.

use std::ops::Range;

/// Which latent frames of a sample are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Given {
    /// None: text to video.
    Nothing,
    /// An image at the start.
    Head,
    /// An image at the end.
    Tail,
    /// An image at the start and one at the end.
    Loop,
    /// A short video at the start.
    VideoHead,
    /// A short video at the end.
    VideoTail,
    /// A longer video at the start.
    LongVideoHead,
    /// A longer video at the end.
    LongVideoTail,
}

/// The latent frames of a given video.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GivenLengths {
    /// Latent frames of a short video.
    pub short: usize,
    /// Latent frames of a longer video.
    pub long: usize,
}

impl GivenLengths {
    /// The lengths for a causal autoencoder, which encodes the given 33 or 65 frames apart from the clip.
    pub const CAUSAL: Self = GivenLengths { short: 9, long: 17 };
    /// The lengths for an autoencoder that is not causal. The given frames are cut from the latent of the clip.
    pub const NOT_CAUSAL: Self = GivenLengths { short: 8, long: 16 };
}

/// Every kind with its name in Open-Sora's configurations.
const NAMES: [(Given, &str); 8] = [
    (Given::Nothing, "t2v"),
    (Given::Head, "i2v_head"),
    (Given::Tail, "i2v_tail"),
    (Given::Loop, "i2v_loop"),
    (Given::VideoHead, "v2v_head"),
    (Given::VideoTail, "v2v_tail"),
    (Given::LongVideoHead, "v2v_head_easy"),
    (Given::LongVideoTail, "v2v_tail_easy"),
];

impl Given {
    /// Returns the kind with this name in Open-Sora's configurations.
    pub fn named(name: &str) -> Option<Self> {
        NAMES.iter().find(|(_, own)| *own == name).map(|(given, _)| *given)
    }

    /// Returns the name in Open-Sora's configurations.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(given, _)| *given == self).map_or("", |(_, name)| name)
    }

    /// Returns whether one or two images are given.
    pub fn is_of_images(self) -> bool {
        matches!(self, Given::Head | Given::Tail | Given::Loop)
    }

    /// Returns the given frames of a clip; `None` if the clip is too short: images need a clip of two latent frames, and videos one that is
    /// longer than they are.
    ///
    /// Source: Open-Sora `opensora/utils/train.py`, `prepare_visual_condition_causal`.
    pub fn frames(self, latent_frames: usize, lengths: GivenLengths) -> Option<Vec<Range<usize>>> {
        let ends = |head: usize, tail: usize| {
            let ranges = [0..head, latent_frames.saturating_sub(tail)..latent_frames];
            (latent_frames > head.max(tail)).then(|| ranges.into_iter().filter(|range| !range.is_empty()).collect())
        };
        match self {
            Given::Nothing => ends(0, 0),
            Given::Head => ends(1, 0),
            Given::Tail => ends(0, 1),
            Given::Loop => ends(1, 1),
            Given::VideoHead => ends(lengths.short, 0),
            Given::VideoTail => ends(0, lengths.short),
            Given::LongVideoHead => ends(lengths.long, 0),
            Given::LongVideoTail => ends(0, lengths.long),
        }
    }
}

/// How often each kind is drawn for a sample.
#[derive(Debug, Clone, PartialEq)]
pub struct GivenWeights(pub Vec<(Given, f64)>);

impl GivenWeights {
    /// Returns the kind at `share` of the kinds' distribution, `0.0..1.0`, among those that the clip is long enough for. If there is none,
    /// nothing is given. Images never have given frames.
    ///
    /// Open-Sora removes a kind that one batch is too short for from all later batches, and fails when none is left. Here the kinds are
    /// chosen for each clip.
    pub fn draw(&self, share: f64, latent_frames: usize, lengths: GivenLengths) -> Given {
        let fits = |given: Given| given.frames(latent_frames, lengths).is_some();
        // Rounding may lead to the last kind, which must have a weight.
        let is_usable = |(given, weight): &(Given, f64)| *weight > 0.0 && fits(*given);
        let usable: Vec<(Given, f64)> = self.0.iter().copied().filter(is_usable).collect();
        let mut left = share * usable.iter().map(|(_, weight)| weight).sum::<f64>();
        for (given, weight) in &usable {
            if left < *weight {
                return *given;
            }
            left -= weight;
        }
        usable.last().map_or(Given::Nothing, |(given, _)| *given)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAUSAL: GivenLengths = GivenLengths::CAUSAL;

    #[test]
    fn given_frames_are_at_the_ends_of_a_clip_that_is_long_enough() {
        let frames = |given: Given, frames, lengths| {
            given.frames(frames, lengths).map(|ranges| ranges.iter().map(|r| [r.start, r.end]).collect::<Vec<_>>())
        };
        for (given, len, want) in [
            (Given::Head, 5, Some(vec![[0, 1]])),
            (Given::Tail, 5, Some(vec![[4, 5]])),
            (Given::Loop, 5, Some(vec![[0, 1], [4, 5]])),
            (Given::Loop, 2, Some(vec![[0, 1], [1, 2]])),
            (Given::VideoHead, 10, Some(vec![[0, 9]])),
            (Given::LongVideoTail, 18, Some(vec![[1, 18]])),
            (Given::Nothing, 1, Some(vec![])),
            (Given::Head, 1, None),
            (Given::Loop, 1, None),
            (Given::VideoTail, 9, None),
            (Given::LongVideoHead, 17, None),
        ] {
            assert_eq!(frames(given, len, CAUSAL), want, "{given:?} {len}");
            assert_eq!(Given::named(given.name()), Some(given));
        }
        assert_eq!(frames(Given::VideoHead, 9, GivenLengths::NOT_CAUSAL), Some(vec![[0, 8]]));
    }

    #[test]
    fn a_clip_that_is_too_short_for_a_kind_gets_another_one() {
        let weights = GivenWeights(vec![(Given::Head, 5.0), (Given::VideoHead, 4.0), (Given::Nothing, 1.0)]);
        let draws = |frames| [0.0, 0.49, 0.5, 0.89, 0.91].map(|share| weights.draw(share, frames, CAUSAL));
        assert_eq!(draws(33), [Given::Head, Given::Head, Given::VideoHead, Given::VideoHead, Given::Nothing]);
        assert_eq!(draws(5), [Given::Head, Given::Head, Given::Head, Given::Nothing, Given::Nothing]);
        assert_eq!(draws(1), [Given::Nothing; 5]);
        assert_eq!(GivenWeights(vec![(Given::LongVideoHead, 1.0)]).draw(0.5, 9, CAUSAL), Given::Nothing);
    }

    #[test]
    fn a_kind_without_weight_is_never_drawn() {
        // The sum of these weights is rounded up: the greatest share is past the end of the third kind.
        let weights = [(Given::Head, 0.1), (Given::Tail, 0.2), (Given::VideoHead, 0.3), (Given::Loop, 0.0)];
        let drawn = GivenWeights(weights.to_vec()).draw(1.0f64.next_down(), 33, CAUSAL);
        assert_eq!(drawn, Given::VideoHead);
        assert_eq!(GivenWeights(vec![(Given::Loop, 0.0)]).draw(0.5, 33, CAUSAL), Given::Nothing);
    }
}
