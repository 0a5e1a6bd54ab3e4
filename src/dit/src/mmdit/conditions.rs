//! The conditions of an MMDiT: given frames, and the texts that training drops.

use recipe::Shape;
use std::ops::Range;
use tch::{Device, Kind, Tensor};

/// Returns the given frames of a sample as the network takes them, `[T, 1 + C, h, w]`: a mask with 1 for given pixels, then the given latent,
/// which is 0 elsewhere.
///
/// * `references` — the latent of each given range of frames, `[frames, C, h, w]`, and the range. An autoencoder that is causal encodes them
///   apart from the clip.
///
/// # Panics
/// A latent has another number of frames than its range.
pub fn given(references: &[(Range<usize>, Tensor)], channels: i64, shape: Shape, options: (Kind, Device)) -> Tensor {
    let [frames, height, width] = [shape.frames, shape.height, shape.width].map(|len| len as i64);
    let given = Tensor::zeros([frames, 1 + channels, height, width], options);
    for (range, latent) in references {
        assert_eq!(latent.size(), [range.len() as i64, channels, height, width], "the latent of frames {range:?}");
        let part = given.narrow(0, range.start as i64, range.len() as i64);
        let _ = part.narrow(1, 0, 1).fill_(1.0);
        part.narrow(1, 1, channels).copy_(latent);
    }
    given
}

/// Returns latents `[B, T, C, h, w]` with the given frames `[B, T, 1 + C, h, w]` in their places.
///
/// Open-Sora does this at the end of sampling with given images, but only for the first sample of a batch. It leaves given videos as they
/// were sampled.
pub fn with_given(latent: &Tensor, given: &Tensor) -> Tensor {
    let channels = latent.size()[2];
    given.narrow(2, 1, channels).where_self(&given.narrow(2, 0, 1).gt(0.5), latent)
}

/// Returns the texts `[B, L, D]` or the pooled texts `[B, D]` of training, of which some are replaced by the empty text.
///
/// * `empty` — the tokens of the empty text, `[1, L, D]`, or its pooled text, `[1, D]`. If it has fewer tokens, the last one is repeated.
/// * `draws` — uniform numbers `[B]`; a text with one below `share` is replaced. Text and pooled text are drawn apart.
pub fn dropped(text: &Tensor, empty: &Tensor, draws: &Tensor, share: f64) -> Tensor {
    let mut size = vec![1i64; text.dim()];
    size[0] = -1;
    let missing = if text.dim() == 3 { text.size()[1] - empty.size()[1] } else { 0 };
    let empty = match missing {
        ..=0 => empty.shallow_clone(),
        missing => {
            let last = empty.narrow(1, empty.size()[1] - 1, 1);
            Tensor::cat(&[empty.shallow_clone(), last.expand([-1, missing, -1], false)], 1)
        }
    };
    empty.to_kind(text.kind()).where_self(&draws.lt(share).view(size.as_slice()), text)
}
