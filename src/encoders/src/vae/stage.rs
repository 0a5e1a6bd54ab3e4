//! The step that all layers of the VAE repeat: norm, SiLU and a convolution that is causal in time, a few frames at a time.
//!
//! Only the input and the output of a step are whole in memory. Normalized frames are kept in a buffer of a few frames, after the two
//! frames that precede them. The whole window is never copied to pad it in time, so the peak is about two tensors.

use super::norm::Norm;
use crate::params::Params;
use failure::Failure;
use tch::{Device, Kind, TchError, Tensor};

/// The number of earlier frames that a causal convolution over three frames reads.
const PAST: i64 = 2;
/// The size of the buffer of normalized frames on the CPU, in bytes. It fits in the cache.
const CPU_CHUNK: i64 = weights::level_memory::CPU_CHUNK as i64;
/// The size of the buffer of normalized frames on a GPU, in bytes. It gives the GPU enough work at a time.
const GPU_CHUNK: i64 = 256 << 20;

/// The frames that the convolutions keep from one window for the next, in the order in which convolutions are computed.
#[derive(Debug)]
pub struct Cache {
    kept: Vec<Option<Tensor>>,
    next: usize,
    /// The size of the buffer of normalized frames, in bytes.
    budget: i64,
}

impl Cache {
    /// Creates the cache of one sample.
    pub fn new(budget: i64) -> Self {
        Cache { kept: Vec::new(), next: 0, budget }
    }

    /// Starts the next window with the first convolution.
    pub fn begin(&mut self) {
        self.next = 0;
    }

    /// Returns the cache entry of the next convolution.
    fn place(&mut self) -> &mut Option<Tensor> {
        if self.next == self.kept.len() {
            self.kept.push(None);
        }
        self.next += 1;
        &mut self.kept[self.next - 1]
    }
}

/// A convolution with its weight in the layout that channels-last input needs.
#[derive(Debug)]
pub struct Conv {
    weight: Tensor,
    bias: Tensor,
}

impl Conv {
    /// Reads a convolution over rows and columns, or over frames, rows and columns.
    pub fn read(params: &mut Params<'_>, name: &str) -> Result<Self, Failure> {
        let mut weight = params.tensor(&format!("{name}.weight"))?;
        if weight.size()[2..] == [1, 1, 1] {
            // A shortcut reads each pixel of each frame separately.
            weight = weight.squeeze_dim(2);
        }
        let last = weight.dim() as i64 - 1;
        // The tensor is stored with channels last, and viewed in the order that libtorch's functions expect.
        let there: Vec<i64> = std::iter::once(0).chain(2..=last).chain([1]).collect();
        let back: Vec<i64> = [0, last].into_iter().chain(1..last).collect();
        let weight = weight.permute(there.as_slice()).contiguous().permute(back.as_slice());
        Ok(Conv { weight, bias: params.tensor(&format!("{name}.bias"))? })
    }

    /// Returns the number of output channels.
    pub fn width(&self) -> i64 {
        self.bias.size()[0]
    }

    /// Convolves frames `[T + 2, H, W, C]`, with zeros around each frame, to `[T, H, W, C']`.
    fn over_frames(&self, x_thwc: &Tensor) -> Result<Tensor, TchError> {
        let x = x_thwc.f_unsqueeze(0)?.f_permute([0, 4, 1, 2, 3])?;
        let y = self.convolve(&x, &[0, 1, 1], &[1, 1, 1])?;
        y.f_permute([0, 2, 3, 4, 1])?.f_squeeze_dim(0)?.f_contiguous()
    }

    /// Convolves each frame of `[T, H, W, C]`, with `padding` zeros around it.
    pub fn over_frame(&self, x_thwc: &Tensor, padding: i64, stride: i64) -> Result<Tensor, TchError> {
        let y = self.convolve(&x_thwc.f_permute([0, 3, 1, 2])?, &[padding; 2], &[stride; 2])?;
        y.f_permute([0, 2, 3, 1])?.f_contiguous()
    }

    fn convolve(&self, x: &Tensor, padding: &[i64], stride: &[i64]) -> Result<Tensor, TchError> {
        let ones = vec![1; stride.len()];
        // libtorch would choose a slower algorithm with a larger workspace for small inputs.
        if x.kind() == Kind::Float && x.device() == Device::Cpu {
            return x.f_mkldnn_convolution(&self.weight, Some(&self.bias), padding, stride, &ones, 1);
        }
        match stride.len() {
            2 => x.f_conv2d(&self.weight, Some(&self.bias), stride, padding, &ones, 1),
            _ => x.f_conv3d(&self.weight, Some(&self.bias), stride, padding, &ones, 1),
        }
    }
}

