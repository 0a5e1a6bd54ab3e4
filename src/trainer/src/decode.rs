//! `vidtui-train data decode`: decodes the latent of a clip of a store, or a latent of its condition, to a video, so that
//! users can check the encoding.

use crate::data::kind;
use camino::Utf8Path;
use dataset::KNOWN;
use dataset::show::find_clip;
use dataset::store::{Line, TensorLocation, damaged};
use encoders::VideoVae;
use rundir::{ErrorCode, Failure};
use tch::{Device, Kind, Tensor};
use video::{Frames, write_mp4};
use weights::Header;

/// The frame rate of a video whose clip has no known rate: that of CogVideoX.
const FPS: f64 = 8.0;

/// Decodes the mean of a clip's latent, or of the latent `tensor` of its condition, with the VAE in folder `vae`, and writes
/// an mp4.
///
/// # Errors
/// There is no such clip or latent, the VAE does not fit the latent, or the video cannot be written.
pub fn decode(
    data: &Utf8Path,
    (id, tensor): (&str, Option<&str>),
    out: &Utf8Path,
    vae: &Utf8Path,
    device: Device,
) -> Result<(), Failure> {
    let clip = find_clip(data, id)?;
    let place = place(&clip, tensor)?;
    let header = Header::read(&data.join(&place.shard))?;
    let info = header.tensor(&place.name)?;
    let shape: Vec<i64> = info.shape.iter().map(|d| *d as i64).collect();
    let bytes = header.read_tensor(&place.name)?;
    if place.xxh3.is_some_and(|sum| !sum.is_of(&bytes)) {
        return Err(damaged(&header.path, info.begin));
    }
    let stored = Tensor::from_data_size(&bytes, &shape, kind(info.dtype));
    let vae = VideoVae::open(vae, Kind::Float, device)?;
    // Moments have twice the channels of a latent.
    let is_drawn = stored.size()[1] == vae.latent_channels() as i64;
    let latent_tchw = if is_drawn { stored } else { stored.chunk(2, 1).swap_remove(0) };
    // [T, C, H, W] -> [1, C, T, H, W]
    let latent = latent_tchw.to_kind(Kind::Float).to_device(device).permute([1, 0, 2, 3]).unsqueeze(0);
    let video_bcfhw = taken(vae.decode(&latent)?, clip.times.len());
    write_mp4(out, &frames(&video_bcfhw, id)?, rate(&clip))
}

/// Returns the place of a clip's latent, or of the latent `tensor` of its condition.
fn place<'c>(clip: &'c Line, tensor: Option<&str>) -> Result<&'c TensorLocation, Failure> {
    let Some(tensor) = tensor else { return Ok(&clip.latent) };
    let is_mask = |role: &str| role.split('.').next() == Some(KNOWN);
    let found = clip.extra.get(tensor).filter(|_| !is_mask(tensor));
    found.ok_or_else(|| {
        let latents: Vec<&str> = clip.extra.keys().map(String::as_str).filter(|role| !is_mask(role)).collect();
        let why = match &latents[..] {
            [] => "the clip was encoded without a condition".to_owned(),
            latents => format!("the latents of its condition are {}", latents.join(", ")),
        };
        let fix = "omit --tensor for the latent of the clip, or name one of these latents";
        Failure::new(ErrorCode::UnknownName, format!("'{}' has no latent {tensor}", clip.id), why, fix)
    })
}

/// Returns the last `count` frames of a decoded video `[B, C, F, H, W]`; all frames if `count` is 0 (unknown).
///
/// For an even number of latent frames, the VAE decodes three frames more than were encoded. The extra frames come first.
fn taken(video_bcfhw: Tensor, count: usize) -> Tensor {
    let (frames, count) = (video_bcfhw.size()[2], count as i64);
    if count == 0 || count >= frames { video_bcfhw } else { video_bcfhw.narrow(2, frames - count, count) }
}

/// Converts a video `[1, 3, F, H, W]`, values about -1…1, to bytes.
fn frames(video_bcfhw: &Tensor, id: &str) -> Result<Frames, Failure> {
    let [_, 3, count, height, width] = video_bcfhw.size()[..] else {
        return Err(Failure::new(
            ErrorCode::TensorMismatch,
            format!("cannot write the video of '{id}'"),
            format!("the VAE made {:?}, expected [1, 3, frames, rows, columns]", video_bcfhw.size()),
            "use the VAE that encoded the data set",
        ));
    };
    let bytes = ((video_bcfhw / 2.0 + 0.5).clamp(0.0, 1.0) * 255.0).round().to_kind(Kind::Uint8);
    let bytes = bytes.get(0).permute([1, 2, 3, 0]).contiguous().to_device(Device::Cpu);
    let mut rgb = vec![0; (count * height * width * 3) as usize];
    let len = rgb.len();
    bytes.copy_data_u8(&mut rgb, len);
    Ok(Frames { width: width as usize, height: height as usize, count: count as usize, rgb })
}

/// Returns the frames per second of a clip.
fn rate(clip: &Line) -> f64 {
    match clip.times[..] {
        [first, .., last] if last > first => (clip.times.len() - 1) as f64 / (last - first),
        _ => FPS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clip_of_13_frames_is_shown_with_13_frames_though_its_latent_decodes_to_16() {
        let video = Tensor::arange(16, (Kind::Float, Device::Cpu)).view([1, 1, 16, 1, 1]);
        let numbers = |count| Vec::<f64>::try_from(taken(video.shallow_clone(), count).flatten(0, -1)).unwrap();
        assert_eq!((numbers(13).len(), numbers(13)[0]), (13, 3.0));
        assert_eq!([0, 16, 17].map(|count| numbers(count).len()), [16; 3]);
    }

    #[test]
    fn values_of_a_video_become_bytes_frame_by_frame() {
        // Two frames of one pixel each.
        let video = Tensor::from_slice(&[-1.0f32, 1.0, 0.0, 0.5, -2.0, 2.0]).view([1, 3, 2, 1, 1]);
        let frames = frames(&video, "a").unwrap();
        assert_eq!((frames.count, frames.height, frames.width), (2, 1, 1));
        assert_eq!(frames.rgb, [0, 128, 0, 255, 191, 255]);
        let failure = super::frames(&video.view([1, 1, 6, 1, 1]), "a").unwrap_err();
        assert_eq!(failure.code, ErrorCode::TensorMismatch);
    }
}
