//! Compares VAE and text encoder with numbers recorded from diffusers and transformers.
//!
//! Reads `tests/fixtures/oracle`, or the folder in `VIDTUI_ORACLE`: every `vae/*/encode_decode.safetensors` beside a `vae/`, every
//! `t5/*/encode.safetensors` beside a `text_encoder/`, and every `i2v_training/*.safetensors` with moments. Cases and sizes come from
//! the files.

#[path = "../../../tests/oracle/device.rs"]
mod device;
#[path = "../../../tests/oracle/mod.rs"]
mod oracle;
mod support;

use camino::{Utf8Path, Utf8PathBuf};
use device::{device, there};
use encoders::{T5Encoder, TileSize, Vae};
use serde_json::Value;
use support::{Tensors, apart, header, load};
use tch::{Device, Kind, Tensor};

/// The largest deviation in fp32, relative to the largest magnitude. The recorded results differ from fp64 by up to 2e-6 (VAE) and
/// 7e-6 (T5, 226 tokens).
const FP32: f64 = 1e-5;

/// The same for the VAE on a GPU: cuDNN rounds the factors of convolutions to TF32, which has 10 bits of mantissa, as PyTorch does by
/// default.
const TF32: f64 = 5e-3;

/// The largest norm of the deviation in bf16, relative to the norm: 8 bits of mantissa, rounded in some thirty layers.
const BF16: f64 = 0.05;

fn holds(where_: &str, got: &Tensor, want: &Tensor, fp32: f64) {
    let got = &got.to_device(Device::Cpu);
    let (error, limit) = match got.kind() {
        Kind::BFloat16 => (((got.to_kind(Kind::Float) - want).norm() / want.norm()).double_value(&[]), BF16),
        _ => (apart(got, want), fp32),
    };
    assert!(error < limit, "{where_}: differs by {error:e}, limit {limit:e}");
    println!("{where_}: {:?} {error:e}", got.kind());
}

/// Returns the limit of the VAE in fp32.
fn vae_fp32() -> f64 {
    if device() == Device::Cpu { FP32 } else { TF32 }
}

/// Returns the tiling of a case: the arguments of diffusers' `enable_tiling`, with its defaults.
fn tiling(vae: &Vae, case: &Value) -> Option<TileSize> {
    let given = case["tiling"].as_object()?;
    let default = TileSize::of(vae.config());
    let size = |key: &str, or: usize| given.get(key).and_then(Value::as_u64).map_or(or, |n| n as usize);
    let overlap = |key: &str, or: f64| given.get(key).and_then(Value::as_f64).unwrap_or(or);
    Some(TileSize {
        height: size("tile_sample_min_height", default.height),
        width: size("tile_sample_min_width", default.width),
        overlap_height: overlap("tile_overlap_factor_height", default.overlap_height),
        overlap_width: overlap("tile_overlap_factor_width", default.overlap_width),
    })
}

fn follow_vae(folder: &Utf8Path, kind: Kind) {
    let path = folder.join("encode_decode.safetensors");
    let recorded = load(&path);
    let mut vae = Vae::open(&folder.join("vae"), kind, device()).unwrap_or_else(|f| panic!("{f}"));
    let cases = header(&path, "cases");
    let cases = cases.as_array().filter(|cases| !cases.is_empty()).unwrap_or_else(|| panic!("{path} has no cases"));
    for case in cases {
        let name = case["name"].as_str().expect("a case has a name");
        let tensor = |part: &str| &recorded[&format!("{name}.{part}")];
        vae.tiling(tiling(&vae, case)).unwrap_or_else(|f| panic!("{folder} {name}: {f}"));
        let place = |part: &str| format!("{folder} {name} {part}");
        match case["kind"].as_str() {
            Some("encode") => {
                let moments = vae.encode(&there(tensor("in.video"))).unwrap_or_else(|f| panic!("{name}: {f}"));
                holds(&place("mean"), &moments.mean, tensor("out.mean"), vae_fp32());
                holds(&place("logvar"), &moments.logvar, tensor("out.logvar"), vae_fp32());
                let frames = tensor("in.video").size()[2] as usize;
                assert_eq!(vae.config().latent_frames(frames) as i64, tensor("out.mean").size()[2]);
            }
            Some("decode") => {
                let video = vae.decode(&there(tensor("in.latent"))).unwrap_or_else(|f| panic!("{name}: {f}"));
                holds(&place("video"), &video, tensor("out.video"), vae_fp32());
                let frames = tensor("in.latent").size()[2] as usize;
                assert_eq!(vae.config().frames(frames) as i64, tensor("out.video").size()[2]);
            }
            other => panic!("{name} is of kind {other:?}"),
        }
    }
}

