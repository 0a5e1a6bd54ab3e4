//! Fused operations that tch does not bind.

use tch::{Device, Kind, Tensor};

use crate::ffi::{self, check};
use crate::{Error, Result};

/// The settings of one AdamW step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// Learning rate of this step.
    pub lr: f64,
    /// Decay of the mean of gradients.
    pub beta1: f64,
    /// Decay of the mean of squared gradients.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay; a step multiplies the parameter by `1 - lr * weight_decay`.
    pub weight_decay: f64,
    /// Which step this is, from 1: it sets the bias correction.
    pub step: u64,
    /// What the gradient is multiplied with first, as when clipping; 1 leaves it alone.
    pub grad_scale: f64,
}

impl AdamW {
    /// Updates `param` and its moments in place, in one pass over memory, as `torch.optim.AdamW` does.
    ///
    /// All four are fp32 on the CPU, of one length, contiguous; views of longer tensors are fine. Each element's result
    /// has the same bits however the tensors are cut and whatever the number of threads.
    ///
    /// # Errors
    /// When shapes differ, a tensor is of another kind or place, or `step` is 0.
    pub fn step(&self, param: &Tensor, grad: &Tensor, exp_avg: &Tensor, exp_avg_sq: &Tensor) -> Result<()> {
        let doing = || format!("apply AdamW step {} to a tensor of {:?}", self.step, param.size());
        for (name, tensor) in
            [("parameter", param), ("gradient", grad), ("exp_avg", exp_avg), ("exp_avg_sq", exp_avg_sq)]
        {
            let (kind, device, size) = (tensor.kind(), tensor.device(), tensor.size());
            if (kind, device) != (Kind::Float, Device::Cpu) || !tensor.is_contiguous() || size != param.size() {
                let why = format!("its {name} is {kind:?} {size:?} on {device:?} with strides {:?}", tensor.stride());
                return Err(Error::argument(doing(), why));
            }
        }
        if self.step == 0 {
            return Err(Error::argument(doing(), "steps count from 1"));
        }
        // SAFETY: all four are contiguous fp32 tensors on the CPU of as many elements as the first, and outlive the call.
        let status = unsafe {
            ffi::vidtui_adamw(
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
        };
        check(status, doing)
    }
}
