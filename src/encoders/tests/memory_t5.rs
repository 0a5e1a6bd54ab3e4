//! Compares the estimate of peak memory with the measured peak on this machine's CPU.
//!
//! This is the only test of its program, because allocators keep memory that other tests freed.

mod support;

use camino::Utf8Path;
use encoders::{T5Encoder, t5_memory};
use support::peak::{compare, peak_of, status};
use support::write_t5;
use tch::{Device, Kind, Tensor};

#[test]
fn the_estimated_peak_of_t5_is_near_the_measured_one() {
    let keep = tempfile::tempdir().unwrap();
    let folder = Utf8Path::from_path(keep.path()).unwrap();
    write_t5(&folder.join("t5"));
    let ids = Tensor::ones([16, 226], (Kind::Int64, Device::Cpu));
    let mut t5 = None;
    let before = status("VmRSS");
    let loaded = peak_of(before, || t5 = Some(T5Encoder::open(&folder.join("t5"), Kind::Float, Device::Cpu).unwrap()));
    let t5 = t5.expect("it was opened");
    let estimate = t5_memory(t5.config(), 16, 226, 4);
    compare("T5, weights", estimate.weights, loaded);
    // The first computation loads parts of libraries.
    let _ = t5.encode(&ids.slice(0, 0, 1, 1).slice(1, 0, 8, 1)).unwrap();
    compare("T5, encoding", estimate.work, peak_of(status("VmRSS"), || t5.encode(&ids).unwrap()));
}
