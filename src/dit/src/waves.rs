//! Sines and cosines: the embedding of a number, and the angles of rotary embeddings.

use tch::{Device, Kind, Tensor};

/// Returns the sinusoidal embedding `[B, width]` of timesteps `[B]`, fp32, cosines first.
///
/// Source: reference `dit.py` and diffusers `Timesteps(flip_sin_to_cos=True, downscale_freq_shift=0)`.
pub fn sinusoid(timestep: &Tensor, width: i64) -> Tensor {
    let half = width / 2;
    let exponent = Tensor::arange(half, (Kind::Float, timestep.device())) * (-10_000f64.ln()) / half as f64;
    let angles = timestep.to_kind(Kind::Float).outer(&exponent.exp());
    Tensor::cat(&[angles.cos(), angles.sin()], -1)
}

/// Returns the angles of the tokens of a video, `[L, F/2]`, fp64.
///
/// Frames, rows and columns rotate their own pairs of the `F` channels of a head: pair `j` of an axis with `n` channels turns by
/// `position · theta^(-2j / n)`.
///
/// * `positions` — the positions of frames, rows and columns.
/// * `channels` — the channels of each axis.
pub(crate) fn angles(positions: &[Vec<f64>; 3], channels: [i64; 3], theta: f64) -> Tensor {
    let grid = positions.each_ref().map(|positions| positions.len() as i64);
    let of_axis = |axis: usize| {
        let width = channels[axis];
        let exponent = Tensor::arange_start_step(0, width, 2, (Kind::Double, Device::Cpu)) / width as f64;
        let frequencies = (exponent * -theta.ln()).exp();
        let mut shape = [1, 1, 1, width / 2];
        shape[axis] = grid[axis];
        let angles = Tensor::from_slice(&positions[axis]).outer(&frequencies).view(shape);
        angles.expand([grid[0], grid[1], grid[2], width / 2], false)
    };
    Tensor::cat(&[of_axis(0), of_axis(1), of_axis(2)], -1).flatten(0, 2)
}

/// Returns the positions of a grid: plain indices.
pub(crate) fn indices(grid: [i64; 3]) -> [Vec<f64>; 3] {
    grid.map(|len| (0..len).map(|index| index as f64).collect())
}

/// Returns the rotary factors of angles as complex numbers.
pub(crate) fn factors(angles: &Tensor) -> Tensor {
    Tensor::complex(&angles.cos().to_kind(Kind::Float), &angles.sin().to_kind(Kind::Float))
}
