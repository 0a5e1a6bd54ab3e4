//! Wan's input embedding: latents, time, text and images.

use super::{FIRST_FRAME, Grid, IMAGE_EMBEDS};
use crate::family::{Inputs, Tokens};
use crate::params::{Slots, UnitParams};
use crate::patches::packed;
use crate::waves::sinusoid;
use kernels::linear::linear;
use recipe::families::wan::WanModel;
use tch::{Kind, Tensor};

/// ε of the norms around the image embedding, PyTorch's default.
const IMAGE_EPS: f64 = 1e-5;

/// Embeds patches, time, text and images.
#[derive(Debug)]
pub struct Embedder {
    dim: i64,
    freq_dim: i64,
    text_len: i64,
    /// Frames, rows and columns of a patch.
    patch_size: [i64; 3],
    patch: usize,
    text: [usize; 2],
    time: [usize; 2],
    modulation: usize,
    image: Option<ImageSlots>,
}

#[derive(Debug)]
struct ImageSlots {
    norm1: usize,
    layers: [usize; 2],
    norm2: usize,
    positions: Option<usize>,
}

impl Embedder {
    /// Finds the root's parameters by name.
    pub fn new(model: &WanModel, slots: &Slots) -> Self {
        let pair = |name: &str| [1, 2].map(|i| slots.affine(&format!("{name}.linear{i}")));
        Embedder {
            dim: model.dim() as i64,
            freq_dim: model.freq_dim as i64,
            text_len: model.text_len as i64,
            patch_size: model.patch_size.map(|size| size as i64),
            patch: slots.affine("patch_embed"),
            text: pair("text_embed"),
            time: pair("time_embed"),
            modulation: slots.affine("time_embed.proj"),
            image: model.image.as_ref().map(|_| ImageSlots {
                norm1: slots.affine("image_embed.norm1"),
                layers: pair("image_embed"),
                norm2: slots.affine("image_embed.norm2"),
                positions: slots.find("image_embed.positions"),
            }),
        }
    }

    /// Embeds the inputs; builds a graph if the parameters or the latent require gradients.
    ///
    /// The timesteps of `inputs` are `[B]`, or `[B, G]` for G groups of tokens. The conditions [`FIRST_FRAME`] and [`IMAGE_EMBEDS`] have a
    /// meaning of their own; all others are concatenated with the latent on the channels, in their order. As in the original, the embedding of
    /// time and the modulation are fp32 in every compute dtype.
    ///
    /// # Panics
    /// The model attends to embeddings of images, and `inputs` has none.
    pub fn forward(&self, grid: &Grid, root: &UnitParams, inputs: &Inputs) -> Tokens {
        let patches = packed(&self.joined(inputs), self.patch_size);
        let patch = root.affine(self.patch);
        let tokens = linear(&patches, &patch.weight.view([self.dim, -1]), Some(patch.bias()));

        let in_fp32 = |slot: usize, x: &Tensor| {
            let layer = root.affine(slot);
            linear(x, &layer.weight.to_kind(Kind::Float), Some(&layer.bias().to_kind(Kind::Float)))
        };
        let timestep = timesteps(grid, inputs);
        let waves = sinusoid(&timestep.reshape([-1]), self.freq_dim).view([timestep.size()[0], -1, self.freq_dim]);
        let time = in_fp32(self.time[1], &in_fp32(self.time[0], &waves).silu());
        let modulation = in_fp32(self.modulation, &time.silu());

        let mlp = |[first, second]: [usize; 2], x: &Tensor, activation: &str| {
            root.affine(second).linear(&root.affine(first).linear(x).gelu(activation))
        };
        let mut context = vec![mlp(self.text, &self.padded(&inputs.text), "tanh")];
        if let Some(slots) = &self.image {
            let embeds =
                inputs.condition(IMAGE_EMBEDS).expect("image-to-video of Wan 2.1 needs embeddings of the image");
            // diffusers has those of a first and a last frame as two samples.
            let embeds = embeds.reshape([inputs.latent.size()[0], -1, embeds.size()[2]]);
            let embeds = match slots.positions {
                Some(positions) => embeds + root.tensor(positions),
                None => embeds,
            };
            let normed = root.affine(slots.norm1).layer_norm(&embeds, IMAGE_EPS);
            let embedded = mlp(slots.layers, &normed, "none");
            context.push(root.affine(slots.norm2).layer_norm(&embedded, IMAGE_EPS));
        }
        Tokens { streams: vec![tokens], shared: vec![time, modulation, Tensor::cat(&context, 1)] }
    }

    /// Returns the rows of text that the model was trained with. Shorter texts are followed by zero rows, which tokens attend to as well. Longer
    /// texts are cut, because the rows after the text are those of images.
    fn padded(&self, text: &Tensor) -> Tensor {
        let mut rest = text.size();
        rest[1] = self.text_len - rest[1];
        if rest[1] <= 0 {
            return text.narrow(1, 0, self.text_len);
        }
        Tensor::cat(&[text, &text.new_zeros(&rest, (text.kind(), text.device()))], 1)
    }

    /// Returns the noised latent with its conditions.
    fn joined(&self, inputs: &Inputs) -> Tensor {
        let latent = match inputs.condition(FIRST_FRAME) {
            Some(first) => {
                let rest = inputs.latent.size()[1] - 1;
                Tensor::cat(&[first.shallow_clone(), inputs.latent.narrow(1, 1, rest)], 1)
            }
            None => inputs.latent.shallow_clone(),
        };
        let on_channels = inputs.conditions.iter().filter(|(name, _)| ![FIRST_FRAME, IMAGE_EMBEDS].contains(name));
        let parts: Vec<&Tensor> = std::iter::once(&latent).chain(on_channels.map(|(_, tensor)| tensor)).collect();
        if parts.len() == 1 { latent } else { Tensor::cat(&parts, 2) }
    }
}

/// Returns the timestep of each group of tokens, `[B, G]`. With a clean first frame, which has timestep 0, every frame is a group.
fn timesteps(grid: &Grid, inputs: &Inputs) -> Tensor {
    let timestep = &inputs.timestep;
    if timestep.dim() == 2 {
        return timestep.shallow_clone();
    }
    let one = timestep.unsqueeze(1);
    if inputs.condition(FIRST_FRAME).is_none() {
        return one;
    }
    Tensor::cat(&[one.zeros_like(), one.expand([-1, grid.video[0] - 1], false)], 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use recipe::FsdpUnit;
    use recipe::families::wan::{Release, param_specs};
    use tch::Device;

    #[test]
    fn texts_of_any_length_get_the_rows_of_the_model() {
        let model = WanModel { text_len: 3, num_layers: 1, ..Release::ImageToVideo14B.model() };
        let embedder = Embedder::new(&model, &Slots::of(&param_specs(&model), FsdpUnit::Root));
        let text = |rows: i64| Tensor::arange_start(1, 1 + rows, (Kind::Float, Device::Cpu)).view([1, rows, 1]);
        for (rows, want) in [(2, [1.0, 2.0, 0.0]), (3, [1.0, 2.0, 3.0]), (5, [1.0, 2.0, 3.0])] {
            let padded = embedder.padded(&text(rows));
            assert_eq!(padded.size(), [1, 3, 1]);
            assert_eq!(Vec::<f64>::try_from(padded.flatten(0, -1)).unwrap(), want);
        }
    }
}
