//! Declares the functions of the C++ shim in `cpp/`, and converts their errors.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

pub use torch_error::Status;
use torch_error::done;
use torch_sys::C_tensor;

use crate::{Error, Result};

#[repr(C)]
pub struct StoreHandle {
    _private: [u8; 0],
}

#[repr(C)]
pub struct GroupHandle {
    _private: [u8; 0],
}

#[repr(C)]
pub struct WorkHandle {
    _private: [u8; 0],
}

#[repr(C)]
pub struct TokensHandle {
    _private: [u8; 0],
}

#[repr(C)]
pub struct EventHandle {
    _private: [u8; 0],
}

#[repr(C)]
pub struct ScopeHandle {
    _private: [u8; 0],
}

unsafe extern "C" {
    // Functions of libc.
    pub fn fflush(stream: *mut c_void) -> c_int;
    pub fn _exit(status: c_int) -> !;

    pub fn vidtui_store_tcp(
        host: *const c_char,
        port: u16,
        world_size: usize,
        is_server: c_int,
        timeout_ms: i64,
        out: *mut *mut StoreHandle,
    ) -> Status;
    pub fn vidtui_store_file(
        path: *const c_char,
        world_size: c_int,
        timeout_ms: i64,
        out: *mut *mut StoreHandle,
    ) -> Status;
    pub fn vidtui_store_drop(store: *mut StoreHandle);
    pub fn vidtui_store_port(store: *const StoreHandle) -> u16;
    pub fn vidtui_store_set(store: *mut StoreHandle, key: *const c_char, bytes: *const u8, len: usize) -> Status;
    pub fn vidtui_store_get(
        store: *mut StoreHandle,
        key: *const c_char,
        out: *mut *mut c_char,
        len: *mut usize,
    ) -> Status;
    pub fn vidtui_store_add(store: *mut StoreHandle, key: *const c_char, value: i64, out: *mut i64) -> Status;

    pub fn vidtui_group_gloo(
        store: *mut StoreHandle,
        prefix: *const c_char,
        rank: c_int,
        size: c_int,
        timeout_ms: i64,
        interface: *const c_char,
        out: *mut *mut GroupHandle,
    ) -> Status;
    pub fn vidtui_group_nccl(
        store: *mut StoreHandle,
        prefix: *const c_char,
        rank: c_int,
        size: c_int,
        timeout_ms: i64,
        device: c_int,
        out: *mut *mut GroupHandle,
    ) -> Status;
    pub fn vidtui_group_set_timeout(group: *mut GroupHandle, timeout_ms: i64) -> Status;
    pub fn vidtui_collectives(out: *mut *mut c_char) -> Status;
    pub fn vidtui_collectives_nccl(out: *mut *mut c_char) -> Status;
    pub fn vidtui_group_drop(group: *mut GroupHandle);
    pub fn vidtui_group_all_reduce(
        group: *mut GroupHandle,
        tensors: *const *const C_tensor,
        count: usize,
        op: c_int,
        out: *mut *mut WorkHandle,
    ) -> Status;
    pub fn vidtui_group_all_gather_into(
        group: *mut GroupHandle,
        outputs: *const *const C_tensor,
        inputs: *const *const C_tensor,
        count: usize,
        out: *mut *mut WorkHandle,
    ) -> Status;
    pub fn vidtui_group_exchange(
        group: *mut GroupHandle,
        input: *const C_tensor,
        parts: *const C_tensor,
        out: *mut *mut WorkHandle,
    ) -> Status;
    pub fn vidtui_group_reduce_scatter(
        group: *mut GroupHandle,
        output: *const C_tensor,
        input: *const C_tensor,
        op: c_int,
        out: *mut *mut WorkHandle,
    ) -> Status;
    pub fn vidtui_group_broadcast(
        group: *mut GroupHandle,
        tensor: *const C_tensor,
        root: c_int,
        out: *mut *mut WorkHandle,
    ) -> Status;
    pub fn vidtui_group_parallel(
        group: *mut GroupHandle,
        x: *const C_tensor,
        kind: c_int,
        out: *mut *mut C_tensor,
    ) -> Status;
    pub fn vidtui_tokens_start(
        group: *mut GroupHandle,
        x: *const C_tensor,
        kind: c_int,
        len: i64,
        out: *mut *mut TokensHandle,
    ) -> Status;
    pub fn vidtui_tokens_wait(tokens: *mut TokensHandle, out: *mut *mut C_tensor) -> Status;
    pub fn vidtui_tokens_drop(tokens: *mut TokensHandle);
    pub fn vidtui_group_barrier(group: *mut GroupHandle, out: *mut *mut WorkHandle) -> Status;
    pub fn vidtui_group_sent(group: *const GroupHandle, sent: *mut u64);
    pub fn vidtui_group_take_waited(group: *mut GroupHandle, seconds: *mut f64) -> Status;
    pub fn vidtui_group_drop_waited(group: *mut GroupHandle);
    pub fn vidtui_work_wait(work: *mut WorkHandle) -> Status;

    pub fn vidtui_adamw(
        param: *const C_tensor,
        grad: *const C_tensor,
        exp_avg: *const C_tensor,
        exp_avg_sq: *const C_tensor,
        grad_scale: f64,
        lr: f64,
        beta1: f64,
        beta2: f64,
        weight_decay: f64,
        eps: f64,
        step: f64,
    ) -> Status;
    pub fn vidtui_copy_each(to: *const *const C_tensor, from: *const *const C_tensor, count: usize) -> Status;
    pub fn vidtui_adamw_fused(
        tensors: *const *const C_tensor,
        count: usize,
        grad_scale: f64,
        lr: f64,
        beta1: f64,
        beta2: f64,
        weight_decay: f64,
        eps: f64,
        step: f64,
    ) -> Status;

    pub fn vidtui_adamw8(
        param: *const C_tensor,
        grad: *const C_tensor,
        first_codes: *const C_tensor,
        first_scales: *const C_tensor,
        second_codes: *const C_tensor,
        second_scales: *const C_tensor,
        signed_map: *const C_tensor,
        signed_boundaries: *const C_tensor,
        unsigned_map: *const C_tensor,
        unsigned_boundaries: *const C_tensor,
        phase: i64,
        grad_scale: f64,
        lr: f64,
        beta1: f64,
        beta2: f64,
        weight_decay: f64,
        eps: f64,
        step: f64,
    ) -> Status;

    pub fn vidtui_mapped_zeros(
        folder: *const c_char,
        size: *const i64,
        dims: usize,
        like: *const C_tensor,
        out: *mut *mut C_tensor,
    ) -> Status;
    pub fn vidtui_mapped_release(tensor: *const C_tensor) -> Status;
    pub fn vidtui_compute_alone();
    pub fn vidtui_copy_in_thread(to: *const C_tensor, from: *const C_tensor) -> Status;

    pub fn vidtui_profile_begin(with_cuda: c_int) -> Status;
    pub fn vidtui_profile_end(path: *const c_char) -> Status;
    pub fn vidtui_scope_begin(name: *const c_char, out: *mut *mut ScopeHandle) -> Status;
    pub fn vidtui_scope_end(scope: *mut ScopeHandle);

    pub fn vidtui_waits_begin() -> Status;
    pub fn vidtui_waits_end(out: *mut *mut c_char) -> Status;
    pub fn vidtui_waits_place(place: c_int) -> c_int;
    pub fn vidtui_waits_count(call: *const c_char);

    pub fn vidtui_cuda_version() -> c_int;
    pub fn vidtui_cuda_check(index: c_int) -> Status;
    pub fn vidtui_cuda_set_device(index: c_int) -> Status;
    pub fn vidtui_cuda_memory(device: c_int, now: *mut i64, peak: *mut i64) -> Status;
    pub fn vidtui_cuda_pinned(like: *const C_tensor, out: *mut *mut C_tensor) -> Status;
    pub fn vidtui_cuda_copy(to: *const C_tensor, from: *const C_tensor) -> Status;
    pub fn vidtui_cuda_event(out: *mut *mut EventHandle) -> Status;
    pub fn vidtui_cuda_copy_beside(
        to: *const C_tensor,
        from: *const C_tensor,
        stream: c_int,
        out: *mut *mut EventHandle,
    ) -> Status;
    pub fn vidtui_cuda_event_block(event: *mut EventHandle) -> Status;
    pub fn vidtui_cuda_snapshot(device: c_int, out: *mut *mut c_char) -> Status;
    pub fn vidtui_cuda_total(device: c_int, bytes: *mut i64) -> Status;
    pub fn vidtui_cuda_event_wait(event: *mut EventHandle) -> Status;
    pub fn vidtui_cuda_event_seconds(from: *mut EventHandle, to: *mut EventHandle, seconds: *mut f64) -> Status;
    pub fn vidtui_cuda_event_drop(event: *mut EventHandle);
}

/// Takes a string that the shim created.
///
/// # Safety
/// The shim created the string, and the caller does not use the pointer again.
pub unsafe fn take_text(text: *mut c_char) -> String {
    // SAFETY: the shim allocated the string with strdup; it is valid until freed below.
    let owned = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
    // SAFETY: the same pointer, freed once, by the allocator that created it.
    unsafe { libc::free(text.cast()) };
    owned
}

/// Converts a status of the shim to a result. `doing` returns the operation for the error text "cannot {doing}".
pub fn check(status: Status, doing: impl FnOnce() -> String) -> Result<()> {
    // SAFETY: the status is of a function of the shim, and it is not used again.
    unsafe { done(status) }.map_err(|error| Error::torch(doing(), error))
}

/// Converts text to a C string; rejects text that contains a zero byte.
pub fn c_text(text: &str, doing: impl FnOnce() -> String) -> Result<CString> {
    CString::new(text).map_err(|_| Error::argument(doing(), format!("{text:?} contains a zero byte")))
}
