//! `AutoencoderKLWan`, the VAE of Wan 2.1 and 2.2: videos to latents and back.

mod blocks;

use crate::batch::each;
use crate::causal::Memory;
use crate::latent::LatentScale;
use crate::params::{Params, check_kind, failed};
use crate::tiling::{PIXELS, Unit, VideoTiling};
use crate::vae::{LatentDistribution, stage};
use blocks::{Decoder, Encoder};
use camino::Utf8Path;
use failure::{ErrorCode, Failure};
use tch::{Device, Kind, TchError, Tensor, no_grad};
use weights::{WanVaeConfig, check_latent, check_video};

/// Wan's VAE with its parameters.
///
/// Neither direction scales latents; see [`WanVae::latent_scale`]. Samples of a batch are computed one after another, and frames in
/// windows: the first frame, then 4 frames or 1 latent frame at a time. Each window passes the last frames of every convolution's
/// input to the next one, so the peak memory depends on the size of one window, and the result does not.
#[derive(Debug)]
pub struct WanVae {
    config: WanVaeConfig,
    identity: String,
    kind: Kind,
    device: Device,
    tiling: VideoTiling,
    encoder: Encoder,
    decoder: Decoder,
}

impl WanVae {
    /// Reads a `vae/` folder of diffusers. `kind` is bf16 or fp32.
    ///
    /// # Errors
    /// The folder holds another model or a form that is not supported; weights are missing or have other shapes; out of memory.
    pub fn open(folder: &Utf8Path, kind: Kind, device: Device) -> Result<Self, Failure> {
        check_kind(kind, folder.as_str())?;
        let (config, files) = WanVaeConfig::open(folder)?;
        let mut params = Params::new(files.reader(), kind, device);
        let encoder = Encoder::read(&config, &mut params)?;
        let decoder = Decoder::read(&config, &mut params)?;
        let identity = params.identity();
        Ok(WanVae { config, identity, kind, device, tiling: VideoTiling::default(), encoder, decoder })
    }

    /// Computes frames larger than a tile in tiles that are blended. The default is whole frames.
    ///
    /// # Errors
    /// Tiles do not begin at latent pixels, or there are tiles of frames, which this VAE does not need.
    pub fn tiling(&mut self, tiling: VideoTiling) -> Result<(), Failure> {
        if tiling.time.is_some() {
            let why = "this VAE computes frames in windows, which do not change the result";
            let fix = "use tiles of rows and columns only";
            return Err(Failure::new(ErrorCode::InvalidArgument, "cannot use tiles of frames", why, fix));
        }
        tiling.check(self.latent_unit())?;
        self.tiling = tiling;
        Ok(())
    }

    /// Returns the configuration.
    pub fn config(&self) -> &WanVaeConfig {
        &self.config
    }

    /// Returns the scale of latents.
    pub fn latent_scale(&self) -> LatentScale {
        LatentScale { shift: self.config.latents_mean.clone(), scale: self.config.latents_std.clone() }
    }

    /// Returns a hash of configuration and weights.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    fn latent_unit(&self) -> Unit {
        Unit { space: self.config.spatial_factor(), time: self.config.temporal_factor() }
    }

    /// Encodes videos `[B, C, F, H, W]`, values in -1…1, any kind and device. Of F frames, the last (F - 1) mod 4 are ignored.
    ///
    /// # Errors
    /// The shape does not fit; or libtorch failed, with [`ErrorCode::OutOfMemory`] if memory is short.
    pub fn encode(&self, video: &Tensor) -> Result<LatentDistribution, Failure> {
        check_video(&video.size(), self.config.video_channels(), self.config.spatial_factor())?;
        let window = self.config.temporal_factor() as i64;
        let compute = |tile_cfhw: &Tensor| {
            let frames = self.config.frames(self.config.latent_frames(tile_cfhw.size()[1] as usize)) as i64;
            self.windows(tile_cfhw, frames, window, |frames, memory| {
                self.encoder.forward(self.packed(&frames)?, memory)
            })
        };
        let moments = no_grad(|| {
            each(video, |sample| self.tiling.compute(sample, PIXELS, self.latent_unit(), &compute))
                .and_then(|moments| LatentDistribution::of_moments(&moments))
        });
        moments.map_err(|e| failed(&format!("cannot encode a video of shape {:?}", video.size()), e))
    }

    /// Decodes latents `[B, C, T, h, w]`, unscaled, to videos `[B, C, F, H, W]`, values clamped to -1…1 as Wan does.
    ///
    /// # Errors
    /// As [`WanVae::encode`].
    pub fn decode(&self, latent: &Tensor) -> Result<Tensor, Failure> {
        check_latent(&latent.size(), self.config.z_dim)?;
        let compute = |tile_cthw: &Tensor| {
            self.windows(tile_cthw, tile_cthw.size()[1], 1, |latent, memory| {
                self.unpacked(&self.decoder.forward(latent, memory)?)
            })
        };
        no_grad(|| {
            each(latent, |sample| self.tiling.compute(sample, self.latent_unit(), PIXELS, &compute)?.f_clamp_(-1, 1))
        })
        .map_err(|e| failed(&format!("cannot decode a latent of shape {:?}", latent.size()), e))
    }

    /// Computes the first `frames` frames of a sample `[C, T, H, W]`: the first one, then `window` frames at a time.
    fn windows(
        &self,
        sample_cthw: &Tensor,
        frames: i64,
        window: i64,
        compute: impl Fn(Tensor, &mut Memory) -> Result<Tensor, TchError>,
    ) -> Result<Tensor, TchError> {
        let mut memory = Memory::new(stage::budget(self.device));
        let (mut results, mut first) = (Vec::new(), 0);
        while first < frames {
            let count = if first == 0 { 1 } else { window };
            let there = sample_cthw.f_narrow(1, first, count)?.f_to_device(self.device)?.f_to_kind(self.kind)?;
            memory.begin(first == 0, first + count < frames);
            let result = compute(there.f_permute([1, 2, 3, 0])?.f_contiguous()?, &mut memory)?;
            results.push(result.f_permute([3, 0, 1, 2])?);
            first += count;
        }
        drop(memory);
        Tensor::f_cat(&results, 1)
    }

    /// Returns frames `[F, H, W, C]` with patches of pixels as channels, in the order channel, column, row.
    fn packed(&self, frames: &Tensor) -> Result<Tensor, TchError> {
        let p = self.config.patch() as i64;
        let [f, h, w, c] = [frames.size()[0], frames.size()[1] / p, frames.size()[2] / p, frames.size()[3]];
        frames.f_view([f, h, p, w, p, c])?.f_permute([0, 1, 3, 5, 4, 2])?.f_reshape([f, h, w, c * p * p])
    }

    /// Returns packed frames as frames.
    fn unpacked(&self, packed: &Tensor) -> Result<Tensor, TchError> {
        let p = self.config.patch() as i64;
        let [f, h, w, c] = [packed.size()[0], packed.size()[1], packed.size()[2], packed.size()[3] / (p * p)];
        packed.f_view([f, h, w, c, p, p])?.f_permute([0, 1, 5, 2, 4, 3])?.f_reshape([f, h * p, w * p, c])
    }
}
