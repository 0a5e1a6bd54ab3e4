//! [`TokensInFlight`]: a differentiable collective over tokens that was started and may not be complete.

use std::ptr::NonNull;

use tch::Tensor;

use crate::Result;
use crate::ffi::{self, TokensHandle, check};

/// A collective over the tokens of a TP group that was started.
///
/// If it is dropped without a wait, it still completes on all ranks.
#[must_use = "the tokens arrive with wait()"]
pub struct TokensInFlight(pub(crate) State);

pub(crate) enum State {
    /// The tokens of a group of one rank.
    Here(Tensor),
    Started(Started),
}

/// A collective of several ranks.
pub(crate) struct Started {
    pub handle: NonNull<TokensHandle>,
    pub doing: String,
}

impl TokensInFlight {
    /// Waits for the tokens. On a GPU, the stream that computes waits.
    ///
    /// # Errors
    /// A peer exited, or the group's timeout passed. The group cannot be used again: the ranks are no longer in step.
    pub fn wait(self) -> Result<Tensor> {
        let started = match self.0 {
            State::Here(tensor) => return Ok(tensor),
            State::Started(started) => started,
        };
        let (handle, mut out) = (started.handle.as_ptr(), std::ptr::null_mut());
        let doing = started.doing.clone();
        // The call below frees the handle.
        std::mem::forget(started);
        // SAFETY: the shim created the handle and this was its only owner; the shim writes a new tensor on success.
        check(unsafe { ffi::vidtui_tokens_wait(handle, &mut out) }, || doing)?;
        // SAFETY: the call above created the tensor and transfers ownership to us.
        Ok(unsafe { Tensor::from_ptr(out) })
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // SAFETY: the shim created the handle, and this is its only owner.
        unsafe { ffi::vidtui_tokens_drop(self.handle.as_ptr()) }
    }
}
