use crate::{Layer, Mesh, Model, ParamSpec, Recipe, Role, Split, param_specs};

/// What a recipe costs, counted from its shapes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// Parameters of the model.
    pub params: u64,
    /// Parameters that are trained.
    pub trainable: u64,
    /// Of the parameters, those that the ranks of a TP group share out.
    pub split: u64,
    /// Of those that are trained, those that the ranks of a TP group share out.
    pub split_trainable: u64,
    /// Tokens per sample.
    pub seq_len: u64,
    /// Floating-point operations of one forward pass over one sample: matrix products and attention, a multiply-add
    /// counted as two. A training step is about four of these per sample: forward, again before backward, and twice
    /// as much for gradients.
    pub forward_flops: f64,
    /// Size of a checkpoint: every tensor in float32, and the two moments of those that are trained.
    pub checkpoint_bytes: u64,
}

/// What one rank holds for the whole run, in bytes. Activations and the block being computed come on top.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankMemory {
    /// Its share of the float32 weights.
    pub weights: u64,
    /// Its share of the float32 gradients.
    pub gradients: u64,
    /// Its share of the two moments.
    pub optimizer: u64,
}

impl Recipe {
    /// Counts what the recipe costs.
    pub fn cost(&self) -> Cost {
        let specs = param_specs(&self.model);
        let tensors: u64 = specs.iter().map(|spec| spec.len()).sum();
        let sum = |wanted: &dyn Fn(&ParamSpec) -> bool| -> u64 {
            specs.iter().filter(|spec| wanted(spec)).map(|spec| spec.len()).sum()
        };
        let trainable = sum(&|spec| self.train.trains(spec));
        Cost {
            params: sum(&|spec| spec.role == Role::Trained),
            trainable,
            split: sum(&|spec| spec.split != Split::None),
            split_trainable: sum(&|spec| spec.split != Split::None && self.train.trains(spec)),
            seq_len: self.model.seq_len() as u64,
            forward_flops: forward_flops(&self.model),
            checkpoint_bytes: 4 * tensors + 8 * trainable,
        }
    }
}

impl Cost {
    /// Estimates what one rank of a mesh holds.
    pub fn rank_memory(&self, mesh: &Mesh) -> RankMemory {
        let share = |numbers: u64, split: u64| {
            let of_tp_rank = numbers - split + split.div_ceil(mesh.tp as u64);
            4 * of_tp_rank.div_ceil(mesh.dp_shard as u64)
        };
        let trained = share(self.trainable, self.split_trainable);
        RankMemory { weights: share(self.params, self.split), gradients: trained, optimizer: 2 * trained }
    }
}

impl RankMemory {
    /// Returns the sum.
    pub fn total(&self) -> u64 {
        self.weights + self.gradients + self.optimizer
    }
}

