//! Checks the shapes of videos and latents.

use rundir::{ErrorCode, Failure};

/// Checks the shape of a video `[B, C, F, H, W]` to encode. `channels` is the VAE's number of channels, and height and width have to be
/// multiples of `factor`.
///
/// # Errors
/// The video has another number of channels or of dimensions, or is empty; or its height or its width is not a multiple of `factor`.
pub fn check_video(shape: &[i64], channels: usize, factor: usize) -> Result<(), Failure> {
    let what = || format!("cannot encode a video of shape {shape:?}");
    let bad = |why: String, fix: &str| Err(Failure::new(ErrorCode::InvalidArgument, what(), why, fix));
    let (wanted, factor) = (channels as i64, factor as i64);
    match *shape {
        [_, channels, _, _, _] if channels != wanted => {
            bad(format!("it has {channels} channels, expected {wanted}"), "give RGB")
        }
        [batch, _, frames, height, width] if batch.min(frames).min(height).min(width) < 1 => {
            bad("it is empty".into(), "give at least one frame")
        }
        [_, _, _, height, width] if height % factor != 0 || width % factor != 0 => bad(
            format!("{height} x {width} pixels are not multiples of {factor}"),
            &format!("use a height and a width that are multiples of {factor}"),
        ),
        [_, _, _, _, _] => Ok(()),
        _ => bad("it has to be [B, C, F, H, W]".into(), "give five dimensions"),
    }
}

/// Checks the shape of a latent `[B, C, T, h, w]` to decode. `channels` is the VAE's number of latent channels.
///
/// # Errors
/// The latent has another number of channels or of dimensions, or is empty.
pub fn check_latent(shape: &[i64], channels: usize) -> Result<(), Failure> {
    let wanted = channels as i64;
    let why = match *shape {
        [batch, channels, frames, height, width] if channels == wanted => {
            if batch.min(frames).min(height).min(width) > 0 {
                return Ok(());
            }
            "it is empty".into()
        }
        [_, channels, _, _, _] => format!("it has {channels} channels, and the VAE has {wanted}"),
        _ => "it has to be [B, C, T, h, w]".into(),
    };
    let fix = "use the VAE that belongs to the latents";
    Err(Failure::new(ErrorCode::TensorMismatch, format!("cannot decode a latent of shape {shape:?}"), why, fix))
}
