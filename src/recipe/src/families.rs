//! The families of networks. Each has a folder here and one in the crate `dit`. All have sizes, parameters and names in files; only CogVideoX
//! also has keys, a cost and rules, so only it can be trained.

pub(crate) mod cogvideox;
mod file_tensor;
pub mod mmdit;
pub mod stdit3;
mod unit;
pub mod wan;

pub use file_tensor::{FileTensor, RowOrder};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::check::Rules;
use crate::{BlockCost, Flops, Key, Model, ParamSpec, Recipe, SampleScheduler};
use cogvideox::CogVideoXKeys;

/// What a family adds to the sizes that all models have. Its keys implement this.
pub(crate) trait FamilySpec {
    /// Returns every tensor of a model without adapters: the root's first, then block by block.
    fn param_specs(&self, model: &Model) -> Vec<ParamSpec>;

    /// Returns the cost of every block, in the order of the network.
    fn blocks(&self, recipe: &Recipe) -> Vec<BlockCost>;

    /// Counts one forward pass over one sample.
    fn forward_flops(&self, model: &Model) -> Flops;

    /// Returns the bytes that kernels of the family's layers take in the backward pass of one block, for a micro-batch.
    fn kernel_memory(&self, _: &Recipe) -> u64 {
        0
    }

    /// Returns the rules that compare keys of the family, each with its keys.
    fn rules(&self) -> Rules {
        &[]
    }

    /// Returns the segments of a video, each with its own text.
    fn segments(&self) -> usize {
        1
    }

    /// Returns whether blocks have a TTT layer.
    fn has_ttt(&self) -> bool {
        false
    }

    /// Returns the key that the CUDA kernel of TTT scans does not support, its value, and the reason for the largest value; `None` if the
    /// kernel supports the model.
    fn unfit_for_scan_kernel(&self, _: &Model) -> Option<(&'static str, usize, &'static str)> {
        None
    }

    /// Returns the keys for latents with another number of frames.
    fn for_frames(&self, latent_frames: usize) -> Family;

    /// Returns the factor that multiplies latents of images when they are read.
    fn image_scale(&self, model: &Model) -> f64 {
        model.latent_scale
    }

    /// Returns the sampler that the makers of the model use.
    fn sampler(&self) -> SampleScheduler;

    /// Returns the frames per second of the videos that the published models make.
    fn published_fps(&self, model: &Model) -> f64;

    /// Returns the keys of `[model]`, without the section, in which a run may differ from its weights, although the weights were
    /// trained with one value: those of the noise schedule and of positions.
    fn adaptable_keys(&self) -> &'static [&'static str];
}

/// The keys of `[model]` that only one family has.
#[derive(Debug, Clone, PartialEq)]
pub enum Family {
    /// CogVideoX 1.0 and 1.5, with or without TTT layers.
    CogVideoX(CogVideoXKeys),
}

impl Family {
    /// The keys of all families.
    pub(crate) const KEYS: &'static [Key] = CogVideoXKeys::KEYS;

    /// Returns the family.
    pub(crate) fn spec(&self) -> &dyn FamilySpec {
        match self {
            Family::CogVideoX(keys) => keys,
        }
    }
}

impl Serialize for Family {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Family::CogVideoX(keys) => keys.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Family {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        CogVideoXKeys::deserialize(deserializer).map(Family::CogVideoX)
    }
}

/// Returns every tensor of a model without adapters: the root's first, then block by block.
pub fn param_specs(model: &Model) -> Vec<ParamSpec> {
    model.family().param_specs(model)
}
