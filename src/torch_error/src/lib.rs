//! [`TorchError`]: an error of libtorch with its kind.
//!
//! The C interfaces of `c10d` and `kernels` include `cpp/torch_error.h`, which takes the kind from the type of the C++ exception.
//! tch keeps only the text of an exception, so that the kind of its errors is taken from that text ([`TorchError::of_text`]).

pub mod cuda;

use std::any::Any;
use std::ffi::{CStr, c_char, c_int};

use tch::TchError;

/// An error of libtorch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct TorchError {
    /// The kind of the error.
    pub kind: ErrorKind,
    /// The message of libtorch, without the source locations and the stack.
    pub text: String,
}

/// The kind of an error of libtorch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// Memory is exhausted, that of the device or of the host.
    OutOfMemory,
    /// The connection to another rank or to the store broke or timed out.
    Peer,
    /// NCCL failed, because of another rank or of this rank's device. NCCL's own exception does not contain which.
    Nccl,
    /// The device reported an error with this code of CUDA.
    Device(i32),
    /// Any other error: a shape, an argument, a defect.
    Other,
}

/// Texts of libtorch that report exhausted memory without a type of exception for it: the allocator of the CPU, and CUDA's libraries.
/// The others have a type; their texts are here for tch, which keeps only the text.
const OUT_OF_MEMORY: [&str; 6] = [
    "out of memory",
    "not enough memory",
    "can't allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "std::bad_alloc",
    "Cannot allocate memory",
];

impl TorchError {
    /// Makes an error of a kind. Memory that is exhausted is recognized by the text, too: the allocator of the CPU throws exceptions
    /// without a type of their own.
    fn new(kind: ErrorKind, text: &str) -> Self {
        match exhausted(text) {
            Some(line) if kind == ErrorKind::Other => Self { kind: ErrorKind::OutOfMemory, text: line },
            _ => Self { kind, text: readable(text) },
        }
    }

    /// Makes an error of tch, which keeps only the text of an exception: memory is exhausted, the device reported an error, or
    /// [`ErrorKind::Other`].
    pub fn of_text(text: &str) -> Self {
        // In a panic, ends of lines are escaped, and the text is quoted.
        let text = text.replace("\\n", "\n");
        let text = text.split_once("Torch(\"").map_or(text.as_str(), |(_, message)| message);
        let of_device =
            || cuda::CudaError::of_text(text).map_or(ErrorKind::Other, |error| ErrorKind::Device(error.code));
        Self::new(if exhausted(text).is_some() { ErrorKind::OutOfMemory } else { of_device() }, text)
    }

    /// Returns the error of libtorch that a thread panicked with; `None` for other panics. Operators of tch panic if libtorch fails.
    pub fn of_panic(panic: &(dyn Any + Send)) -> Option<Self> {
        if let Some(error) = panic.downcast_ref::<Self>() {
            return Some(error.clone());
        }
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied())?;
        let error = Self::of_text(text);
        (error.kind != ErrorKind::Other || text.contains("Torch(\"")).then_some(error)
    }
}

impl From<TchError> for TorchError {
    fn from(error: TchError) -> Self {
        match error {
            TchError::Torch(text) => Self::of_text(&text),
            other => Self::of_text(&other.to_string()),
        }
    }
}

/// Returns the line of a text that reports exhausted memory.
fn exhausted(text: &str) -> Option<String> {
    let line = text.lines().find(|line| OUT_OF_MEMORY.iter().any(|known| line.contains(known)))?;
    Some(line.trim().to_owned())
}

/// Removes the parts that only developers of libtorch need: each leading `[file.cc:123]`, and all lines after the first.
fn readable(text: &str) -> String {
    let mut rest = text.trim();
    while let Some((place, message)) = rest.strip_prefix('[').and_then(|tail| tail.split_once("] ")) {
        let is_source = [".cc:", ".cpp:", ".h:", ".hpp:"].iter().any(|ending| place.contains(ending));
        if !is_source {
            break;
        }
        rest = message.trim_start();
    }
    rest.lines().next().unwrap_or_default().trim_end().to_owned()
}

