//! What CUDA has beside tensors: the current device, its memory, copies that nobody waits for, and events.

use std::ffi::c_int;
use std::ptr::NonNull;

use tch::Tensor;

use crate::ffi::{self, EventHandle, check};
use crate::{Error, Result};

/// Whether this program was built with the feature `cuda`.
#[must_use]
pub fn is_built() -> bool {
    // SAFETY: the function takes nothing and returns a number.
    unsafe { ffi::vidtui_cuda_built() != 0 }
}

/// Makes a GPU the one that this thread uses where none is named.
///
/// # Errors
/// When there is no such GPU.
pub fn set_device(gpu: usize) -> Result<()> {
    let doing = || format!("use GPU {gpu}");
    let index = number(gpu, doing)?;
    // SAFETY: only a number is passed.
    check(unsafe { ffi::vidtui_cuda_set_device(index) }, doing)
}

/// Bytes of tensors on a GPU: now, and at their most. They come from libtorch's allocator, which holds more than that.
///
/// # Errors
/// When there is no such GPU.
pub fn memory_bytes(gpu: usize) -> Result<(u64, u64)> {
    let doing = || format!("ask for the memory of GPU {gpu}");
    let index = number(gpu, doing)?;
    let (mut now, mut peak) = (0, 0);
    // SAFETY: both numbers outlive the call.
    check(unsafe { ffi::vidtui_cuda_memory(index, &mut now, &mut peak) }, doing)?;
    Ok((now.max(0) as u64, peak.max(0) as u64))
}

/// Makes page-locked memory on the host for a tensor of `like`'s size and dtype; what it holds is undefined.
///
/// # Errors
/// When there is no memory.
pub fn pinned(like: &Tensor) -> Result<Tensor> {
    let doing = || format!("get page-locked memory for {:?}", like.size());
    let mut out = std::ptr::null_mut();
    // SAFETY: the tensor outlives the call, and `out` is where the shim writes a new tensor on success.
    check(unsafe { ffi::vidtui_cuda_pinned(like.as_ptr(), &mut out) }, doing)?;
    // SAFETY: made by the call above, which gives it up to us.
    Ok(unsafe { Tensor::from_ptr(out) })
}

/// Copies in the order of the current stream. Nobody waits: before `to` is read, an [`Event`] recorded later must be.
///
/// # Errors
/// When sizes differ.
pub fn copy(to: &Tensor, from: &Tensor) -> Result<()> {
    let doing = || format!("copy {:?} to {:?}", from.size(), to.size());
    // SAFETY: both tensors outlive the call; libtorch keeps their memory until the copy is done.
    check(unsafe { ffi::vidtui_cuda_copy(to.as_ptr(), from.as_ptr()) }, doing)
}

/// A moment in the work of the stream that was current when it was made.
#[derive(Debug)]
pub struct Event(NonNull<EventHandle>);

// SAFETY: CUDA's events may be waited for and freed by any thread; the handle has one owner.
unsafe impl Send for Event {}

impl Event {
    /// Marks the end of all that the current stream was asked to do so far.
    ///
    /// # Errors
    /// When the GPU has failed.
    pub fn record() -> Result<Self> {
        let doing = || "record an event".to_owned();
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` is where the shim writes a new handle on success.
        check(unsafe { ffi::vidtui_cuda_event(&mut handle) }, doing)?;
        NonNull::new(handle).map(Self).ok_or_else(|| Error::torch(doing(), "no handle was returned"))
    }

    /// Waits until it has come to pass.
    ///
    /// # Errors
    /// When work before it has failed.
    pub fn wait(&self) -> Result<()> {
        // SAFETY: the handle is alive.
        check(unsafe { ffi::vidtui_cuda_event_wait(self.0.as_ptr()) }, || "wait for an event".to_owned())
    }

    /// Seconds from `earlier` to this one; waits until both have come to pass.
    ///
    /// # Errors
    /// When work before it has failed.
    pub fn seconds_since(&self, earlier: &Self) -> Result<f64> {
        earlier.wait()?;
        self.wait()?;
        let mut seconds = 0.0;
        // SAFETY: both handles are alive, and the number outlives the call.
        let status = unsafe { ffi::vidtui_cuda_event_seconds(earlier.0.as_ptr(), self.0.as_ptr(), &mut seconds) };
        check(status, || "measure the time between two events".to_owned())?;
        Ok(seconds)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the handle came from the shim and this is its only owner.
        unsafe { ffi::vidtui_cuda_event_drop(self.0.as_ptr()) }
    }
}

fn number(gpu: usize, doing: impl FnOnce() -> String) -> Result<c_int> {
    c_int::try_from(gpu).map_err(|_| Error::argument(doing(), "there is no such GPU"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Group, Store};
    use std::time::Duration;

    #[test]
    fn without_cuda_everything_of_it_says_so() {
        if is_built() {
            println!("SKIPPED: this build has CUDA");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let timeout = Duration::from_secs(5);
        let store = Store::file(&folder.path().join("store"), 2, timeout).unwrap();
        let errors = [
            set_device(0).unwrap_err(),
            memory_bytes(0).unwrap_err(),
            pinned(&Tensor::from(1f32)).unwrap_err(),
            Event::record().unwrap_err(),
            Group::nccl(&store, 0, 2, timeout, 0).map(drop).unwrap_err(),
        ];
        for error in errors {
            assert!(error.to_string().ends_with("this program was built without CUDA"), "{error}");
        }
    }
}
