//! Attention and TTT scans, the parts of a block that mix tokens. The forward pass may save their outputs, and the backward pass
//! reuses them.

use kernels::attention::{AttentionOutput, scaled_dot_product, scaled_dot_product_and_save};
use kernels::ttt::{Inputs, ScanOutput, Settings, scan, scan_and_save};
use std::cell::RefCell;
use std::collections::VecDeque;
use tch::Tensor;

/// The kinds of outputs that are saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Kept {
    /// Whether outputs of attention are saved.
    pub attention: bool,
    /// Whether outputs and inner states of TTT scans are saved.
    pub scans: bool,
}

impl Kept {
    /// Only the outputs of attention.
    pub const ATTENTION: Self = Kept { attention: true, scans: false };
    /// All outputs.
    pub const ALL: Self = Kept { attention: true, scans: true };
}

/// Saved outputs, each kind in the order in which they were computed.
#[derive(Debug, Default)]
pub struct Saved {
    attentions: VecDeque<AttentionOutput>,
    scans: VecDeque<ScanOutput>,
}

/// Computes the attentions and TTT scans of a block, in the same order in every pass, or takes their saved outputs.
#[derive(Debug, Default)]
pub struct Mixers {
    known: RefCell<Saved>,
    kept: Kept,
    /// The outputs that this pass computed, of the kinds in `kept`.
    made: RefCell<Saved>,
}

impl Mixers {
    /// Computes all outputs and saves those of the kinds in `kept`.
    pub(crate) fn saving(kept: Kept) -> Self {
        Mixers { kept, ..Mixers::default() }
    }

    /// Takes saved outputs, and computes those that were not saved.
    pub(crate) fn known(saved: Saved) -> Self {
        Mixers { known: RefCell::new(saved), ..Mixers::default() }
    }

    /// Returns the saved outputs.
    pub(crate) fn into_saved(self) -> Saved {
        self.made.into_inner()
    }

    /// Computes attention without a mask, scale 1/√F, of queries, keys and values `[B, H, L, F]`.
    pub fn scaled_dot_product(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Tensor {
        let known = self.known.borrow_mut().attentions.pop_front();
        if known.is_some() || !self.kept.attention {
            return scaled_dot_product(q, k, v, known.as_ref());
        }
        let (out, saved) = scaled_dot_product_and_save(q, k, v);
        self.made.borrow_mut().attentions.push_back(saved);
        out
    }

    /// Computes attention without a mask, scale 1/√F, of queries, keys and values `[B, L, H, F]`. Returns `[B, L, H·F]`.
    pub fn attention(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Tensor {
        self.scaled_dot_product(&q.transpose(1, 2), &k.transpose(1, 2), &v.transpose(1, 2))
            .transpose(1, 2)
            .flatten(2, 3)
    }

    /// Runs the scan of a TTT layer, `[N, L, F]`.
    pub(crate) fn scan(&self, settings: Settings, x: &Inputs<'_>) -> Tensor {
        let known = self.known.borrow_mut().scans.pop_front();
        if known.is_some() || !self.kept.scans {
            return scan(settings, x, known.as_ref());
        }
        let (out, saved) = scan_and_save(settings, x);
        self.made.borrow_mut().scans.push_back(saved);
        out
    }
}
