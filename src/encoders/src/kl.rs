//! VAEs in the form of Stable Diffusion's `AutoencoderKL`: levels of ResNet blocks, with attention in the middle.
//!
//! Hunyuan's VAE is this network with convolutions over frames; the VAE of pictures in Open-Sora 1.2 is this network for each frame.

use crate::causal::{Border, Conv, Memory, Onto, Walk, copy, enlarge, step};
use crate::params::Params;
use crate::vae::norm::Norm;
use failure::Failure;
use tch::{TchError, Tensor};
use weights::ParameterTable;

/// ε of all norms.
const EPS: f64 = 1e-6;
/// The number of ResNet blocks in the middle of the encoder and of the decoder.
const MID_LAYERS: usize = 2;

/// Which axes change their size after the blocks of a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resample {
    Space,
    SpaceAndTime,
}

/// The sizes of a VAE, its names and its convolutions.
#[derive(Debug, Clone)]
pub struct Form {
    /// The start of all names.
    pub prefix: &'static str,
    /// The end of the names of convolutions.
    pub suffix: &'static str,
    /// The number of frames that one result of a convolution depends on: 3, or 1 for a VAE of pictures.
    pub kernel_frames: usize,
    /// What is around frames.
    pub border: Border,
    /// What is around frames that become smaller.
    pub border_down: Border,
    /// Channels of the video that is encoded, of that which is decoded, and of the latent.
    pub channels: [usize; 3],
    /// Channels of each level of the encoder.
    pub widths: Vec<usize>,
    /// ResNet blocks of each level of the encoder; the decoder has one more.
    pub layers: usize,
    pub groups: usize,
    /// Which sizes change after each level, the same in the encoder and the decoder.
    pub resample: Vec<Option<Resample>>,
}

impl Form {
    /// Returns how a convolution moves over frames.
    fn walk(&self) -> Walk {
        Walk { border: self.border, past: self.kernel_frames as i64 - 1, stride: [1, 1] }
    }

    /// Returns how a convolution moves that makes frames smaller.
    fn down(&self, resample: Resample) -> Walk {
        let in_time = if resample == Resample::SpaceAndTime { 2 } else { 1 };
        Walk { border: self.border_down, stride: [in_time, 2], ..self.walk() }
    }

    /// Adds the parameters to a table: the encoder first.
    pub fn add_to(&self, table: &mut ParameterTable) {
        let [input, output, latent] = self.channels;
        let (widths, layers) = (&self.widths, self.layers);
        let (first, last) = (widths[0], *widths.last().expect("there is a level"));
        self.conv(table, "encoder.conv_in", input, first);
        self.levels(table, "encoder.down_blocks", "downsamplers", widths.iter().copied(), first, layers);
        self.middle(table, "encoder.mid_block", last);
        self.affine(table, "encoder.conv_norm_out", [last]);
        self.conv(table, "encoder.conv_out", last, 2 * latent);
        self.conv(table, "decoder.conv_in", latent, last);
        self.middle(table, "decoder.mid_block", last);
        self.levels(table, "decoder.up_blocks", "upsamplers", widths.iter().rev().copied(), last, layers + 1);
        self.affine(table, "decoder.conv_norm_out", [first]);
        self.conv(table, "decoder.conv_out", first, output);
        self.affine(table, "quant_conv", self.kernel(2 * latent, 2 * latent, 1));
        self.affine(table, "post_quant_conv", self.kernel(latent, latent, 1));
    }

    fn affine(&self, table: &mut ParameterTable, name: &str, shape: impl Into<Vec<usize>>) {
        table.affine(&format!("{}{name}", self.prefix), shape);
    }

    /// Returns the shape of a weight over `size` rows and columns.
    fn kernel(&self, input: usize, output: usize, size: usize) -> Vec<usize> {
        match self.kernel_frames {
            1 => vec![output, input, size, size],
            _ => vec![output, input, size, size, size],
        }
    }

    fn conv(&self, table: &mut ParameterTable, name: &str, input: usize, output: usize) {
        self.affine(table, &format!("{name}{}", self.suffix), self.kernel(input, output, 3));
    }

    fn resnet(&self, table: &mut ParameterTable, name: &str, input: usize, output: usize) {
        self.affine(table, &format!("{name}.norm1"), [input]);
        self.conv(table, &format!("{name}.conv1"), input, output);
        self.affine(table, &format!("{name}.norm2"), [output]);
        self.conv(table, &format!("{name}.conv2"), output, output);
        if input != output {
            let shortcut = format!("{name}.conv_shortcut{}", self.suffix);
            self.affine(table, &shortcut, self.kernel(input, output, 1));
        }
    }

