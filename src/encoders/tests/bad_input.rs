//! Tests that invalid inputs are rejected with error codes.

mod support;

use camino::Utf8Path;
use encoders::{T5Encoder, TileSize, Vae, WanVae};
use failure::ErrorCode;
use tch::{Device, Kind, Tensor};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/oracle");

fn zeros(shape: &[i64]) -> Tensor {
    Tensor::zeros(shape, (Kind::Float, Device::Cpu))
}

#[test]
fn videos_and_latents_of_other_shapes_are_refused() {
    let folder = Utf8Path::new(FIXTURES).join("vae/cogvideox_5b_tiny/vae");
    let mut vae = Vae::open(&folder, Kind::Float, Device::Cpu).unwrap();
    for shape in [&[1, 3, 5, 20, 24][..], &[1, 3, 5, 24, 20], &[1, 1, 5, 16, 16], &[1, 3, 0, 16, 16], &[3, 5, 16, 16]] {
        assert_eq!(vae.encode(&zeros(shape)).unwrap_err().code, ErrorCode::InvalidArgument, "{shape:?}");
    }
    for shape in [&[1, 16, 3, 2, 2][..], &[1, 4, 0, 2, 2], &[4, 3, 2, 2]] {
        assert_eq!(vae.decode(&zeros(shape)).unwrap_err().code, ErrorCode::TensorMismatch, "{shape:?}");
    }
    let tiles = TileSize { height: 17, ..TileSize::of(vae.config()) };
    assert_eq!(vae.tiling(Some(tiles)).unwrap_err().code, ErrorCode::InvalidArgument);
    assert_eq!(Vae::open(&folder, Kind::Half, Device::Cpu).unwrap_err().code, ErrorCode::InvalidArgument);
}

#[test]
fn ids_of_another_tokenizer_are_refused() {
    let folder = Utf8Path::new(FIXTURES).join("t5/t5_v1_1_tiny/text_encoder");
    let t5 = T5Encoder::open(&folder, Kind::Float, Device::Cpu).unwrap();
    for id in [-1i64, 1152] {
        let ids = Tensor::from_slice(&[0, id, 1]).view([1, 3]);
        assert_eq!(t5.encode(&ids).unwrap_err().code, ErrorCode::TensorMismatch);
    }
    assert_eq!(t5.encode(&zeros(&[1, 3])).unwrap_err().code, ErrorCode::InvalidArgument);
}

#[test]
fn a_configuration_that_is_not_an_object_is_refused() {
    let keep = tempfile::tempdir().unwrap();
    let folder = Utf8Path::from_path(keep.path()).unwrap();
    for text in ["[]", "null", "\"text\""] {
        std::fs::write(folder.join("config.json"), text).unwrap();
        let failure = WanVae::open(folder, Kind::Float, Device::Cpu).unwrap_err();
        assert_eq!(failure.code, ErrorCode::Malformed, "{text}");
    }
}
