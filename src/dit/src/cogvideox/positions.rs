//! Position embeddings: rotary tables and the sine-cosine embedding of the 2B model.

use crate::waves::angles;
use recipe::{Model, Rotary};
use tch::{Device, Kind, Tensor};

const THETA: f64 = 10_000.0;

/// Returns the rotary factors of every token as complex numbers, `[L, F/2]`; text tokens have the factor one.
///
/// The `F` channels of a head are split F/4 for time, 3F/8 for the row and 3F/8 for the column, and rotated in adjacent pairs.
/// Source: CogVideoX's 3-D rotary embedding (diffusers `get_3d_rotary_pos_embed`).
pub fn rotary(model: &Model) -> Tensor {
    let head = model.head_dim as i64;
    let angles = angles(&rotary_positions(model), [head / 4, head / 8 * 3, head / 8 * 3], THETA);
    rotary_from(&angles.cos(), &angles.sin(), model.text_tokens() as i64)
}

/// Returns the rotary positions of the frames, rows and columns of tokens.
///
/// At the base size they are plain indices. At another size, the base grid is resized to the aspect ratio of the grid
/// and cropped at its centre, unless `model.rotary` is `slice` or the model has patches of several frames (CogVideoX
/// 1.5).
/// Sources: diffusers `get_3d_rotary_pos_embed` before and after its pull request 10161; VideoX-Fun's copy of the
/// earlier version.
pub fn rotary_positions(model: &Model) -> [Vec<f64>; 3] {
    let (frames, rows, columns) = grid(model);
    let plain = |count: i64| (0..count).map(|i| i as f64).collect::<Vec<_>>();
    let [_, height, width] = model.base();
    let base = ((height / model.patch_size) as i64, (width / model.patch_size) as i64);
    if base == (rows, columns) || model.patch_size_t > 1 || model.cogvideox().rotary == Rotary::Slice {
        return [plain(frames), plain(rows), plain(columns)];
    }
    let Crop { top, left, height, width } = Crop::of((rows, columns), base);
    let spaced = |start: i64, len: i64, count: i64| {
        let (start, len, n) = (start as f64, len as f64, count as f64);
        let step = match model.cogvideox().rotary {
            // Only the end point is scaled, by (n - 1) / n.
            Rotary::Diffusers if count > 1 => ((start + len) * (n - 1.0) / n - start) / (n - 1.0),
            _ => len / n,
        };
        (0..count).map(|i| start + i as f64 * step).collect::<Vec<_>>()
    };
    [plain(frames), spaced(top, height, rows), spaced(left, width, columns)]
}

/// The part of the base grid that a grid of another size covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crop {
    /// The first row.
    pub top: i64,
    /// The first column.
    pub left: i64,
    /// The number of rows.
    pub height: i64,
    /// The number of columns.
    pub width: i64,
}

impl Crop {
    /// Returns the crop of a grid of `(rows, columns)` in a base grid. Halves are rounded to the even number, as in Python.
    ///
    /// Source: diffusers `get_resize_crop_region_for_grid`.
    pub fn of((rows, columns): (i64, i64), (base_rows, base_columns): (i64, i64)) -> Crop {
        let (h, w, base_h, base_w) = (rows as f64, columns as f64, base_rows as f64, base_columns as f64);
        let round = |x: f64| x.round_ties_even() as i64;
        let (height, width) = if h / w > base_h / base_w {
            (base_rows, round(base_h / h * w))
        } else {
            (round(base_w / w * h), base_columns)
        };
        let middle = |base: i64, len: i64| round((base - len) as f64 / 2.0);
        Crop { top: middle(base_rows, height), left: middle(base_columns, width), height, width }
    }
}