    fn levels(
        &self,
        table: &mut ParameterTable,
        name: &str,
        part: &str,
        widths: impl Iterator<Item = usize>,
        mut input: usize,
        layers: usize,
    ) {
        for (level, width) in widths.enumerate() {
            for layer in 0..layers {
                self.resnet(table, &format!("{name}.{level}.resnets.{layer}"), input, width);
                input = width;
            }
            if self.resample[level].is_some() {
                self.conv(table, &format!("{name}.{level}.{part}.0.conv"), width, width);
            }
        }
    }

    fn middle(&self, table: &mut ParameterTable, name: &str, width: usize) {
        for layer in 0..MID_LAYERS {
            self.resnet(table, &format!("{name}.resnets.{layer}"), width, width);
        }
        self.affine(table, &format!("{name}.attentions.0.group_norm"), [width]);
        for part in ["to_q", "to_k", "to_v", "to_out.0"] {
            self.affine(table, &format!("{name}.attentions.0.{part}"), [width, width]);
        }
    }
}

/// Reads the parameters of a form by their names without prefix and suffix.
struct Named<'a, 'b> {
    form: &'a Form,
    params: &'a mut Params<'b>,
}

impl Named<'_, '_> {
    fn conv(&mut self, name: &str) -> Result<Conv, Failure> {
        Conv::read(self.params, &format!("{}{name}{}", self.form.prefix, self.form.suffix))
    }

    fn plain_conv(&mut self, name: &str) -> Result<Conv, Failure> {
        Conv::read(self.params, &format!("{}{name}", self.form.prefix))
    }

    fn norm(&mut self, name: &str) -> Result<Norm, Failure> {
        Norm::plain(self.params, &format!("{}{name}", self.form.prefix), self.form.groups, EPS)
    }

    fn tensor(&mut self, name: &str) -> Result<Tensor, Failure> {
        self.params.tensor(&format!("{}{name}", self.form.prefix))
    }

    fn has(&self, name: &str) -> bool {
        self.params.has(&format!("{}{name}", self.form.prefix))
    }
}

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
    form: Form,
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
    form: Form,
    latent: Conv,
    conv_in: Conv,
    middle: Middle,
    levels: Vec<Level>,
    norm_out: Norm,
    conv_out: Conv,
}

/// Computes a norm, SiLU and a convolution.
fn normalized(
    x_thwc: &Tensor,
    (norm, conv): (&Norm, &Conv),
    walk: Walk,
    memory: &mut Memory,
    onto: Onto,
) -> Result<Tensor, TchError> {
    let applied = norm.apply_to(x_thwc, None, memory.chunk(x_thwc))?;
    let fill = |x: &Tensor, first: i64, out: &Tensor| applied.silu_into(x, first, out);
    step(x_thwc, &fill, conv, walk, memory, onto)
}

impl Encoder {
    pub fn read(form: &Form, params: &mut Params<'_>) -> Result<Self, Failure> {
        let mut named = Named { form, params };
        Ok(Encoder {
            form: form.clone(),
            conv_in: named.conv("encoder.conv_in")?,
            levels: Level::read_all(&mut named, "encoder.down_blocks", form.layers, "downsamplers")?,
            middle: Middle::read(&mut named, "encoder.mid_block")?,
            norm_out: named.norm("encoder.conv_norm_out")?,
            conv_out: named.conv("encoder.conv_out")?,
            moments: named.plain_conv("quant_conv")?,
        })
    }

    /// Encodes frames `[F, H, W, 3]` to moments `[T, h, w, 2C]`.
    pub fn forward(&self, frames: Tensor, memory: &mut Memory) -> Result<Tensor, TchError> {
        let walk = self.form.walk();
        let mut x = step(&frames, &copy, &self.conv_in, walk, memory, Onto::New)?;
        drop(frames);
        for level in &self.levels {
            for resnet in &level.resnets {
                x = resnet.forward(x, walk, memory)?;
            }
            if let Some((resample, conv)) = &level.resample {
                x = step(&x, &copy, conv, self.form.down(*resample), memory, Onto::New)?;
            }
        }
        x = self.middle.forward(x, walk, memory)?;
        self.moments.pixels(&normalized(&x, (&self.norm_out, &self.conv_out), walk, memory, Onto::New)?)
    }
}

impl Decoder {
    pub fn read(form: &Form, params: &mut Params<'_>) -> Result<Self, Failure> {
        let mut named = Named { form, params };
        Ok(Decoder {
            form: form.clone(),
            latent: named.plain_conv("post_quant_conv")?,
            conv_in: named.conv("decoder.conv_in")?,
            middle: Middle::read(&mut named, "decoder.mid_block")?,
            levels: Level::read_all(&mut named, "decoder.up_blocks", form.layers + 1, "upsamplers")?,
            norm_out: named.norm("decoder.conv_norm_out")?,
            conv_out: named.conv("decoder.conv_out")?,
        })
    }

