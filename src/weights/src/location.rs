//! The kinds of files and folders that hold weights, and the location of identified weights.

use std::fmt;

use camino::Utf8PathBuf;
use serde::Serialize;

/// The file beside a diffusers model with its TTT layers under their internal names. diffusers does not support these layers.
pub const TTT_FILE: &str = "ttt.safetensors";

/// The kind of a file or folder of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceKind {
    /// A folder with `config.json` and weights, or one weight file beside its configuration.
    Diffusers,
    /// The folder of a diffusers pipeline with the model in `transformer/`.
    Pipeline,
    /// Safetensors without a configuration.
    Safetensors,
    /// A checkpoint of this trainer.
    Checkpoint,
    /// A run; its newest complete checkpoint is used.
    Run,
    /// A state dict that `torch.save` wrote.
    Torch,
    /// The folder of a PyTorch distributed checkpoint, such as those of ttt-video-dit.
    Dcp,
    /// A LoRA adapter: a file, or its folder.
    Lora,
}

impl SourceKind {
    /// Returns the name of the kind.
    pub fn words(self) -> &'static str {
        match self {
            Self::Diffusers => "diffusers model",
            Self::Pipeline => "diffusers pipeline",
            Self::Safetensors => "safetensors",
            Self::Checkpoint => "checkpoint",
            Self::Run => "run",
            Self::Torch => "torch state dict",
            Self::Dcp => "torch distributed checkpoint",
            Self::Lora => "LoRA adapter",
        }
    }
}

impl fmt::Display for SourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.words())
    }
}

/// An identified file or folder whose contents are not checked yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceLocation {
    /// The path as the user gave it.
    pub path: Utf8PathBuf,
    /// The kind of file or folder.
    pub kind: SourceKind,
    /// The folder or file that holds the weights.
    pub weights: Utf8PathBuf,
}
