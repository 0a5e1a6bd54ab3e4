//! The sizes and switches of the network.

use crate::Shape;

/// The width of the table of cosines and sines that embeds timesteps and frame rates.
pub const TIME_WAVES: usize = 256;
/// The vectors that modulate a block: shift, scale and gate of the attention, then of the feed-forward layers.
pub const MODULATIONS: usize = 6;

/// The sizes and switches of an STDiT3.
#[derive(Debug, Clone, PartialEq)]
pub struct Stdit3 {
    /// Channels of a latent.
    pub in_channels: usize,
    /// Whether the network also predicts a variance for each channel, which nothing uses. The velocity has the first channels.
    pub learns_sigma: bool,
    /// Latent frames, rows and columns of a token.
    pub patch: [usize; 3],
    /// Attention heads of a block.
    pub num_heads: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// Pairs of a spatial and a temporal block.
    pub depth: usize,
    /// The width of the feed-forward layers divided by the width of tokens.
    pub mlp_ratio: f64,
    /// Whether queries and keys are normalized.
    pub normalizes_qk: bool,
    /// The side in pixels of the square whose positions have the distance 1. Clips of other sizes have scaled positions.
    pub base_side_px: usize,
    /// The width of a text embedding.
    pub text_dim: usize,
    /// Text tokens of a caption, with padding.
    pub text_len: usize,
}

/// The axis along which the tokens of a block attend to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockKind {
    /// All tokens of a frame.
    Spatial,
    /// The tokens of all frames at one place.
    Temporal,
}

impl Stdit3 {
    /// Returns STDiT3-XL/2, the released network with 1.2 billion parameters.
    pub fn xl() -> Self {
        Stdit3 {
            in_channels: 4,
            learns_sigma: true,
            patch: [1, 2, 2],
            num_heads: 16,
            head_dim: 72,
            depth: 28,
            mlp_ratio: 4.0,
            normalizes_qk: true,
            base_side_px: 512,
            text_dim: 4096,
            text_len: 300,
        }
    }

    /// Returns STDiT3-3B/2, with 3.2 billion parameters.
    pub fn three_b() -> Self {
        Stdit3 { num_heads: 26, ..Stdit3::xl() }
    }

    /// Returns the width of a token.
    pub fn dim(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Returns the width of the feed-forward layers.
    pub fn mlp_dim(&self) -> usize {
        (self.dim() as f64 * self.mlp_ratio) as usize
    }

    /// Returns the channels of the network's output.
    pub fn out_channels(&self) -> usize {
        if self.learns_sigma { 2 * self.in_channels } else { self.in_channels }
    }

    /// Returns the numbers of a latent in one token.
    pub fn patch_numbers(&self) -> usize {
        self.patch.iter().product::<usize>() * self.in_channels
    }

    /// Returns the number of blocks of both kinds.
    pub fn num_blocks(&self) -> usize {
        2 * self.depth
    }

    /// Returns the kind of a block. The kinds alternate, spatial blocks first.
    pub fn kind(&self, block: usize) -> BlockKind {
        if block.is_multiple_of(2) { BlockKind::Spatial } else { BlockKind::Temporal }
    }

    /// Returns the frames, rows and columns of the tokens of a latent. Zeros after its end complete the last patches.
    pub fn tokens(&self, latent: Shape) -> [usize; 3] {
        let [frames, rows, columns] = self.patch;
        [latent.frames.div_ceil(frames), latent.height.div_ceil(rows), latent.width.div_ceil(columns)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::stdit3::param_specs;
    use crate::{FsdpUnit, ParamRole, ParamSpec};

    fn count(specs: &[ParamSpec], wanted: impl Fn(&ParamSpec) -> bool) -> u64 {
        specs.iter().filter(|spec| wanted(spec)).map(ParamSpec::len).sum()
    }

    #[test]
    fn the_released_networks_have_their_published_numbers_of_parameters() {
        for (model, dim, all, block) in
            [(Stdit3::xl(), 1152, 1_207_643_972, 21_255_696), (Stdit3::three_b(), 1872, 3_182_211_572, 56_105_856)]
        {
            let specs = param_specs(&model);
            assert_eq!(model.dim(), dim);
            // The published number has the 36 rotary frequencies, which are computed here.
            let frequencies = (model.head_dim / 2) as u64;
            assert_eq!(count(&specs, |spec| spec.role == ParamRole::Trained) + frequencies, all);
            assert_eq!(count(&specs, |spec| spec.role == ParamRole::Buffer), 1_228_800);
            for number in [0, 1, 55] {
                assert_eq!(count(&specs, |spec| spec.unit == FsdpUnit::Block(number)), block);
            }
        }
    }

    #[test]
    fn odd_sides_are_rounded_up_to_whole_patches() {
        let shape = Shape { frames: 5, height: 5, width: 7 };
        assert_eq!(Stdit3::xl().tokens(shape), [5, 3, 4]);
        assert_eq!(Stdit3 { patch: [2, 2, 2], ..Stdit3::xl() }.tokens(shape), [3, 3, 4]);
    }
}
