//! Recognizes the naming scheme of a set of tensors, and derives the model of ttt-video-dit weights from their shapes.

use crate::tensor_spans::Tensors;
use recipe::Model;
use rundir::{ErrorCode, Failure};
use std::collections::BTreeSet;

/// A tensor that every model has, with its name in each scheme.
const SIGNS: [(&str, Names); 6] = [
    ("patch_embed.proj.weight", Names::Diffusers),
    ("condition_embedder.time_proj.weight", Names::Diffusers),
    ("time_projection.1.weight", Names::Wan),
    ("time_embed.proj.weight", Names::Internal),
    ("patch_embedding.vid_proj.weight", Names::TttVideo),
    ("patch_embed.video.weight", Names::Internal),
];

/// The name prefixes of training state.
const STATE: [&str; 4] = ["optimizer.", "lr_scheduler.", "data_module.", "metadata."];

/// The naming scheme of the tensors of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Names {
    /// The names of diffusers.
    Diffusers,
    /// The names of this trainer.
    Internal,
    /// The names of ttt-video-dit.
    TttVideo,
    /// The names of the original releases of Wan.
    Wan,
    /// An unknown scheme.
    Unknown,
}

/// Tensors with a recognized naming scheme.
pub(crate) struct Recognized {
    /// The naming scheme.
    pub names: Names,
    /// The weights, without the common prefix of their names.
    pub tensors: Tensors,
    /// The tensors of the training state.
    pub others: Tensors,
}

/// Parts of names that wrappers insert at any place: torch.compile, FSDP and activation checkpointing.
pub(crate) const WRAPPERS: [&str; 3] = ["_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"];

/// Recognizes the naming scheme and removes the prefixes of wrappers, such as `model.dit.`.
pub(crate) fn recognize(tensors: Tensors) -> Recognized {
    let (others, tensors): (Tensors, Tensors) =
        tensors.into_iter().partition(|(name, _)| STATE.iter().any(|start| name.starts_with(start)));
    let found = SIGNS.iter().find_map(|(sign, names)| Some((prefix_before(sign, &tensors)?, *names)));
    let Some((prefix, names)) = found else { return Recognized { names: Names::Unknown, tensors, others } };
    Recognized { names, tensors: without_prefix(tensors, &prefix), others }
}

/// Returns whether the tensors are those of a diffusers model. Their names may have the prefixes of wrappers.
pub(crate) fn is_diffusers(tensors: &Tensors) -> bool {
    diffusers_prefix(tensors).is_some()
}

/// Removes the prefixes of wrappers from the names of a diffusers model. Also returns whether a name has changed.
pub(crate) fn unwrapped(tensors: Tensors) -> (Tensors, bool) {
    let before: Vec<String> = tensors.keys().cloned().collect();
    let prefix = diffusers_prefix(&tensors).unwrap_or_default();
    let tensors = without_prefix(tensors, &prefix);
    let changed = !tensors.keys().eq(&before);
    (tensors, changed)
}

/// Returns the prefix of the names of a diffusers model; `None` if the tensors are not those of one.
fn diffusers_prefix(tensors: &Tensors) -> Option<String> {
    let signs = SIGNS.iter().filter(|(_, names)| *names == Names::Diffusers);
    signs.into_iter().find_map(|(sign, _)| prefix_before(sign, tensors))
}

/// Returns the shortest prefix of a name that ends with `sign`. Weights may have a copy with a longer prefix, such as an average.
fn prefix_before(sign: &str, tensors: &Tensors) -> Option<String> {
    let prefix = |name: &String| {
        let name = without_wrappers(name);
        let prefix = name.strip_suffix(sign)?;
        (prefix.is_empty() || prefix.ends_with('.')).then(|| prefix.to_owned())
    };
    tensors.keys().filter_map(prefix).min_by_key(String::len)
}

/// Removes wrappers and a prefix from the names of tensors. No name changes if two tensors would get the same name.
fn without_prefix(tensors: Tensors, prefix: &str) -> Tensors {
    let bare = |name: &str| {
        let name = without_wrappers(name);
        match name.strip_prefix(prefix) {
            Some(rest) => rest.to_owned(),
            None => name,
        }
    };
    let names: BTreeSet<String> = tensors.keys().map(|name| bare(name)).collect();
    if names.len() < tensors.len() {
        return tensors;
    }
    tensors.into_iter().map(|(name, tensor)| (bare(&name), tensor)).collect()
}

fn without_wrappers(name: &str) -> String {
    name.split('.').filter(|part| !WRAPPERS.contains(part)).collect::<Vec<&str>>().join(".")
}

/// Derives the model of ttt-video-dit weights from tensor shapes, because these weights have no configuration file. The
/// shapes do not include the size of the video, so CogVideoX-5B's 49 frames of 480 × 720 are assumed.
pub(crate) fn model_of_ttt_video(tensors: &Tensors) -> Result<Model, Failure> {
    let bad = |why: String| {
        let what = "cannot derive the model from its weights";
        Failure::new(ErrorCode::Malformed, what, why, "convert the complete checkpoint of ttt-video-dit")
    };
    let shape = |name: &str, axes: usize| -> Result<&[usize], Failure> {
        let tensor = tensors.get(name).ok_or_else(|| bad(format!("they have no {name}")))?;
        if tensor.shape.len() == axes && !tensor.shape.contains(&0) {
            return Ok(&tensor.shape);
        }
        Err(bad(format!("{name} is {:?}", tensor.shape)))
    };
    let video = shape("patch_embedding.vid_proj.weight", 4)?;
    let [dim, in_channels, patch] = [video[0], video[1], video[2]];
    let head_dim = shape("layers.0.seq_modeling_block.q_norm.weight", 1)?[0];
    let out = shape("final_layer.linear.weight", 2)?[0];
    let layers = tensors.keys().filter_map(|name| name.strip_prefix("layers.")?.split('.').next()?.parse::<u32>().ok());
    let inner = |name| tensors.contains_key(&format!("layers.0.seq_modeling_block.ssm.ttt.{name}"));
    let (layer, mini_batch, base_lr) = match (inner("W1"), inner("W2")) {
        (false, _) => ("none", 0, 0.1),
        (true, false) => ("ttt_linear", 16, 1.0),
        (true, true) => ("ttt_mlp", 64, 0.1),
    };
    let size = |n: usize| toml::Value::Integer(i64::try_from(n).unwrap_or(i64::MAX));
    let table = toml::Table::from_iter(
        [
            ("positions", "rope".into()),
            ("num_layers", (i64::from(layers.max().unwrap_or(0)) + 1).into()),
            ("num_heads", size(dim / head_dim)),
            ("head_dim", size(head_dim)),
            ("time_embed_dim", size(shape("time_embed.0.weight", 2)?[0])),
            ("text_dim", size(shape("patch_embedding.text_proj.weight", 2)?[1])),
            ("text_len", 226.into()),
            ("in_channels", size(in_channels)),
            ("out_channels", size(out / (patch.saturating_mul(patch)).max(1))),
            ("patch_size", size(patch)),
            ("latent_frames", 13.into()),
            ("latent_height", 60.into()),
            ("latent_width", 90.into()),
            ("layer", layer.into()),
            ("ttt_mini_batch", mini_batch.into()),
            ("ttt_base_lr", base_lr.into()),
        ]
        .map(|(key, value): (&str, toml::Value)| (key.to_owned(), value)),
    );
    Model::from_table(&table).map_err(|e| bad(e.why))
}
