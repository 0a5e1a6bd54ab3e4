//! VAEs and text encoders as functions of their parameters.
//!
//! | model | VAE | text encoders |
//! |---|---|---|
//! | CogVideoX | [`Vae`] | [`T5Encoder`], without a mask |
//! | Open-Sora 2, HunyuanVideo | [`HunyuanVae`] | [`T5Encoder`], without a mask, and [`ClipEncoder`] |
//! | Open-Sora 1.2 | [`OpenSoraVae`] | [`T5Encoder`], with a mask |
//! | Wan 2.1 and 2.2 | [`WanVae`] | [`T5Encoder`] of umT5, with a mask |
//!
//! All are read straight from the folders of a published model (`vae/`, `text_encoder/`). The configurations and tables of parameter
//! names of CogVideoX and Wan are in the crate `weights`, which does not need libtorch; those of other models are beside their functions.
//! No VAE scales latents: their scale is data, [`LatentScale`]. [`VideoVae`] is that of any family that can be trained.
//!
//! Shapes are written as suffixes: B batch, C channels, F frames, T latent frames, H and W pixels, h and w latent pixels,
//! N texts, L tokens, D width of the text encoder. Inside a VAE a tensor is `[T, H, W, C]`, one sample with channels last.

mod batch;
mod causal;
mod clip;
mod hunyuan_vae;
mod kl;
mod latent;
mod memory;
mod opensora_vae;
mod params;
mod t5;
mod tiling;
mod vae;
mod video_vae;
mod wan_vae;

pub use clip::{ClipConfig, ClipEncoder, ClipStates};
pub use hunyuan_vae::{HunyuanVae, HunyuanVaeConfig};
pub use latent::LatentScale;
pub use memory::{hunyuan_vae_memory, opensora_vae_memory};
pub use opensora_vae::{OpenSoraVae, OpenSoraVaeConfig, PictureVaeConfig, TemporalConfig};
pub use t5::{T5Encoder, without_padding};
pub use tiling::{TileAxis, VideoTiling};
pub use vae::{LatentDistribution, Vae};
pub use video_vae::VideoVae;
pub use wan_vae::WanVae;
pub use weights::level_memory::wan_vae_memory;
pub use weights::{Peak, T5Config, TileSize, VaeConfig, WanVaeConfig, t5_memory, vae_memory};
