//! Tests of the target folder: which folders may be replaced, and their state after a failure.

use super::*;
use crate::fixtures::{shown, temp};
use rundir::Checkpoint;
use std::fs;

#[test]
fn only_an_earlier_conversion_is_replaced_and_only_when_asked() {
    let (_keep, folder) = temp();
    let place = folder.join("x");
    let request = ConvertRequest::new(small(), &place, Form::Internal);
    fs::create_dir(&place).unwrap();
    go(&request).unwrap();
    let mut refusals = Vec::new();
    let mut refused = |request: &ConvertRequest| {
        let failure = go(request).unwrap_err();
        refusals.push(shown(&failure, &folder));
        failure.code
    };
    assert_eq!(refused(&request), ErrorCode::AlreadyExists);
    let force = ConvertRequest { force: true, to: Form::Diffusers, ..request.clone() };
    go(&force).unwrap();
    assert!(place.join("config.json").exists() && !place.join("manifest.toml").exists());
    fs::write(place.join("thesis.tex"), "precious").unwrap();
    assert_eq!(refused(&force), ErrorCode::AlreadyExists);
    fs::write(folder.join("file"), "").unwrap();
    let onto_file = ConvertRequest { target: folder.join("file"), ..force.clone() };
    assert_eq!(refused(&onto_file), ErrorCode::AlreadyExists);
    // A target that is the source or contains the source would delete the source before it is read.
    let model = folder.join("m/transformer");
    copy_folder(&small(), &model);
    for target in [model.clone(), folder.join("m")] {
        let onto_source = ConvertRequest { target, source: model.clone(), ..force.clone() };
        assert_eq!(refused(&onto_source), ErrorCode::AlreadyExists);
    }
    insta::assert_snapshot!(refusals.join("\n\n"));
}

#[test]
fn a_download_and_a_checkpoint_of_a_run_are_never_replaced() {
    let (_keep, folder) = temp();
    let run = run_of_halves(&folder);
    let download = folder.join("m/transformer");
    copy_folder(&small(), &download);
    let only_configured = folder.join("configured");
    fs::create_dir(&only_configured).unwrap();
    fs::copy(small().join("config.json"), only_configured.join("config.json")).unwrap();
    for target in [download, run.join("checkpoints/step-00000040"), only_configured] {
        let before = names(&target);
        let request = ConvertRequest { force: true, ..ConvertRequest::new(small(), &target, Form::Internal) };
        let failure = go(&request).unwrap_err();
        assert_eq!(failure.code, ErrorCode::AlreadyExists, "{target}: {failure}");
        assert_eq!(names(&target), before);
    }
}

#[test]
fn a_conversion_does_not_replace_the_adapter_that_it_merges() {
    let (_keep, folder) = temp();
    let lora = folder.join("lora");
    let kept = "../../tests/fixtures/weights/lora/peft";
    go(&ConvertRequest::new(kept, &lora, Form::Lora(LoraForm::Peft))).unwrap();
    let onto_itself = ConvertRequest {
        merge: Some(lora.clone()),
        force: true,
        ..ConvertRequest::new(small(), &lora, Form::Diffusers)
    };
    let failure = go(&onto_itself).unwrap_err();
    assert!(failure.code == ErrorCode::AlreadyExists && failure.why.contains(lora.as_str()), "{failure}");
    go(&ConvertRequest { target: folder.join("x"), ..onto_itself }).unwrap();
}

#[test]
fn a_replacement_that_fails_midway_leaves_the_old_folder_as_it_was() {
    let (_keep, folder) = temp();
    let place = folder.join("x");
    go(&ConvertRequest::new(small(), &place, Form::Internal)).unwrap();
    let read = |name: &String| fs::read(place.join(name)).unwrap();
    let before: Vec<_> = names(&place).iter().map(read).collect();
    let whole = |failure: Failure, why: &str| {
        assert!(failure.to_string().contains(why), "{failure}");
        assert_eq!(names(&folder).iter().filter(|name| *name != "changed").collect::<Vec<_>>(), ["x"]);
        assert!(names(&place).iter().map(read).eq(before.iter().cloned()), "{why}: the old folder changed");
        Checkpoint::open(&place).unwrap().verify_checksums().unwrap();
    };
    let model = changed(&folder, |tensors| {
        tensors.get_mut("proj_out.bias").unwrap().2[..4].copy_from_slice(&1e6f32.to_le_bytes());
    });
    let request = ConvertRequest { force: true, ..ConvertRequest::new(&model, &place, Form::Diffusers) };
    let half = plan_conversion(&request).unwrap().execute(true, NOW_S, 7, &mut |progress| {
        if progress.done > 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    whole(half.unwrap_err(), "it was interrupted");
    whole(go(&ConvertRequest { dtype: Some(Dtype::F16), ..request.clone() }).unwrap_err(), "range of F16");
    let plan = plan_conversion(&request).unwrap();
    fs::write(model.join("diffusion_pytorch_model.safetensors"), "short").unwrap();
    whole(plan.execute(true, NOW_S, 7, &mut |_| ControlFlow::Continue(())).unwrap_err(), "failed to fill");
}

#[test]
fn an_interrupted_conversion_leaves_nothing_and_can_be_run_again() {
    let (_keep, folder) = temp();
    let request = ConvertRequest::new(small(), folder.join("x"), Form::Internal);
    let plan = plan_conversion(&request).unwrap();
    let failure = plan.execute(false, NOW_S, 7, &mut |_| ControlFlow::Break(())).unwrap_err();
    assert_eq!(failure.code, ErrorCode::Cancelled);
    assert_eq!(names(&folder), [""; 0]);
    // A killed process leaves its partial folder.
    fs::create_dir_all(folder.join(".x.part")).unwrap();
    fs::write(folder.join(".x.part/weights-00001-of-00001.safetensors"), "half").unwrap();
    go(&request).unwrap();
    assert_eq!(names(&folder), ["x"]);
    // The process was killed after it moved the new folder into place, before it removed the old one.
    fs::create_dir_all(folder.join(".x.replaced/old")).unwrap();
    go(&ConvertRequest { force: true, ..request }).unwrap();
    assert_eq!(names(&folder), ["x"]);
}

#[test]
fn a_second_conversion_to_the_same_folder_is_refused() {
    let (_keep, folder) = temp();
    let request = ConvertRequest::new(small(), folder.join("x"), Form::Internal);
    let other = plan_conversion(&request).unwrap();
    let mut refused = None;
    other
        .execute(false, NOW_S, 7, &mut |_| {
            refused.get_or_insert_with(|| go(&request).unwrap_err());
            ControlFlow::Continue(())
        })
        .unwrap();
    let failure = refused.unwrap();
    assert_eq!(failure.code, ErrorCode::AlreadyExists);
    insta::assert_snapshot!(shown(&failure, &folder));
}

#[test]
fn a_full_disk_is_refused_before_anything_is_written() {
    let (_keep, folder) = temp();
    let failure = destination::check_space(&folder.join("x"), u64::MAX / 2).unwrap_err();
    assert_eq!(failure.code, ErrorCode::DiskFull, "{failure}");
}
