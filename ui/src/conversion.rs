//! Conversions of weights: the options that the user chose, and the preview of what a conversion does.

use camino::Utf8PathBuf;
use rundir::Failure;
use serde::{Deserialize, Serialize};

/// The options of a weight conversion.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ConvertOptions {
    /// The weights to convert: a path, a downloaded model, or a run by its id, its name or `latest`.
    pub source: Utf8PathBuf,
    /// The folder to create.
    pub target: Utf8PathBuf,
    /// The form to convert to.
    pub to: ConvertForm,
    /// The sequence layer to convert to, besides attention; `None` keeps the layers of the source.
    pub layer: Option<recipe::Layer>,
    /// The dtype of the parameters; `None` keeps that of the source.
    pub dtype: Option<WeightType>,
    /// A LoRA adapter to merge into the weights.
    pub merge: Option<Utf8PathBuf>,
    /// Whether to replace an existing conversion in the target folder.
    pub replace: bool,
}

/// The form that weights are converted to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConvertForm {
    /// A checkpoint that training starts from.
    #[default]
    Internal,
    /// A folder for diffusers' `from_pretrained`.
    Diffusers,
    /// An adapter in the format of diffusers, converted from another adapter.
    LoraDiffusers,
    /// An adapter in the format of PEFT, converted from another adapter.
    LoraPeft,
    /// An adapter with the key names of kohya, converted from another adapter.
    LoraKohya,
}

impl ConvertForm {
    /// Returns the name of the form on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::Internal => "internal",
            Self::Diffusers => "diffusers",
            Self::LoraDiffusers => "lora-diffusers",
            Self::LoraPeft => "lora-peft",
            Self::LoraKohya => "lora-kohya",
        }
    }
}

/// The dtype of parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names explain themselves")]
pub enum WeightType {
    Float32,
    Bfloat16,
    Float16,
}

impl WeightType {
    /// Returns the name of the dtype on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::Float32 => "float32",
            Self::Bfloat16 => "bfloat16",
            Self::Float16 => "float16",
        }
    }
}

/// A conversion that was planned but not executed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConvertPreview {
    /// The options of the conversion.
    pub options: ConvertOptions,
    /// The equivalent command line.
    pub command: String,
    /// Facts about the conversion: names and values, in order.
    pub facts: Vec<(String, String)>,
    /// What happens to each tensor. Tensors that differ only in their block share a row.
    pub rows: Vec<ConvertRow>,
    /// Bytes to write.
    pub bytes: u64,
    /// Why the conversion is not possible.
    pub refusal: Option<Failure>,
    /// Whether the target folder has an existing conversion that can be replaced, and no other obstacle exists.
    pub in_the_way: bool,
    /// Hash of the plan, which covers every byte that the conversion reads and writes.
    pub fingerprint: String,
}

/// Tensors that are converted in the same way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConvertRow {
    /// Number of tensors.
    pub count: usize,
    /// The name of the tensors in the source, with `{i}` for the number of the block, or the origin of their values.
    pub source: String,
    /// The name of the tensors in the target, or why they are left out.
    pub target: String,
    /// Whether these tensors make the conversion impossible.
    pub wrong: bool,
}
