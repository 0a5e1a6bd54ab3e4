//! Writes small tensor files for tests with the reference crate of the format.

#![allow(clippy::unwrap_used, reason = "a panic in a fixture is a failed test")]

use crate::Dtype;
use camino::{Utf8Path, Utf8PathBuf};
use rundir::Failure;
use safetensors::Dtype as Theirs;
use safetensors::tensor::TensorView;
use std::fs;

/// Makes an empty folder, which is removed when the first value is dropped.
pub fn temp() -> (tempfile::TempDir, Utf8PathBuf) {
    let keep = tempfile::tempdir().unwrap();
    let folder = Utf8Path::from_path(keep.path()).unwrap().to_owned();
    (keep, folder)
}

/// Copies the files of a folder into another, which is created.
pub fn copy_folder(from: &Utf8Path, to: &Utf8Path) {
    fs::create_dir_all(to).unwrap();
    for entry in from.read_dir_utf8().unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Returns the whole failure for a snapshot, with `folder` replaced by FOLDER.
pub fn shown(failure: &Failure, folder: &Utf8Path) -> String {
    failure.to_string().replace(folder.as_str(), "FOLDER")
}

/// Returns the data that [`write()`] stores in a tensor of `len` bytes.
pub fn bytes_of(len: usize) -> Vec<u8> {
    (0..len).map(|n| n as u8).collect()
}

/// Writes a file of tensors, each with the data of [`bytes_of`].
pub fn write(path: &Utf8Path, tensors: &[(&str, Dtype, &[usize])]) {
    let size = |dtype: Dtype, shape: &[usize]| dtype.size() * shape.iter().product::<usize>();
    let data: Vec<Vec<u8>> = tensors.iter().map(|(_, dtype, shape)| bytes_of(size(*dtype, shape))).collect();
    let views = tensors.iter().zip(&data).map(|((name, dtype, shape), data)| {
        let theirs = match dtype {
            Dtype::F32 => Theirs::F32,
            Dtype::F16 => Theirs::F16,
            Dtype::BF16 => Theirs::BF16,
            Dtype::F64 => Theirs::F64,
            Dtype::I64 => Theirs::I64,
            Dtype::U8 => Theirs::U8,
            other => panic!("{other} is not supported by the fixtures"),
        };
        (name.to_string(), TensorView::new(theirs, shape.to_vec(), data).unwrap())
    });
    fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}
