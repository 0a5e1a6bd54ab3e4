//! Writes small tensor files for tests: safetensors with the reference crate of the format, and files as `torch.save` writes them.

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

/// Writes tensors of float32 as `torch.save` does: a name, a shape and the bytes of each.
pub fn write_torch(path: &Utf8Path, tensors: &[(String, Vec<usize>, Vec<u8>)]) {
    let text = |text: &str| [&b"X"[..], &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
    let number = |n: usize| [&b"J"[..], &(n as u32).to_le_bytes()[..]].concat();
    let tuple = |numbers: &[usize]| -> Vec<u8> {
        let items: Vec<u8> = numbers.iter().flat_map(|n| number(*n)).collect();
        [&b"("[..], &items[..], &b"t"[..]].concat()
    };
    let mut pickle = b"\x80\x02}(".to_vec();
    for (n, (name, shape, data)) in tensors.iter().enumerate() {
        let mut strides = vec![1; shape.len()];
        for axis in (1..shape.len()).rev() {
            strides[axis - 1] = strides[axis] * shape[axis];
        }
        pickle.extend(text(name));
        pickle.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
        pickle.extend(text("storage"));
        pickle.extend(b"ctorch\nFloatStorage\n");
        pickle.extend([text(&n.to_string()), text("cpu"), number(data.len() / 4)].concat());
        pickle.extend(b"tQ");
        pickle.extend([number(0), tuple(shape), tuple(&strides)].concat());
        pickle.extend(b"\x89}tR");
    }
    pickle.extend(b"u.");
    let data = tensors.iter().enumerate().map(|(n, (_, _, data))| (format!("archive/data/{n}"), data.clone()));
    let (mut file, mut directory, mut count) = (Vec::new(), Vec::new(), 0u16);
    // The entries of a zip archive that are not compressed, without times and checksums.
    for (name, data) in [("archive/data.pkl".to_owned(), pickle)].into_iter().chain(data) {
        let (at, size) = ((file.len() as u32).to_le_bytes(), (data.len() as u32).to_le_bytes());
        let sizes = [size, size, [name.len() as u8, 0, 0, 0]].concat();
        file.extend([&b"PK\x03\x04"[..], &[0; 14][..], &sizes[..], name.as_bytes(), &data[..]].concat());
        let head = [&b"PK\x01\x02"[..], &[0; 16][..], &sizes[..], &[0; 10][..], &at[..], name.as_bytes()].concat();
        directory.extend(head);
        count += 1;
    }
    let (counts, start) = ([count.to_le_bytes(); 2].concat(), (file.len() as u32).to_le_bytes());
    let size = (directory.len() as u32).to_le_bytes();
    file.extend(directory);
    file.extend([&b"PK\x05\x06"[..], &[0; 4][..], &counts[..], &size[..], &start[..], &[0; 2][..]].concat());
    fs::write(path, file).unwrap();
}