/// Returns rotary factors from tables of the video tokens' cosines and sines, `[T·P, F/2]` each.
pub fn rotary_from(cos: &Tensor, sin: &Tensor, text_len: i64) -> Tensor {
    let text = [text_len, cos.size()[1]];
    let real = Tensor::cat(&[Tensor::ones(text, (cos.kind(), Device::Cpu)), cos.shallow_clone()], 0);
    let imag = Tensor::cat(&[Tensor::zeros(text, (sin.kind(), Device::Cpu)), sin.shallow_clone()], 0);
    Tensor::complex(&real.to_kind(Kind::Float), &imag.to_kind(Kind::Float))
}

/// Returns the sine-cosine embedding of the 2B model, `[1, L, D]`: zero for text tokens, D/4 channels for time, then 3D/8 for
/// the column and 3D/8 for the row.
///
/// Source: diffusers `get_3d_sincos_pos_embed`, whose grid lists the column first.
pub fn sin_cos(model: &Model) -> Tensor {
    let own = model.cogvideox();
    let (frames, rows, columns) = grid(model);
    if own.resize_positions && grid(&model.at_base()) != (frames, rows, columns) {
        return resized(model);
    }
    let dim = model.dim() as i64;
    let axis = |len: i64, width: i64, scale: f64| {
        let exponent = Tensor::arange(width / 2, (Kind::Double, Device::Cpu)) / (width as f64 / 2.0);
        let frequency = (exponent * -THETA.ln()).exp();
        let angles = (Tensor::arange(len, (Kind::Double, Device::Cpu)) / scale).outer(&frequency);
        Tensor::cat(&[angles.sin(), angles.cos()], 1)
    };
    let spatial = dim / 4 * 3 / 2;
    let time = axis(frames, dim / 4, own.temporal_interpolation).view([frames, 1, 1, dim / 4]);
    let column = axis(columns, spatial, own.spatial_interpolation).view([1, 1, columns, spatial]);
    let row = axis(rows, spatial, own.spatial_interpolation).view([1, rows, 1, spatial]);
    let whole = |t: &Tensor, width: i64| t.expand([frames, rows, columns, width], false);
    let video = Tensor::cat(&[whole(&time, dim / 4), whole(&column, spatial), whole(&row, spatial)], -1)
        .reshape([frames * rows * columns, dim]);
    let text = Tensor::zeros([model.text_tokens() as i64, dim], (Kind::Double, Device::Cpu));
    Tensor::cat(&[text, video], 0).unsqueeze(0).to_kind(Kind::Float)
}

/// Returns the table of the base size, with rows and columns resized to those of the model. Frames are a prefix of the table's.
///
/// Source: VideoX-Fun `CogVideoXPatchEmbed.forward` (`videox_fun/models/cogvideox_transformer3d.py:231-242`): trilinear with as many
/// frames as the table has, so each frame is resized for itself.
fn resized(model: &Model) -> Tensor {
    let (frames, rows, columns) = grid(model);
    let dim = model.dim() as i64;
    let base = Model { latent_frames: model.latent_frames, ..model.at_base() };
    let (_, base_rows, base_columns) = grid(&base);
    let text = model.text_tokens() as i64;
    let table = sin_cos(&base.with_cogvideox(|keys| keys.resize_positions = false)).narrow(
        1,
        text,
        frames * base_rows * base_columns,
    );
    let table_tdrc = table.view([frames, base_rows, base_columns, dim]).permute([0, 3, 1, 2]);
    let video = table_tdrc.upsample_bilinear2d([rows, columns], false, None::<f64>, None::<f64>);
    let video = video.permute([0, 2, 3, 1]).reshape([1, frames * rows * columns, dim]);
    Tensor::cat(&[Tensor::zeros([1, text, dim], (Kind::Float, Device::Cpu)), video], 1)
}

/// Returns the frames, rows and columns of the token grid.
pub(super) fn grid(model: &Model) -> (i64, i64, i64) {
    (
        model.token_frames() as i64,
        (model.latent_height / model.patch_size) as i64,
        (model.latent_width / model.patch_size) as i64,
    )
}
