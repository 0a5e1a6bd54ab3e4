//! Resizes pictures with Pillow's Lanczos filter, bit for bit, because image-to-video pipelines resize their picture with
//! it.
//!
//! Source: Pillow, `src/libImaging/Resample.c`: coefficients in fixed point, columns first, then rows, both rounded to 8 bits.

use std::f64::consts::PI;

use crate::frames::Frames;

/// Bits after the point of a coefficient.
const PRECISION: u32 = 32 - 8 - 2;

/// Half the width of the filter, in pixels of the smaller picture.
const SUPPORT: f64 = 3.0;

/// Resizes frames to `width` × `height`; the aspect ratio is not kept. Gives the bytes of Pillow's `resize(…, LANCZOS)`.
///
/// # Panics
/// If a side is 0.
pub fn lanczos(frames: &Frames, width: usize, height: usize) -> Frames {
    assert!(width > 0 && height > 0, "a picture has pixels");
    let mut rgb = Vec::with_capacity(width * height * 3 * frames.count);
    let across = (width != frames.width).then(|| Taps::all(frames.width, width));
    let down = (height != frames.height).then(|| Taps::all(frames.height, height));
    for index in 0..frames.count {
        let frame = frames.frame(index);
        let wide = across.as_ref().map(|taps| columns(frame, frames.width, taps));
        let wide = wide.as_deref().unwrap_or(frame);
        match &down {
            Some(taps) => rows(wide, width, taps, &mut rgb),
            None => rgb.extend_from_slice(wide),
        }
    }
    Frames { width, height, count: frames.count, rgb }
}

/// The weights of the old pixels in one new pixel.
struct Taps {
    first: usize,
    weights: Vec<i64>,
}

impl Taps {
    fn all(from: usize, to: usize) -> Vec<Self> {
        let scale = from as f64 / to as f64;
        let filter_scale = scale.max(1.0);
        let support = SUPPORT * filter_scale;
        (0..to)
            .map(|i| {
                let centre = (i as f64 + 0.5) * scale;
                let first = ((centre - support + 0.5).max(0.0)) as usize;
                let last = ((centre + support + 0.5) as usize).min(from);
                let weight = |x: usize| kernel((x as f64 - centre + 0.5) / filter_scale);
                let weights: Vec<f64> = (first..last).map(weight).collect();
                let sum: f64 = weights.iter().sum();
                let fixed = |weight: &f64| (weight / sum * f64::from(1_u32 << PRECISION)).round() as i64;
                Self { first, weights: weights.iter().map(fixed).collect() }
            })
            .collect()
    }

    /// Returns the weighted sum of a component of pixels that are `stride` bytes apart, rounded and clamped.
    fn apply(&self, bytes: &[u8], at: usize, stride: usize) -> u8 {
        let start = at + self.first * stride;
        let values = bytes[start..].iter().step_by(stride);
        let sum: i64 = self.weights.iter().zip(values).map(|(weight, &value)| weight * i64::from(value)).sum();
        ((sum + (1 << (PRECISION - 1))) >> PRECISION).clamp(0, 255) as u8
    }
}

fn kernel(x: f64) -> f64 {
    let sinc = |x: f64| if x == 0.0 { 1.0 } else { (x * PI).sin() / (x * PI) };
    if (-SUPPORT..SUPPORT).contains(&x) { sinc(x) * sinc(x / SUPPORT) } else { 0.0 }
}

fn columns(frame: &[u8], width: usize, taps: &[Taps]) -> Vec<u8> {
    let lines = frame.chunks_exact(width * 3);
    lines.flat_map(|line| taps.iter().flat_map(move |tap| [0, 1, 2].map(|c| tap.apply(line, c, 3)))).collect()
}

fn rows(frame: &[u8], width: usize, taps: &[Taps], rgb: &mut Vec<u8>) {
    let stride = width * 3;
    for tap in taps {
        rgb.extend((0..stride).map(|at| tap.apply(frame, at, stride)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_colour_stays_that_colour() {
        let frames = Frames { width: 7, height: 5, count: 1, rgb: [13, 200, 255].repeat(35) };
        for (width, height) in [(3, 2), (20, 11), (7, 9), (1, 1)] {
            let out = lanczos(&frames, width, height);
            assert_eq!(out.rgb, [13, 200, 255].repeat(width * height));
        }
        assert_eq!(lanczos(&frames, 7, 5), frames);
    }
}
