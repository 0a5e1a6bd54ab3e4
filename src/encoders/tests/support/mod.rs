//! Reads recorded tensors and compares with them.

#![allow(dead_code, reason = "every test program compiles this module, but not every one uses all of it")]

use camino::Utf8Path;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use std::collections::BTreeMap;
use tch::{Kind, Tensor};

/// Tensors by name.
pub type Tensors = BTreeMap<String, Tensor>;

/// Reads every tensor of a safetensors file.
pub fn load(path: &Utf8Path) -> Tensors {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let tensor = |name: &str, view: safetensors::tensor::TensorView<'_>| {
        let kind = match view.dtype() {
            Dtype::F32 => Kind::Float,
            Dtype::F64 => Kind::Double,
            Dtype::I64 => Kind::Int64,
            other => panic!("{path}: {name} is {other:?}"),
        };
        let shape: Vec<i64> = view.shape().iter().map(|&s| s as i64).collect();
        Tensor::from_data_size(view.data(), &shape, kind)
    };
    let file = SafeTensors::deserialize(&bytes).unwrap_or_else(|e| panic!("{path}: {e}"));
    file.iter().map(|(name, view)| (name.to_owned(), tensor(name, view))).collect()
}

/// Reads the cases in the header of a recorded file.
pub fn cases(path: &Utf8Path) -> Vec<Value> {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap_or_else(|e| panic!("{path}: {e}"));
    let text = header.metadata().as_ref().and_then(|about| about.get("cases")).cloned().unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{path}: cases: {e}"))
}

/// Returns the largest difference relative to the largest magnitude.
pub fn apart(got: &Tensor, want: &Tensor) -> f64 {
    assert_eq!(got.size(), want.size(), "the shapes differ");
    let (got, want) = (got.to_kind(Kind::Double), want.to_kind(Kind::Double));
    (got - &want).abs().max().double_value(&[]) / want.abs().max().double_value(&[])
}
