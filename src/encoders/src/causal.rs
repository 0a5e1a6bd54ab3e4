//! Convolutions that see the past only, after a norm, a few frames at a time.
//!
//! Only the input and the output of a step are whole in memory. Normalized frames are kept in a buffer of a few frames, after those
//! that precede them. A video can be computed in windows: each convolution then keeps its last frames for the next window.
//!
//! A tensor is `[T, H, W, C]`, one sample with channels last.

use crate::params::Params;
use failure::Failure;
use tch::{Device, Kind, TchError, Tensor};

/// A convolution over frames, rows and columns, with its weight in the layout that channels-last input needs.
#[derive(Debug)]
pub struct Conv {
    weight: Tensor,
    bias: Option<Tensor>,
}

/// What is around the pixels of a frame, and before the first frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Border {
    /// Zeros on all sides, and zeros before the first frame.
    Zeros,
    /// Copies of the nearest pixels on all sides, and copies of the first frame before it.
    Copies,
    /// Zeros on the right and below.
    ZerosAfter,
}

/// How a convolution moves over its input.
#[derive(Debug, Clone, Copy)]
pub struct Walk {
    pub border: Border,
    /// The number of frames before the first frame.
    pub past: i64,
    /// The step in frames, and in rows and columns.
    pub stride: [i64; 2],
}

/// The frames that convolutions keep from one window for the next, in the order in which convolutions are computed.
#[derive(Debug)]
pub struct Memory {
    kept: Vec<Option<Tensor>>,
    next: usize,
    first: bool,
    more: bool,
    /// The size of the buffer of normalized frames, in bytes.
    budget: i64,
}

/// The destination of a step's result.
pub enum Onto {
    /// Into a new tensor.
    New,
    /// Added to this tensor.
    Sum(Tensor),
}

/// Writes normalized frames: from some frames of the input, of which the first has this number, into a tensor of the same shape.
pub type Fill<'a> = dyn Fn(&Tensor, i64, &Tensor) -> Result<(), TchError> + 'a;

impl Memory {
    /// Creates the memory of one sample.
    pub fn new(budget: i64) -> Self {
        Memory { kept: Vec::new(), next: 0, first: true, more: false, budget }
    }

    /// Starts a window with the first convolution. If `more` is true, another window follows.
    pub fn begin(&mut self, first: bool, more: bool) {
        (self.next, self.first, self.more) = (0, first, more);
    }

    /// Returns whether this is the first window.
    pub fn is_first(&self) -> bool {
        self.first
    }

    /// Returns the number of frames like these to normalize at a time.
    pub fn chunk(&self, x_thwc: &Tensor) -> i64 {
        let frame: i64 = x_thwc.size()[1..].iter().product::<i64>() * x_thwc.kind().elt_size_in_bytes() as i64;
        (self.budget / frame.max(1)).clamp(2, x_thwc.size()[0].max(2))
    }

    /// Keeps the last of these frames for the next window of the next convolution, which does not compute them.
    pub fn keep(&mut self, x_thwc: &Tensor) -> Result<(), TchError> {
        let more = self.more;
        let last = x_thwc.f_narrow(0, x_thwc.size()[0] - 1, 1)?;
        *self.place() = if more { Some(last.f_detach_copy()?) } else { None };
        Ok(())
    }

    /// Leaves out the next convolution in this window.
    pub fn skip(&mut self) {
        self.place();
    }

    /// Returns the frames that the next convolution has kept, and the place for those that it keeps.
    fn place(&mut self) -> &mut Option<Tensor> {
        if self.next == self.kept.len() {
            self.kept.push(None);
        }
        self.next += 1;
        &mut self.kept[self.next - 1]
    }
}

