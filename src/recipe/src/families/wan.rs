//! Wan 2.1 and 2.2: one stream of video tokens that attends to itself and to the text.
//!
//! Source: Wan Team 2025, "Wan: Open and Advanced Large-Scale Video Generative Models", and its code.

mod lora;
mod model;
mod names;
mod params;
mod recognise;

pub use lora::{AdapterForm, AdapterNames, adapter_names};
pub use model::{ImageKeys, Release, WanModel};
pub use names::{Layout, file_tensor};
pub use params::param_specs;
pub use recognise::{NotWan, Recognised, Shapes, recognise};
