//! CUDA functions that do not compute tensors: the current device, its memory, asynchronous copies, and events.

use std::ffi::c_int;
use std::ptr::NonNull;

use tch::Tensor;

use crate::ffi::{self, EventHandle, check};
use crate::{Error, Result, waits};

/// Returns whether this program was built with the feature `cuda`.
#[must_use]
pub fn is_built() -> bool {
    version().is_some()
}

/// Returns the version of CUDA that this program was built with, major and minor. Returns `None` without the feature `cuda`.
#[must_use]
pub fn version() -> Option<(c_int, c_int)> {
    // SAFETY: the function takes nothing and returns a number.
    let version = unsafe { ffi::vidtui_cuda_version() };
    // 13000 is CUDA 13.0.
    (version != 0).then_some((version / 1000, version % 1000 / 10))
}

/// Makes a GPU the current device of this thread.
///
/// # Errors
/// The GPU does not exist.
pub fn set_device(gpu: usize) -> Result<()> {
    let doing = || format!("use GPU {gpu}");
    let index = number(gpu, doing)?;
    // SAFETY: only a number is passed.
    check(unsafe { ffi::vidtui_cuda_set_device(index) }, doing)
}

/// Returns the bytes of tensors on a GPU, now and at their peak. libtorch's caching allocator reserves more than that.
///
/// # Errors
/// The GPU does not exist.
pub fn memory_bytes(gpu: usize) -> Result<(u64, u64)> {
    let doing = || format!("read the memory use of GPU {gpu}");
    let index = number(gpu, doing)?;
    let (mut now, mut peak) = (0, 0);
    // SAFETY: both numbers outlive the call.
    check(unsafe { ffi::vidtui_cuda_memory(index, &mut now, &mut peak) }, doing)?;
    Ok((now.max(0) as u64, peak.max(0) as u64))
}

/// Waits for nothing, and returns the error of a GPU if it has one. After an error of a kernel or of the hardware, every call of CUDA in
/// the process returns that error.
///
/// # Errors
/// The GPU failed, or does not exist.
pub fn reported_error(gpu: usize) -> Result<()> {
    let doing = || format!("use GPU {gpu}");
    let index = number(gpu, doing)?;
    // SAFETY: only a number is passed.
    check(unsafe { ffi::vidtui_cuda_check(index) }, doing)
}

/// Allocates a tensor in page-locked host memory with the size and dtype of `like`. Its content is undefined.
///
/// # Errors
/// Host memory is exhausted.
pub fn pinned(like: &Tensor) -> Result<Tensor> {
    let doing = || format!("allocate page-locked memory for {:?}", like.size());
    let mut out = std::ptr::null_mut();
    // SAFETY: the tensor outlives the call, and `out` is where the shim writes a new tensor on success.
    check(unsafe { ffi::vidtui_cuda_pinned(like.as_ptr(), &mut out) }, doing)?;
    // SAFETY: the call above created the tensor and transfers ownership to us.
    Ok(unsafe { Tensor::from_ptr(out) })
}

/// Enqueues a copy on the current stream and returns at once. Before the host reads `to`, wait for an [`Event`] that was recorded after
/// this call.
///
/// # Errors
/// The sizes differ.
pub fn copy(to: &Tensor, from: &Tensor) -> Result<()> {
    let doing = || format!("copy {:?} to {:?}", from.size(), to.size());
    // SAFETY: both tensors outlive the call; libtorch keeps their memory until the copy is done.
    check(unsafe { ffi::vidtui_cuda_copy(to.as_ptr(), from.as_ptr()) }, doing)
}

/// A CUDA event: a point in the work of the stream that was current when it was recorded.
#[derive(Debug)]
pub struct Event(NonNull<EventHandle>);

// SAFETY: CUDA's events may be waited for and freed by any thread; the handle has one owner.
unsafe impl Send for Event {}
// SAFETY: the methods only read an event after it was recorded.
unsafe impl Sync for Event {}

/// The streams for copies, beside the one that computes. The copies of a stream run in order, whichever thread enqueues them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyStream {
    /// Fetches offloaded tensors and writes them back.
    Offload = 0,
    /// Uploads batches.
    Batch = 1,
    /// Copies weights and optimizer state for a save.
    Save = 2,
}

