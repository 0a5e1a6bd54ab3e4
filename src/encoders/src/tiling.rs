//! Computes videos in overlapping tiles of pixels and of frames that are blended.

use crate::vae::tiles::{self, blend};
use failure::{ErrorCode, Failure};
use tch::{TchError, Tensor};
use weights::{TileSpan, Tiles};

/// The size of tiles along one axis and the distance between their beginnings, in pixels or frames of the video.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TileAxis {
    /// The size of a tile.
    pub size: usize,
    /// The distance between the beginnings of tiles.
    pub stride: usize,
}

/// How a VAE computes videos that are larger than a tile.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VideoTiling {
    /// Rows and columns, or `None` for whole frames.
    pub space: Option<[TileAxis; 2]>,
    /// Frames, or `None` for all frames at once. A tile has one frame more than this, and every tile but the first drops it.
    pub time: Option<TileAxis>,
}

impl TileAxis {
    /// Returns the tiles in the units of the input and of the result; `from` and `to` are pixels or frames for each of these units.
    fn span(self, from: usize, to: usize) -> TileSpan {
        TileSpan {
            stride: self.stride / from,
            size: self.size / from,
            blend: (self.size - self.stride) / to,
            keep: self.stride / to,
        }
    }
}

/// The pixels and the frames of the video for each pixel and frame of a tensor: 1 for the video itself.
#[derive(Debug, Clone, Copy)]
pub struct Unit {
    pub space: usize,
    pub time: usize,
}

/// The video itself.
pub const PIXELS: Unit = Unit { space: 1, time: 1 };

impl VideoTiling {
    /// Checks that tiles begin at latent pixels and latent frames.
    ///
    /// # Errors
    /// A size or a stride is not a multiple of that of a latent pixel or frame, or tiles do not cover the video.
    pub fn check(&self, latent: Unit) -> Result<(), Failure> {
        let space = self.space.into_iter().flatten().map(|axis| (axis, latent.space));
        for (axis, unit) in space.chain(self.time.map(|axis| (axis, latent.time))) {
            let TileAxis { size, stride } = axis;
            if stride == 0 || stride > size || size % unit != 0 || stride % unit != 0 {
                let what = format!("cannot use tiles of {size} with a distance of {stride}");
                let why = format!("both have to be multiples of {unit}, and the distance at most the size");
                return Err(Failure::new(
                    ErrorCode::InvalidArgument,
                    what,
                    why,
                    "use 256 and 192 pixels, 16 and 12 frames",
                ));
            }
        }
        Ok(())
    }

    /// Computes a sample `[C, T, H, W]` of unit `from`, with results of unit `to`, in tiles if it is larger than one.
    pub fn compute(
        &self,
        sample_cthw: &Tensor,
        from: Unit,
        to: Unit,
        compute: &impl Fn(&Tensor) -> Result<Tensor, TchError>,
    ) -> Result<Tensor, TchError> {
        let of_frames = |frames: &Tensor| self.in_space(frames, from, to, compute);
        let frames = sample_cthw.size()[1];
        let Some(span) = self.time.map(|axis| axis.span(from.time, to.time)).filter(|span| frames > span.size as i64)
        else {
            return of_frames(sample_cthw);
        };
        let (mut parts, mut before): (Vec<Tensor>, Option<Tensor>) = (Vec::new(), None);
        for first in (0..frames).step_by(span.stride) {
            let count = (span.size as i64 + 1).min(frames - first);
            // After the first tile, one frame is only there to be dropped.
            if first > 0 && count == 1 {
                break;
            }
            let mut tile = of_frames(&sample_cthw.f_narrow(1, first, count)?)?;
            let mut keep = span.keep as i64 + 1;
            if let Some(before) = &before {
                tile = tile.f_narrow(1, 1, tile.size()[1] - 1)?;
                keep -= 1;
                blend(before, &tile, 1, span.blend as i64)?;
            }
            parts.push(tile.f_narrow(1, 0, keep.min(tile.size()[1]))?);
            before = Some(tile);
        }
        drop(before);
        Tensor::f_cat(&parts, 1)
    }

    fn in_space(
        &self,
        sample_cthw: &Tensor,
        from: Unit,
        to: Unit,
        compute: &impl Fn(&Tensor) -> Result<Tensor, TchError>,
    ) -> Result<Tensor, TchError> {
        let spans = self.space.map(|axes| axes.map(|axis| axis.span(from.space, to.space)));
        let (height, width) = (sample_cthw.size()[2], sample_cthw.size()[3]);
        match spans.filter(|[rows, columns]| height > rows.size as i64 || width > columns.size as i64) {
            Some([rows, columns]) => tiles::compute(sample_cthw, &Tiles { rows, columns }, compute),
            None => compute(sample_cthw),
        }
    }
}
