//! Tests that invalid sources are rejected and leave no files.

use super::*;
use crate::fixtures::{shown, temp};
use std::collections::BTreeMap;
use std::fs;

#[test]
fn unused_missing_and_mismatched_tensors_are_refused_and_nothing_is_written() {
    type Change = fn(&mut BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>);
    let cases: [Change; 5] = [
        |t| drop(t.remove("transformer_blocks.1.attn1.to_q.weight")),
        |t| drop(t.insert("ofs_embedding.linear_1.bias".into(), (Dtype::F32, vec![1], vec![0; 4]))),
        |t| t.get_mut("proj_out.bias").unwrap().1 = vec![4, 4],
        |t| drop(t.insert("proj_out.bias".into(), (Dtype::I64, vec![16], vec![0; 128]))),
        |t| drop(t.insert("patch_embed.proj.weight".into(), (Dtype::F32, vec![64, 5, 2, 2], vec![0; 64 * 5 * 16]))),
    ];
    let failures = cases.map(|change| {
        let (_keep, folder) = temp();
        let model = changed(&folder, change);
        let failure = go(&ConvertRequest::new(&model, folder.join("x"), Form::Internal)).unwrap_err();
        assert_eq!(names(&folder), ["changed"]);
        shown(&failure, &folder)
    });
    insta::assert_snapshot!(failures.join("\n\n"));
}

#[test]
fn a_truncated_source_is_refused_whatever_its_length() {
    let (_keep, folder) = temp();
    let model = changed(&folder, |_| ());
    let file = model.join("diffusion_pytorch_model.safetensors");
    let whole = fs::read(&file).unwrap();
    for len in [0, 7, 8, 100, whole.len() / 2, whole.len() - 1] {
        fs::write(&file, &whole[..len]).unwrap();
        let failure = go(&ConvertRequest::new(&model, folder.join("x"), Form::Internal)).unwrap_err();
        assert_eq!(failure.code, ErrorCode::Malformed, "{failure}");
        assert_eq!(names(&folder), ["changed"]);
    }
}

#[test]
fn a_number_that_does_not_fit_the_type_leaves_nothing_behind() {
    let (_keep, folder) = temp();
    let model = changed(&folder, |tensors| {
        tensors.get_mut("proj_out.bias").unwrap().2[..4].copy_from_slice(&1e6f32.to_le_bytes());
    });
    let request =
        ConvertRequest { dtype: Some(Dtype::F16), ..ConvertRequest::new(&model, folder.join("x"), Form::Internal) };
    let failure = go(&request).unwrap_err();
    insta::assert_snapshot!(shown(&failure, &folder));
    assert_eq!(names(&folder), ["changed"]);
}
