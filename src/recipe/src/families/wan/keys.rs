//! The keys of `[model]` that only Wan has.

use super::WanModel;
use crate::resume::WEIGHTS;
use crate::schema::{TRAIN_AND_SAMPLE, int};
use crate::{FamilyName, Model};

section! {
    /// The keys of `[model]` that only Wan has.
    pub struct WanKeys("model", TRAIN_AND_SAMPLE, WEIGHTS, FamilyName::Wan) with Default {
        /// hidden units of the feed-forward network of a block
        pub ffn_dim: usize => int(1, 1_000_000);
        /// width of the sinusoidal embedding of time, in features
        pub freq_dim: usize = 256 => int(2, 65_536);
    }
}

/// Epsilon of the norms of tokens, queries and keys in all published networks.
const EPS: f64 = 1e-6;

impl WanKeys {
    /// Returns the sizes of the network of a model with these keys.
    pub fn network(&self, model: &Model) -> WanModel {
        WanModel {
            num_layers: model.num_layers,
            num_heads: model.num_heads,
            head_dim: model.head_dim,
            ffn_dim: self.ffn_dim,
            text_dim: model.text_dim,
            text_len: model.text_len,
            freq_dim: self.freq_dim,
            in_channels: model.in_channels,
            out_channels: model.out_channels,
            patch_size: [model.patch_size_t, model.patch_size, model.patch_size],
            image: None,
            eps: EPS,
        }
    }
}
