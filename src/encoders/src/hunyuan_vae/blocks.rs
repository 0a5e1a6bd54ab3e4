//! The encoder and the decoder of Hunyuan's VAE.

use super::config::{HunyuanVaeConfig, MID_LAYERS, Resample};
use crate::causal::{Border, Conv, Memory, Onto, Walk, copy, enlarge, step};
use crate::params::Params;
use crate::vae::norm::Norm;
use failure::Failure;
use tch::{TchError, Tensor};

/// ε of all norms.
const EPS: f64 = 1e-6;

/// A ResNet block.
#[derive(Debug)]
struct Resnet {
    norm1: Norm,
    conv1: Conv,
    norm2: Norm,
    conv2: Conv,
    /// A convolution of one pixel, if the number of channels changes.
    shortcut: Option<Conv>,
}

/// Attention with one head over all pixels of a frame and of the frames before it.
#[derive(Debug)]
struct Attention {
    norm: Norm,
    /// The linear layers of queries, keys and values, and of the result: weights `[C, C]`, biases `[C]`.
    layers: [(Tensor, Tensor); 4],
}

/// Two ResNet blocks with attention between them.
#[derive(Debug)]
struct Middle {
    resnets: Vec<Resnet>,
    attention: Attention,
}

/// The blocks of one size, and the convolution that changes the size after them.
#[derive(Debug)]
struct Level {
    resnets: Vec<Resnet>,
    resample: Option<(Resample, Conv)>,
}

/// The encoder: frames to moments.
#[derive(Debug)]
pub struct Encoder {
    conv_in: Conv,
    levels: Vec<Level>,
    middle: Middle,
    norm_out: Norm,
    conv_out: Conv,
    moments: Conv,
}

/// The decoder: a latent to frames.
#[derive(Debug)]
pub struct Decoder {
    latent: Conv,
    conv_in: Conv,
    middle: Middle,
    levels: Vec<Level>,
    norm_out: Norm,
    conv_out: Conv,
}

/// How a convolution moves over frames.
fn walk(stride: [i64; 2]) -> Walk {
    Walk { border: Border::Copies, past: 2, stride }
}

/// Computes a norm, SiLU and a convolution.
fn normalized(x_thwc: &Tensor, norm: &Norm, conv: &Conv, memory: &mut Memory, onto: Onto) -> Result<Tensor, TchError> {
    let applied = norm.apply_to(x_thwc, None, memory.chunk(x_thwc))?;
    let fill = |x: &Tensor, first: i64, out: &Tensor| applied.silu_into(x, first, out);
    step(x_thwc, &fill, conv, walk([1, 1]), memory, onto)
}

impl Encoder {
    pub fn read(config: &HunyuanVaeConfig, params: &mut Params<'_>) -> Result<Self, Failure> {
        let levels = (0..config.block_out_channels.len()).map(|level| {
            let name = format!("encoder.down_blocks.{level}");
            Level::read(config, params, &name, config.layers_per_block, config.resample(level), "downsamplers")
        });
        Ok(Encoder {
            levels: levels.collect::<Result<_, Failure>>()?,
            conv_in: Conv::read(params, "encoder.conv_in.conv")?,
            middle: Middle::read(config, params, "encoder.mid_block")?,
            norm_out: Norm::plain(params, "encoder.conv_norm_out", config.norm_num_groups, EPS)?,
            conv_out: Conv::read(params, "encoder.conv_out.conv")?,
            moments: Conv::read(params, "quant_conv")?,
        })
    }

    /// Encodes frames `[F, H, W, 3]` to moments `[T, h, w, 2C]`.
    pub fn forward(&self, frames: Tensor, memory: &mut Memory) -> Result<Tensor, TchError> {
        let mut x = step(&frames, &copy, &self.conv_in, walk([1, 1]), memory, Onto::New)?;
        drop(frames);
        for level in &self.levels {
            for resnet in &level.resnets {
                x = resnet.forward(x, memory)?;
            }
            if let Some((resample, conv)) = &level.resample {
                let in_time = if *resample == Resample::SpaceAndTime { 2 } else { 1 };
                x = step(&x, &copy, conv, walk([in_time, 2]), memory, Onto::New)?;
            }
        }
        x = self.middle.forward(x, memory)?;
        self.moments.pixels(&normalized(&x, &self.norm_out, &self.conv_out, memory, Onto::New)?)
    }
}

