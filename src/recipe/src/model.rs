//! The `[model]` section: the shape of the transformer and of its input.

use serde::{Deserialize, Serialize};

use crate::families::{Family, FamilyName, FamilySpec};
use crate::resume::WEIGHTS;
use crate::schema::{POSITIVE, TRAIN_AND_SAMPLE, int};

section! {
    /// The shape of a video diffusion transformer and of the latents it is trained on.
    pub struct Model("model", TRAIN_AND_SAMPLE, WEIGHTS) {
        "The keys that only the model's family has." flatten family: Family;
        /// number of transformer blocks
        pub num_layers: usize => int(1, 10_000);
        /// attention heads per block
        pub num_heads: usize => int(1, 1024);
        /// width of one attention head, in features
        pub head_dim: usize = 64 => int(1, 1024);
        /// width of a text embedding, in features (T5-XXL: 4096)
        pub text_dim: usize = 4096 => int(1, 65_536);
        /// text tokens per segment
        pub text_len: usize => int(1, 1_000_000);
        /// channels of the input latent
        pub in_channels: usize = 16 => int(1, 1024);
        /// channels of the prediction
        pub out_channels: usize = 16 => int(1, 1024);
        /// rows and columns of latent pixels per token
        pub patch_size: usize = 2 => int(1, 64);
        /// latent frames per token: 1, or 2 in CogVideoX 1.5
        pub patch_size_t: usize = 1 => int(1, 64);
        /// latent frames per sample: (video frames - 1) / 4 + 1
        pub latent_frames: usize => int(1, 10_000);
        /// rows of a latent frame: video height in pixels / encoders.latent_pixels
        pub latent_height: usize => int(1, 4096);
        /// columns of a latent frame: video width in pixels / encoders.latent_pixels
        pub latent_width: usize => int(1, 4096);
        /// factor that multiplies latents when they are read
        pub latent_scale: f64 = 1.0 => POSITIVE;
        /// latent frames that the weights were made for, the length of a learned position table; 0: model.latent_frames
        pub base_frames: usize = 0 => int(0, 10_000);
        /// rows of a latent frame that the weights were made for (sample_height in config.json): rotary positions are relative to it; 0:
        /// model.latent_height
        pub base_height: usize = 0 => int(0, 4096);
        /// columns of a latent frame that the weights were made for (sample_width in config.json); 0: model.latent_width
        pub base_width: usize = 0 => int(0, 4096);
    }
}

/// The size of a latent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Shape {
    /// Latent frames.
    pub frames: usize,
    /// Rows of a latent frame.
    pub height: usize,
    /// Columns of a latent frame.
    pub width: usize,
}

/// Shows frames × rows × columns: `13 × 60 × 90`.
impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} × {} × {}", self.frames, self.height, self.width)
    }
}

impl Model {
    /// Returns what the family of the model adds.
    pub(crate) fn family(&self) -> &dyn FamilySpec {
        self.family.spec()
    }

    /// Returns the segments of a video, each with its own text.
    pub fn segments(&self) -> usize {
        self.family().segments()
    }

    /// Returns whether blocks have a TTT layer.
    pub fn has_ttt(&self) -> bool {
        self.family().has_ttt()
    }

    /// Returns the factor that multiplies latents of images when they are read.
    pub fn image_scale(&self) -> f64 {
        self.family().image_scale(self)
    }

    /// Returns the model for latents of another size.
    pub fn resized(&self, latent_frames: usize, latent_height: usize, latent_width: usize) -> Model {
        let [base_frames, base_height, base_width] = self.base();
        let family = self.family().for_frames(latent_frames);
        let size = Model { latent_frames, latent_height, latent_width, ..self.clone() };
        Model { family, base_frames, base_height, base_width, ..size }
    }

    /// Returns the width of the residual stream.
    pub fn dim(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Returns the size of a latent.
    pub fn shape(&self) -> Shape {
        Shape { frames: self.latent_frames, height: self.latent_height, width: self.latent_width }
    }

    /// Returns the number of video tokens in one frame of tokens.
    pub fn tokens_per_frame(&self) -> usize {
        (self.latent_height / self.patch_size) * (self.latent_width / self.patch_size)
    }

    /// Returns the frames of tokens of one sample: `latent_frames / patch_size_t`, rounded up.
    pub fn token_frames(&self) -> usize {
        self.latent_frames.div_ceil(self.patch_size_t)
    }

    /// Returns the latent frames that the network receives: `latent_frames`, rounded up to a multiple of `patch_size_t`.
    pub fn padded_frames(&self) -> usize {
        self.token_frames() * self.patch_size_t
    }

    /// Returns whether the model can train on latents of a VAE with this scaling factor. Data sets store latents unscaled, `latent_scale`
    /// multiplies them when they are read, and samples are divided by it before they are decoded. So it is the VAE's factor, or 1,
    /// with which latents stay unscaled.
    ///
    /// Source: ttt-video-dit saves the posterior unscaled (`data/precomp_video.py:142`), multiplies by `model.scale_factor` when it reads
    /// (`ttt/datasets/preembedding_dataset.py:55`) and divides by `eval.vae_scale_factor` (`ttt/models/vae/autoencoder.py:177`). Both are
    /// 1.0 in all of its presets, with CogVideoX's VAE, whose factor is 0.7.
    pub fn fits_vae_scale(&self, scaling_factor: f64) -> bool {
        if self.family.name() == FamilyName::Wan {
            // Stores have latents on the scale of the network. A factor is that of another family's VAE.
            return scaling_factor == 1.0;
        }
        // The tolerance allows for factors that are rounded to different numbers of digits.
        self.latent_scale == 1.0 || (scaling_factor / self.latent_scale - 1.0).abs() <= 1e-4
    }

    /// Returns the latent frames, rows and columns that the weights were made for.
    pub fn base(&self) -> [usize; 3] {
        let or = |base: usize, own: usize| if base == 0 { own } else { base };
        [
            or(self.base_frames, self.latent_frames),
            or(self.base_height, self.latent_height),
            or(self.base_width, self.latent_width),
        ]
    }

    /// Returns the model at the size that its weights were made for.
    pub fn at_base(&self) -> Model {
        let [latent_frames, latent_height, latent_width] = self.base();
        Model { latent_frames, latent_height, latent_width, ..self.clone() }
    }

    /// Returns the video tokens of one sample.
    pub fn video_tokens(&self) -> usize {
        self.token_frames() * self.tokens_per_frame()
    }

    /// Returns the text tokens of one sample.
    pub fn text_tokens(&self) -> usize {
        self.segments() * self.text_len
    }

    /// Returns the tokens of one sample that blocks process.
    pub fn seq_len(&self) -> usize {
        self.family().tokens(self)
    }
}
