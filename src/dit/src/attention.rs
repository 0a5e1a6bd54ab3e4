//! The attentions of a block, whose outputs may be saved by the forward pass and taken by the backward pass.

use kernels::attention::{AttentionOutput, scaled_dot_product};
use std::cell::RefCell;
use std::collections::VecDeque;
use tch::Tensor;

/// Computes the attentions of a block, in the same order in every pass, or takes their saved outputs.
#[derive(Debug, Default)]
pub struct Attention {
    known: RefCell<VecDeque<AttentionOutput>>,
    /// The new outputs, if they are saved.
    made: Option<RefCell<VecDeque<AttentionOutput>>>,
}

impl Attention {
    /// Computes all outputs, and saves them.
    pub(crate) fn saving() -> Self {
        Attention { made: Some(RefCell::default()), ..Attention::default() }
    }

    /// Takes saved outputs, in the order in which they were computed.
    pub(crate) fn known(attended: VecDeque<AttentionOutput>) -> Self {
        Attention { known: RefCell::new(attended), ..Attention::default() }
    }

    /// Returns the saved outputs.
    pub(crate) fn into_saved(self) -> VecDeque<AttentionOutput> {
        self.made.map(RefCell::into_inner).unwrap_or_default()
    }

    /// Computes attention without a mask, scale 1/√F, of queries, keys and values `[B, H, L, F]`.
    pub fn scaled_dot_product(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Tensor {
        let known = self.known.borrow_mut().pop_front();
        let attended = scaled_dot_product(q, k, v, known.as_ref());
        let out = attended.out.shallow_clone();
        if let Some(made) = &self.made {
            made.borrow_mut().push_back(attended);
        }
        out
    }
}
