//! Tests of the configurations of a pipeline (VAE, scheduler) and of the layouts of its folder.

use super::*;
use crate::fixtures::{shown, temp};
use std::fs;

#[test]
fn the_vae_scale_the_noise_schedule_and_the_text_length_are_kept() {
    let (_keep, folder) = temp();
    let pipeline = folder.join("pipeline");
    copy_folder(&small(), &pipeline.join("transformer"));
    fs::write(pipeline.join("model_index.json"), "{}").unwrap();
    let convert = |source: &Utf8Path, target: &str| {
        let plan = plan_conversion(&ConvertRequest::new(source, folder.join(target), Form::Internal)).unwrap();
        plan.execute(false, NOW_S, 7, &mut |_| ControlFlow::Continue(())).unwrap();
        (plan.report.notes.join("; "), fs::read_to_string(folder.join(target).join("model.toml")).unwrap())
    };
    let (notes, toml) = convert(&pipeline, "without");
    assert!(notes.contains("model.latent_scale"), "{notes}");
    assert!(!toml.contains("latent_scale"), "{toml}");
    fs::create_dir_all(pipeline.join("vae")).unwrap();
    fs::write(pipeline.join("vae/config.json"), r#"{"scaling_factor": 0.7, "invert_scale_latents": true}"#).unwrap();
    assert!(notes.contains("model.snr_shift_scale = 1 "), "{notes}");
    // A model.toml without the key of the schedule does not make the schedule known.
    let other_keys = pipeline.join("transformer/model.toml");
    fs::write(&other_keys, "[model]\nrotary = \"diffusers\"\n").unwrap();
    let (notes, _) = convert(&pipeline, "other-keys");
    assert!(notes.contains("model.snr_shift_scale = 1 "), "{notes}");
    fs::remove_file(&other_keys).unwrap();
    fs::create_dir_all(pipeline.join("scheduler")).unwrap();
    let scheduler = "../../tests/fixtures/oracle/schedules/noise_2b/scheduler_ddim/scheduler_config.json";
    fs::copy(scheduler, pipeline.join("scheduler/scheduler_config.json")).unwrap();
    for (source, target) in [(pipeline.clone(), "whole"), (pipeline.join("transformer"), "part")] {
        let (notes, toml) = convert(&source, target);
        assert_eq!(notes, "");
        assert!(toml.contains("latent_scale = 0.7") && toml.contains("text_len = 6"), "{toml}");
        // A recipe may inherit the file, as its first line states.
        let recipe = folder.join("recipe.toml");
        let rest = "[data]\nindex = \"i.jsonl\"\n[train]\nsteps = 1\nglobal_batch = 1\n";
        fs::write(&recipe, format!("base = \"{target}/model.toml\"\n{rest}")).unwrap();
        let model = recipe::load(&recipe, &[]).unwrap().recipe.model;
        assert_eq!(
            (model.latent_scale, model.cogvideox().snr_shift_scale, model.cogvideox().invert_image_scale),
            (0.7, 3.0, true)
        );
        // An exported folder needs no other file. It keeps the values that its config.json cannot express.
        let (outer, back) = (folder.join(format!("{target}-outer")), folder.join(format!("{target}-back")));
        go(&ConvertRequest::new(folder.join(target), &outer, Form::Diffusers)).unwrap();
        go(&ConvertRequest::new(&outer, &back, Form::Internal)).unwrap();
        let again: toml::Table = fs::read_to_string(back.join("model.toml")).unwrap().parse().unwrap();
        assert_eq!(recipe::Model::from_table(again["model"].as_table().unwrap()), Ok(model));
    }
    fs::write(pipeline.join("vae/config.json"), r#"{"scaling_factor": "big"}"#).unwrap();
    let failure = plan_conversion(&ConvertRequest::new(&pipeline, folder.join("x"), Form::Internal)).unwrap_err();
    assert_eq!(failure.code, ErrorCode::Malformed, "{failure}");
    insta::assert_snapshot!(shown(&failure, &folder));
}

#[test]
fn a_pipeline_of_symbolic_links_is_read_as_a_pipeline() {
    let (_keep, folder) = temp();
    // In the cache of the Hugging Face Hub, files are links to blobs that are named by their content.
    let (snapshot, blobs) = (folder.join("snapshots/4f2a"), folder.join("blobs"));
    fs::create_dir_all(snapshot.join("transformer")).unwrap();
    fs::create_dir_all(snapshot.join("vae")).unwrap();
    fs::create_dir_all(&blobs).unwrap();
    for (n, entry) in small().read_dir_utf8().unwrap().enumerate() {
        let entry = entry.unwrap();
        let blob = format!("{n}c0ffee");
        fs::copy(entry.path(), blobs.join(&blob)).unwrap();
        let link = snapshot.join("transformer").join(entry.file_name());
        std::os::unix::fs::symlink(format!("../../../blobs/{blob}"), link).unwrap();
    }
    fs::write(snapshot.join("model_index.json"), "{}").unwrap();
    fs::write(snapshot.join("vae/config.json"), r#"{"scaling_factor": 0.7}"#).unwrap();
    // A pipeline of symbolic links, one of which points to a folder with another name.
    let other = folder.join("other");
    fs::create_dir(&other).unwrap();
    fs::rename(snapshot.join("transformer"), snapshot.join("network")).unwrap();
    std::os::unix::fs::symlink(snapshot.join("network"), other.join("transformer")).unwrap();
    std::os::unix::fs::symlink(snapshot.join("vae"), other.join("vae")).unwrap();
    std::os::unix::fs::symlink("network", snapshot.join("transformer")).unwrap();
    let whole = bytes(&WeightsSource::open(&small()).unwrap().tensors);
    for (n, source) in [snapshot.clone(), snapshot.join("transformer"), other.join("transformer")].iter().enumerate() {
        let source = WeightsSource::open(source).unwrap();
        assert_eq!((source.latent_scale_known, source.model().unwrap().latent_scale), (true, 0.7));
        assert!(bytes(&source.tensors) == whole);
        let target = folder.join(n.to_string());
        go(&ConvertRequest::new(&source.location.path, &target, Form::Diffusers)).unwrap();
        assert!(of(&target) == whole);
        assert!(target.join("diffusion_pytorch_model.safetensors").symlink_metadata().unwrap().is_file());
    }
    // That folder itself is not inside a pipeline.
    assert!(WeightsSource::open(&snapshot.join("network")).is_ok_and(|source| !source.latent_scale_known));
}

#[test]
fn the_sample_size_of_a_model_with_temporal_patches_is_noted_as_the_largest_latent() {
    let (_keep, folder) = temp();
    let notes = |model: &str, to: Form| {
        let source = Utf8Path::new("../../tests/fixtures/oracle/cogvideox").join(model);
        plan_conversion(&ConvertRequest::new(source, folder.join("x"), to)).unwrap().report.notes.join("; ")
    };
    let note = notes("cogvideox15_5b_tiny", Form::Internal);
    let others = [notes("cogvideox15_5b_tiny", Form::Diffusers), notes("cogvideox_5b_tiny", Form::Internal)];
    insta::assert_snapshot!(format!("{note}\n\nnot noted:\n{}", others.join("\n")));
}
