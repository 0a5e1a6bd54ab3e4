//! Data sets of video clips. No libtorch.
//!
//! A [`Manifest`] lists the clips of a data set, each with its caption and, if it cannot be used, the [`Reason`].

mod clip;
mod manifest;
mod reason;

pub use clip::Clip;
pub use manifest::{Manifest, ManifestHeader};
pub use reason::Reason;
