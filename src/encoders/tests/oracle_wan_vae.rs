//! Compares Wan's VAEs with numbers recorded from diffusers: every `wan/*/encode_decode.safetensors` beside a `vae/`.

#![allow(clippy::unwrap_used, reason = "a failed unwrap reports its line")]

#[path = "../../../tests/oracle/device.rs"]
mod device;
#[path = "../../../tests/oracle/mod.rs"]
mod oracle;
mod support;

use camino::{Utf8Path, Utf8PathBuf};
use device::{device, there};
use encoders::{TileAxis, VideoTiling, WanVae};
use failure::ErrorCode;
use serde_json::Value;
use support::{distance, header, load, near};
use tch::{Device, Kind, Tensor};

fn folders() -> Vec<Utf8PathBuf> {
    let has = |folder: &Utf8Path| {
        folder.join("vae/config.json").is_file() && folder.join("encode_decode.safetensors").is_file()
    };
    oracle::entries("wan", "*/encode_decode.safetensors beside a vae/", has)
}

fn open(folder: &Utf8Path, kind: Kind) -> WanVae {
    WanVae::open(&folder.join("vae"), kind, device()).unwrap_or_else(|failure| panic!("{failure}"))
}

/// Returns the tiling of a case: the arguments of diffusers' `enable_tiling`.
fn tiling(case: &Value) -> VideoTiling {
    let side = |side: &str| {
        let number = |key: &str| case["tiling"][format!("tile_sample_{key}_{side}")].as_u64().map(|n| n as usize);
        Some(TileAxis { size: number("min")?, stride: number("stride")? })
    };
    let space = side("height").zip(side("width")).map(|(height, width)| [height, width]);
    VideoTiling { space, time: None }
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
        let place = |part: &str| format!("{folder} {name} {part}");
        vae.tiling(tiling(case)).unwrap_or_else(|failure| panic!("{failure}"));
        if case["kind"] == "decode" {
            let latent = there(tensor("in.latent"));
            let video = vae.decode(&scale.to_vae(&latent)).unwrap_or_else(|failure| panic!("{failure}"));
            near(&place("video"), &video, tensor("out.video"));
            assert_eq!(vae.config().frames(latent.size()[2] as usize) as i64, video.size()[2]);
            continue;
        }
        let video = there(tensor("in.video"));
        let moments = vae.encode(&video).unwrap_or_else(|failure| panic!("{failure}"));
        near(&place("mean"), &moments.mean, tensor("out.mean"));
        near(&place("logvar"), &moments.logvar, tensor("out.logvar"));
        near(&place("normalised"), &scale.to_network(&moments.mean), tensor("out.normalised_mean"));
        assert_eq!(vae.config().latent_frames(video.size()[2] as usize) as i64, moments.mean.size()[2]);
    }
}

#[test]
fn oracle_wans_vaes_encode_and_decode_as_diffusers() {
    for folder in folders() {
        follow(&folder, Kind::Float);
    }
}

#[test]
fn oracle_wans_vaes_in_bf16_are_near_the_recorded_results() {
    for folder in folders() {
        follow(&folder, Kind::BFloat16);
    }
}

#[test]
fn later_frames_do_not_change_earlier_ones() {
    for folder in folders() {
        let vae = open(&folder, Kind::Float);
        let video = Tensor::rand([1, 3, 9, 32, 32], (Kind::Float, device())) * 2 - 1;
        let whole = vae.encode(&video).unwrap().mean;
        let start = vae.encode(&video.narrow(2, 0, 5)).unwrap().mean;
        assert!(distance(&whole.narrow(2, 0, 2), &start.to_device(Device::Cpu)) < 1e-6, "{folder}");
        let decoded = vae.decode(&whole).unwrap();
        let earlier = vae.decode(&whole.narrow(2, 0, 2)).unwrap();
        assert!(distance(&decoded.narrow(2, 0, 5), &earlier.to_device(Device::Cpu)) < 1e-6, "{folder}");
    }
}

#[test]
fn shapes_and_tiles_that_do_not_fit_are_refused() {
    for folder in folders() {
        let mut vae = open(&folder, Kind::Float);
        let zeros = |shape: &[i64]| Tensor::zeros(shape, (Kind::Float, Device::Cpu));
        for shape in [&[1, 3, 5, 36, 32][..], &[1, 4, 5, 32, 32], &[1, 3, 0, 32, 32], &[3, 5, 32, 32]] {
            assert_eq!(vae.encode(&zeros(shape)).unwrap_err().code, ErrorCode::InvalidArgument, "{shape:?}");
        }
        assert_eq!(vae.decode(&zeros(&[1, 3, 2, 2, 2])).unwrap_err().code, ErrorCode::TensorMismatch);
        let frames = VideoTiling { space: None, time: Some(TileAxis { size: 16, stride: 12 }) };
        assert_eq!(vae.tiling(frames).unwrap_err().code, ErrorCode::InvalidArgument);
        let other = WanVae::open(&folder, Kind::Float, Device::Cpu);
        assert_eq!(other.unwrap_err().code, ErrorCode::NotFound);
    }
}
