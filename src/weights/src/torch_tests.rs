//! Tests of reading the files in `tests/fixtures/weights`, which torch 2.11 wrote with `make.py`, whole and damaged.

use crate::fixtures::{shown, temp};
use crate::tensor_spans::{Files, Tensors};
use crate::{ConvertRequest, Form, Names, WeightsSource, cast, inspect, plan_conversion};
use camino::{Utf8Path, Utf8PathBuf};
use recipe::Layer;
use rundir::ErrorCode;
use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;

fn fixture(name: &str) -> Utf8PathBuf {
    Utf8PathBuf::from("../../tests/fixtures/weights").join(name)
}

/// Reads every tensor and returns its shape and values by name.
fn numbers(tensors: &Tensors) -> BTreeMap<String, (Vec<usize>, Vec<f64>)> {
    let mut files = Files::default();
    let mut read = |t: &crate::StoredTensor| cast::values(t.dtype, &files.read_all(t).unwrap()).collect();
    tensors.iter().map(|(name, t)| (name.clone(), (t.shape.clone(), read(t)))).collect()
}

fn copied(folder: &Utf8Path) -> Utf8PathBuf {
    let copy = folder.join("dcp");
    fs::create_dir(&copy).unwrap();
    for name in [".metadata", "__0_0.distcp", "__1_0.distcp"] {
        fs::copy(fixture("dcp").join(name), copy.join(name)).unwrap();
    }
    copy
}

/// Replaces a text in a file by another of the same length.
fn replaced(path: &Utf8Path, old: &str, new: &str) {
    assert_eq!(old.len(), new.len());
    let mut bytes = fs::read(path).unwrap();
    let at = bytes.windows(old.len()).position(|window| window == old.as_bytes()).unwrap();
    bytes[at..at + new.len()].copy_from_slice(new.as_bytes());
    fs::write(path, bytes).unwrap();
}

#[test]
fn every_form_that_torch_writes_gives_the_same_numbers() {
    let expected = WeightsSource::open(&fixture("expected.safetensors")).unwrap();
    assert_eq!((expected.names, expected.tensors.len()), (Names::TttVideo, 60));
    for name in ["flat.pt", "wrapped.pth", "dcp"] {
        let source = WeightsSource::open(&fixture(name)).unwrap();
        assert_eq!(source.names, Names::TttVideo, "{name}");
        assert!(numbers(&source.tensors) == numbers(&expected.tensors), "{name}");
    }
    let dcp = WeightsSource::open(&fixture("dcp")).unwrap();
    assert_eq!(dcp.optimizer.len(), 3, "{:?}", dcp.optimizer.keys());
    // Elements that are not contiguous in the file are separate ranges: those of a column-major matrix, the pixels of a
    // channels-last convolution, and the repeats of an expanded scalar.
    let ranges = |source: &WeightsSource, name: &str| source.tensors[name].spans.len();
    assert_eq!(ranges(&dcp, "layers.0.mlp.layer1.weight"), 64 * 16);
    assert_eq!(ranges(&dcp, "patch_embedding.vid_proj.weight"), 16 * 4 * 2 * 2);
    assert_eq!(ranges(&WeightsSource::open(&fixture("wrapped.pth")).unwrap(), "transformer_norm.weight"), 16);
}

#[test]
fn a_distributed_checkpoint_written_by_python_3_13_is_read() {
    let (_keep, folder) = temp();
    let dcp = copied(&folder);
    let path = dcp.join(".metadata");
    let bytes = fs::read(&path).unwrap();
    // Python 3.13 pickles paths as `pathlib._local`, older versions as `pathlib`. The byte before the name is its length.
    let (old, new) = (b"\x8c\x07pathlib", b"\x8c\x0epathlib._local");
    let at = bytes.windows(old.len()).position(|window| window == old).unwrap();
    let mut newer = [&bytes[..at], new, &bytes[at + old.len()..]].concat();
    // Bytes 3 to 11 are the length of the pickle's only frame. The new name is 7 bytes longer.
    let frame = u64::from_le_bytes(newer[3..11].try_into().unwrap()) + 7;
    newer[3..11].copy_from_slice(&frame.to_le_bytes());
    fs::write(&path, newer).unwrap();
    let expected = WeightsSource::open(&fixture("expected.safetensors")).unwrap();
    assert!(numbers(&WeightsSource::open(&dcp).unwrap().tensors) == numbers(&expected.tensors));
}

