//! Chooses frames by their presentation times.

use camino::Utf8Path;
use failure::{ErrorCode, Failure};
use recipe::{Encode, FrameMode};
use serde::{Deserialize, Serialize};

/// The rule for choosing frames of a clip.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FrameChoice {
    /// The place of the frames in the clip.
    pub mode: FrameMode,
    /// The number of frames.
    pub frames: usize,
    /// The target rate in frames per second; `None` keeps the rate of the clip.
    pub fps: Option<f64>,
    /// The distance between chosen frames, in frames of the clip, if there is no target rate; at least 1.
    pub stride: usize,
    /// The seed of the mode `random`. Use a different seed for each clip.
    pub seed: u64,
}

impl FrameChoice {
    /// Returns the choice of frames of an encode.
    pub fn of(encode: &Encode) -> Self {
        let Encode { mode, frames, stride, seed, .. } = *encode;
        Self { mode, frames, fps: encode.rate(), stride, seed }
    }

    /// Returns the choice for frames whose rate is the rate of the choice: the same frames, chosen by their numbers. Without a rate, the
    /// choice is the same.
    pub fn by_number(&self) -> Self {
        match (self.mode, self.fps) {
            // These modes use no rate.
            (FrameMode::Linspace | FrameMode::Stride, _) | (_, None) => self.clone(),
            (FrameMode::TimeFps, _) => Self { mode: FrameMode::Head, fps: None, stride: 1, ..self.clone() },
            _ => Self { fps: None, stride: 1, ..self.clone() },
        }
    }
}

/// A clip has too few frames, or the choice is not valid.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum NotEnough {
    /// The clip has too few frames.
    #[error("{need} frames are needed, but the clip has {have}")]
    Frames {
        /// Frames that the choice needs.
        need: usize,
        /// Frames of the clip.
        have: usize,
    },
    /// The clip is too short.
    #[error("{need_s:.3} s from the first to the last chosen frame are needed, but the clip has {have_s:.3} s")]
    Seconds {
        /// Seconds from the first to the last chosen frame.
        need_s: f64,
        /// Seconds from the first to the last frame of the clip.
        have_s: f64,
    },
    /// The choice is not valid for any clip.
    #[error("{0}")]
    Invalid(String),
}

impl NotEnough {
    /// Returns the failure for a clip.
    pub fn failure(&self, path: &Utf8Path) -> Failure {
        let (code, fix) = match self {
            Self::Invalid(_) => (ErrorCode::InvalidArgument, "correct the choice of frames"),
            _ => (
                ErrorCode::InvalidDataset,
                "choose fewer frames, a higher rate or a smaller stride, or remove the clip",
            ),
        };
        Failure::new(code, format!("cannot choose frames of {path}"), self.to_string(), fix)
    }
}

/// Returns the times of the chosen frames, all of which are in `times`, in ascending order.
///
/// * `times` — the presentation times of all frames in seconds, ascending.
///
/// If the clip has fewer frames per second than the target rate, some frames are taken more than once; [`repeated`]
/// counts them.
///
/// # Errors
/// [`NotEnough`], if the clip is too short or the choice is invalid. The last wanted time may be up to half a target period
/// after the last frame.
pub fn choose(times: &[f64], choice: &FrameChoice) -> Result<Vec<f64>, NotEnough> {
    let FrameChoice { mode, frames, fps, stride, seed } = choice;
    let frames = *frames;
    validate(choice)?;
    let (Some(&first), Some(&last)) = (times.first(), times.last()) else {
        return Err(NotEnough::Frames { need: frames, have: 0 });
    };
    let rate = match mode {
        FrameMode::Linspace => return linspace(times, frames),
        FrameMode::Stride => None,
        _ => *fps,
    };
    let Some(rate) = rate else {
        let span = (frames - 1) * stride;
        let room = (times.len() - 1).checked_sub(span);
        let room = room.ok_or(NotEnough::Frames { need: span + 1, have: times.len() })?;
        let start = match mode {
            FrameMode::Middle => room / 2,
            FrameMode::Random => ((unit(*seed) * (room + 1) as f64) as usize).min(room),
            _ => 0,
        };
        return Ok((0..frames).map(|i| times[start + i * stride]).collect());
    };
    let (need_s, have_s) = ((frames - 1) as f64 / rate, last - first);
    if need_s > have_s + 0.5 / rate {
        return Err(NotEnough::Seconds { need_s, have_s });
    }
    let room = (have_s - need_s).max(0.0);
    let start = match mode {
        FrameMode::Middle => first + room / 2.0,
        FrameMode::Random => first + unit(*seed) * room,
        _ => first,
    };
    Ok((0..frames).map(|i| nearest(times, start + i as f64 / rate)).collect())
}