impl Conv {
    /// Reads a convolution over frames, rows and columns, or over rows and columns. It may have no bias.
    pub fn read(params: &mut Params<'_>, name: &str) -> Result<Self, Failure> {
        let mut weight = params.tensor(&format!("{name}.weight"))?;
        if weight.dim() == 4 {
            weight = weight.unsqueeze(2);
        }
        // The tensor is stored with channels last, and viewed in the order that libtorch's functions expect.
        let weight = weight.permute([0, 2, 3, 4, 1]).contiguous().permute([0, 4, 1, 2, 3]);
        let bias = format!("{name}.bias");
        let bias = if params.has(&bias) { Some(params.tensor(&bias)?) } else { None };
        Ok(Conv { weight, bias })
    }

    /// Returns the numbers of frames and of rows that one result depends on.
    fn kernel(&self) -> [i64; 2] {
        let size = self.weight.size();
        [size[2], size[3]]
    }

    /// Returns the number of output channels.
    pub fn width(&self) -> i64 {
        self.weight.size()[0]
    }

    /// Computes a convolution of one pixel, which needs no other frames and no border.
    pub fn pixels(&self, x_thwc: &Tensor) -> Result<Tensor, TchError> {
        self.convolve(x_thwc, 0, [1, 1])
    }

    /// Convolves each frame by itself, with zeros around it.
    pub fn frames(&self, x_thwc: &Tensor) -> Result<Tensor, TchError> {
        self.convolve(x_thwc, (self.kernel()[1] - 1) / 2, [1, 1])
    }

    /// Convolves frames that include those of the past, with `padding` zeros around each frame.
    fn convolve(&self, x_thwc: &Tensor, padding: i64, [in_time, in_space]: [i64; 2]) -> Result<Tensor, TchError> {
        let x = x_thwc.f_unsqueeze(0)?.f_permute([0, 4, 1, 2, 3])?;
        let (padding, stride, ones) = ([0, padding, padding], [in_time, in_space, in_space], [1; 3]);
        // libtorch would choose a slower algorithm with a larger workspace for small inputs.
        let y = if x.kind() == Kind::Float && x.device() == Device::Cpu {
            x.f_mkldnn_convolution(&self.weight, self.bias.as_ref(), padding, stride, ones, 1)?
        } else {
            x.f_conv3d(&self.weight, self.bias.as_ref(), stride, padding, ones, 1)?
        };
        y.f_permute([0, 2, 3, 4, 1])?.f_squeeze_dim(0)?.f_contiguous()
    }
}

/// Copies frames unchanged: the `fill` of a convolution without a norm.
pub fn copy(x_thwc: &Tensor, _first: i64, out_thwc: &Tensor) -> Result<(), TchError> {
    out_thwc.shallow_clone().f_copy_(x_thwc)
}

