//! Group norms, plain and conditioned on the latent, as a scale and a shift that are applied to a few frames at a time.

use crate::params::Params;
use failure::Failure;
use tch::{Kind, TchError, Tensor};

/// ε of all norms except those of the encoder's ResNet blocks, whose ε is in the configuration.
pub const EPS: f64 = 1e-6;

/// A group norm. Its parameters are fp32.
#[derive(Debug)]
pub struct GroupNorm {
    weight: Tensor,
    bias: Tensor,
    groups: i64,
    eps: f64,
}

/// The linear layers that make the scale and the shift of a spatial norm from a latent. fp32.
#[derive(Debug)]
struct Condition {
    scale_weight: Tensor,
    scale_bias: Tensor,
    shift_weight: Tensor,
    shift_bias: Tensor,
}

/// A norm of the encoder or of the decoder.
#[derive(Debug)]
pub struct Norm {
    group: GroupNorm,
    condition: Option<Condition>,
}

/// `x * scale + shift`, either `[C]`, or `[T, h, 1, w, 1, C]` for each latent frame and pixel. fp32.
#[derive(Debug)]
pub struct Applied {
    scale: Tensor,
    shift: Tensor,
    /// The number of frames of the tensor to normalize.
    frames: i64,
}

impl Norm {
    /// Reads a norm of the encoder.
    pub fn plain(params: &mut Params<'_>, name: &str, groups: usize, eps: f64) -> Result<Self, Failure> {
        Ok(Norm { group: GroupNorm::read(params, name, groups, eps)?, condition: None })
    }

    /// Reads a norm of the decoder.
    pub fn spatial(params: &mut Params<'_>, name: &str, groups: usize) -> Result<Self, Failure> {
        // The convolutions are 1 x 1 x 1: [C, latent].
        let mut linear = |name: String| {
            let weight = params.precise(&format!("{name}.weight"))?;
            let shape = [weight.size()[0], weight.size()[1]];
            Ok::<_, Failure>((weight.view(shape), params.precise(&format!("{name}.bias"))?))
        };
        let (scale_weight, scale_bias) = linear(format!("{name}.conv_y.conv"))?;
        let (shift_weight, shift_bias) = linear(format!("{name}.conv_b.conv"))?;
        let condition = Condition { scale_weight, scale_bias, shift_weight, shift_bias };
        let group = GroupNorm::read(params, &format!("{name}.norm_layer"), groups, EPS)?;
        Ok(Norm { group, condition: Some(condition) })
    }

    /// Computes scale and shift for `x_thwc`, `chunk` frames at a time; `latent_thwc` is fp32.
    pub fn apply_to(&self, x_thwc: &Tensor, latent_thwc: Option<&Tensor>, chunk: i64) -> Result<Applied, TchError> {
        let (scale, shift) = self.group.scale_and_shift(x_thwc, chunk)?;
        let frames = x_thwc.size()[0];
        let (Some(condition), Some(latent)) = (&self.condition, latent_thwc) else {
            return Ok(Applied { scale, shift, frames });
        };
        // diffusers enlarges the latent and then convolves it with 1 x 1 x 1. The reverse order gives the same result
        // with less work.
        let [t, h, w] = [0, 1, 2].map(|axis| latent.size()[axis]);
        let spread = |x: Tensor| x.f_view([t, h, 1, w, 1, -1]);
        let by = latent.f_linear(&condition.scale_weight, Some(&condition.scale_bias))?;
        let offset = latent.f_linear(&condition.shift_weight, Some(&condition.shift_bias))?;
        Ok(Applied { scale: spread(by.f_mul(&scale)?)?, shift: spread(offset.f_add(&by.f_mul(&shift)?)?)?, frames })
    }
}

impl GroupNorm {
    fn read(params: &mut Params<'_>, name: &str, groups: usize, eps: f64) -> Result<Self, Failure> {
        Ok(GroupNorm {
            weight: params.precise(&format!("{name}.weight"))?,
            bias: params.precise(&format!("{name}.bias"))?,
            groups: groups as i64,
            eps,
        })
    }

