//! `AutoencoderKLCogVideoX`: videos to latents and back.

mod blocks;
pub mod norm;
pub mod stage;
pub mod tiles;

use crate::batch::each;
use crate::params::{Params, check_kind, failed};
use blocks::{Decoder, Encoder};
use camino::Utf8Path;
use failure::Failure;
use stage::Cache;
use tch::{Device, Kind, TchError, Tensor, no_grad};
use weights::{TileSize, Tiles, VaeConfig, check_latent, check_video};

/// Log-variances outside of this range are clamped, as diffusers does.
const LOGVAR: (f64, f64) = (-30.0, 20.0);

/// The distribution of a latent.
#[derive(Debug)]
pub struct LatentDistribution {
    /// `[B, C, T, h, w]`
    pub mean: Tensor,
    /// `[B, C, T, h, w]`, clamped to -30…20
    pub logvar: Tensor,
}

impl LatentDistribution {
    /// Splits moments `[B, 2C, T, h, w]`: means, and log-variances, which are clamped.
    pub(crate) fn of_moments(moments: &Tensor) -> Result<Self, TchError> {
        let parts = moments.f_chunk(2, 1)?;
        Ok(LatentDistribution { mean: parts[0].f_contiguous()?, logvar: parts[1].f_clamp(LOGVAR.0, LOGVAR.1)? })
    }

    /// Draws a latent with noise of the same shape from the standard normal distribution.
    pub fn sample(&self, noise: &Tensor) -> Tensor {
        &self.mean + (&self.logvar * 0.5).exp() * noise
    }

    /// Returns mean and log-variance joined along the channels, `[B, 2C, T, h, w]`.
    pub fn joined(&self) -> Tensor {
        Tensor::cat(&[&self.mean, &self.logvar], 1)
    }
}

/// A VAE with its parameters.
///
/// Neither direction scales latents: multiply by `config().scaling_factor` after encoding and divide before decoding.
/// Samples of a batch are computed one after another, and frames in windows. Each window passes two frames of every
/// convolution's input to the next window, so the peak memory depends on the size of one window.
#[derive(Debug)]
pub struct Vae {
    config: VaeConfig,
    identity: String,
    kind: Kind,
    device: Device,
    tiling: Option<TileSize>,
    /// Bytes of frames that are computed at a time; see [`stage`].
    budget: i64,
    encoder: Encoder,
    decoder: Decoder,
}

impl Vae {
    /// Reads a `vae/` folder. `kind` is bf16 or fp32.
    ///
    /// # Errors
    /// The folder holds another model or a form that is not supported; weights are missing or have other shapes; out of memory.
    pub fn open(folder: &Utf8Path, kind: Kind, device: Device) -> Result<Self, Failure> {
        check_kind(kind, folder.as_str())?;
        let (config, files) = VaeConfig::open(folder)?;
        let mut params = Params::new(files.reader(), kind, device);
        let encoder = Encoder::read(&config, &mut params)?;
        let decoder = Decoder::read(&config, &mut params)?;
        Ok(Vae {
            config,
            identity: params.identity(),
            kind,
            device,
            tiling: None,
            budget: stage::budget(device),
            encoder,
            decoder,
        })
    }

    /// Computes pictures larger than a tile in tiles that are blended, or whole with `None`.
    ///
    /// # Errors
    /// Tiles leave the grid of latent pixels.
    pub fn tiling(&mut self, tiling: Option<TileSize>) -> Result<(), Failure> {
        if let Some(tiling) = &tiling {
            tiling.check(&self.config)?;
        }
        self.tiling = tiling;
        Ok(())
    }

    /// Returns the configuration.
    pub fn config(&self) -> &VaeConfig {
        &self.config
    }

    /// Returns a hash of configuration and weights.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Encodes videos `[B, C, F, H, W]`, values in -1…1, any kind and device.
    ///
    /// # Errors
    /// The shape does not fit; or libtorch failed, with [`failure::ErrorCode::OutOfMemory`] if memory is short.
    pub fn encode(&self, video: &Tensor) -> Result<LatentDistribution, Failure> {
        check_video(&video.size(), self.config.in_channels, self.config.spatial_factor())?;
        let [height, width] = [3, 4].map(|axis| video.size()[axis] as usize);
        let tiles = self.tiling.and_then(|tiling| tiling.encode(&self.config, height, width));
        let compute = |tile_cfhw: &Tensor| {
            let windows = self.config.encode_windows(tile_cfhw.size()[1] as usize);
            self.windows(tile_cfhw, &windows, |frames, cache, more| self.encoder.forward(frames, cache, more))
        };
        let moments = no_grad(|| each(video, |sample_cfhw| whole_or_tiled(sample_cfhw, tiles.as_ref(), &compute)));
        moments
            .and_then(|moments| LatentDistribution::of_moments(&moments))
            .map_err(|e| failed(&format!("cannot encode a video of shape {:?}", video.size()), e))
    }