/// Computes one step: fills a buffer with normalized frames, a few at a time, and convolves them.
pub fn step(
    x_thwc: &Tensor,
    fill: &Fill<'_>,
    conv: &Conv,
    walk: Walk,
    memory: &mut Memory,
    onto: Onto,
) -> Result<Tensor, TchError> {
    let [frames, height, width, channels] = [0, 1, 2, 3].map(|axis| x_thwc.size()[axis]);
    let [in_time, in_space] = walk.stride;
    let [kernel, rows] = conv.kernel();
    let (before, after, padding) = match walk.border {
        Border::Zeros => (0, 0, (rows - 1) / 2),
        Border::Copies => ((rows - 1) / 2, (rows - 1) / 2, 0),
        Border::ZerosAfter => (0, 1, 0),
    };
    let (chunk, more) = (memory.chunk(x_thwc).min(frames), memory.more);
    let place = memory.place();
    let shape = [kernel - 1 + chunk, before + height + after, before + width + after, channels];
    let buffer = Tensor::f_zeros(shape, (x_thwc.kind(), x_thwc.device()))?;
    let kept = place.take();
    let mut held = kept.as_ref().map_or(walk.past, |kept| kept.size()[0]);
    let results = (held + frames - kernel) / in_time + 1;
    let mut out = match onto {
        Onto::Sum(sum) => Output::Sum(sum),
        Onto::New => Output::New { whole: None, frames: results },
    };
    let (mut read, mut written) = (0, 0);
    while read < frames {
        let count = chunk.min(frames - read);
        let fresh = buffer.f_narrow(0, held, count)?;
        fill(&x_thwc.f_narrow(0, read, count)?, read, &fresh.f_narrow(1, before, height)?.f_narrow(2, before, width)?)?;
        if walk.border == Border::Copies && before > 0 {
            copy_edges(&fresh)?;
        }
        if read == 0 {
            let mut past = buffer.f_narrow(0, 0, held)?;
            match (&kept, walk.border) {
                (Some(kept), _) => past.f_copy_(kept)?,
                (None, Border::Copies) => past.f_copy_(&fresh.f_narrow(0, 0, 1)?.f_expand_as(&past)?)?,
                // The buffer begins as zeros.
                (None, _) => {}
            }
        }
        read += count;
        held += count;
        let ready = if held < kernel { 0 } else { (held - kernel) / in_time + 1 };
        if ready > 0 {
            let input = buffer.f_narrow(0, 0, (ready - 1) * in_time + kernel)?;
            out.take(conv.convolve(&input, padding, [in_time, in_space])?, written, ready)?;
        }
        written += ready;
        let used = ready * in_time;
        held -= used;
        // Source and destination can overlap.
        let rest = buffer.f_narrow(0, used, held)?.f_detach_copy()?;
        if read < frames {
            buffer.f_narrow(0, 0, held)?.f_copy_(&rest)?;
        } else if more {
            *place = Some(rest);
        }
    }
    Ok(out.finish())
}

/// Writes each frame `times` times, with each row and each column twice, into `out_thwc`.
pub fn enlarge(x_thwc: &Tensor, times: i64, out_thwc: &Tensor) -> Result<(), TchError> {
    let [frames, height, width, channels] = [0, 1, 2, 3].map(|axis| x_thwc.size()[axis]);
    let out = out_thwc.f_view(&[frames, times, height, 2, width, 2, channels][..])?;
    let x = x_thwc.f_view(&[frames, 1, height, 1, width, 1, channels][..])?;
    out.shallow_clone().f_copy_(&x.f_expand_as(&out)?)
}

/// Copies the pixels at the edges of frames into the border around them, which is one pixel wide.
fn copy_edges(frames_thwc: &Tensor) -> Result<(), TchError> {
    for axis in [1, 2] {
        let last = frames_thwc.size()[axis as usize] - 1;
        for (border, edge) in [(0, 1), (last, last - 1)] {
            frames_thwc.f_narrow(axis, border, 1)?.f_copy_(&frames_thwc.f_narrow(axis, edge, 1)?)?;
        }
    }
    Ok(())
}

/// The output of a step while it is computed.
enum Output {
    /// The results are added to it.
    Sum(Tensor),
    /// The results are copied into a tensor of this many frames, unless they come at once.
    New { whole: Option<Tensor>, frames: i64 },
}

impl Output {
    fn take(&mut self, result: Tensor, first: i64, count: i64) -> Result<(), TchError> {
        match self {
            Output::Sum(sum) => sum.f_narrow(0, first, count)?.f_add_(&result).map(drop),
            Output::New { whole, frames } if count == *frames => {
                *whole = Some(result);
                Ok(())
            }
            Output::New { whole, frames } => {
                if whole.is_none() {
                    let mut shape = result.size();
                    shape[0] = *frames;
                    *whole = Some(Tensor::f_empty(&shape, (result.kind(), result.device()))?);
                }
                let out = whole.as_ref().expect("it was created above");
                out.f_narrow(0, first, count)?.f_copy_(&result)
            }
        }
    }

