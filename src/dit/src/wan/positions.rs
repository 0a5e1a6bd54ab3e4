//! Wan's rotary positions: plain indices of frames, rows and columns.

use tch::{Device, Kind, Tensor};

const THETA: f64 = 10_000.0;

/// Returns the rotary factors of every token as complex numbers, `[L, F/2]`, for frames, rows and columns of tokens.
///
/// Of the `F` channels of a head, rows and columns have `2 · (F div 6)` each and frames the others. Neighbouring channels are a pair. Angles
/// are computed in f64.
///
/// Source: the original `rope_params` and `rope_apply`.
pub fn rotary(head_dim: i64, [frames, rows, columns]: [i64; 3]) -> Tensor {
    let side = head_dim / 6 * 2;
    let axis = |count: i64, width: i64, shape: [i64; 3]| {
        let exponent = Tensor::arange_start_step(0, width, 2, (Kind::Double, Device::Cpu)) / width as f64;
        let angles = Tensor::arange(count, (Kind::Double, Device::Cpu)).outer(&(exponent * -THETA.ln()).exp());
        let [t, h, w] = shape;
        angles.view([t, h, w, width / 2]).expand([frames, rows, columns, width / 2], false)
    };
    let angles = Tensor::cat(
        &[
            axis(frames, head_dim - 2 * side, [frames, 1, 1]),
            axis(rows, side, [1, rows, 1]),
            axis(columns, side, [1, 1, columns]),
        ],
        -1,
    )
    .reshape([frames * rows * columns, head_dim / 2]);
    Tensor::complex(&angles.cos().to_kind(Kind::Float), &angles.sin().to_kind(Kind::Float))
}
