//! STDiT3, the network of Open-Sora 1.2, and its rectified flow.
//!
//! Source: hpcaitech/Open-Sora v1.2.0, `opensora/models/stdit/stdit3.py` and `opensora/schedulers/rf/`.

mod config;
mod flow;
mod masks;
mod model;
mod names;
mod params;
mod references;

pub use config::{Config, Unusable};
pub use flow::{Flow, MAX_TIME, ShownSize, TimestepDraw};
pub use masks::FrameMask;
pub use model::{BlockKind, MODULATIONS, Stdit3, TIME_WAVES};
pub use names::{Layout, OPEN_SORA_ROPE, file_tensor};
pub use params::param_specs;
pub use references::{ALIGNMENT, BadReference, Reference, Span};
