//! The table of an MMDiT's parameters.
//!
//! Projections that the original stores as one matrix are separate tensors here: queries, keys, values and hidden units. So adapters and TP
//! treat each by itself.

use super::Mmdit;
use crate::families::unit::Unit;
use crate::{FsdpUnit, ParamInit, ParamSpec};

/// The width of the sinusoidal embedding of timesteps and of the scale of guidance.
pub(super) const WAVES: usize = 256;

/// Returns every tensor of a network: the root's first, then block by block.
///
/// The initial values are those of PyTorch's linear layers, uniform within ±1/√in for weight and bias, except the embedding of given frames,
/// which starts at zero. Source: Open-Sora `opensora/models/mmdit/model.py`.
pub fn param_specs(m: &Mmdit) -> Vec<ParamSpec> {
    let dim = m.dim();
    let mut root = Unit::new(FsdpUnit::Root, &[]);
    layer(&mut root, "patch_embed.video", dim, m.patch_channels());
    if m.condition {
        root.layer("patch_embed.condition", &[dim, m.condition_channels()], ParamInit::Zeros);
    }
    layer(&mut root, "patch_embed.text", dim, m.text_dim);
    let guidance = m.guidance.then_some(("guidance_embed", WAVES));
    for (name, width) in [("time_embed", WAVES)].into_iter().chain(guidance).chain([("pooled_embed", m.pooled_dim)]) {
        layer(&mut root, &format!("{name}.linear1"), dim, width);
        layer(&mut root, &format!("{name}.linear2"), dim, dim);
    }
    layer(&mut root, "final.adaln.linear", 2 * dim, dim);
    layer(&mut root, "final.proj", m.patch_channels(), dim);

    let mut specs = root.specs;
    for number in 0..m.num_blocks() {
        let mut block = Unit::new(FsdpUnit::Block(number), &[]);
        if m.has_two_streams(number) {
            for stream in ["video.", "text."] {
                two_streams(&mut block, m, stream);
            }
        } else {
            one_stream(&mut block, m);
        }
        specs.extend(block.specs);
    }
    specs
}

/// Adds one stream of a block with two.
fn two_streams(block: &mut Unit, m: &Mmdit, stream: &str) {
    let dim = m.dim();
    layer(block, &format!("{stream}modulation.linear"), 6 * dim, dim);
    attention_inputs(block, m, stream, m.qkv_bias);
    layer(block, &format!("{stream}attn.o"), dim, dim);
    layer(block, &format!("{stream}mlp.up"), m.hidden, dim);
    layer(block, &format!("{stream}mlp.down"), dim, m.hidden);
}

/// Adds a block with one joined stream. The original has one output projection for attention and hidden units; its bias belongs to `mlp.down`
/// here, and its input width decides the initial values of both.
fn one_stream(block: &mut Unit, m: &Mmdit) {
    let dim = m.dim();
    layer(block, "modulation.linear", 3 * dim, dim);
    attention_inputs(block, m, "", true);
    layer(block, "mlp.up", m.hidden, dim);
    let init = ParamInit::Linear { fan_in: dim + m.hidden };
    block.push("attn.o.weight", &[dim, dim], init);
    block.layer("mlp.down", &[dim, m.hidden], init);
}

/// Adds the projections to queries, keys and values, and the norms of queries and keys.
fn attention_inputs(block: &mut Unit, m: &Mmdit, stream: &str, has_bias: bool) {
    let dim = m.dim();
    for name in ["q", "k", "v"] {
        let init = ParamInit::Linear { fan_in: dim };
        block.push(&format!("{stream}attn.{name}.weight"), &[dim, dim], init);
        if has_bias {
            block.push(&format!("{stream}attn.{name}.bias"), &[dim], init);
        }
    }
    for name in ["q_norm", "k_norm"] {
        block.push(&format!("{stream}attn.{name}.weight"), &[m.head_dim()], ParamInit::Ones);
    }
}

/// Adds a linear layer with a bias.
fn layer(unit: &mut Unit, name: &str, rows: usize, columns: usize) {
    unit.layer(name, &[rows, columns], ParamInit::Linear { fan_in: columns });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_have_the_published_numbers_of_parameters() {
        let without = Mmdit { condition: false, ..Mmdit::open_sora_2() };
        for (network, parameters) in [
            (Mmdit::open_sora_2(), 11_891_390_528),
            (without, 11_891_178_560),
            (Mmdit::open_sora_2_high_compression(), 11_891_971_200),
            (Mmdit::flux_dev(), 11_901_408_320),
        ] {
            assert_eq!(param_specs(&network).iter().map(ParamSpec::len).sum::<u64>(), parameters);
        }
    }

    #[test]
    fn heads_and_hidden_units_are_split_in_both_kinds_of_blocks() {
        let network = Mmdit { two_stream_blocks: 1, one_stream_blocks: 1, ..Mmdit::open_sora_2() };
        let split = |block: usize| {
            let of_block = |spec: &ParamSpec| spec.unit == FsdpUnit::Block(block) && spec.is_split();
            param_specs(&network).into_iter().filter(of_block).map(|spec| spec.name).collect::<Vec<_>>()
        };
        assert_eq!((split(0).len(), split(1).len()), (20, 10));
        assert!(param_specs(&network).iter().all(|spec| spec.unit != FsdpUnit::Root || !spec.is_split()));
        let one = ["q.weight", "q.bias", "k.weight", "k.bias", "v.weight", "v.bias"]
            .map(|name| format!("blocks.1.attn.{name}"));
        assert_eq!(split(1)[..6], one);
    }
}
