//! The VAE of a model, of any family that can be trained, with latents as data sets store them.

use crate::tiling::{TileAxis, VideoTiling};
use crate::vae::{LatentDistribution, Vae};
use crate::wan_vae::WanVae;
use camino::Utf8Path;
use failure::Failure;
use tch::{Device, Kind, Tensor};
use weights::{TileSize, VideoVaeConfig, WAN_TILE};

/// The log-variance of a latent without noise: a draw differs from the mean by 3e-7.
const LEAST_LOGVAR: f64 = -30.0;
/// The distance between tiles of Wan's VAE, in pixels, as in diffusers.
const WAN_STRIDE: usize = 192;

/// A VAE with its parameters.
///
/// Latents of CogVideoX are those of the VAE, which a factor brings to the scale of the network when they are read. Those of Wan are on the
/// scale of the network.
#[derive(Debug)]
pub enum VideoVae {
    /// That of CogVideoX.
    CogVideoX(Vae),
    /// That of Wan 2.1 or 2.2.
    Wan(WanVae),
}

impl VideoVae {
    /// Reads a `vae/` folder. `kind` is bf16 or fp32.
    ///
    /// # Errors
    /// The folder holds another model or a form that is not supported; weights are missing or have other shapes; out of memory.
    pub fn open(folder: &Utf8Path, kind: Kind, device: Device) -> Result<Self, Failure> {
        match VideoVaeConfig::open(folder)?.0 {
            VideoVaeConfig::CogVideoX(_) => Vae::open(folder, kind, device).map(Self::CogVideoX),
            VideoVaeConfig::Wan(_) => WanVae::open(folder, kind, device).map(Self::Wan),
        }
    }

    /// Computes frames in tiles, or whole.
    ///
    /// # Errors
    /// Tiles of the default size do not begin at latent pixels of this VAE.
    pub fn in_tiles(&mut self, tiles: bool) -> Result<(), Failure> {
        match self {
            Self::CogVideoX(vae) => {
                let size = tiles.then(|| TileSize::of(vae.config()));
                vae.tiling(size)
            }
            Self::Wan(vae) => {
                let axis = TileAxis { size: WAN_TILE, stride: WAN_STRIDE };
                vae.tiling(VideoTiling { space: tiles.then_some([axis; 2]), time: None })
            }
        }
    }

    /// Returns the channels of a latent.
    pub fn latent_channels(&self) -> usize {
        match self {
            Self::CogVideoX(vae) => vae.config().latent_channels,
            Self::Wan(vae) => vae.config().z_dim,
        }
    }

    /// Encodes videos `[B, 3, F, H, W]`, values in -1…1, to the latents `[B, C, T, h, w]` that a data set stores. Those of Wan are the means of
    /// the VAE's distribution, as in Wan's trainers: their log-variance is the least one.
    ///
    /// # Errors
    /// The shape does not fit; or libtorch failed, with [`failure::ErrorCode::OutOfMemory`] if memory is short.
    pub fn encode(&self, video: &Tensor) -> Result<LatentDistribution, Failure> {
        match self {
            Self::CogVideoX(vae) => vae.encode(video),
            Self::Wan(vae) => {
                let mean = vae.latent_scale().to_network(&vae.encode(video)?.mean);
                let logvar = mean.full_like(LEAST_LOGVAR);
                Ok(LatentDistribution { mean, logvar })
            }
        }
    }

    /// Decodes latents that a data set stores, `[B, C, T, h, w]`, to videos `[B, 3, F, H, W]`.
    ///
    /// # Errors
    /// As [`VideoVae::encode`].
    pub fn decode(&self, latent: &Tensor) -> Result<Tensor, Failure> {
        match self {
            Self::CogVideoX(vae) => vae.decode(latent),
            Self::Wan(vae) => vae.decode(&vae.latent_scale().to_vae(latent)),
        }
    }
}
