//! The cost of CogVideoX, with and without TTT layers. All of its blocks are alike.

use crate::cost::F32;
use crate::{BlockCost, Flops, FsdpUnit, Layer, Model, ParamSpec, RankMemory, Recipe, Split};

/// Returns the cost of every block. They differ only in [`BlockCost::summed_grads`].
pub(super) fn blocks(recipe: &Recipe) -> Vec<BlockCost> {
    let block = block(recipe);
    summed_grads(recipe).into_iter().map(|summed_grads| BlockCost { summed_grads, ..block }).collect()
}

/// Returns the cost of each block, without [`BlockCost::summed_grads`].
///
/// The list counts rows. A row is one tensor of all tokens at the model's width. Autograd keeps these rows for a block of the
/// `dit` crate; tests of the trainer compare them with measured peaks on the CPU.
///
/// * Whole: the outputs of two norms with modulation, which TP ranks gather.
/// * Tokens split over TP ranks: two gated updates, the residual between them, and the output, which is the next block's input.
/// * Width split over TP ranks: queries and keys before their norms; queries, keys, values and outputs of each segment; the
///   joined outputs if there are several segments or if TP ranks exchange tokens in pieces, which are copies; the MLP's hidden layer
///   before its activation, and after it if the next layer or its adapter is trained.
/// * In each direction, a TTT layer adds an input and an output, whose tokens are split over TP ranks, and 10 rows of which the width is
///   split; TP ranks also keep the gathered input.
/// * Temporaries: the group's input, the incoming gradient, and the gradients of the MLP's update and hidden layer; with TP also the
///   gathered gradient of the update.
fn block(recipe: &Recipe) -> BlockCost {
    let (m, tp) = (&recipe.model, recipe.mesh.tp);
    let own = m.cogvideox();
    let row = (m.seq_len() * m.dim()) as u64;
    // The tokens of a rank, with padding.
    let part = (m.seq_len().div_ceil(tp) * m.dim()) as u64;
    let attended = (own.segments * m.attention_len()) as u64;
    let attended_rows = attended as f64 / m.seq_len() as f64;
    let joined = if own.segments == 1 && !exchanges_pieces(recipe, part) { 0.0 } else { 1.0 };
    let has_ttt = own.layer != Layer::None;
    let (ttt_tokens, ttt_width, ttt_gathered) = if has_ttt { (4.0, 20.0, 2.0) } else { (0.0, 0.0, 0.0) };
    let if_tp = |rows: f64| if tp > 1 { rows } else { 0.0 };
    let of_down = |spec: &ParamSpec| spec.name.contains(".mlp.down.") && recipe.train.trains(spec);
    let hidden = if recipe.param_specs().iter().any(of_down) { 8.0 } else { 4.0 };
    let split = (2.0 + 4.0 * attended_rows + joined + hidden + ttt_width) / tp as f64;
    let whole = 2.0 + if_tp(ttt_gathered) + split;
    BlockCost {
        flops: block_flops(m),
        input: part,
        attended: attended * (m.dim() / tp) as u64,
        scanned: if has_ttt { 2 * row / tp as u64 } else { 0 },
        logsumexps: attended * (m.num_heads / tp) as u64,
        graph: whole * row as f64 + (4.0 + ttt_tokens) * part as f64,
        temporaries: 3.0 * part as f64 + (4.0 / tp as f64 + if_tp(1.0)) * row as f64,
        states: RankMemory::scan_states(recipe),
        // Attention, the MLP, and each direction of the TTT layer.
        mixed: if has_ttt { 4 } else { 2 } * tp as u64 * part,
        // The norm after each direction of a TTT layer covers the heads of all ranks: they gather each token's mean and
        // variance in float32.
        statistics: if has_ttt { (2 * m.seq_len() * 2 * 4 * tp) as u64 } else { 0 },
        summed_grads: 0,
    }
}

/// Returns whether TP ranks exchange tokens in several pieces, if a rank has `part` elements of each sample (`dit::parallel`).
fn exchanges_pieces(recipe: &Recipe, part: u64) -> bool {
    let bytes = recipe.micro_batch() * part * recipe.train.dtype.bytes();
    let can_divide = recipe.model.seq_len().is_multiple_of(recipe.mesh.tp) && recipe.lora.dropout == 0.0;
    recipe.mesh.tp > 1 && can_divide && recipe.train.tp_pieces.of(bytes, recipe.expects_gpus()) > 1
}

