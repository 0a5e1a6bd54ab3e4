//! The VAE of a model, of any family that can be trained: what its configuration says about latents.

use super::config::ConfigFile;
use super::level_memory::wan_vae_memory;
use super::wan_vae::{self, WanVaeConfig};
use super::{EncoderFiles, Peak, TileSize, VaeConfig, vae_memory};
use camino::Utf8Path;
use rundir::Failure;

/// The rows and columns of a tile of Wan's VAE, in pixels, as in diffusers.
pub const WAN_TILE: usize = 256;
const FOLDER: &str = "the vae/ folder of a model of CogVideoX or Wan";

/// The configuration of a VAE.
#[derive(Debug, Clone, PartialEq)]
pub enum VideoVaeConfig {
    /// That of CogVideoX.
    CogVideoX(VaeConfig),
    /// That of Wan 2.1 or 2.2.
    Wan(WanVaeConfig),
}

impl VideoVaeConfig {
    /// Opens a `vae/` folder: its configuration, and its weights checked against the table.
    ///
    /// # Errors
    /// The folder holds another model or a form that is not supported, or weights are missing or have other shapes.
    pub fn open(folder: &Utf8Path) -> Result<(Self, EncoderFiles), Failure> {
        let file = ConfigFile::read(folder, FOLDER)?;
        if file.json["_class_name"] == wan_vae::CLASS {
            return WanVaeConfig::open_with(&file).map(|(config, files)| (Self::Wan(config), files));
        }
        VaeConfig::open_with(&file).map(|(config, files)| (Self::CogVideoX(config), files))
    }

    /// Returns the channels of a latent.
    pub fn latent_channels(&self) -> usize {
        match self {
            Self::CogVideoX(config) => config.latent_channels,
            Self::Wan(config) => config.z_dim,
        }
    }

    /// Returns the pixels along one side of a latent pixel.
    pub fn spatial_factor(&self) -> usize {
        match self {
            Self::CogVideoX(config) => config.spatial_factor(),
            Self::Wan(config) => config.spatial_factor(),
        }
    }

    /// Returns the frames of a latent frame after the first.
    pub fn temporal_factor(&self) -> usize {
        match self {
            Self::CogVideoX(config) => 1 << config.temporal_levels(),
            Self::Wan(config) => config.temporal_factor(),
        }
    }

    /// Returns the latent frames of a number of frames.
    pub fn latent_frames(&self, frames: usize) -> usize {
        match self {
            Self::CogVideoX(config) => config.latent_frames(frames),
            Self::Wan(config) => config.latent_frames(frames),
        }
    }

    /// Returns the factor that multiplies stored latents before training. Those of Wan are stored on the scale of the network, which has a
    /// mean and a deviation for each channel.
    pub fn scaling_factor(&self) -> f64 {
        match self {
            Self::CogVideoX(config) => config.scaling_factor,
            Self::Wan(_) => 1.0,
        }
    }

    /// Returns the peak memory of encoding or decoding one video, whichever needs more, whole or in tiles.
    ///
    /// Frames, height and width are those of the video, in pixels; `element` is the number of bytes of an element: 2 for bf16, 4 for fp32.
    pub fn memory(&self, size: [usize; 3], in_tiles: bool, element: u64) -> Peak {
        match self {
            Self::CogVideoX(config) => {
                let tiles = in_tiles.then(|| TileSize::of(config));
                vae_memory(config, size, tiles.as_ref(), element)
            }
            Self::Wan(config) => wan_vae_memory(config, size, in_tiles.then_some([WAN_TILE; 2]), element),
        }
    }
}
