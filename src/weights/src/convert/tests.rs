use super::model::word;
use super::*;
use crate::Header;
use crate::cast;
use crate::fixtures::temp;
use crate::oracle;
use crate::source::TTT_FILE;
use crate::stored::Stored;
use crate::stored::{Files, Tensors};
use recipe::{Recipe, param_specs};
use rundir::{Checkpoint, Run, RunDir, StartFrom, TensorBox};
use safetensors::Dtype as Theirs;
use safetensors::tensor::TensorView;
use std::collections::BTreeMap;
use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::process::Command;

const NOW_S: f64 = 1_763_600_000.0;

/// A small model with rotary positions, from the project's own fixtures.
fn small() -> Utf8PathBuf {
    "../../tests/fixtures/oracle/cogvideox/cogvideox_5b_tiny/transformer".into()
}

fn go(request: &ConvertRequest) -> Result<Converted, Failure> {
    plan_conversion(request)?.execute(request.force, NOW_S, 7, &mut |_| ControlFlow::Continue(()))
}

fn bytes(tensors: &Tensors) -> BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)> {
    let mut files = Files::default();
    let read = |t: &Stored, files: &mut Files| (t.dtype, t.shape.clone(), files.read_all(t).unwrap());
    tensors.iter().map(|(name, t)| (name.clone(), read(t, &mut files))).collect()
}

fn of(path: &Utf8Path) -> BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)> {
    bytes(&Source::open(path).unwrap().tensors)
}

