//! The device whose results are compared with the recorded numbers.

#![allow(dead_code, reason = "no crate needs all of it")]

use tch::{Device, Tensor};

/// The environment variable that selects the device: `cpu`, which is the default, or `cuda`, the first GPU.
pub const VARIABLE: &str = "VIDTUI_ORACLE_DEVICE";

/// Returns the device.
///
/// # Panics
/// If the variable has another value, or if no GPU is visible to `cuda`.
pub fn device() -> Device {
    match std::env::var(VARIABLE).as_deref() {
        Ok("cpu") | Err(std::env::VarError::NotPresent) => Device::Cpu,
        Ok("cuda") => {
            assert!(tch::Cuda::is_available(), "{VARIABLE} is cuda, and no GPU is visible");
            Device::Cuda(0)
        }
        other => panic!("{VARIABLE} is {other:?}, not cpu or cuda"),
    }
}

/// Returns a tensor on the device.
pub fn there(tensor: &Tensor) -> Tensor {
    tensor.to_device(device())
}