    fn finish(self) -> Tensor {
        match self {
            Output::Sum(tensor) => tensor,
            Output::New { whole, .. } => whole.expect("there is at least one frame"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apart(a: &Tensor, b: &Tensor) -> f64 {
        assert_eq!(a.size(), b.size());
        ((a - b).abs().max() / b.abs().max()).double_value(&[])
    }

    fn random(shape: &[i64]) -> Tensor {
        Tensor::rand(shape, (Kind::Float, Device::Cpu)) - 0.5
    }

    /// Computes the same as [`step`] on a copy of the whole input with its border.
    fn whole(x_thwc: &Tensor, conv: &Conv, walk: Walk) -> Tensor {
        let x = x_thwc.permute([3, 0, 1, 2]).unsqueeze(0);
        let side = (conv.kernel()[1] - 1) / 2;
        let padded = match walk.border {
            Border::Zeros => x.constant_pad_nd([side, side, side, side, walk.past, 0]),
            Border::ZerosAfter => x.constant_pad_nd([0, 1, 0, 1, walk.past, 0]),
            Border::Copies => x.replication_pad3d([side, side, side, side, walk.past, 0]),
        };
        let [in_time, in_space] = walk.stride;
        let y = padded.conv3d(&conv.weight, conv.bias.as_ref(), [in_time, in_space, in_space], [0; 3], [1; 3], 1);
        y.squeeze_dim(0).permute([1, 2, 3, 0])
    }

    fn cases() -> Vec<(Conv, Walk)> {
        let conv = |kernel: [i64; 3]| Conv {
            weight: random(&[5, 3, kernel[0], kernel[1], kernel[2]]),
            bias: Some(random(&[5])),
        };
        let walk = |border, past, stride| Walk { border, past, stride };
        vec![
            (conv([3, 3, 3]), walk(Border::Zeros, 2, [1, 1])),
            (conv([3, 3, 3]), walk(Border::Copies, 2, [1, 1])),
            (conv([3, 3, 3]), walk(Border::Copies, 2, [2, 2])),
            (conv([3, 3, 3]), walk(Border::Copies, 2, [1, 2])),
            (conv([3, 3, 3]), walk(Border::Zeros, 1, [2, 1])),
            (conv([3, 1, 1]), walk(Border::Zeros, 1, [2, 1])),
            (conv([1, 3, 3]), walk(Border::ZerosAfter, 0, [1, 2])),
        ]
    }

    #[test]
    fn a_step_does_not_depend_on_how_many_frames_are_computed_at_a_time() {
        let x = random(&[11, 6, 8, 3]);
        let frame = 6 * 8 * 3 * 4;
        for (conv, walk) in cases() {
            let want = whole(&x, &conv, walk);
            for budget in [1, 3 * frame, 4 * frame, 1 << 20] {
                let mut memory = Memory::new(budget);
                let got = step(&x, &copy, &conv, walk, &mut memory, Onto::New).unwrap();
                assert!(apart(&got, &want) < 1e-5, "{walk:?} {budget}");
                let ones = Onto::Sum(Tensor::ones_like(&want).contiguous());
                memory.begin(true, false);
                let sum = step(&x, &copy, &conv, walk, &mut memory, ones).unwrap();
                assert!(apart(&(sum - 1), &want) < 1e-5, "{walk:?} {budget}");
            }
        }
    }

    #[test]
    fn windows_give_the_same_as_a_whole_video() {
        let x = random(&[13, 6, 8, 3]);
        for (conv, walk) in cases() {
            let want = whole(&x, &conv, walk);
            for budget in [1, 1 << 20] {
                let (mut memory, mut parts) = (Memory::new(budget), Vec::new());
                for (first, count) in [(0, 5), (5, 4), (9, 2), (11, 2)] {
                    memory.begin(first == 0, first + count < 13);
                    let part = x.narrow(0, first, count);
                    parts.push(step(&part, &copy, &conv, walk, &mut memory, Onto::New).unwrap());
                }
                assert!(apart(&Tensor::cat(&parts, 0), &want) < 1e-5, "{walk:?} {budget}");
            }
        }
    }
}
