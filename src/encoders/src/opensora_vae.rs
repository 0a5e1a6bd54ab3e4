//! The VAE of Open-Sora 1.2: a VAE over pictures for each frame, and a VAE over frames for pieces of 17 frames.

mod config;
mod temporal;

use crate::batch::each;
use crate::causal::Memory;
use crate::kl::{Decoder, Encoder};
use crate::latent::LatentScale;
use crate::params::{Params, check_kind, failed};
use crate::vae::{LatentDistribution, stage};
use camino::Utf8Path;
pub use config::{OpenSoraVaeConfig, PictureVaeConfig, TemporalConfig};
use failure::{ErrorCode, Failure};
use tch::{Device, Kind, TchError, Tensor, no_grad};
use temporal::{Temporal, TemporalForm};
use weights::{check_latent, check_video};

/// The factor between the latents of pictures and the input of the VAE over frames, whatever the configuration of the VAE over
/// pictures has as its `scaling_factor`.
///
/// Source: Open-Sora v1.2, `opensora/models/vae/vae.py`, `VideoAutoencoderKL.encode`.
const PICTURE_FACTOR: f64 = 0.18215;

/// Open-Sora 1.2's VAE with its parameters.
///
/// Neither direction scales the latents of videos; see [`OpenSoraVae::latent_scale`]. Pieces of frames do not depend on each other: at
/// their ends, a decoded video has seams. Frames are encoded and decoded one at a time by the VAE over pictures.
#[derive(Debug)]
pub struct OpenSoraVae {
    config: OpenSoraVaeConfig,
    picture: PictureVaeConfig,
    identity: String,
    kind: Kind,
    device: Device,
    encoder: Encoder,
    decoder: Decoder,
    temporal: Temporal,
}

impl OpenSoraVae {
    /// Reads a folder with `config.json` and `model.safetensors`. `kind` is bf16 or fp32; `picture` has the sizes of the VAE over
    /// pictures, by default those of SDXL.
    ///
    /// # Errors
    /// The folder holds another model or a form that is not supported; weights are missing or have other shapes; out of memory.
    pub fn open(folder: &Utf8Path, picture: PictureVaeConfig, kind: Kind, device: Device) -> Result<Self, Failure> {
        check_kind(kind, folder.as_str())?;
        let (config, files) = OpenSoraVaeConfig::open(folder, &picture)?;
        let mut params = Params::new(files.reader(), kind, device);
        let encoder = Encoder::read(&picture.form(), &mut params)?;
        let decoder = Decoder::read(&picture.form(), &mut params)?;
        let temporal = TemporalForm::of(&config.vae_temporal).read(&mut params)?;
        Ok(OpenSoraVae { identity: params.identity(), config, picture, kind, device, encoder, decoder, temporal })
    }

    /// Returns the configuration.
    pub fn config(&self) -> &OpenSoraVaeConfig {
        &self.config
    }

    /// Sets the number of frames that are encoded at a time, each piece by itself; `None` for all. The identity does not change:
    /// callers that cache latents must record the number.
    pub fn pieces_of(&mut self, frames: Option<usize>) {
        self.config.micro_frame_size = frames;
    }

    /// Returns the scale of latents.
    pub fn latent_scale(&self) -> LatentScale {
        self.config.latent_scale()
    }

    /// Returns a hash of configuration and weights.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Encodes videos `[B, C, F, H, W]`, values in -1…1, any kind and device. `noise` `[B, c, F, h, w]` from the standard normal
    /// distribution draws the latents of pictures, as Open-Sora does; without it, they are their means.
    ///
    /// # Errors
    /// A shape does not fit; or libtorch failed, with [`ErrorCode::OutOfMemory`] if memory is short.
    pub fn encode(&self, video: &Tensor, noise: Option<&Tensor>) -> Result<LatentDistribution, Failure> {
        check_video(&video.size(), self.picture.in_channels, 1)?;
        self.check_latents(&video.size(), noise)?;
        let factor = self.config.vae_temporal.time_factor();
        let moments = no_grad(|| {
            let mut samples = Vec::new();
            for sample in 0..video.size()[0] {
                let noise_cthw = match noise {
                    Some(noise) => Some(noise.f_select(0, sample)?),
                    None => None,
                };
                let pictures = self.encode_pictures(&video.f_select(0, sample)?, noise_cthw.as_ref())?;
                let (mut first, mut parts) = (0, Vec::new());
                for piece in self.config.pieces(pictures.size()[0] as usize) {
                    // Latents of zeros in front make the piece a multiple of the factor.
                    let padding = (piece.next_multiple_of(factor) - piece) as i64;
                    let frames = pictures.f_narrow(0, first, piece as i64)?;
                    let frames = frames.f_constant_pad_nd([0, 0, 0, 0, 0, 0, padding, 0])?;
                    parts.push(self.temporal.encode(&frames, &mut self.memory())?);
                    first += piece as i64;
                }
                samples.push(Tensor::f_cat(&parts, 0)?.f_permute([3, 0, 1, 2])?);
            }
            LatentDistribution::of_moments(&Tensor::f_stack(&samples, 0)?)
        });
        moments.map_err(|e| failed(&format!("cannot encode a video of shape {:?}", video.size()), e))
    }

