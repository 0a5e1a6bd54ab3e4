//! Converts between latents and pictures: encodes the first image of a video, and decodes the frames of a sample.

// C channels, F frames, T latent frames, H and W pixels, h and w latent pixels.

use crate::seeds::{self, Purpose};
use crate::step::compute_kind;
use camino::Utf8Path;
use dataset::{IMAGE, KNOWN, MASKED};
use dit::family::Conditions;
use dit::wan::FIRST_FRAME;
use dit::wan::conditions::{MASK, clip, mask};
use encoders::VideoVae;
use recipe::{ConditionKind, Encoders, MaskedVideo, Model, Recipe, SampleSpec};
use rundir::{ErrorCode, Failure};
use tch::{Device, Kind, Tensor};
use video::{Filter, Frames};

/// Decodes a latent `[1, T, C, h, w]` of a model to a video `[1, 3, F, H, W]`. The latent is divided by the factor that the model was
/// trained with, which may differ from the VAE's own. The VAE is read for this call and freed afterwards, because the network needs
/// the memory.
///
/// # Errors
/// The VAE cannot be read, or memory is short.
pub fn decode(recipe: &Recipe, latent: &Tensor, device: Device) -> Result<Tensor, Failure> {
    let unscaled_bcthw = latent.permute([0, 2, 1, 3, 4]) / recipe.model.latent_scale;
    with_vae(recipe, device, |vae| vae.decode(&unscaled_bcthw))
}

/// Reads the VAE and calls `run` with it. The VAE processes pictures in tiles if the recipe requires tiles or memory is short.
fn with_vae<T>(recipe: &Recipe, device: Device, run: impl Fn(&VideoVae) -> Result<T, Failure>) -> Result<T, Failure> {
    let mut vae = open(recipe, device)?;
    let tiling = recipe.encoders.tiling;
    if tiling == recipe::Tiling::On {
        vae.in_tiles(true)?;
    }
    match run(&vae) {
        Err(failure) if failure.code == ErrorCode::OutOfMemory && tiling == recipe::Tiling::Auto => {
            vae.in_tiles(true)?;
            run(&vae)
        }
        done => done,
    }
}

/// Returns the frames of a decoded video `[1, 3, F, H, W]` as bytes, rounded as diffusers rounds them.
pub fn frames(video: &Tensor) -> Frames {
    let size = video.size();
    let bytes = ((video.to_kind(Kind::Float) / 2.0 + 0.5).clamp(0.0, 1.0) * 255.0).round().to_kind(Kind::Uint8);
    let bytes = bytes.get(0).permute([1, 2, 3, 0]).contiguous().to_device(Device::Cpu);
    let mut rgb = vec![0u8; bytes.numel()];
    let count = rgb.len();
    bytes.copy_data_u8(&mut rgb, count);
    Frames { width: size[4] as usize, height: size[3] as usize, count: size[2] as usize, rgb }
}

/// Returns the tensors of the condition of a sample, scaled, fp32 on the CPU; none for text to video.
///
/// # Errors
/// The image or the VAE cannot be read, or memory is short.
pub fn conditions(recipe: &Recipe, spec: &SampleSpec, device: Device) -> Result<Conditions, Failure> {
    let noise = |shape: &[i64]| seeds::normal(spec.seed, Purpose::SampleImage, 0, shape, Device::Cpu);
    match (recipe.condition.kind, &spec.image) {
        (ConditionKind::Image, Some(path)) => {
            Ok(vec![(IMAGE, encode_pixels(recipe, &read_pixels(spec, path, Filter::Lanczos)?, noise, device)?)])
        }
        (ConditionKind::Inpaint, _) if spec.files().next().is_some() => {
            let (video, mask) = known_pixels(spec)?;
            let noise = recipe.condition.image_noise.then_some(noise);
            masked_condition(recipe, &video, &mask, noise, device)
        }
        // Text to video: training drops the tensors of a wholly masked video in the same way.
        (ConditionKind::Inpaint, _) => {
            let Model { out_channels, latent_frames, latent_height, latent_width, .. } = spec.model;
            let zeros = |channels: usize| {
                let size = [1, latent_frames, channels, latent_height, latent_width].map(|size| size as i64);
                Tensor::zeros(size, (Kind::Float, Device::Cpu))
            };
            Ok(vec![(KNOWN, zeros(1)), (MASKED, zeros(out_channels))])
        }
        (ConditionKind::FirstFrame, Some(path)) => {
            let pixels = read_pixels(spec, path, Filter::Lanczos)?;
            Ok(vec![(FIRST_FRAME, mean_of(recipe, &pixels, device)?)])
        }
        (ConditionKind::ImageClip, Some(path)) => {
            let first_bchw = read_pixels(spec, path, Filter::Lanczos)?.squeeze_dim(2);
            let masked = mean_of(recipe, &clip(&first_bchw, None, spec.frames as i64), device)?;
            let size = masked.size();
            Ok(vec![(MASK, mask([size[0], size[1], size[3], size[4]], false)), (MASKED, masked)])
        }
        (ConditionKind::None | ConditionKind::Image | ConditionKind::FirstFrame | ConditionKind::ImageClip, _) => {
            Ok(Vec::new())
        }
    }
}

