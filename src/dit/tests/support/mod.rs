//! Reading recorded numbers, and comparing with them.

use camino::{Utf8Path, Utf8PathBuf};
use safetensors::{Dtype, SafeTensors};
use std::collections::HashMap;
use tch::{Kind, Tensor};

/// Tensors by name.
pub type Tensors = HashMap<String, Tensor>;

/// The folder of recorded numbers: `VIDTUI_ORACLE`, or the project's own.
pub fn oracle() -> Utf8PathBuf {
    std::env::var("VIDTUI_ORACLE")
        .map_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/oracle").into(), Utf8PathBuf::from)
}

/// Entries below a folder of the oracle for which `wanted` holds; says aloud when there are none.
pub fn entries(below: &str, wanted: impl Fn(&Utf8Path) -> bool) -> Vec<Utf8PathBuf> {
    let root = oracle().join(below);
    let mut found: Vec<_> = root
        .read_dir_utf8()
        .map(|entries| entries.filter_map(Result::ok).map(|e| e.into_path()).filter(|p| wanted(p)).collect())
        .unwrap_or_default();
    found.sort();
    if found.is_empty() {
        eprintln!("SKIPPED: nothing of the kind below {root}");
    }
    found
}

/// Reads every tensor of a safetensors file.
pub fn read(path: &Utf8Path, into: &mut Tensors) {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    for (name, view) in SafeTensors::deserialize(&bytes).unwrap_or_else(|e| panic!("{path}: {e}")).iter() {
        let kind = match view.dtype() {
            Dtype::F32 => Kind::Float,
            Dtype::F64 => Kind::Double,
            Dtype::I64 => Kind::Int64,
            other => panic!("{path}: {name} is {other:?}"),
        };
        let shape: Vec<i64> = view.shape().iter().map(|&s| s as i64).collect();
        into.insert(name.to_owned(), Tensor::from_data_size(view.data(), &shape, kind));
    }
}

/// `‖got - want‖ / max(‖want‖, floor)`
pub fn relative(got: &Tensor, want: &Tensor, floor: f64) -> f64 {
    let (got, want) = (got.to_kind(Kind::Double), want.to_kind(Kind::Double));
    ((got - &want).norm() / want.norm().clamp_min(floor)).double_value(&[])
}

/// The free text of a safetensors file, by key.
#[allow(dead_code, reason = "each test program compiles this module, and not each reads metadata")]
pub fn metadata(path: &Utf8Path) -> HashMap<String, String> {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap_or_else(|e| panic!("{path}: {e}"));
    header.metadata().clone().unwrap_or_default()
}