fn copy_folder(from: &Utf8Path, to: &Utf8Path) {
    fs::create_dir_all(to).unwrap();
    for entry in from.read_dir_utf8().unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Writes a diffusers folder of one file, from the small model with its tensors changed.
fn changed(folder: &Utf8Path, change: impl FnOnce(&mut BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>)) -> Utf8PathBuf {
    let model = folder.join("changed");
    fs::create_dir_all(&model).unwrap();
    fs::copy(small().join("config.json"), model.join("config.json")).unwrap();
    let mut tensors = of(&small());
    change(&mut tensors);
    write_tensors(&model.join("diffusion_pytorch_model.safetensors"), &tensors);
    model
}

fn write_tensors(path: &Utf8Path, tensors: &BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>) {
    let theirs = |dtype| match dtype {
        Dtype::F32 => Theirs::F32,
        Dtype::BF16 => Theirs::BF16,
        Dtype::F16 => Theirs::F16,
        Dtype::I64 => Theirs::I64,
        other => panic!("no test needs {other}"),
    };
    let views = tensors.iter().map(|(name, (dtype, shape, data))| {
        (name.clone(), TensorView::new(theirs(*dtype), shape.clone(), data).unwrap())
    });
    fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

/// Everything in a folder, hidden or not.
fn names(folder: &Utf8Path) -> Vec<String> {
    let mut names: Vec<_> = folder.read_dir_utf8().unwrap().map(|e| e.unwrap().file_name().to_owned()).collect();
    names.sort();
    names
}

#[test]
fn there_and_back_every_tensor_of_an_oracle_folder_is_the_same_byte_for_byte() {
    for model in oracle::models() {
        let (_keep, folder) = temp();
        let (inner, back) = (folder.join("inner"), folder.join("back"));
        // As a pipeline there, in several files back.
        let request = ConvertRequest::new(&model, &inner, Form::Internal);
        go(&ConvertRequest { shard_bytes: Some(200_000), ..request }).unwrap();
        let request = ConvertRequest::new(&inner, &back, Form::Diffusers);
        go(&ConvertRequest { shard_bytes: Some(300_000), ..request }).unwrap();
        let before = of(&model);
        assert!(before == of(&back), "{model}: a tensor changed");
        // The same again in one file, and the configuration means the same.
        let whole = folder.join("whole");
        go(&ConvertRequest::new(&back, &whole, Form::Diffusers)).unwrap();
        assert!(before == of(&whole), "{model}: a tensor changed");
        assert_eq!(names(&whole), ["config.json", "diffusion_pytorch_model.safetensors"]);
        let config = |folder: &Utf8Path| fs::read_to_string(folder.join("config.json")).unwrap();
        assert_eq!((config(&back), config(&whole)), (config(&model.join("transformer")), config(&back)), "{model}");
    }
}

#[test]
fn the_configuration_of_a_model_with_patches_in_time_comes_back_whatever_it_says_of_frames_and_biases() {
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
        assert_eq!(Source::open(&place).unwrap().model().unwrap(), plan.model.as_ref().unwrap());
        assert_eq!(names(&folder), ["inner"], "nothing else is left");
    }
}

#[test]
fn the_vaes_scale_and_the_text_length_travel_along() {
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
    assert!(notes.contains("set model.latent_scale to the VAE's scaling_factor"), "{notes}");
    assert!(!toml.contains("latent_scale"), "{toml}");
    fs::create_dir_all(pipeline.join("vae")).unwrap();
    fs::write(pipeline.join("vae/config.json"), r#"{"scaling_factor": 0.7}"#).unwrap();
    for (source, target) in [(pipeline.clone(), "whole"), (pipeline.join("transformer"), "part")] {
        let (notes, toml) = convert(&source, target);
        assert_eq!(notes, "");
        assert!(toml.contains("latent_scale = 0.7") && toml.contains("text_len = 6"), "{toml}");
        // The file is what its first line says: a recipe may begin with it.
        let recipe = folder.join("recipe.toml");
        let rest = "[data]\nindex = \"i.jsonl\"\n[train]\nsteps = 1\nglobal_batch = 1\n";
        fs::write(&recipe, format!("base = \"{target}/model.toml\"\n{rest}")).unwrap();
        assert_eq!(recipe::load(&recipe, &[]).unwrap().recipe.model.latent_scale, 0.7);
    }
    fs::write(pipeline.join("vae/config.json"), r#"{"scaling_factor": "big"}"#).unwrap();
    let failure = plan_conversion(&ConvertRequest::new(&pipeline, folder.join("x"), Form::Internal)).unwrap_err();
    assert!(failure.why.contains("not a number above 0"), "{failure}");
}

#[test]
fn a_pipeline_whose_transformer_or_files_are_links_is_read_as_one_whole() {
    let (_keep, folder) = temp();
    // As the cache of the Hugging Face hub has it: files are links to blobs named by their content.
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
    // And a pipeline put together of links, one of them to a folder of another name.
    let other = folder.join("other");
    fs::create_dir(&other).unwrap();
    fs::rename(snapshot.join("transformer"), snapshot.join("network")).unwrap();
    std::os::unix::fs::symlink(snapshot.join("network"), other.join("transformer")).unwrap();
    std::os::unix::fs::symlink(snapshot.join("vae"), other.join("vae")).unwrap();
    std::os::unix::fs::symlink("network", snapshot.join("transformer")).unwrap();
    let whole = bytes(&Source::open(&small()).unwrap().tensors);
    for (n, source) in [snapshot.clone(), snapshot.join("transformer"), other.join("transformer")].iter().enumerate() {
        let source = Source::open(source).unwrap();
        assert_eq!((source.latent_scale_known, source.model().unwrap().latent_scale), (true, 0.7));
        assert!(bytes(&source.tensors) == whole);
        let target = folder.join(n.to_string());
        go(&ConvertRequest::new(&source.found.path, &target, Form::Diffusers)).unwrap();
        assert!(of(&target) == whole);
        assert!(target.join("diffusion_pytorch_model.safetensors").symlink_metadata().unwrap().is_file());
    }
    // The folder itself has no pipeline around it.
    assert!(Source::open(&snapshot.join("network")).is_ok_and(|source| !source.latent_scale_known));
}

#[test]
fn what_diffusers_calls_the_size_of_a_model_with_patches_in_time_is_said_to_be_its_largest() {
    let (_keep, folder) = temp();
    let notes = |model: &str, to: Form| {
        let source = Utf8Path::new("../../tests/fixtures/oracle/cogvideox").join(model);
        plan_conversion(&ConvertRequest::new(source, folder.join("x"), to)).unwrap().report.notes.join("; ")
    };
    let said = notes("cogvideox15_5b_tiny", Form::Internal);
    assert!(said.starts_with("20 × 20 is the largest latent that its positions allow, not one to train on"), "{said}");
    assert!(said.contains("set model.latent_height, model.latent_width and model.latent_frames to"), "{said}");
    assert!(!notes("cogvideox15_5b_tiny", Form::Diffusers).contains("largest latent"));
    assert!(!notes("cogvideox_5b_tiny", Form::Internal).contains("largest latent"));
}

#[test]
fn shards_of_every_type_with_the_channels_of_inpainting_are_taken_over_byte_for_byte() {
    for dtype in cast::FLOATS {
        let (_keep, folder) = temp();
        let shards = |source: &Utf8Path, target: &str, to: Form| {
            let request = ConvertRequest::new(source, folder.join(target), to);
            let request = ConvertRequest { shard_bytes: Some(150_000), ..request };
            let plan = plan_conversion(&request).unwrap();
            let said = &plan.report;
            assert_eq!((said.mapped.len(), said.unused.len(), said.missing.len()), (64, 0, 0), "{dtype}");
            go(&request).unwrap();
            request.target
        };
        // As CogVideoX-Fun is published: a mask and a masked latent beside the latent, several files and an index.
        let grown = ConvertRequest {
            in_channels: Some(33),
            dtype: Some(dtype),
            shard_bytes: Some(100_000),
            ..ConvertRequest::new(small(), folder.join("fun"), Form::Diffusers)
        };
        go(&grown).unwrap();
        let fun = grown.target;
        assert!(fun.join("diffusion_pytorch_model.safetensors.index.json").exists());
        let source = Source::open(&fun).unwrap();
        assert_eq!((source.family, source.model().unwrap().in_channels), (Some(crate::Family::FunInP), 33));
        let inner = shards(&fun, "inner", Form::Internal);
        assert_eq!(Source::open(&inner).unwrap().family, Some(crate::Family::FunInP));
        let back = shards(&inner, "back", Form::Diffusers);
        assert!(of(&fun) == of(&back), "{dtype}: a tensor changed");
        assert!(of(&inner).values().all(|(found, ..)| *found == dtype));
    }
}

#[test]
fn new_input_channels_are_zero_and_the_old_ones_as_they_were() {
    let (_keep, folder) = temp();
    let place = folder.join("grown");
    let mut request = ConvertRequest::new(small(), &place, Form::Internal);
    request.in_channels = Some(9);
    let plan = plan_conversion(&request).unwrap();
    let note = "patch_embed.video.weight grew from 4 to 9 input channels, the new ones zero";
    assert!(plan.report.notes.iter().any(|said| said == note), "{:?}", plan.report.notes);
    plan.execute(false, NOW_S, 7, &mut |_| ControlFlow::Continue(())).unwrap();
    let (_, shape, ours) = of(&place).remove("patch_embed.video.weight").unwrap();
    let (_, was, theirs) = of(&small()).remove("patch_embed.proj.weight").unwrap();
    assert_eq!((&was[..], &shape[..]), (&[64, 4, 2, 2][..], &[64, 9, 2, 2][..]));
    for (ours, theirs) in ours.chunks(9 * 16).zip(theirs.chunks(4 * 16)) {
        assert_eq!(&ours[..64], theirs);
        assert!(ours[64..].iter().all(|b| *b == 0));
    }
    // CogVideoX 1.5: a linear layer over patches of two frames, channel by channel too.
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
    assert!(plan_conversion(&request).unwrap_err().why.contains("it has 4 input channels, 3 were asked for"));
}

#[test]
fn ttt_layers_are_added_and_travel_beside_a_diffusers_model() {
    let (_keep, folder) = temp();
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
        let note = &Header::read(&outer.join(TTT_FILE)).unwrap().metadata["note"];
        assert!(note.contains("diffusers has no place for"));
        assert!(of(&outer).into_iter().filter(|(n, _)| !n.contains(".ttt.")).eq(of(&small())));
        go(&ConvertRequest::new(&outer, &back, Form::Internal)).unwrap();
        assert!(of(&inner) == of(&back));
        // Without them they are left over, and must be waived.
        let without = ConvertRequest {
            layer: Some(Layer::None),
            ..ConvertRequest::new(&inner, folder.join("x"), Form::Internal)
        };
        let failure = go(&without).unwrap_err();
        assert!(failure.why.contains("have no place in the target"), "{failure}");
        let waived = ConvertRequest { allow_unused: vec!["blocks.*".into()], force: true, ..without };
        go(&waived).unwrap();
    }
}

#[test]
fn parameters_are_rounded_on_request() {
    let (_keep, folder) = temp();
    let (short, long) = (folder.join("short"), folder.join("long"));
    let request = ConvertRequest { dtype: Some(Dtype::BF16), ..ConvertRequest::new(small(), &short, Form::Internal) };
    assert_eq!(plan_conversion(&request).unwrap().report.notes[0], "64 tensors rounded from F32 to BF16");
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

#[test]
fn a_number_that_does_not_fit_the_type_leaves_nothing_behind() {
    let (_keep, folder) = temp();
    let model = changed(&folder, |tensors| {
        tensors.get_mut("proj_out.bias").unwrap().2[..4].copy_from_slice(&1e6f32.to_le_bytes());
    });
    let request =
        ConvertRequest { dtype: Some(Dtype::F16), ..ConvertRequest::new(&model, folder.join("x"), Form::Internal) };
    let failure = go(&request).unwrap_err();
    assert_eq!(failure.why, "it holds 1e6, which F16 cannot");
    assert_eq!(names(&folder), ["changed"]);
}

#[test]
fn what_is_left_over_missing_or_wrong_is_refused_and_nothing_is_written() {
    type Change = fn(&mut BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>);
    let cases: [(Change, &str); 5] = [
        (
            |t| drop(t.remove("transformer_blocks.1.attn1.to_q.weight")),
            "1 tensor that the model needs is not there: transformer_blocks.1.attn1.to_q.weight",
        ),
        (
            |t| drop(t.insert("ofs_embedding.linear_1.bias".into(), (Dtype::F32, vec![1], vec![0; 4]))),
            "1 tensor has no place in the target: ofs_embedding.linear_1.bias",
        ),
        (|t| t.get_mut("proj_out.bias").unwrap().1 = vec![4, 4], "and its configuration says [16]"),
        (
            |t| drop(t.insert("proj_out.bias".into(), (Dtype::I64, vec![16], vec![0; 128]))),
            "is I64, and parameters are F32, BF16 or F16",
        ),
        (
            |t| drop(t.insert("patch_embed.proj.weight".into(), (Dtype::F32, vec![64, 5, 2, 2], vec![0; 64 * 5 * 16]))),
            "patch_embed.proj.weight is [64, 5, 2, 2]",
        ),
    ];
    for (change, wanted) in cases {
        let (_keep, folder) = temp();
        let model = changed(&folder, change);
        let failure = go(&ConvertRequest::new(&model, folder.join("x"), Form::Internal)).unwrap_err();
        assert!(failure.why.contains(wanted), "{failure} does not say {wanted}");
        assert_eq!(names(&folder), ["changed"]);
    }
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
        assert!(failure.what.ends_with("is truncated"), "{failure}");
        assert_eq!(names(&folder), ["changed"]);
    }
}

#[test]
fn only_an_earlier_conversion_is_replaced_and_only_when_asked() {
    let (_keep, folder) = temp();
    let place = folder.join("x");
    let request = ConvertRequest::new(small(), &place, Form::Internal);
    fs::create_dir(&place).unwrap();
    go(&request).unwrap();
    assert_eq!(go(&request).unwrap_err().fix, "name another folder, or replace it: --force");
    let force = ConvertRequest { force: true, to: Form::Diffusers, ..request.clone() };
    go(&force).unwrap();
    assert!(place.join("config.json").exists() && !place.join("manifest.toml").exists());
    fs::write(place.join("thesis.tex"), "precious").unwrap();
    assert!(go(&force).unwrap_err().why.contains("holds thesis.tex, which no conversion has written"));
    fs::write(folder.join("file"), "").unwrap();
    let onto_file = ConvertRequest { target: folder.join("file"), ..force.clone() };
    assert!(go(&onto_file).unwrap_err().why.contains("not a folder"));
    // The source itself, or a folder around it, would be gone before it is read.
    let model = folder.join("m/transformer");
    copy_folder(&small(), &model);
    for target in [model.clone(), folder.join("m")] {
        let onto_source = ConvertRequest { target, source: model.clone(), ..force.clone() };
        assert!(go(&onto_source).unwrap_err().why.contains("lies in it"));
    }
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
        assert!(failure.why.contains("which no conversion has written"), "{target}: {failure}");
        assert_eq!(names(&target), before);
    }
}

#[test]
fn the_adapter_that_is_merged_is_not_replaced_by_what_it_is_merged_into() {
    let (_keep, folder) = temp();
    let lora = folder.join("lora");
    let kept = "../../tests/fixtures/weights/lora/peft";
    go(&ConvertRequest::new(kept, &lora, Form::Lora(LoraForm::Peft))).unwrap();
    let onto_itself = ConvertRequest {
        merge: Some(lora.clone()),
        force: true,
        ..ConvertRequest::new(small(), &lora, Form::Diffusers)
    };
    assert!(go(&onto_itself).unwrap_err().why.contains(&format!("the source {lora} lies in it")));
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
        assert!(names(&place).iter().map(read).eq(before.iter().cloned()), "{why}: the old one changed");
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
    whole(go(&ConvertRequest { dtype: Some(Dtype::F16), ..request.clone() }).unwrap_err(), "which F16 cannot");
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
    assert_eq!(failure.why, "it was interrupted");
    assert_eq!(names(&folder), [""; 0]);
    // A process that was killed could not clear up.
    fs::create_dir_all(folder.join(".x.part")).unwrap();
    fs::write(folder.join(".x.part/weights-00001-of-00001.safetensors"), "half").unwrap();
    go(&request).unwrap();
    assert_eq!(names(&folder), ["x"]);
    // Nor could one that had put the new folder in its place, and not yet removed the old one.
    fs::create_dir_all(folder.join(".x.replaced/old")).unwrap();
    go(&ConvertRequest { force: true, ..request }).unwrap();
    assert_eq!(names(&folder), ["x"]);
}

#[test]
fn two_conversions_to_one_place_do_not_meet() {
    let (_keep, folder) = temp();
    let request = ConvertRequest::new(small(), folder.join("x"), Form::Internal);
    let other = plan_conversion(&request).unwrap();
    let mut met = None;
    other
        .execute(false, NOW_S, 7, &mut |_| {
            met.get_or_insert_with(|| go(&request).unwrap_err());
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(met.unwrap().why, "another conversion is writing it");
}

#[test]
fn a_disk_without_room_is_refused_before_anything_is_written() {
    let (_keep, folder) = temp();
    let failure = destination::check_space(&folder.join("x"), u64::MAX / 2).unwrap_err();
    assert!(failure.why.contains("MiB free"), "{failure}");
}

#[test]
fn files_that_would_be_copied_byte_for_byte_are_taken_over_where_that_is_asked_for() {
    let (_keep, folder) = temp();
    let shards = folder.join("shards");
    go(&ConvertRequest { shard_bytes: Some(300_000), ..ConvertRequest::new(small(), &shards, Form::Diffusers) })
        .unwrap();
    let count = names(&shards).iter().filter(|name| name.ends_with(".safetensors")).count() as u64;
    assert!(count > 1);
    // As in a cache, where a shard is a link to a blob.
    let first = shards.join(names(&shards).into_iter().find(|name| name.ends_with(".safetensors")).unwrap());
    fs::rename(&first, folder.join("blob")).unwrap();
    std::os::unix::fs::symlink("../blob", &first).unwrap();
    let links = |target: &Utf8Path| {
        let files = target.read_dir_utf8().unwrap().map(|file| file.unwrap().path().symlink_metadata().unwrap());
        files.filter(|meta| meta.is_file() && meta.nlink() == 2).count() as u64
    };
    let place = folder.join("inner");
    let request = ConvertRequest { link: true, ..ConvertRequest::new(&shards, &place, Form::Internal) };
    let plan = plan_conversion(&request).unwrap();
    assert_eq!((plan.bytes(), plan.file_count()), (0, 0));
    assert!(plan.report.notes.last().unwrap().starts_with(&format!("{count} of the source's files are taken over")));
    let mut last = None;
    let mut see = |progress| {
        last = Some(progress);
        ControlFlow::Continue(())
    };
    plan.execute(false, NOW_S, 7, &mut see).unwrap();
    assert!(last.is_some_and(|last: Progress| last.doing == Doing::Checking && last.done == last.total));
    assert_eq!(links(&place), count);
    // The same tensors as copied, and the same model back.
    let copied = folder.join("copied");
    go(&ConvertRequest::new(small(), &copied, Form::Internal)).unwrap();
    assert!(of(&place) == of(&copied));
    Checkpoint::open(&place).unwrap().verify_checksums().unwrap();
    go(&ConvertRequest::new(&place, folder.join("back"), Form::Diffusers)).unwrap();
    assert!(of(&folder.join("back")) == of(&small()));
    // A shard with a tensor that changes is written, and so are layers that are added.
    let grown = ConvertRequest { in_channels: Some(8), layer: Some(Layer::TttLinear), force: true, ..request.clone() };
    assert_eq!(go(&grown).unwrap().files as u64, count);
    assert_eq!(links(&place), count - 1);
    go(&ConvertRequest { link: false, target: folder.join("grown"), ..grown }).unwrap();
    assert!(of(&place) == of(&folder.join("grown")));
    // Nothing is left to take over when every number is rounded.
    let short = ConvertRequest { dtype: Some(Dtype::BF16), force: true, ..request.clone() };
    assert!(plan_conversion(&short).unwrap().report.notes.last().unwrap().starts_with("no file can be taken over"));
    go(&short).unwrap();
    assert_eq!(links(&place), 0);
    // Who writes into the source writes into the checkpoint, and the checksums show it.
    go(&ConvertRequest { force: true, ..request.clone() }).unwrap();
    let blob = folder.join("blob");
    let mut file = fs::OpenOptions::new().write(true).open(&blob).unwrap();
    file.seek(SeekFrom::End(-1)).unwrap();
    file.write_all(&[77]).unwrap();
    Checkpoint::open(&place).unwrap().verify_checksums().unwrap_err();
    let outward = ConvertRequest { to: Form::Diffusers, target: folder.join("x"), ..request };
    assert!(go(&outward).unwrap_err().why.contains("only the files of a diffusers model can be taken over"));
}

/// A run of two ranks, each of which saved a half of every tensor.
fn run_of_halves(folder: &Utf8Path) -> Utf8PathBuf {
    let inner = folder.join("inner");
    go(&ConvertRequest::new(small(), &inner, Form::Internal)).unwrap();
    let source = Source::open(&inner).unwrap();
    let mut manifest = source.checkpoint.clone().unwrap().manifest;
    let base = recipe::load("../../tests/fixtures/configs/valid/minimal.toml".into(), &[]).unwrap().recipe;
    let recipe = Recipe { model: source.model().unwrap().clone(), ..base };
    let id = RunId::parse("2026-11-20T0340-halves-k7f2").unwrap();
    let run = RunDir::of(&folder.join("runs"), &id);
    let dir = run.step_dir(40);
    fs::create_dir_all(&dir).unwrap();
    run.write_run(&Run {
        schema: SCHEMA,
        id: id.clone(),
        name: "halves".into(),
        curriculum: None,
        stage: None,
        created_s: NOW_S,
        git_commit: None,
        trainer_sha256: None,
        trainer_version: "0".into(),
        libtorch: "2".into(),
        start: StartFrom::Random,
        lineage: None,
        recipe: recipe.to_table(),
    })
    .unwrap();
    let mut ranks = [BTreeMap::new(), BTreeMap::new()];
    let tensors = bytes(&source.tensors);
    for tensor in &mut manifest.tensors {
        let data = &tensors[&tensor.name].2;
        let (half, all) = ((data.len() / 8) as u64, (data.len() / 4) as u64);
        // Matrices lie as columns, as two ranks of a TP group have them, and the others as halves.
        let boxes = match tensor.shape[..] {
            [rows, columns] if columns % 2 == 0 => {
                let size = vec![rows, columns / 2];
                [0, columns / 2].map(|at| Some(TensorBox { offset: vec![0, at], size: size.clone() }))
            }
            _ => [None, None],
        };
        let parts = if boxes[0].is_some() { [(0, half); 2] } else { [(0, half), (half, all - half)] };
        tensor.slices.clear();
        for (rank, ((start, len), within)) in parts.into_iter().zip(boxes).enumerate().rev() {
            let file = format!("rank-{rank:05}.safetensors");
            let slice = Slice { file, key: tensor.name.clone(), start, len, within };
            let mut own = vec![0; 4 * len as usize];
            let whole = TensorBox::whole(&tensor.shape);
            for run in slice.within(&tensor.shape).common(slice.range(), &whole, 0..all) {
                let [here, there, len] = [run.here, run.there, run.len].map(|n| 4 * n as usize);
                own[here..here + len].copy_from_slice(&data[there..there + len]);
            }
            ranks[rank].insert(tensor.name.clone(), (Dtype::F32, vec![len as usize], own));
            tensor.slices.push(slice);
        }
    }
    let mut moment = manifest.tensors[0].clone();
    moment.name = format!("exp_avg/{}", moment.name);
    manifest.tensors.push(moment);
    manifest.files.clear();
    for (rank, tensors) in ranks.iter().enumerate() {
        let path = dir.join(format!("rank-{rank:05}.safetensors"));
        write_tensors(&path, tensors);
        manifest.files.push(rundir::file_sum(&path).unwrap());
    }
    let state = TrainState { step: 40, ..untrained() };
    rundir::write_toml(&dir.join("state.toml"), &state).unwrap();
    manifest.files.push(rundir::file_sum(&dir.join("state.toml")).unwrap());
    (manifest.run, manifest.step) = (id, 40);
    manifest.write(&dir).unwrap();
    run.root
}

#[test]
fn a_run_of_halves_and_columns_becomes_one_diffusers_model() {
    let (_keep, folder) = temp();
    let run = run_of_halves(&folder);
    let plan = plan_conversion(&ConvertRequest::new(&run, folder.join("x"), Form::Diffusers)).unwrap();
    assert_eq!(plan.report.notes, ["1 tensor of the state of training stays behind"]);
    for (source, target) in [(run.clone(), "of-run"), (run.join("checkpoints/step-00000040"), "of-step")] {
        go(&ConvertRequest::new(source, folder.join(target), Form::Diffusers)).unwrap();
        assert!(of(&folder.join(target)) == of(&small()));
    }
}

#[test]
fn damage_in_a_checkpoint_is_found_before_it_is_passed_on() {
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
fn a_checkpoint_is_checked_to_its_end_before_what_was_made_of_it_is_in_its_place() {
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
    assert_eq!(last, Some(Progress { doing: Doing::Checking, done: total, total }));
}

/// The Python of the benches, with torch and diffusers, when all of it is there.
fn python() -> Option<Utf8PathBuf> {
    let absolute = |name| std::env::var(name).ok().map(Utf8PathBuf::from).filter(|dir| dir.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
    let folder = cache.join("vidtui/bench-python");
    folder.join("complete").exists().then(|| folder.join("bin/python"))
}

#[test]
fn diffusers_loads_what_was_made_of_an_oracle_folder_and_finds_the_same_tensors() {
    let Some(python) = python() else {
        println!("skipped: there is no Python with diffusers (`cargo xtask ci` and `cargo xtask bench` install one)");
        return;
    };
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
