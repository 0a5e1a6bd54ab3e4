//! Tests of the changes that a conversion makes on request: channels, layers, dtypes.

use super::*;
use crate::convert::model::word;
use crate::fixtures::{shown, temp};
use crate::location::TTT_FILE;
use crate::{Header, cast};

#[test]
fn new_input_channels_are_zero_and_the_old_ones_are_unchanged() {
    let (_keep, folder) = temp();
    let place = folder.join("grown");
    let mut request = ConvertRequest::new(small(), &place, Form::Internal);
    request.in_channels = Some(9);
    let plan = plan_conversion(&request).unwrap();
    let is_grown = |note: &String| note.starts_with("patch_embed.video.weight ") && note.contains("from 4 to 9");
    assert!(plan.report.notes.iter().any(is_grown), "{:?}", plan.report.notes);
    plan.execute(false, NOW_S, 7, &mut |_| ControlFlow::Continue(())).unwrap();
    let (_, shape, ours) = of(&place).remove("patch_embed.video.weight").unwrap();
    let (_, was, theirs) = of(&small()).remove("patch_embed.proj.weight").unwrap();
    assert_eq!((&was[..], &shape[..]), (&[64, 4, 2, 2][..], &[64, 9, 2, 2][..]));
    for (ours, theirs) in ours.chunks(9 * 16).zip(theirs.chunks(4 * 16)) {
        assert_eq!(&ours[..64], theirs);
        assert!(ours[64..].iter().all(|b| *b == 0));
    }
    // CogVideoX 1.5: a linear layer over patches of two frames, also ordered by channel.
    let model = "../../tests/fixtures/oracle/cogvideox/cogvideox15_5b_tiny";
    let place = folder.join("grown in time");
    let in_time = ConvertRequest { in_channels: Some(8), ..ConvertRequest::new(model, &place, Form::Internal) };
    go(&in_time).unwrap();
    let (_, shape, ours) = of(&place).remove("patch_embed.video.weight").unwrap();
    let (_, was, theirs) = of(model.into()).remove("patch_embed.proj.weight").unwrap();
    assert_eq!((&was[..], &shape[..]), (&[32, 4 * 8][..], &[32, 8 * 8][..]));
    for (ours, theirs) in ours.chunks(8 * 8 * 4).zip(theirs.chunks(4 * 8 * 4)) {
        assert_eq!(&ours[..128], theirs);
        assert!(ours[128..].iter().all(|b| *b == 0));
    }
    request.in_channels = Some(3);
    let failure = plan_conversion(&request).unwrap_err();
    assert_eq!(failure.code, ErrorCode::InvalidArgument);
    insta::assert_snapshot!(shown(&failure, &folder));
}

#[test]
fn added_ttt_layers_are_stored_beside_a_diffusers_model() {
    let (_keep, folder) = temp();
    let mut sentences = Vec::new();
    for (layer, count) in [(Layer::TttMlp, 22), (Layer::TttLinear, 20)] {
        let [inner, again, outer, back] =
            ["inner", "again", "outer", "back"].map(|n| folder.join(format!("{}-{n}", word(layer))));
        let request = ConvertRequest { layer: Some(layer), ..ConvertRequest::new(small(), &inner, Form::Internal) };
        let plan = plan_conversion(&request).unwrap();
        assert_eq!(plan.report.initialized.len(), count * plan.model.as_ref().unwrap().num_layers);
        assert!(plan.report.initialized.iter().all(|row| row.target.contains(".ttt.")));
        go(&request).unwrap();
        go(&ConvertRequest { target: again.clone(), ..request.clone() }).unwrap();
        assert!(of(&inner) == of(&again), "the same seed makes the same values");
        let gate = &of(&inner)["blocks.1.ttt.gate.backward.text"];
        assert!(gate.2.chunks(4).all(|b| b == 0.1f32.to_le_bytes()));

        go(&ConvertRequest::new(&inner, &outer, Form::Diffusers)).unwrap();
        assert_eq!(names(&outer), ["config.json", "diffusion_pytorch_model.safetensors", "ttt.safetensors"]);
        sentences.push(Header::read(&outer.join(TTT_FILE)).unwrap().metadata["note"].clone());
        assert!(of(&outer).into_iter().filter(|(n, _)| !n.contains(".ttt.")).eq(of(&small())));
        go(&ConvertRequest::new(&outer, &back, Form::Internal)).unwrap();
        assert!(of(&inner) == of(&back));
        // Without these layers, their tensors are unused and must be allowed explicitly.
        let without = ConvertRequest {
            layer: Some(Layer::None),
            ..ConvertRequest::new(&inner, folder.join("x"), Form::Internal)
        };
        let failure = go(&without).unwrap_err();
        assert_eq!(failure.code, ErrorCode::TensorMismatch, "{failure}");
        sentences.push(shown(&failure, &folder));
        let waived = ConvertRequest { allow_unused: vec!["blocks.*".into()], force: true, ..without };
        go(&waived).unwrap();
    }
    insta::assert_snapshot!(sentences.join("\n\n"));
}

