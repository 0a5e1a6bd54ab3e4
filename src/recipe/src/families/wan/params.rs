//! Every tensor of a network of Wan.

use super::WanModel;
use crate::families::unit::Unit;
use crate::{FsdpUnit, ParamInit, ParamSpec, Split};

/// Returns every tensor of a network without adapters: the root's first, then block by block.
///
/// Source of the initial values: the original `WanModel.init_weights` (Xavier for linear layers and patches, a deviation of 0.02 for the
/// embeddings of text and time, zeros for the last layer, and a deviation of 1/√D for the modulation).
pub fn param_specs(model: &WanModel) -> Vec<ParamSpec> {
    let dim = model.dim();
    let [frames, rows, columns] = model.patch_size;
    let mut root = Unit::new(FsdpUnit::Root, &[]);
    let patch = [dim, model.in_channels, frames, rows, columns];
    root.layer("patch_embed", &patch, ParamInit::Xavier);
    root.layer("text_embed.linear1", &[dim, model.text_dim], ParamInit::Normal);
    root.layer("text_embed.linear2", &[dim, dim], ParamInit::Normal);
    root.layer("time_embed.linear1", &[dim, model.freq_dim], ParamInit::Normal);
    root.layer("time_embed.linear2", &[dim, dim], ParamInit::Normal);
    root.layer("time_embed.proj", &[6 * dim, dim], ParamInit::Xavier);
    if let Some(image) = &model.image {
        if let Some(positions) = image.positions {
            root.push("image_embed.positions", &[1, positions, image.dim], ParamInit::Zeros);
        }
        root.norm("image_embed.norm1", image.dim);
        root.layer("image_embed.linear1", &[image.dim, image.dim], ParamInit::Xavier);
        root.layer("image_embed.linear2", &[dim, image.dim], ParamInit::Xavier);
        root.norm("image_embed.norm2", dim);
    }
    root.push("final.modulation", &[1, 2, dim], modulation(dim));
    root.layer("final.proj", &[model.patch_len(), dim], ParamInit::Zeros);

    let mut specs = root.specs;
    for block in 0..model.num_layers {
        specs.extend(block_specs(model, block));
    }
    specs
}

/// The tensors that only Wan splits over the ranks of a TP group. The gains of the norms of queries and keys, which cover all heads, are split as the
/// heads are.
const SPLITS: &[(&str, Split)] = &[
    ("attn.q_norm.weight", Split::Dim(0)),
    ("attn.k_norm.weight", Split::Dim(0)),
    ("attn.image_k.weight", Split::Dim(0)),
    ("attn.image_k.bias", Split::Dim(0)),
    ("attn.image_v.weight", Split::Dim(0)),
    ("attn.image_v.bias", Split::Dim(0)),
    ("attn.image_k_norm.weight", Split::Dim(0)),
];

/// Returns the tensors of a block.
fn block_specs(model: &WanModel, index: usize) -> Vec<ParamSpec> {
    let dim = model.dim();
    let mut block = Unit::new(FsdpUnit::Block(index), SPLITS);
    block.push("modulation", &[1, 6, dim], modulation(dim));
    attention(&mut block, "attn", dim);
    block.norm("cross_attn.norm", dim);
    attention(&mut block, "cross_attn", dim);
    if model.image.is_some() {
        block.layer("cross_attn.image_k", &[dim, dim], ParamInit::Xavier);
        block.layer("cross_attn.image_v", &[dim, dim], ParamInit::Xavier);
        block.push("cross_attn.image_k_norm.weight", &[dim], ParamInit::Ones);
    }
    block.layer("mlp.up", &[model.ffn_dim, dim], ParamInit::Xavier);
    block.layer("mlp.down", &[dim, model.ffn_dim], ParamInit::Xavier);
    block.specs
}

/// Returns the initialization of a modulation: normal with a deviation of 1/√D, with √D rounded to a whole number.
fn modulation(dim: usize) -> ParamInit {
    ParamInit::Gaussian { rank: (dim as f64).sqrt().round() as usize }
}

/// Adds the four layers of an attention, and the gains of the norms of its queries and keys.
fn attention(block: &mut Unit, name: &str, dim: usize) {
    for layer in ["q", "k", "v", "o"] {
        block.layer(&format!("{name}.{layer}"), &[dim, dim], ParamInit::Xavier);
    }
    for norm in ["q_norm", "k_norm"] {
        block.push(&format!("{name}.{norm}.weight"), &[dim], ParamInit::Ones);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Release;
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_published_networks_have_about_as_many_parameters_as_their_names_state() {
        let billions =
            |release: Release| param_specs(&release.model()).iter().map(ParamSpec::len).sum::<u64>() as f64 / 1e9;
        let all = Release::ALL.map(|release| (billions(release) * 100.0).round() / 100.0);
        assert_eq!(all, [1.42, 14.29, 16.39, 16.4, 14.29, 5.0]);
    }

    #[test]
    fn the_root_comes_first_and_every_name_is_unique() {
        for release in Release::ALL {
            let specs = param_specs(&release.model());
            assert!(specs.iter().map(|spec| spec.unit).is_sorted());
            assert_eq!(specs.iter().map(|spec| &spec.name).collect::<BTreeSet<_>>().len(), specs.len());
        }
    }

    #[test]
    fn only_weights_of_linear_layers_and_patches_are_decayed() {
        for spec in param_specs(&Release::FirstLastFrame14B.model()) {
            assert_eq!(spec.decay, spec.name.ends_with(".weight") && spec.shape.len() > 1, "{}", spec.name);
        }
    }

    #[test]
    fn heads_and_hidden_units_are_split_over_the_ranks() {
        let specs = param_specs(&Release::ImageToVideo14B.model());
        let names = |split: Split| {
            let of_block = specs.iter().filter(|spec| spec.unit == FsdpUnit::Block(0) && spec.split == split);
            of_block.map(|spec| spec.name.strip_prefix("blocks.0.").unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(names(Split::Dim(1)), ["attn.o.weight", "cross_attn.o.weight", "mlp.down.weight"]);
        let whole = names(Split::None);
        let norms_and_biases = ["cross_attn.norm.weight", "cross_attn.norm.bias", "cross_attn.o.bias", "mlp.down.bias"];
        assert_eq!(whole, [&["modulation", "attn.o.bias"][..], &norms_and_biases].concat());
        assert!(specs.iter().all(|spec| spec.unit != FsdpUnit::Root || spec.split == Split::None));
    }
}
