//! Every tensor of a network of Wan.

use super::WanModel;
use crate::{FsdpUnit, ParamGroup, ParamInit, ParamRole, ParamSpec, Split};

/// Returns every tensor of a network without adapters: the root's first, then block by block.
///
/// Source of the initial values: the original `WanModel.init_weights` (Xavier for linear layers and patches, a deviation of 0.02 for the
/// embeddings of text and time, zeros for the last layer, and a deviation of 1/√D for the modulation).
pub fn param_specs(model: &WanModel) -> Vec<ParamSpec> {
    let dim = model.dim();
    let [frames, rows, columns] = model.patch_size;
    let mut root = Unit::new(FsdpUnit::Root);
    let patch = [dim, model.in_channels, frames, rows, columns];
    root.push("patch_embed.weight", &patch, ParamInit::Xavier, true, Split::None);
    root.push("patch_embed.bias", &[dim], ParamInit::Zeros, false, Split::None);
    root.linear("text_embed.linear1", [dim, model.text_dim], ParamInit::Normal, Split::None);
    root.linear("text_embed.linear2", [dim, dim], ParamInit::Normal, Split::None);
    root.linear("time_embed.linear1", [dim, model.freq_dim], ParamInit::Normal, Split::None);
    root.linear("time_embed.linear2", [dim, dim], ParamInit::Normal, Split::None);
    root.linear("time_embed.proj", [6 * dim, dim], ParamInit::Xavier, Split::None);
    if let Some(image) = &model.image {
        if let Some(positions) = image.positions {
            let shape = [1, positions, image.dim];
            root.push("image_embed.positions", &shape, ParamInit::Zeros, false, Split::None);
        }
        root.norm("image_embed.norm1", image.dim);
        root.linear("image_embed.linear1", [image.dim, image.dim], ParamInit::Xavier, Split::None);
        root.linear("image_embed.linear2", [dim, image.dim], ParamInit::Xavier, Split::None);
        root.norm("image_embed.norm2", dim);
    }
    root.push("final.modulation", &[1, 2, dim], modulation(dim), false, Split::None);
    root.linear("final.proj", [model.patch_len(), dim], ParamInit::Zeros, Split::None);

    let mut specs = root.specs;
    for block in 0..model.num_layers {
        specs.extend(block_specs(model, block));
    }
    specs
}

/// Returns the tensors of a block. With TP, heads and hidden units are rows of the layers that make them and columns of the layers that read them.
/// The gains of the norms of queries and keys, which cover all heads, are split as the heads are.
fn block_specs(model: &WanModel, index: usize) -> Vec<ParamSpec> {
    let dim = model.dim();
    let mut block = Unit::new(FsdpUnit::Block(index));
    block.push("modulation", &[1, 6, dim], modulation(dim), false, Split::None);
    block.attention("attn", dim);
    block.norm("cross_attn.norm", dim);
    block.attention("cross_attn", dim);
    if model.image.is_some() {
        block.linear("cross_attn.image_k", [dim, dim], ParamInit::Xavier, Split::Dim(0));
        block.linear("cross_attn.image_v", [dim, dim], ParamInit::Xavier, Split::Dim(0));
        block.push("cross_attn.image_k_norm.weight", &[dim], ParamInit::Ones, false, Split::Dim(0));
    }
    block.linear("mlp.up", [model.ffn_dim, dim], ParamInit::Xavier, Split::Dim(0));
    block.linear("mlp.down", [dim, model.ffn_dim], ParamInit::Xavier, Split::Dim(1));
    block.specs
}

/// Returns the initialization of a modulation: normal with a deviation of 1/√D, with √D rounded to a whole number.
fn modulation(dim: usize) -> ParamInit {
    ParamInit::Gaussian { rank: (dim as f64).sqrt().round() as usize }
}

/// Collects the tensors of one unit.
struct Unit {
    unit: FsdpUnit,
    prefix: String,
    specs: Vec<ParamSpec>,
}

impl Unit {
    fn new(unit: FsdpUnit) -> Self {
        let prefix = match unit {
            FsdpUnit::Root => String::new(),
            FsdpUnit::Block(index) => format!("blocks.{index}."),
        };
        Unit { unit, prefix, specs: Vec::new() }
    }

    /// Adds the four layers of an attention, and the gains of the norms of its queries and keys.
    fn attention(&mut self, name: &str, dim: usize) {
        for layer in ["q", "k", "v"] {
            self.linear(&format!("{name}.{layer}"), [dim, dim], ParamInit::Xavier, Split::Dim(0));
        }
        self.linear(&format!("{name}.o"), [dim, dim], ParamInit::Xavier, Split::Dim(1));
        for norm in ["q_norm", "k_norm"] {
            self.push(&format!("{name}.{norm}.weight"), &[dim], ParamInit::Ones, false, Split::Dim(0));
        }
    }

    /// Adds a linear layer: a weight `[out, in]` and a bias `[out]`, which is split if the outputs are.
    fn linear(&mut self, name: &str, shape: [usize; 2], init: ParamInit, split: Split) {
        self.push(&format!("{name}.weight"), &shape, init, true, split);
        let of_bias = if split == Split::Dim(0) { split } else { Split::None };
        self.push(&format!("{name}.bias"), &shape[..1], ParamInit::Zeros, false, of_bias);
    }

    /// Adds a LayerNorm.
    fn norm(&mut self, name: &str, width: usize) {
        self.push(&format!("{name}.weight"), &[width], ParamInit::Ones, false, Split::None);
        self.push(&format!("{name}.bias"), &[width], ParamInit::Zeros, false, Split::None);
    }

    fn push(&mut self, name: &str, shape: &[usize], init: ParamInit, decay: bool, split: Split) {
        self.specs.push(ParamSpec {
            name: format!("{}{name}", self.prefix),
            diffusers: None,
            shape: shape.to_vec(),
            unit: self.unit,
            init,
            role: ParamRole::Trained,
            group: ParamGroup::Rest,
            decay,
            split,
        });
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
