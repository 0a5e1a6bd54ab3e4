//! Turns errors of libtorch into failures, by their kind.

use crate::out_of_memory;
use crate::phase;
use rundir::{ErrorCode, Failure};
use tch::Device;
use torch_error::cuda::{CudaError, Fault};
use torch_error::{ErrorKind, TorchError};

/// Turns an error of a collective, a device or an operator into the failure of this rank.
///
/// Only an error of a connection or of NCCL means that a peer was lost. An error of this rank's own device, of its memory or of an operator
/// is a failure of this rank.
pub fn failed(error: c10d::Error) -> Failure {
    let text = error.to_string();
    if let c10d::Error::File { .. } = error {
        let fix = "check the disk of memory.folder (`df`), then resume the run";
        return Failure::new(ErrorCode::Io, "cannot use the files that hold offloaded tensors", text, fix);
    }
    match error.kind() {
        ErrorKind::OutOfMemory => out_of_memory::failure(&error),
        ErrorKind::Peer | ErrorKind::Nccl => peer_lost(text),
        // Other codes of CUDA report a call that the program made wrongly, such as an invalid argument.
        kind => fault(kind).map_or_else(|| internal(&text), |fault| device_failed(fault, &text)),
    }
}

/// Returns the fault of a device that an error of this kind reports; `None` for other errors.
fn fault(kind: ErrorKind) -> Option<CudaError> {
    match kind {
        ErrorKind::Device(code) => CudaError::of_code(code),
        _ => None,
    }
}

/// Turns an error of tch's operators or of the kernels into the failure of this rank.
pub fn operator_failed(error: TorchError) -> Failure {
    failed(c10d::Error::from(error))
}

fn peer_lost(text: String) -> Failure {
    let fix = "see which rank ended first in the logs; then resume the run";
    Failure::peer_lost(None, text, fix)
}

fn internal(text: &str) -> Failure {
    let what = format!("an operation of libtorch failed in the phase '{}'", phase::current().name());
    let fix = "read the log of the rank; resume the run; if it fails again, report it with the log";
    Failure::new(ErrorCode::Internal, what, text, fix)
}

/// Returns the failure of a device that reported a fault.
fn device_failed(error: CudaError, text: &str) -> Failure {
    let what = format!("the GPU of this rank failed in the phase '{}'", phase::current().name());
    Failure::new(ErrorCode::DeviceFailed, what, text, cure(error))
}

/// Returns what to do after a fault of a device.
fn cure(error: CudaError) -> &'static str {
    match (error.code, error.fault) {
        (214, _) => {
            "GPU memory is faulty: see `nvidia-smi -q -d ECC,ROW_REMAPPER` on that node; resume without the node, and have the GPU reset or \
             replaced"
        }
        (220 | 226, _) => {
            "an NVLink or a GPU is faulty: see `nvidia-smi nvlink -e` and `dmesg | grep Xid` on that node; resume without the node, and have \
             it checked"
        }
        (702, _) => {
            "a kernel exceeded the time limit of the driver: no display may use this GPU (`nvidia-smi -q -d DISPLAY`); then resume from the \
             last checkpoint"
        }
        (802, _) => "the driver is not ready: on nodes with NVSwitch, start nvidia-fabricmanager; then resume the run",
        (_, Fault::Unavailable) => {
            "see `nvidia-smi` on that node: another process may hold the GPU, or its driver may not fit; then resume the run"
        }
        (_, Fault::Kernel) => {
            "see `dmesg | grep Xid` on that node; resume the run; if it fails at the same step, the trainer has a defect, \
             otherwise the GPU"
        }
        (_, Fault::Hardware) => {
            "see `nvidia-smi` and `dmesg | grep Xid` on that node; resume without the node, and have the GPU checked"
        }
    }
}

/// Returns whether this rank cannot go on after a failure: a connection, the device or an operator failed, so that other ranks may wait in
/// a collective that this rank did not start. After other failures, such as a full disk, all ranks go on together.
pub fn ends_rank(failure: &Failure) -> bool {
    failure.is_consequence() || matches!(failure.code, ErrorCode::DeviceFailed | ErrorCode::Internal)
}

/// Adds the error of this rank's GPU to a failure, if the GPU has one.
///
/// After an error, every call of CUDA in the process returns the same error. Some calls return it without its kind: NCCL, cuDNN, and
/// the operators of tch.
pub fn with_device(failure: Failure, device: Option<Device>) -> Failure {
    let may_hide_it = matches!(failure.code, ErrorCode::Internal | ErrorCode::PeerLost);
    let Some(Device::Cuda(gpu)) = device.filter(|_| may_hide_it) else { return failure };
    let Err(error) = c10d::cuda::reported_error(gpu) else { return failure };
    fault(error.kind())
        .map_or_else(|| failure.clone(), |fault| device_failed(fault, &format!("{error}; {}", failure.why)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rundir::Cause;

    fn of(kind: ErrorKind) -> Failure {
        operator_failed(TorchError { kind, text: "words of libtorch".into() })
    }

    #[test]
    fn each_kind_of_error_has_its_code_and_only_a_lost_connection_blames_another_rank() {
        for (kind, code) in [
            (ErrorKind::OutOfMemory, ErrorCode::OutOfMemory),
            (ErrorKind::Device(214), ErrorCode::DeviceFailed),
            (ErrorKind::Device(700), ErrorCode::DeviceFailed),
            // An invalid argument is no fault of the device: healing must not leave its node out.
            (ErrorKind::Device(1), ErrorCode::Internal),
            (ErrorKind::Other, ErrorCode::Internal),
        ] {
            let failure = of(kind);
            assert_eq!((failure.code, &failure.cause), (code, &Cause::Root), "{failure}");
            assert!(failure.why.contains("words of libtorch"), "{failure}");
            assert_eq!(ends_rank(&failure), code != ErrorCode::OutOfMemory);
        }
        for kind in [ErrorKind::Peer, ErrorKind::Nccl] {
            assert_eq!((of(kind).code, of(kind).cause), (ErrorCode::PeerLost, Cause::Peer(None)));
        }
    }

    #[test]
    fn each_fault_of_a_gpu_has_a_cure_of_its_own() {
        let cure = |code| cure(CudaError::of_code(code).unwrap());
        let cures: std::collections::BTreeSet<&str> = [214, 220, 702, 802, 46, 700, 999].map(cure).into();
        assert_eq!(cures.len(), 7);
        assert!(cure(214).contains("ECC") && cure(220).contains("nvlink") && cure(802).contains("fabricmanager"));
        assert_eq!(cure(716), cure(700), "both are errors of kernels");
    }
}