/// The noise level of known pixels: the mean of the levels that training draws.
///
/// Source: VideoX-Fun `CogVideoXFunInpaintPipeline`, `noise_aug_strength`.
const KNOWN_NOISE: f64 = 0.0563;

/// The smallest value of a mask whose pixels are replaced.
///
/// Source: VideoX-Fun `videox_fun/utils/utils.py` `get_video_to_video_latent`.
const WHITE: u8 = 240;

/// Returns the pixels that the condition of a sample knows, `[1, 3, F, H, W]` between -1 and 1, and its mask, `[1, F, 1, H, W]`: 1 where pixels
/// are made, 0 where they are known.
///
/// Source: VideoX-Fun `videox_fun/utils/utils.py`, `get_image_to_video_latent` and `get_video_to_video_latent`.
///
/// # Errors
/// An image or the video cannot be read, or the video is too short.
fn known_pixels(spec: &SampleSpec) -> Result<(Tensor, Tensor), Failure> {
    let [height, width] = [spec.height, spec.width].map(|size| size as i64);
    let frames = spec.known_frames().frames;
    let shape = [1, frames as i64, 1, height, width];
    if let Some(MaskedVideo { video, mask }) = &spec.masked {
        let mut grey = video::read_image(mask)?;
        grey.rgb.chunks_mut(3).for_each(|pixel| pixel.fill(luma(pixel)));
        let grey = video::resize(&grey, spec.width, spec.height, Filter::Bicubic);
        let is_white: Vec<f32> = grey.rgb.chunks(3).map(|pixel| if pixel[0] >= WHITE { 1.0 } else { 0.0 }).collect();
        let mask = Tensor::from_slice(&is_white).view([1, 1, 1, height, width]).expand(shape, false).contiguous();
        return Ok((read_video(spec, video)?, mask));
    }
    let mask = Tensor::ones(shape, (Kind::Float, Device::Cpu));
    let video = Tensor::zeros([1, 3, frames as i64, height, width], (Kind::Float, Device::Cpu));
    let places = [(&spec.image, 0), (&spec.image_end, frames as i64 - 1)];
    for (path, frame) in places.into_iter().filter_map(|(path, frame)| Some((path.as_ref()?, frame))) {
        let _ = mask.narrow(1, frame, 1).zero_();
        video.narrow(2, frame, 1).copy_(&read_pixels(spec, path, Filter::Bicubic)?);
    }
    Ok((video, mask))
}

/// Returns the brightness of a pixel as Pillow's `convert("L")` computes it: ITU-R 601, in fixed point.
fn luma(rgb: &[u8]) -> u8 {
    let weighted = [19595, 38470, 7471].iter().zip(rgb).map(|(weight, value)| weight * u32::from(*value));
    ((weighted.sum::<u32>() + 0x8000) >> 16) as u8
}

/// Reads the first frames of a video at the rate and the size of a sample, `[1, 3, F, H, W]` between -1 and 1. Pictures with another
/// aspect ratio are stretched, as VideoX-Fun does.
fn read_video(spec: &SampleSpec, path: &Utf8Path) -> Result<Tensor, Failure> {
    let choice = video::FrameChoice::of(&spec.known_frames());
    let programs = video::Programs::default();
    let source = programs.open(path)?.at_rate(Some(spec.fps));
    let times = source.choose(&choice)?;
    let picture = video::Picture { width: spec.width, height: spec.height, crop: recipe::CropMode::None, seed: 0 };
    let decoded = programs.decode(&source, &times, &picture)?;
    let size = [1, decoded.count, spec.height, spec.width, 3].map(|size| size as i64);
    Ok(Tensor::from_slice(&decoded.rgb).view(size).permute([0, 4, 1, 2, 3]).to_kind(Kind::Float) / 127.5 - 1.0)
}

