//! The names of our tensors in published files.

use crate::families::FileTensor;
use crate::families::file_tensor::part_of;

/// The layouts of published files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// The folder `transformer` of diffusers.
    Diffusers,
    /// The original release, and the diffusion models that ComfyUI loads alone.
    Original,
    /// The original names with the prefix of a checkpoint of ComfyUI.
    ComfyUi,
}

impl Layout {
    /// All layouts.
    pub const ALL: [Layout; 3] = [Layout::Diffusers, Layout::Original, Layout::ComfyUi];

    fn prefix(self) -> &'static str {
        match self {
            Layout::Diffusers | Layout::Original => "",
            Layout::ComfyUi => "model.diffusion_model.",
        }
    }
}

/// Names of the root: ours, those of diffusers and the original ones. What follows a name (`.weight`, `.bias`) is the same in all.
const ROOT: &[[&str; 3]] = &[
    ["patch_embed", "patch_embedding", "patch_embedding"],
    ["text_embed.linear1", "condition_embedder.text_embedder.linear_1", "text_embedding.0"],
    ["text_embed.linear2", "condition_embedder.text_embedder.linear_2", "text_embedding.2"],
    ["time_embed.linear1", "condition_embedder.time_embedder.linear_1", "time_embedding.0"],
    ["time_embed.linear2", "condition_embedder.time_embedder.linear_2", "time_embedding.2"],
    ["time_embed.proj", "condition_embedder.time_proj", "time_projection.1"],
    ["image_embed.positions", "condition_embedder.image_embedder.pos_embed", "img_emb.emb_pos"],
    ["image_embed.norm1", "condition_embedder.image_embedder.norm1", "img_emb.proj.0"],
    ["image_embed.linear1", "condition_embedder.image_embedder.ff.net.0.proj", "img_emb.proj.1"],
    ["image_embed.linear2", "condition_embedder.image_embedder.ff.net.2", "img_emb.proj.3"],
    ["image_embed.norm2", "condition_embedder.image_embedder.norm2", "img_emb.proj.4"],
    ["final.modulation", "scale_shift_table", "head.modulation"],
    ["final.proj", "proj_out", "head.head"],
];

/// Names within a block, which all layouts call `blocks.N`. diffusers numbers the norms in the order of their use, so its `norm2` is the
/// original `norm3`.
const BLOCK: &[[&str; 3]] = &[
    ["modulation", "scale_shift_table", "modulation"],
    ["attn.q", "attn1.to_q", "self_attn.q"],
    ["attn.k", "attn1.to_k", "self_attn.k"],
    ["attn.v", "attn1.to_v", "self_attn.v"],
    ["attn.o", "attn1.to_out.0", "self_attn.o"],
    ["attn.q_norm", "attn1.norm_q", "self_attn.norm_q"],
    ["attn.k_norm", "attn1.norm_k", "self_attn.norm_k"],
    ["cross_attn.norm", "norm2", "norm3"],
    ["cross_attn.q", "attn2.to_q", "cross_attn.q"],
    ["cross_attn.k", "attn2.to_k", "cross_attn.k"],
    ["cross_attn.v", "attn2.to_v", "cross_attn.v"],
    ["cross_attn.o", "attn2.to_out.0", "cross_attn.o"],
    ["cross_attn.q_norm", "attn2.norm_q", "cross_attn.norm_q"],
    ["cross_attn.k_norm", "attn2.norm_k", "cross_attn.norm_k"],
    ["cross_attn.image_k", "attn2.add_k_proj", "cross_attn.k_img"],
    ["cross_attn.image_v", "attn2.add_v_proj", "cross_attn.v_img"],
    ["cross_attn.image_k_norm", "attn2.norm_added_k", "cross_attn.norm_k_img"],
    ["mlp.up", "ffn.net.0.proj", "ffn.0"],
    ["mlp.down", "ffn.net.2", "ffn.2"],
];

/// Returns the place of one of our tensors in a file of a layout; `None` if `name` is not a tensor of Wan. No layout joins tensors.
pub fn file_tensor(layout: Layout, name: &str) -> Option<FileTensor> {
    let theirs = their_name(layout, name)?;
    Some(FileTensor::whole(format!("{}{theirs}", layout.prefix())))
}

/// Returns the name of a tensor or layer in a layout, without the prefix.
pub(super) fn their_name(layout: Layout, name: &str) -> Option<String> {
    let (block, rest) = match name.strip_prefix("blocks.") {
        None => (String::new(), name),
        Some(of_block) => {
            let (number, rest) = of_block.split_once('.')?;
            (format!("blocks.{number}."), rest)
        }
    };
    let table = if block.is_empty() { ROOT } else { BLOCK };
    let (end, [_, diffusers, original]) = table.iter().find_map(|row| Some((part_of(rest, row[0])?, row)))?;
    let theirs = if layout == Layout::Diffusers { diffusers } else { original };
    Some(format!("{block}{theirs}{end}"))
}

#[cfg(test)]
mod tests {
    use super::super::{Release, param_specs};
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_tensor_has_a_name_of_its_own_in_every_layout() {
        for (release, layout) in
            Release::ALL.into_iter().flat_map(|release| Layout::ALL.map(|layout| (release, layout)))
        {
            let specs = param_specs(&release.model());
            let names: BTreeSet<_> = specs.iter().map(|spec| file_tensor(layout, &spec.name).unwrap().name).collect();
            assert_eq!(names.len(), specs.len(), "{release:?} {layout:?}");
        }
    }

    #[test]
    fn the_norm_before_the_attention_to_the_text_has_another_number_in_each_layout() {
        let names = Layout::ALL.map(|layout| file_tensor(layout, "blocks.7.cross_attn.norm.bias").unwrap().name);
        assert_eq!(names, ["blocks.7.norm2.bias", "blocks.7.norm3.bias", "model.diffusion_model.blocks.7.norm3.bias"]);
    }

    #[test]
    fn a_name_that_is_not_ours_has_no_place_in_a_file() {
        for name in ["blocks.0.attn.qq.weight", "blocks.0", "patch_embedding.weight", "blocks.0.final.proj.weight", ""]
        {
            assert_eq!(file_tensor(Layout::Original, name), None, "{name}");
        }
    }
}
