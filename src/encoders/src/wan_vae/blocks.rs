//! The encoder and the decoder of Wan's VAE, window by window.
//!
//! Every convolution over frames sees two frames of zeros before the video, and keeps its last frames for the next window. Norms are
//! per pixel and attention is per frame, so the results do not depend on the windows.

use crate::causal::{Border, Conv, Memory, Onto, Walk, copy, enlarge, step};
use crate::params::Params;
use failure::Failure;
use tch::{Kind, TchError, Tensor};
use weights::wan_vae::{LevelPlan, MID_LAYERS, WanVaeConfig};

/// The least norm by which a pixel is divided.
const EPS: f64 = 1e-12;
const WALK: Walk = Walk { border: Border::Zeros, past: 2, stride: [1, 1] };
/// Halves rows and columns.
const SMALLER: Walk = Walk { border: Border::ZerosAfter, past: 0, stride: [1, 2] };
/// Halves frames: three frames of which the first is the last one of the previous result.
const FEWER: Walk = Walk { border: Border::Zeros, past: 1, stride: [2, 1] };

/// Divides each pixel by its norm and multiplies it by this, `[C]`, fp32.
#[derive(Debug)]
struct Norm(Tensor);

#[derive(Debug)]
struct Resnet {
    norm1: Norm,
    conv1: Conv,
    norm2: Norm,
    conv2: Conv,
    /// A convolution of one pixel, if the number of channels changes.
    shortcut: Option<Conv>,
}

/// Attention with one head over the pixels of a frame.
#[derive(Debug)]
struct Attention {
    norm: Norm,
    qkv: Conv,
    out: Conv,
}

#[derive(Debug)]
struct Middle {
    resnets: Vec<Resnet>,
    attention: Attention,
}

/// The convolutions that change the size.
#[derive(Debug)]
struct Resample {
    in_space: Conv,
    in_time: Option<Conv>,
}

#[derive(Debug)]
struct Level {
    plan: LevelPlan,
    resnets: Vec<Resnet>,
    resample: Option<Resample>,
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

impl Encoder {
    pub fn read(config: &WanVaeConfig, params: &mut Params<'_>) -> Result<Self, Failure> {
        Ok(Encoder {
            conv_in: Conv::read(params, "encoder.conv_in")?,
            levels: config.encoder().into_iter().map(|plan| Level::read(plan, params)).collect::<Result<_, _>>()?,
            middle: Middle::read(params, "encoder.mid_block")?,
            norm_out: Norm::read(params, "encoder.norm_out")?,
            conv_out: Conv::read(params, "encoder.conv_out")?,
            moments: Conv::read(params, "quant_conv")?,
        })
    }

    /// Encodes a window of frames `[F, H, W, C]`, the first frame of the video or a multiple of the temporal factor, to moments
    /// `[T, h, w, 2C]`.
    pub fn forward(&self, frames: Tensor, memory: &mut Memory) -> Result<Tensor, TchError> {
        let mut x = step(&frames, &copy, &self.conv_in, WALK, memory, Onto::New)?;
        drop(frames);
        for level in &self.levels {
            // The shortcut is computed first, because the blocks overwrite their input.
            let shortcut = match level.plan.shortcut {
                Some(factors) => Some(averaged(&x, level.plan.output as i64, factors)?),
                None => None,
            };
            for resnet in &level.resnets {
                x = resnet.forward(x, memory)?;
            }
            if let Some(resample) = &level.resample {
                x = resample.down(&x, memory)?;
            }
            if let Some(shortcut) = shortcut {
                let _ = x.f_add_(&shortcut)?;
            }
        }
        x = self.middle.forward(x, memory)?;
        self.moments.pixels(&normalized(&x, &self.norm_out, &self.conv_out, memory, Onto::New)?)
    }
}

impl Decoder {
    pub fn read(config: &WanVaeConfig, params: &mut Params<'_>) -> Result<Self, Failure> {
        Ok(Decoder {
            latent: Conv::read(params, "post_quant_conv")?,
            conv_in: Conv::read(params, "decoder.conv_in")?,
            middle: Middle::read(params, "decoder.mid_block")?,
            levels: config.decoder().into_iter().map(|plan| Level::read(plan, params)).collect::<Result<_, _>>()?,
            norm_out: Norm::read(params, "decoder.norm_out")?,
            conv_out: Conv::read(params, "decoder.conv_out")?,
        })
    }

