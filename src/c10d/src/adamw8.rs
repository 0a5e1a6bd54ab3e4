//! AdamW with 8-bit moments: each element is a code of a dynamic map, and each block of 256 elements has a scale.
//!
//! Source: Dettmers et al. 2021, "8-bit Optimizers via Block-wise Quantization" (arXiv 2110.02861); torchao 0.18 `optim`.

use tch::{Device, Kind, Tensor};

use crate::ffi::{self, check};
use crate::ops::AdamW;
use crate::{Error, Result};

/// The number of elements of a block, which share one scale.
pub const BLOCK: i64 = 256;

/// The smallest scale of a block that has been quantized.
const SMALLEST_SCALE: f64 = 1e-12;

/// A map of 256 codes to ascending values, denser near zero: from about -1 to 1 if signed, and from 0 to 1 if unsigned.
#[derive(Debug)]
pub struct Map {
    values: Tensor,
    /// The 255 midpoints between neighbouring values.
    boundaries: Tensor,
}

/// The maps of both moments.
#[derive(Debug)]
pub struct Maps {
    /// The map of the first moment, the mean of gradients.
    pub signed: Map,
    /// The map of the second moment, the mean of squared gradients.
    pub unsigned: Map,
}

impl Maps {
    /// Makes the maps on a device.
    pub fn on(device: Device) -> Self {
        Maps { signed: Map::dynamic(true, device), unsigned: Map::dynamic(false, device) }
    }
}

impl Map {
    /// Makes the dynamic map: 0, 1, and values in seven decades from 1e-7 to 1, each with twice as many values as the decade below.
    fn dynamic(signed: bool, device: Device) -> Self {
        const DECADES: i32 = 7;
        let mut values = vec![0.0, 1.0];
        for decade in 0..DECADES {
            let steps = if signed { 1 << decade } else { 1 << (decade + 1) };
            let edges = Tensor::linspace(0.1, 1.0, steps + 1, (Kind::Float, Device::Cpu));
            let middles = (edges.narrow(0, 0, steps) + edges.narrow(0, 1, steps)) / 2.0;
            let middles = middles * 10f64.powi(decade + 1 - DECADES);
            let middles = Vec::<f32>::try_from(&middles).expect("a flat tensor of numbers");
            values.extend(middles.iter().filter(|_| signed).map(|middle| -middle));
            values.extend(middles);
        }
        values.sort_by(f32::total_cmp);
        let values = Tensor::from_slice(&values).to_device(device);
        let boundaries = (values.narrow(0, 0, 255) + values.narrow(0, 1, 255)) / 2.0;
        Map { values, boundaries }
    }

    fn nearest(&self, x: &Tensor) -> Tensor {
        x.bucketize(&self.boundaries, false, true).to_kind(Kind::Uint8)
    }

    fn of(&self, codes: &Tensor) -> Tensor {
        self.values.take(&codes.to_kind(Kind::Int64))
    }
}

/// A contiguous range of the elements of a tensor, as codes and the scales of their blocks.
#[derive(Debug)]
pub struct Quantized {
    /// One byte for each element.
    pub codes: Tensor,
    /// fp32, one for each block that has an element of the range.
    pub scales: Tensor,
    /// The position of the range's first element within its block: 0 to `BLOCK - 1`.
    phase: i64,
}

impl Quantized {
    /// Makes a range of zeros. `start` is the index of its first element in the tensor, whose blocks begin at multiples of
    /// [`BLOCK`].
    pub fn zeros(start: i64, len: i64, device: Device) -> Self {
        let zeros = |len: i64, kind| Ok(Tensor::zeros([len], (kind, device)));
        Self::zeros_in(start, len, zeros).expect("the function returns no error")
    }

    /// Makes a range as [`Quantized::zeros`] does. `zeros` allocates a tensor of zeros of a length and dtype.
    ///
    /// # Errors
    /// `zeros` fails.
    pub fn zeros_in(start: i64, len: i64, zeros: impl Fn(i64, Kind) -> Result<Tensor>) -> Result<Self> {
        let (codes, scales) = (zeros(len, Kind::Uint8)?, zeros(Self::blocks(start, len), Kind::Float)?);
        Ok(Quantized { codes, scales, phase: start % BLOCK })
    }

