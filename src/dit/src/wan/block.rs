//! Wan's transformer block.

use super::Grid;
use super::modulation::{gated_add, modulated_norm};
use crate::family::Tokens;
use crate::mixers::Mixers;
use crate::parallel::TensorParallel;
use crate::params::{Slots, UnitParams};
use kernels::OnGpu;
use kernels::fused::rotate;
use recipe::families::wan::WanModel;
use tch::{Kind, Tensor};
use torch_error::TorchError;

/// The sizes of a block and the slots of its parameters, which are indices into the unit's table. All blocks share it.
#[derive(Debug)]
pub struct Block {
    head_dim: i64,
    text_len: i64,
    eps: f64,
    modulation: usize,
    attn: Attention,
    cross_norm: usize,
    cross_attn: Attention,
    /// Keys, values and the norm of the keys of images.
    image: Option<[usize; 3]>,
    up: usize,
    down: usize,
    /// The slots of the parameters that every rank of a TP group has and applies to its own tokens.
    replicated: Vec<usize>,
}

/// The slots of the layers and norms of an attention.
#[derive(Debug)]
struct Attention {
    q: usize,
    k: usize,
    v: usize,
    o: usize,
    q_norm: usize,
    k_norm: usize,
}

/// A query or key `[B, L, heads · F]` and the gains of its norm.
type Normed<'a> = (&'a Tensor, &'a Tensor);

impl Attention {
    fn new(slots: &Slots, name: &str) -> Self {
        let layer = |layer: &str| slots.affine(&format!("{name}.{layer}"));
        let norm = |norm: &str| tensor(slots, &format!("{name}.{norm}.weight"));
        Attention {
            q: layer("q"),
            k: layer("k"),
            v: layer("v"),
            o: layer("o"),
            q_norm: norm("q_norm"),
            k_norm: norm("k_norm"),
        }
    }
}

fn tensor(slots: &Slots, name: &str) -> usize {
    slots.find(name).expect("the parameter table names every tensor used here")
}

impl Block {
    /// Looks up the slots of a block's parameters.
    pub fn new(model: &WanModel, slots: &Slots) -> Self {
        let (modulation, cross_norm) = (tensor(slots, "modulation"), slots.affine("cross_attn.norm"));
        let biases = ["attn.o", "cross_attn.o", "mlp.down"].map(|name| slots.affine(name) + 1);
        Block {
            replicated: [modulation, cross_norm, cross_norm + 1].into_iter().chain(biases).collect(),
            head_dim: model.head_dim as i64,
            text_len: model.text_len as i64,
            eps: model.eps,
            modulation,
            attn: Attention::new(slots, "attn"),
            cross_norm,
            cross_attn: Attention::new(slots, "cross_attn"),
            image: model.image.as_ref().map(|_| {
                let [k, v] = ["cross_attn.image_k", "cross_attn.image_v"].map(|name| slots.affine(name));
                [k, v, tensor(slots, "cross_attn.image_k_norm.weight")]
            }),
            up: slots.affine("mlp.up"),
            down: slots.affine("mlp.down"),
        }
    }

    /// Applies the block to this rank's part of the tokens, `[B, L, D]` on one rank. The modulation is computed in fp32.
    ///
    /// # Errors
    /// A collective of `tp` failed.
    pub fn forward(
        &self,
        grid: &Grid,
        p: &UnitParams,
        tokens: &Tokens,
        mixers: &Mixers,
        tp: &dyn TensorParallel,
    ) -> Result<Tensor, TorchError> {
        let (x_bld, len) = (&tokens.streams[0], grid.tokens());
        // A rank uses the modulation for its own tokens, and text and images for its own heads.
        let (p, [context]) = &p.copied_to(&self.replicated, [tokens.shared[2].shallow_clone()], tp)?;
        let modulation = tp.copy_to(&tokens.shared[1])?;
        let table = p.tensor(self.modulation).to_kind(Kind::Float).flatten(1, 2);
        // Shift, scale and gate of the self-attention, then of the feed-forward network, [B, G, D] each.
        let m = (modulation + table).chunk(6, -1);

        let normed = modulated_norm(x_bld, len, [&m[0], &m[1]], self.eps, tp).to_kind(x_bld.kind());
        let mixed = self.self_attention(grid, p, &normed, mixers, tp)?;
        let x = gated_add(x_bld, &mixed, len, &m[2], tp);

        let normed = p.affine(self.cross_norm).layer_norm(&x, self.eps);
        let x = x + self.cross_attention(grid, p, &normed, context, mixers, tp)?;

        let normed = modulated_norm(&x, len, [&m[3], &m[4]], self.eps, tp).to_kind(x.kind());
        let update = p.feed_forward([self.up, self.down].map(|slot| p.affine(slot)), &m[5], &normed, len, tp)?;
        Ok(gated_add(&x, &update, len, &m[5], tp))
    }

