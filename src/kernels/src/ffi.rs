//! The C functions of `cpp/`.

use std::ffi::c_int;
use std::panic::panic_any;
use torch_error::{Status, TorchError};
use torch_sys::C_tensor;

#[repr(C)]
pub struct SavedScan {
    _private: [u8; 0],
}

#[repr(C)]
pub struct SavedAttention {
    _private: [u8; 0],
}

unsafe extern "C" {
    pub fn vidtui_ttt_scan(
        tensors: *const *const C_tensor,
        mini_batch: i64,
        group: i64,
        blocks: i64,
        eps: f64,
        means: c_int,
        known: *const SavedScan,
        made: *mut *mut SavedScan,
        out: *mut *mut C_tensor,
    ) -> Status;
    pub fn vidtui_saved_scan_drop(saved: *mut SavedScan);
    pub fn vidtui_ttt_supports(mlp: c_int, width: i64, mini_batch: i64, device: c_int) -> c_int;
    pub fn vidtui_ttt_supports_clusters(mlp: c_int, width: i64, blocks: i64, device: c_int) -> c_int;
    pub fn vidtui_attention(
        q: *const C_tensor,
        k: *const C_tensor,
        v: *const C_tensor,
        kernel: c_int,
        known: *const SavedAttention,
        made: *mut *mut SavedAttention,
        out: *mut *mut C_tensor,
    ) -> Status;
    pub fn vidtui_saved_attention_drop(saved: *mut SavedAttention);
    pub fn vidtui_attention_gpu(
        q: *const C_tensor,
        k: *const C_tensor,
        v: *const C_tensor,
        major: *mut c_int,
        cudnn_can_run: *mut bool,
    ) -> Status;
    pub fn vidtui_fused_supports(width: i64, head_width: i64, is_bf16: bool, device: c_int) -> c_int;
    pub fn vidtui_modulated_norm(
        x: *const C_tensor,
        gain: *const C_tensor,
        bias: *const C_tensor,
        vectors: *const *const C_tensor,
        split: i64,
        eps: f64,
        prefers_kernel: bool,
        out: *mut *mut C_tensor,
    ) -> Status;
    pub fn vidtui_gated_add(
        x: *const C_tensor,
        update: *const C_tensor,
        gates: *const *const C_tensor,
        split: i64,
        prefers_kernel: bool,
        out: *mut *mut C_tensor,
    ) -> Status;
    pub fn vidtui_head_norm(
        x: *const C_tensor,
        gain: *const C_tensor,
        bias: *const C_tensor,
        factors: *const C_tensor,
        eps: f64,
        prefers_kernel: bool,
        out: *mut *mut C_tensor,
    ) -> Status;
    pub fn vidtui_rotate(
        x: *const C_tensor,
        factors: *const C_tensor,
        prefers_kernel: bool,
        out: *mut *mut C_tensor,
    ) -> Status;
    pub fn vidtui_gradients(
        outputs: *const *const C_tensor,
        cotangents: *const *const C_tensor,
        count: usize,
        inputs: *const *const C_tensor,
        wanted: usize,
        grads: *mut *mut C_tensor,
    ) -> Status;
    pub fn vidtui_normal(key: u64, shape: *const i64, dims: usize, gpu: c_int, out: *mut *mut C_tensor) -> Status;
    pub fn vidtui_linear(
        x: *const C_tensor,
        weight: *const C_tensor,
        bias: *const C_tensor,
        only_gradients: bool,
        out: *mut *mut C_tensor,
    ) -> Status;
    pub fn vidtui_order(
        x: *const C_tensor,
        there: *const C_tensor,
        first: *const C_tensor,
        last: *const C_tensor,
        halves: *const C_tensor,
        sums: bool,
        out: *mut *mut C_tensor,
    ) -> Status;
}

/// Converts the status of a call.
pub fn done(status: Status) -> Result<(), TorchError> {
    // SAFETY: the status is of a function of this crate's C++, and it is not used again.
    unsafe { torch_error::done(status) }
}

/// Panics with a [`TorchError`] if a call failed, as tch's own operators panic with a text: operators return tensors, not results.
/// `TorchError::of_panic` recognizes both.
pub fn expect_done(status: Status, doing: &str) {
    if let Err(TorchError { kind, text }) = done(status) {
        panic_any(TorchError { kind, text: format!("cannot {doing}: {text}") });
    }
}
