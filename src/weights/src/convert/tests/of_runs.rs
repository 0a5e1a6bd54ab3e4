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
