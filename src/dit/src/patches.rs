//! Patches: the tokens of a latent, by frame, row and column. A convolution whose stride is its kernel is a linear layer over these.

use tch::Tensor;

/// The order of the numbers in a token of the network's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelOrder {
    /// By channel, then by frame, row and column in the patch, as in the network's input.
    ChannelsFirst,
    /// By frame, row and column in the patch, then by channel.
    ChannelsLast,
}

/// Returns the tokens `[B, L, C·patch]` of a latent `[B, T, C, h, w]`, whose frames, rows and columns are multiples of those of a patch. A
/// token has its numbers in the order [`ChannelOrder::ChannelsFirst`].
pub fn packed(latent: &Tensor, [pt, ph, pw]: [i64; 3]) -> Tensor {
    let [batch, frames, channels, height, width]: [i64; 5] =
        latent.size().try_into().expect("a latent has 5 dimensions");
    let (frames, rows, columns) = (frames / pt, height / ph, width / pw);
    latent
        .reshape([batch, frames, pt, channels, rows, ph, columns, pw].as_slice())
        .permute([0, 1, 4, 6, 3, 2, 5, 7].as_slice())
        .reshape([batch, frames * rows * columns, channels * pt * ph * pw])
}

/// Returns the latent `[B, T, C, h, w]` of tokens `[B, L, C·patch]`, which have this many frames, rows and columns.
pub fn unpacked(
    tokens: &Tensor,
    [frames, rows, columns]: [i64; 3],
    [pt, ph, pw]: [i64; 3],
    order: ChannelOrder,
) -> Tensor {
    let [batch, _, width]: [i64; 3] = tokens.size().try_into().expect("tokens have 3 dimensions");
    let channels = width / (pt * ph * pw);
    let (numbers, axes) = match order {
        ChannelOrder::ChannelsFirst => ([channels, pt, ph, pw], [0, 1, 5, 4, 2, 6, 3, 7]),
        ChannelOrder::ChannelsLast => ([pt, ph, pw, channels], [0, 1, 4, 7, 2, 5, 3, 6]),
    };
    tokens.reshape([&[batch, frames, rows, columns], &numbers[..]].concat()).permute(axes).reshape([
        batch,
        frames * pt,
        channels,
        rows * ph,
        columns * pw,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Device, Kind};

    #[test]
    fn unpacking_is_the_inverse_of_packing() {
        let latent = Tensor::arange(4 * 3 * 4 * 6, (Kind::Float, Device::Cpu)).view([1, 4, 3, 4, 6]);
        let patch = [2, 2, 3];
        let tokens = packed(&latent, patch);
        assert_eq!(tokens.size(), [1, 8, 36]);
        assert_eq!(unpacked(&tokens, [2, 2, 2], patch, ChannelOrder::ChannelsFirst), latent);
        let last = tokens.unflatten(2, [3, 12]).transpose(2, 3).flatten(2, 3);
        assert_eq!(unpacked(&last, [2, 2, 2], patch, ChannelOrder::ChannelsLast), latent);
    }

    #[test]
    fn a_latent_need_not_be_contiguous() {
        let latent = Tensor::arange(2 * 3 * 2 * 2, (Kind::Float, Device::Cpu)).view([1, 2, 3, 2, 2]);
        let turned = latent.transpose(1, 2).contiguous().transpose(1, 2);
        assert_eq!(packed(&turned, [1, 2, 2]), packed(&latent, [1, 2, 2]));
    }
}