    /// Returns the same range with other tensors, such as copies on another device.
    pub fn with(&self, codes: &Tensor, scales: &Tensor) -> Self {
        Quantized { codes: codes.shallow_clone(), scales: scales.shallow_clone(), phase: self.phase }
    }

    /// Returns the number of blocks that have an element of a range.
    pub fn blocks(start: i64, len: i64) -> i64 {
        (start % BLOCK + len + BLOCK - 1) / BLOCK
    }

    /// Returns a tensor with one number per element as a matrix with one row per block, padded with zeros.
    fn rows(&self, of: &Tensor) -> Tensor {
        let after = self.scales.size()[0] * BLOCK - self.phase - of.size()[0];
        of.constant_pad_nd([self.phase, after]).view([-1, BLOCK])
    }

    /// Reverses [`Self::rows`]: returns one number per element, without the padding.
    fn elements(&self, rows: &Tensor) -> Tensor {
        rows.view(-1).narrow(0, self.phase, self.codes.size()[0])
    }

    /// Returns the dequantized values.
    pub fn values(&self, map: &Map) -> Tensor {
        self.elements(&(self.rows(&map.of(&self.codes)) * self.scales.unsqueeze(1)))
    }

    /// Quantizes and stores values.
    pub fn set(&mut self, map: &Map, values: &Tensor) {
        let rows = self.rows(values);
        let scales = rows.abs().amax([1], false).clamp_min(SMALLEST_SCALE);
        let codes = self.elements(&map.nearest(&(rows / scales.unsqueeze(1))));
        self.scales.copy_(&scales);
        self.codes.copy_(&codes);
    }

    /// Stores codes that have one scale per element. The largest scale in a block becomes the scale of the block. Codes with that scale
    /// are unchanged; the others are requantized.
    pub fn set_scaled(&self, map: &Map, codes: &Tensor, scales: &Tensor) {
        let rows = self.rows(scales);
        let largest = rows.amax([1], false);
        let of_block = self.elements(&largest.unsqueeze(1).expand_as(&rows).contiguous());
        let requantized = map.nearest(&(map.of(codes) * scales / &of_block));
        let codes = codes.where_self(&scales.eq_tensor(&of_block), &requantized);
        self.scales.shallow_clone().copy_(&largest);
        self.codes.shallow_clone().copy_(&codes);
    }
}

impl AdamW {
    /// Updates `param` and its quantized moments in place: on the CPU in one pass over memory, on other devices with tensor
    /// operations. The update of `param` uses the new moments before they are quantized.
    ///
    /// # Errors
    /// The lengths or devices differ, a tensor is not contiguous or has another dtype, or `step` is 0.
    pub fn step8(&self, param: &Tensor, grad: &Tensor, moments: [&mut Quantized; 2], maps: &Maps) -> Result<()> {
        let doing = || format!("apply 8-bit AdamW step {} to a tensor of {:?}", self.step, param.size());
        for (name, tensor) in [("parameter", param), ("gradient", grad)] {
            let (kind, size) = (tensor.kind(), tensor.size());
            if kind != Kind::Float || !tensor.is_contiguous() || size != moments[0].codes.size() {
                let why = format!("its {name} is {kind:?} {size:?}, the moments have {:?}", moments[0].codes.size());
                return Err(Error::argument(doing(), why));
            }
        }
        let tensors = |moment: &Quantized| (moment.codes.size(), moment.scales.size(), moment.phase);
        if tensors(moments[0]) != tensors(moments[1]) {
            return Err(Error::argument(doing(), "its two moments have different lengths or block offsets"));
        }
        Self::check_tensors(param, grad, [&*moments[0], &*moments[1]], maps)
            .map_err(|why| Error::argument(doing(), why))?;
        if self.step == 0 {
            return Err(Error::argument(doing(), "steps count from 1"));
        }
        if param.device() != Device::Cpu {
            tch::no_grad(|| self.step8_in_tensors(param, grad, moments, maps));
            return Ok(());
        }
        let [first, second] = moments;
        // SAFETY: the tensors are contiguous, on the CPU, and have the dtypes and lengths that the function requires: the
        // parameter, the gradient and the moments are checked above, and `Map` creates its tensors in this form.
        let status = unsafe {
            ffi::vidtui_adamw8(
                param.as_ptr(),
                grad.as_ptr(),
                first.codes.as_ptr(),
                first.scales.as_ptr(),
                second.codes.as_ptr(),
                second.scales.as_ptr(),
                maps.signed.values.as_ptr(),
                maps.signed.boundaries.as_ptr(),
                maps.unsigned.values.as_ptr(),
                maps.unsigned.boundaries.as_ptr(),
                first.phase,
                self.grad_scale,
                self.lr,
                self.beta1,
                self.beta2,
                self.weight_decay,
                self.eps,
                self.step as f64,
            )
        };
        check(status, doing)
    }