#[test]
fn a_ttt_video_checkpoint_converts_to_a_checkpoint_with_every_parameter() {
    let (_keep, folder) = temp();
    for name in ["flat.pt", "wrapped.pth", "dcp"] {
        let target = folder.join(name.replace('.', "-"));
        let plan = plan_conversion(&ConvertRequest::new(fixture(name), &target, Form::Internal)).unwrap();
        let model = plan.model.as_ref().unwrap();
        assert_eq!((model.cogvideox().layer, model.num_layers, model.num_heads), (Layer::TttLinear, 1, 1));
        assert_eq!(plan.report.mapped.len(), 60);
        plan.execute(false, 0.0, 1, &mut |_| ControlFlow::Continue(())).unwrap();
        let (ours, theirs) = (WeightsSource::open(&target).unwrap(), WeightsSource::open(&fixture("flat.pt")).unwrap());
        let found = crate::compare(&theirs, &ours, &mut |_| ControlFlow::Continue(())).unwrap();
        assert_eq!((found.missing.len(), found.extra.len(), found.norm), (0, 0, 0.0));
        let seen = inspect(&fixture(name), false).unwrap();
        assert_eq!((seen.complete, seen.layers), (true, Some(1)));
    }
}

#[test]
fn a_file_that_uses_a_name_that_is_not_allowed_is_refused() {
    let (_keep, folder) = temp();
    let path = folder.join("a.pt");
    fs::copy(fixture("flat.pt"), &path).unwrap();
    replaced(&path, "torch._utils\n", "os.utilities\n");
    let file = WeightsSource::open(&path).unwrap_err();
    let dcp = copied(&folder);
    replaced(&dcp.join(".metadata"), "pathlib", "pathlab");
    let dcp = WeightsSource::open(&dcp).unwrap_err();
    assert_eq!([file.code, dcp.code], [ErrorCode::Malformed; 2]);
    insta::assert_snapshot!([file, dcp].map(|failure| shown(&failure, &folder)).join("\n\n"));
}

/// Writes a zip archive of one folder, whose entries are not compressed, as `torch.save` does. Its checksums are 0.
fn archive(path: &Utf8Path, entries: &[(&str, &[u8])]) {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for (name, data) in entries {
        let name = format!("a/{name}");
        let size = (data.len() as u32).to_le_bytes();
        // Version, flags, method, time, date, checksum; both sizes; the lengths of the name and the extra field.
        let about = [&[0; 14][..], &size, &size, &(name.len() as u16).to_le_bytes(), &[0; 2]].concat();
        let at = (bytes.len() as u32).to_le_bytes();
        directory.extend([b"PK\x01\x02\0\0", &about[..], &[0; 10], &at, name.as_bytes()].concat());
        bytes.extend([b"PK\x03\x04", &about[..], name.as_bytes(), data].concat());
    }
    let (count, size, at) = (entries.len() as u16, directory.len() as u32, bytes.len() as u32);
    let counts = [count.to_le_bytes(), count.to_le_bytes()].concat();
    let end = [b"PK\x05\x06\0\0\0\0", &counts[..], &size.to_le_bytes(), &at.to_le_bytes(), &[0; 2]].concat();
    fs::write(path, [bytes, directory, end].concat()).unwrap();
}