    /// Checks that the latents of a video's pictures have a pixel, and that the noise has their shape.
    fn check_latents(&self, video: &[i64], noise: Option<&Tensor>) -> Result<(), Failure> {
        let halved = self.picture.block_out_channels.len() - 1;
        let latent = [video[0], self.picture.latent_channels as i64, video[2], video[3] >> halved, video[4] >> halved];
        let (why, fix) = match noise.map(Tensor::size) {
            _ if latent.contains(&0) => {
                let least = 1 << halved;
                (format!("a latent pixel has {least} x {least} pixels"), "use a larger height and width")
            }
            Some(shape) if shape != latent => {
                (format!("the noise has shape {shape:?}, expected {latent:?}"), "give noise for every frame")
            }
            _ => return Ok(()),
        };
        let what = format!("cannot encode a video of shape {video:?}");
        Err(Failure::new(ErrorCode::InvalidArgument, what, why, fix))
    }

    /// Decodes latents `[B, C, T, h, w]`, unscaled, to videos of `frames` frames `[B, C, F, H, W]`, values about -1…1, not clamped.
    ///
    /// # Errors
    /// The shape does not fit, videos of so many frames have another number of latent frames, or libtorch failed, as in
    /// [`OpenSoraVae::encode`].
    pub fn decode(&self, latent: &Tensor, frames: usize) -> Result<Tensor, Failure> {
        check_latent(&latent.size(), self.config.vae_temporal.embed_dim)?;
        let (wanted, found) = (self.config.latent_frames(frames), latent.size()[2]);
        if wanted as i64 != found {
            let why = format!("{frames} frames have {wanted} latent frames, and the latent has {found}");
            let what = format!("cannot decode a latent of shape {:?}", latent.size());
            return Err(Failure::new(ErrorCode::TensorMismatch, what, why, "give the number of frames of the video"));
        }
        no_grad(|| each(latent, |sample_cthw| self.decode_sample(sample_cthw, frames)))
            .map_err(|e| failed(&format!("cannot decode a latent of shape {:?}", latent.size()), e))
    }

    fn memory(&self) -> Memory {
        Memory::new(stage::budget(self.device))
    }

    /// Returns `[T, H, W, C]` of a sample `[C, T, H, W]`, where the VAE computes.
    fn frames(&self, sample_cthw: &Tensor) -> Result<Tensor, TchError> {
        let there = sample_cthw.f_to_device(self.device)?.f_to_kind(self.kind)?;
        there.f_permute([1, 2, 3, 0])?.f_contiguous()
    }

    /// Encodes each frame of a sample to a latent: `[F, h, w, c]`, on the scale of the VAE over frames.
    fn encode_pictures(&self, video_cfhw: &Tensor, noise_cfhw: Option<&Tensor>) -> Result<Tensor, TchError> {
        let mut latents = Vec::new();
        for frame in 0..video_cfhw.size()[1] {
            let picture = self.frames(&video_cfhw.f_narrow(1, frame, 1)?)?;
            let moments = self.encoder.forward(picture, &mut self.memory())?.f_permute([0, 3, 1, 2])?.f_unsqueeze(2)?;
            let moments = LatentDistribution::of_moments(&moments)?;
            let latent = match noise_cfhw {
                Some(noise) => moments.sample(&self.frames(&noise.f_narrow(1, frame, 1)?)?.f_permute([3, 0, 1, 2])?),
                None => moments.mean,
            };
            latents.push(latent.f_select(0, 0)?.f_permute([1, 2, 3, 0])?);
        }
        Tensor::f_cat(&latents, 0)?.f_mul_scalar(PICTURE_FACTOR)
    }

    fn decode_sample(&self, latent_cthw: &Tensor, frames: usize) -> Result<Tensor, TchError> {
        let (latent, factor) = (self.frames(latent_cthw)?, self.config.vae_temporal.time_factor());
        let (mut first, mut pictures) = (0, Vec::new());
        for piece in self.config.pieces(frames) {
            let count = piece.div_ceil(factor);
            let decoded = self.temporal.decode(&latent.f_narrow(0, first, count as i64)?, &mut self.memory())?;
            // The first frames are those of the padding.
            let padding = (count * factor - piece) as i64;
            for frame in padding..decoded.size()[0] {
                let picture = decoded.f_narrow(0, frame, 1)?.f_div_scalar(PICTURE_FACTOR)?;
                pictures.push(self.decoder.forward(picture, &mut self.memory())?.f_permute([3, 0, 1, 2])?);
            }
            first += count as i64;
        }
        Tensor::f_cat(&pictures, 1)
    }
}
