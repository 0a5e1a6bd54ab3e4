//! Measures the clips: motion, brightness, sharpness, black and frozen frames, black bars, and a hash of what they show.

use serde::{Deserialize, Serialize};
use video::{FrameChange, GreyFrames};

/// The share of black pixels, in percent, from which a frame is black.
const BLACK: f64 = 98.0;
/// The mean difference of luma, in percent, below which a frame repeats the one before: the default of ffmpeg's filter freezedetect.
const FROZEN: f64 = 0.1;
/// The luma up to which a row or a column of pixels belongs to a black bar.
const BAR: u8 = 20;
/// The number of frames of which pixels are looked at.
const SAMPLES: usize = 8;
/// The samples that the hash is made of.
const HASHED: [usize; 3] = [1, 4, 6];

/// The scores of a clip. A number is missing if a picture or a folder of frames has none.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// The mean score of ffmpeg's filter `vmafmotion` over all frames: Open-Sora's `score_vmafmotion`.
    pub motion: Option<f64>,
    /// Mean luma, 0 to 1.
    pub brightness: Option<f64>,
    /// The variance of the Laplacian of luma, at most 1280 pixels wide and high. A blurred picture has a small one.
    pub sharpness: Option<f64>,
    /// The share of black frames.
    pub black: Option<f64>,
    /// The share of frames that repeat the one before.
    pub frozen: Option<f64>,
    /// The share of the picture that black bars at its edges cover in all frames.
    pub letterbox: Option<f64>,
    /// A difference hash of 64 bits for each of three frames.
    pub hash: [u64; HASHED.len()],
    /// Pixels.
    pub width: usize,
    /// Pixels.
    pub height: usize,
    /// The number of frames.
    pub num_frames: usize,
    /// Mean frames per second; 0 for pictures and folders of frames.
    pub fps: f64,
}

/// Returns the frames of a clip whose pixels are looked at, evenly distributed and ascending.
pub(super) fn samples(frames: usize) -> Vec<usize> {
    let mut samples: Vec<usize> = (0..SAMPLES).map(|at| (2 * at + 1) * frames / (2 * SAMPLES)).collect();
    samples.dedup();
    samples
}

impl Scores {
    /// Computes the scores that depend on pixels and on the changes of frames.
    pub(super) fn new(changes: &[FrameChange], samples: &GreyFrames) -> Self {
        let share = |count: usize| count as f64 / changes.len() as f64;
        let of_changes = |score: f64| Some(score).filter(|_| !changes.is_empty());
        let count = |is: &dyn Fn(&FrameChange) -> bool| changes.iter().filter(|change| is(change)).count();
        let motion = changes.iter().map(|change| change.motion).sum::<f64>() / changes.len() as f64;
        // The first frame has no frame before it.
        let frozen = changes.iter().skip(1).filter(|change| change.difference < FROZEN).count();
        let mean = |of: &dyn Fn(&[u8]) -> f64| {
            let frames = &samples.frames;
            Some(frames.iter().map(|frame| of(frame)).sum::<f64>() / frames.len() as f64).filter(|_| !frames.is_empty())
        };
        let luma = |frame: &[u8]| frame.iter().map(|pixel| f64::from(*pixel)).sum::<f64>() / frame.len() as f64 / 255.0;
        Self {
            motion: of_changes(motion),
            brightness: mean(&luma),
            sharpness: mean(&|frame| laplacian_variance(frame, samples.width)),
            black: of_changes(share(count(&|change| change.black >= BLACK))),
            frozen: of_changes(frozen as f64 / (changes.len().max(2) - 1) as f64),
            letterbox: Some(bars(samples)).filter(|_| !samples.frames.is_empty()),
            hash: hash(samples),
            ..Self::default()
        }
    }
}

/// Returns the variance of the Laplacian, with the kernel of four neighbours, as OpenCV computes it by default.
fn laplacian_variance(frame: &[u8], width: usize) -> f64 {
    let rows: Vec<&[u8]> = frame.chunks_exact(width).collect();
    let (mut sum, mut squares, mut count) = (0_i64, 0_i64, 0_i64);
    for three in rows.windows(3) {
        for x in 1..width.saturating_sub(1) {
            let [above, here, below] = [three[0][x], three[1][x], three[2][x]].map(i64::from);
            let value = above + below + i64::from(three[1][x - 1]) + i64::from(three[1][x + 1]) - 4 * here;
            sum += value;
            squares += value * value;
            count += 1;
        }
    }
    if count == 0 {
        return 0.0;
    }
    let mean = sum as f64 / count as f64;
    squares as f64 / count as f64 - mean * mean
}

