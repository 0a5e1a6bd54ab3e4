//! Writes recorded numbers, for tests that change recorded files or write their own.

use camino::Utf8Path;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use std::collections::HashMap;
use tch::{Kind, Tensor};

/// Writes a safetensors file with this metadata.
pub fn write<'a>(
    path: &Utf8Path,
    tensors: impl IntoIterator<Item = (&'a String, &'a Tensor)>,
    about: HashMap<String, String>,
) {
    let bytes = |tensor: &Tensor| {
        let mut bytes = vec![0; tensor.numel() * tensor.kind().elt_size_in_bytes()];
        tensor.contiguous().copy_data_u8(&mut bytes, tensor.numel());
        bytes
    };
    let data: Vec<(&String, &Tensor, Vec<u8>)> = tensors.into_iter().map(|(name, t)| (name, t, bytes(t))).collect();
    let views = data.iter().map(|(name, tensor, data)| {
        let dtype = match tensor.kind() {
            Kind::Float => Dtype::F32,
            Kind::Double => Dtype::F64,
            Kind::Half => Dtype::F16,
            Kind::BFloat16 => Dtype::BF16,
            Kind::Int64 => Dtype::I64,
            other => panic!("{name} is {other:?}"),
        };
        let shape = tensor.size().iter().map(|&s| s as usize).collect();
        (*name, TensorView::new(dtype, shape, data).unwrap_or_else(|e| panic!("{name}: {e}")))
    });
    let file = safetensors::serialize(views, Some(about)).unwrap_or_else(|e| panic!("{path}: {e}"));
    std::fs::write(path, file).unwrap_or_else(|e| panic!("{path}: {e}"));
}
