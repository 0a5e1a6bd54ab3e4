//! Compares Hunyuan's VAE with numbers recorded from diffusers: `opensora_encoders/vae_hunyuan`.

#![allow(clippy::unwrap_used, reason = "a failed unwrap reports its line")]

#[path = "../../../tests/oracle/device.rs"]
mod device;
#[path = "../../../tests/oracle/mod.rs"]
mod oracle;
mod support;

use camino::{Utf8Path, Utf8PathBuf};
use device::{device, there};
use encoders::{HunyuanVae, TileAxis, VideoTiling};
use failure::ErrorCode;
use serde_json::Value;
use support::{header, load, near};
use tch::{Device, Kind, Tensor};

fn folders() -> Vec<Utf8PathBuf> {
    let has = |folder: &Utf8Path| folder.file_name() == Some("vae_hunyuan") && folder.join("vae/config.json").is_file();
    oracle::entries("opensora_encoders", "vae_hunyuan/", has)
}

fn open(folder: &Utf8Path, kind: Kind) -> HunyuanVae {
    HunyuanVae::open(&folder.join("vae"), kind, device()).unwrap_or_else(|failure| panic!("{failure}"))
}

/// Returns the tiling of a case: tile and stride in pixels and in frames.
fn tiling(case: &Value) -> VideoTiling {
    let axis = |key: &str| {
        let [size, stride] = [0, 1].map(|at| case["tiling"][key][at].as_u64().map(|n| n as usize));
        Some(TileAxis { size: size?, stride: stride? })
    };
    VideoTiling { space: axis("spatial").map(|axis| [axis; 2]), time: axis("temporal") }
}

fn follow(folder: &Utf8Path, kind: Kind) {
    let path = folder.join("encode_decode.safetensors");
    let recorded = load(&path);
    let mut vae = open(folder, kind);
    let config = header(&path, "config");
    let cases = config["cases"].as_array().filter(|cases| !cases.is_empty()).expect("the file has cases");
    let scale = vae.latent_scale();
    for case in cases {
        let name = case["name"].as_str().expect("a case has a name");
        let tensor = |part: &str| &recorded[&format!("{name}.{part}")];
        vae.tiling(tiling(case)).unwrap_or_else(|failure| panic!("{failure}"));
        if case["kind"] == "decode" {
            let latent = there(tensor("in.latent"));
            let video = vae.decode(&scale.to_vae(&latent)).unwrap_or_else(|failure| panic!("{failure}"));
            near(&format!("{name} video"), &video, tensor("out.video"));
            assert_eq!(vae.config().frames(latent.size()[2] as usize) as i64, video.size()[2]);
            continue;
        }
        let video = there(tensor("in.video"));
        let moments = vae.encode(&video).unwrap_or_else(|failure| panic!("{failure}"));
        near(&format!("{name} mean"), &moments.mean, tensor("out.mean"));
        near(&format!("{name} logvar"), &moments.logvar, tensor("out.logvar"));
        let noise = there(tensor("in.noise")).to_kind(kind);
        near(&format!("{name} latent"), &scale.to_network(&moments.sample(&noise)), tensor("out.latent"));
        assert_eq!(vae.config().latent_frames(video.size()[2] as usize) as i64, moments.mean.size()[2]);
    }
}

#[test]
fn oracle_hunyuans_vae_encodes_and_decodes_as_diffusers() {
    for folder in folders() {
        follow(&folder, Kind::Float);
    }
}

#[test]
fn oracle_hunyuans_vae_in_bf16_is_near_the_recorded_results() {
    for folder in folders() {
        follow(&folder, Kind::BFloat16);
    }
}

#[test]
fn shapes_and_tiles_that_do_not_fit_are_refused() {
    for folder in folders() {
        let mut vae = open(&folder, Kind::Float);
        let zeros = |shape: &[i64]| Tensor::zeros(shape, (Kind::Float, Device::Cpu));
        assert_eq!(vae.encode(&zeros(&[1, 4, 5, 16, 16])).unwrap_err().code, ErrorCode::InvalidArgument);
        assert_eq!(vae.decode(&zeros(&[1, 3, 2, 2])).unwrap_err().code, ErrorCode::TensorMismatch);
        for (size, stride) in [(36, 24), (32, 20), (24, 32), (32, 0)] {
            let tiles = VideoTiling { space: Some([TileAxis { size, stride }; 2]), time: None };
            assert_eq!(vae.tiling(tiles).unwrap_err().code, ErrorCode::InvalidArgument, "{size} {stride}");
        }
        assert_eq!(HunyuanVae::open(&folder, Kind::Float, Device::Cpu).unwrap_err().code, ErrorCode::NotFound);
    }
}