    /// Decodes a window of latent frames `[T, h, w, C]`, the first one of the video or others, to frames `[F, H, W, C]`.
    pub fn forward(&self, latent: Tensor, memory: &mut Memory) -> Result<Tensor, TchError> {
        let mut x = step(&self.latent.pixels(&latent)?, &copy, &self.conv_in, WALK, memory, Onto::New)?;
        x = self.middle.forward(x, memory)?;
        for level in &self.levels {
            let shortcut = match level.plan.shortcut {
                Some(factors) => Some(repeated(&x, level.plan.output as i64, factors, memory.is_first())?),
                None => None,
            };
            for resnet in &level.resnets {
                x = resnet.forward(x, memory)?;
            }
            if let Some(resample) = &level.resample {
                x = resample.up(x, memory)?;
            }
            if let Some(shortcut) = shortcut {
                let _ = x.f_add_(&shortcut)?;
            }
        }
        normalized(&x, &self.norm_out, &self.conv_out, memory, Onto::New)
    }
}

impl Norm {
    fn read(params: &mut Params<'_>, name: &str) -> Result<Self, Failure> {
        let gamma = params.precise(&format!("{name}.gamma"))?.view([-1]);
        let root = (gamma.numel() as f64).sqrt();
        Ok(Norm(gamma * root))
    }

