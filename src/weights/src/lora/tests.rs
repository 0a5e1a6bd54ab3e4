//! Tests of reading, converting and merging LoRA adapters in all formats.

use super::*;
use crate::fixtures::{copy_folder, shown, temp, write_torch};
use crate::{ConvertRequest, Dtype, Form, Header, SourceKind, WeightsSource, inspect, plan_conversion, tensor_spans};
use safetensors::Dtype as Theirs;
use safetensors::tensor::TensorView;
use std::collections::HashMap;
use std::fs;
use std::ops::ControlFlow;

const RANK: usize = 3;

fn base() -> Utf8PathBuf {
    "../../tests/fixtures/oracle/cogvideox/cogvideox_5b_tiny/transformer".into()
}

fn bytes(seed: usize, len: usize) -> Vec<u8> {
    (0..len).flat_map(|n| (((seed * 31 + n * 7) % 23) as f32 / 16.0 - 0.7).to_le_bytes()).collect()
}

/// Modules of the base model, with their input and output widths.
const MODULES: [(&str, usize, usize); 4] = [
    ("transformer_blocks.0.attn1.to_q", 64, 64),
    ("transformer_blocks.1.attn1.to_out.0", 64, 64),
    ("transformer_blocks.1.ff.net.0.proj", 64, 256),
    ("proj_out", 64, 16),
];

