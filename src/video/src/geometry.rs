//! Computes how a frame is scaled and cropped to the size of a picture.

use recipe::CropMode;
use serde::{Deserialize, Serialize};

use crate::choose::unit;

/// The picture to make from each frame.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Picture {
    /// Width in pixels.
    pub width: usize,
    /// Height in pixels.
    pub height: usize,
    /// How a frame of another aspect ratio is cropped or stretched.
    pub crop: CropMode,
    /// The seed of [`CropMode::Random`]. Use a different seed for each clip.
    #[serde(default)]
    pub seed: u64,
}

impl Picture {
    /// Returns a picture that is cut from the middle.
    pub fn new(width: usize, height: usize) -> Self {
        Self { width, height, crop: CropMode::Center, seed: 0 }
    }
}

/// The size to which a frame is scaled, and the place of the picture in the scaled frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fit {
    /// The size that the frame is scaled to.
    pub scaled: (usize, usize),
    /// The first column and row of the picture in the scaled frame.
    pub at: (usize, usize),
}

impl Fit {
    /// Fits frames of `width` × `height` square pixels.
    pub fn new(width: usize, height: usize, picture: &Picture) -> Self {
        let (w, h) = (picture.width as f64, picture.height as f64);
        let (across, down) = (w / width as f64, h / height as f64);
        let scale = across.max(down);
        let size = |from: usize, least: usize| ((from as f64 * scale).round() as usize).max(least);
        let cover = (size(width, picture.width), size(height, picture.height));
        let over = (cover.0 - picture.width, cover.1 - picture.height);
        match picture.crop {
            CropMode::Center => Self { scaled: cover, at: (over.0 / 2, over.1 / 2) },
            CropMode::Random => {
                let place = |over: usize, seed: u64| ((unit(seed) * (over + 1) as f64) as usize).min(over);
                let at = (place(over.0, picture.seed), place(over.1, !picture.seed));
                Self { scaled: cover, at }
            }
            CropMode::None => Self { scaled: (picture.width, picture.height), at: (0, 0) },
        }
    }

    /// Returns the ffmpeg filter that crops the scaled frame, if cropping is needed.
    pub fn filter(&self, picture: &Picture) -> Option<String> {
        let Picture { width, height, .. } = picture;
        let (x, y) = self.at;
        (self.scaled != (*width, *height)).then(|| format!("crop={width}:{height}:{x}:{y}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(size: (usize, usize), crop: CropMode, seed: u64) -> Fit {
        Fit::new(size.0, size.1, &Picture { width: 72, height: 48, crop, seed })
    }

    #[test]
    fn a_wide_video_loses_its_sides_and_a_tall_one_its_top_and_bottom() {
        assert_eq!(fit((192, 96), CropMode::Center, 0), Fit { scaled: (96, 48), at: (12, 0) });
        assert_eq!(fit((72, 96), CropMode::Center, 0), Fit { scaled: (72, 96), at: (0, 24) });
        assert_eq!(fit((720, 480), CropMode::Center, 0).filter(&Picture::new(72, 48)), None);
    }

    #[test]
    fn the_picture_is_always_covered() {
        for (width, height) in [(1, 1), (719, 481), (853, 480), (1081, 1919), (73, 48), (71, 47)] {
            for seed in 0..20 {
                let fit = fit((width, height), CropMode::Random, seed);
                assert!(fit.at.0 + 72 <= fit.scaled.0 && fit.at.1 + 48 <= fit.scaled.1, "{width} × {height}: {fit:?}");
            }
        }
    }

    #[test]
    fn a_stretched_frame_has_the_size_of_the_picture() {
        assert_eq!(fit((5, 7), CropMode::None, 0), Fit { scaled: (72, 48), at: (0, 0) });
    }
}
