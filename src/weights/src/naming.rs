//! Recognizes the naming scheme of a set of tensors, and derives the model of ttt-video-dit weights from their shapes.

use crate::tensor_spans::Tensors;
use recipe::Model;
use rundir::{ErrorCode, Failure};

/// A tensor that every model has, with its name in each scheme.
const SIGNS: [(&str, Names); 3] = [
    ("patch_embed.proj.weight", Names::Diffusers),
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

/// Recognizes the naming scheme and removes the prefixes of wrappers, such as `model.dit.`.
pub(crate) fn recognize(tensors: Tensors) -> Recognized {
    let (others, tensors): (Tensors, Tensors) =
        tensors.into_iter().partition(|(name, _)| STATE.iter().any(|start| name.starts_with(start)));
    let found = SIGNS.iter().find_map(|(sign, names)| {
        let prefix = tensors.keys().find_map(|name| {
            let prefix = name.strip_suffix(sign)?;
            (prefix.is_empty() || prefix.ends_with('.')).then(|| prefix.to_owned())
        })?;
        Some((prefix, *names))
    });
    let Some((prefix, names)) = found else { return Recognized { names: Names::Unknown, tensors, others } };
    let bare = |name: String| match name.strip_prefix(&prefix) {
        Some(rest) => rest.to_owned(),
        None => name,
    };
    Recognized { names, tensors: tensors.into_iter().map(|(name, tensor)| (bare(name), tensor)).collect(), others }
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
