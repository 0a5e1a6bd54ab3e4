//! A small run of the example that times scans, as `cargo xtask gpu-report` runs it on a GPU.

#[allow(dead_code)]
#[path = "../examples/scan_speed.rs"]
mod scan_speed;

use kernels::ttt::Blocks;
use scan_speed::{Case, measure};
use tch::Device;

#[test]
fn scans_of_both_kinds_are_timed_on_the_cpu() {
    for mlp in [true, false] {
        let case = Case { name: "small", mlp, heads: 2, tokens: 64, mini_batch: 16, width: 16 };
        let times = measure(case, Blocks::One, Device::Cpu, 2);
        assert!(times.forward_us > 0.0 && times.both_us > times.forward_us, "{case:?}: {times:?}");
    }
}
