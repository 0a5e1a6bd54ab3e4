//! The cost of CogVideoX, with and without TTT layers. All of its blocks are alike.

use super::{BlockCost, Flops, RankMemory, memory::F32};
use crate::{Layer, Model, ParamSpec, Recipe, param_specs};

/// Returns the cost of each block.
///
/// The list counts rows. A row is one tensor of all tokens at the model's width. Autograd keeps these rows for a block of the
/// `dit` crate; tests of the trainer compare them with measured peaks on the CPU.
///
/// * Whole width: the outputs of two norms with modulation, two gated updates, the residual between them, and the output,
///   which is the next block's input.
/// * Split over TP ranks: queries and keys before their norms; queries, keys, values and outputs of each segment; the
///   joined outputs if there are several segments; the MLP's hidden layer before its activation, and after it if the next layer or its
///   adapter is trained.
/// * In each direction, a TTT layer adds an input and an output of whole width, and 10 rows that are split over TP ranks.
/// * Temporaries: the group's input, the incoming gradient, and the gradients of the MLP's update and hidden layer.
pub(super) fn block(recipe: &Recipe) -> BlockCost {
    let (m, tp) = (&recipe.model, recipe.mesh.tp);
    let row = (m.seq_len() * m.dim()) as u64;
    let attended = (m.segments * m.attention_len()) as u64;
    let attended_rows = attended as f64 / m.seq_len() as f64;
    let joined = if m.segments == 1 { 0.0 } else { 1.0 };
    let has_ttt = m.layer != Layer::None;
    let (ttt_whole, ttt_split) = if has_ttt { (4.0, 20.0) } else { (0.0, 0.0) };
    let is_head_norm = |spec: &ParamSpec| spec.name.contains(".attn.q_norm") || spec.name.contains(".attn.k_norm");
    let norms_train = param_specs(m).iter().any(|spec| is_head_norm(spec) && recipe.train.trains(spec));
    let of_down = |spec: &ParamSpec| spec.name.contains(".mlp.down.") && recipe.train.trains(spec);
    let hidden = if recipe.param_specs().iter().any(of_down) { 8.0 } else { 4.0 };
    let split = (2.0 + 4.0 * attended_rows + joined + hidden + ttt_split) / tp as f64;
    BlockCost {
        flops: block_flops(m),
        input: row,
        attended: attended * (m.dim() / tp) as u64,
        scanned: if has_ttt { 2 * row / tp as u64 } else { 0 },
        logsumexps: attended * (m.num_heads / tp) as u64,
        graph: (6.0 + ttt_whole + split) * row as f64,
        temporaries: (3.0 + 4.0 / tp as f64) * row as f64,
        states: RankMemory::scan_states(recipe),
        // After attention, after each direction of the TTT layer and after the MLP.
        summed: if has_ttt { 4 * row } else { 2 * row },
        // The norm after each direction of a TTT layer covers the heads of all ranks: they gather each token's mean and
        // variance in float32.
        statistics: if has_ttt { (2 * m.seq_len() * 2 * 4 * tp) as u64 } else { 0 },
        // Every rank has the gain and bias of the norms of queries and keys, and applies them to its own heads.
        summed_grads: if norms_train { (4 * m.head_dim) as u64 } else { 0 },
    }
}

/// Counts the forward pass of one block over one sample.
// L tokens, D model width, E time width, F head width.
fn block_flops(m: &Model) -> Flops {
    let [l, d, e, head] = [m.seq_len(), m.dim(), m.time_embed_dim, m.head_dim].map(|size| size as f64);
    let segment = m.attention_len() as f64;
    // Each direction has its own projections, and scans the sequence with seven products of F × 4F per token and head
    // (TTT-MLP) or three of F × F (TTT-linear).
    let scan = match m.layer {
        Layer::None => 0.0,
        Layer::TttLinear => 3.0 * head * head,
        Layer::TttMlp => 7.0 * 4.0 * head * head,
    };
    let ttt = if m.layer == Layer::None { 0.0 } else { 2.0 * l };
    Flops {
        attention: 2.0 * 2.0 * m.segments as f64 * segment * segment * d,
        projections: 2.0 * 4.0 * l * d * d,
        ttt_projections: 2.0 * ttt * 4.0 * d * d,
        ttt_scan: 2.0 * ttt * m.num_heads as f64 * scan,
        mlp: 2.0 * 8.0 * l * d * d,
        modulation: 2.0 * 2.0 * 6.0 * d * e,
        ends: 0.0,
    }
}

impl Flops {
    /// Counts one forward pass over one sample.
    // D model width, E time width.
    pub fn forward(m: &Model) -> Self {
        let [d, e] = [m.dim(), m.time_embed_dim].map(|size| size as f64);
        let [text, video] = [m.text_tokens(), m.video_tokens()].map(|size| size as f64);
        let patch = (m.patch_size * m.patch_size * m.patch_size_t) as f64;
        let offset = if m.ofs_embedding { 2.0 * e * e } else { 0.0 };
        let embedding =
            video * d * patch * m.in_channels as f64 + text * m.text_dim as f64 * d + e * d + e * e + offset;
        let last = 2.0 * d * e + video * d * patch * m.out_channels as f64;
        let ends = Flops { ends: 2.0 * (embedding + last), ..Flops::default() };
        std::iter::repeat_n(block_flops(m), m.num_layers).fold(ends, |sum, block| sum + block)
    }
}

impl RankMemory {
    /// Returns the size of the float32 inner states that both directions of a TTT layer save in a pass.
    pub fn scan_states(recipe: &Recipe) -> u64 {
        let m = &recipe.model;
        let head = m.head_dim as u64;
        let state = match m.layer {
            Layer::None => return 0,
            Layer::TttLinear => head * head + head,
            Layer::TttMlp => 2 * 4 * head * head + 4 * head + head,
        };
        let batches = (m.seq_len() / m.ttt_mini_batch) as u64;
        let groups = batches.div_ceil(recipe.remat.scan_group as u64);
        2 * groups * (m.num_heads / recipe.mesh.tp) as u64 * state * F32
    }
}
