//! Tests of conversions from checkpoints that several ranks saved.

use super::*;
use crate::fixtures::temp;
use std::fs;

#[test]
fn a_run_of_halves_and_columns_becomes_one_diffusers_model() {
    let (_keep, folder) = temp();
    let run = run_of_halves(&folder);
    let plan = plan_conversion(&ConvertRequest::new(&run, folder.join("x"), Form::Diffusers)).unwrap();
    insta::assert_snapshot!(plan.report.notes.join("\n"), @"1 tensor of the training state is not converted");
    for (source, target) in [(run.clone(), "of-run"), (run.join("checkpoints/step-00000040"), "of-step")] {
        go(&ConvertRequest::new(source, folder.join(target), Form::Diffusers)).unwrap();
        assert!(of(&folder.join(target)) == of(&small()));
    }
}

#[test]
fn converted_weights_keep_the_run_and_the_step_of_their_checkpoint() {
    let (_keep, folder) = temp();
    let run = run_of_halves(&folder);
    go(&ConvertRequest::new(&run, folder.join("x"), Form::Internal)).unwrap();
    go(&ConvertRequest::new(folder.join("x"), folder.join("y"), Form::Internal)).unwrap();
    for name in ["x", "y"] {
        let seen = crate::inspect(&folder.join(name), false).unwrap();
        assert_eq!((seen.run.as_deref(), seen.step), (run.file_name(), Some(40)));
    }
}

#[test]
fn an_adapter_fits_the_weights_that_it_was_trained_on_and_conversions_that_change_no_parameter() {
    let (_keep, folder) = temp();
    let run = run_of_halves(&folder);
    let place = |name: &str| folder.join(name);
    let convert = |from: &Utf8Path, name: &str, dtype| {
        go(&ConvertRequest { dtype, ..ConvertRequest::new(from, place(name), Form::Internal) }).unwrap();
    };
    convert(&run, "same", None);
    convert(&place("same"), "again", None);
    convert(&run, "rounded", Some(Dtype::BF16));
    let saved = RunDir::new(&run).step_dir(40);
    crate::fixtures::copy_folder(&saved, &place("later"));
    let manifest = rundir::Checkpoint::open(&saved).unwrap().manifest;
    CheckpointManifest { step: 41, ..manifest }.write(&place("later")).unwrap();
    let note = |base: &Utf8Path, weights: &Utf8Path| {
        let base = rundir::BaseWeights::of(&rundir::Checkpoint::open(base).unwrap(), 1.0).unwrap();
        let mut lora = LoraFile::open("../../tests/fixtures/weights/lora/peft".into()).unwrap();
        (lora.path, lora.base) = ("LORA".into(), Some(base));
        lora.other_base(&WeightsSource::open(weights).unwrap())
    };
    let [same, again, rounded, later] = ["same", "again", "rounded", "later"].map(place);
    for (base, weights) in [(&saved, &saved), (&saved, &same), (&same, &run), (&again, &same), (&same, &again)] {
        assert_eq!(note(base, weights), None, "{base} {weights}");
    }
    let notes = [(&saved, &rounded), (&rounded, &same), (&later, &same)]
        .map(|(base, weights)| note(base, weights).unwrap().replace(folder.as_str(), ""));
    insta::assert_snapshot!(notes.join("\n"), @r"
    LORA was trained on /runs/2026-11-20T0340-halves-k7f2/checkpoints/step-00000040, which may have other weights than these
    LORA was trained on /rounded, which may have other weights than these
    LORA was trained on other weights: /later
    ");
}

#[test]
fn a_damaged_checkpoint_is_refused() {
    let (_keep, folder) = temp();
    let run = run_of_halves(&folder);
    let file = run.join("checkpoints/step-00000040/rank-00001.safetensors");
    let mut data = fs::read(&file).unwrap();
    *data.last_mut().unwrap() ^= 1;
    fs::write(&file, data).unwrap();
    let failure = go(&ConvertRequest::new(&run, folder.join("x"), Form::Diffusers)).unwrap_err();
    assert!(failure.to_string().contains("rank-00001.safetensors"), "{failure}");
    assert!(!folder.join("x").exists() && !folder.join(".x.part").exists());
}

#[test]
fn all_checksums_are_verified_before_the_target_appears() {
    let (_keep, folder) = temp();
    let run = run_of_halves(&folder);
    let place = folder.join("x");
    let plan = plan_conversion(&ConvertRequest::new(&run, &place, Form::Diffusers)).unwrap();
    let mut last = None;
    let mut see = |progress| {
        assert!(!place.exists());
        last = Some(progress);
        ControlFlow::Continue(())
    };
    plan.execute(false, NOW_S, 7, &mut see).unwrap();
    let ranks: u64 = plan.source.checkpoint.unwrap().manifest.files.iter().map(|file| file.bytes).sum();
    let state = fs::metadata(run.join("checkpoints/step-00000040/state.toml")).unwrap().len();
    let total = ranks - state;
    assert_eq!(last, Some(WriteProgress { doing: Doing::Checking, done: total, total }));
}

#[test]
fn an_average_takes_the_place_of_the_weights_unless_the_request_refuses_it() {
    let (_keep, folder) = temp();
    let run = run_of_halves(&folder);
    let convert = |name: &str, ema: UseEma| {
        let place = folder.join(name);
        go(&ConvertRequest { ema, ..ConvertRequest::new(&run, &place, Form::Internal) }).map(|_| of(&place))
    };
    let none = convert("without", UseEma::On).unwrap_err();
    assert_eq!(none.code, ErrorCode::NoWeights);
    let plain = convert("plain", UseEma::Auto).unwrap();
    // Add a moving average of one tensor with the numbers of another tensor.
    let dir = RunDir::new(&run).step_dir(40);
    let mut manifest = rundir::Checkpoint::open(&dir).unwrap().manifest;
    let [one, other] = ["blocks.0.attn.q.weight", "blocks.0.attn.k.weight"];
    let mut average = manifest.tensors.iter().find(|tensor| tensor.name == other).unwrap().clone();
    average.name = format!("ema/{one}");
    manifest.tensors.push(average);
    manifest.write(&dir).unwrap();
    assert!(plain[one] != plain[other]);
    for (number, ema) in [UseEma::Auto, UseEma::On].into_iter().enumerate() {
        let averaged = convert(&format!("averaged-{number}"), ema).unwrap();
        assert!(averaged[one] == plain[other] && averaged[other] == plain[other]);
    }
    assert!(convert("weights", UseEma::Off).unwrap() == plain);
}
