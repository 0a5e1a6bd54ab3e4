//! The cost of Wan. All of its blocks are alike.

use super::{WanKeys, WanModel};
use crate::{BlockCost, Flops, FsdpUnit, Model, ParamSpec, Recipe, Split};

/// Returns the cost of every block. They differ only in [`BlockCost::summed_grads`].
pub(super) fn blocks(keys: &WanKeys, recipe: &Recipe) -> Vec<BlockCost> {
    let block = block(keys, recipe);
    summed_grads(recipe).into_iter().map(|summed_grads| BlockCost { summed_grads, ..block }).collect()
}

/// Returns the cost of each block, without [`BlockCost::summed_grads`].
///
/// The list counts rows. A row is one tensor of all video tokens at the model's width, in the compute dtype; one in fp32 counts as
/// `wide` rows. Autograd keeps these rows for a block of the `dit` crate:
///
/// * Whole: the outputs of two norms, which TP ranks gather, and of a third if the MLP's first layer or its adapter is trained.
/// * Tokens split over TP ranks: the residuals; if the modulation is trained, two norms and two updates in fp32.
/// * Width split over TP ranks: queries and keys before their norms in fp32, after them if the gains are trained, and after the
///   rotation; values and outputs of the self-attention; queries and outputs of the attention to the text; the MLP's hidden layer before its
///   activation, and after it if the next layer or its adapter is trained.
/// * Keys and values of the text.
fn block(keys: &WanKeys, recipe: &Recipe) -> BlockCost {
    let (m, tp) = (&recipe.model, recipe.mesh.tp);
    let wide = 4.0 / recipe.train.dtype.bytes() as f64;
    let row = (m.seq_len() * m.dim()) as u64;
    // The tokens of a rank, with padding.
    let part = (m.seq_len().div_ceil(tp) * m.dim()) as u64;
    let text = (m.text_len * m.dim()) as f64;
    let hidden = keys.ffn_dim as f64 / m.dim() as f64;
    let if_tp = |rows: f64| if tp > 1 { rows } else { 0.0 };
    let specs = recipe.param_specs();
    let if_trained = |part: &str, rows: f64| {
        let is_trained = |spec: &ParamSpec| spec.name.contains(part) && recipe.train.trains(spec);
        if specs.iter().any(is_trained) { rows } else { 0.0 }
    };
    let normed = wide + if_trained("_norm.weight", wide);
    let split = (2.0 * normed + 4.0) + (normed + 2.0) + hidden + if_trained(".mlp.down.", hidden);
    let whole = 2.0 + if_trained(".mlp.up.", 1.0);
    let of_text = (normed + 2.0) * text / tp as f64;
    let parts = 3.0 + if_trained("modulation", 4.0 * wide);
    BlockCost {
        flops: block_flops(&keys.network(m), m),
        input: part,
        attended: 2 * row / tp as u64,
        scanned: 0,
        logsumexps: 2 * (m.seq_len() * m.num_heads / tp) as u64,
        graph: (whole + split / tp as f64) * row as f64 + parts * part as f64 + of_text,
        temporaries: (2.0 + wide) * part as f64 + (2.0 * hidden / tp as f64 + if_tp(1.0)) * row as f64,
        states: 0,
        // Both attentions and the MLP.
        mixed: 3 * tp as u64 * part,
        // The norms of queries and keys cover the heads of all ranks: they gather each token's mean square in fp32.
        statistics: if tp > 1 { ((3 * m.seq_len() + m.text_len) * 4 * tp) as u64 } else { 0 },
        summed_grads: 0,
    }
}

/// Returns the elements of each block whose gradients TP ranks sum: of the parameters that all ranks apply to their own tokens, of the
/// text and of the modulation of a micro-batch. They are one tensor, which has a gradient if any of its parts has one.
fn summed_grads(recipe: &Recipe) -> Vec<u64> {
    let specs = recipe.param_specs();
    let trains = |spec: &ParamSpec| recipe.train.trains(spec);
    let root_trains = specs.iter().any(|spec| spec.unit == FsdpUnit::Root && trains(spec));
    let shared = (recipe.model.text_len + 6) as u64 * recipe.model.dim() as u64 * recipe.micro_batch();
    let mut blocks = vec![(shared, root_trains); recipe.model.num_layers];
    for spec in specs.iter().filter(|spec| spec.split == Split::None) {
        let FsdpUnit::Block(number) = spec.unit else { continue };
        let (elements, has_gradient) = &mut blocks[number];
        *elements += spec.len();
        *has_gradient |= trains(spec);
    }
    blocks.into_iter().map(|(elements, has_gradient)| if has_gradient { elements } else { 0 }).collect()
}

/// Counts the forward pass of one block over one sample.
// L tokens, D model width, T text tokens, H hidden units.
fn block_flops(network: &WanModel, m: &Model) -> Flops {
    let [l, d, t, h] = [m.video_tokens(), network.dim(), network.text_len, network.ffn_dim].map(|size| size as f64);
    Flops {
        attention: 2.0 * 2.0 * l * (l + t) * d,
        projections: 2.0 * (6.0 * l + 2.0 * t) * d * d,
        mlp: 2.0 * 2.0 * l * d * h,
        ..Flops::default()
    }
}

/// Counts one forward pass over one sample.
// D model width.
pub(super) fn forward_flops(keys: &WanKeys, m: &Model) -> Flops {
    let network = keys.network(m);
    let [d, time] = [network.dim(), network.freq_dim].map(|size| size as f64);
    let [text, video] = [m.text_tokens(), m.video_tokens()].map(|size| size as f64);
    let patch = network.patch_size.iter().product::<usize>() as f64;
    let channels = (network.in_channels + network.out_channels) as f64;
    let embedding = text * (m.text_dim as f64 + d) * d + (time + 7.0 * d) * d;
    let ends = Flops { ends: 2.0 * (embedding + video * d * patch * channels), ..Flops::default() };
    std::iter::repeat_n(block_flops(&network, m), m.num_layers).fold(ends, |sum, block| sum + block)
}
