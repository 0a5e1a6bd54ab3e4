//! Reads recorded tensors and compares results with them.

#![allow(clippy::unwrap_used, reason = "a failed unwrap reports its line")]
#![allow(dead_code, reason = "every test program compiles this module, but not every one uses all of it")]

pub mod peak;

use camino::Utf8Path;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use std::collections::BTreeMap;
use tch::{Kind, Tensor};

/// Tensors by name.
pub type Tensors = BTreeMap<String, Tensor>;

/// Reads every tensor of a safetensors file.
pub fn load(path: &Utf8Path) -> Tensors {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let tensor = |name: &str, view: safetensors::tensor::TensorView<'_>| {
        let kind = match view.dtype() {
            Dtype::F32 => Kind::Float,
            Dtype::F64 => Kind::Double,
            Dtype::I64 => Kind::Int64,
            Dtype::U8 => Kind::Uint8,
            other => panic!("{path}: {name} is {other:?}"),
        };
        let shape: Vec<i64> = view.shape().iter().map(|&s| s as i64).collect();
        Tensor::from_data_size(view.data(), &shape, kind)
    };
    let file = SafeTensors::deserialize(&bytes).unwrap_or_else(|e| panic!("{path}: {e}"));
    file.iter().map(|(name, view)| (name.to_owned(), tensor(name, view))).collect()
}

/// Reads a JSON value in the header of a recorded file.
pub fn header(path: &Utf8Path, key: &str) -> Value {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap_or_else(|e| panic!("{path}: {e}"));
    let text = header.metadata().as_ref().and_then(|about| about.get(key)).cloned().unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{path}: {key}: {e}"))
}

/// Returns the largest difference relative to the largest magnitude.
pub fn apart(got: &Tensor, want: &Tensor) -> f64 {
    assert_eq!(got.size(), want.size(), "the shapes differ");
    let (got, want) = (got.to_kind(Kind::Double), want.to_kind(Kind::Double));
    (got - &want).abs().max().double_value(&[]) / want.abs().max().double_value(&[])
}

/// Returns the norm of the difference relative to the norm of `want`.
pub fn distance(got: &Tensor, want: &Tensor) -> f64 {
    assert_eq!(got.size(), want.size(), "the shapes differ");
    let (got, want) = (got.to_device(tch::Device::Cpu).to_kind(Kind::Double), want.to_kind(Kind::Double));
    ((got - &want).norm() / want.norm()).double_value(&[])
}

/// Checks that a result is as near to the recorded one as its kind allows: in fp32 to 1e-5, in bf16 to 8 bits of mantissa, rounded in
/// some thirty layers. Deviations are relative to the norm.
pub fn near(what: &str, got: &Tensor, want: &Tensor) {
    let (error, limit) = (distance(got, want), if got.kind() == Kind::BFloat16 { 0.05 } else { 1e-5 });
    println!("{what}: {:?} {error:e}", got.kind());
    assert!(error < limit, "{what}: differs by {error:e}, limit {limit:e}");
}

/// Writes a VAE with random weights: 16 latent channels, groups of 16 channels.
pub fn write_vae(folder: &Utf8Path, widths: &[usize], layers: usize) {
    let levels = widths.len();
    let config = serde_json::json!({
        "_class_name": "AutoencoderKLCogVideoX", "block_out_channels": widths, "layers_per_block": layers, "norm_num_groups": 16,
        "down_block_types": vec!["CogVideoXDownBlock3D"; levels], "up_block_types": vec!["CogVideoXUpBlock3D"; levels],
    });
    write_config(folder, &config);
    write_random(folder, &weights::VaeConfig::read(folder).unwrap().parameters());
}

/// Writes a small T5 v1.1 encoder with random weights.
pub fn write_t5(folder: &Utf8Path) {
    let config = serde_json::json!({
        "model_type": "t5", "feed_forward_proj": "gated-gelu", "d_model": 512, "d_kv": 64, "d_ff": 1024, "num_heads": 8,
        "num_layers": 6, "vocab_size": 1000,
    });
    write_config(folder, &config);
    write_random(folder, &weights::T5Config::read(folder).unwrap().parameters());
}

/// Writes Hunyuan's VAE with random weights.
pub fn write_hunyuan_vae(folder: &Utf8Path, widths: &[usize]) {
    let config = serde_json::json!({
        "_class_name": "AutoencoderKLHunyuanVideo", "block_out_channels": widths, "layers_per_block": 1, "norm_num_groups": 16,
    });
    write_config(folder, &config);
    let config: encoders::HunyuanVaeConfig = serde_json::from_value(config).unwrap();
    write_random(folder, &config.parameters());
}

/// Writes Wan's VAE with random weights.
pub fn write_wan_vae(folder: &Utf8Path, width: usize) {
    let config = serde_json::json!({ "_class_name": "AutoencoderKLWan", "base_dim": width, "num_res_blocks": 1 });
    write_config(folder, &config);
    let config: encoders::WanVaeConfig = serde_json::from_value(config).unwrap();
    write_random(folder, &config.parameters());
}

/// Writes the VAE of Open-Sora 1.2 with random weights, and returns the sizes of its VAE over pictures.
pub fn write_opensora_vae(folder: &Utf8Path, widths: &[usize], filters: usize) -> encoders::PictureVaeConfig {
    let temporal =
        serde_json::json!({ "type": "VAE_Temporal_SD", "filters": filters, "num_res_blocks": 1, "num_groups": 16 });
    let config = serde_json::json!({ "model_type": "VideoAutoencoderPipeline", "vae_temporal": temporal });
    let picture = serde_json::json!({ "block_out_channels": widths, "layers_per_block": 1, "norm_num_groups": 16 });
    write_config(folder, &config);
    let config: encoders::OpenSoraVaeConfig = serde_json::from_value(config).unwrap();
    let picture: encoders::PictureVaeConfig = serde_json::from_value(picture).unwrap();
    write_random(folder, &config.parameters(&picture));
    picture
}

fn write_config(folder: &Utf8Path, config: &Value) {
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
}

fn write_random(folder: &Utf8Path, table: &[weights::Parameter]) {
    let bytes = |parameter: &weights::Parameter| -> Vec<u8> {
        let count = parameter.shape.iter().product::<usize>();
        (0..count).flat_map(|i| ((i as f32 * 0.37).sin() * 0.05).to_le_bytes()).collect()
    };
    let data: Vec<Vec<u8>> = table.iter().map(bytes).collect();
    let views = table.iter().zip(&data).map(|(parameter, data)| {
        let view = safetensors::tensor::TensorView::new(Dtype::F32, parameter.shape.clone(), data).unwrap();
        (parameter.name.clone(), view)
    });
    std::fs::write(folder.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
}