/// Writes an adapter in a format, with alpha 6 for every layer.
fn write(folder: &Utf8Path, form: LoraForm, extra: &[(&str, &[usize])]) -> Utf8PathBuf {
    let path = folder.join(form.to_string());
    fs::create_dir_all(&path).unwrap();
    let mut tensors: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
    for (n, (module, input, output)) in MODULES.iter().enumerate() {
        let [down, up] = form.names(module);
        tensors.push((down.clone(), vec![RANK, *input], bytes(n, RANK * input)));
        tensors.push((up, vec![*output, RANK], bytes(n + 9, RANK * output)));
        if form == LoraForm::Kohya {
            tensors.push((down.replace(".lora_down.weight", ".alpha"), vec![], 6f32.to_le_bytes().to_vec()));
        }
    }
    for (name, shape) in extra {
        tensors.push((name.to_string(), shape.to_vec(), bytes(0, shape.iter().product())));
    }
    let views = tensors
        .iter()
        .map(|(name, shape, data)| (name.as_str(), TensorView::new(Theirs::F32, shape.clone(), data).unwrap()));
    let config = r#"{"transformer.lora_alpha": 6, "transformer.r": 3}"#;
    let metadata = HashMap::from([(METADATA.to_owned(), config.to_owned())]);
    let (name, metadata) = match form {
        LoraForm::Diffusers => (DIFFUSERS_FILE, Some(metadata)),
        LoraForm::Peft => (PEFT_FILE, None),
        LoraForm::Kohya => ("some_name.safetensors", None),
    };
    fs::write(path.join(name), safetensors::serialize(views, metadata).unwrap()).unwrap();
    match form {
        LoraForm::Peft => fs::write(path.join(PEFT_CONFIG), r#"{"lora_alpha": 6, "r": 3}"#).unwrap(),
        LoraForm::Kohya => return path.join(name),
        LoraForm::Diffusers => {}
    }
    path
}

const FORMS: [LoraForm; 3] = [LoraForm::Diffusers, LoraForm::Peft, LoraForm::Kohya];

fn go(request: &ConvertRequest) -> Result<crate::Converted, Failure> {
    plan_conversion(request)?.execute(false, 0.0, 1, &mut |_| ControlFlow::Continue(()))
}

/// Returns the down and up factors as bytes and the alpha of every layer.
fn numbers(lora: &LoraFile) -> BTreeMap<String, (Vec<u8>, Vec<u8>, f64)> {
    let mut files = Files::default();
    let mut read = |tensor| files.read_all(tensor).unwrap();
    let layers = lora.layers.iter();
    layers.map(|(module, layer)| (module.clone(), (read(&layer.down), read(&layer.up), layer.alpha))).collect()
}

#[test]
fn every_format_converts_to_every_other_with_the_same_numbers() {
    let (_keep, folder) = temp();
    for from in FORMS {
        let path = write(&folder.join("in"), from, &[]);
        assert_eq!(crate::identify(&path).unwrap().kind, SourceKind::Lora);
        let lora = LoraFile::open(&path).unwrap();
        assert_eq!((lora.form, lora.layers.len()), (Some(from), MODULES.len()));
        assert!(lora.layers.values().all(|layer| layer.alpha == 6.0 && layer.rank() == RANK));
        assert!(inspect(&path, false).unwrap().complete);
        for to in FORMS {
            let target = folder.join(format!("{from}-to-{to}"));
            go(&ConvertRequest::new(&path, &target, Form::Lora(to))).unwrap();
            let back = LoraFile::open(&target).unwrap();
            assert_eq!(back.form, Some(to));
            assert!(numbers(&back) == numbers(&lora), "{from} to {to}");
        }
    }
}

#[test]
fn an_adapter_is_merged_into_its_base_by_the_formula() {
    let (_keep, folder) = temp();
    let values_of = |path: &Utf8Path, name: &str| -> Vec<f64> {
        let source = WeightsSource::open(path).unwrap();
        let tensor = &source.tensors[name];
        values(tensor.dtype, &Files::default().read_all(tensor).unwrap()).collect()
    };
    for form in FORMS {
        let target = folder.join(format!("merged-{form}"));
        let mut request = ConvertRequest::new(base(), &target, Form::Diffusers);
        request.merge = Some(write(&folder, form, &[]));
        request.scale = 0.5;
        let plan = plan_conversion(&request).unwrap();
        assert!(plan.report.notes[0].starts_with(&MODULES.len().to_string()), "{:?}", plan.report.notes);
        go(&request).unwrap();
        for (n, (module, input, output)) in MODULES.iter().enumerate() {
            let name = format!("{module}.weight");
            let (before, after) = (values_of(&base(), &name), values_of(&target, &name));
            let down: Vec<f64> = values(Dtype::F32, &bytes(n, RANK * input)).collect();
            let up: Vec<f64> = values(Dtype::F32, &bytes(n + 9, RANK * output)).collect();
            for row in 0..*output {
                for column in 0..*input {
                    let product: f64 = (0..RANK).map(|k| up[row * RANK + k] * down[k * input + column]).sum();
                    let wanted = before[row * input + column] + 0.5 * 6.0 / 3.0 * product;
                    let found = after[row * input + column];
                    assert!((wanted - found).abs() < 1e-5, "{name}[{row}, {column}]: {found}, wanted {wanted}");
                }
            }
        }
        let untouched = "transformer_blocks.0.attn1.to_k.weight";
        assert_eq!(values_of(&base(), untouched), values_of(&target, untouched));
    }
}

/// Adapters that diffusers and PEFT saved, and the results of their own merges (made by `make.py` in the same folder).
#[test]
fn a_merge_equals_the_merges_of_diffusers_and_peft() {
    let fixtures = Utf8Path::new("../../tests/fixtures/weights/lora");
    let (_keep, folder) = temp();
    for (library, scale) in [("diffusers", 0.5), ("peft", 1.0)] {
        let target = folder.join(library);
        let mut request = ConvertRequest::new(base(), &target, Form::Diffusers);
        (request.merge, request.scale) = (Some(fixtures.join(library)), scale);
        go(&request).unwrap();
        let theirs = WeightsSource::open(&fixtures.join(format!("merged_{library}.safetensors"))).unwrap().tensors;
        let (before, after) =
            (WeightsSource::open(&base()).unwrap().tensors, WeightsSource::open(&target).unwrap().tensors);
        let mut files = Files::default();
        let mut numbers = |t: &StoredTensor| values(t.dtype, &files.read_all(t).unwrap()).collect::<Vec<f64>>();
        assert_eq!(theirs.len(), 8);
        for (name, tensor) in &after {
            let ours = numbers(tensor);
            let Some(wanted) = theirs.get(name) else {
                assert_eq!(ours, numbers(&before[name]), "{library}: {name}");
                continue;
            };
            // One rounding of float32 in the product, one in the sum.
            let worst = ours.iter().zip(numbers(wanted)).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(worst < 1e-6, "{library}: {name} is off by {worst:e}");
        }
    }
}

#[test]
fn a_merge_in_several_pieces_is_correct_in_every_row() {
    // 520 × 520 numbers of float32 are more than one piece, and a piece ends within a row.
    let (_keep, folder) = temp();
    let size = 520;
    assert!(size * size * 4 > crate::stream::CHUNK);
    let path = folder.join("a.safetensors");
    let ones = |len: usize| -> Vec<u8> { (0..len).flat_map(|_| 1f32.to_le_bytes()).collect() };
    let data = [ones(size * size), ones(2 * size), ones(2 * size)];
    let shapes = [vec![size, size], vec![2, size], vec![size, 2]];
    let views = ["w", "down", "up"].iter().zip(data.iter().zip(&shapes));
    let views = views.map(|(name, (data, shape))| (*name, TensorView::new(Theirs::F32, shape.clone(), data).unwrap()));
    fs::write(&path, safetensors::serialize(views, None).unwrap()).unwrap();
    let tensors = tensor_spans::tensors_of_header(&Header::read(&path).unwrap());
    let segments = tensors["w"].spans.iter().cloned().map(crate::stream::Segment::File).collect();
    let mut target = crate::stream::TensorToWrite::new("w", &[size, size], Dtype::F32, Dtype::F32, segments);
    target.merge = Some(Merge { down: tensors["down"].clone(), up: tensors["up"].clone(), scale: 0.25 });
    let mut out = Vec::new();
    let keep = |piece| {
        out.extend::<Vec<u8>>(piece);
        Ok(())
    };
    target.stream(&mut Files::default(), Vec::new, keep).unwrap();
    assert_eq!(out.len(), size * size * 4);
    assert!(values(Dtype::F32, &out).all(|value| value == 1.5));
}

#[test]
fn an_adapter_that_does_not_match_the_model_is_refused() {
    let (_keep, folder) = temp();
    let mut refusals = Vec::new();
    let mut refused = |extra: &[(&str, &[usize])]| {
        let path = write(&folder, LoraForm::Diffusers, extra);
        let mut request = ConvertRequest::new(base(), folder.join("x"), Form::Diffusers);
        request.merge = Some(path);
        let failure = go(&request).unwrap_err();
        refusals.push(shown(&failure, &folder));
        failure.code
    };
    let magnitude = "transformer.transformer_blocks.0.attn1.to_q.lora_magnitude_vector";
    assert_eq!(refused(&[(magnitude, &[64])]), ErrorCode::UnsupportedModel);
    let half = "transformer.transformer_blocks.0.attn1.to_v.lora_A.weight";
    assert_eq!(refused(&[(half, &[3, 64])]), ErrorCode::UnsupportedModel);
    let other = half.replace("lora_A", "lora_B");
    assert_eq!(refused(&[(half, &[3, 64]), (&other, &[64, 4])]), ErrorCode::UnsupportedModel);
    assert_eq!(refused(&[(half, &[3, 32]), (&other, &[64, 3])]), ErrorCode::TensorMismatch);
    let mixed = "lora_unet__transformer_blocks_0_attn1_to_v.lora_down.weight";
    assert_eq!(refused(&[(mixed, &[3, 64])]), ErrorCode::UnsupportedModel);
    let beyond = [half, &other].map(|name| name.replace("blocks.0", "blocks.7"));
    assert_eq!(refused(&[(&beyond[0], &[3, 64]), (&beyond[1], &[64, 3])]), ErrorCode::TensorMismatch);
    assert!(!folder.join("x").exists());
    let lora = write(&folder, LoraForm::Peft, &[]);
    let mut code = |request: &ConvertRequest| {
        let failure = go(request).unwrap_err();
        refusals.push(shown(&failure, &folder));
        failure.code
    };
    assert_eq!(code(&ConvertRequest::new(&lora, folder.join("x"), Form::Internal)), ErrorCode::InvalidArgument);
    let merged = ConvertRequest {
        merge: Some(lora.clone()),
        ..ConvertRequest::new(&lora, folder.join("x"), Form::Lora(LoraForm::Kohya))
    };
    assert_eq!(code(&merged), ErrorCode::InvalidArgument);
    let nothing = ConvertRequest { scale: f64::NAN, ..ConvertRequest::new(base(), folder.join("x"), Form::Internal) };
    assert_eq!(code(&nothing), ErrorCode::InvalidArgument);
    let model = ConvertRequest::new(base(), folder.join("x"), Form::Lora(LoraForm::Peft));
    assert_eq!(code(&model), ErrorCode::InvalidArgument);
    assert!(refusals.iter().all(|refusal| !refusal.contains("--allow-unused")), "it has no effect on adapters");
    insta::assert_snapshot!(refusals.join("\n\n"));
}

#[test]
fn alphas_follow_patterns_and_rslora() {
    let (_keep, folder) = temp();
    let path = write(&folder, LoraForm::Peft, &[]);
    let config = r#"{"lora_alpha": 6, "use_rslora": true, "alpha_pattern": {"attn1.to_q": 2}}"#;
    fs::write(path.join(PEFT_CONFIG), config).unwrap();
    let lora = LoraFile::open(&path).unwrap();
    let root = (RANK as f64).sqrt();
    assert_eq!(lora.layers["transformer_blocks.0.attn1.to_q"].alpha, 2.0 * root);
    assert_eq!(lora.layers["proj_out"].alpha, 6.0 * root);
    let with = |patterns: &str| {
        let config = format!(r#"{{"lora_alpha": 6, "alpha_pattern": {patterns}}}"#);
        fs::write(path.join(PEFT_CONFIG), config).unwrap();
        LoraFile::open(&path)
    };
    // A regular expression for the end of a name, starting after a dot.
    let lora = with(r#"{"transformer_blocks\\.[0-1]\\.attn1\\.(to_q|to_out\\.0)": 4, "q": 1, "out": 1}"#).unwrap();
    let alphas: Vec<f64> = MODULES.iter().map(|(module, ..)| lora.layers[*module].alpha).collect();
    assert_eq!(alphas, [4.0, 4.0, 6.0, 6.0]);
    let bad = [r#"{"to_q": 1, "attn1.to_q": 2}"#, r#"{"to_(q": 1}"#, r#"{"to_q": "1"}"#];
    let refusals = bad.map(|patterns| shown(&with(patterns).unwrap_err(), &folder));
    insta::assert_snapshot!(refusals.join("\n\n"));
    fs::remove_file(path.join(PEFT_CONFIG)).unwrap();
    assert!(LoraFile::open(&path).unwrap().layers.values().all(|layer| layer.alpha == RANK as f64));
}

#[test]
fn an_adapter_starts_training_of_the_same_layers_with_the_same_rank() {
    let lora = LoraFile::open("../../tests/fixtures/oracle/lora/cogvideox_5b_tiny/attnff_r4_a8/peft".into()).unwrap();
    let source = WeightsSource::open(&base()).unwrap();
    let mut recipe = recipe::Recipe::for_sampling(source.model().unwrap(), None).unwrap();
    let refused =
        |recipe: &recipe::Recipe| lora.check_start(recipe).map_err(|failure| (failure.code, failure.why)).err();
    recipe.lora.rank = 4;
    recipe.lora.targets = vec!["attention".into(), "feed_forward".into()];
    assert_eq!(refused(&recipe), None);
    let mut refusals = Vec::new();
    let mut because = |change: &dyn Fn(&mut recipe::Recipe)| {
        let mut other = recipe.clone();
        change(&mut other);
        let (code, why) = refused(&other).unwrap();
        assert_eq!(code, ErrorCode::TensorMismatch);
        refusals.push(why);
    };
    because(&|recipe| recipe.lora.rank = 8);
    because(&|recipe| recipe.lora.targets = vec!["attention".into()]);
    because(&|recipe| recipe.lora.targets = vec!["attention".into(), "feed_forward".into(), "modulation".into()]);
    because(&|recipe| recipe.model.num_heads = 2);
    because(&|recipe| recipe.model.num_layers = 1);
    insta::assert_snapshot!(refusals.join("\n"));
}

#[test]
fn the_factors_of_a_weight_are_those_of_the_file() {
    let lora = LoraFile::open("../../tests/fixtures/oracle/lora/cogvideox_5b_tiny/attnff_r4_a8/peft".into()).unwrap();
    let specs = recipe::param_specs(WeightsSource::open(&base()).unwrap().model().unwrap());
    let of = |name: &str| specs.iter().find(|spec| spec.name == name).unwrap();
    let mut files = Files::default();
    let factors = lora.factors(of("blocks.1.mlp.down.weight"), &mut files).unwrap().unwrap();
    assert_eq!((factors.rank, factors.down.len(), factors.up.len(), factors.scale), (4, 4 * 256, 64 * 4, 2.0));
    let stored = &lora.layers["transformer_blocks.1.ff.net.2"].down;
    let wanted: Vec<f32> = values(stored.dtype, &files.read_all(stored).unwrap()).map(|value| value as f32).collect();
    assert_eq!(factors.down, wanted);
    assert_eq!(lora.factors(of("blocks.1.norm1.linear.weight"), &mut files).unwrap(), None);
}

#[test]
fn an_adapter_is_identified_by_its_bytes() {
    let (_keep, folder) = temp();
    let path = write(&folder, LoraForm::Kohya, &[]);
    let (lora, sum) = LoraFile::open_verified(&path).unwrap();
    assert_eq!(lora, LoraFile::open(&path).unwrap());
    assert_eq!(LoraFile::open_verified(&path).unwrap().1, sum);
    let more = ["down", "up"].map(|factor| format!("lora_unet__transformer_blocks_0_attn1_to_v.lora_{factor}.weight"));
    write(&folder, LoraForm::Kohya, &[(&more[0], &[3, 64]), (&more[1], &[64, 3])]);
    assert_ne!(LoraFile::open_verified(&path).unwrap().1, sum);
}

/// Tensors of float32: the name, the shape and the bytes of each.
type Named = Vec<(String, Vec<usize>, Vec<u8>)>;

/// Returns the tensors of an adapter whose names are those of [`MODULES`] between a prefix and two ends.
fn named(prefix: &str, [down_end, up_end]: [&str; 2]) -> Named {
    let mut tensors = Named::new();
    for (n, (module, input, output)) in MODULES.iter().enumerate() {
        let layer = if prefix.ends_with('_') { module.replace('.', "_") } else { (*module).to_owned() };
        tensors.push((format!("{prefix}{layer}{down_end}"), vec![RANK, *input], bytes(n, RANK * input)));
        tensors.push((format!("{prefix}{layer}{up_end}"), vec![*output, RANK], bytes(n + 9, RANK * output)));
    }
    tensors
}

const PEFT_ENDS: [&str; 2] = [".lora_A.weight", ".lora_B.weight"];

fn save(path: &Utf8Path, tensors: &[(String, Vec<usize>, Vec<u8>)], metadata: &[(&str, &str)]) {
    let views = tensors
        .iter()
        .map(|(name, shape, data)| (name.as_str(), TensorView::new(Theirs::F32, shape.clone(), data).unwrap()));
    let metadata: HashMap<String, String> =
        metadata.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, safetensors::serialize(views, Some(metadata)).unwrap()).unwrap();
}

/// Returns the alpha of the only rank of an adapter, or the reason of its refusal.
fn alpha(path: &Utf8Path) -> Result<f64, String> {
    let lora = LoraFile::open(path).map_err(|failure| {
        assert_eq!(failure.code, ErrorCode::UnsupportedModel, "{failure}");
        failure.why
    })?;
    let alphas: Vec<f64> = lora.layers.values().map(|layer| layer.alpha).collect();
    assert!(alphas.iter().all(|alpha| *alpha == alphas[0]), "{alphas:?}");
    Ok(alphas[0])
}

#[test]
fn adapters_of_wrapped_models_and_of_other_programs_have_the_same_numbers() {
    let (_keep, folder) = temp();
    let expected = numbers(&LoraFile::open(&write(&folder, LoraForm::Diffusers, &[])).unwrap());
    let without_alpha = |lora: &LoraFile| -> Vec<(String, Vec<u8>, Vec<u8>)> {
        numbers(lora).into_iter().map(|(module, (down, up, _))| (module, down, up)).collect()
    };
    let expected: Vec<_> = expected.into_iter().map(|(module, (down, up, _))| (module, down, up)).collect();
    let forms = [
        ("module.", PEFT_ENDS, LoraForm::Diffusers),
        ("transformer._orig_mod.", PEFT_ENDS, LoraForm::Diffusers),
        ("model.diffusion_model.", PEFT_ENDS, LoraForm::Diffusers),
        ("base_model.model.transformer.", PEFT_ENDS, LoraForm::Peft),
        ("transformer.", [".lora_A.default_0.weight", ".lora_B.default_0.weight"], LoraForm::Diffusers),
        ("", [".lora.down.weight", ".lora.up.weight"], LoraForm::Diffusers),
        ("lycoris_", [".lora_down.weight", ".lora_up.weight"], LoraForm::Kohya),
    ];
    for (n, (prefix, ends, form)) in forms.into_iter().enumerate() {
        let path = folder.join(format!("form-{n}/some name.safetensors"));
        save(&path, &named(prefix, ends), &[]);
        for path in [path.as_path(), path.parent().unwrap()] {
            assert_eq!(crate::identify(path).unwrap().kind, SourceKind::Lora, "{path}");
            let lora = LoraFile::open(path).unwrap();
            assert_eq!(lora.form, Some(form), "{prefix}");
            assert!(without_alpha(&lora) == expected, "{prefix}");
        }
    }
}

#[test]
fn an_adapter_is_found_in_the_files_of_any_folder() {
    let (_keep, folder) = temp();
    let tensors = named("transformer.", PEFT_ENDS);
    let config = r#"{"lora_alpha": 6, "r": 3}"#;
    let open = |path: &Utf8Path| {
        assert_eq!(crate::identify(path).unwrap().kind, SourceKind::Lora, "{path}");
        assert!(inspect(path, false).unwrap().complete, "{path}");
        let lora = LoraFile::open(path).unwrap();
        (lora.layers.len(), lora.layers.values().all(|layer| layer.alpha == 6.0))
    };
    // A file that torch.save wrote, under the name of PEFT and alone.
    for name in ["bin/adapter_model.bin", "alone/my.bin"] {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        write_torch(&path, &tensors);
        fs::write(path.with_file_name(PEFT_CONFIG), config).unwrap();
        let beside = path.with_file_name(PEFT_CONFIG);
        for path in [path.as_path(), path.parent().unwrap(), beside.as_path()] {
            assert_eq!(open(path), (MODULES.len(), true), "{path}");
        }
    }
    // Two shards, between which the factors of a layer are divided.
    let sharded = folder.join("sharded");
    let file = |n: usize| format!("adapter_model-0000{n}-of-00002.safetensors");
    let (first, second) = tensors.split_at(3);
    save(&sharded.join(file(1)), first, &[]);
    save(&sharded.join(file(2)), second, &[]);
    fs::write(sharded.join(PEFT_CONFIG), config).unwrap();
    let refused = LoraFile::open(&sharded.join(file(2))).unwrap_err();
    assert!(refused.code == ErrorCode::UnsupportedModel && refused.why.contains("one of 2 shards"), "{refused}");
    let places = first.iter().map(|(name, ..)| (name, file(1))).chain(second.iter().map(|(name, ..)| (name, file(2))));
    let places: BTreeMap<&String, String> = places.collect();
    let index = sharded.join("adapter_model.safetensors.index.json");
    fs::write(&index, serde_json::json!({ "weight_map": places }).to_string()).unwrap();
    for path in [&sharded, &index, &sharded.join(file(1))] {
        assert_eq!(open(path), (MODULES.len(), true), "{path}");
    }
    // Files of macOS are no candidates, and two adapters are.
    let two = folder.join("two");
    save(&two.join("one.safetensors"), &tensors, &[("lora_config", config)]);
    fs::write(two.join("._one.safetensors"), "Mac OS X").unwrap();
    assert_eq!(open(&two), (MODULES.len(), true));
    save(&two.join("other.safetensors"), &tensors, &[]);
    let several = LoraFile::open(&two).unwrap_err();
    assert!(several.why.contains("one.safetensors, other.safetensors"), "{several}");
    // Norms that were trained too.
    let norms = folder.join("norms");
    save(&norms.join(DIFFUSERS_FILE), &tensors, &[("lora_config", config)]);
    assert_eq!(open(&norms), (MODULES.len(), true));
    save(&norms.join("norm_state_dict.safetensors"), &tensors, &[]);
    assert!(LoraFile::open(&norms).unwrap_err().why.contains("norm"));
}

#[test]
fn a_model_beside_which_an_adapter_lies_is_a_model() {
    let (_keep, folder) = temp();
    let model = folder.join("model");
    copy_folder(&base(), &model);
    save(&model.join(KOHYA_FILE), &named("transformer.", PEFT_ENDS), &[]);
    fs::write(model.join(PEFT_CONFIG), r#"{"lora_alpha": 6}"#).unwrap();
    assert_eq!(crate::identify(&model).unwrap().kind, SourceKind::Diffusers);
    assert!(inspect(&model, false).unwrap().complete);
    assert_eq!(crate::identify(&model.join(KOHYA_FILE)).unwrap().kind, SourceKind::Lora);
    // A file with both is neither.
    let both = folder.join("both");
    fs::create_dir(&both).unwrap();
    fs::copy(base().join("config.json"), both.join("config.json")).unwrap();
    let mut tensors = named("", PEFT_ENDS);
    tensors.push(("proj_out.base_layer.weight".into(), vec![16, 64], bytes(0, 16 * 64)));
    save(&both.join("diffusion_pytorch_model.safetensors"), &tensors, &[]);
    let failure = WeightsSource::open(&both).unwrap_err();
    assert!(failure.code == ErrorCode::UnsupportedModel && failure.why.contains("not merged"), "{failure}");
}

#[test]
fn the_adapters_of_other_methods_are_identified_and_refused_by_name() {
    let (_keep, folder) = temp();
    let path = folder.join("style.safetensors");
    let layer = "lora_unet__transformer_blocks_0_attn1_to_q";
    let tensor = |end: &str| (format!("{layer}.{end}"), vec![4], bytes(0, 4));
    save(&path, &["hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"].map(tensor), &[]);
    let seen = inspect(&path, false).unwrap();
    assert_eq!((seen.kind, seen.complete), (SourceKind::Lora, false));
    assert!(seen.why.unwrap().why.contains("LoHa"));
    let request = ConvertRequest::new(&path, folder.join("x"), Form::Lora(LoraForm::Peft));
    assert!(go(&request).unwrap_err().why.contains("LoHa"));
    // A convolution.
    let mut tensors = named("transformer.", PEFT_ENDS);
    tensors.push(("transformer.patch_embed.proj.lora_A.weight".into(), vec![2, 4, 2, 2], bytes(0, 32)));
    tensors.push(("transformer.patch_embed.proj.lora_B.weight".into(), vec![64, 2, 1, 1], bytes(0, 128)));
    save(&path, &tensors, &[]);
    assert!(LoraFile::open(&path).unwrap_err().why.contains("convolution"));
}

#[test]
fn alpha_comes_from_the_header_or_from_the_configuration_of_peft() {
    let (_keep, folder) = temp();
    let path = folder.join("a/my.safetensors");
    let config = folder.join("a").join(PEFT_CONFIG);
    let tensors = named("transformer.", PEFT_ENDS);
    let of = |metadata: &[(&str, &str)], beside: Option<&str>| {
        save(&path, &tensors, metadata);
        match beside {
            Some(text) => fs::write(&config, text).unwrap(),
            None => drop(fs::remove_file(&config)),
        }
        alpha(&path)
    };
    let of_diffusers = r#"{"transformer.lora_alpha": 6, "transformer.r": 3}"#;
    let plain = r#"{"lora_alpha": 6, "r": 3}"#;
    assert_eq!(of(&[(METADATA, of_diffusers)], None), Ok(6.0));
    assert_eq!(of(&[(METADATA, plain)], None), Ok(6.0));
    assert_eq!(of(&[("lora_config", plain)], None), Ok(6.0));
    assert_eq!(of(&[], Some(plain)), Ok(6.0));
    assert_eq!(of(&[(METADATA, of_diffusers), ("lora_config", plain)], Some(plain)), Ok(6.0));
    // Another program's keys, and the configuration of a text encoder.
    assert_eq!(of(&[("lora_config", r#"{"rank": 3, "alpha": 9}"#)], None), Ok(3.0));
    assert_eq!(of(&[(METADATA, r#"{"text_encoder.lora_alpha": 9}"#)], None), Ok(3.0));
    let refused = |metadata: &[(&str, &str)], beside: Option<&str>, word: &str| {
        let why = of(metadata, beside).unwrap_err();
        assert!(why.contains(word), "{why}");
    };
    refused(&[("lora_config", plain)], Some(r#"{"lora_alpha": 12}"#), "12");
    refused(&[], Some(r#"{"lora_alpha": 6, "r": 8}"#), "rank 8");
    refused(&[], Some(r#"{"r": 3}"#), "no lora_alpha");
    refused(&[], Some(r#"{"lora_alpha": "16"}"#), "\"16\"");
    refused(&[], Some(r#"{"lora_alpha": 6, "use_rslora": "yes"}"#), "use_rslora");
    refused(&[(METADATA, "[]")], None, "JSON");
    for (keys, word) in [
        (r#""peft_type": "BOFT""#, "BOFT"),
        (r#""init_lora_weights": "pissa_niter_4""#, "pissa"),
        (r#""init_lora_weights": "lora_ga""#, "lora_ga"),
        (r#""use_dora": true"#, "use_dora"),
        (r#""use_qalora": true"#, "use_qalora"),
        (r#""alora_invocation_tokens": [1]"#, "alora"),
    ] {
        refused(&[], Some(&format!(r#"{{"lora_alpha": 6, {keys}}}"#)), word);
    }
    let harmless = r#"{"lora_alpha": 6, "init_lora_weights": "gaussian", "use_dora": false, "loftq_config": {}}"#;
    assert_eq!(of(&[], Some(harmless)), Ok(6.0));
    // The configuration beside belongs to PEFT's file.
    save(&folder.join("a").join(PEFT_FILE), &tensors, &[]);
    assert_eq!(of(&[], Some(plain)), Ok(3.0));
    assert_eq!(alpha(&folder.join("a")), Ok(6.0));
}

#[test]
fn alpha_tensors_of_every_type_are_read_and_those_that_contradict_a_configuration_are_refused() {
    let (_keep, folder) = temp();
    let path = folder.join("a.safetensors");
    let tensors = named("lora_unet_", [".lora_down.weight", ".lora_up.weight"]);
    let alphas: [(Theirs, Vec<u8>); 3] = [
        (Theirs::I64, 6i64.to_le_bytes().to_vec()),
        (Theirs::BF16, half::bf16::from_f32(6.0).to_le_bytes().to_vec()),
        (Theirs::F32, 6f32.to_le_bytes().to_vec()),
    ];
    for (dtype, bytes) in &alphas {
        for shape in [vec![], vec![1]] {
            let factors = tensors
                .iter()
                .map(|(name, shape, data)| (name.clone(), TensorView::new(Theirs::F32, shape.clone(), data).unwrap()));
            let alphas = MODULES.iter().map(|(module, ..)| {
                let name = format!("lora_unet_{}.alpha", module.replace('.', "_"));
                (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
            });
            fs::write(&path, safetensors::serialize(factors.chain(alphas), None).unwrap()).unwrap();
            assert_eq!(alpha(&path), Ok(6.0), "{dtype:?} {shape:?}");
            assert_eq!(LoraFile::open(&path).unwrap().note(), None);
            assert_eq!(WeightsSource::open(&path).unwrap().tensors.len(), 3 * MODULES.len());
        }
    }
    fs::write(folder.join(PEFT_CONFIG), r#"{"lora_alpha": 8}"#).unwrap();
    assert!(alpha(&path).unwrap_err().contains("alpha tensor"));
}

#[test]
fn an_adapter_without_alpha_gives_a_note() {
    let (_keep, folder) = temp();
    let path = folder.join("a.safetensors");
    save(&path, &named("transformer.", PEFT_ENDS), &[("ss_network_alpha", "64")]);
    let lora = LoraFile::open(&path).unwrap();
    let note = lora.note().unwrap();
    assert!(note.contains("alpha = rank 3") && note.contains("ss_network_alpha = 64"), "{note}");
    let mut request = ConvertRequest::new(base(), folder.join("x"), Form::Internal);
    request.merge = Some(path.clone());
    let plan = plan_conversion(&request).unwrap();
    assert!(plan.report.notes.iter().any(|other| other == note), "{:?}", plan.report.notes);
    let convert = ConvertRequest::new(&path, folder.join("y"), Form::Lora(LoraForm::Peft));
    assert!(plan_conversion(&convert).unwrap().report.notes.iter().any(|other| other == note));
    // The result has the alpha that was assumed.
    go(&convert).unwrap();
    assert_eq!(LoraFile::open(&convert.target).unwrap().note(), None);
    let attention: Named = named("", PEFT_ENDS).into_iter().filter(|(name, ..)| name.contains(".attn1.")).collect();
    save(&path, &attention, &[]);
    assert!(LoraFile::open(&path).unwrap().note().unwrap().contains("SAT"));
}

#[test]
fn factors_that_are_not_finite_are_refused_unless_the_request_allows_them() {
    let (_keep, folder) = temp();
    let path = folder.join("a.safetensors");
    let mut tensors = named("transformer.", PEFT_ENDS);
    tensors[0].2[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    tensors[0].2[8..12].copy_from_slice(&f32::INFINITY.to_le_bytes());
    save(&path, &tensors, &[]);
    let lora = LoraFile::open(&path).unwrap();
    let failure = lora.check_finite().unwrap_err();
    let word = format!("{} (2)", tensors[0].0);
    assert!(failure.code == ErrorCode::NotFinite && failure.why.contains(&word), "{failure}");
    let specs = param_specs(WeightsSource::open(&base()).unwrap().model().unwrap());
    let query = specs.iter().find(|spec| spec.name == "blocks.0.attn.q.weight").unwrap();
    assert_eq!(lora.factors(query, &mut Files::default()).unwrap_err().code, ErrorCode::NotFinite);
    let plain = ConvertRequest::new(base(), folder.join("x"), Form::Internal);
    let merging = ConvertRequest { merge: Some(path.clone()), ..plain };
    let converting = ConvertRequest::new(&path, folder.join("x"), Form::Lora(LoraForm::Kohya));
    for request in [merging, converting] {
        assert_eq!(go(&request).unwrap_err().code, ErrorCode::NotFinite);
        assert!(!folder.join("x").exists());
        let done = go(&ConvertRequest { allow_not_finite: true, force: true, ..request }).unwrap();
        assert_eq!(done.not_finite.len(), 1);
        fs::remove_dir_all(folder.join("x")).unwrap();
    }
}
