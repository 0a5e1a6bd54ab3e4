//! Reorders tokens, with a backward pass that gathers gradients instead of adding them by index.
//!
//! libtorch adds the gradient of `index_select` to zeros by index: atomic additions on a GPU, which are slow, and whose order differs from
//! run to run.
// B batch, L tokens, S places

use crate::ffi;
use std::panic::panic_any;
use tch::{Device, Tensor};
use torch_error::TorchError;

/// An order of the tokens of a sequence, in which each token has one place or two.
#[derive(Debug)]
pub struct Order {
    /// The token at each place, `[S]`.
    there: Tensor,
    /// The first place of each token, `[L]`.
    first: Tensor,
    /// The last place of each token, and half the number of its places, both `[L]`. `None` if each token has one place.
    last: Option<[Tensor; 2]>,
}

impl Order {
    /// Makes the order in which place `s` has the token `there[s]`. `None` unless each of the tokens 0 to L-1 has one place or two.
    #[must_use]
    pub fn new(there: &[i64]) -> Option<Self> {
        let len = there.iter().max().map_or(0, |last| last + 1) as usize;
        let (mut first, mut last, mut halves) = (vec![-1i64; len], vec![-1i64; len], vec![0f32; len]);
        for (place, &token) in there.iter().enumerate() {
            let token = usize::try_from(token).ok()?;
            if first[token] < 0 {
                first[token] = place as i64;
            }
            last[token] = place as i64;
            halves[token] += 0.5;
        }
        let is_permutation = there.len() == len;
        halves.iter().all(|half| *half == 0.5 || *half == 1.0).then(|| Order {
            there: Tensor::from_slice(there),
            first: Tensor::from_slice(&first),
            last: (!is_permutation).then(|| [Tensor::from_slice(&last), Tensor::from_slice(&halves)]),
        })
    }

    /// Moves the index tensors to a device.
    pub fn move_to(&mut self, device: Device) {
        self.there = self.there.to_device(device);
        self.first = self.first.to_device(device);
        self.last = self.last.take().map(|last| last.map(|tensor| tensor.to_device(device)));
    }

    /// Returns the tokens in this order, `[B, L, …]` to `[B, S, …]`; differentiable.
    ///
    /// # Panics
    /// The sequence has another length, or memory is short. tch's own operators panic too.
    pub fn select(&self, x_bl: &Tensor) -> Tensor {
        self.call(x_bl, false).unwrap_or_else(|error| panic_any(error))
    }

    /// Returns the sum over the places of each token, `[B, S, …]` to `[B, L, …]`; differentiable. Undoes [`Order::select`] if each token
    /// has one place.
    ///
    /// # Panics
    /// The sequence has another length, or memory is short. tch's own operators panic too.
    pub fn sum(&self, x_bs: &Tensor) -> Tensor {
        self.call(x_bs, true).unwrap_or_else(|error| panic_any(error))
    }

    fn call(&self, x: &Tensor, sums: bool) -> Result<Tensor, TorchError> {
        let [last, halves] = match &self.last {
            Some(last) => last.each_ref().map(Tensor::as_ptr),
            None => [std::ptr::null(); 2],
        };
        let mut out = std::ptr::null_mut();
        // SAFETY: all pointers are of tensors that outlive the call, or null where the C++ allows it; it writes one new tensor on
        // success.
        let status = unsafe {
            ffi::vidtui_order(x.as_ptr(), self.there.as_ptr(), self.first.as_ptr(), last, halves, sums, &mut out)
        };
        ffi::done(status)?;
        // SAFETY: the call above created the tensor and transfers ownership to us.
        Ok(unsafe { Tensor::from_ptr(out) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Kind;

    /// Returns the value of a function of `x`, and the gradient of `x` for random gradients of the value.
    fn with_gradient(x: &Tensor, function: impl Fn(&Tensor) -> Tensor) -> [Tensor; 2] {
        let leaf = x.detach().set_requires_grad(true);
        let value = function(&leaf);
        // Not of libtorch's global generator, from which tests of other threads draw.
        let grad = crate::normal::normal(7, &value.size(), Device::Cpu).to_kind(x.kind());
        let grads = Tensor::run_backward(&[(&value * grad).sum(value.kind())], &[&leaf], false, false);
        [value.detach(), grads[0].shallow_clone()]
    }

    #[test]
    fn orders_have_the_values_and_gradients_of_libtorchs_operators() {
        let orders: [&[i64]; 3] = [&[3, 0, 4, 1, 2], &[0, 1, 2, 2, 3, 4], &[4, 3, 0, 3, 4, 1, 2]];
        for (there, kind) in orders.into_iter().flat_map(|there| [(there, Kind::Float), (there, Kind::BFloat16)]) {
            let (order, index) = (Order::new(there).unwrap(), Tensor::from_slice(there));
            let random = |len| Tensor::randn([2, len, 3, 2], (Kind::Float, Device::Cpu)).to_kind(kind);
            let (tokens, places) = (random(5), random(there.len() as i64));
            let selects = with_gradient(&tokens, |x| order.select(x));
            assert_eq!(selects, with_gradient(&tokens, |x| x.index_select(1, &index)), "{there:?} {kind:?}");
            let sums = with_gradient(&places, |x| order.sum(x));
            let zeros = tokens.zeros_like();
            assert_eq!(sums, with_gradient(&places, |x| zeros.index_add(1, &index, x)), "{there:?} {kind:?}");
        }
    }

    #[test]
    fn a_permutation_is_undone_and_other_numbers_of_places_are_refused() {
        let order = Order::new(&[2, 0, 1]).unwrap();
        let x = Tensor::from_slice(&[1i64, 2, 3]).unsqueeze(0);
        assert_eq!(order.sum(&order.select(&x)), x);
        assert!(order.last.is_none());
        assert!([&[0, 2][..], &[0, 0, 0], &[-1, 0]].iter().all(|there| Order::new(there).is_none()));
    }
}
