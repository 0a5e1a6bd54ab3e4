//! Patches: the tokens of a latent, frame by frame, row by row. The channels of a token are those of its latent pixels: first by channel,
//! then by row and column in the patch.

use tch::Tensor;

/// Returns the tokens `[B, N, C·p²]` of a latent `[B, T, C, h, w]`, whose sides are multiples of `patch`.
pub fn packed(latent: &Tensor, patch: i64) -> Tensor {
    let [batch, frames, channels, height, width]: [i64; 5] =
        latent.size().try_into().expect("a latent has 5 dimensions");
    let (rows, columns) = (height / patch, width / patch);
    latent
        .reshape([batch, frames, channels, rows, patch, columns, patch].as_slice())
        .permute([0, 1, 3, 5, 2, 4, 6].as_slice())
        .reshape([batch, frames * rows * columns, channels * patch * patch])
}

/// Returns the latent `[B, T, C, h, w]` of tokens `[B, N, C·p²]`, which have this many frames, rows and columns.
pub fn unpacked(tokens: &Tensor, [frames, rows, columns]: [i64; 3], patch: i64) -> Tensor {
    let [batch, _, width]: [i64; 3] = tokens.size().try_into().expect("tokens have 3 dimensions");
    let channels = width / (patch * patch);
    tokens
        .reshape([batch, frames, rows, columns, channels, patch, patch].as_slice())
        .permute([0, 1, 4, 2, 5, 3, 6].as_slice())
        .reshape([batch, frames, channels, rows * patch, columns * patch])
}
