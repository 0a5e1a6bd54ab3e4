//! The table of an MMDiT's parameters.
//!
//! Projections that the original stores as one matrix are separate tensors here: queries, keys, values and hidden units. So adapters and TP
//! treat each by itself.

use super::Mmdit;
use crate::{FsdpUnit, ParamGroup, ParamInit, ParamRole, ParamSpec, Split};

/// The width of the sinusoidal embedding of timesteps and of the scale of guidance.
pub(super) const WAVES: usize = 256;

/// Returns every tensor of a network: the root's first, then block by block.
///
/// The initial values are those of PyTorch's linear layers, uniform within ±1/√in for weight and bias, except the embedding of given frames,
/// which starts at zero. Source: Open-Sora `opensora/models/mmdit/model.py`.
pub fn param_specs(m: &Mmdit) -> Vec<ParamSpec> {
    let dim = m.dim();
    let mut root = Layers::new(FsdpUnit::Root, String::new());
    root.layer("patch_embed.video", dim, m.patch_channels());
    if m.condition {
        for (name, shape) in [("weight", &[dim, m.condition_channels()][..]), ("bias", &[dim])] {
            root.push(format!("patch_embed.condition.{name}"), shape, ParamInit::Zeros);
        }
    }
    root.layer("patch_embed.text", dim, m.text_dim);
    let guidance = m.guidance.then_some(("guidance_embed", WAVES));
    for (name, width) in [("time_embed", WAVES)].into_iter().chain(guidance).chain([("pooled_embed", m.pooled_dim)]) {
        root.layer(&format!("{name}.linear1"), dim, width);
        root.layer(&format!("{name}.linear2"), dim, dim);
    }
    root.layer("final.adaln.linear", 2 * dim, dim);
    root.layer("final.proj", m.patch_channels(), dim);

    let mut specs = root.specs;
    for number in 0..m.num_blocks() {
        let mut block = Layers::new(FsdpUnit::Block(number), format!("blocks.{number}."));
        if m.has_two_streams(number) {
            for stream in ["video.", "text."] {
                block.two_streams(m, stream);
            }
        } else {
            block.one_stream(m);
        }
        specs.extend(block.specs);
    }
    specs
}

/// The tensors that are split over the ranks of a TP group, by the ends of their names in a block.
const SPLITS: [(&str, Split); 10] = [
    ("attn.q.weight", Split::Dim(0)),
    ("attn.q.bias", Split::Dim(0)),
    ("attn.k.weight", Split::Dim(0)),
    ("attn.k.bias", Split::Dim(0)),
    ("attn.v.weight", Split::Dim(0)),
    ("attn.v.bias", Split::Dim(0)),
    ("attn.o.weight", Split::Dim(1)),
    ("mlp.up.weight", Split::Dim(0)),
    ("mlp.up.bias", Split::Dim(0)),
    ("mlp.down.weight", Split::Dim(1)),
];

/// Collects the tensors of one unit.
struct Layers {
    unit: FsdpUnit,
    prefix: String,
    specs: Vec<ParamSpec>,
}

impl Layers {
    fn new(unit: FsdpUnit, prefix: String) -> Self {
        Layers { unit, prefix, specs: Vec::new() }
    }

    /// Adds one stream of a block with two.
    fn two_streams(&mut self, m: &Mmdit, stream: &str) {
        let dim = m.dim();
        self.layer(&format!("{stream}modulation.linear"), 6 * dim, dim);
        self.attention_inputs(m, stream, m.qkv_bias);
        self.layer(&format!("{stream}attn.o"), dim, dim);
        self.layer(&format!("{stream}mlp.up"), m.hidden, dim);
        self.layer(&format!("{stream}mlp.down"), dim, m.hidden);
    }

    /// Adds a block with one joined stream. The original has one output projection for attention and hidden units; its bias belongs to
    /// `mlp.down` here, and its input width decides the initial values of both.
    fn one_stream(&mut self, m: &Mmdit) {
        let dim = m.dim();
        self.layer("modulation.linear", 3 * dim, dim);
        self.attention_inputs(m, "", true);
        self.layer("mlp.up", m.hidden, dim);
        let init = ParamInit::Linear { fan_in: dim + m.hidden };
        self.push("attn.o.weight".into(), &[dim, dim], init);
        self.push("mlp.down.weight".into(), &[dim, m.hidden], init);
        self.push("mlp.down.bias".into(), &[dim], init);
    }

    /// Adds the projections to queries, keys and values, and the norms of queries and keys.
    fn attention_inputs(&mut self, m: &Mmdit, stream: &str, has_bias: bool) {
        let dim = m.dim();
        for name in ["q", "k", "v"] {
            let init = ParamInit::Linear { fan_in: dim };
            self.push(format!("{stream}attn.{name}.weight"), &[dim, dim], init);
            if has_bias {
                self.push(format!("{stream}attn.{name}.bias"), &[dim], init);
            }
        }
        for name in ["q_norm", "k_norm"] {
            self.push(format!("{stream}attn.{name}.weight"), &[m.head_dim()], ParamInit::Ones);
        }
    }

    /// Adds a linear layer with a bias.
    fn layer(&mut self, name: &str, rows: usize, columns: usize) {
        let init = ParamInit::Linear { fan_in: columns };
        self.push(format!("{name}.weight"), &[rows, columns], init);
        self.push(format!("{name}.bias"), &[rows], init);
    }

    fn push(&mut self, name: String, shape: &[usize], init: ParamInit) {
        let ends = |end: &str| name.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
        let split = SPLITS.iter().find(|(end, _)| ends(end)).map_or(Split::None, |(_, split)| *split);
        self.specs.push(ParamSpec {
            name: format!("{}{name}", self.prefix),
            diffusers: None,
            shape: shape.to_vec(),
            unit: self.unit,
            init,
            role: ParamRole::Trained,
            group: ParamGroup::Rest,
            decay: shape.len() > 1,
            split,
        });
    }
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