impl Decoder {
    pub fn read(config: &HunyuanVaeConfig, params: &mut Params<'_>) -> Result<Self, Failure> {
        let levels = (0..config.block_out_channels.len()).map(|level| {
            let name = format!("decoder.up_blocks.{level}");
            Level::read(config, params, &name, config.layers_per_block + 1, config.resample(level), "upsamplers")
        });
        Ok(Decoder {
            levels: levels.collect::<Result<_, Failure>>()?,
            latent: Conv::read(params, "post_quant_conv")?,
            conv_in: Conv::read(params, "decoder.conv_in.conv")?,
            middle: Middle::read(config, params, "decoder.mid_block")?,
            norm_out: Norm::plain(params, "decoder.conv_norm_out", config.norm_num_groups, EPS)?,
            conv_out: Conv::read(params, "decoder.conv_out.conv")?,
        })
    }

    /// Decodes latent frames `[T, h, w, C]` to frames `[F, H, W, 3]`.
    pub fn forward(&self, latent: Tensor, memory: &mut Memory) -> Result<Tensor, TchError> {
        let mut x = step(&self.latent.pixels(&latent)?, &copy, &self.conv_in, walk([1, 1]), memory, Onto::New)?;
        x = self.middle.forward(x, memory)?;
        for level in &self.levels {
            for resnet in &level.resnets {
                x = resnet.forward(x, memory)?;
            }
            if let Some((resample, conv)) = &level.resample {
                x = up(x, *resample, conv, memory)?;
            }
        }
        normalized(&x, &self.norm_out, &self.conv_out, memory, Onto::New)
    }
}

impl Level {
    fn read(
        config: &HunyuanVaeConfig,
        params: &mut Params<'_>,
        name: &str,
        layers: usize,
        resample: Option<Resample>,
        part: &str,
    ) -> Result<Self, Failure> {
        let resnets = (0..layers).map(|layer| Resnet::read(config, params, &format!("{name}.resnets.{layer}")));
        let resnets = resnets.collect::<Result<_, Failure>>()?;
        let resample = match resample {
            Some(resample) => Some((resample, Conv::read(params, &format!("{name}.{part}.0.conv.conv"))?)),
            None => None,
        };
        Ok(Level { resnets, resample })
    }
}

impl Resnet {
    fn read(config: &HunyuanVaeConfig, params: &mut Params<'_>, name: &str) -> Result<Self, Failure> {
        let groups = config.norm_num_groups;
        let shortcut = format!("{name}.conv_shortcut.conv");
        let changes = params.has(&format!("{shortcut}.weight"));
        Ok(Resnet {
            norm1: Norm::plain(params, &format!("{name}.norm1"), groups, EPS)?,
            conv1: Conv::read(params, &format!("{name}.conv1.conv"))?,
            norm2: Norm::plain(params, &format!("{name}.norm2"), groups, EPS)?,
            conv2: Conv::read(params, &format!("{name}.conv2.conv"))?,
            shortcut: if changes { Some(Conv::read(params, &shortcut)?) } else { None },
        })
    }

    /// Computes the block. The result overwrites `x_thwc` if the number of channels does not change.
    fn forward(&self, x_thwc: Tensor, memory: &mut Memory) -> Result<Tensor, TchError> {
        let inner = normalized(&x_thwc, &self.norm1, &self.conv1, memory, Onto::New)?;
        let past = match &self.shortcut {
            Some(conv) => conv.pixels(&x_thwc)?,
            None => x_thwc.shallow_clone(),
        };
        drop(x_thwc);
        normalized(&inner, &self.norm2, &self.conv2, memory, Onto::Sum(past))
    }
}

