//! MMDiT: the network of Open-Sora 2 and of Flux, whose blocks let the tokens of text and video attend to each other.
//!
//! Sources: Esser et al. 2024, "Scaling Rectified Flow Transformers for High-Resolution Image Synthesis", section 4; Peng et al. 2025,
//! "Open-Sora 2.0" (arXiv 2503.09642); Open-Sora `opensora/models/mmdit`.

mod given;
mod model;
mod names;
mod params;

pub use given::{Given, GivenLengths, GivenWeights};
pub use model::Mmdit;
pub use names::{Layout, file_tensor};
pub use params::param_specs;
