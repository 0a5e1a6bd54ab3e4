//! Tests of round trips: every tensor and the configuration are unchanged, and diffusers loads them.

use super::*;
use crate::fixtures::temp;
use crate::{cast, oracle};
use recipe::param_specs;
use rundir::Checkpoint;
use std::fs;
use std::process::Command;

#[test]
fn every_tensor_of_an_oracle_folder_survives_a_round_trip_byte_for_byte() {
    for model in oracle::models() {
        let (_keep, folder) = temp();
        let (inner, back) = (folder.join("inner"), folder.join("back"));
        // To the checkpoint from a pipeline, and back to several files.
        let request = ConvertRequest::new(&model, &inner, Form::Internal);
        go(&ConvertRequest { shard_bytes: Some(200_000), ..request }).unwrap();
        let request = ConvertRequest::new(&inner, &back, Form::Diffusers);
        go(&ConvertRequest { shard_bytes: Some(300_000), ..request }).unwrap();
        let before = of(&model);
        assert!(before == of(&back), "{model}: a tensor changed");
        // Then the same model in one file. The configuration has the same meaning.
        let whole = folder.join("whole");
        go(&ConvertRequest::new(&back, &whole, Form::Diffusers)).unwrap();
        assert!(before == of(&whole), "{model}: a tensor changed");
        assert_eq!(names(&whole), ["config.json", "diffusion_pytorch_model.safetensors"]);
        let config = |folder: &Utf8Path| fs::read_to_string(folder.join("config.json")).unwrap();
        assert_eq!((config(&back), config(&whole)), (config(&model.join("transformer")), config(&back)), "{model}");
    }
}