/// Returns the condition of a video with masked pixels, as training computes it.
///
/// * `video_bcfhw` — the pixels, between -1 and 1.
/// * `mask_bf1hw` — 1 where pixels are made, 0 where they are known.
/// * `noise` — returns the noise of known pixels; `None` if they get no noise.
///
/// Source: VideoX-Fun `CogVideoXFunInpaintPipeline`, which uses the mean of the latent's distribution and scales the mask too.
fn masked_condition(
    recipe: &Recipe,
    video_bcfhw: &Tensor,
    mask_bf1hw: &Tensor,
    noise: Option<impl Fn(&[i64]) -> Tensor>,
    device: Device,
) -> Result<Conditions, Failure> {
    let level = Tensor::full([1], KNOWN_NOISE.ln(), (Kind::Float, Device::Cpu));
    let noise = noise.map(|noise| noise(&video_bcfhw.size()));
    let masked = dit::conditions::masked_video(video_bcfhw, mask_bf1hw, noise.as_ref().map(|noise| (&level, noise)));
    let masked_btchw = mean_of(recipe, &masked, device)?;
    let size = masked_btchw.size();
    let known_bt1hw = dit::conditions::known(mask_bf1hw, [size[1], size[3], size[4]]);
    Ok(vec![(KNOWN, known_bt1hw * recipe.model.latent_scale), (MASKED, masked_btchw)])
}

/// Returns a picture at the size of a sample, `[1, 3, 1, H, W]` between -1 and 1.
fn read_pixels(spec: &SampleSpec, path: &Utf8Path, filter: Filter) -> Result<Tensor, Failure> {
    let image = video::resize(&video::read_image(path)?, spec.width, spec.height, filter);
    let pixels = Tensor::from_slice(&image.rgb).view([1, 1, spec.height as i64, spec.width as i64, 3]);
    Ok(pixels.permute([0, 4, 1, 2, 3]).to_kind(Kind::Float) / 127.5 - 1.0)
}

/// Returns the mean latent `[1, T, C, h, w]` of a video `[1, 3, F, H, W]` between -1 and 1, scaled, fp32 on the CPU.
fn mean_of(recipe: &Recipe, video_bcfhw: &Tensor, device: Device) -> Result<Tensor, Failure> {
    let there = video_bcfhw.to_device(device);
    let mean_bcthw = with_vae(recipe, device, |vae| Ok(vae.encode(&there)?.mean))?;
    let mean_btchw = mean_bcthw.permute([0, 2, 1, 3, 4]).to_kind(Kind::Float).to_device(Device::Cpu);
    Ok(mean_btchw * recipe.model.latent_scale)
}

/// Returns the scaled latent `[1, 1, C, h, w]` of an image `[1, 3, 1, H, W]` between -1 and 1, drawn from the VAE's distribution as in the
/// pipelines. `noise` returns standard normal noise.
///
/// # Errors
/// The VAE cannot be read, or memory is short.
pub fn encode_pixels(
    recipe: &Recipe,
    pixels: &Tensor,
    noise: impl FnOnce(&[i64]) -> Tensor,
    device: Device,
) -> Result<Tensor, Failure> {
    let moments = with_vae(recipe, device, |vae| vae.encode(pixels))?;
    let noise = noise(&moments.mean.size());
    let latent = moments.sample(&noise.to_device(moments.mean.device()).to_kind(moments.mean.kind()));
    let latent = latent * recipe.model.image_scale();
    Ok(latent.permute([0, 2, 1, 3, 4]).to_kind(Kind::Float).to_device(Device::Cpu))
}

