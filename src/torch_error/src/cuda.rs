//! CUDA's error codes for devices that fail.

/// A code of CUDA that reports a failed device or a failed kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CudaError {
    /// The number of the code, as `cudaError_t` defines it.
    pub code: i32,
    /// CUDA's words for it, as `cudaGetErrorString` returns them.
    pub words: &'static str,
    /// The kind of the fault.
    pub fault: Fault,
}

/// The kind of a fault that a code reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A defect of the GPU, of its links or of its driver. It can recur on this node with any program.
    Hardware,
    /// A kernel did something invalid. A defect of the program is likely; a faulty GPU is possible.
    Kernel,
    /// The GPU cannot be used at present: other programs use it, or its driver does not fit.
    Unavailable,
}

/// Codes and words of the runtime of CUDA 13.0 (`driver_types.h`).
const TABLE: [CudaError; 18] = [
    error(46, "CUDA-capable device(s) is/are busy or unavailable", Fault::Unavailable),
    error(100, "no CUDA-capable device is detected", Fault::Unavailable),
    error(214, "uncorrectable ECC error encountered", Fault::Hardware),
    error(220, "uncorrectable NVLink error detected during the execution", Fault::Hardware),
    error(226, "Invalid access of peer GPU memory over nvlink or a hardware error", Fault::Hardware),
    error(700, "an illegal memory access was encountered", Fault::Kernel),
    error(702, "the launch timed out and was terminated", Fault::Kernel),
    error(710, "device-side assert triggered", Fault::Kernel),
    error(714, "hardware stack error", Fault::Kernel),
    error(715, "an illegal instruction was encountered", Fault::Kernel),
    error(716, "misaligned address", Fault::Kernel),
    error(717, "operation not supported on global/shared address space", Fault::Kernel),
    error(718, "invalid program counter", Fault::Kernel),
    error(719, "unspecified launch failure", Fault::Kernel),
    error(721, "tensor memory not completely freed", Fault::Kernel),
    error(802, "system not yet initialized", Fault::Unavailable),
    error(803, "system has unsupported display driver / cuda driver combination", Fault::Unavailable),
    error(999, "unknown error", Fault::Hardware),
];

const fn error(code: i32, words: &'static str, fault: Fault) -> CudaError {
    CudaError { code, words, fault }
}

impl CudaError {
    /// Finds a code.
    pub fn of_code(code: i32) -> Option<Self> {
        TABLE.into_iter().find(|error| error.code == code)
    }

    /// Finds the code whose words follow `CUDA error: ` in a message of libtorch.
    pub fn of_text(text: &str) -> Option<Self> {
        let (_, words) = text.split_once("CUDA error: ")?;
        TABLE.into_iter().find(|error| words.starts_with(error.words))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_found_by_number_and_by_words() {
        for error in TABLE {
            assert_eq!(CudaError::of_code(error.code), Some(error));
            assert_eq!(
                CudaError::of_text(&format!("CUDA error: {}\nCUDA kernel errors might", error.words)),
                Some(error)
            );
        }
        assert_eq!(CudaError::of_text("uncorrectable ECC error encountered"), None, "not a message of libtorch");
        assert_eq!(CudaError::of_code(0), None);
    }
}