/// Returns how many of the chosen frames repeat the frame before.
pub fn repeated(times: &[f64]) -> usize {
    times.windows(2).filter(|pair| pair[0] == pair[1]).count()
}

fn validate(choice: &FrameChoice) -> Result<(), NotEnough> {
    let invalid = |why: String| Err(NotEnough::Invalid(why));
    if choice.frames == 0 {
        return invalid("at least one frame must be chosen".into());
    }
    if choice.stride == 0 {
        return invalid("the stride must be at least 1".into());
    }
    match choice.fps {
        Some(fps) if !(fps.is_finite() && fps > 0.0) => invalid(format!("the target rate is {fps} frames per second")),
        None if choice.mode == FrameMode::TimeFps => invalid("the mode time@fps needs a target rate".into()),
        _ => Ok(()),
    }
}

fn linspace(times: &[f64], frames: usize) -> Result<Vec<f64>, NotEnough> {
    if times.len() < frames {
        return Err(NotEnough::Frames { need: frames, have: times.len() });
    }
    let (first, span) = (times[0], times[times.len() - 1] - times[0]);
    let step = span / (frames.max(2) - 1) as f64;
    Ok((0..frames).map(|i| nearest(times, first + i as f64 * step)).collect())
}

/// Returns the time nearest to `wanted`, or the earlier time if two are equally near.
fn nearest(times: &[f64], wanted: f64) -> f64 {
    // Sums of periods differ from decimal times by rounding, which must not decide a tie.
    const TIE_S: f64 = 1e-7;
    let after = times.partition_point(|&time| time < wanted);
    match (after.checked_sub(1).map(|before| times[before]), times.get(after).copied()) {
        (Some(before), Some(after)) if wanted - before <= after - wanted + TIE_S => before,
        (_, Some(after)) => after,
        (Some(before), None) => before,
        (None, None) => wanted,
    }
}