/// Returns the share of the picture that is black at its edges in all frames, except frames that are black altogether.
fn bars(samples: &GreyFrames) -> f64 {
    let GreyFrames { width, height, frames } = samples;
    let lit: Vec<&Vec<u8>> = frames.iter().filter(|frame| frame.iter().any(|pixel| *pixel > 2 * BAR)).collect();
    if lit.is_empty() {
        return 0.0;
    }
    // A few bright pixels in a bar are noise of the compression.
    let is_dark = |pixels: &mut dyn Iterator<Item = u8>, length: usize| {
        pixels.filter(|pixel| *pixel > BAR).count() * 50 <= length
    };
    let row =
        |y: usize| lit.iter().all(|frame| is_dark(&mut frame[y * width..(y + 1) * width].iter().copied(), *width));
    let column = |x: usize| lit.iter().all(|frame| is_dark(&mut (0..*height).map(|y| frame[y * width + x]), *height));
    let edge = |length: usize, is_bar: &dyn Fn(usize) -> bool| {
        let first = (0..length).take_while(|at| is_bar(*at)).count();
        let last = (first..length).rev().take_while(|at| is_bar(*at)).count();
        length - first - last
    };
    let (rows, columns) = (edge(*height, &row), edge(*width, &column));
    if rows == 0 || columns == 0 { 0.0 } else { 1.0 - (rows * columns) as f64 / (width * height) as f64 }
}

/// Returns a difference hash of three frames: each bit compares two neighbours in a picture of 9 × 8 means.
fn hash(samples: &GreyFrames) -> [u64; HASHED.len()] {
    let GreyFrames { width, height, frames } = samples;
    HASHED.map(|at| {
        let Some(frame) = frames.get(at.min(frames.len().saturating_sub(1))) else { return 0 };
        let mean = |x: usize, y: usize| {
            let span = |at: usize, of: usize, length: usize| {
                let begin = at * length / of;
                begin..((at + 1) * length / of).max(begin + 1)
            };
            let (columns, rows) = (span(x, 9, *width), span(y, 8, *height));
            let sum: u64 =
                rows.clone().flat_map(|y| columns.clone().map(move |x| u64::from(frame[y * width + x]))).sum();
            sum as f64 / (rows.len() * columns.len()) as f64
        };
        // Noise of the compression must not decide between equal neighbours.
        (0..64).fold(0, |hash, bit| hash << 1 | u64::from(mean(bit % 8, bit / 8) > mean(bit % 8 + 1, bit / 8) + 1.0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grey(width: usize, height: usize, pixel: impl Fn(usize, usize) -> u8) -> GreyFrames {
        let frame = (0..width * height).map(|at| pixel(at % width, at / width)).collect();
        GreyFrames { width, height, frames: vec![frame; 8] }
    }

    #[test]
    fn samples_are_evenly_distributed_and_short_clips_have_fewer() {
        assert_eq!(samples(80), [5, 15, 25, 35, 45, 55, 65, 75]);
        assert_eq!(samples(3), [0, 1, 2]);
        assert_eq!((samples(1), samples(2)), (vec![0], vec![0, 1]));
    }

    #[test]
    fn bars_are_measured_and_a_dark_picture_has_none() {
        let boxed = grey(80, 60, |x, y| if (10..50).contains(&y) && x >= 8 { 100 } else { 5 });
        let share = 1.0 - 40.0 * 72.0 / 4800.0;
        assert!((bars(&boxed) - share).abs() < 1e-9);
        assert_eq!((bars(&grey(80, 60, |_, _| 5)), bars(&grey(80, 60, |_, _| 200))), (0.0, 0.0));
    }

    #[test]
    fn a_blurred_picture_is_less_sharp() {
        let sharpness = |frames: &GreyFrames| Scores::new(&[], frames).sharpness.unwrap();
        let lines = grey(64, 64, |x, _| if x % 4 < 2 { 0 } else { 255 });
        let ramp = grey(64, 64, |x, _| (x * 4) as u8);
        assert!(sharpness(&lines) > 1000.0 && sharpness(&ramp) < 1.0);
        // The values of OpenCV's kernel: 0 1 0, 1 -4 1, 0 1 0.
        let point = grey(3, 3, |x, y| if (x, y) == (1, 1) { 10 } else { 0 });
        assert_eq!(laplacian_variance(&point.frames[0], 3), 0.0);
    }

    #[test]
    fn the_hash_survives_scaling_and_brightness_and_differs_for_another_picture() {
        let picture = |scale: usize, add: u8| {
            grey(90 * scale, 80 * scale, move |x, y| ((x / scale * 7 + (y / scale).pow(2)) % 150) as u8 + add)
        };
        let distance = |a: &GreyFrames, b: &GreyFrames| {
            hash(a).iter().zip(hash(b)).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>()
        };
        assert!(distance(&picture(1, 0), &picture(2, 30)) <= 3);
        assert!(distance(&picture(1, 0), &grey(90, 80, |x, y| ((x * 3 + y * 11) % 200) as u8)) > 20);
    }

    #[test]
    fn shares_are_those_of_all_frames() {
        let change = |difference, black| FrameChange { difference, black, motion: 4.0, ..FrameChange::default() };
        let changes = [change(0.0, 100.0), change(0.05, 99.0), change(3.0, 0.0), change(2.0, 0.0)];
        let scores = Scores::new(&changes, &GreyFrames::default());
        assert_eq!((scores.motion, scores.black, scores.brightness), (Some(4.0), Some(0.5), None));
        assert!((scores.frozen.unwrap() - 1.0 / 3.0).abs() < 1e-9);
    }
}
