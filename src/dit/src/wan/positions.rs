//! Wan's rotary positions: plain indices of frames, rows and columns.

use crate::waves::{angles, factors, indices};
use tch::Tensor;

const THETA: f64 = 10_000.0;

/// Returns the rotary factors of every token as complex numbers, `[L, F/2]`, for frames, rows and columns of tokens.
///
/// A head has `F` channels: `2 · (F div 6)` for rows, as many for columns, and the rest for frames. Two neighbouring channels rotate as a
/// pair. Angles are computed in f64.
///
/// Source: the original `rope_params` and `rope_apply`.
pub fn rotary(head_dim: i64, grid: [i64; 3]) -> Tensor {
    let side = head_dim / 6 * 2;
    factors(&angles(&indices(grid), [head_dim - 2 * side, side, side], THETA))
}
