//! Conversions of networks of Wan.

use super::*;
use crate::fixtures::temp;
use crate::lora::{LoraFile, LoraForm};
use recipe::families::wan::{Layout, WanModel, file_tensor, param_specs as specs_of};
use recipe::{ConditionKind, FamilyName, param_specs};

const FIXTURES: &str = "../../tests/fixtures/oracle/wan";

/// Writes a small network of Wan with heads of the published width as a file of a layout.
fn release(path: &Utf8Path, layout: Layout, prefix: &str) -> BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)> {
    let published = recipe::families::wan::Release::TextToVideo1_3B.model();
    let small = WanModel { num_layers: 2, num_heads: 1, ffn_dim: 24, text_dim: 8, freq_dim: 16, ..published };
    let value = |n: usize| (n as f32).to_le_bytes();
    let tensors = specs_of(&small).into_iter().map(|spec| {
        let values: Vec<u8> = (0..spec.len() as usize).flat_map(value).collect();
        (spec.name, (Dtype::F32, spec.shape, values))
    });
    let ours: BTreeMap<_, _> = tensors.collect();
    let theirs = ours
        .iter()
        .map(|(name, tensor)| (format!("{prefix}{}", file_tensor(layout, name).unwrap().name), tensor.clone()));
    write_tensors(path, &theirs.collect());
    ours
}

#[test]
fn a_folder_of_diffusers_is_the_same_after_both_directions() {
    let (_keep, folder) = temp();
    for name in ["t2v_tiny", "t2v_low_tiny", "i2v22_tiny", "ti2v5b_tiny"] {
        let theirs = Utf8Path::new(FIXTURES).join(name).join("transformer");
        let (inner, back) = (folder.join(format!("{name}-inner")), folder.join(format!("{name}-back")));
        go(&ConvertRequest::new(&theirs, &inner, Form::Internal)).unwrap();
        go(&ConvertRequest::new(&inner, &back, Form::Diffusers)).unwrap();
        assert!(of(&theirs) == of(&back), "{name}: a tensor changed");
        let config = |folder: &Utf8Path| fs::read_to_string(folder.join("config.json")).unwrap();
        assert_eq!(config(&theirs), config(&back));
        let model = WeightsSource::open(&inner).unwrap().model().unwrap().clone();
        assert_eq!((model.family.name(), model.latent_scale), (FamilyName::Wan, 1.0));
        let kind = match name {
            "i2v22_tiny" => ConditionKind::ImageClip,
            "ti2v5b_tiny" => ConditionKind::FirstFrame,
            _ => ConditionKind::None,
        };
        assert_eq!(model.condition(), Some(kind), "{name}");
        let ours = of(&inner);
        assert!(param_specs(&model).iter().all(|spec| ours[&spec.name].1 == spec.shape));
    }
}

#[test]
fn original_releases_are_read_with_and_without_the_prefix_of_comfyui() {
    let (_keep, folder) = temp();
    for (name, layout, prefix) in [
        ("original", Layout::Original, ""),
        ("comfy", Layout::ComfyUi, ""),
        ("wrapped", Layout::Original, "_orig_mod."),
    ] {
        let file = folder.join(format!("{name}.safetensors"));
        let ours = release(&file, layout, prefix);
        let inner = folder.join(name);
        go(&ConvertRequest::new(&file, &inner, Form::Internal)).unwrap();
        assert!(of(&inner) == ours, "{name}");
        let source = WeightsSource::open(&inner).unwrap();
        let model = source.model().unwrap();
        assert_eq!((model.num_heads, model.head_dim, model.text_len), (1, 128, 512));
        assert_eq!(source.family.unwrap().name(), "Wan");
    }
}

#[test]
fn networks_that_cannot_be_trained_are_refused_by_the_key() {
    let (_keep, folder) = temp();
    for name in ["i2v21_tiny", "flf2v_tiny"] {
        let theirs = Utf8Path::new(FIXTURES).join(name).join("transformer");
        let refused = go(&ConvertRequest::new(&theirs, folder.join(name), Form::Internal)).unwrap_err();
        assert!(refused.why.contains("image_dim"), "{refused}");
    }
    // No condition has 20 channels besides a latent of 16.
    let copy = folder.join("copy");
    fs::create_dir(&copy).unwrap();
    let from = Utf8Path::new(FIXTURES).join("i2v22_tiny/transformer");
    for file in from.read_dir_utf8().unwrap().map(|entry| entry.unwrap().into_path()) {
        let bytes = fs::read(&file).unwrap();
        fs::write(copy.join(file.file_name().unwrap()), bytes).unwrap();
    }
    let config = fs::read_to_string(copy.join("config.json")).unwrap();
    fs::write(copy.join("config.json"), config.replace("\"in_channels\": 36", "\"in_channels\": 20")).unwrap();
    let refused = go(&ConvertRequest::new(&copy, folder.join("out"), Form::Internal)).unwrap_err();
    assert!(refused.why.contains("in_channels, out_channels = [20, 16]"), "{refused}");
    let layer = ConvertRequest {
        layer: Some(recipe::Layer::TttMlp),
        ..ConvertRequest::new(Utf8Path::new(FIXTURES).join("t2v_tiny/transformer"), folder.join("ttt"), Form::Internal)
    };
    assert!(go(&layer).unwrap_err().why.contains("TTT layers"));
}

#[test]
fn adapters_of_diffusers_comfyui_and_kohya_have_the_same_layers_and_become_each_other() {
    let (_keep, folder) = temp();
    let adapter = Utf8Path::new(FIXTURES).join("lora/t2v_r4_a8");
    let form = |name: &str| match name {
        "diffusers" => adapter.join(name),
        file => adapter.join(format!("{file}.safetensors")),
    };
    let layers = |path: &Utf8Path| {
        let lora = LoraFile::open(path).unwrap();
        let mut files = Files::default();
        let mut read = |tensor: &StoredTensor| files.read_all(tensor).unwrap();
        let of = lora.layers.iter().map(|(module, layer)| (module.clone(), (read(&layer.down), read(&layer.up))));
        of.collect::<BTreeMap<_, _>>()
    };
    let wanted = layers(&form("diffusers"));
    assert!(wanted.keys().all(|module| module.starts_with("blocks.")), "{adapter}");
    assert!(layers(&form("comfy")) == wanted && layers(&form("kohya")) == wanted, "{adapter}");
    for (from, to, like) in [("diffusers", LoraForm::Kohya, "kohya"), ("kohya", LoraForm::Diffusers, "diffusers")] {
        let target = folder.join(like);
        go(&ConvertRequest::new(form(from), &target, Form::Lora(to))).unwrap();
        let names = |path: &Utf8Path| {
            WeightsSource::open(path).unwrap().tensors.into_keys().collect::<std::collections::BTreeSet<_>>()
        };
        assert_eq!(names(&target), names(&form(like)), "{adapter}");
        assert!(layers(&target) == wanted, "{adapter}");
    }
}
