//! The positions of tokens: a table of rows and columns that is added to tokens, and rotary factors of frames.

use tch::{Device, Kind, Tensor};

const THETA: f64 = 10_000.0;

/// Returns the table `[rows · columns, D]` that is added to the tokens of every frame, fp32: sines of the column, its cosines, then sines
/// and cosines of the row, each `D/4` wide.
///
/// * `sides_px` — the height and width of clips in pixels, one number each; the tensors decide the device.
/// * `base_side_px` — the side of the square whose positions have the distance 1, up to a factor for the number of tokens.
///
/// Source: Open-Sora v1.2.0 `PositionEmbedding2D`, whose grid lists the column first.
pub fn table(sides_px: [&Tensor; 2], [rows, columns]: [i64; 2], base_side_px: usize, dim: i64) -> Tensor {
    let device = sides_px[0].device();
    let [height, width] = sides_px.map(|side| side.to_kind(Kind::Double));
    let scale = (height * width).sqrt() / base_side_px as f64;
    let base = ((rows * columns) as f64).sqrt().round_ties_even();
    let quarter = dim / 4;
    let exponent = Tensor::arange(quarter, (Kind::Double, device)) / quarter as f64;
    let frequency = (exponent * -THETA.ln()).exp();
    let axis = |count: i64| {
        let position = Tensor::arange(count, (Kind::Double, device)) / &scale * (base / count as f64);
        let angles = position.outer(&frequency);
        Tensor::cat(&[angles.sin(), angles.cos()], 1)
    };
    let spread = |table: Tensor, shape: [i64; 3]| table.view(shape).expand([rows, columns, 2 * quarter], false);
    let (column, row) = (axis(columns), axis(rows));
    let both = [spread(column, [1, columns, 2 * quarter]), spread(row, [rows, 1, 2 * quarter])];
    Tensor::cat(&both, -1).reshape([rows * columns, dim]).to_kind(Kind::Float)
}

/// Returns the rotary factors of frames `0..frames` for heads of `head_dim` channels as complex numbers, `[frames, head_dim/2]`, which
/// rotate adjacent pairs: exact, and with angles in bf16.
///
/// Upstream casts the frequencies with the network, so that a network in bf16 has rounded frequencies and angles. The released weights
/// were trained so.
pub fn rotary(frames: i64, head_dim: i64) -> [Tensor; 2] {
    let pairs = Tensor::arange_start_step(0, head_dim, 2, (Kind::Double, Device::Cpu)) / head_dim as f64;
    let frequency = (pairs * -THETA.ln()).exp().to_kind(Kind::Float);
    let number = Tensor::arange(frames, (Kind::Float, Device::Cpu));
    [Kind::Float, Kind::BFloat16].map(|kind| {
        // A product of two numbers in bf16 is exact in fp32, so that it is rounded once.
        let [number, frequency] = [&number, &frequency].map(|x| x.to_kind(kind).to_kind(Kind::Float));
        let angles = number.outer(&frequency).to_kind(kind).to_kind(Kind::Float);
        Tensor::complex(&angles.cos(), &angles.sin())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_grow_with_the_tokens_and_shrink_with_the_pixels() {
        let side = |px: f64| Tensor::from_slice(&[px]);
        let first_sines = |px: f64, tokens: i64| {
            let table = table([&side(px), &side(px)], [tokens, tokens], 512, 8);
            table.double_value(&[1, 0]).asin()
        };
        // 512 pixels have 32 tokens with patches of 16 pixels, one apart. As many tokens of 1,024 pixels are half as far apart.
        assert!((first_sines(512.0, 32) - 1.0).abs() < 1e-6);
        assert!((first_sines(1024.0, 32) - 0.5).abs() < 1e-6);
        assert!((first_sines(256.0, 16) - 2.0f64.sin().asin()).abs() < 1e-6);
    }

    #[test]
    fn angles_of_bf16_have_eight_bits() {
        let [exact, rounded] = rotary(100, 8);
        let angle = |factors: &Tensor, pair: i64| factors.select(1, pair).angle();
        // The first frequency is 1: frame numbers are exact. The second one is 0.1, and 0.10009765625 in bf16.
        assert_eq!(angle(&exact, 0), angle(&rounded, 0));
        assert!((angle(&exact, 1).double_value(&[1]) - 0.1).abs() < 1e-7);
        assert!((angle(&rounded, 1).double_value(&[1]) - 0.100_097_656_25).abs() < 1e-7);
    }
}