// L tokens, D model width, E time width.
fn forward_flops(m: &Model) -> f64 {
    let [l, d, e] = [m.seq_len(), m.dim(), m.time_embed_dim].map(|size| size as f64);
    let [text, video] = [m.text_tokens(), m.video_tokens()].map(|size| size as f64);
    let patch = (m.patch_size_t * m.patch_size * m.patch_size) as f64;

    let modulation = 2.0 * 6.0 * d * e;
    let projections = 4.0 * l * d * d;
    let segment = m.attention_len() as f64;
    let attention = 2.0 * m.segments as f64 * segment * segment * d;
    let mlp = 8.0 * l * d * d;
    // Each direction projects anew, and walks the sequence with seven products of F × 4F per token and head, or three
    // of F × F.
    let head = m.head_dim as f64;
    let walk = match m.layer {
        Layer::None => 0.0,
        Layer::TttLinear => 3.0 * head * head,
        Layer::TttMlp => 7.0 * 4.0 * head * head,
    };
    let ttt = if m.layer == Layer::None { 0.0 } else { 2.0 * l * (4.0 * d * d + m.num_heads as f64 * walk) };
    let block = modulation + projections + attention + ttt + mlp;

    let embedding = video * d * patch * m.in_channels as f64
        + text * m.text_dim as f64 * d
        + e * d
        + e * e
        + if m.ofs_embedding { 2.0 * e * e } else { 0.0 };
    let last = 2.0 * d * e + video * d * patch * m.out_channels as f64;
    2.0 * (embedding + m.num_layers as f64 * block + last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load;

    fn cost(sets: &[&str]) -> Cost {
        let sets: Vec<_> = sets.iter().map(|set| set.to_string()).collect();
        load("../../tests/fixtures/configs/valid/minimal.toml".into(), &sets).unwrap().recipe.cost()
    }

    /// CogVideoX-5B at the first stage of the TTT-video curriculum.
    const STAGE_3S: [&str; 6] = [
        "model.num_layers=42",
        "model.num_heads=48",
        "model.text_len=498",
        "model.latent_frames=13",
        "model.latent_height=60",
        "model.latent_width=90",
    ];

    #[test]
    fn a_small_model_costs_what_a_hand_count_says() {
        let cost = cost(&["model.head_dim=16", "model.time_embed_dim=8", "model.text_dim=4", "train.trainable=qkvo"]);
        // Width 32: embeddings, time embedding, final norms, their modulation and projection.
        let root =
            (32 * 64 + 32) + (32 * 4 + 32) + (8 * 32 + 8) + (8 * 8 + 8) + 64 + (64 * 8 + 64) + 64 + (64 * 32 + 64);
        let attention = 4 * (32 * 32 + 32) + 4 * 16;
        let block = 2 * (192 * 8 + 192 + 64) + attention + (128 * 32 + 128) + (32 * 128 + 32);
        assert_eq!(cost.params, root + 2 * block);
        assert_eq!(cost.trainable, 2 * attention);
        assert_eq!(cost.seq_len, 16 + 3 * 16);
        assert_eq!(cost.checkpoint_bytes, 4 * cost.params + 8 * cost.trainable);
        let (video, text, all, width) = (48, 16, 64, 32);
        let block = 12 * width * 8 + 4 * all * width * width + 2 * all * all * width + 8 * all * width * width;
        let root = video * width * 64 + text * 4 * width + 8 * width + 8 * 8 + 2 * width * 8 + video * width * 64;
        assert_eq!(cost.forward_flops, 2.0 * f64::from(root + 2 * block));
    }

    #[test]
    fn cogvideox_5b_costs_what_is_published() {
        let cost = cost(&STAGE_3S);
        assert_eq!(cost.params, 5_570_283_072);
        assert_eq!(cost.trainable, 5_570_283_072);
        assert_eq!(cost.seq_len, 18_048);
        // 4.0 TFLOP of attention, 1.4 of projections and 2.7 of MLP in each of 42 layers.
        assert!((cost.forward_flops / (42.0 * 8.1e12) - 1.0).abs() < 0.01, "{:e}", cost.forward_flops);
    }

    #[test]
    fn training_attention_alone_counts_only_attention() {
        let sets = [&STAGE_3S[..], &["train.trainable=qkvo"]].concat();
        assert_eq!(cost(&sets).trainable, 526_848 + 1_585_446_912);
    }

    #[test]
    fn a_stored_table_of_positions_is_saved_but_is_no_parameter() {
        let (with, without) = (cost(&["model.positions=learned"]), cost(&[]));
        assert_eq!(with.params, without.params);
        assert_eq!(with.checkpoint_bytes - without.checkpoint_bytes, 4 * 64 * 128);
    }

    #[test]
    fn replicas_do_not_make_a_rank_smaller_but_shards_do_and_tp_does_where_it_splits() {
        let cost = Cost {
            params: 10,
            trainable: 6,
            split: 8,
            split_trainable: 4,
            seq_len: 1,
            forward_flops: 1.0,
            checkpoint_bytes: 1,
        };
        let memory = cost.rank_memory(&Mesh { dp_replicate: 8, dp_shard: 4, tp: 1 });
        assert_eq!(memory, RankMemory { weights: 12, gradients: 8, optimizer: 16 });
        assert_eq!(memory.total(), 36);
        let memory = cost.rank_memory(&Mesh { dp_replicate: 8, dp_shard: 2, tp: 2 });
        assert_eq!(memory, RankMemory { weights: 12, gradients: 8, optimizer: 16 });
    }
}
