//! The encoder and the decoder of the VAE: ResNet blocks, downsampling and upsampling.

use super::norm::{EPS, Norm};
use super::stage::{Cache, Conv, Onto, step};
use crate::params::Params;
use failure::Failure;
use tch::{Kind, TchError, Tensor};
use weights::VaeConfig;

/// The number of ResNet blocks in the middle of the encoder and of the decoder.
const MID_LAYERS: usize = 2;

/// A ResNet block.
#[derive(Debug)]
struct Resnet {
    norm1: Norm,
    conv1: Conv,
    norm2: Norm,
    conv2: Conv,
    /// A 1 x 1 convolution, if the number of channels changes.
    shortcut: Option<Conv>,
}

/// The blocks of one size, and the convolution that changes the size after them.
#[derive(Debug)]
struct Level {
    resnets: Vec<Resnet>,
    resample: Option<Conv>,
    /// Whether the number of frames changes too.
    in_time: bool,
}

/// The encoder: frames to moments.
#[derive(Debug)]
pub struct Encoder {
    conv_in: Conv,
    levels: Vec<Level>,
    middle: Vec<Resnet>,
    norm_out: Norm,
    conv_out: Conv,
}

/// The decoder: a latent to frames.
#[derive(Debug)]
pub struct Decoder {
    conv_in: Conv,
    middle: Vec<Resnet>,
    levels: Vec<Level>,
    norm_out: Norm,
    conv_out: Conv,
}

impl Encoder {
    pub fn read(config: &VaeConfig, params: &mut Params<'_>) -> Result<Self, Failure> {
        let (groups, count) = (config.norm_num_groups, config.block_out_channels.len());
        let norm = |params: &mut Params<'_>, name: &str| Norm::plain(params, name, groups, config.norm_eps);
        let conv_in = Conv::read(params, "encoder.conv_in.conv")?;
        let mut levels = Vec::new();
        for level in 0..count {
            let name = format!("encoder.down_blocks.{level}");
            let resnets = resnets(params, &name, config.layers_per_block, &norm)?;
            let last = level + 1 == count;
            let resample = if last { None } else { Some(Conv::read(params, &format!("{name}.downsamplers.0.conv"))?) };
            levels.push(Level { resnets, resample, in_time: level < config.temporal_levels() });
        }
        Ok(Encoder {
            conv_in,
            levels,
            middle: resnets(params, "encoder.mid_block", MID_LAYERS, &norm)?,
            norm_out: Norm::plain(params, "encoder.norm_out", groups, EPS)?,
            conv_out: Conv::read(params, "encoder.conv_out.conv")?,
        })
    }

    /// Encodes a window of frames `[F, H, W, 3]` to moments `[T, h, w, 2C]`.
    pub fn forward(&self, frames: Tensor, cache: &mut Cache, more: bool) -> Result<Tensor, TchError> {
        let mut x = step(&frames, None, &self.conv_in, cache, more, Onto::New)?;
        drop(frames);
        for level in &self.levels {
            for resnet in &level.resnets {
                x = resnet.forward(x, None, cache, more)?;
            }
            if let Some(conv) = &level.resample {
                x = down(&x, conv, level.in_time)?;
            }
        }
        for resnet in &self.middle {
            x = resnet.forward(x, None, cache, more)?;
        }
        step(&x, Some((&self.norm_out, None)), &self.conv_out, cache, more, Onto::New)
    }
}

impl Decoder {
    pub fn read(config: &VaeConfig, params: &mut Params<'_>) -> Result<Self, Failure> {
        let (groups, count) = (config.norm_num_groups, config.block_out_channels.len());
        let norm = |params: &mut Params<'_>, name: &str| Norm::spatial(params, name, groups);
        let conv_in = Conv::read(params, "decoder.conv_in.conv")?;
        let middle = resnets(params, "decoder.mid_block", MID_LAYERS, &norm)?;
        let mut levels = Vec::new();
        for level in 0..count {
            let name = format!("decoder.up_blocks.{level}");
            let resnets = resnets(params, &name, config.layers_per_block + 1, &norm)?;
            let last = level + 1 == count;
            let resample = if last { None } else { Some(Conv::read(params, &format!("{name}.upsamplers.0.conv"))?) };
            levels.push(Level { resnets, resample, in_time: level < config.temporal_levels() });
        }
        Ok(Decoder {
            conv_in,
            middle,
            levels,
            norm_out: norm(params, "decoder.norm_out")?,
            conv_out: Conv::read(params, "decoder.conv_out.conv")?,
        })
    }

