//! Every tensor of the network.

use super::{BlockKind, MODULATIONS, Stdit3, TIME_WAVES};
use crate::families::unit::Unit;
use crate::{FsdpUnit, ParamInit, ParamRole, ParamSpec};

/// Returns every tensor of a model without adapters: the root's first, then block by block.
///
/// Initial values are those of `STDiT3.initialize_weights`, with one rounding: tables and the empty text have a standard deviation of
/// 1/√width there. Here the root is rounded to a whole number.
pub fn param_specs(m: &Stdit3) -> Vec<ParamSpec> {
    let dim = m.dim();
    let mut root = Unit::new(FsdpUnit::Root, &[]);
    let [frames, rows, columns] = m.patch;
    let of_patch = ParamInit::Linear { fan_in: m.patch_numbers() };
    root.layer("patch_embed", &[dim, m.in_channels, frames, rows, columns], of_patch);
    root.layer("time_embed.linear1", &[dim, TIME_WAVES], ParamInit::Xavier);
    root.layer("time_embed.linear2", &[dim, dim], ParamInit::Xavier);
    root.layer("fps_embed.linear1", &[dim, TIME_WAVES], ParamInit::Normal);
    root.layer("fps_embed.linear2", &[dim, dim], ParamInit::Zeros);
    root.layer("modulation", &[MODULATIONS * dim, dim], ParamInit::Xavier);
    root.layer("text_embed.linear1", &[dim, m.text_dim], ParamInit::Xavier);
    root.layer("text_embed.linear2", &[dim, dim], ParamInit::Xavier);
    root.push("text_embed.empty", &[m.text_len, m.text_dim], normal(m.text_dim)).role = ParamRole::Buffer;
    root.push("final.table", &[2, dim], normal(dim));
    root.layer("final.proj", &[m.patch_numbers() / m.in_channels * m.out_channels(), dim], ParamInit::Xavier);
    let mut specs = root.specs;
    for number in 0..m.num_blocks() {
        specs.extend(block_specs(m, number));
    }
    specs
}

fn block_specs(m: &Stdit3, number: usize) -> Vec<ParamSpec> {
    let dim = m.dim();
    // A new temporal block only passes its input on, so that a network for images can be extended.
    let last = match m.kind(number) {
        BlockKind::Spatial => ParamInit::Xavier,
        BlockKind::Temporal => ParamInit::Zeros,
    };
    let mut block = Unit::new(FsdpUnit::Block(number), &[]);
    block.push("table", &[MODULATIONS, dim], normal(dim));
    for name in ["attn.q", "attn.k", "attn.v"] {
        block.layer(name, &[dim, dim], ParamInit::Xavier);
    }
    block.layer("attn.o", &[dim, dim], last);
    if m.normalizes_qk {
        for name in ["attn.q_norm.weight", "attn.k_norm.weight"] {
            block.push(name, &[m.head_dim], ParamInit::Ones);
        }
    }
    for name in ["cross_attn.q", "cross_attn.k", "cross_attn.v"] {
        block.layer(name, &[dim, dim], ParamInit::Xavier);
    }
    block.layer("cross_attn.o", &[dim, dim], last);
    block.layer("mlp.up", &[m.mlp_dim(), dim], ParamInit::Xavier);
    block.layer("mlp.down", &[dim, m.mlp_dim()], last);
    block.specs
}

/// Returns a normal distribution with a standard deviation of about 1/√width.
fn normal(width: usize) -> ParamInit {
    ParamInit::Gaussian { rank: (width as f64).sqrt().round() as usize }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Split;

    #[test]
    fn a_new_temporal_block_adds_nothing_to_its_input() {
        let zeros = |number: usize| {
            let specs = param_specs(&Stdit3::xl());
            let of_block = specs.into_iter().filter(|spec| spec.unit == FsdpUnit::Block(number));
            let zeros = of_block.filter(|spec| spec.name.ends_with(".weight") && spec.init == ParamInit::Zeros);
            zeros.map(|spec| spec.name).collect::<Vec<_>>()
        };
        assert!(zeros(0).is_empty());
        assert_eq!(zeros(1), ["attn.o", "cross_attn.o", "mlp.down"].map(|name| format!("blocks.1.{name}.weight")));
    }

    #[test]
    fn the_parts_of_a_tp_group_hold_each_head_and_hidden_unit_once() {
        let m = Stdit3 { num_heads: 4, head_dim: 8, depth: 1, ..Stdit3::xl() };
        for spec in param_specs(&m) {
            let parts: Vec<_> = (0..2).map(|rank| spec.part(rank, 2)).collect();
            let is_layer_of_block = spec.unit != FsdpUnit::Root && spec.shape.len() == 2 && spec.decay;
            assert!(!is_layer_of_block || spec.is_split(), "{}", spec.name);
            if let Split::Dim(dim) = spec.split {
                assert_eq!((parts[1].0[dim], parts[0].1[dim] * 2), (parts[0].1[dim], spec.shape[dim]), "{}", spec.name);
            }
        }
    }

    #[test]
    fn tables_have_the_standard_deviation_of_upstream_within_a_hundredth() {
        for model in [Stdit3::xl(), Stdit3::three_b()] {
            for spec in param_specs(&model) {
                if let ParamInit::Gaussian { rank } = spec.init {
                    let root = (spec.shape[1] as f64).sqrt();
                    assert!((rank as f64 / root - 1.0).abs() < 0.01, "{}: {rank}, not {root}", spec.name);
                }
            }
        }
    }
}