/// Returns the elements of each block whose gradients TP ranks sum: of the parameters that all ranks apply to their own tokens or heads,
/// and of the modulations of a micro-batch. They are one tensor, which has a gradient if any of its parts has one.
fn summed_grads(recipe: &Recipe) -> Vec<u64> {
    let specs = recipe.param_specs();
    let trains = |spec: &ParamSpec| recipe.train.trains(spec);
    // The time embedding, of which modulations are computed, is a part of the root.
    let root_trains = specs.iter().any(|spec| spec.unit == FsdpUnit::Root && trains(spec));
    let is_modulation = |spec: &ParamSpec| spec.name.contains(".norm1.linear.") || spec.name.contains(".norm2.linear.");
    let modulations = 2 * 6 * recipe.model.dim() as u64 * recipe.micro_batch();
    let mut blocks = vec![(modulations, root_trains); recipe.model.num_layers];
    for spec in specs.iter().filter(|spec| spec.split == Split::None) {
        let FsdpUnit::Block(number) = spec.unit else { continue };
        let (elements, has_gradient) = &mut blocks[number];
        *elements += if is_modulation(spec) { 0 } else { spec.len() };
        *has_gradient |= trains(spec);
    }
    blocks.into_iter().map(|(elements, has_gradient)| if has_gradient { elements } else { 0 }).collect()
}

/// Counts the forward pass of one block over one sample.
// L tokens, D model width, E time width, F head width.
fn block_flops(m: &Model) -> Flops {
    let [l, d, e, head] = [m.seq_len(), m.dim(), m.cogvideox().time_embed_dim, m.head_dim].map(|size| size as f64);
    let segment = m.attention_len() as f64;
    // Each direction has its own projections, and scans the sequence with seven products of F × 4F per token and head
    // (TTT-MLP) or three of F × F (TTT-linear).
    let scan = match m.cogvideox().layer {
        Layer::None => 0.0,
        Layer::TttLinear => 3.0 * head * head,
        Layer::TttMlp => 7.0 * 4.0 * head * head,
    };
    let ttt = if m.cogvideox().layer == Layer::None { 0.0 } else { 2.0 * l };
    Flops {
        attention: 2.0 * 2.0 * m.cogvideox().segments as f64 * segment * segment * d,
        projections: 2.0 * 4.0 * l * d * d,
        ttt_projections: 2.0 * ttt * 4.0 * d * d,
        ttt_scan: 2.0 * ttt * m.num_heads as f64 * scan,
        mlp: 2.0 * 8.0 * l * d * d,
        modulation: 2.0 * 2.0 * 6.0 * d * e,
        ends: 0.0,
    }
}

/// Counts one forward pass over one sample.
// D model width, E time width.
pub(super) fn forward_flops(m: &Model) -> Flops {
    let [d, e] = [m.dim(), m.cogvideox().time_embed_dim].map(|size| size as f64);
    let [text, video] = [m.text_tokens(), m.video_tokens()].map(|size| size as f64);
    let patch = (m.patch_size * m.patch_size * m.patch_size_t) as f64;
    let offset = if m.cogvideox().ofs_embedding { 2.0 * e * e } else { 0.0 };
    let embedding = video * d * patch * m.in_channels as f64 + text * m.text_dim as f64 * d + e * d + e * e + offset;
    let last = 2.0 * d * e + video * d * patch * m.out_channels as f64;
    let ends = Flops { ends: 2.0 * (embedding + last), ..Flops::default() };
    std::iter::repeat_n(block_flops(m), m.num_layers).fold(ends, |sum, block| sum + block)
}

impl RankMemory {
    /// Returns the size of the float32 inner states that both directions of a TTT layer save in a pass.
    pub fn scan_states(recipe: &Recipe) -> u64 {
        let m = &recipe.model;
        let head = m.head_dim as u64;
        let state = match m.cogvideox().layer {
            Layer::None => return 0,
            Layer::TttLinear => head * head + head,
            Layer::TttMlp => 2 * 4 * head * head + 4 * head + head,
        };
        let batches = (m.seq_len() / m.cogvideox().ttt_mini_batch) as u64;
        let groups = batches.div_ceil(recipe.remat.scan_group as u64);
        2 * groups * (m.num_heads / recipe.mesh.tp) as u64 * state * F32
    }
}

/// Returns the memory that the CUDA kernel of TTT scans takes for recomputed values in its backward pass, for all samples. It recomputes as
/// many groups of mini-batches at a time as fit into 1 GiB, and at least one group.
///
/// Source: `Kept` in `kernels/cuda/ttt_sizes.h`, without its vectors.
pub(super) fn scan_kernel(recipe: &Recipe) -> u64 {
    const MOST: u64 = 1 << 30;
    let m = &recipe.model;
    if !recipe.expects_scan_kernel() {
        return 0;
    }
    let (tokens, width) = (m.cogvideox().ttt_mini_batch as u64, m.head_dim as u64);
    let is_mlp = m.cogvideox().layer == Layer::TttMlp;
    let hidden = if is_mlp { 4 * width } else { width };
    let (wide, images) = if is_mlp { (6 * tokens * hidden, 3) } else { (0, 1) };
    let kept = 2 * (wide + images * hidden * width + 4 * tokens * width);
    let group = recipe.remat.scan_group as u64;
    let groups = (m.seq_len() as u64).div_ceil(tokens * group);
    let of_one = recipe.micro_batch() * (m.num_heads / recipe.mesh.tp) as u64 * group * kept;
    (of_one * groups).min(MOST.max(of_one))
}
