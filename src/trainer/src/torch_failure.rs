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
        let fix = "check the disk of memory.folder (`df`), then resume from the last checkpoint";
        return Failure::new(ErrorCode::Io, "cannot use the files that hold offloaded tensors", text, fix);
    }
    match error.kind() {
        ErrorKind::OutOfMemory => out_of_memory::failure(&error),
        ErrorKind::Device(code) => device_failed(code, text),
        ErrorKind::Peer | ErrorKind::Nccl => peer_lost(text),
        _ => internal(text),
    }
}

/// Turns an error of tch's operators or of the kernels into the failure of this rank.
pub fn operator_failed(error: TorchError) -> Failure {
    failed(c10d::Error::from(error))
}

fn peer_lost(text: String) -> Failure {
    let fix = "see which rank ended first in the logs; then resume from the last checkpoint";
    Failure::peer_lost(None, text, fix)
}

fn internal(text: String) -> Failure {
    let what = format!("an operation of libtorch failed in the phase '{}'", phase::current().name());
    let fix = "read the log of the rank; resume from the last checkpoint; if it fails again, report it with the log";
    Failure::new(ErrorCode::Internal, what, text, fix)
}

/// Returns the failure of a device that reported an error with this code of CUDA.
fn device_failed(code: i32, text: String) -> Failure {
    let what = format!("the GPU of this rank failed in the phase '{}'", phase::current().name());
    Failure::new(ErrorCode::DeviceFailed, what, text, cure(code))
}

/// Returns what to do after an error of CUDA.
fn cure(code: i32) -> &'static str {
    match (code, CudaError::of_code(code).map(|error| error.fault)) {
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
        (802, _) => {
            "the driver is not ready: on nodes with NVSwitch, start nvidia-fabricmanager; then resume from the last checkpoint"
        }
        (_, Some(Fault::Unavailable)) => {
            "see `nvidia-smi` on that node: another process may hold the GPU, or its driver may not fit; then resume from the last checkpoint"
        }
        (_, Some(Fault::Kernel)) => {
            "see `dmesg | grep Xid` on that node; resume from the last checkpoint; if it fails at the same step, the trainer has a defect, \
             otherwise the GPU"
        }
        _ => "see `nvidia-smi` and `dmesg | grep Xid` on that node; resume without the node, and have the GPU checked",
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
    match c10d::cuda::reported_error(gpu) {
        Err(error) => match error.kind() {
            ErrorKind::Device(code) => device_failed(code, format!("{error}; {}", failure.why)),
            _ => failure,
        },
        Ok(()) => failure,
    }
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
            (ErrorKind::Device(12_345), ErrorCode::DeviceFailed),
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
        let cures: std::collections::BTreeSet<&str> = [214, 220, 702, 802, 46, 700, 999].map(cure).into();
        assert_eq!(cures.len(), 7);
        assert!(cure(214).contains("ECC") && cure(220).contains("nvlink") && cure(802).contains("fabricmanager"));
        assert_eq!(cure(716), cure(700), "both are errors of kernels");
    }
}
