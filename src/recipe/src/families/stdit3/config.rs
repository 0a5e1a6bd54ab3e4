//! The `config.json` of Open-Sora 1.2.

use super::Stdit3;
use serde::Deserialize;

/// The keys of a `config.json` that describe the network. A missing key has the default of upstream's `STDiT3Config`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Channels of a latent.
    pub in_channels: usize,
    /// Whether the network also predicts a variance for each channel.
    pub pred_sigma: bool,
    /// Latent frames, rows and columns of a token.
    pub patch_size: [usize; 3],
    /// The width of a token.
    pub hidden_size: usize,
    /// Attention heads of a block.
    pub num_heads: usize,
    /// Pairs of a spatial and a temporal block.
    pub depth: usize,
    /// The width of the feed-forward layers divided by the width of tokens.
    pub mlp_ratio: f64,
    /// Whether queries and keys are normalized.
    pub qk_norm: bool,
    /// The side in pixels of the square whose positions have the distance 1.
    pub input_sq_size: usize,
    /// The width of a text embedding.
    pub caption_channels: usize,
    /// Text tokens of a caption.
    pub model_max_length: usize,
    /// The probability that a caption is replaced by the empty text in training.
    pub class_dropout_prob: f64,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            in_channels: 4,
            pred_sigma: true,
            patch_size: [1, 2, 2],
            hidden_size: 1152,
            num_heads: 16,
            depth: 28,
            mlp_ratio: 4.0,
            qk_norm: true,
            input_sq_size: 512,
            caption_channels: 4096,
            model_max_length: 300,
            class_dropout_prob: 0.1,
        }
    }
}

/// The reason why no network has the sizes of a config.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// A size is zero, or `mlp_ratio` leaves the feed-forward layers without hidden units.
    #[error("{key} is 0")]
    Zero {
        /// The key of the size.
        key: &'static str,
    },
    /// The width of tokens is not a number of whole heads.
    #[error("hidden_size {width} is not a multiple of num_heads {heads}")]
    Heads {
        /// The width of a token.
        width: usize,
        /// The number of heads.
        heads: usize,
    },
    /// The width of tokens or of a head cannot be divided for the embedding of positions.
    #[error("{key} is {width}, not a multiple of {multiple}")]
    Width {
        /// Which width it is.
        key: &'static str,
        /// The width.
        width: usize,
        /// What the width must be a multiple of.
        multiple: usize,
    },
}

impl Config {
    /// Returns the network of a config.
    ///
    /// # Errors
    /// A size is zero, or widths cannot be divided into heads and pairs of channels.
    pub fn model(&self) -> Result<Stdit3, Unusable> {
        let [frames, rows, columns] = self.patch_size;
        let sizes = [
            ("in_channels", self.in_channels),
            ("patch_size", frames.min(rows).min(columns)),
            ("hidden_size", self.hidden_size),
            ("num_heads", self.num_heads),
            ("depth", self.depth),
            ("mlp_ratio", (self.hidden_size as f64 * self.mlp_ratio) as usize),
            ("input_sq_size", self.input_sq_size),
            ("caption_channels", self.caption_channels),
            ("model_max_length", self.model_max_length),
        ];
        if let Some((key, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            return Err(Unusable::Zero { key });
        }
        let (width, heads) = (self.hidden_size, self.num_heads);
        if !width.is_multiple_of(heads) {
            return Err(Unusable::Heads { width, heads });
        }
        // Positions have sines and cosines of rows and columns. Rotary factors rotate pairs of a head's channels.
        for (key, width, multiple) in [("hidden_size", width, 4), ("the head width", width / heads, 2)] {
            if !width.is_multiple_of(multiple) {
                return Err(Unusable::Width { key, width, multiple });
            }
        }
        Ok(Stdit3 {
            in_channels: self.in_channels,
            learns_sigma: self.pred_sigma,
            patch: self.patch_size,
            num_heads: heads,
            head_dim: width / heads,
            depth: self.depth,
            mlp_ratio: self.mlp_ratio,
            normalizes_qk: self.qk_norm,
            base_side_px: self.input_sq_size,
            text_dim: self.caption_channels,
            text_len: self.model_max_length,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_the_released_network() {
        assert_eq!(Config::default().model(), Ok(Stdit3::xl()));
        let text =
            r#"{"architectures": ["STDiT3"], "hidden_size": 1872, "num_heads": 26, "input_size": [null, null, null]}"#;
        let config: Config = serde_json::from_str(text).unwrap();
        assert_eq!(config.model(), Ok(Stdit3::three_b()));
    }

    #[test]
    fn sizes_that_fit_no_network_are_named() {
        let of = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            config.model().unwrap_err().to_string()
        };
        assert_eq!(of(|c| c.depth = 0), "depth is 0");
        assert_eq!(of(|c| c.patch_size = [1, 0, 2]), "patch_size is 0");
        for ratio in [0.0, -4.0, f64::NAN, 1e-4] {
            let config = Config { mlp_ratio: ratio, ..Config::default() };
            assert_eq!(config.model(), Err(Unusable::Zero { key: "mlp_ratio" }), "{ratio}");
        }
        assert_eq!(of(|c| c.num_heads = 7), "hidden_size 1152 is not a multiple of num_heads 7");
        assert_eq!(of(|c| c.hidden_size = 16 * 9), "the head width is 9, not a multiple of 2");
    }
}
