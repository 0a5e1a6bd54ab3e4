//! Reads recorded tensors and compares with them.

#![allow(dead_code, reason = "every test program compiles this module, but not every one uses all of it")]

#[path = "../../../../tests/oracle/device.rs"]
pub mod device;

pub mod mmdit;
#[path = "../../../../tests/oracle/mod.rs"]
pub mod oracle;
pub mod placed;
pub mod ranks;
#[path = "../../../../tests/oracle/tensor_file.rs"]
mod tensor_file;
pub mod wan;
pub mod whole;

use camino::Utf8Path;
use safetensors::{Dtype, SafeTensors};
use std::collections::HashMap;
use tch::{Device, Kind, Tensor};

pub use tensor_file::write;

/// Tensors by name.
pub type Tensors = HashMap<String, Tensor>;
/// The metadata of a safetensors file, by key.
pub type About = HashMap<String, String>;

/// Reads every tensor of a safetensors file into `tensors`; half precision is converted to fp32.
pub fn read(path: &Utf8Path, tensors: &mut Tensors) {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    for (name, view) in SafeTensors::deserialize(&bytes).unwrap_or_else(|e| panic!("{path}: {e}")).iter() {
        let (kind, wanted) = match view.dtype() {
            Dtype::F32 => (Kind::Float, Kind::Float),
            Dtype::F64 => (Kind::Double, Kind::Double),
            Dtype::F16 => (Kind::Half, Kind::Float),
            Dtype::BF16 => (Kind::BFloat16, Kind::Float),
            Dtype::U8 => (Kind::Uint8, Kind::Uint8),
            Dtype::I32 => (Kind::Int, Kind::Int64),
            Dtype::I64 => (Kind::Int64, Kind::Int64),
            other => panic!("{path}: {name} is {other:?}"),
        };
        let shape: Vec<i64> = view.shape().iter().map(|&s| s as i64).collect();
        tensors.insert(name.to_owned(), Tensor::from_data_size(view.data(), &shape, kind).to_kind(wanted));
    }
}

/// Reads every tensor of a safetensors file.
pub fn load(path: &Utf8Path) -> Tensors {
    let mut tensors = Tensors::new();
    read(path, &mut tensors);
    tensors
}

/// Reads the metadata of a safetensors file.
pub fn metadata(path: &Utf8Path) -> About {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap_or_else(|e| panic!("{path}: {e}"));
    header.metadata().clone().unwrap_or_default()
}

/// The change of a recorded tensor if every sample is duplicated.
pub enum Twice {
    /// Per sample: repeated.
    Again,
    /// A gradient summed over samples: doubled.
    Sum,
    /// Unchanged.
    Same,
    /// Omitted: not needed.
    Out,
}

/// Writes a copy of a recorded file as it would be with every sample duplicated.
pub fn write_twice(from: &Utf8Path, to: &Utf8Path, what: impl Fn(&str) -> Twice) {
    let change = |(name, tensor): (String, Tensor)| {
        let tensor = match what(&name) {
            Twice::Again => Tensor::cat(&[&tensor, &tensor], 0),
            Twice::Sum => tensor * 2.0,
            Twice::Same => tensor,
            Twice::Out => return None,
        };
        Some((name, tensor))
    };
    write(to, &load(from).into_iter().filter_map(change).collect::<Tensors>(), metadata(from));
}

/// Returns `‖got - want‖ / max(‖want‖, floor)`.
pub fn relative(got: &Tensor, want: &Tensor, floor: f64) -> f64 {
    let [got, want] = [got, want].map(|tensor| tensor.to_device(Device::Cpu).to_kind(Kind::Double));
    ((got - &want).norm() / want.norm().clamp_min(floor)).double_value(&[])
}
