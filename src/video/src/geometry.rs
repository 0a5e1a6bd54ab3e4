//! Computes how a frame is scaled and cropped to the size of a picture.

use serde::{Deserialize, Serialize};

use crate::choose::unit;

/// The way in which a frame of another shape is fitted to the picture.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Crop {
    /// Scaled until it covers the picture; equal parts are cut off on both sides.
    #[default]
    Center,
    /// Scaled until it covers the picture; the seed chooses the parts that are cut off.
    Random,
    /// Stretched to the picture, without keeping the aspect ratio.
    #[serde(alias = "stretch")]
    None,
    /// Scaled until it fits into the picture, with black bars.
    Pad,
}

impl Crop {
    /// All ways.
    pub const ALL: [Self; 4] = [Self::Center, Self::Random, Self::None, Self::Pad];

    /// Returns the name in recipes and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Center => "center",
            Self::Random => "random",
            Self::None => "none",
            Self::Pad => "pad",
        }
    }
}

/// The picture that is made of each frame.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Picture {
    /// Width in pixels.
    pub width: usize,
    /// Height in pixels.
    pub height: usize,
    /// How a frame of another shape is made to fit.
    pub crop: Crop,
    /// The seed of [`Crop::Random`]. Use a different seed for each clip.
    #[serde(default)]
    pub seed: u64,
}

impl Picture {
    /// Returns a picture that is cut from the middle.
    pub fn new(width: usize, height: usize) -> Self {
        Self { width, height, crop: Crop::Center, seed: 0 }
    }
}

/// The size to which a frame is scaled, and the place of the picture in the frame (or of the frame in the picture).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fit {
    /// The size that the frame is scaled to.
    pub scaled: (usize, usize),
    /// The first column and row of the picture in the scaled frame, or of the scaled frame in the picture.
    pub at: (usize, usize),
    /// Whether the frame is placed in the picture, with black bars.
    pub pad: bool,
}

impl Fit {
    /// Fits frames of `width` × `height` square pixels.
    pub fn new(width: usize, height: usize, picture: &Picture) -> Self {
        let (w, h) = (picture.width as f64, picture.height as f64);
        let (across, down) = (w / width as f64, h / height as f64);
        let size = |scale: f64| ((width as f64 * scale).round() as usize, (height as f64 * scale).round() as usize);
        let cover = {
            let (sw, sh) = size(across.max(down));
            (sw.max(picture.width), sh.max(picture.height))
        };
        let over = (cover.0 - picture.width, cover.1 - picture.height);
        match picture.crop {
            Crop::Center => Self { scaled: cover, at: (over.0 / 2, over.1 / 2), pad: false },
            Crop::Random => {
                let place = |over: usize, seed: u64| ((unit(seed) * (over + 1) as f64) as usize).min(over);
                let at = (place(over.0, picture.seed), place(over.1, !picture.seed));
                Self { scaled: cover, at, pad: false }
            }
            Crop::None => Self { scaled: (picture.width, picture.height), at: (0, 0), pad: false },
            Crop::Pad => {
                let (sw, sh) = size(across.min(down));
                let scaled = (sw.clamp(1, picture.width), sh.clamp(1, picture.height));
                let at = ((picture.width - scaled.0) / 2, (picture.height - scaled.1) / 2);
                Self { scaled, at, pad: true }
            }
        }
    }

    /// Returns the filter after scaling, if one is needed.
    pub fn filter(&self, picture: &Picture) -> Option<String> {
        let Picture { width, height, .. } = picture;
        let ((x, y), name) = (self.at, if self.pad { "pad" } else { "crop" });
        (self.scaled != (*width, *height)).then(|| format!("{name}={width}:{height}:{x}:{y}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(size: (usize, usize), crop: Crop, seed: u64) -> Fit {
        Fit::new(size.0, size.1, &Picture { width: 72, height: 48, crop, seed })
    }

    #[test]
    fn a_wide_video_loses_its_sides_and_a_tall_one_its_top_and_bottom() {
        assert_eq!(fit((192, 96), Crop::Center, 0), Fit { scaled: (96, 48), at: (12, 0), pad: false });
        assert_eq!(fit((72, 96), Crop::Center, 0), Fit { scaled: (72, 96), at: (0, 24), pad: false });
        assert_eq!(fit((720, 480), Crop::Center, 0).filter(&Picture::new(72, 48)), None);
    }

    #[test]
    fn the_picture_is_always_covered() {
        for (width, height) in [(1, 1), (719, 481), (853, 480), (1081, 1919), (73, 48), (71, 47)] {
            for seed in 0..20 {
                let fit = fit((width, height), Crop::Random, seed);
                assert!(fit.at.0 + 72 <= fit.scaled.0 && fit.at.1 + 48 <= fit.scaled.1, "{width} × {height}: {fit:?}");
            }
        }
    }

    #[test]
    fn bars_are_put_where_the_shape_differs() {
        assert_eq!(fit((192, 96), Crop::Pad, 0), Fit { scaled: (72, 36), at: (0, 6), pad: true });
        assert_eq!(fit((1, 1000), Crop::Pad, 0).scaled, (1, 48));
        assert_eq!(fit((5, 7), Crop::None, 0), Fit { scaled: (72, 48), at: (0, 0), pad: false });
    }

    #[test]
    fn names_are_those_of_files() {
        for crop in Crop::ALL {
            assert_eq!(serde_json::to_value(crop).unwrap(), crop.name());
        }
        assert_eq!(serde_json::from_str::<Crop>("\"stretch\"").unwrap(), Crop::None);
    }
}
