//! The sizes of a network of Wan, and those of the published ones.

use crate::Shape;

/// The sizes and switches of a network.
#[derive(Debug, Clone, PartialEq)]
pub struct WanModel {
    /// Transformer blocks.
    pub num_layers: usize,
    /// Attention heads.
    pub num_heads: usize,
    /// The width of a head. A multiple of 2, at least 6.
    pub head_dim: usize,
    /// Hidden units of the feed-forward network of a block.
    pub ffn_dim: usize,
    /// The width of a text embedding.
    pub text_dim: usize,
    /// Rows of text that the tokens attend to. Shorter texts are followed by zero rows, which count as text.
    pub text_len: usize,
    /// The width of the sinusoidal embedding of time.
    pub freq_dim: usize,
    /// Channels of the input: the noised latent, then those of conditions.
    pub in_channels: usize,
    /// Channels of the output.
    pub out_channels: usize,
    /// Frames, rows and columns of a patch.
    pub patch_size: [usize; 3],
    /// Attention to embeddings of images (image-to-video of Wan 2.1).
    pub image: Option<ImageKeys>,
    /// ε of the norms of tokens, queries and keys.
    pub eps: f64,
}

/// Keys and values that blocks make from embeddings of images.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageKeys {
    /// The width of an embedding: that of the CLIP encoder.
    pub dim: usize,
    /// Rows of the learned position table, which networks for the first and the last frame add to the embeddings of both images.
    pub positions: Option<usize>,
}

impl WanModel {
    /// Returns the width of a token.
    pub fn dim(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Returns the frames, rows and columns of tokens of a latent.
    pub fn token_grid(&self, shape: Shape) -> [usize; 3] {
        let [frames, rows, columns] = self.patch_size;
        [shape.frames.div_ceil(frames), shape.height / rows, shape.width / columns]
    }

    /// Returns the number of tokens of a latent.
    pub fn tokens(&self, shape: Shape) -> usize {
        self.token_grid(shape).iter().product()
    }

    /// Returns the numbers in a patch of the output.
    pub fn patch_len(&self) -> usize {
        self.patch_size.iter().product::<usize>() * self.out_channels
    }
}

/// The published networks. Those with the same tensors are one of them: the tensors of the 14B text-to-video model of Wan 2.1 have the names and
/// shapes of those of each expert of Wan 2.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// Wan 2.1 text-to-video, 1.3B.
    TextToVideo1_3B,
    /// Wan 2.1 text-to-video, 14B; either expert of Wan 2.2 text-to-video, A14B.
    TextToVideo14B,
    /// Wan 2.1 image-to-video, 14B, with embeddings of the image.
    ImageToVideo14B,
    /// Wan 2.1 first and last frame to video, 14B.
    FirstLastFrame14B,
    /// Either expert of Wan 2.2 image-to-video, A14B, without embeddings of the image.
    ImageToVideoA14B,
    /// Wan 2.2 text- and image-to-video, 5B.
    TextImageToVideo5B,
}

impl Release {
    /// All published networks.
    pub const ALL: [Release; 6] = [
        Release::TextToVideo1_3B,
        Release::TextToVideo14B,
        Release::ImageToVideo14B,
        Release::FirstLastFrame14B,
        Release::ImageToVideoA14B,
        Release::TextImageToVideo5B,
    ];

    /// Returns the name of the network.
    pub fn name(self) -> &'static str {
        match self {
            Release::TextToVideo1_3B => "Wan2.1 T2V 1.3B",
            Release::TextToVideo14B => "Wan T2V 14B",
            Release::ImageToVideo14B => "Wan2.1 I2V 14B",
            Release::FirstLastFrame14B => "Wan2.1 FLF2V 14B",
            Release::ImageToVideoA14B => "Wan2.2 I2V A14B",
            Release::TextImageToVideo5B => "Wan2.2 TI2V 5B",
        }
    }

    /// Returns the published network with these sizes, if there is one.
    pub fn of(model: &WanModel) -> Option<Self> {
        Self::ALL.into_iter().find(|release| release.model() == *model)
    }

    /// Returns the sizes of the network.
    pub fn model(self) -> WanModel {
        let large = WanModel {
            num_layers: 40,
            num_heads: 40,
            head_dim: 128,
            ffn_dim: 13_824,
            text_dim: 4096,
            text_len: 512,
            freq_dim: 256,
            in_channels: 16,
            out_channels: 16,
            patch_size: [1, 2, 2],
            image: None,
            eps: 1e-6,
        };
        let with_image =
            |positions| WanModel { in_channels: 36, image: Some(ImageKeys { dim: 1280, positions }), ..large.clone() };
        match self {
            Release::TextToVideo1_3B => WanModel { num_layers: 30, num_heads: 12, ffn_dim: 8960, ..large },
            Release::TextToVideo14B => large,
            Release::ImageToVideo14B => with_image(None),
            Release::FirstLastFrame14B => with_image(Some(514)),
            Release::ImageToVideoA14B => WanModel { in_channels: 36, ..large },
            Release::TextImageToVideo5B => {
                WanModel { num_layers: 30, num_heads: 24, ffn_dim: 14_336, in_channels: 48, out_channels: 48, ..large }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clip_of_five_seconds_has_the_published_number_of_tokens() {
        let tokens = |release: Release, frames, height, width| release.model().tokens(Shape { frames, height, width });
        // 81 frames of 480 × 832 pixels, and 121 of 704 × 1280.
        assert_eq!(tokens(Release::TextToVideo1_3B, 21, 60, 104), 32_760);
        assert_eq!(tokens(Release::TextImageToVideo5B, 31, 44, 80), 27_280);
    }
}
