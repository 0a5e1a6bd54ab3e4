//! A small run of the example that times collectives, as `cargo xtask gpu-report` runs it on GPUs.

#[allow(dead_code)]
#[path = "../examples/collective_speed.rs"]
mod collective_speed;
mod together;

use tch::Device;

#[test]
fn every_collective_is_timed_for_every_size() -> c10d::Result<()> {
    let rows = together::on_ranks(2, |group, _| collective_speed::measure(group, Device::Cpu, &[0.01, 0.25], 3))?;
    for rows in rows {
        let names = ["all-gather", "reduce-scatter", "all-reduce"];
        assert_eq!(rows.len(), 2 * names.len());
        for (row, name) in rows.iter().zip(names.iter().cycle()) {
            assert!(row.contains(name) && row.ends_with("GB/s") && !row.contains("inf"), "{row}");
        }
    }
    Ok(())
}
