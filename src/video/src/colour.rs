//! Explicit rules that convert stored colours to RGB, because ffmpeg and PyAV read untagged HD video with the matrix of
//! SD video.

use serde::{Deserialize, Serialize};

/// The identity of the decoding rules, which is part of cache keys. It changes when decoded pixels may change.
pub const COLOUR_RULE: &str =
    "video-1 matrix=tag|bt709>=720|bt601 range=tag|limited hdr=hable,1000nit rotate=yes sar=square scale=bicubic";

/// The number of stored lines from which untagged videos are read with BT.709.
const HD_LINES: usize = 720;

/// The colour tags of a video stream, as ffprobe names them. `None` is untagged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Colour {
    /// The matrix from RGB to YCbCr: `bt709`, `smpte170m`, `bt2020nc`…
    pub space: Option<String>,
    /// The colour primaries: `bt709`, `bt2020`…
    pub primaries: Option<String>,
    /// The transfer function: `bt709`, `smpte2084` (PQ), `arib-std-b67` (HLG)…
    pub transfer: Option<String>,
    /// The range of values: `tv` (limited) or `pc` (full).
    pub range: Option<String>,
}

/// A matrix from YCbCr to RGB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Matrix {
    /// SD video.
    Bt601,
    /// HD video.
    Bt709,
    /// UHD video, non-constant luminance.
    Bt2020,
    /// An obsolete standard of the United States, close to BT.601.
    Fcc,
    /// Old Japanese HD video.
    Smpte240m,
    /// The pixels are RGB or grey.
    Rgb,
}

/// A transfer function of high dynamic range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Hdr {
    /// SMPTE ST 2084, of HDR10 and Dolby Vision.
    Pq,
    /// Hybrid log-gamma, ARIB STD-B67.
    Hlg,
}

impl Colour {
    /// Returns the matrix that the tag names, or without a tag the one for the number of stored lines.
    ///
    /// # Errors
    /// The tag, if its matrix is not supported.
    pub fn matrix(&self, pixel_format: &str, stored_height: usize) -> Result<Matrix, String> {
        const WITHOUT_MATRIX: [&str; 8] = ["rgb", "bgr", "gbr", "0rgb", "argb", "abgr", "pal8", "gray"];
        if WITHOUT_MATRIX.iter().any(|start| pixel_format.starts_with(start)) || pixel_format == "monow" {
            return Ok(Matrix::Rgb);
        }
        match self.space.as_deref() {
            Some("bt709") => Ok(Matrix::Bt709),
            Some("smpte170m" | "bt470bg" | "bt601") => Ok(Matrix::Bt601),
            Some("bt2020nc" | "bt2020_ncl") => Ok(Matrix::Bt2020),
            Some("fcc") => Ok(Matrix::Fcc),
            Some("smpte240m") => Ok(Matrix::Smpte240m),
            None if stored_height >= HD_LINES => Ok(Matrix::Bt709),
            None => Ok(Matrix::Bt601),
            Some(other) => Err(other.to_owned()),
        }
    }

    /// Returns whether black is 0 and white is the largest value.
    pub fn is_full_range(&self, pixel_format: &str) -> bool {
        self.range.as_deref() == Some("pc") || pixel_format.starts_with("yuvj")
    }

    /// Returns the HDR transfer function; `None` for SDR.
    pub fn hdr(&self) -> Option<Hdr> {
        match self.transfer.as_deref() {
            Some("smpte2084") => Some(Hdr::Pq),
            Some("arib-std-b67") => Some(Hdr::Hlg),
            _ => None,
        }
    }
}

/// The flags of the scaler: the same result on every CPU, and chroma at full precision.
pub(crate) const SCALE_FLAGS: &str = "bicubic+accurate_rnd+full_chroma_int+full_chroma_inp+bitexact";

/// Returns the filters that scale to `width` × `height` and convert to RGB, planar if the source is YCbCr.
///
/// ffmpeg has vector code for planar RGB only. Scaling directly to packed RGB gives the same pixels in 2.4 times the CPU time.
pub(crate) fn filters(matrix: Matrix, full_range: bool, width: usize, height: usize) -> String {
    let matrix = match matrix {
        Matrix::Rgb => return format!("scale={width}:{height}:flags={SCALE_FLAGS},format=rgb24"),
        Matrix::Bt601 => "smpte170m",
        Matrix::Bt709 => "bt709",
        Matrix::Bt2020 => "bt2020",
        Matrix::Fcc => "fcc",
        Matrix::Smpte240m => "smpte240m",
    };
    let range = if full_range { "pc" } else { "tv" };
    format!(
        "scale={width}:{height}:flags={SCALE_FLAGS}:in_color_matrix={matrix}:in_range={range}:out_range=pc,format=gbrp"
    )
}

/// Returns the filters that scale, tone-map from high dynamic range to BT.709, and convert to planar RGB.
///
/// Linear light is relative to 100 cd/m²; a peak of 10 is 1000 cd/m², the reference display of both transfer functions. The
/// metadata of a file is not used, so that clips of one camera look alike.
pub(crate) fn tone_map_filters(hdr: Hdr, full_range: bool, width: usize, height: usize) -> String {
    let transfer = match hdr {
        Hdr::Pq => "smpte2084",
        Hdr::Hlg => "arib-std-b67",
    };
    let range = if full_range { "full" } else { "limited" };
    format!(
        "zscale=w={width}:h={height}:filter=bicubic:matrixin=2020_ncl:primariesin=2020:transferin={transfer}:rangein={range}\
         :transfer=linear:npl=100,format=gbrpf32le,zscale=primaries=709,tonemap=hable:desat=0:peak=10,\
         zscale=transfer=709:matrix=gbr:range=full:dither=none,format=gbrp"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_decide_and_the_stored_height_decides_without_them() {
        let tagged = |space: &str| Colour { space: Some(space.into()), ..Colour::default() };
        let untagged = Colour::default();
        assert_eq!(tagged("smpte170m").matrix("yuv420p", 1080), Ok(Matrix::Bt601));
        assert_eq!(tagged("bt709").matrix("yuv420p", 480), Ok(Matrix::Bt709));
        assert_eq!(untagged.matrix("yuv420p", 720), Ok(Matrix::Bt709));
        assert_eq!(untagged.matrix("yuv420p", 719), Ok(Matrix::Bt601));
        assert_eq!(untagged.matrix("gbrp", 1080), Ok(Matrix::Rgb));
        assert_eq!(tagged("ictcp").matrix("yuv420p10le", 1080), Err("ictcp".into()));
    }

    #[test]
    fn full_range_is_a_tag_or_a_pixel_format() {
        let full = Colour { range: Some("pc".into()), ..Colour::default() };
        assert!(full.is_full_range("yuv420p") && Colour::default().is_full_range("yuvj420p"));
        assert!(!Colour::default().is_full_range("yuv420p"));
    }
}
