//! Masks over the frames of a clip, drawn with the probabilities of a recipe.
//!
//! Source: Open-Sora v1.2.0 `MaskGenerator` in `opensora/utils/train_utils.py`.

use recipe::families::stdit3::FrameMask;
use std::ops::RangeInclusive;

/// Draws a mask for a clip of `frames` latent frames: the kind, if one was drawn, and which frames get noise.
///
/// Kinds are drawn with their probabilities. The remaining probability is that of no mask. An image has no mask. At least one frame gets
/// noise: the last one, if a kind would keep all frames. A quarter of a short clip is one frame, where upstream fails.
///
/// `uniform` returns random numbers from 0 up to, but not including, 1.
pub fn draw(
    shares: &[(FrameMask, f64)],
    frames: usize,
    uniform: &mut dyn FnMut() -> f64,
) -> (Option<FrameMask>, Vec<bool>) {
    let (drawn, mut sum) = (uniform(), 0.0);
    let kind = shares.iter().find(|(_, share)| {
        sum += share;
        sum > drawn
    });
    let kind = kind.map(|(kind, _)| *kind);
    let mut noised = vec![true; frames];
    if let (Some(kind), true) = (kind, frames > 1) {
        keep(kind, &mut noised, uniform);
        if !noised.contains(&true) {
            noised[frames - 1] = true;
        }
    }
    (kind, noised)
}

/// Marks the frames that a mask of a kind keeps as frames without noise.
fn keep(kind: FrameMask, noised: &mut [bool], uniform: &mut dyn FnMut() -> f64) {
    let frames = noised.len();
    let mut whole = |range: RangeInclusive<usize>| {
        let count = range.end() - range.start() + 1;
        range.start() + (uniform() * count as f64) as usize
    };
    let quarter = 1..=(frames / 4).max(1);
    match kind {
        FrameMask::Random => {
            let ratio = 0.1 + 0.8 * uniform();
            noised.iter_mut().for_each(|noised| *noised = uniform() > ratio);
        }
        FrameMask::Interpolate => noised[whole(0..=1)..].iter_mut().step_by(2).for_each(|noised| *noised = false),
        FrameMask::QuarterRandom => {
            let count = whole(quarter);
            let first = whole(0..=frames - count);
            noised[first..first + count].fill(false);
        }
        FrameMask::QuarterHead => noised[..whole(quarter)].fill(false),
        FrameMask::QuarterTail => noised[frames - whole(quarter)..].fill(false),
        FrameMask::QuarterHeadTail => {
            let count = whole(quarter);
            noised[..count].fill(false);
            noised[frames - count..].fill(false);
        }
        FrameMask::ImageRandom => noised[whole(0..=frames - 1)] = false,
        FrameMask::ImageHead => noised[0] = false,
        FrameMask::ImageTail => noised[frames - 1] = false,
        FrameMask::ImageHeadTail => {
            noised[0] = false;
            noised[frames - 1] = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_leaves_a_frame_with_noise_in_clips_of_any_length() {
        for kind in FrameMask::ALL {
            for frames in 1..10 {
                for draws in 0..20 {
                    let value = f64::from(draws) / 20.0;
                    let (drawn, noised) = draw(&[(kind, 1.0)], frames, &mut || value);
                    assert_eq!((drawn, noised.len()), (Some(kind), frames));
                    assert!(noised.contains(&true), "{kind} {frames} {value}");
                    assert!(frames < 2 || kind == FrameMask::Random || noised.contains(&false), "{kind} {frames}");
                }
            }
        }
    }
}