#[test]
fn parameters_are_rounded_on_request() {
    let (_keep, folder) = temp();
    let (short, long) = (folder.join("short"), folder.join("long"));
    let request = ConvertRequest { dtype: Some(Dtype::BF16), ..ConvertRequest::new(small(), &short, Form::Internal) };
    insta::assert_snapshot!(plan_conversion(&request).unwrap().report.notes[0], @"64 tensors rounded from F32 to BF16");
    go(&request).unwrap();
    assert!(of(&short).values().all(|(dtype, ..)| *dtype == Dtype::BF16));
    go(&ConvertRequest { dtype: Some(Dtype::F32), ..ConvertRequest::new(&short, &long, Form::Diffusers) }).unwrap();
    let (rounded, exact) = (of(&long), of(&small()));
    for (name, (_, _, bytes)) in &exact {
        for (a, b) in cast::values(Dtype::F32, bytes).zip(cast::values(Dtype::F32, &rounded[name].2)) {
            assert!((a - b).abs() <= a.abs() / 256.0, "{name}: {a} became {b}");
        }
    }
}

/// Writes the image-to-video model with its learned positions in F64, as diffusers saves a model that it has just created.
fn with_wide_positions(folder: &Utf8Path, value: impl Fn(f64) -> f64) -> (Utf8PathBuf, Vec<u8>) {
    let own: Utf8PathBuf = "../../tests/fixtures/oracle/cogvideox/cogvideox_5b_i2v_tiny/transformer".into();
    let model = folder.join("wide");
    fs::create_dir_all(&model).unwrap();
    fs::copy(own.join("config.json"), model.join("config.json")).unwrap();
    let mut tensors = of(&own);
    let (dtype, _, bytes) = tensors.get_mut("patch_embed.pos_embedding").unwrap();
    let wide: Vec<f64> = cast::values(Dtype::F32, bytes).map(value).collect();
    (*dtype, *bytes) = (Dtype::F64, wide.iter().flat_map(|v| v.to_le_bytes()).collect());
    write_tensors(&model.join("diffusion_pytorch_model.safetensors"), &tensors);
    (model, wide.iter().flat_map(|v| (*v as f32).to_le_bytes()).collect())
}

#[test]
fn learned_positions_in_f64_become_f32_and_a_number_beyond_f32_is_refused() {
    let (_keep, folder) = temp();
    let third = |v: f64| v + 1.0 / 3.0;
    let (model, rounded) = with_wide_positions(&folder, third);
    let request = ConvertRequest::new(&model, folder.join("inner"), Form::Internal);
    let notes = plan_conversion(&request).unwrap().report.notes;
    insta::assert_snapshot!("note_about_rounded_positions", notes.join("\n"));
    go(&request).unwrap();
    let (dtype, _, bytes) = of(&request.target).remove("patch_embed.positions").unwrap();
    assert_eq!((dtype, bytes), (Dtype::F32, rounded));
    let half = ConvertRequest { dtype: Some(Dtype::BF16), target: folder.join("half"), ..request.clone() };
    go(&half).unwrap();
    assert!(of(&half.target).values().all(|(dtype, ..)| *dtype == Dtype::BF16));

    let (model, _) = with_wide_positions(&folder, |v| v + 1e39);
    let failure = go(&ConvertRequest::new(model, folder.join("x"), Form::Internal)).unwrap_err();
    assert_eq!(failure.code, ErrorCode::InvalidArgument, "{failure}");
    assert!(failure.what.contains("positions") && !folder.join("x").exists(), "{failure}");
}