    /// Checks the dtypes of the moments, and that all tensors are on one device.
    fn check_tensors(
        param: &Tensor,
        grad: &Tensor,
        moments: [&Quantized; 2],
        maps: &Maps,
    ) -> std::result::Result<(), String> {
        let state = moments.map(|moment| [(&moment.codes, Kind::Uint8), (&moment.scales, Kind::Float)]);
        for (tensor, kind) in state.iter().flatten() {
            if tensor.kind() != *kind || !tensor.is_contiguous() {
                return Err(format!("a tensor of its moments is {:?} and not a contiguous {kind:?}", tensor.kind()));
            }
        }
        let tables = [&maps.signed, &maps.unsigned].map(|map| [&map.values, &map.boundaries]);
        let state = state.iter().flatten().map(|(tensor, _)| *tensor);
        for other in state.chain(tables.into_iter().flatten()).chain([grad]) {
            if other.device() != param.device() {
                let (here, there) = (param.device(), other.device());
                return Err(format!("its parameter is on {here:?}, another of its tensors on {there:?}"));
            }
        }
        Ok(())
    }

    fn step8_in_tensors(&self, param: &Tensor, grad: &Tensor, [first, second]: [&mut Quantized; 2], maps: &Maps) {
        let grad = grad * self.grad_scale;
        let mean = first.values(&maps.signed) * self.beta1 + &grad * (1.0 - self.beta1);
        let square = second.values(&maps.unsigned) * self.beta2 + grad.square() * (1.0 - self.beta2);
        let root = 1.0 / (1.0 - self.beta2.powf(self.step as f64)).sqrt();
        let rate = self.lr / (1.0 - self.beta1.powf(self.step as f64));
        let mut param = param.shallow_clone();
        let _ = param.g_mul_scalar_(1.0 - self.lr * self.weight_decay);
        param -= &mean / (square.sqrt() * root + self.eps) * rate;
        first.set(&maps.signed, &mean);
        second.set(&maps.unsigned, &square);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(len: i64) -> Tensor {
        Tensor::randn([len], (Kind::Float, Device::Cpu))
    }

    fn bytes(tensor: &Tensor) -> Vec<u8> {
        Vec::try_from(tensor).unwrap()
    }

    #[test]
    fn maps_have_256_ascending_values_that_are_their_own_codes() {
        let maps = Maps::on(Device::Cpu);
        for (map, least) in [(&maps.signed, -0.992_968_75), (&maps.unsigned, 0.0)] {
            let values = Vec::<f32>::try_from(&map.values).unwrap();
            assert_eq!((values.len(), values[0], values[255]), (256, least, 1.0));
            assert!(values.is_sorted_by(|a, b| a < b));
            assert_eq!(bytes(&map.nearest(&map.values)), (0..=255).collect::<Vec<u8>>());
        }
    }

    #[test]
    fn the_step_of_the_cpu_equals_the_one_in_tensor_operations() {
        let maps = Maps::on(Device::Cpu);
        for start in [0, 100, 256] {
            let len = 1000;
            let param = random(len) * 0.02;
            let make = || [0, 1].map(|_| Quantized::zeros(start, len, Device::Cpu));
            let (mut ours, mut theirs, other) = (make(), make(), param.copy());
            for step in 1..=5 {
                let grad = random(len) * (random(len) * 3.0).exp() * 1e-3;
                let (lr, weight_decay) = (1e-3, 0.1);
                let adamw = AdamW { lr, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay, step, grad_scale: 0.5 };
                let [first, second] = &mut ours;
                adamw.step8(&param, &grad, [first, second], &maps).unwrap();
                let [first, second] = &mut theirs;
                adamw.step8_in_tensors(&other, &grad, [first, second], &maps);
                // The error is relative, because an update is large where the second moment has been rounded to zero.
                let off = (&param - &other).abs() / (param.abs() + 1e-3);
                assert!(off.max().double_value(&[]) < 1e-5);
                other.shallow_clone().copy_(&param);
                for (a, b) in ours.iter().zip(&mut theirs) {
                    let differ = bytes(&a.codes).iter().zip(bytes(&b.codes)).filter(|(a, b)| **a != *b).count();
                    // A sum of two products is rounded differently where libtorch fuses them.
                    assert!(differ <= 2, "step {step} from {start}: {differ} codes differ");
                    assert!(((&a.scales - &b.scales).abs() / &b.scales).max().double_value(&[]) < 1e-6);
                    // Both begin the next step from the same state.
                    b.codes.copy_(&a.codes);
                    b.scales.copy_(&a.scales);
                }
            }
        }
    }

    #[test]
    fn moving_whole_blocks_loses_nothing_and_other_ranges_move_values_by_at_most_a_step_of_the_map() {
        let maps = Maps::on(Device::Cpu);
        let mut whole = Quantized::zeros(0, 1000, Device::Cpu);
        whole.set(&maps.signed, &random(1000));
        let values = whole.values(&maps.signed);
        let of_elements = whole.elements(&whole.scales.unsqueeze(1).expand([4, BLOCK], false).contiguous());
        let part = |start: i64, shift: i64| {
            let part = Quantized::zeros(start + shift, 600, Device::Cpu);
            let cut = |of: &Tensor| of.narrow(0, start, 600);
            part.set_scaled(&maps.signed, &cut(&whole.codes), &cut(&of_elements));
            (bytes(&part.codes) == bytes(&cut(&whole.codes)), part.values(&maps.signed) - cut(&values))
        };
        let (same, off) = part(300, 0);
        assert!(same && off.abs().max().double_value(&[]) == 0.0);
        let (same, off) = part(300, 50);
        let scale = whole.scales.max().double_value(&[]);
        assert!(!same && off.abs().max().double_value(&[]) <= 0.5 * 0.9 / 64.0 * scale * 1.001);
    }

    #[test]
    fn tensors_that_do_not_fit_are_refused() {
        let maps = Maps::on(Device::Cpu);
        let adamw = AdamW { lr: 1e-3, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.0, step: 1, grad_scale: 1.0 };
        let go = |adamw: AdamW, len: i64, starts: [i64; 2]| {
            let [mut first, mut second] = starts.map(|start| Quantized::zeros(start, 300, Device::Cpu));
            adamw.step8(&random(300), &random(len), [&mut first, &mut second], &maps)
        };
        assert!(go(adamw, 300, [0, 0]).is_ok());
        for refused in [go(adamw, 299, [0, 0]), go(adamw, 300, [0, 1]), go(AdamW { step: 0, ..adamw }, 300, [0, 0])] {
            assert!(matches!(refused, Err(Error::Argument { .. })));
        }
        let [mut first, mut second] = [0, 0].map(|start| Quantized::zeros(start, 300, Device::Cpu));
        first.codes = first.codes.to_kind(Kind::Float);
        let other_dtype = adamw.step8(&random(300), &random(300), [&mut first, &mut second], &maps);
        assert!(matches!(other_dtype, Err(Error::Argument { .. })));
    }
}