    /// Decodes latent frames `[T, h, w, C]` to frames `[F, H, W, 3]`.
    pub fn forward(&self, latent: Tensor, memory: &mut Memory) -> Result<Tensor, TchError> {
        let walk = self.form.walk();
        let mut x = step(&self.latent.pixels(&latent)?, &copy, &self.conv_in, walk, memory, Onto::New)?;
        x = self.middle.forward(x, walk, memory)?;
        for level in &self.levels {
            for resnet in &level.resnets {
                x = resnet.forward(x, walk, memory)?;
            }
            if let Some((resample, conv)) = &level.resample {
                let larger = up(&x, *resample)?;
                drop(x);
                x = step(&larger, &copy, conv, walk, memory, Onto::New)?;
            }
        }
        normalized(&x, (&self.norm_out, &self.conv_out), walk, memory, Onto::New)
    }
}

impl Level {
    fn read_all(named: &mut Named<'_, '_>, name: &str, layers: usize, part: &str) -> Result<Vec<Self>, Failure> {
        let mut levels = Vec::new();
        for (level, resample) in named.form.resample.iter().enumerate() {
            let name = format!("{name}.{level}");
            let resnets = (0..layers).map(|layer| Resnet::read(named, &format!("{name}.resnets.{layer}")));
            let resnets = resnets.collect::<Result<_, Failure>>()?;
            let resample = match resample {
                Some(resample) => Some((*resample, named.conv(&format!("{name}.{part}.0.conv"))?)),
                None => None,
            };
            levels.push(Level { resnets, resample });
        }
        Ok(levels)
    }
}

impl Resnet {
    fn read(named: &mut Named<'_, '_>, name: &str) -> Result<Self, Failure> {
        let shortcut = format!("{name}.conv_shortcut");
        let changes = named.has(&format!("{shortcut}{}.weight", named.form.suffix));
        Ok(Resnet {
            norm1: named.norm(&format!("{name}.norm1"))?,
            conv1: named.conv(&format!("{name}.conv1"))?,
            norm2: named.norm(&format!("{name}.norm2"))?,
            conv2: named.conv(&format!("{name}.conv2"))?,
            shortcut: if changes { Some(named.conv(&shortcut)?) } else { None },
        })
    }

    /// Computes the block. The result overwrites `x_thwc` if the number of channels does not change.
    fn forward(&self, x_thwc: Tensor, walk: Walk, memory: &mut Memory) -> Result<Tensor, TchError> {
        let inner = normalized(&x_thwc, (&self.norm1, &self.conv1), walk, memory, Onto::New)?;
        let past = match &self.shortcut {
            Some(conv) => conv.pixels(&x_thwc)?,
            None => x_thwc.shallow_clone(),
        };
        drop(x_thwc);
        normalized(&inner, (&self.norm2, &self.conv2), walk, memory, Onto::Sum(past))
    }
}

impl Middle {
    fn read(named: &mut Named<'_, '_>, name: &str) -> Result<Self, Failure> {
        let resnets = (0..MID_LAYERS).map(|layer| Resnet::read(named, &format!("{name}.resnets.{layer}")));
        let resnets = resnets.collect::<Result<_, Failure>>()?;
        let name = format!("{name}.attentions.0");
        let mut linear = |part: &str| -> Result<(Tensor, Tensor), Failure> {
            Ok((named.tensor(&format!("{name}.{part}.weight"))?, named.tensor(&format!("{name}.{part}.bias"))?))
        };
        let layers = [linear("to_q")?, linear("to_k")?, linear("to_v")?, linear("to_out.0")?];
        Ok(Middle { resnets, attention: Attention { norm: named.norm(&format!("{name}.group_norm"))?, layers } })
    }

    fn forward(&self, x_thwc: Tensor, walk: Walk, memory: &mut Memory) -> Result<Tensor, TchError> {
        let x = self.resnets[0].forward(x_thwc, walk, memory)?;
        let chunk = memory.chunk(&x);
        let x = self.attention.forward(x, chunk)?;
        self.resnets[1].forward(x, walk, memory)
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

/// Doubles rows and columns, and frames except the first if frames change too.
fn up(x_thwc: &Tensor, resample: Resample) -> Result<Tensor, TchError> {
    let [frames, height, width, channels] = [0, 1, 2, 3].map(|axis| x_thwc.size()[axis]);
    let first = if resample == Resample::SpaceAndTime { 1 } else { frames };
    let shape = [first + 2 * (frames - first), 2 * height, 2 * width, channels];
    let larger = Tensor::f_empty(shape, (x_thwc.kind(), x_thwc.device()))?;
    enlarge(&x_thwc.f_narrow(0, 0, first)?, 1, &larger.f_narrow(0, 0, first)?)?;
    if first < frames {
        let rest = frames - first;
        enlarge(&x_thwc.f_narrow(0, first, rest)?, 2, &larger.f_narrow(0, first, 2 * rest)?)?;
    }
    Ok(larger)
}
