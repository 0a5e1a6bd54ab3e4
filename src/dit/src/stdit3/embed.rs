//! The embedding: latents, texts, timesteps and frame rates become tokens and modulations.

use super::{FPS, FRAME_MASK, Grid, HEIGHT, NO_TEXT, TEXT_MASK, WIDTH, positions};
use crate::family::{Inputs, Tokens};
use crate::params::{Slots, UnitParams};
use crate::patches::packed;
use crate::waves::sinusoid;
use kernels::linear::linear;
use recipe::families::stdit3::{MODULATIONS, Stdit3};
use tch::{Kind, Tensor};

/// Embeds patches, text, time and frame rate.
#[derive(Debug)]
pub(super) struct Embedder {
    patch: [i64; 3],
    dim: i64,
    base_side_px: usize,
    latent: usize,
    time: [usize; 2],
    fps: [usize; 2],
    modulation: usize,
    text: [usize; 2],
    empty: usize,
}

impl Embedder {
    /// Finds the root's parameters by name.
    pub fn new(model: &Stdit3, slots: &Slots) -> Self {
        let two = |name: &str| [1, 2].map(|number| slots.affine(&format!("{name}.linear{number}")));
        Embedder {
            patch: model.patch.map(|side| side as i64),
            dim: model.dim() as i64,
            base_side_px: model.base_side_px,
            latent: slots.affine("patch_embed"),
            time: two("time_embed"),
            fps: two("fps_embed"),
            modulation: slots.affine("modulation"),
            text: two("text_embed"),
            empty: slots.find("text_embed.empty").expect("the parameter table has the empty text"),
        }
    }

    /// Embeds the inputs; builds a graph if the parameters or the latent require gradients.
    pub fn forward(&self, grid: &Grid, root: &UnitParams, inputs: &Inputs) -> Tokens {
        let (kind, device) = (inputs.latent.kind(), inputs.latent.device());
        let condition =
            |name: &str| inputs.condition(name).unwrap_or_else(|| panic!("a batch of STDiT3 has the condition {name}"));
        let [frames, rows, columns] = grid.tokens;

        // The clips of a batch have one size.
        let sides = [HEIGHT, WIDTH].map(|name| condition(name).narrow(0, 0, 1));
        let places = positions::table([&sides[0], &sides[1]], [rows, columns], self.base_side_px, self.dim);
        let places = places.to_kind(kind).repeat([frames, 1]);
        let x_bld = self.patches(grid, root, &inputs.latent) + places;

        let fps = self.numbers(root, self.fps, condition(FPS), kind);
        let time_of = |timestep: &Tensor| self.numbers(root, self.time, timestep, kind) + &fps;
        let noised = inputs.condition(FRAME_MASK).map(|mask| self.noised(grid, mask));
        let time = match noised {
            None => time_of(&inputs.timestep).unsqueeze(1),
            Some(_) => Tensor::stack(&[time_of(&inputs.timestep), time_of(&inputs.timestep.zeros_like())], 1),
        };
        let modulation = root.affine(self.modulation).linear(&time.silu());
        let modulation = modulation.unflatten(-1, [MODULATIONS as i64, self.dim]).flatten(1, 2);

        let text = match inputs.condition(NO_TEXT) {
            None => inputs.text.shallow_clone(),
            Some(without) => {
                let empty = root.tensor(self.empty).to_kind(kind).narrow(0, 0, inputs.text.size()[1]);
                empty.where_self(&without.ne(0).view([-1, 1, 1]), &inputs.text)
            }
        };
        let text_mask = match inputs.condition(TEXT_MASK) {
            Some(mask) => mask.ne(0),
            None => Tensor::ones(&text.size()[..2], (Kind::Bool, device)),
        };
        let [first, second] = self.text.map(|slot| root.affine(slot));
        let text = second.linear(&first.linear(&text).gelu("tanh"));
        // In the order of `super::shared`.
        let shared = [modulation, text, text_mask, time].into_iter().chain(noised).collect();
        Tokens { streams: vec![x_bld], shared }
    }

    /// Embeds the patches of latents `[B, T, C, height, width]`, which zeros complete at the end.
    fn patches(&self, grid: &Grid, root: &UnitParams, latent: &Tensor) -> Tensor {
        let ([frames, rows, columns], [depth, height, width]) = (grid.tokens, self.patch);
        let missing = |tokens: i64, patch: i64, len: i64| tokens * patch - len;
        let padding = [
            missing(columns, width, grid.latent[2]),
            missing(rows, height, grid.latent[1]),
            0,
            missing(frames, depth, grid.latent[0]),
        ];
        let padded = if padding == [0; 4] {
            latent.shallow_clone()
        } else {
            latent.constant_pad_nd(padding.into_iter().flat_map(|after| [0, after]).collect::<Vec<_>>())
        };
        let layer = root.affine(self.latent);
        linear(&packed(&padded, self.patch), &layer.weight.view([self.dim, -1]), Some(layer.bias()))
    }

    /// Embeds a number of each sample, `[B]`, with two layers: `[B, D]`.
    fn numbers(&self, root: &UnitParams, slots: [usize; 2], numbers: &Tensor, kind: Kind) -> Tensor {
        let [first, second] = slots.map(|slot| root.affine(slot));
        let waves = sinusoid(numbers, first.weight.size()[1]).to_kind(kind);
        second.linear(&first.linear(&waves).silu())
    }

    /// Returns whether each token has noise, `[B, L, 1]`, for a mask of latent frames `[B, T]`. A token of several frames has noise if
    /// one of them has.
    fn noised(&self, grid: &Grid, mask: &Tensor) -> Tensor {
        let missing = grid.tokens[0] * self.patch[0] - grid.latent[0];
        let frames = mask.ne(0).constant_pad_nd([0, missing]).unflatten(1, [-1, self.patch[0]]).any_dim(2, false);
        frames.unsqueeze(-1).expand([-1, -1, grid.per_frame()], false).flatten(1, 2).unsqueeze(-1)
    }
}