fn follow_t5(folder: &Utf8Path, kind: Kind) {
    let recorded: Tensors = load(&folder.join("encode.safetensors"));
    let t5 = T5Encoder::open(&folder.join("text_encoder"), kind, device()).unwrap_or_else(|f| panic!("{f}"));
    let mut compared = 0;
    for (name, ids) in recorded.iter().filter_map(|(k, v)| Some((k.strip_suffix(".in.input_ids")?, v))) {
        let states = t5.encode(&there(ids)).unwrap_or_else(|f| panic!("{name}: {f}"));
        holds(&format!("{folder} {name}"), &states, &recorded[&format!("{name}.out.hidden_states")], FP32);
        compared += 1;
    }
    assert!(compared > 0, "{folder} has no case");
}

/// Returns the video `[B, 3, F, H, W]` whose moments a training step has under a name; `None` if the step lacks it.
fn encoded(moments: &str, step: &Tensors) -> Option<Tensor> {
    let recorded = |name: &str| step.get(name).map(Tensor::shallow_clone);
    let pixels = || recorded("in.video_u8").map(|u8s| (u8s.to_kind(Kind::Float) / 127.5 - 1.0).transpose(1, 2));
    match moments {
        // The image has noise, so it is recorded in fp32.
        "mid.image_moments" => recorded("mid.noisy_image"),
        // Without noise, the masked pixels are black and the others are unchanged.
        "mid.masked_moments" if !step.contains_key("in.reference_noise") => {
            let mask = step.get("in.mask")?.transpose(1, 2).to_kind(Kind::Bool);
            Some(pixels()?.masked_fill(&mask, -1.0))
        }
        "mid.masked_moments" => recorded("mid.masked_video"),
        _ => pixels(),
    }
}

/// Encodes the pixels of a recorded training step with the VAE that its file names, and compares the moments.
fn follow_step(path: &Utf8Path) {
    let step = load(path);
    let recorded: Vec<_> = step.iter().filter(|(name, _)| name.ends_with("moments")).collect();
    if recorded.is_empty() {
        println!("not compared: {path} starts from latents");
        return;
    }
    let vae = header(path, "config")["vae"].as_str().map(|vae| oracle::root().join(vae));
    let Some(folder) = vae.filter(|folder| folder.join("config.json").is_file()) else {
        println!("not compared: the oracle lacks the VAE of {path}");
        return;
    };
    let vae = Vae::open(&folder, Kind::Float, device()).unwrap_or_else(|f| panic!("{f}"));
    for (name, moments) in recorded {
        let Some(video) = encoded(name, &step) else {
            println!("not compared: {path} has no pixels of {name}");
            continue;
        };
        let got = vae.encode(&there(&video)).unwrap_or_else(|f| panic!("{path} {name}: {f}"));
        // [B, 2C, T, h, w], not clamped.
        let halves = moments.chunk(2, 1);
        holds(&format!("{path} {name} mean"), &got.mean, &halves[0], vae_fp32());
        holds(&format!("{path} {name} logvar"), &got.logvar, &halves[1].clamp(-30.0, 20.0), vae_fp32());
    }
}

fn vaes() -> Vec<Utf8PathBuf> {
    let has = |folder: &Utf8Path| {
        folder.join("vae/config.json").is_file() && folder.join("encode_decode.safetensors").is_file()
    };
    oracle::entries("vae", "*/encode_decode.safetensors beside a vae/", has)
}

fn text_encoders() -> Vec<Utf8PathBuf> {
    let has = |folder: &Utf8Path| {
        folder.join("text_encoder/config.json").is_file() && folder.join("encode.safetensors").is_file()
    };
    oracle::entries("t5", "*/encode.safetensors beside a text_encoder/", has)
}

#[test]
fn oracle_vae_encodes_and_decodes_as_diffusers() {
    for folder in vaes() {
        follow_vae(&folder, Kind::Float);
    }
}

#[test]
fn oracle_training_steps_have_the_moments_of_their_pixels() {
    for path in oracle::entries("i2v_training", "*.safetensors", |path| path.extension() == Some("safetensors")) {
        follow_step(&path);
    }
}

#[test]
fn oracle_t5_hidden_states_are_those_of_transformers() {
    for folder in text_encoders() {
        follow_t5(&folder, Kind::Float);
    }
}

#[test]
fn oracle_bf16_is_near_the_recorded_results() {
    for folder in vaes() {
        follow_vae(&folder, Kind::BFloat16);
    }
    for folder in text_encoders() {
        follow_t5(&folder, Kind::BFloat16);
    }
}
