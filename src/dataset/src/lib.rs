//! Data sets of video clips: checks sources, plans encodes, stores latents and texts, and orders samples. Needs no libtorch.
//!
//! A [`ClipManifest`] lists the clips of a data set, each with its caption and, if it cannot be used, the [`ExclusionReason`]. The
//! [`store`] holds their latents and texts. [`order`] determines the samples of every training step.

// A line that cannot be written, for instance on a full disk, must not panic: see `rundir::log!`.
#![cfg_attr(not(test), warn(clippy::print_stderr))]

mod buckets;
pub mod check;
mod clip;
mod conditions;
pub mod cut;
mod each_file;
mod encode;
mod encoders;
pub mod export;
mod filter;
mod import;
mod index;
mod layouts;
mod lost;
mod manifest;
mod open;
pub mod order;
mod reason;
pub mod score;
pub mod seeds;
pub mod show;
mod stamp;
pub mod store;
mod sum;
mod table;
mod template;
mod verify_files;

pub use buckets::{Assigner, BucketClips};
pub use clip::{Clip, Unusual};
pub use conditions::{IMAGE, KNOWN, MASKED, condition_tensors, drawn_role};
pub use encode::{ENCODER_FOLDERS, EncodeCost, EncodeInputs, check_folder, open_tokenizer};
pub use encoders::check_encoders;
pub use filter::{Condition, Filter};
pub use import::{ImportPlan, ImportRequest, Imported, NotFiniteClip, NotFiniteClips, plan_import};
pub use index::{Index, LATENT, MOMENTS, TEXT, TrainingSample, open_null_text};
pub use layouts::{
    Caption, CaptionFault, ClipRow, ConditionCount, Layout, MEASURED, NumberColumn, SourceFields, SourceListing,
    SourceRequest, Stated, VIDEO_ENDINGS, read_source,
};
pub use manifest::{ClipManifest, ManifestHeader};
pub use open::{frame_rate, store_folder};
pub use reason::ExclusionReason;
pub use stamp::Stamp;
pub use sum::TensorSum;
pub use table::{DatasetInfo, Reader, Slot, Table};
pub use template::{CaptionTemplate, FieldValue};
pub use verify_files::verify_files;

/// A tensor in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawTensor {
    /// The data in little-endian byte order.
    pub bytes: Vec<u8>,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its element type.
    pub dtype: weights::Dtype,
    /// True if the tensor holds means, then log-variances, along its channels.
    pub moments: bool,
}

/// Returns the number of channels that the latents of a data set for this model must have.
pub(crate) fn latent_channels(model: &recipe::Model) -> usize {
    // Conditions such as an image latent add channels to the model's input, not to the data set's latents.
    model.out_channels.min(model.in_channels)
}
