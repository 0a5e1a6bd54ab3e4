//! Compares the VAE of Open-Sora 1.2 with numbers recorded from its own classes: `opensora_encoders/vae_v12`.

#![allow(clippy::unwrap_used, reason = "a failed unwrap reports its line")]

#[path = "../../../tests/oracle/device.rs"]
mod device;
#[path = "../../../tests/oracle/mod.rs"]
mod oracle;
mod support;

use camino::{Utf8Path, Utf8PathBuf};
use device::{device, there};
use encoders::{OpenSoraVae, PictureVaeConfig};
use failure::ErrorCode;
use support::{header, load, near};
use tch::{Device, Kind, Tensor};

fn picture(folder: &Utf8Path) -> PictureVaeConfig {
    PictureVaeConfig::read(&folder.join("pixart_sigma_sdxlvae/vae")).unwrap()
}

fn folders() -> Vec<Utf8PathBuf> {
    let has = |folder: &Utf8Path| folder.file_name() == Some("vae_v12") && folder.join("config.json").is_file();
    oracle::entries("opensora_encoders", "vae_v12/", has)
}

fn open(folder: &Utf8Path, kind: Kind) -> OpenSoraVae {
    OpenSoraVae::open(folder, picture(folder), kind, device()).unwrap_or_else(|failure| panic!("{failure}"))
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
        vae.pieces_of(case["micro_frame_size"].as_u64().map(|frames| frames as usize));
        let video = there(tensor("in.video"));
        let [batch, frames] = [0, 2].map(|axis| video.size()[axis]);
        // The frames of all samples, one after another.
        let noise = there(tensor("in.noise_2d"));
        let [channels, height, width] = [1, 2, 3].map(|axis| noise.size()[axis]);
        let noise = noise.view([batch, frames, channels, height, width]).transpose(1, 2);
        let moments = vae.encode(&video, Some(&noise)).unwrap_or_else(|failure| panic!("{failure}"));
        near(&format!("{name} mean"), &moments.mean, tensor("out.mean"));
        near(&format!("{name} logvar"), &moments.logvar, tensor("out.logvar"));
        let noise = there(tensor("in.noise")).to_kind(kind);
        near(&format!("{name} latent"), &scale.to_network(&moments.sample(&noise)), tensor("out.latent"));
        assert_eq!(vae.config().latent_frames(frames as usize) as i64, moments.mean.size()[2]);
        let latent = scale.to_vae(&there(tensor("in.latent")));
        let decoded = vae.decode(&latent, frames as usize).unwrap_or_else(|failure| panic!("{failure}"));
        near(&format!("{name} video"), &decoded, tensor("out.video"));
    }
}

#[test]
fn oracle_the_vae_of_open_sora_1_2_encodes_and_decodes_in_pieces() {
    for folder in folders() {
        follow(&folder, Kind::Float);
    }
}

#[test]
fn oracle_the_vae_of_open_sora_1_2_in_bf16_is_near_the_recorded_results() {
    for folder in folders() {
        follow(&folder, Kind::BFloat16);
    }
}

#[test]
fn latents_of_another_number_of_frames_are_refused() {
    for folder in folders() {
        let vae = open(&folder, Kind::Float);
        let latent = Tensor::zeros([1, 4, 5, 2, 2], (Kind::Float, Device::Cpu));
        assert_eq!(vae.decode(&latent, 17).unwrap().size(), [1, 3, 17, 16, 16]);
        for frames in [0, 16, 18, 34] {
            assert_eq!(vae.decode(&latent, frames).unwrap_err().code, ErrorCode::TensorMismatch, "{frames}");
        }
        let other = OpenSoraVae::open(&folder, PictureVaeConfig::default(), Kind::Float, Device::Cpu);
        assert_eq!(other.unwrap_err().code, ErrorCode::TensorMismatch, "the pictures' VAE has other sizes");
    }
}

#[test]
fn videos_and_noise_of_other_shapes_are_refused() {
    for folder in folders() {
        let vae = open(&folder, Kind::Float);
        let zeros = |shape: &[i64]| Tensor::zeros(shape, (Kind::Float, Device::Cpu));
        let video = zeros(&[1, 3, 2, 16, 16]);
        assert!(vae.encode(&video, Some(&zeros(&[1, 4, 2, 2, 2]))).is_ok());
        for shape in [&[1, 4, 1, 2, 2][..], &[2, 4, 2, 2, 2], &[1, 4, 2, 2, 3], &[4, 2, 2, 2]] {
            assert_eq!(
                vae.encode(&video, Some(&zeros(shape))).unwrap_err().code,
                ErrorCode::InvalidArgument,
                "{shape:?}"
            );
        }
        for shape in [&[1, 3, 1, 7, 16], &[1, 3, 1, 16, 1]] {
            assert_eq!(vae.encode(&zeros(shape), None).unwrap_err().code, ErrorCode::InvalidArgument, "{shape:?}");
        }
    }
}

#[test]
fn the_identity_depends_on_the_vae_over_pictures() {
    for folder in folders() {
        let one = open(&folder, Kind::Float);
        let mut other = picture(&folder);
        other.norm_num_groups /= 2;
        let other = OpenSoraVae::open(&folder, other, Kind::Float, device()).unwrap();
        assert_ne!(one.identity(), other.identity());
    }
}