    /// Decodes latents `[B, C, T, h, w]`, unscaled, to videos `[B, C, F, H, W]`, values about -1…1, not clamped.
    ///
    /// # Errors
    /// As [`Vae::encode`].
    pub fn decode(&self, latent: &Tensor) -> Result<Tensor, Failure> {
        check_latent(&latent.size(), self.config.latent_channels)?;
        let [height, width] = [3, 4].map(|axis| latent.size()[axis] as usize);
        let tiles = self.tiling.and_then(|tiling| tiling.decode(&self.config, height, width));
        let compute = |tile_cthw: &Tensor| {
            let windows = self.config.decode_windows(tile_cthw.size()[1] as usize);
            self.windows(tile_cthw, &windows, |latents, cache, more| self.decoder.forward(latents, cache, more))
        };
        let video = no_grad(|| each(latent, |sample_cthw| whole_or_tiled(sample_cthw, tiles.as_ref(), &compute)));
        video.map_err(|e| failed(&format!("cannot decode a latent of shape {:?}", latent.size()), e))
    }

    /// Computes a sample `[C, T, H, W]` window by window.
    fn windows(
        &self,
        sample_cthw: &Tensor,
        windows: &[weights::Window],
        compute: impl Fn(Tensor, &mut Cache, bool) -> Result<Tensor, TchError>,
    ) -> Result<Tensor, TchError> {
        let mut cache = Cache::new(self.budget);
        let mut results = Vec::new();
        for (number, window) in windows.iter().enumerate() {
            let frames = sample_cthw.f_narrow(1, window.start as i64, window.len() as i64)?;
            let frames_thwc =
                frames.f_to_device(self.device)?.f_to_kind(self.kind)?.f_permute([1, 2, 3, 0])?.f_contiguous()?;
            cache.begin();
            results.push(compute(frames_thwc, &mut cache, number + 1 < windows.len())?);
        }
        drop(cache);
        let joined_thwc = match results.len() {
            1 => results.remove(0),
            _ => Tensor::f_cat(&results, 0)?,
        };
        drop(results);
        joined_thwc.f_permute([3, 0, 1, 2])?.f_contiguous()
    }
}

/// Computes a sample `[C, T, H, W]`, in tiles if there are tiles.
fn whole_or_tiled(
    sample_cthw: &Tensor,
    tiles: Option<&Tiles>,
    compute: &impl Fn(&Tensor) -> Result<Tensor, TchError>,
) -> Result<Tensor, TchError> {
    match tiles {
        Some(tiles) => tiles::compute(sample_cthw, tiles, compute),
        None => compute(sample_cthw),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiny() -> Vae {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/oracle/vae/cogvideox_5b_tiny/vae");
        Vae::open(folder.into(), Kind::Float, Device::Cpu).unwrap_or_else(|failure| panic!("{failure}"))
    }

    #[test]
    fn the_results_do_not_depend_on_how_many_frames_are_computed_at_a_time() {
        let mut vae = tiny();
        let apart = |a: &Tensor, b: &Tensor| ((a - b).abs().max() / b.abs().max()).double_value(&[]);
        let video = Tensor::rand([1, 3, 17, 24, 32], (Kind::Float, Device::Cpu)) * 2 - 1;
        let moments = vae.encode(&video).unwrap();
        let decoded = vae.decode(&moments.mean).unwrap();
        // First two frames at a time, then a number that does not divide the frames of a window.
        for budget in [1, 4 * 24 * 32 * 6 * 4] {
            vae.budget = budget;
            assert!(apart(&vae.encode(&video).unwrap().mean, &moments.mean) < 1e-5);
            assert!(apart(&vae.decode(&moments.mean).unwrap(), &decoded) < 1e-5);
        }
    }

    #[test]
    fn the_identity_is_that_of_the_files() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/oracle/vae/cogvideox_5b_tiny/vae");
        let half = Vae::open(folder.into(), Kind::BFloat16, Device::Cpu).unwrap();
        assert_eq!(half.identity(), tiny().identity());
    }
}
