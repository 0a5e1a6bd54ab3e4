//! Compares VAE and text encoder with numbers recorded from diffusers and transformers.
//!
//! Reads `tests/fixtures/oracle`, or the folder in `VIDTUI_ORACLE`: every `vae/*/encode_decode.safetensors` beside a `vae/`, and every
//! `t5/*/encode.safetensors` beside a `text_encoder/`. Cases and sizes come from the files.

#[path = "../../../tests/oracle/mod.rs"]
mod oracle;
mod support;

use camino::{Utf8Path, Utf8PathBuf};
use encoders::{T5Encoder, TileSize, Vae};
use serde_json::Value;
use support::{Tensors, apart, cases, load};
use tch::{Device, Kind, Tensor};

/// The largest deviation, relative to the largest magnitude.
const VAE: f64 = 1e-5;
const T5: f64 = 5e-5;

/// The largest norm of the deviation in bf16, relative to the norm: 8 bits of mantissa, rounded in some thirty layers.
const BF16: f64 = 0.05;

fn holds(where_: &str, got: &Tensor, want: &Tensor, limit: f64) {
    let (error, limit) = match got.kind() {
        Kind::BFloat16 => (((got.to_kind(Kind::Float) - want).norm() / want.norm()).double_value(&[]), BF16),
        _ => (apart(got, want), limit),
    };
    assert!(error < limit, "{where_}: differs by {error:e}, limit {limit:e}");
    println!("{where_}: {:?} {error:e}", got.kind());
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
    let mut vae = Vae::open(&folder.join("vae"), kind, Device::Cpu).unwrap_or_else(|f| panic!("{f}"));
    let cases = cases(&path);
    assert!(!cases.is_empty(), "{path} has no cases");
    for case in &cases {
        let name = case["name"].as_str().expect("a case has a name");
        let tensor = |part: &str| &recorded[&format!("{name}.{part}")];
        vae.tiling(tiling(&vae, case)).unwrap_or_else(|f| panic!("{folder} {name}: {f}"));
        let place = |part: &str| format!("{folder} {name} {part}");
        match case["kind"].as_str() {
            Some("encode") => {
                let moments = vae.encode(tensor("in.video")).unwrap_or_else(|f| panic!("{name}: {f}"));
                holds(&place("mean"), &moments.mean, tensor("out.mean"), VAE);
                holds(&place("logvar"), &moments.logvar, tensor("out.logvar"), VAE);
                let frames = tensor("in.video").size()[2] as usize;
                assert_eq!(vae.config().latent_frames(frames) as i64, tensor("out.mean").size()[2]);
            }
            Some("decode") => {
                let video = vae.decode(tensor("in.latent")).unwrap_or_else(|f| panic!("{name}: {f}"));
                holds(&place("video"), &video, tensor("out.video"), VAE);
                let frames = tensor("in.latent").size()[2] as usize;
                assert_eq!(vae.config().frames(frames) as i64, tensor("out.video").size()[2]);
            }
            other => panic!("{name} is of kind {other:?}"),
        }
    }
}

fn follow_t5(folder: &Utf8Path, kind: Kind) {
    let recorded: Tensors = load(&folder.join("encode.safetensors"));
    let t5 = T5Encoder::open(&folder.join("text_encoder"), kind, Device::Cpu).unwrap_or_else(|f| panic!("{f}"));
    let mut compared = 0;
    for (name, ids) in recorded.iter().filter_map(|(k, v)| Some((k.strip_suffix(".in.input_ids")?, v))) {
        let states = t5.encode(ids).unwrap_or_else(|f| panic!("{name}: {f}"));
        holds(&format!("{folder} {name}"), &states, &recorded[&format!("{name}.out.hidden_states")], T5);
        compared += 1;
    }
    assert!(compared > 0, "{folder} has no case");
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