/// Writes a state dict of views of one storage with one number.
fn views(path: &Utf8Path, count: u32, first: u8, shape: &[u8], strides: &[u8]) {
    let text = |text: &str| [&[0x8c, text.len() as u8], text.as_bytes()].concat();
    let name = |module: &str, name: &str| format!("c{module}\n{name}\n").into_bytes();
    let storage =
        [b"(".to_vec(), text("storage"), name("torch", "FloatStorage"), text("0"), text("cpu"), b"K\x01tQ".into()];
    let storage = storage.concat();
    let mut pickle = b"\x80\x02}(".to_vec();
    for number in 0..count {
        let rest = [&[b'K', first][..], shape, strides, b"tR"].concat();
        let tensor = [name("torch._utils", "_rebuild_tensor_v2"), b"(".into(), storage.clone(), rest].concat();
        pickle.extend([text(&format!("t{number}")), tensor].concat());
    }
    pickle.extend(b"u.");
    archive(path, &[("data.pkl", &pickle), ("data/0", &[0; 4])]);
}

#[test]
fn a_file_whose_tensors_repeat_one_number_many_times_is_refused() {
    let (_keep, folder) = temp();
    let path = folder.join("views.pt");
    // 65 535 times the same number: M is an integer of two bytes.
    let (shape, strides) = (b"M\xff\xff\x85", b"K\x00\x85");
    views(&path, 3, 0, shape, strides);
    assert_eq!(crate::open_torch_file(&path).unwrap()["t2"].spans.len(), 65_535);
    views(&path, 100, 0, shape, strides);
    let failure = crate::open_torch_file(&path).unwrap_err();
    assert_eq!(failure.code, ErrorCode::Malformed);
    assert!(failure.what.contains("views.pt") && failure.why.contains("limit"), "{failure}");
}

#[test]
fn an_empty_tensor_whose_offset_or_shape_overflows_is_read_as_empty_or_refused() {
    let (_keep, folder) = temp();
    let path = folder.join("empty.pt");
    // Shapes (0) and (0, 2^62, 2^62), strides 1.
    views(&path, 1, 255, b"K\x00\x85", b"K\x01\x85");
    assert_eq!(crate::open_torch_file(&path).unwrap()["t0"].bytes(), 0);
    let large = b"\x8a\x08\0\0\0\0\0\0\0\x40".as_slice();
    views(&path, 1, 0, &[b"K\x00", large, large, b"\x87"].concat(), b"K\x01K\x01K\x01\x87");
    assert!(crate::open_torch_file(&path).unwrap_err().why.contains("overflows"));
}

#[test]
fn a_distributed_checkpoint_with_missing_or_misplaced_parts_is_refused() {
    let (_keep, folder) = temp();
    let dcp = copied(&folder);
    fs::remove_file(dcp.join("__1_0.distcp")).unwrap();
    let mut refusals = Vec::new();
    let mut refused = || {
        let failure = WeightsSource::open(&dcp).unwrap_err();
        refusals.push(shown(&failure, &folder));
        failure.code
    };
    assert_eq!(refused(), ErrorCode::NotFound);
    assert!(!inspect(&dcp, false).unwrap().complete);
    fs::write(dcp.join("__1_0.distcp"), "short").unwrap();
    assert_eq!(refused(), ErrorCode::Malformed);
    replaced(&dcp.join(".metadata"), "__1_0.distcp", "../a00.distc");
    assert_eq!(refused(), ErrorCode::Malformed);
    fs::remove_file(dcp.join(".metadata")).unwrap();
    assert_eq!(refused(), ErrorCode::UnsupportedModel);
    insta::assert_snapshot!(refusals.join("\n\n"));
}

#[test]
fn a_truncated_file_is_refused_whatever_its_length() {
    let (_keep, folder) = temp();
    let path = folder.join("a.pt");
    let whole = fs::read(fixture("flat.pt")).unwrap();
    for len in (0..whole.len()).step_by(997).chain([whole.len() - 1]) {
        fs::write(&path, &whole[..len]).unwrap();
        assert!(WeightsSource::open(&path).is_err(), "{len} bytes were read");
    }
}
