//! The VAE over frames of Open-Sora 1.2: latents of pictures to latents of videos and back.

use super::config::TemporalConfig;
use crate::causal::{Border, Conv, Memory, Onto, Walk, copy, step};
use crate::params::Params;
use crate::vae::norm::Norm;
use failure::Failure;
use tch::{TchError, Tensor};
use weights::ParameterTable;

/// ε of all norms.
const EPS: f64 = 1e-5;
/// The start of all names.
const PREFIX: &str = "temporal_vae.";

/// Names and sizes.
#[derive(Debug)]
pub struct TemporalForm {
    widths: Vec<usize>,
    /// Whether the number of frames changes after each level but the last.
    halves: Vec<bool>,
    layers: usize,
    groups: usize,
    /// Channels of the pictures' latents, of the network's ends, and of the latent.
    channels: [usize; 3],
}

/// A ResNet block. Its convolutions have no bias.
#[derive(Debug)]
struct Resnet {
    norm1: Norm,
    conv1: Conv,
    norm2: Norm,
    conv2: Conv,
    shortcut: Option<Conv>,
}

/// The blocks of one size, and the convolution that halves or doubles the number of frames after them.
#[derive(Debug)]
struct Level {
    resnets: Vec<Resnet>,
    resample: Option<Conv>,
}

/// Both directions.
#[derive(Debug)]
pub struct Temporal {
    encoder_in: Conv,
    /// From the largest number of frames to the smallest.
    encoder: Vec<Level>,
    encoder_middle: Vec<Resnet>,
    encoder_norm: Norm,
    encoder_out: Conv,
    moments: Conv,
    latent: Conv,
    decoder_in: Conv,
    decoder_middle: Vec<Resnet>,
    /// From the smallest number of frames to the largest.
    decoder: Vec<Level>,
    decoder_norm: Norm,
    decoder_out: Conv,
}

/// How a convolution moves over frames: before those that halve the number of frames, there is one frame, before others there are two.
fn walk(in_time: i64) -> Walk {
    Walk { border: Border::Zeros, past: 3 - in_time, stride: [in_time, 1] }
}

fn normalized(x_thwc: &Tensor, norm: &Norm, conv: &Conv, memory: &mut Memory, onto: Onto) -> Result<Tensor, TchError> {
    let applied = norm.apply_to(x_thwc, None, memory.chunk(x_thwc))?;
    let fill = |x: &Tensor, first: i64, out: &Tensor| applied.silu_into(x, first, out);
    step(x_thwc, &fill, conv, walk(1), memory, onto)
}

impl TemporalForm {
    pub fn of(config: &TemporalConfig) -> Self {
        TemporalForm {
            widths: config.widths(),
            halves: config.temporal_downsample.clone(),
            layers: config.num_res_blocks,
            groups: config.num_groups,
            channels: [config.in_out_channels, config.latent_embed_dim, config.embed_dim],
        }
    }

    /// Adds the parameters to a table.
    pub fn add_to(&self, table: &mut ParameterTable) {
        let [pictures, ends, latent] = self.channels;
        let (widths, levels) = (&self.widths, self.widths.len());
        let (first, last) = (widths[0], widths[levels - 1]);
        let name = |name: &str| format!("{PREFIX}{name}");
        let conv = |name: &str| format!("{PREFIX}{name}.conv");
        table.tensor(format!("{}.weight", conv("encoder.conv_in")), [first, pictures, 3, 3, 3]);
        for (level, &width) in widths.iter().enumerate() {
            let before = widths[level.saturating_sub(1)];
            self.add_resnets(table, &name(&format!("encoder.block_res_blocks.{level}")), before, width);
            if self.halves.get(level) == Some(&true) {
                table.affine(&conv(&format!("encoder.conv_blocks.{level}")), [width, width, 3, 3, 3]);
            }
        }
        self.add_resnets(table, &name("encoder.res_blocks"), last, last);
        table.affine(&name("encoder.norm1"), [last]);
        table.affine(&conv("encoder.conv2"), [2 * ends, last, 1, 1, 1]);
        table.affine(&conv("quant_conv"), [2 * latent, 2 * ends, 1, 1, 1]);
        table.affine(&conv("post_quant_conv"), [ends, latent, 1, 1, 1]);
        table.affine(&conv("decoder.conv1"), [last, ends, 3, 3, 3]);
        self.add_resnets(table, &name("decoder.res_blocks"), last, last);
        for (level, &width) in widths.iter().enumerate().rev() {
            let before = widths[(level + 1).min(levels - 1)];
            self.add_resnets(table, &name(&format!("decoder.block_res_blocks.{level}")), before, width);
            if level > 0 && self.halves[level - 1] {
                table.affine(&conv(&format!("decoder.conv_blocks.{}", level - 1)), [2 * width, width, 3, 3, 3]);
            }
        }
        table.affine(&name("decoder.norm1"), [first]);
        table.affine(&conv("decoder.conv_out"), [pictures, first, 3, 3, 3]);
    }

