//! Compares the estimate of peak memory with the measured peak on this machine's CPU.
//!
//! This is the only test of its program, because allocators keep memory that other tests freed.

mod support;

use camino::Utf8Path;
use encoders::{TileAxis, VideoTiling, WanVae, wan_vae_memory};
use support::peak::{compare, peak_of, status};
use support::write_wan_vae;
use tch::{Device, Kind, Tensor};

#[test]
fn the_estimated_peak_of_wans_vae_is_near_the_measured_one() {
    let keep = tempfile::tempdir().unwrap();
    let folder = Utf8Path::from_path(keep.path()).unwrap();
    write_wan_vae(folder, 32);
    let mut vae = WanVae::open(folder, Kind::Float, Device::Cpu).unwrap();
    let video = Tensor::zeros([1, 3, 5, 128, 192], (Kind::Float, Device::Cpu));
    let tiles = VideoTiling { space: Some([TileAxis { size: 64, stride: 48 }; 2]), time: None };
    // The first computation loads parts of libraries.
    vae.encode(&Tensor::zeros([1, 3, 1, 16, 16], (Kind::Float, Device::Cpu))).unwrap();
    // Measure the small case first, because allocators keep freed memory.
    let before = status("VmRSS");
    for (what, tiling) in [("with tiles", tiles), ("whole", VideoTiling::default())] {
        vae.tiling(tiling).unwrap();
        let estimate = wan_vae_memory(
            vae.config(),
            [5, 128, 192],
            tiling.space.map(|[rows, columns]| [rows.size, columns.size]),
            4,
        )
        .work;
        let mut latent = Tensor::new();
        let encode = peak_of(before, || latent = vae.encode(&video).unwrap().mean);
        let decode = peak_of(before, || vae.decode(&latent).unwrap());
        println!("encode {encode:?}, decode {decode:?}");
        compare(what, estimate, encode.max(decode));
    }
}
