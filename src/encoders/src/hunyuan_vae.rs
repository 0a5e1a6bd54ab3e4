//! `AutoencoderKLHunyuanVideo`, the VAE of HunyuanVideo and Open-Sora 2: videos to latents and back.

mod config;

use crate::batch::each;
use crate::causal::Memory;
use crate::kl::{Decoder, Encoder};
use crate::latent::LatentScale;
use crate::params::{Params, check_kind, failed};
use crate::tiling::{PIXELS, TileAxis, Unit, VideoTiling};
use crate::vae::{LatentDistribution, stage};
use camino::Utf8Path;
pub use config::HunyuanVaeConfig;
use failure::Failure;
use tch::{Device, Kind, TchError, Tensor, no_grad};
use weights::{check_latent, check_video};

/// Hunyuan's VAE with its parameters.
///
/// Neither direction scales latents; see [`HunyuanVae::latent_scale`]. Its norms are over all frames, so a clip in tiles of frames
/// differs from a clip as a whole. Samples of a batch are computed one after another.
#[derive(Debug)]
pub struct HunyuanVae {
    config: HunyuanVaeConfig,
    identity: String,
    kind: Kind,
    device: Device,
    tiling: VideoTiling,
    encoder: Encoder,
    decoder: Decoder,
}

impl HunyuanVae {
    /// The tiles of Open-Sora 2: 256 pixels and 64 frames, of which a quarter overlaps.
    pub const OPEN_SORA_TILES: VideoTiling = VideoTiling {
        space: Some([TileAxis { size: 256, stride: 192 }; 2]),
        time: Some(TileAxis { size: 64, stride: 48 }),
    };

    /// Reads a `vae/` folder of diffusers, or the file of Open-Sora 2. `kind` is bf16 or fp32.
    ///
    /// # Errors
    /// The folder holds another model or a form that is not supported; weights are missing or have other shapes; out of memory.
    pub fn open(path: &Utf8Path, kind: Kind, device: Device) -> Result<Self, Failure> {
        check_kind(kind, path.as_str())?;
        let (config, files) = HunyuanVaeConfig::open(path)?;
        let mut params = Params::new(files.reader(), kind, device);
        let encoder = Encoder::read(&config.form(), &mut params)?;
        let decoder = Decoder::read(&config.form(), &mut params)?;
        let identity = params.identity();
        Ok(HunyuanVae { config, identity, kind, device, tiling: VideoTiling::default(), encoder, decoder })
    }

    /// Computes videos larger than a tile in tiles that are blended. The default is whole videos.
    ///
    /// # Errors
    /// Tiles do not begin at latent pixels or latent frames.
    pub fn tiling(&mut self, tiling: VideoTiling) -> Result<(), Failure> {
        tiling.check(self.latent_unit())?;
        self.tiling = tiling;
        Ok(())
    }

    /// Returns the configuration.
    pub fn config(&self) -> &HunyuanVaeConfig {
        &self.config
    }

    /// Returns the scale of latents.
    pub fn latent_scale(&self) -> LatentScale {
        self.config.latent_scale()
    }

    /// Returns a hash of configuration and weights.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    fn latent_unit(&self) -> Unit {
        Unit { space: self.config.spatial_compression_ratio, time: self.config.temporal_compression_ratio }
    }

    /// Encodes videos `[B, C, F, H, W]`, values in -1…1, any kind and device.
    ///
    /// # Errors
    /// The shape does not fit; or libtorch failed, with [`failure::ErrorCode::OutOfMemory`] if memory is short.
    pub fn encode(&self, video: &Tensor) -> Result<LatentDistribution, Failure> {
        check_video(&video.size(), self.config.in_channels, 1)?;
        let compute = |tile: &Tensor| self.sample(tile, |frames, memory| self.encoder.forward(frames, memory));
        let moments = no_grad(|| {
            each(video, |sample| self.tiling.compute(sample, PIXELS, self.latent_unit(), &compute))
                .and_then(|moments| LatentDistribution::of_moments(&moments))
        });
        moments.map_err(|e| failed(&format!("cannot encode a video of shape {:?}", video.size()), e))
    }

    /// Decodes latents `[B, C, T, h, w]`, unscaled, to videos `[B, C, F, H, W]`, values about -1…1, not clamped.
    ///
    /// # Errors
    /// As [`HunyuanVae::encode`].
    pub fn decode(&self, latent: &Tensor) -> Result<Tensor, Failure> {
        check_latent(&latent.size(), self.config.latent_channels)?;
        let compute = |tile: &Tensor| self.sample(tile, |latent, memory| self.decoder.forward(latent, memory));
        no_grad(|| each(latent, |sample| self.tiling.compute(sample, self.latent_unit(), PIXELS, &compute)))
            .map_err(|e| failed(&format!("cannot decode a latent of shape {:?}", latent.size()), e))
    }

    /// Computes a sample `[C, T, H, W]`.
    fn sample(
        &self,
        sample_cthw: &Tensor,
        compute: impl Fn(Tensor, &mut Memory) -> Result<Tensor, TchError>,
    ) -> Result<Tensor, TchError> {
        let there = sample_cthw.f_to_device(self.device)?.f_to_kind(self.kind)?;
        let result =
            compute(there.f_permute([1, 2, 3, 0])?.f_contiguous()?, &mut Memory::new(stage::budget(self.device)))?;
        result.f_permute([3, 0, 1, 2])?.f_contiguous()
    }
}
