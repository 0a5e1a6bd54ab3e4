//! Tests of weights with values that are NaN or infinite.

use super::*;
use crate::fixtures::temp;

/// Writes the small model with three such values in two tensors.
fn broken(folder: &Utf8Path) -> Utf8PathBuf {
    changed(folder, |tensors| {
        let mut set = |name: &str, at: usize, value: f32| {
            tensors.get_mut(name).unwrap().2[4 * at..][..4].copy_from_slice(&value.to_le_bytes());
        };
        set("proj_out.bias", 0, f32::NAN);
        set("proj_out.bias", 5, f32::INFINITY);
        set("transformer_blocks.1.attn1.to_q.weight", 64 * 64 - 1, f32::NEG_INFINITY);
    })
}

#[test]
fn values_that_are_not_finite_are_refused_unless_the_request_allows_them() {
    let (_keep, folder) = temp();
    let plain = ConvertRequest::new(broken(&folder), folder.join("x"), Form::Internal);
    let requests = [
        plain.clone(),
        ConvertRequest { link: true, ..plain.clone() },
        ConvertRequest { dtype: Some(Dtype::BF16), ..plain.clone() },
        ConvertRequest { dtype: Some(Dtype::F16), ..plain.clone() },
        ConvertRequest { to: Form::Diffusers, ..plain },
    ];
    for request in &requests {
        let failure = go(request).unwrap_err();
        assert_eq!(failure.code, ErrorCode::NotFinite, "{failure}");
        assert!(failure.why.starts_with("3 values") && failure.why.contains("proj_out.bias (2)"), "{failure}");
        assert!(failure.fix.contains("--allow-not-finite"), "{failure}");
        assert_eq!(names(&folder), ["changed"]);
    }
    for request in requests {
        let done = go(&ConvertRequest { allow_not_finite: true, force: true, ..request }).unwrap();
        let mut found: Vec<(&str, u64)> = done.not_finite.iter().map(|all| (all.tensor.as_str(), all.values)).collect();
        found.sort();
        assert_eq!(found, [("proj_out.bias", 2), ("transformer_blocks.1.attn1.to_q.weight", 1)]);
    }
}

#[test]
fn a_checkpoint_with_values_that_are_not_finite_is_refused_by_its_own_names() {
    let (_keep, folder) = temp();
    let inner = folder.join("inner");
    let request = ConvertRequest::new(broken(&folder), &inner, Form::Internal);
    go(&ConvertRequest { allow_not_finite: true, ..request }).unwrap();
    let failure = go(&ConvertRequest::new(&inner, folder.join("x"), Form::Diffusers)).unwrap_err();
    assert!(failure.code == ErrorCode::NotFinite && failure.why.contains("final.proj.bias (2)"), "{failure}");
    assert!(!folder.join("x").exists());
}