    /// Returns scale and shift of each channel, for statistics over all frames of `x_thwc`.
    fn scale_and_shift(&self, x_thwc: &Tensor, chunk: i64) -> Result<(Tensor, Tensor), TchError> {
        let channels = self.weight.size()[0];
        let rows = x_thwc.f_view([-1, channels])?;
        let per_group = channels / self.groups;
        let count = (rows.size()[0] * per_group) as f64;
        let step = (chunk * x_thwc.size()[1] * x_thwc.size()[2]).max(1);
        // Two passes over a few frames at a time are exact even if the mean is much larger than the deviation, and need
        // no copy of x.
        let sum = |of: &dyn Fn(Tensor) -> Result<Tensor, TchError>| {
            let mut total = Tensor::f_zeros([channels], (Kind::Double, x_thwc.device()))?;
            let mut at = 0;
            while at < rows.size()[0] {
                let part = rows.f_narrow(0, at, step.min(rows.size()[0] - at))?;
                let _ = total.f_add_(&of(part)?.f_to_kind(Kind::Double)?)?;
                at += step;
            }
            let of_group =
                total.f_view([self.groups, per_group])?.f_sum_dim_intlist([1].as_slice(), true, Kind::Double)?;
            of_group.f_div_scalar(count)?.f_expand([self.groups, per_group], false)?.f_reshape([channels])
        };
        let mean = sum(&|part| part.f_sum_dim_intlist([0].as_slice(), false, Kind::Float))?;
        let center = mean.f_to_kind(Kind::Float)?;
        let variance = sum(&|part| {
            let mut apart = part.f_sub(&center)?;
            apart.f_square_()?.f_sum_dim_intlist([0].as_slice(), false, Kind::Float)
        })?;
        let scale = variance.f_add_scalar(self.eps)?.f_rsqrt()?.f_mul(&self.weight.f_to_kind(Kind::Double)?)?;
        let shift = self.bias.f_to_kind(Kind::Double)?.f_sub(&mean.f_mul(&scale)?)?;
        Ok((scale.f_to_kind(Kind::Float)?, shift.f_to_kind(Kind::Float)?))
    }
}

impl Applied {
    /// Returns the normalized tensor, without SiLU. The norm must be a plain one.
    pub fn normalized(&self, x_thwc: &Tensor) -> Result<Tensor, TchError> {
        self.shift.f_addcmul(&x_thwc.f_to_kind(Kind::Float)?, &self.scale)?.f_to_kind(x_thwc.kind())
    }

    /// Normalizes frames `first..` of the tensor, applies SiLU, and writes them into `out_thwc`.
    pub fn silu_into(&self, x_thwc: &Tensor, first: i64, out_thwc: &Tensor) -> Result<(), TchError> {
        let Some(latent_frames) = (self.scale.dim() > 1).then(|| self.scale.size()[0]) else {
            return silu_into(x_thwc, &self.scale, &self.shift, out_thwc);
        };
        let [_, height, width, channels] = [0, 1, 2, 3].map(|axis| x_thwc.size()[axis]);
        let (h, w) = (self.scale.size()[1], self.scale.size()[3]);
        let sources: Vec<i64> =
            (first..first + x_thwc.size()[0]).map(|t| source_frame(t, self.frames, latent_frames)).collect();
        let mut at = 0;
        for same in sources.chunk_by(|a, b| a == b) {
            let count = same.len() as i64;
            let spread = |t: &Tensor| t.f_narrow(0, at, count)?.f_view([count, h, height / h, w, width / w, channels]);
            let (scale, shift) = (self.scale.f_select(0, same[0])?, self.shift.f_select(0, same[0])?);
            silu_into(&spread(x_thwc)?, &scale, &shift, &spread(out_thwc)?)?;
            at += count;
        }
        Ok(())
    }
}

fn silu_into(x: &Tensor, scale: &Tensor, shift: &Tensor, out: &Tensor) -> Result<(), TchError> {
    if out.kind() == Kind::Float {
        return shift.f_addcmul_out(out, x, scale)?.f_silu_().map(drop);
    }
    // In 16 bits, round only once.
    let mut precise = shift.f_addcmul(&x.f_to_kind(Kind::Float)?, scale)?;
    out.shallow_clone().f_copy_(&precise.f_silu_()?)
}

/// Returns the nearest latent frame of a frame. With an odd number of frames, the first frame has its own latent frame.
fn source_frame(frame: i64, frames: i64, latent_frames: i64) -> i64 {
    if frames > 1 && frames % 2 == 1 {
        return if frame == 0 { 0 } else { 1 + (frame - 1) * (latent_frames - 1) / (frames - 1) };
    }
    frame * latent_frames / frames
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_an_odd_number_of_frames_has_a_latent_frame_of_its_own() {
        let of = |frames, latent| (0..frames).map(|t| source_frame(t, frames, latent)).collect::<Vec<_>>();
        assert_eq!(of(9, 3), [0, 1, 1, 1, 1, 2, 2, 2, 2]);
        assert_eq!(of(5, 3), [0, 1, 1, 2, 2]);
        assert_eq!(of(8, 2), [0, 0, 0, 0, 1, 1, 1, 1]);
        assert_eq!((of(3, 3), of(2, 2), of(1, 1)), (vec![0, 1, 2], vec![0, 1], vec![0]));
    }
}
