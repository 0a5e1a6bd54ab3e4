//! Resizes pictures with Pillow's filters, bit for bit, because image-to-video pipelines resize their pictures with them.
//!
//! Source: Pillow, `src/libImaging/Resample.c`: coefficients in fixed point, columns first, then rows, both rounded to 8 bits.

use std::f64::consts::PI;

use crate::frames::Frames;

/// Bits after the point of a coefficient.
const PRECISION: u32 = 32 - 8 - 2;

/// A filter of Pillow's `Image.resize`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filter {
    /// `LANCZOS`, of diffusers' pipelines.
    Lanczos,
    /// `BICUBIC`, of VideoX-Fun's pipelines.
    Bicubic,
}

impl Filter {
    /// Half the width of the filter, in pixels of the smaller picture.
    fn support(self) -> f64 {
        match self {
            Filter::Lanczos => 3.0,
            Filter::Bicubic => 2.0,
        }
    }

    fn kernel(self, x: f64) -> f64 {
        if !(-self.support()..self.support()).contains(&x) {
            return 0.0;
        }
        match self {
            Filter::Lanczos => {
                let sinc = |x: f64| if x == 0.0 { 1.0 } else { (x * PI).sin() / (x * PI) };
                sinc(x) * sinc(x / self.support())
            }
            // Catmull-Rom: Keys' cubic with a = -1/2.
            Filter::Bicubic => match x.abs() {
                x if x < 1.0 => (1.5 * x - 2.5) * x * x + 1.0,
                x => ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0,
            },
        }
    }
}

/// Resizes frames to `width` × `height`; the aspect ratio is not kept. Gives the bytes of Pillow's `resize`.
///
/// # Panics
/// If a side is 0.
pub fn resize(frames: &Frames, width: usize, height: usize, filter: Filter) -> Frames {
    assert!(width > 0 && height > 0, "a picture has pixels");
    let mut rgb = Vec::with_capacity(width * height * 3 * frames.count);
    let across = (width != frames.width).then(|| Taps::all(frames.width, width, filter));
    let down = (height != frames.height).then(|| Taps::all(frames.height, height, filter));
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
    fn all(from: usize, to: usize, filter: Filter) -> Vec<Self> {
        let scale = from as f64 / to as f64;
        let filter_scale = scale.max(1.0);
        let support = filter.support() * filter_scale;
        (0..to)
            .map(|i| {
                let centre = (i as f64 + 0.5) * scale;
                let first = ((centre - support + 0.5).max(0.0)) as usize;
                let last = ((centre + support + 0.5) as usize).min(from);
                let weight = |x: usize| filter.kernel((x as f64 - centre + 0.5) / filter_scale);
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
        for filter in [Filter::Lanczos, Filter::Bicubic] {
            for (width, height) in [(3, 2), (20, 11), (7, 9), (1, 1)] {
                let out = resize(&frames, width, height, filter);
                assert_eq!(out.rgb, [13, 200, 255].repeat(width * height));
            }
            assert_eq!(resize(&frames, 7, 5, filter), frames);
        }
    }

    /// The bytes of Pillow 11.3 for the picture of the test, by width and height. Pillow 13 resizes the rows first if that is cheaper, which
    /// rounds a few values differently.
    const PILLOW: [(usize, usize, &[u8]); 2] = [
        (
            3,
            6,
            &[
                7, 59, 112, 66, 124, 186, 137, 198, 251, 51, 115, 177, 134, 157, 131, 119, 112, 165, 127, 171, 204,
                182, 167, 83, 99, 48, 102, 207, 154, 66, 93, 77, 124, 96, 150, 210, 124, 116, 93, 103, 131, 164, 170,
                155, 147, 27, 87, 158, 136, 204, 188, 236, 130, 61,
            ],
        ),
        (
            7,
            2,
            &[
                61, 115, 136, 85, 119, 166, 109, 139, 163, 114, 167, 103, 151, 107, 136, 125, 108, 175, 75, 145, 197,
                99, 159, 88, 137, 116, 120, 143, 100, 156, 93, 146, 168, 130, 169, 116, 160, 143, 124, 171, 101, 161,
            ],
        ),
    ];

    #[test]
    fn the_bicubic_filter_gives_pillows_bytes() {
        let value = |i: usize| {
            let (y, x, c) = (i / 15, i / 3 % 5, i % 3);
            ((x * 37 + y * 91 + c * 53 + x * y * 7) % 256) as u8
        };
        let frames = Frames { width: 5, height: 4, count: 1, rgb: (0..60).map(value).collect() };
        for (width, height, wanted) in PILLOW {
            assert_eq!(resize(&frames, width, height, Filter::Bicubic).rgb, wanted, "{width} × {height}");
        }
    }
}
