//! Compares the estimate of peak memory with the measured peak on this machine's CPU.
//!
//! This is the only test of its program, because allocators keep memory that other tests freed.

mod support;

use camino::Utf8Path;
use encoders::{TileSize, Vae, vae_memory};
use support::peak::{compare, peak_of, status};
use support::write_vae;
use tch::{Device, Kind, Tensor};

#[test]
fn the_estimated_peak_of_the_vae_is_near_the_measured_one() {
    let keep = tempfile::tempdir().unwrap();
    let folder = Utf8Path::from_path(keep.path()).unwrap();
    write_vae(&folder.join("vae"), &[32, 32, 32, 32], 1);
    let mut vae = Vae::open(&folder.join("vae"), Kind::Float, Device::Cpu).unwrap();
    let shape = [9, 192, 256];
    let video = Tensor::zeros([1, 3, 9, 192, 256], (Kind::Float, Device::Cpu));
    let tiles = TileSize { height: 96, width: 128, overlap_height: 0.5, overlap_width: 0.5 };
    // The first computation loads parts of libraries.
    vae.encode(&Tensor::zeros([1, 3, 1, 16, 16], (Kind::Float, Device::Cpu))).unwrap();
    // Measure the small case first, because allocators keep freed memory.
    let before = status("VmRSS");
    for tiling in [Some(tiles), None] {
        vae.tiling(tiling).unwrap();
        let estimate = vae_memory(vae.config(), shape, tiling.as_ref(), 4).work;
        let what = if tiling.is_some() { "with tiles" } else { "whole" };
        let mut latent = Tensor::new();
        let encode = peak_of(before, || latent = vae.encode(&video).unwrap().mean);
        let decode = peak_of(before, || vae.decode(&latent).unwrap());
        println!("encode {encode:?}, decode {decode:?}");
        compare(what, estimate, encode.max(decode));
    }
}