/// Enqueues a copy on a stream for copies and returns at once. The copy starts after the work that is already enqueued on the current
/// stream. The tensor in host memory must be page-locked. Call [`Event::block`] before the current stream reads `to`.
///
/// # Errors
/// The sizes differ.
pub fn copy_beside(to: &Tensor, from: &Tensor, stream: CopyStream) -> Result<Event> {
    let doing = || format!("copy {:?} to {:?}", from.size(), to.size());
    let mut handle = std::ptr::null_mut();
    // SAFETY: both tensors outlive the call; libtorch keeps their memory until the copy is done.
    let status = unsafe { ffi::vidtui_cuda_copy_beside(to.as_ptr(), from.as_ptr(), stream as c_int, &mut handle) };
    check(status, doing)?;
    NonNull::new(handle).map(Event).ok_or_else(|| Error::other(doing(), "no handle was returned"))
}

/// Returns the state of libtorch's caching allocator on a GPU as JSON: the bytes in tensors, the bytes reserved, and its segments.
///
/// # Errors
/// The GPU does not exist.
pub fn memory_snapshot(gpu: usize) -> Result<String> {
    let doing = || format!("read the memory of GPU {gpu}");
    let index = number(gpu, doing)?;
    let mut text = std::ptr::null_mut();
    // SAFETY: `text` is where the shim writes a new C string on success.
    check(unsafe { ffi::vidtui_cuda_snapshot(index, &mut text) }, doing)?;
    // SAFETY: the shim created the string, which is not used again.
    Ok(unsafe { ffi::take_text(text) })
}

/// Returns the bytes of memory that a GPU has.
///
/// # Errors
/// The GPU does not exist.
pub fn total_bytes(gpu: usize) -> Result<u64> {
    let doing = || format!("read the memory of GPU {gpu}");
    let index = number(gpu, doing)?;
    let mut bytes = 0;
    // SAFETY: the number outlives the call.
    check(unsafe { ffi::vidtui_cuda_total(index, &mut bytes) }, doing)?;
    Ok(bytes.max(0) as u64)
}

impl Event {
    /// Makes work that is enqueued later on the current stream wait for the event. The host does not wait.
    ///
    /// # Errors
    /// The GPU failed.
    pub fn block(&self) -> Result<()> {
        // SAFETY: the handle is alive.
        check(unsafe { ffi::vidtui_cuda_event_block(self.0.as_ptr()) }, || "wait for an event".to_owned())
    }

    /// Records an event after all work that is enqueued on the current stream.
    ///
    /// # Errors
    /// The GPU failed.
    pub fn record() -> Result<Self> {
        let doing = || "record an event".to_owned();
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` is where the shim writes a new handle on success.
        check(unsafe { ffi::vidtui_cuda_event(&mut handle) }, doing)?;
        NonNull::new(handle).map(Self).ok_or_else(|| Error::other(doing(), "no handle was returned"))
    }

    /// Waits until the event is complete.
    ///
    /// # Errors
    /// Work before the event failed.
    pub fn wait(&self) -> Result<()> {
        waits::count(c"Event::wait");
        // SAFETY: the handle is alive.
        check(unsafe { ffi::vidtui_cuda_event_wait(self.0.as_ptr()) }, || "wait for an event".to_owned())
    }

    /// Waits until both events are complete, and returns the seconds from `earlier` to this one.
    ///
    /// # Errors
    /// Work before the event failed.
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
        // SAFETY: the shim created the handle, and this is its only owner.
        unsafe { ffi::vidtui_cuda_event_drop(self.0.as_ptr()) }
    }
}

fn number(gpu: usize, doing: impl FnOnce() -> String) -> Result<c_int> {
    c_int::try_from(gpu).map_err(|_| Error::argument(doing(), "the GPU does not exist"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Group, Store};
    use std::time::Duration;
    use torch_error::ErrorKind;

    #[test]
    fn every_cuda_call_fails_in_a_build_without_cuda() {
        if is_built() {
            println!("skipped: this build has CUDA");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let timeout = Duration::from_secs(5);
        let store = Store::file(&folder.path().join("store"), 2, timeout).unwrap();
        let errors = [
            set_device(0).unwrap_err(),
            memory_bytes(0).unwrap_err(),
            total_bytes(0).unwrap_err(),
            memory_snapshot(0).map(drop).unwrap_err(),
            copy_beside(&Tensor::from(1f32), &Tensor::from(2f32), CopyStream::Save).unwrap_err(),
            pinned(&Tensor::from(1f32)).unwrap_err(),
            Event::record().unwrap_err(),
            Group::nccl(&store, 0, 2, timeout, 0).map(drop).unwrap_err(),
        ];
        for error in errors {
            assert!(error.to_string().contains("CUDA") && error.kind() == ErrorKind::Other, "{error}");
        }
    }
}