    /// Decodes a window of latent frames `[T, h, w, C]` to frames `[F, H, W, 3]`.
    pub fn forward(&self, latent: Tensor, cache: &mut Cache, more: bool) -> Result<Tensor, TchError> {
        let precise = latent.f_to_kind(Kind::Float)?;
        let condition = Some(&precise);
        let mut x = step(&latent, None, &self.conv_in, cache, more, Onto::New)?;
        for resnet in &self.middle {
            x = resnet.forward(x, condition, cache, more)?;
        }
        for level in &self.levels {
            for resnet in &level.resnets {
                x = resnet.forward(x, condition, cache, more)?;
            }
            if let Some(conv) = &level.resample {
                x = up(&x, conv, level.in_time)?;
            }
        }
        step(&x, Some((&self.norm_out, condition)), &self.conv_out, cache, more, Onto::New)
    }
}

fn resnets(
    params: &mut Params<'_>,
    name: &str,
    count: usize,
    norm: &dyn Fn(&mut Params<'_>, &str) -> Result<Norm, Failure>,
) -> Result<Vec<Resnet>, Failure> {
    let resnet = |layer| {
        let name = format!("{name}.resnets.{layer}");
        let shortcut = format!("{name}.conv_shortcut");
        let shortcut = match params.has(&format!("{shortcut}.weight")) {
            true => Some(Conv::read(params, &shortcut)?),
            false => None,
        };
        Ok(Resnet {
            norm1: norm(params, &format!("{name}.norm1"))?,
            conv1: Conv::read(params, &format!("{name}.conv1.conv"))?,
            norm2: norm(params, &format!("{name}.norm2"))?,
            conv2: Conv::read(params, &format!("{name}.conv2.conv"))?,
            shortcut,
        })
    };
    (0..count).map(resnet).collect()
}

impl Resnet {
    /// Computes the block. The result overwrites `x_thwc` if the number of channels does not change.
    fn forward(
        &self,
        x_thwc: Tensor,
        latent: Option<&Tensor>,
        cache: &mut Cache,
        more: bool,
    ) -> Result<Tensor, TchError> {
        let inner = step(&x_thwc, Some((&self.norm1, latent)), &self.conv1, cache, more, Onto::New)?;
        let past = match &self.shortcut {
            Some(conv) => conv.over_frame(&x_thwc, 0, 1)?,
            None => x_thwc.shallow_clone(),
        };
        drop(x_thwc);
        step(&inner, Some((&self.norm2, latent)), &self.conv2, cache, more, Onto::Sum(past))
    }
}

/// Halves rows and columns. If `in_time`, first averages pairs of frames; the first of an odd number of frames is kept.
fn down(x_thwc: &Tensor, conv: &Conv, in_time: bool) -> Result<Tensor, TchError> {
    let [frames, height, width, channels] = [0, 1, 2, 3].map(|axis| x_thwc.size()[axis]);
    let options = (x_thwc.kind(), x_thwc.device());
    // Pad with one column of zeros on the right and one row below.
    let padded = Tensor::f_zeros([1, height + 1, width + 1, channels], options)?;
    let inside = padded.f_select(0, 0)?.f_narrow(0, 0, height)?.f_narrow(1, 0, width)?;
    let results = if in_time { frames / 2 + frames % 2 } else { frames };
    let out = Tensor::f_empty([results, height / 2, width / 2, conv.width()], options)?;
    for result in 0..results {
        if !in_time || (result == 0 && frames % 2 == 1) {
            inside.shallow_clone().f_copy_(&x_thwc.f_select(0, result)?)?;
        } else {
            let first = 2 * result - frames % 2;
            let sum = x_thwc.f_select(0, first)?.f_add_out(&inside, &x_thwc.f_select(0, first + 1)?)?;
            let _ = sum.shallow_clone().f_mul_scalar_(0.5)?;
        }
        out.f_narrow(0, result, 1)?.f_copy_(&conv.over_frame(&padded, 0, 2)?)?;
    }
    Ok(out)
}

/// Doubles rows and columns. If `in_time`, also doubles frames, except the first of an odd number and a single frame.
fn up(x_thwc: &Tensor, conv: &Conv, in_time: bool) -> Result<Tensor, TchError> {
    let [frames, height, width, channels] = [0, 1, 2, 3].map(|axis| x_thwc.size()[axis]);
    let options = (x_thwc.kind(), x_thwc.device());
    let doubled = in_time && frames > 1;
    let results = if doubled { 2 * frames - frames % 2 } else { frames };
    let out = Tensor::f_empty([results, 2 * height, 2 * width, conv.width()], options)?;
    let mut at = 0;
    for frame in 0..frames {
        let enlarged = x_thwc
            .f_narrow(0, frame, 1)?
            .f_view([1, height, 1, width, 1, channels])?
            .f_expand([1, height, 2, width, 2, channels], false)?
            .f_reshape([1, 2 * height, 2 * width, channels])?;
        // Both copies of a frame give the same result, because this convolution does not read other frames. Convolve
        // once, then copy.
        let result = conv.over_frame(&enlarged, 1, 1)?;
        let copies = if doubled && !(frame == 0 && frames % 2 == 1) { 2 } else { 1 };
        for _ in 0..copies {
            out.f_narrow(0, at, 1)?.f_copy_(&result)?;
            at += 1;
        }
    }
    Ok(out)
}
