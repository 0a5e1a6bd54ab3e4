//! The families of networks. Each has a folder here and one in the crate `dit`. All have sizes, parameters and names in files. Those of
//! [`FamilyName`] also have keys, a cost and rules, so they can be trained.

pub(crate) mod cogvideox;
mod file_tensor;
pub mod mmdit;
pub mod stdit3;
mod unit;
pub mod wan;

pub use file_tensor::{FileTensor, RowOrder};

use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use toml::{Table, Value};

use crate::check::Rules;
use crate::resume::WEIGHTS;
use crate::schema::{TRAIN_AND_SAMPLE, word};
use crate::{BlockCost, ConditionKind, Flops, Key, Model, ParamSpec, Recipe, SampleScheduler, VIDEO_FRAMES};
use cogvideox::CogVideoXKeys;
use wan::WanKeys;

words! {
    /// The families that can be trained.
    pub enum FamilyName {
        /// CogVideoX 1.0 and 1.5, with or without TTT layers.
        CogVideoX = "cogvideox",
        /// Wan 2.1 and 2.2.
        Wan = "wan",
    }
}

impl FamilyName {
    /// Returns a model of the family on the Hugging Face Hub, for hints.
    pub fn example(self) -> &'static str {
        match self {
            Self::CogVideoX => "zai-org/CogVideoX-5b",
            Self::Wan => "Wan-AI/Wan2.1-T2V-1.3B-Diffusers",
        }
    }

    /// Returns the family of a word; CogVideoX without one, or with an unknown one, which the check of its key refuses.
    pub(crate) fn of_word(word: Option<&str>) -> Self {
        Self::ALL.into_iter().find(|family| Some(family.name()) == word).unwrap_or(Self::CogVideoX)
    }
}

section! {
    /// The key that chooses the family.
    pub struct FamilyKey("model", TRAIN_AND_SAMPLE, WEIGHTS) {
        /// family of the network: cogvideox (with or without TTT layers) or wan (2.1 and 2.2)
        pub family: FamilyName = FamilyName::CogVideoX => word::<FamilyName>();
    }
}

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

    /// Returns the tokens that blocks process: those of the text, if it is in the same stream, and those of the video.
    fn tokens(&self, model: &Model) -> usize {
        model.text_tokens() + model.video_tokens()
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

    /// Returns the samplers that can be chosen.
    fn samplers(&self) -> &'static [SampleScheduler];

    /// Returns the number of video frames that the VAE of the family decodes from latent frames.
    fn decoded_frames(&self, latent_frames: usize) -> usize {
        VIDEO_FRAMES * (latent_frames - 1) + 1
    }

    /// Returns the conditions that networks of the family can have, those that a model has by its channels first.
    fn conditions(&self, model: &Model) -> &'static [ConditionKind];

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
    /// Wan 2.1 and 2.2.
    Wan(WanKeys),
}

impl Family {
    /// Returns the name of the family.
    pub fn name(&self) -> FamilyName {
        match self {
            Family::CogVideoX(_) => FamilyName::CogVideoX,
            Family::Wan(_) => FamilyName::Wan,
        }
    }

    /// Returns the functions of the family.
    pub(crate) fn spec(&self) -> &dyn FamilySpec {
        match self {
            Family::CogVideoX(keys) => keys,
            Family::Wan(keys) => keys,
        }
    }

    /// Returns the key of the family, and the keys that a family adds.
    pub(crate) fn keys(name: FamilyName) -> impl Iterator<Item = &'static Key> {
        let own = match name {
            FamilyName::CogVideoX => CogVideoXKeys::KEYS,
            FamilyName::Wan => WanKeys::KEYS,
        };
        FamilyKey::KEYS.iter().chain(own)
    }

    /// Reads the keys of a family from a table, which may have others.
    fn of_table(table: &Table) -> Result<Self, toml::de::Error> {
        let name = FamilyName::of_word(table.get(FAMILY).and_then(Value::as_str));
        let own = Self::keys(name).map(|key| key.parts().1).filter(|key| *key != FAMILY);
        let own: Table = own.filter_map(|key| Some((key.to_owned(), table.get(key)?.clone()))).collect();
        match name {
            FamilyName::CogVideoX => own.try_into().map(Family::CogVideoX),
            FamilyName::Wan => own.try_into().map(Family::Wan),
        }
    }
}

/// The name of the key of the family within its section.
const FAMILY: &str = "family";

/// The names of the keys of all families.
static NAMES: std::sync::LazyLock<Vec<&'static str>> = std::sync::LazyLock::new(|| {
    let keys = FamilyName::ALL.into_iter().flat_map(Family::keys);
    keys.map(|key| key.parts().1).collect()
});

impl Serialize for Family {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Named<'a, K> {
            family: FamilyName,
            #[serde(flatten)]
            keys: &'a K,
        }
        let family = self.name();
        match self {
            Family::CogVideoX(keys) => Named { family, keys }.serialize(serializer),
            Family::Wan(keys) => Named { family, keys }.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Family {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = Family;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the keys of a family")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Family, A::Error> {
                let mut table = Table::new();
                while let Some((key, value)) = map.next_entry::<String, Value>()? {
                    table.insert(key, value);
                }
                Family::of_table(&table).map_err(de::Error::custom)
            }
        }
        // The names, because a section takes only the keys that its fields name.
        deserializer.deserialize_struct("Family", &NAMES, Keys)
    }
}

/// Returns every tensor of a model without adapters: the root's first, then block by block.
pub fn param_specs(model: &Model) -> Vec<ParamSpec> {
    model.family().param_specs(model)
}