    /// Applies attention between all tokens and the output projection. Takes and returns this rank's part of the tokens, and computes this
    /// rank's heads for all tokens.
    fn self_attention(
        &self,
        grid: &Grid,
        p: &UnitParams,
        normed: &Tensor,
        mixers: &Mixers,
        tp: &dyn TensorParallel,
    ) -> Result<Tensor, TorchError> {
        let slots = &self.attn;
        let project = |all: &Tensor| [slots.q, slots.k, slots.v].map(|slot| p.affine(slot).linear(all));
        let [q, k, v] = p.collectives(tp).gather(normed, grid.tokens(), Tensor::shallow_clone, project)?;
        let norms = [(&q, p.tensor(slots.q_norm)), (&k, p.tensor(slots.k_norm))];
        let turned = |x: &Tensor| rotate(&self.heads(x), &grid.rotary, OnGpu::Operators);
        let [q, k] = self.norm_over_heads(norms, tp)?.map(|x| turned(&x));
        p.project_heads(p.affine(slots.o), &mixers.attention(&q, &k, &self.heads(&v)), tp)
    }

    /// Applies attention to the text and to images, whose results are added, and the output projection. No row of the text is masked. Takes and
    /// returns this rank's part of the tokens.
    fn cross_attention(
        &self,
        grid: &Grid,
        p: &UnitParams,
        normed: &Tensor,
        context: &Tensor,
        mixers: &Mixers,
        tp: &dyn TensorParallel,
    ) -> Result<Tensor, TorchError> {
        let slots = &self.cross_attn;
        let project = |all: &Tensor| [p.affine(slots.q).linear(all)];
        let [q] = p.collectives(tp).gather(normed, grid.tokens(), Tensor::shallow_clone, project)?;
        let text = context.narrow(1, 0, self.text_len);
        let [k, v] = [slots.k, slots.v].map(|slot| p.affine(slot).linear(&text));
        let norms = [(&q, p.tensor(slots.q_norm)), (&k, p.tensor(slots.k_norm))];
        let out = match self.image {
            None => {
                let [q, k] = self.norm_over_heads(norms, tp)?.map(|x| self.heads(&x));
                mixers.attention(&q, &k, &self.heads(&v))
            }
            Some([image_k, image_v, norm]) => {
                let images = context.narrow(1, self.text_len, context.size()[1] - self.text_len);
                let [k_of_images, v_of_images] = [image_k, image_v].map(|slot| p.affine(slot).linear(&images));
                let norms = [norms[0], norms[1], (&k_of_images, p.tensor(norm))];
                let [q, k, k_of_images] = self.norm_over_heads(norms, tp)?.map(|x| self.heads(&x));
                let of_text = mixers.attention(&q, &k, &self.heads(&v));
                of_text + mixers.attention(&q, &k_of_images, &self.heads(&v_of_images))
            }
        };
        p.project_heads(p.affine(slots.o), &out, tp)
    }

    /// Splits channels into heads, `[B, L, heads, F]`.
    fn heads(&self, x: &Tensor) -> Tensor {
        x.unflatten(-1, [-1, self.head_dim])
    }

    /// Divides queries and keys by their root mean square over all heads, although this rank holds only some, and multiplies them by their gains,
    /// in fp32. The ranks gather the mean squares of their heads, and each rank uses them for its own heads, so their gradients are
    /// summed.
    fn norm_over_heads<const N: usize>(
        &self,
        parts: [Normed<'_>; N],
        tp: &dyn TensorParallel,
    ) -> Result<[Tensor; N], TorchError> {
        let in_fp32 = parts.map(|(x, gain)| (x.to_kind(Kind::Float), gain.to_kind(Kind::Float)));
        let means = in_fp32.each_ref().map(|(x, _)| x.square().mean_dim(-1i64, true, Kind::Float));
        let means = if tp.size() == 1 {
            means
        } else {
            let rows = means.each_ref().map(|mean| mean.size()[1]);
            let all = tp.copy_to(&tp.gather_from(&Tensor::cat(&means, 1))?)?;
            let mut whole = all.mean_dim(-1i64, true, Kind::Float).split_with_sizes(rows, 1).into_iter();
            rows.map(|_| whole.next().expect("one mean of each part"))
        };
        let mut means = means.into_iter();
        let kind = parts[0].0.kind();
        Ok(in_fp32.map(|(x, gain)| {
            let mean = means.next().expect("one mean of each part");
            (x * (mean + self.eps).rsqrt() * gain).to_kind(kind)
        }))
    }
}