/// An error of a C interface; the struct `TorchError` of `cpp/torch_error.h`.
#[repr(C)]
pub struct RawError {
    kind: c_int,
    code: c_int,
    text: *mut c_char,
}

/// The result of a function of a C interface: null on success, otherwise an error that [`done`] frees.
pub type Status = *mut RawError;

/// Converts the result of a function of a C interface.
///
/// # Errors
/// The function failed.
///
/// # Safety
/// The status is of a function that includes `cpp/torch_error.h`, and is not used again.
pub unsafe fn done(status: Status) -> Result<(), TorchError> {
    if status.is_null() {
        return Ok(());
    }
    // SAFETY: a status that is not null points to a struct that the C++ allocated with malloc; it is valid until freed below.
    let RawError { kind, code, text } = unsafe { status.read() };
    // SAFETY: the C++ allocated the text with strdup; it is valid until freed below.
    let owned = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
    // SAFETY: the same pointers, each freed once, by the allocator that created them.
    unsafe {
        libc::free(text.cast());
        libc::free(status.cast());
    }
    Err(TorchError::new(kind_of(kind, code), &owned))
}

/// Returns the kind of a number of `ErrorKind` in `cpp/torch_error.h`.
fn kind_of(number: c_int, code: c_int) -> ErrorKind {
    match number {
        1 => ErrorKind::OutOfMemory,
        2 => ErrorKind::Peer,
        3 => ErrorKind::Nccl,
        4 => ErrorKind::Device(code),
        _ => ErrorKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_locations_of_libtorch_are_removed() {
        let text =
            "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4242";
        assert_eq!(readable(text), "Connection closed by peer [127.0.0.1]:4242");
        assert_eq!(readable("[127.0.0.1] refused\nException raised from x"), "[127.0.0.1] refused");
    }

    #[test]
    fn out_of_memory_is_found_in_the_texts_of_every_allocator() {
        for text in [
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB\nException raised from malloc",
            "called `Result::unwrap()` on an `Err` value: Torch(\"DefaultCPUAllocator: can't allocate memory: 8 bytes\\nframe #0: c10\")",
            "[enforce fail at alloc_cpu.cpp:129] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.",
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            "std::bad_alloc",
        ] {
            let error = TorchError::of_text(text);
            assert_eq!(error.kind, ErrorKind::OutOfMemory, "{text}");
            assert!(!error.text.contains("frame") && !error.text.contains("unwrap") && !error.text.contains('\n'));
        }
        assert_eq!(TorchError::of_text("Connection reset by peer").kind, ErrorKind::Other);
    }

    #[test]
    fn panics_of_operators_are_errors_of_libtorch_and_other_panics_are_not() {
        let of = |panic: &(dyn Any + Send)| TorchError::of_panic(panic).map(|error| error.kind);
        assert_eq!(of(&"CUDA out of memory. 1".to_owned()), Some(ErrorKind::OutOfMemory));
        let ecc = "called `Result::unwrap()` on an `Err` value: Torch(\"CUDA error: uncorrectable ECC error encountered\\nframe\")";
        assert_eq!(of(&ecc), Some(ErrorKind::Device(214)));
        let shape =
            "called `Result::unwrap()` on an `Err` value: Torch(\"The size of tensor a (3) must match\\nframe\")";
        let error = TorchError::of_panic(&shape).unwrap_or_else(|| panic!("not recognized"));
        assert_eq!((error.kind, error.text.as_str()), (ErrorKind::Other, "The size of tensor a (3) must match"));
        let typed = TorchError { kind: ErrorKind::Peer, text: "gone".into() };
        assert_eq!(of(&typed), Some(ErrorKind::Peer));
        assert_eq!(of(&"index out of bounds"), None);
    }
}
