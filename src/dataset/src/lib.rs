//! Data sets of video clips. No libtorch.
//!
//! A [`Manifest`] lists the clips of a data set, each with its caption and, if it cannot be used, the [`Reason`]. The
//! [`store`] holds their latents and texts.

pub mod check;
mod clip;
mod layouts;
mod manifest;
mod reason;
pub mod store;

pub use clip::Clip;
pub use layouts::{Caption, CaptionFault, Layout, Row, Source, SourceRequest, Stated, VIDEO_ENDINGS, read_source};
pub use manifest::{Manifest, ManifestHeader};
pub use reason::Reason;

/// Returns the channels of a latent of the data set of a model.
pub(crate) fn latent_channels(model: &recipe::Model) -> usize {
    // Conditions such as an image's latent add channels to the input only.
    model.out_channels.min(model.in_channels)
}