/// Reads the VAE, which was checked at the start.
fn open(recipe: &Recipe, device: Device) -> Result<VideoVae, Failure> {
    let Encoders { folder, dtype, .. } = &recipe.encoders;
    VideoVae::open(&folder.join("vae"), compute_kind(*dtype), device)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A recipe that samples a model for inpainting of the latents of the small VAE, and its sample of 9 frames.
    fn inpainting() -> (Recipe, SampleSpec) {
        let model = recipe::load("../../tests/fixtures/configs/valid/minimal.toml".into(), &[]).unwrap().recipe.model;
        let model = Model { in_channels: 9, out_channels: 4, latent_scale: 0.7, ..model };
        let mut recipe = Recipe::for_sampling(&model, None).unwrap();
        let folder =
            Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/oracle/vae/cogvideox_5b_tiny");
        recipe.encoders.folder = folder;
        recipe.encoders.dtype = recipe::ComputeDtype::Float32;
        recipe.sample.prompts = vec!["a rabbit --f 9 --w 32 --h 48".into()];
        let spec = recipe.samples().unwrap().remove(0);
        (recipe, spec)
    }

    fn values(tensor: &Tensor) -> Vec<f32> {
        Vec::try_from(tensor.flatten(0, -1)).unwrap()
    }

    #[test]
    fn latents_are_divided_by_the_factor_of_the_model_and_not_by_that_of_the_vae() {
        let (mut recipe, _) = inpainting();
        let header = weights::Header::read(&recipe.encoders.folder.join("encode_decode.safetensors")).unwrap();
        let recorded = |name: &str| {
            let shape: Vec<i64> = header.tensor(name).unwrap().shape.iter().map(|size| *size as i64).collect();
            let bytes = header.read_tensor(name).unwrap();
            Tensor::from_data_size(&bytes, &shape, Kind::Float)
        };
        // diffusers decoded the unscaled latent. The VAE's own factor is 0.7.
        let (latent_bcthw, wanted) = (recorded("decode_f3_24x40.in.latent"), recorded("decode_f3_24x40.out.video"));
        for factor in [1.0, 0.7, 2.5] {
            recipe.model.latent_scale = factor;
            let scaled = latent_bcthw.permute([0, 2, 1, 3, 4]) * factor;
            let error = (decode(&recipe, &scaled, Device::Cpu).unwrap() - &wanted).abs().max().double_value(&[]);
            assert!(error < 1e-5, "factor {factor}: {error}");
        }
    }

    #[test]
    fn inpainting_from_text_alone_has_a_dropped_condition() {
        let (recipe, spec) = inpainting();
        let made = conditions(&recipe, &spec, Device::Cpu).unwrap();
        let sizes: Vec<_> = made.iter().map(|(role, tensor)| (*role, tensor.size())).collect();
        assert_eq!(sizes, [(KNOWN, vec![1, 3, 1, 6, 4]), (MASKED, vec![1, 3, 4, 6, 4])]);
        assert!(made.iter().all(|(_, tensor)| values(tensor).iter().all(|value| *value == 0.0)));
    }

    #[test]
    fn inpainting_from_an_image_knows_the_first_frame_alone() {
        let (mut recipe, _) = inpainting();
        let pixels = Tensor::arange(3 * 48 * 32, (Kind::Float, Device::Cpu)).view([1, 3, 1, 48, 32]) / 2304.0 - 1.0;
        let draw = |shape: &[i64]| seeds::normal(7, Purpose::SampleImage, 0, shape, Device::Cpu);
        let made = |recipe: &Recipe, noise: bool| {
            let mask = Tensor::ones([1, 9, 1, 48, 32], (Kind::Float, Device::Cpu));
            let _ = mask.narrow(1, 0, 1).zero_();
            let video = pixels.expand([1, 3, 9, 48, 32], false);
            masked_condition(recipe, &video, &mask, noise.then_some(draw), Device::Cpu).unwrap()
        };
        let clean = made(&recipe, false);
        let [(KNOWN, known), (MASKED, masked)] = &clean[..] else { panic!("{clean:?}") };
        assert_eq!(values(&known.get(0).get(0)), [0.7; 24]);
        assert_eq!(values(&known.get(0).narrow(0, 1, 2)), [0.0; 48]);
        // Training encodes the image, followed by frames of -1.
        let hidden = Tensor::full([1, 3, 8, 48, 32], -1.0, (Kind::Float, Device::Cpu));
        let vae = open(&recipe, Device::Cpu).unwrap();
        let mean = vae.encode(&Tensor::cat(&[&pixels, &hidden], 2)).unwrap().mean.permute([0, 2, 1, 3, 4]) * 0.7;
        assert_eq!(values(masked), values(&mean));
        let noised = made(&recipe, true);
        assert_eq!(values(&noised[0].1), values(known));
        assert_ne!(values(&noised[1].1), values(masked));
        // Tiles of this small VAE change the latent slightly, if at all.
        recipe.encoders.tiling = recipe::Tiling::On;
        assert_eq!(made(&recipe, false)[1].1.size(), masked.size());
    }

    /// The conditions that VideoX-Fun's `CogVideoXFunInpaintPipeline` (commit 804a4258) computed of videos with masks.
    #[test]
    fn conditions_of_masked_videos_are_those_of_videox_fun() {
        let oracle = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/oracle");
        let (mut recipe, _) = inpainting();
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(oracle.join("i2v_training/vae4"), folder.path().join("vae")).unwrap();
        recipe.encoders.folder = camino::Utf8PathBuf::try_from(folder.path().to_owned()).unwrap();
        for name in ["region", "start_and_end", "start_and_end_with_noise"] {
            let header = weights::Header::read(&oracle.join(format!("fun/sampling/{name}.safetensors"))).unwrap();
            let recorded = |name: &str| {
                let shape: Vec<i64> = header.tensor(name).ok()?.shape.iter().map(|size| *size as i64).collect();
                Some(Tensor::from_data_size(&header.read_tensor(name).unwrap(), &shape, Kind::Float))
            };
            let [video, mask, wanted] =
                ["in.video", "in.mask_video", "out.image_latents"].map(|name| recorded(name).unwrap());
            let noise = recorded("in.reference_noise").map(|noise| move |_: &[i64]| noise.shallow_clone());
            let mask = mask.permute([0, 2, 1, 3, 4]).ge(0.5).to_kind(Kind::Float);
            let made = masked_condition(&recipe, &(video * 2.0 - 1.0), &mask, noise, Device::Cpu).unwrap();
            let made = Tensor::cat(&[&made[0].1, &made[1].1], 2);
            let error = (&made - &wanted).abs().max().double_value(&[]) / wanted.abs().max().double_value(&[]);
            assert!(error < 1e-5, "{name}: {error:e}");
        }
    }

    /// Pillow 13: `Image.new("RGB", (1, 1), colour).convert("L")`.
    #[test]
    fn the_brightness_of_a_mask_is_pillows() {
        assert_eq!([luma(&[250, 240, 230]), luma(&[13, 200, 77]), luma(&[255; 3])], [242, 130, 255]);
    }

    #[test]
    fn a_start_and_an_end_image_are_known_in_the_first_and_the_last_frame_alone() {
        let (_, mut spec) = inpainting();
        let folder = tempfile::tempdir().unwrap();
        let picture = |name: &str, value: u8| {
            let path = camino::Utf8PathBuf::try_from(folder.path().join(name)).unwrap();
            let frames = Frames { width: 32, height: 48, count: 1, rgb: vec![value; 32 * 48 * 3] };
            video::write_png(&path, &frames, 0).unwrap();
            path
        };
        (spec.image, spec.image_end) = (Some(picture("a.png", 255)), Some(picture("b.png", 0)));
        let (video, mask) = known_pixels(&spec).unwrap();
        let of_frames = |tensor: &Tensor| values(&tensor.mean_dim(&[3i64, 4][..], false, Kind::Float));
        assert_eq!(of_frames(&mask), [0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0]);
        let red = video.narrow(1, 0, 1);
        assert_eq!(of_frames(&red), [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0]);
        // VideoX-Fun's mask channel does not see a single known frame at the end: it averages frames 4j - 2 and 4j - 1.
        let known = values(&dit::conditions::known(&mask, [3, 1, 1]));
        assert_eq!(known, [1.0, 0.0, 0.0]);
    }

    #[test]
    fn values_become_bytes_as_diffusers_rounds_them() {
        // Two frames of one row of two pixels, listed channel by channel.
        let video = Tensor::from_slice(&[-1.0f32, 1.0, 2.0, -2.0, 0.0, 0.002, 0.5, -0.5, 0.1, 0.2, 0.3, 0.4]);
        let frames = frames(&video.view([1, 3, 2, 1, 2]));
        assert_eq!((frames.width, frames.height, frames.count), (2, 1, 2));
        assert_eq!(frames.rgb, [0, 128, 140, 255, 128, 153, 255, 191, 166, 0, 64, 178]);
    }
}
