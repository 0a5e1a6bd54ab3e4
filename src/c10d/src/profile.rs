//! Records operators and named ranges of a thread with libtorch's profiler, as a Chrome trace that Perfetto opens.

use std::ffi::CString;
use std::marker::PhantomData;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;

use crate::ffi::{self, ScopeHandle, c_text, check};
use crate::{Error, Result};

/// A recording of the thread that began it, which must also end it. Dropping it discards the trace.
#[derive(Debug)]
pub struct Recording {
    is_running: bool,
    // libtorch keeps the recording in the thread that began it.
    not_send: PhantomData<*const ()>,
}

impl Recording {
    /// Starts to record the operators of this thread with their shapes; with `gpu`, also the kernels on the GPU.
    ///
    /// # Errors
    /// libtorch was built without the profiler of the device, or a recording is running.
    pub fn begin(gpu: bool) -> Result<Self> {
        // SAFETY: only a number is passed.
        check(unsafe { ffi::vidtui_profile_begin(gpu.into()) }, || "start the profiler".to_owned())?;
        Ok(Recording { is_running: true, not_send: PhantomData })
    }

    /// Ends the recording and writes it as a Chrome trace (JSON).
    ///
    /// # Errors
    /// The path contains a zero byte, or the file cannot be written.
    pub fn end(mut self, path: &Path) -> Result<()> {
        let doing = || format!("write the trace {}", path.display());
        let path = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| Error::argument(doing(), "the path contains a zero byte"))?;
        self.is_running = false;
        // SAFETY: the path outlives the call.
        check(unsafe { ffi::vidtui_profile_end(path.as_ptr()) }, doing)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if self.is_running {
            // SAFETY: the path is a C string. Nothing can be done about an error here.
            let _ = check(unsafe { ffi::vidtui_profile_end(c"/dev/null".as_ptr()) }, String::new);
        }
    }
}

/// A named range in the trace, from its creation until it is dropped. Without a recording it does nothing.
#[derive(Debug)]
pub struct Scope(NonNull<ScopeHandle>);

impl Scope {
    /// Begins a range.
    ///
    /// # Errors
    /// The name contains a zero byte.
    pub fn begin(name: &str) -> Result<Self> {
        let doing = || format!("begin the range {name:?}");
        let text = c_text(name, doing)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the text outlives the call, and `handle` is where the shim writes a new handle on success.
        check(unsafe { ffi::vidtui_scope_begin(text.as_ptr(), &mut handle) }, doing)?;
        NonNull::new(handle).map(Self).ok_or_else(|| Error::other(doing(), "no handle was returned"))
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        // SAFETY: the shim created the handle, and this is its only owner.
        unsafe { ffi::vidtui_scope_end(self.0.as_ptr()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Device, Kind, Tensor};

    #[test]
    fn a_trace_has_the_operators_within_their_range() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        let recording = Recording::begin(false).unwrap();
        let scope = Scope::begin("a range").unwrap();
        let x = Tensor::ones([8, 8], (Kind::Float, Device::Cpu));
        let _ = x.matmul(&x);
        drop(scope);
        recording.end(&path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("a range") && text.contains("aten::matmul") && text.contains("traceEvents"), "{text}");
    }
}