    /// Returns normalized pixels in fp32.
    fn apply(&self, x_thwc: &Tensor) -> Result<Tensor, TchError> {
        let x = x_thwc.f_to_kind(Kind::Float)?;
        let norm = x.f_norm_scalaropt_dim(2, [-1].as_slice(), true)?.f_clamp_min(EPS)?;
        x.f_div(&norm)?.f_mul_(&self.0)
    }
}

/// Computes a norm, SiLU and a convolution.
fn normalized(x_thwc: &Tensor, norm: &Norm, conv: &Conv, memory: &mut Memory, onto: Onto) -> Result<Tensor, TchError> {
    let fill = |x: &Tensor, _first: i64, out: &Tensor| {
        let activated = norm.apply(x)?.f_silu_()?;
        out.shallow_clone().f_copy_(&activated)
    };
    step(x_thwc, &fill, conv, WALK, memory, onto)
}

impl Resnet {
    fn read(params: &mut Params<'_>, name: &str) -> Result<Self, Failure> {
        let shortcut = format!("{name}.conv_shortcut");
        let changes = params.has(&format!("{shortcut}.weight"));
        Ok(Resnet {
            norm1: Norm::read(params, &format!("{name}.norm1"))?,
            conv1: Conv::read(params, &format!("{name}.conv1"))?,
            norm2: Norm::read(params, &format!("{name}.norm2"))?,
            conv2: Conv::read(params, &format!("{name}.conv2"))?,
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
    fn read(params: &mut Params<'_>, name: &str) -> Result<Self, Failure> {
        let resnets = (0..MID_LAYERS).map(|layer| Resnet::read(params, &format!("{name}.resnets.{layer}")));
        let resnets = resnets.collect::<Result<_, Failure>>()?;
        let name = format!("{name}.attentions.0");
        let attention = Attention {
            norm: Norm::read(params, &format!("{name}.norm"))?,
            qkv: Conv::read(params, &format!("{name}.to_qkv"))?,
            out: Conv::read(params, &format!("{name}.proj"))?,
        };
        Ok(Middle { resnets, attention })
    }

    fn forward(&self, x_thwc: Tensor, memory: &mut Memory) -> Result<Tensor, TchError> {
        let x = self.resnets[0].forward(x_thwc, memory)?;
        let x = self.attention.forward(x)?;
        self.resnets[1].forward(x, memory)
    }
}

impl Attention {
    /// Adds the attention to `x_thwc`, in place, one frame at a time.
    fn forward(&self, x_thwc: Tensor) -> Result<Tensor, TchError> {
        let [frames, height, width, channels] = [0, 1, 2, 3].map(|axis| x_thwc.size()[axis]);
        for frame in 0..frames {
            let mut x = x_thwc.f_narrow(0, frame, 1)?;
            let qkv = self.qkv.pixels(&self.norm.apply(&x)?.f_to_kind(x.kind())?)?;
            let qkv = qkv.f_view([1, 1, height * width, 3 * channels])?.f_chunk(3, -1)?;
            let out = Tensor::f_scaled_dot_product_attention(
                &qkv[0],
                &qkv[1],
                &qkv[2],
                None::<Tensor>,
                0.0,
                false,
                None,
                false,
            )?;
            let _ = x.f_add_(&self.out.pixels(&out.f_reshape([1, height, width, channels])?)?)?;
        }
        Ok(x_thwc)
    }
}

impl Level {
    fn read(plan: LevelPlan, params: &mut Params<'_>) -> Result<Self, Failure> {
        let resnets = plan.resnets.iter().map(|name| Resnet::read(params, name)).collect::<Result<_, Failure>>()?;
        let resample = match &plan.resample {
            Some(of) => Some(Resample {
                in_space: Conv::read(params, &format!("{}.resample.1", of.name))?,
                in_time: match of.in_time {
                    true => Some(Conv::read(params, &format!("{}.time_conv", of.name))?),
                    false => None,
                },
            }),
            None => None,
        };
        Ok(Level { plan, resnets, resample })
    }
}

impl Resample {
    /// Halves rows and columns, and the frames after the first one of the video.
    fn down(&self, x_thwc: &Tensor, memory: &mut Memory) -> Result<Tensor, TchError> {
        let x = step(x_thwc, &copy, &self.in_space, SMALLER, memory, Onto::New)?;
        match &self.in_time {
            None => Ok(x),
            Some(_) if memory.is_first() => {
                memory.keep(&x)?;
                Ok(x)
            }
            Some(conv) => step(&x, &copy, conv, FEWER, memory, Onto::New),
        }
    }

    /// Doubles rows and columns, and the frames after the first one of the video.
    fn up(&self, x_thwc: Tensor, memory: &mut Memory) -> Result<Tensor, TchError> {
        let mut x = x_thwc;
        match &self.in_time {
            // The convolution does not see the first frame.
            Some(_) if memory.is_first() => memory.skip(),
            Some(conv) => {
                let [t, h, w, c] = [0, 1, 2, 3].map(|axis| x.size()[axis]);
                let pairs = step(&x, &copy, conv, WALK, memory, Onto::New)?.f_view([t, h, w, 2, c])?;
                x = pairs.f_permute([0, 3, 1, 2, 4])?.f_contiguous()?.f_view([2 * t, h, w, c])?;
            }
            None => {}
        }
        let [frames, height, width, channels] = [0, 1, 2, 3].map(|axis| x.size()[axis]);
        let options = (x.kind(), x.device());
        let larger = Tensor::f_empty([1, 2 * height, 2 * width, channels], options)?;
        let out = Tensor::f_empty([frames, 2 * height, 2 * width, self.in_space.width()], options)?;
        for frame in 0..frames {
            enlarge(&x.f_narrow(0, frame, 1)?, 1, &larger)?;
            out.f_narrow(0, frame, 1)?.f_copy_(&self.in_space.frames(&larger)?)?;
        }
        Ok(out)
    }
}

/// Averages groups of the numbers of a block of frames, rows, columns and channels, in the order channel, frame, row, column. A first
/// frame alone is averaged with a frame of zeros before it.
fn averaged(x_thwc: &Tensor, output: i64, [in_time, in_space]: [usize; 2]) -> Result<Tensor, TchError> {
    let (ft, fs) = (in_time as i64, in_space as i64);
    let padding = (ft - x_thwc.size()[0] % ft) % ft;
    let x = x_thwc.f_constant_pad_nd([0, 0, 0, 0, 0, 0, padding, 0])?;
    let [t, h, w, c] = [x.size()[0] / ft, x.size()[1] / fs, x.size()[2] / fs, x.size()[3]];
    let blocks = x.f_view(&[t, ft, h, fs, w, fs, c][..])?.f_permute([0, 2, 4, 6, 1, 3, 5])?;
    blocks.f_reshape([t, h, w, output, -1])?.f_mean_dim([-1].as_slice(), false, x.kind())
}

/// Repeats numbers so that they fill blocks of frames, rows and columns, in the order of [`averaged`]. The first frame of the video
/// is not repeated.
fn repeated(x_thwc: &Tensor, output: i64, [in_time, in_space]: [usize; 2], first: bool) -> Result<Tensor, TchError> {
    let (ft, fs) = (in_time as i64, in_space as i64);
    let [t, h, w, c] = [0, 1, 2, 3].map(|axis| x_thwc.size()[axis]);
    let times = output * ft * fs * fs / c;
    let all =
        x_thwc.f_unsqueeze(-1)?.f_expand([t, h, w, c, times], false)?.f_reshape([t, h, w, output, ft, fs * fs])?;
    let blocks = all.f_view(&[t, h, w, output, ft, fs, fs][..])?.f_permute([0, 4, 1, 5, 2, 6, 3])?;
    // Blocks of one pixel would stay a view of `x_thwc`, which the caller overwrites.
    let larger = blocks.f_detach_copy()?.f_view([t * ft, h * fs, w * fs, output])?;
    let dropped = if first { ft - 1 } else { 0 };
    larger.f_narrow(0, dropped, t * ft - dropped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Device;

    #[test]
    fn a_repeated_pixel_does_not_change_with_its_source() {
        for (channels, factors) in [(16, [2, 2]), (1, [1, 1])] {
            let mut x = Tensor::ones([1, 1, 1, channels], (Kind::Float, Device::Cpu));
            let shortcut = repeated(&x, channels, factors, false).unwrap();
            let _ = x.zero_();
            assert_eq!(shortcut.sum(Kind::Float).double_value(&[]), shortcut.numel() as f64);
        }
    }
}
