//! The names of tensors in published files.

use super::{BlockKind, Stdit3};
use crate::families::FileTensor;
use crate::families::file_tensor::part_of;

/// The layout of a published file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// `model.safetensors` of Open-Sora 1.2, as `hpcai-tech/OpenSora-STDiT-v3` has it.
    OpenSora,
    /// The state of PixArt-Σ, from which Open-Sora started: it has no temporal blocks, no frame rates and no norms of queries and keys.
    /// Its `x_embedder.proj.weight` has no dimension of frames. Its `y_embedder.y_embedding` may have another number of rows: Open-Sora
    /// repeats the last row, or cuts.
    PixArtSigma,
}

/// The tensor of an Open-Sora file that vidtui computes: the rotary frequencies `10000^(-2j/d)` of a head's `d` channels, `[d/2]`.
pub const OPEN_SORA_ROPE: &str = "rope.freqs";

/// The layers of the root, here and in files.
const ROOT: &[(&str, &str)] = &[
    ("patch_embed", "x_embedder.proj"),
    ("time_embed.linear1", "t_embedder.mlp.0"),
    ("time_embed.linear2", "t_embedder.mlp.2"),
    ("fps_embed.linear1", "fps_embedder.mlp.0"),
    ("fps_embed.linear2", "fps_embedder.mlp.2"),
    ("modulation", "t_block.1"),
    ("text_embed.linear1", "y_embedder.y_proj.fc1"),
    ("text_embed.linear2", "y_embedder.y_proj.fc2"),
    ("text_embed.empty", "y_embedder.y_embedding"),
    ("final.table", "final_layer.scale_shift_table"),
    ("final.proj", "final_layer.linear"),
];

/// The layers of a block: the name here, the name in files, and which part of the file's tensor it is. A part has as many rows as a token has
/// channels.
const BLOCK: &[(&str, &str, Option<usize>)] = &[
    ("table", "scale_shift_table", None),
    ("attn.q", "attn.qkv", Some(0)),
    ("attn.k", "attn.qkv", Some(1)),
    ("attn.v", "attn.qkv", Some(2)),
    ("attn.o", "attn.proj", None),
    ("attn.q_norm", "attn.q_norm", None),
    ("attn.k_norm", "attn.k_norm", None),
    ("cross_attn.q", "cross_attn.q_linear", None),
    ("cross_attn.k", "cross_attn.kv_linear", Some(0)),
    ("cross_attn.v", "cross_attn.kv_linear", Some(1)),
    ("cross_attn.o", "cross_attn.proj", None),
    ("mlp.up", "mlp.fc1", None),
    ("mlp.down", "mlp.fc2", None),
];

/// Returns where a tensor with this name of ours is in a file; `None` if the file does not have it.
pub fn file_tensor(layout: Layout, model: &Stdit3, name: &str) -> Option<FileTensor> {
    let Some((number, rest)) = name.strip_prefix("blocks.").and_then(|rest| rest.split_once('.')) else {
        let (theirs, end) = ROOT.iter().find_map(|(ours, theirs)| Some((theirs, part_of(name, ours)?)))?;
        let is_there = layout == Layout::OpenSora || !name.starts_with("fps_embed");
        return is_there.then(|| FileTensor::whole(format!("{theirs}{end}")));
    };
    let number: usize = number.parse().ok().filter(|number| *number < model.num_blocks())?;
    let (end, (ours, theirs, part)) = BLOCK.iter().find_map(|row| Some((part_of(rest, row.0)?, row)))?;
    let blocks = match (layout, model.kind(number)) {
        (Layout::OpenSora, BlockKind::Spatial) => "spatial_blocks",
        (Layout::OpenSora, BlockKind::Temporal) => "temporal_blocks",
        (Layout::PixArtSigma, BlockKind::Spatial) if !ours.ends_with("_norm") => "blocks",
        (Layout::PixArtSigma, _) => return None,
    };
    let rows = part.map(|part| part * model.dim()..(part + 1) * model.dim());
    let name = format!("{blocks}.{}.{theirs}{end}", number / 2);
    Some(FileTensor { rows, ..FileTensor::whole(name) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::stdit3::param_specs;
    use std::collections::BTreeMap;

    /// Returns the rows of each tensor of a file that our tensors take, in order.
    fn taken(layout: Layout, model: &Stdit3) -> BTreeMap<String, Vec<Option<std::ops::Range<usize>>>> {
        let mut taken = BTreeMap::<_, Vec<_>>::new();
        for spec in param_specs(model) {
            if let Some(FileTensor { name, rows, .. }) = file_tensor(layout, model, &spec.name) {
                assert!(rows.as_ref().is_none_or(|rows| rows.len() == spec.shape[0]), "{}", spec.name);
                taken.entry(name).or_default().push(rows);
            }
        }
        taken
    }

    #[test]
    fn every_tensor_of_a_file_of_open_sora_is_used_exactly_once() {
        let model = Stdit3::xl();
        let taken = taken(Layout::OpenSora, &model);
        // The released file has 973 tensors with the rotary frequencies.
        assert_eq!(taken.len() + 1, 973);
        for (name, rows) in &taken {
            let parts = rows.iter().flatten().map(|rows| rows.start / model.dim()).collect::<Vec<_>>();
            assert_eq!(parts, (0..parts.len()).collect::<Vec<_>>(), "{name}");
            assert!(parts.len() == rows.len() || rows.len() == 1, "{name}");
        }
        assert_eq!(taken["temporal_blocks.27.attn.qkv.bias"].len(), 3);
        assert_eq!(taken["spatial_blocks.0.cross_attn.kv_linear.weight"], [Some(0..1152), Some(1152..2304)]);
    }

    #[test]
    fn pixart_has_the_spatial_blocks_and_no_frame_rates() {
        let taken = taken(Layout::PixArtSigma, &Stdit3::xl());
        assert!(taken.contains_key("blocks.27.cross_attn.proj.bias") && taken.contains_key("t_block.1.weight"));
        assert!(!taken.keys().any(|name| name.contains("norm") || name.contains("fps") || name.contains("temporal")));
    }

    #[test]
    fn names_that_the_network_does_not_have_are_nowhere() {
        for name in ["blocks.56.table", "blocks.0.attn.x.weight", "time_embed.linear3.weight", "patch_embedding"] {
            assert_eq!(file_tensor(Layout::OpenSora, &Stdit3::xl(), name), None);
        }
    }
}