/// Returns a number in [0, 1) for a seed (SplitMix64).
pub(crate) fn unit(seed: u64) -> f64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(fps: f64, frames: usize) -> Vec<f64> {
        (0..frames).map(|i| i as f64 / fps).collect()
    }

    fn choice(mode: FrameMode, frames: usize, fps: Option<f64>) -> FrameChoice {
        FrameChoice { mode, frames, fps, stride: 1, seed: 0 }
    }

    fn indices(times: &[f64], chosen: &[f64]) -> Vec<usize> {
        chosen.iter().map(|time| times.iter().position(|t| t == time).unwrap()).collect()
    }

    fn chosen(times: &[f64], choice: &FrameChoice) -> Vec<usize> {
        indices(times, &choose(times, choice).unwrap())
    }

    #[test]
    fn each_mode_takes_the_frames_that_it_names() {
        let times = at(25.0, 100);
        assert_eq!(chosen(&times, &choice(FrameMode::Head, 3, None)), [0, 1, 2]);
        assert_eq!(chosen(&times, &choice(FrameMode::Middle, 4, None)), [48, 49, 50, 51]);
        assert_eq!(chosen(&times, &FrameChoice { stride: 10, ..choice(FrameMode::Stride, 3, Some(8.0)) }), [0, 10, 20]);
        assert_eq!(chosen(&times, &choice(FrameMode::Linspace, 4, None)), [0, 33, 66, 99]);
        assert_eq!(chosen(&times, &choice(FrameMode::Linspace, 1, None)), [0]);
        // The wanted times are 0, 0.125, 0.25 and 0.375 s, and the frames are 0.04 s apart.
        assert_eq!(chosen(&times, &choice(FrameMode::TimeFps, 4, Some(8.0))), [0, 3, 6, 9]);
        assert_eq!(chosen(&times, &choice(FrameMode::Head, 4, Some(8.0))), [0, 3, 6, 9]);
        assert_eq!(chosen(&times, &choice(FrameMode::Middle, 3, Some(5.0))), [44, 49, 54]);
    }

    #[test]
    fn the_earlier_of_two_equally_near_frames_is_taken() {
        // At 10 frames per second, 0.1 s lies halfway between the frames at 0.08 s and 0.12 s.
        assert_eq!(chosen(&at(25.0, 20), &choice(FrameMode::TimeFps, 5, Some(10.0))), [0, 2, 5, 7, 10]);
    }

    #[test]
    fn frames_of_a_variable_rate_are_found_by_time_and_not_by_number() {
        let times = [0.0, 0.03, 0.07, 0.5, 0.52, 0.98, 1.01];
        assert_eq!(chosen(&times, &choice(FrameMode::TimeFps, 3, Some(2.0))), [0, 3, 6]);
    }

    #[test]
    fn a_clip_that_does_not_start_at_zero_is_sampled_from_its_first_frame() {
        let times: Vec<f64> = at(25.0, 50).iter().map(|t| t + 10.0).collect();
        assert_eq!(chosen(&times, &choice(FrameMode::TimeFps, 2, Some(5.0))), [0, 5]);
    }

    #[test]
    fn random_places_depend_on_the_seed_and_always_fit() {
        let times = at(24.0, 60);
        let starts: Vec<usize> = (0..200)
            .map(|seed| chosen(&times, &FrameChoice { seed, ..choice(FrameMode::Random, 17, Some(12.0)) })[0])
            .collect();
        assert_eq!((starts.iter().min(), starts.iter().max()), (Some(&0), Some(&27)));
        let again = FrameChoice { seed: 7, ..choice(FrameMode::Random, 9, None) };
        assert_eq!(choose(&times, &again), choose(&times, &again));
        let all = FrameChoice { seed: 7, ..choice(FrameMode::Random, 60, None) };
        assert_eq!(chosen(&times, &all)[0], 0);
    }

    #[test]
    fn a_low_rate_repeats_frames_and_they_are_counted() {
        let times = choose(&at(12.0, 13), &choice(FrameMode::TimeFps, 25, Some(24.0))).unwrap();
        assert_eq!(repeated(&times), 12);
    }

    #[test]
    fn a_choice_by_number_takes_consecutive_frames_at_any_rate() {
        let times = at(25.0, 100);
        let taken = |mode, fps| chosen(&times, &choice(mode, 4, fps).by_number());
        assert_eq!(taken(FrameMode::Head, Some(8.0)), [0, 1, 2, 3]);
        assert_eq!(taken(FrameMode::TimeFps, Some(8.0)), [0, 1, 2, 3]);
        assert_eq!(taken(FrameMode::Middle, Some(8.0)), [48, 49, 50, 51]);
        // Without a rate, nothing changes.
        assert_eq!(taken(FrameMode::Linspace, None), [0, 33, 66, 99]);
        let apart = FrameChoice { stride: 10, ..choice(FrameMode::Head, 4, None) };
        assert_eq!(apart.by_number(), apart);
        assert_eq!(choice(FrameMode::TimeFps, 4, None).by_number().mode, FrameMode::TimeFps);
    }

    #[test]
    fn short_clips_are_refused_with_their_frames_and_seconds() {
        let times = at(25.0, 50);
        assert_eq!(choose(&[], &choice(FrameMode::Head, 1, None)), Err(NotEnough::Frames { need: 1, have: 0 }));
        assert_eq!(
            choose(&times, &FrameChoice { stride: 2, ..choice(FrameMode::Head, 26, None) }),
            Err(NotEnough::Frames { need: 51, have: 50 })
        );
        // 17 frames at 8 per second end at 2.0 s, within half a period of the last frame at 1.96 s; 18 do not.
        assert!(choose(&times, &choice(FrameMode::Head, 17, Some(8.0))).is_ok());
        assert!(matches!(choose(&times, &choice(FrameMode::Head, 18, Some(8.0))), Err(NotEnough::Seconds { .. })));
    }

    #[test]
    fn choices_that_fit_no_clip_are_refused() {
        let times = at(25.0, 50);
        let wrong = [
            choice(FrameMode::Head, 0, None),
            choice(FrameMode::TimeFps, 1, None),
            choice(FrameMode::Head, 1, Some(0.0)),
            choice(FrameMode::Head, 1, Some(f64::NAN)),
            FrameChoice { stride: 0, ..choice(FrameMode::Stride, 1, None) },
        ];
        for choice in wrong {
            assert!(matches!(choose(&times, &choice), Err(NotEnough::Invalid(_))), "{choice:?}");
        }
    }
}
