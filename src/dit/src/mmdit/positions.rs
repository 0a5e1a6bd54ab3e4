//! The rotary factors of text and video, and the order of a joined stream's tokens with TP.

use crate::waves::{angles, factors, indices};
use recipe::Shape;
use recipe::families::mmdit::Mmdit as Sizes;
use tch::{Device, Kind, Tensor};

/// Returns the rotary factors of all tokens as complex numbers, `[L, F/2]`, text first. Text is not rotated.
///
/// Source: Open-Sora `opensora/models/mmdit/layers.py`, `EmbedND`.
pub fn rotary(sizes: &Sizes, shape: Shape) -> Tensor {
    let grid = sizes.grid(shape).map(|len| len as i64);
    let video = angles(&indices(grid), sizes.axes.map(|channels| channels as i64), sizes.theta);
    let text = Tensor::zeros([sizes.text_tokens as i64, video.size()[1]], (Kind::Double, Device::Cpu));
    factors(&Tensor::cat(&[text, video], 0))
}

/// The tokens of a joined stream that a TP group has gathered: for each rank its text, then its video. A rank's part of a stream may end in
/// padding.
///
/// Attention does not depend on the order of tokens, only on their rotary factors. So the tokens stay in this order, and only padding is
/// removed.
#[derive(Debug)]
pub struct JoinedOrder {
    /// The number of gathered tokens, padding included.
    len: i64,
    /// The rotary factors of the tokens without padding, in the order of the ranks.
    pub(crate) rotary: Tensor,
    /// The places of tokens that are not padding; `None` if there is no padding.
    tokens: Option<Tensor>,
}

impl JoinedOrder {
    /// Computes the order of `lens` tokens of text and video on `ranks` ranks. `rotary` has the factors of the text, then of the video.
    pub fn new(lens: [i64; 2], ranks: i64, rotary: &Tensor) -> Self {
        let parts = lens.map(|len| (len + ranks - 1) / ranks);
        let (mut sources, mut places, mut len) = (Vec::new(), Vec::new(), 0);
        for rank in 0..ranks {
            for (stream, part) in parts.into_iter().enumerate() {
                let first = if stream == 0 { 0 } else { lens[0] };
                for row in rank * part..(rank + 1) * part {
                    if row < lens[stream] {
                        sources.push(first + row);
                        places.push(len);
                    }
                    len += 1;
                }
            }
        }
        let there = |rows: &[i64]| Tensor::from_slice(rows).to_device(rotary.device());
        let is_whole = places.len() as i64 == len;
        let rotary = if ranks == 1 { rotary.shallow_clone() } else { rotary.index_select(0, &there(&sources)) };
        JoinedOrder { len, rotary, tokens: (!is_whole).then(|| there(&places)) }
    }

    /// Returns the number of gathered tokens, padding included.
    pub(crate) fn len(&self) -> i64 {
        self.len
    }

    /// Removes padding from gathered tokens `[B, len, …]`.
    pub(crate) fn without_padding(&self, x: &Tensor) -> Tensor {
        self.tokens.as_ref().map_or_else(|| x.shallow_clone(), |tokens| x.index_select(1, tokens))
    }

    /// Adds padding of zeros, as gathered tokens have it.
    pub(crate) fn with_padding(&self, x: &Tensor) -> Tensor {
        let Some(tokens) = &self.tokens else { return x.shallow_clone() };
        let mut size = x.size();
        size[1] = self.len;
        x.new_zeros(&size, (x.kind(), x.device())).index_copy(1, tokens, x)
    }
}