/// Returns the size of the buffer of normalized frames on a device, in bytes.
pub fn budget(device: Device) -> i64 {
    if device == Device::Cpu { CPU_CHUNK } else { GPU_CHUNK }
}

/// Returns the number of frames to compute at a time.
fn chunk(x_thwc: &Tensor, budget: i64) -> i64 {
    let frame: i64 = x_thwc.size()[1..].iter().product::<i64>() * x_thwc.kind().elt_size_in_bytes() as i64;
    let frames = x_thwc.size()[0];
    (budget / frame.max(1)).clamp(PAST, frames.max(PAST)).min(frames)
}

/// The destination of a step's result.
pub enum Onto {
    /// Into a new tensor.
    New,
    /// Added to this tensor.
    Sum(Tensor),
}

/// Computes one step: norm and SiLU if there is a norm, then the convolution.
///
/// If `more` is true, another window follows, and the cache keeps the last two frames for it.
pub fn step(
    x_thwc: &Tensor,
    norm: Option<(&Norm, Option<&Tensor>)>,
    conv: &Conv,
    cache: &mut Cache,
    more: bool,
    onto: Onto,
) -> Result<Tensor, TchError> {
    let [frames, height, width, channels] = [0, 1, 2, 3].map(|axis| x_thwc.size()[axis]);
    let options = (x_thwc.kind(), x_thwc.device());
    let chunk = chunk(x_thwc, cache.budget);
    let applied = match norm {
        Some((norm, latent)) => Some(norm.apply_to(x_thwc, latent, chunk)?),
        None => None,
    };
    let place = cache.place();
    let buffer = Tensor::f_empty([PAST + chunk, height, width, channels], options)?;
    let mut out = match onto {
        Onto::Sum(sum) => Output::Sum(sum),
        Onto::New if chunk < frames => Output::Parts(Tensor::f_empty([frames, height, width, conv.width()], options)?),
        Onto::New => Output::Whole(None),
    };
    let mut at = 0;
    while at < frames {
        let count = chunk.min(frames - at);
        let (x, fresh) = (x_thwc.f_narrow(0, at, count)?, buffer.f_narrow(0, PAST, count)?);
        match &applied {
            Some(applied) => applied.silu_into(&x, at, &fresh)?,
            None => fresh.shallow_clone().f_copy_(&x)?,
        }
        let mut past = buffer.f_narrow(0, 0, PAST)?;
        if at == 0 {
            match place.take() {
                Some(kept) => past.f_copy_(&kept)?,
                None => past.f_copy_(&fresh.f_narrow(0, 0, 1)?.f_expand([PAST, height, width, channels], false)?)?,
            }
        }
        let result = conv.over_frames(&buffer.f_narrow(0, 0, PAST + count)?)?;
        at += count;
        let newest = buffer.f_narrow(0, count, PAST)?;
        if at == frames && more {
            *place = Some(newest.f_detach_copy()?);
        } else if at < frames {
            // Source and destination overlap if only one frame is computed at a time.
            let newest = if count < PAST { newest.f_detach_copy()? } else { newest };
            past.f_copy_(&newest)?;
        }
        out.take(result, at - count, count)?;
    }
    Ok(out.finish())
}

/// The output of a step while it is computed.
enum Output {
    /// The results of all frames are added to it.
    Sum(Tensor),
    /// The results are copied into it.
    Parts(Tensor),
    /// The result of a single call is the whole output.
    Whole(Option<Tensor>),
}

impl Output {
    fn take(&mut self, result: Tensor, first: i64, count: i64) -> Result<(), TchError> {
        match self {
            Output::Sum(sum) => sum.f_narrow(0, first, count)?.f_add_(&result).map(drop),
            Output::Parts(out) => out.f_narrow(0, first, count)?.f_copy_(&result),
            Output::Whole(out) => {
                *out = Some(result);
                Ok(())
            }
        }
    }

    fn finish(self) -> Tensor {
        match self {
            Output::Sum(tensor) | Output::Parts(tensor) => tensor,
            Output::Whole(result) => result.expect("there is at least one frame"),
        }
    }
}
