//! Computes the tiles in which a VAE encodes or decodes a video that is too large for memory.

use super::VaeConfig;
use rundir::{ErrorCode, Failure};
use serde::{Deserialize, Serialize};

/// The size of tiles in pixels, and the fraction of a tile that overlaps its neighbour.
///
/// A picture is tiled if its height or its width exceeds that of a tile.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TileSize {
    /// The height of a tile in pixels.
    pub height: usize,
    /// The width of a tile in pixels.
    pub width: usize,
    /// The fraction of the height that overlaps, above 0 and below 1.
    pub overlap_height: f64,
    /// The fraction of the width that overlaps, above 0 and below 1.
    pub overlap_width: f64,
}

/// How one side is tiled: where tiles begin, their size, and how they are joined. Positions are in input units (pixels for the
/// encoder, latent pixels for the decoder), `blend` and `keep` in output units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TileSpan {
    /// The distance between the beginnings of tiles.
    pub stride: usize,
    /// The size of a tile.
    pub size: usize,
    /// The number of rows or columns that are blended with the previous tile.
    pub blend: usize,
    /// The number of rows or columns of a tile that are used.
    pub keep: usize,
}

/// How a picture is tiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tiles {
    /// The tiles along the height.
    pub rows: TileSpan,
    /// The tiles along the width.
    pub columns: TileSpan,
}

impl TileSize {
    /// Returns the tiling that diffusers uses by default for this VAE.
    pub fn of(config: &VaeConfig) -> Self {
        let (height, width) = (config.sample_height / 2, config.sample_width / 2);
        Self { height, width, overlap_height: 1.0 / 6.0, overlap_width: 1.0 / 5.0 }
    }

    /// Checks that tiles stay on the grid of latent pixels.
    ///
    /// # Errors
    /// The tiles leave the grid. The error suggests the nearest sizes that stay on it.
    pub fn check(&self, config: &VaeConfig) -> Result<(), Failure> {
        let factor = config.spatial_factor();
        let sides = [("height", self.height, self.overlap_height), ("width", self.width, self.overlap_width)];
        for (side, size, overlap) in sides {
            let what = || format!("cannot use tiles of {} x {} pixels", self.height, self.width);
            if !(overlap > 0.0 && overlap < 1.0) {
                let why = format!("the overlap along the {side} is {overlap}, expected above 0 and below 1");
                return Err(Failure::new(ErrorCode::InvalidArgument, what(), why, "use 0.25"));
            }
            if on_grid(size, overlap, factor) {
                continue;
            }
            // A multiple of the denominator of the overlap is near, so the search is short.
            let fits = |size: &usize| on_grid(*size, overlap, factor);
            let below = (1..size).rev().take(factor * 64).find(fits);
            let above = (size + 1..).take(factor * 64).find(fits);
            let near: Vec<String> = below.into_iter().chain(above).map(|size| size.to_string()).collect();
            let why = format!(
                "with an overlap of {overlap:.3}, tiles whose {side} is {size} begin between latent pixels, which are {factor} pixels wide"
            );
            let fix = match near.is_empty() {
                true => format!("use another overlap for the {side}, such as 0.25"),
                false => format!("use a {side} of {}", near.join(" or ")),
            };
            return Err(Failure::new(ErrorCode::InvalidArgument, what(), why, fix));
        }
        Ok(())
    }

    /// Returns the tiles of the encoder, if a picture of this size in pixels is tiled.
    pub fn encode(&self, config: &VaeConfig, height: usize, width: usize) -> Option<Tiles> {
        let side = |size, overlap| encode_span(size, overlap, config.spatial_factor());
        (height > self.height || width > self.width).then(|| Tiles {
            rows: side(self.height, self.overlap_height),
            columns: side(self.width, self.overlap_width),
        })
    }

    /// Returns the tiles of the decoder, if a latent of this size in latent pixels is tiled.
    pub fn decode(&self, config: &VaeConfig, height: usize, width: usize) -> Option<Tiles> {
        let factor = config.spatial_factor();
        let side = |size, overlap| decode_span(size, overlap, factor);
        (height > self.height / factor || width > self.width / factor).then(|| Tiles {
            rows: side(self.height, self.overlap_height),
            columns: side(self.width, self.overlap_width),
        })
    }
}

fn encode_span(size: usize, overlap: f64, factor: usize) -> TileSpan {
    // The products are rounded down, as diffusers does.
    let blend = ((size / factor) as f64 * overlap) as usize;
    TileSpan {
        stride: (size as f64 * (1.0 - overlap)) as usize,
        size,
        blend,
        keep: (size / factor).saturating_sub(blend),
    }
}

fn decode_span(size: usize, overlap: f64, factor: usize) -> TileSpan {
    let (latent, blend) = (size / factor, (size as f64 * overlap) as usize);
    TileSpan {
        stride: (latent as f64 * (1.0 - overlap)) as usize,
        size: latent,
        blend,
        keep: size.saturating_sub(blend),
    }
}

/// Returns whether tiles begin where the kept part of the previous tile ends, for encoding and for decoding.
fn on_grid(size: usize, overlap: f64, factor: usize) -> bool {
    let (encode, decode) = (encode_span(size, overlap, factor), decode_span(size, overlap, factor));
    size > 0
        && size.is_multiple_of(factor)
        && encode.stride > 0
        && decode.stride > 0
        && encode.stride == encode.keep * factor
        && decode.stride * factor == decode.keep
}
