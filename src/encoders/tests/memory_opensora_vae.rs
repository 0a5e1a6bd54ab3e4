//! Compares the estimate of peak memory with the measured peak on this machine's CPU.
//!
//! This is the only test of its program, because allocators keep memory that other tests freed.

mod support;

use camino::Utf8Path;
use encoders::{OpenSoraVae, opensora_vae_memory};
use support::peak::{compare, peak_of, status};
use support::write_opensora_vae;
use tch::{Device, Kind, Tensor};

#[test]
fn the_estimated_peak_of_open_sora_1_2s_vae_is_near_the_measured_one() {
    let keep = tempfile::tempdir().unwrap();
    let folder = Utf8Path::from_path(keep.path()).unwrap();
    let picture = write_opensora_vae(folder, &[32, 32, 32, 32], 32);
    let vae = OpenSoraVae::open(folder, picture.clone(), Kind::Float, Device::Cpu).unwrap();
    let zeros = |shape: [i64; 5]| Tensor::zeros(shape, (Kind::Float, Device::Cpu));
    // The first computation loads parts of libraries.
    vae.encode(&zeros([1, 3, 1, 16, 16]), None).unwrap();
    let before = status("VmRSS");
    let video = zeros([1, 3, 3, 384, 384]);
    let estimate = opensora_vae_memory(vae.config(), &picture, [3, 384, 384], 4).work;
    let mut latent = Tensor::new();
    let encode = peak_of(before, || latent = vae.encode(&video, None).unwrap().mean);
    let decode = peak_of(before, || vae.decode(&latent, 3).unwrap());
    println!("encode {encode:?}, decode {decode:?}");
    compare("in one piece", estimate, encode.max(decode));
}
