//! The store: a folder with the latents and texts of a data set, made once and read by training.
//!
//! ```text
//! DATA/
//! ├── dataset.toml                     how the latents and texts were made (StoreSpec)
//! ├── index.jsonl                      a head, then one line per clip in the order of the manifest; replaced by rename
//! ├── latents-00000.safetensors …      at most 2 GB each; a tensor [T, 2C, H, W] per clip: means, then log-variances
//! ├── texts-00000.safetensors …        a tensor [tokens, width] per distinct caption, and the empty caption
//! └── work/                            while encoding: the queue of items, leases, parts, journals
//! ```
//!
//! The key of a latent is a hash of the video's content and the encoder's settings; the key of a text is a hash of the caption and
//! the encoder's settings. An encode reuses items with the same key and encodes only the others ([`plan_encode`]). Many workers on
//! many nodes encode at once ([`Queue`]). The bytes of the store do not depend on which worker encoded which item, or on crashes. The
//! index has a checksum of each tensor, which every read compares ([`verify`] reads all).

mod clock;
mod failures;
mod folder;
#[cfg(test)]
mod full_disk_tests;
mod index;
mod join;
mod lease;
#[cfg(test)]
mod million_clips_tests;
mod names;
mod open;
mod part;
mod plan;
mod queue;
mod queue_file;
mod range;
mod refuse;
mod spec;
#[cfg(test)]
mod tests;
mod unused;
mod verify;
#[cfg(test)]
mod verify_tests;

pub use clock::{Clock, SystemClock};
pub(crate) use failures::old_failures;
pub use folder::{Holder, check_no_encode};
pub(crate) use index::write_index;
pub use index::{Head, INDEX, Line, TensorLocation, read_index};
pub use join::{Joined, QueueFinish};
pub(crate) use open::open_table;
pub use part::{Disk, LocalDisk, NewTensor};
pub use plan::{Item, ItemKind, Plan, Quarantined, WantedClip, Work, plan_encode};
pub use queue::{Claim, EncodeProgress, Queue, Timing};
pub(crate) use queue_file::is_working;
pub use range::{Held, Range};
pub use spec::{BucketsSpec, CODE, ConditionSpec, FrameSpec, PictureSpec, SPEC, StoreSpec, TextSpec, VaeSpec, seed_of};
pub use unused::{UnusedShard, remove_unused, unused_shards};
pub use verify::{DamagedTensor, Repair, Verified, damaged, repair, verify};
pub(crate) use verify::{clips_at, not_finite_in_words};