impl Middle {
    fn read(config: &HunyuanVaeConfig, params: &mut Params<'_>, name: &str) -> Result<Self, Failure> {
        let resnets = (0..MID_LAYERS).map(|layer| Resnet::read(config, params, &format!("{name}.resnets.{layer}")));
        let resnets = resnets.collect::<Result<_, Failure>>()?;
        let name = format!("{name}.attentions.0");
        let mut linear = |part: &str| -> Result<(Tensor, Tensor), Failure> {
            Ok((params.tensor(&format!("{name}.{part}.weight"))?, params.tensor(&format!("{name}.{part}.bias"))?))
        };
        let layers = [linear("to_q")?, linear("to_k")?, linear("to_v")?, linear("to_out.0")?];
        let norm = Norm::plain(params, &format!("{name}.group_norm"), config.norm_num_groups, EPS)?;
        Ok(Middle { resnets, attention: Attention { norm, layers } })
    }

    fn forward(&self, x_thwc: Tensor, memory: &mut Memory) -> Result<Tensor, TchError> {
        let x = self.resnets[0].forward(x_thwc, memory)?;
        let chunk = memory.chunk(&x);
        let x = self.attention.forward(x, chunk)?;
        self.resnets[1].forward(x, memory)
    }
}

impl Attention {
    /// Adds the attention to `x_thwc`, in place.
    fn forward(&self, x_thwc: Tensor, chunk: i64) -> Result<Tensor, TchError> {
        let [frames, height, width, channels] = [0, 1, 2, 3].map(|axis| x_thwc.size()[axis]);
        let tokens = height * width;
        let normed = self.norm.apply_to(&x_thwc, None, chunk)?.normalized(&x_thwc)?.f_view([1, -1, channels])?;
        let linear = |x: &Tensor, part: usize| x.f_linear(&self.layers[part].0, Some(&self.layers[part].1));
        let [q, k, v] = [linear(&normed, 0)?, linear(&normed, 1)?, linear(&normed, 2)?];
        drop(normed);
        for frame in 0..frames {
            let (q, seen) = (q.f_narrow(1, frame * tokens, tokens)?, (frame + 1) * tokens);
            let (k, v) = (k.f_narrow(1, 0, seen)?, v.f_narrow(1, 0, seen)?);
            let [q, k, v] = [q.f_unsqueeze(1)?, k.f_unsqueeze(1)?, v.f_unsqueeze(1)?];
            // All keys are of this frame or of earlier ones, so there is no mask.
            let out = Tensor::f_scaled_dot_product_attention(&q, &k, &v, None::<Tensor>, 0.0, false, None, false)?;
            let out = linear(&out.f_view([1, height, width, channels])?, 3)?;
            let _ = x_thwc.f_narrow(0, frame, 1)?.f_add_(&out)?;
        }
        Ok(x_thwc)
    }
}

/// Doubles rows and columns, and frames except the first if frames change too; then convolves.
fn up(x_thwc: Tensor, resample: Resample, conv: &Conv, memory: &mut Memory) -> Result<Tensor, TchError> {
    let [frames, height, width, channels] = [0, 1, 2, 3].map(|axis| x_thwc.size()[axis]);
    let first = if resample == Resample::SpaceAndTime { 1 } else { frames };
    let shape = [first + 2 * (frames - first), 2 * height, 2 * width, channels];
    let larger = Tensor::f_empty(shape, (x_thwc.kind(), x_thwc.device()))?;
    enlarge(&x_thwc.f_narrow(0, 0, first)?, 1, &larger.f_narrow(0, 0, first)?)?;
    if first < frames {
        let rest = frames - first;
        enlarge(&x_thwc.f_narrow(0, first, rest)?, 2, &larger.f_narrow(0, first, 2 * rest)?)?;
    }
    drop(x_thwc);
    step(&larger, &copy, conv, walk([1, 1]), memory, Onto::New)
}