#[test]
fn the_configuration_of_a_model_with_temporal_patches_survives_a_round_trip_with_any_frames_and_biases() {
    let theirs = Utf8Path::new("../../tests/fixtures/oracle/cogvideox/cogvideox15_5b_tiny/transformer");
    for change in [r#""sample_frames": 81"#, r#""sample_frames": 9"#, r#""sample_frames": 8"#, r#""patch_bias": true"#]
    {
        let (_keep, folder) = temp();
        let [model, inner, again, outer] = ["model", "inner", "again", "outer"].map(|name| folder.join(name));
        copy_folder(theirs, &model);
        let text = fs::read_to_string(model.join("config.json")).unwrap();
        let (key, _) = change.split_once(':').unwrap();
        let lines = text.lines().map(|line| if line.contains(key) { format!("  {change},") } else { line.into() });
        let text = lines.collect::<Vec<String>>().join("\n");
        fs::write(model.join("config.json"), &text).unwrap();
        go(&ConvertRequest::new(&model, &inner, Form::Internal)).unwrap();
        go(&ConvertRequest::new(&inner, &again, Form::Internal)).unwrap();
        go(&ConvertRequest::new(&again, &outer, Form::Diffusers)).unwrap();
        assert_eq!(fs::read_to_string(outer.join("config.json")).unwrap(), text);
    }
}

#[test]
fn a_checkpoint_made_of_an_oracle_folder_is_complete_and_has_every_parameter_of_its_model() {
    for model in oracle::models() {
        let (_keep, folder) = temp();
        let place = folder.join("inner");
        let plan = plan_conversion(&ConvertRequest::new(&model, &place, Form::Internal)).unwrap();
        assert_eq!(
            (&plan.report.unused[..], &plan.report.missing[..], plan.report.initialized.len()),
            (&[][..], &[][..], 0)
        );
        plan.execute(false, NOW_S, 7, &mut |_| ControlFlow::Continue(())).unwrap();
        let checkpoint = Checkpoint::open(&place).unwrap();
        checkpoint.verify_checksums().unwrap();
        checkpoint.state().unwrap();
        let (theirs, ours) = (of(&model), of(&place));
        let specs = param_specs(plan.model.as_ref().unwrap());
        assert_eq!(ours.len(), specs.len());
        for spec in specs {
            assert_eq!(checkpoint.tensor(&spec.name).unwrap().shape, spec.shape);
            assert!(ours[&spec.name] == theirs[spec.diffusers.as_ref().unwrap()], "{}", spec.name);
        }
        assert_eq!(WeightsSource::open(&place).unwrap().model().unwrap(), plan.model.as_ref().unwrap());
        assert_eq!(names(&folder), ["inner"], "nothing else is left");
    }
}

#[test]
fn inpainting_shards_of_every_dtype_are_copied_byte_for_byte() {
    for dtype in cast::FLOATS {
        let (_keep, folder) = temp();
        let shards = |source: &Utf8Path, target: &str, to: Form| {
            let request = ConvertRequest::new(source, folder.join(target), to);
            let request = ConvertRequest { shard_bytes: Some(150_000), ..request };
            let plan = plan_conversion(&request).unwrap();
            let report = &plan.report;
            assert_eq!((report.mapped.len(), report.unused.len(), report.missing.len()), (64, 0, 0), "{dtype}");
            go(&request).unwrap();
            request.target
        };
        // CogVideoX-Fun's published form: a mask and a masked latent besides the latent, several files and an index.
        let grown = ConvertRequest {
            in_channels: Some(33),
            dtype: Some(dtype),
            shard_bytes: Some(100_000),
            ..ConvertRequest::new(small(), folder.join("fun"), Form::Diffusers)
        };
        go(&grown).unwrap();
        let fun = grown.target;
        assert!(fun.join("diffusion_pytorch_model.safetensors.index.json").exists());
        let source = WeightsSource::open(&fun).unwrap();
        let family = |source: &WeightsSource| source.family.map(|family| family.like);
        assert_eq!((family(&source), source.model().unwrap().in_channels), (Some(crate::PublishedModel::FunInP), 33));
        let inner = shards(&fun, "inner", Form::Internal);
        assert_eq!(family(&WeightsSource::open(&inner).unwrap()), Some(crate::PublishedModel::FunInP));
        let back = shards(&inner, "back", Form::Diffusers);
        assert!(of(&fun) == of(&back), "{dtype}: a tensor changed");
        assert!(of(&inner).values().all(|(found, ..)| *found == dtype));
    }
}

#[test]
fn diffusers_loads_a_converted_oracle_folder_and_has_the_same_tensors() {
    let Some(python) = oracle::python("complete") else { return };
    let (_keep, folder) = temp();
    let mut args = Vec::new();
    for (n, model) in oracle::models().iter().enumerate() {
        let (inner, outer) = (folder.join(format!("inner{n}")), folder.join(format!("outer{n}")));
        go(&ConvertRequest::new(model, &inner, Form::Internal)).unwrap();
        go(&ConvertRequest { shard_bytes: Some(300_000), ..ConvertRequest::new(&inner, &outer, Form::Diffusers) })
            .unwrap();
        args.extend([model.join("transformer"), outer]);
    }
    let out = Command::new(python).args(["-c", LOADS_THE_SAME]).args(&args).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(String::from_utf8_lossy(&out.stdout).lines().count(), args.len() / 2);
}

const LOADS_THE_SAME: &str = r#"
import sys, torch
from diffusers import CogVideoXTransformer3DModel as Model
for theirs, ours in zip(sys.argv[1::2], sys.argv[2::2]):
    a, info = Model.from_pretrained(theirs, output_loading_info=True)
    b, info = Model.from_pretrained(ours, output_loading_info=True)
    assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    config = lambda m: {k: v for k, v in m.config.items() if not k.startswith("_")}
    assert config(a) == config(b), (config(a), config(b))
    sa, sb = a.state_dict(), b.state_dict()
    assert sa.keys() == sb.keys() and all(torch.equal(sa[k], sb[k]) for k in sa)
    print("same", len(sa))
"#;
