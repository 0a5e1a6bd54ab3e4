//! Data sets of video clips. This crate does not need libtorch.
//!
//! A [`ClipManifest`] lists the clips of a data set, each with its caption and, if it cannot be used, the [`ExclusionReason`]. The
//! [`store`] holds their latents and texts.

mod buckets;
pub mod check;
mod clip;
mod conditions;
mod encode;
mod encoders;
mod import;
mod index;
mod layouts;
mod manifest;
mod open;
pub mod order;
mod reason;
pub mod seeds;
pub mod show;
mod stamp;
pub mod store;
mod table;

pub use buckets::{Assigner, BucketClips};
pub use clip::Clip;
pub use conditions::{IMAGE, KNOWN, MASKED, condition_tensors, drawn_role};
pub use encode::{ENCODER_FOLDERS, EncodeCost, EncodeInputs, check_folder};
pub use encoders::check_encoders;
pub use import::{ImportPlan, ImportRequest, Imported, plan_import};
pub use index::{Index, LATENT, MOMENTS, TEXT, TrainingSample, open_null_text};
pub use layouts::{
    Caption, CaptionFault, ClipRow, Layout, SourceListing, SourceRequest, Stated, VIDEO_ENDINGS, read_source,
};
pub use manifest::{ClipManifest, ManifestHeader};
pub use open::store_folder;
pub use reason::ExclusionReason;
pub use stamp::Stamp;
pub use table::{DatasetInfo, Reader, Slot, Table};

/// A tensor in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawTensor {
    /// The data in little-endian byte order.
    pub bytes: Vec<u8>,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its element type.
    pub dtype: weights::Dtype,
    /// True if it holds means, then log-variances.
    pub moments: bool,
}

/// Returns the number of channels that a model expects of the data set's latents.
pub(crate) fn latent_channels(model: &recipe::Model) -> usize {
    // Conditions such as an image latent add channels to the model's input, not to the data set's latents.
    model.out_channels.min(model.in_channels)
}
