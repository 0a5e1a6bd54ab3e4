//! The fused AdamW step on fp32 tensors, which tch does not bind.

use tch::{Device, Kind, Tensor};

use crate::ffi::{self, check};
use crate::{Error, Result};

/// The settings of one AdamW step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// The learning rate of this step.
    pub lr: f64,
    /// The decay rate of the first moment.
    pub beta1: f64,
    /// The decay rate of the second moment.
    pub beta2: f64,
    /// ε, added to the square root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay; a step multiplies the parameter by `1 - lr * weight_decay`.
    pub weight_decay: f64,
    /// The number of this step, from 1. It sets the bias correction.
    pub step: u64,
    /// The factor that multiplies the gradient first, for clipping; 1 changes nothing.
    pub grad_scale: f64,
}

/// The implementation of a step.
#[derive(Debug, Clone, Copy)]
enum Means {
    /// The loop of this crate.
    OnePass,
    /// libtorch's fused kernel.
    Libtorch,
}

impl AdamW {
    /// Updates `param` and its moments in place, in one pass over memory, as `torch.optim.AdamW` does.
    ///
    /// All four tensors must be contiguous, fp32, of one shape and on one device; they may be views of longer tensors. On the CPU,
    /// the result of each element has the same bits for every sharding and every number of threads. On other devices, libtorch
    /// multiplies the gradient by `grad_scale` in place.
    ///
    /// # Errors
    /// [`Error::Argument`] if the tensors are not like this, or `step` is 0.
    pub fn step(&self, param: &Tensor, grad: &Tensor, exp_avg: &Tensor, exp_avg_sq: &Tensor) -> Result<()> {
        let doing = || format!("apply AdamW step {} to a tensor of {:?}", self.step, param.size());
        let place = param.device();
        for (name, tensor) in
            [("parameter", param), ("gradient", grad), ("exp_avg", exp_avg), ("exp_avg_sq", exp_avg_sq)]
        {
            let (kind, device, size) = (tensor.kind(), tensor.device(), tensor.size());
            if (kind, device) != (Kind::Float, place) || !tensor.is_contiguous() || size != param.size() {
                let why = format!("its {name} is {kind:?} {size:?} on {device:?} with strides {:?}", tensor.stride());
                return Err(Error::argument(doing(), why));
            }
        }
        if self.step == 0 {
            return Err(Error::argument(doing(), "steps count from 1"));
        }
        let means = if place == Device::Cpu { Means::OnePass } else { Means::Libtorch };
        // SAFETY: checked above.
        let status = unsafe { self.call(means, [param, grad, exp_avg, exp_avg_sq]) };
        check(status, doing)
    }

    /// Calls an implementation without checks.
    ///
    /// # Safety
    /// All four must be contiguous fp32 tensors of one length on one device, which is the CPU for [`Means::OnePass`].
    unsafe fn call(&self, means: Means, [param, grad, exp_avg, exp_avg_sq]: [&Tensor; 4]) -> ffi::Status {
        let call = match means {
            Means::OnePass => ffi::vidtui_adamw,
            Means::Libtorch => ffi::vidtui_adamw_fused,
        };
        // SAFETY: the caller guarantees what this function requires of the tensors, and they outlive the call.
        unsafe {
            call(
                param.as_ptr(),
                grad.as_ptr(),
                exp_avg.as_ptr(),
                exp_avg_sq.as_ptr(),
                self.grad_scale,
                self.lr,
                self.beta1,
                self.beta2,
                self.weight_decay,
                self.eps,
                self.step as f64,
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libtorchs_kernel_takes_the_same_step() {
        let random = || Tensor::randn([100], (Kind::Float, Device::Cpu));
        let (param, grad, mean, square) = (random(), random(), random(), random().square());
        let adamw =
            AdamW { lr: 0.01, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, step: 3, grad_scale: 0.25 };
        let take = |means| {
            let [p, g, m, v] = [&param, &grad, &mean, &square].map(Tensor::copy);
            // SAFETY: four fp32 tensors of 100 elements on the CPU.
            let status = unsafe { adamw.call(means, [&p, &g, &m, &v]) };
            check(status, || "take a step".into()).unwrap();
            [p, m, v]
        };
        for (ours, libtorchs) in take(Means::OnePass).iter().zip(take(Means::Libtorch)) {
            assert!((ours - libtorchs).abs().max().double_value(&[]) < 1e-6);
        }
    }
}
