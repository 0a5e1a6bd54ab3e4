//! The scale of latents.

use tch::{Kind, Tensor};

/// What brings the latents of a VAE to the scale on which a network was trained: `(latent - shift) / scale` for each channel.
///
/// A VAE neither applies nor removes it.
#[derive(Debug, Clone, PartialEq)]
pub struct LatentScale {
    /// One number for each channel.
    pub shift: Vec<f64>,
    /// One number for each channel.
    pub scale: Vec<f64>,
}

impl LatentScale {
    /// Creates the scale of a VAE that has one factor for all channels, by which latents are multiplied.
    pub fn of_factor(factor: f64, channels: usize) -> Self {
        LatentScale { shift: vec![0.0; channels], scale: vec![1.0 / factor; channels] }
    }

    /// Returns latents `[B, C, T, h, w]` of a VAE on the scale of the network.
    pub fn to_network(&self, latent_bcthw: &Tensor) -> Tensor {
        (latent_bcthw - of_channels(&self.shift, latent_bcthw)) / of_channels(&self.scale, latent_bcthw)
    }

    /// Returns latents `[B, C, T, h, w]` of the network on the scale of the VAE.
    pub fn to_vae(&self, latent_bcthw: &Tensor) -> Tensor {
        latent_bcthw * of_channels(&self.scale, latent_bcthw) + of_channels(&self.shift, latent_bcthw)
    }
}

fn of_channels(numbers: &[f64], like: &Tensor) -> Tensor {
    Tensor::from_slice(numbers)
        .to_kind(Kind::Float)
        .to_device(like.device())
        .to_kind(like.kind())
        .view([1, -1, 1, 1, 1])
}