    fn add_resnets(&self, table: &mut ParameterTable, name: &str, mut input: usize, width: usize) {
        for layer in 0..self.layers {
            table.affine(&format!("{name}.{layer}.norm1"), [input]);
            table.tensor(format!("{name}.{layer}.conv1.conv.weight"), [width, input, 3, 3, 3]);
            table.affine(&format!("{name}.{layer}.norm2"), [width]);
            table.tensor(format!("{name}.{layer}.conv2.conv.weight"), [width, width, 3, 3, 3]);
            if input != width {
                table.tensor(format!("{name}.{layer}.conv3.conv.weight"), [width, input, 1, 1, 1]);
            }
            input = width;
        }
    }

    fn resnets(&self, params: &mut Params<'_>, name: &str) -> Result<Vec<Resnet>, Failure> {
        let read = |layer| {
            let name = |part: &str| format!("{PREFIX}{name}.{layer}.{part}");
            let shortcut = name("conv3.conv");
            let changes = params.has(&format!("{shortcut}.weight"));
            Ok(Resnet {
                norm1: Norm::plain(params, &name("norm1"), self.groups, EPS)?,
                conv1: Conv::read(params, &name("conv1.conv"))?,
                norm2: Norm::plain(params, &name("norm2"), self.groups, EPS)?,
                conv2: Conv::read(params, &name("conv2.conv"))?,
                shortcut: if changes { Some(Conv::read(params, &shortcut)?) } else { None },
            })
        };
        (0..self.layers).map(read).collect()
    }

    pub fn read(&self, params: &mut Params<'_>) -> Result<Temporal, Failure> {
        let conv = |params: &mut Params<'_>, name: &str| Conv::read(params, &format!("{PREFIX}{name}.conv"));
        let norm =
            |params: &mut Params<'_>, name: &str| Norm::plain(params, &format!("{PREFIX}{name}"), self.groups, EPS);
        let level = |params: &mut Params<'_>, side: &str, level: usize, resample: Option<usize>| {
            let resnets = self.resnets(params, &format!("{side}.block_res_blocks.{level}"))?;
            let resample = match resample.filter(|&place| self.halves.get(place) == Some(&true)) {
                Some(place) => Some(conv(params, &format!("{side}.conv_blocks.{place}"))?),
                None => None,
            };
            Ok::<_, Failure>(Level { resnets, resample })
        };
        let levels = self.widths.len();
        Ok(Temporal {
            encoder_in: conv(params, "encoder.conv_in")?,
            encoder: (0..levels).map(|n| level(params, "encoder", n, Some(n))).collect::<Result<_, _>>()?,
            encoder_middle: self.resnets(params, "encoder.res_blocks")?,
            encoder_norm: norm(params, "encoder.norm1")?,
            encoder_out: conv(params, "encoder.conv2")?,
            moments: conv(params, "quant_conv")?,
            latent: conv(params, "post_quant_conv")?,
            decoder_in: conv(params, "decoder.conv1")?,
            decoder_middle: self.resnets(params, "decoder.res_blocks")?,
            decoder: (0..levels)
                .rev()
                .map(|n| level(params, "decoder", n, n.checked_sub(1)))
                .collect::<Result<_, _>>()?,
            decoder_norm: norm(params, "decoder.norm1")?,
            decoder_out: conv(params, "decoder.conv_out")?,
        })
    }
}

impl Temporal {
    /// Encodes frames `[F, h, w, C]`, a multiple of the time factor, to moments `[T, h, w, 2C]`.
    pub fn encode(&self, frames: &Tensor, memory: &mut Memory) -> Result<Tensor, TchError> {
        let mut x = step(frames, &copy, &self.encoder_in, walk(1), memory, Onto::New)?;
        for level in &self.encoder {
            for resnet in &level.resnets {
                x = resnet.forward(x, memory)?;
            }
            if let Some(conv) = &level.resample {
                x = step(&x, &copy, conv, walk(2), memory, Onto::New)?;
            }
        }
        for resnet in &self.encoder_middle {
            x = resnet.forward(x, memory)?;
        }
        let applied = self.encoder_norm.apply_to(&x, None, memory.chunk(&x))?;
        applied.silu_into(&x, 0, &x)?;
        self.moments.pixels(&self.encoder_out.pixels(&x)?)
    }

    /// Decodes latent frames `[T, h, w, C]` to frames `[F, h, w, C]`.
    pub fn decode(&self, latent: &Tensor, memory: &mut Memory) -> Result<Tensor, TchError> {
        let mut x = step(&self.latent.pixels(latent)?, &copy, &self.decoder_in, walk(1), memory, Onto::New)?;
        for resnet in &self.decoder_middle {
            x = resnet.forward(x, memory)?;
        }
        for level in &self.decoder {
            for resnet in &level.resnets {
                x = resnet.forward(x, memory)?;
            }
            if let Some(conv) = &level.resample {
                let y = step(&x, &copy, conv, walk(1), memory, Onto::New)?;
                drop(x);
                // A frame has the channels of two frames, which are next to each other for each channel.
                let [t, h, w, c] = [0, 1, 2, 3].map(|axis| y.size()[axis]);
                let pairs = y.f_view([t, h, w, c / 2, 2])?.f_permute([0, 4, 1, 2, 3])?;
                x = pairs.f_contiguous()?.f_view([2 * t, h, w, c / 2])?;
            }
        }
        normalized(&x, &self.decoder_norm, &self.decoder_out, memory, Onto::New)
    }
}

impl Resnet {
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
