//! Operators on many tensors at a time, which tch does not bind: copies, and the fused AdamW step.

use tch::{Device, Kind, Tensor};

use crate::ffi::{self, check};
use crate::{Error, Result};

/// Copies the second tensor of each pair into the first, which may have another dtype. On a GPU, all copies take few launches.
///
/// # Errors
/// The sizes or the devices of a pair differ.
pub fn copy_each(pairs: &[(Tensor, Tensor)]) -> Result<()> {
    if pairs.is_empty() {
        return Ok(());
    }
    let doing = || format!("copy {} tensors", pairs.len());
    if let Some((to, from)) = pairs.iter().find(|(to, from)| (to.size(), to.device()) != (from.size(), from.device())) {
        let why =
            format!("one of {:?} on {:?} is for {:?} on {:?}", from.size(), from.device(), to.size(), to.device());
        return Err(Error::argument(doing(), why));
    }
    let (to, from): (Vec<_>, Vec<_>) = pairs.iter().map(|(to, from)| (to.as_ptr(), from.as_ptr())).unzip();
    // SAFETY: all tensors outlive the call, which reads as many pointers of each list as the number says.
    check(unsafe { ffi::vidtui_copy_each(to.as_ptr(), from.as_ptr(), pairs.len()) }, doing)
}

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
    /// Updates `param` and its moments in place, as [`AdamW::step_each`] does for many.
    ///
    /// # Errors
    /// As [`AdamW::step_each`].
    pub fn step(&self, param: &Tensor, grad: &Tensor, exp_avg: &Tensor, exp_avg_sq: &Tensor) -> Result<()> {
        self.step_each(&[[param, grad, exp_avg, exp_avg_sq].map(Tensor::shallow_clone)])
    }

    /// Updates parameters and their moments in place, in one pass over memory, as `torch.optim.AdamW` does. Each has a parameter, its
    /// gradient, `exp_avg` and `exp_avg_sq`.
    ///
    /// The four tensors of each must be contiguous, fp32 and of one shape, and all must be on one device; they may be views of longer
    /// tensors. On the CPU, the result of each element has the same bits for every sharding and every number of threads. On other devices,
    /// libtorch updates all in few launches, and multiplies the gradients by `grad_scale` in place.
    ///
    /// # Errors
    /// [`Error::Argument`] if the tensors are not like this, or `step` is 0.
    pub fn step_each(&self, tensors: &[[Tensor; 4]]) -> Result<()> {
        let Some([first, ..]) = tensors.first() else { return Ok(()) };
        let place = first.device();
        let doing = || match tensors {
            [_] => format!("apply AdamW step {} to a tensor of {:?}", self.step, first.size()),
            many => format!("apply AdamW step {} to {} tensors", self.step, many.len()),
        };
        for of_one in tensors {
            let size = of_one[0].size();
            for (name, tensor) in ["parameter", "gradient", "exp_avg", "exp_avg_sq"].iter().zip(of_one) {
                let (kind, device) = (tensor.kind(), tensor.device());
                if (kind, device) != (Kind::Float, place) || !tensor.is_contiguous() || tensor.size() != size {
                    let whose = if tensors.len() == 1 { "its".into() } else { format!("of one of {size:?}, the") };
                    let (is, stride) = (tensor.size(), tensor.stride());
                    let why = format!("{whose} {name} is {kind:?} {is:?} on {device:?} with strides {stride:?}");
                    return Err(Error::argument(doing(), why));
                }
            }
        }
        if self.step == 0 {
            return Err(Error::argument(doing(), "steps count from 1"));
        }
        let means = if place == Device::Cpu { Means::OnePass } else { Means::Libtorch };
        // SAFETY: checked above.
        unsafe { self.call(means, tensors) }.map_or(Ok(()), |status| check(status, doing))
    }

    /// Calls an implementation without checks. Returns the status of the first call that failed, if one did.
    ///
    /// # Safety
    /// Each four must be contiguous fp32 tensors of one length, all on one device, which is the CPU for [`Means::OnePass`].
    unsafe fn call(&self, means: Means, tensors: &[[Tensor; 4]]) -> Option<ffi::Status> {
        let &Self { grad_scale, lr, beta1, beta2, weight_decay, eps, step } = self;
        let pointers: Vec<[_; 4]> =
            tensors.iter().map(|of_one| of_one.each_ref().map(|tensor| tensor.as_ptr())).collect();
        match means {
            Means::OnePass => {
                // SAFETY: the caller guarantees what this function requires of the tensors, and they outlive the call.
                let one = |[p, g, m, v]: &[_; 4]| unsafe {
                    ffi::vidtui_adamw(*p, *g, *m, *v, grad_scale, lr, beta1, beta2, weight_decay, eps, step as f64)
                };
                pointers.iter().map(one).find(|status| !status.is_null())
            }
            Means::Libtorch => {
                let (all, count, step) = (pointers.as_flattened().as_ptr(), tensors.len(), step as f64);
                // SAFETY: as above; the call reads four pointers for each of the tensors.
                let status = unsafe {
                    ffi::vidtui_adamw_fused(all, count, grad_scale, lr, beta1, beta2, weight_decay, eps, step)
                };
                Some(status).filter(|status| !status.is_null())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_go_into_views_and_other_dtypes_and_need_equal_sizes() {
        let (flat, from) = (Tensor::zeros([6], (Kind::Float, Device::Cpu)), Tensor::from_slice(&[1.0f32, 2.0, 3.0]));
        let pair = |start, len, from: &Tensor| (flat.narrow(0, start, len), from.shallow_clone());
        copy_each(&[pair(0, 3, &from), pair(4, 2, &from.narrow(0, 1, 2).to_kind(Kind::BFloat16))]).unwrap();
        assert_eq!(Vec::<f32>::try_from(&flat).unwrap(), [1.0, 2.0, 3.0, 0.0, 2.0, 3.0]);
        assert!(copy_each(&[pair(0, 2, &from)]).unwrap_err().to_string().contains("[3]"));
        copy_each(&[]).unwrap();
    }

    #[test]
    fn libtorchs_kernel_takes_the_same_step() {
        let random = || Tensor::randn([100], (Kind::Float, Device::Cpu));
        let (param, grad, mean, square) = (random(), random(), random(), random().square());
        let adamw =
            AdamW { lr: 0.01, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, step: 3, grad_scale: 0.25 };
        let take = |means| {
            let whole = [&param, &grad, &mean, &square].map(Tensor::copy);
            let parts = [(0, 60), (60, 40)].map(|(from, len)| whole.each_ref().map(|t| t.narrow(0, from, len)));
            // SAFETY: twice four fp32 tensors of one length on the CPU.
            assert!(unsafe { adamw.call(means, &parts) }.is_none());
            let [p, _, m, v] = whole;
            [p, m, v]
        };
        for (ours, libtorchs) in take(Means::OnePass).iter().zip(take(Means::Libtorch)) {
            assert!((ours - libtorchs).abs().max().double_value(&[]) < 1e-6);
        }
    }
}
