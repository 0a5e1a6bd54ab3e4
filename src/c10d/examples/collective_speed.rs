//! Times the collectives of sharded training by size over processes of this node: `collective_speed [cpu|cuda] [RANKS] [ROUNDS] [MIB…]`.
//!
//! With `cuda`, each rank has its own GPU. Prints the median and best time, and the bytes per second that each rank would send in a ring
//! algorithm.

use std::process::Command;
use std::time::{Duration, Instant};

use c10d::{Group, Reduce, Result, Store};
use tch::{Device, Kind, Tensor};

/// The sizes in MiB if none is given: from a bias to a gathered block.
const SIZES: [f64; 5] = [0.0625, 1.0, 16.0, 128.0, 512.0];

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let word = |at: usize, default: &str| args.get(at).map_or(default, String::as_str).to_owned();
    let (device, ranks, rounds) = (word(0, "cpu"), word(1, "2").parse::<usize>()?, word(2, "20").parse::<usize>()?);
    let sizes: Vec<f64> = args.iter().skip(3).map(|size| size.parse()).collect::<std::result::Result<_, _>>()?;
    let sizes = if sizes.is_empty() { SIZES.to_vec() } else { sizes };
    if ranks < 2 {
        println!("skipped: one rank sends nothing");
        return Ok(());
    }
    let place = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<usize>().ok());
    if let (Some(rank), Some(port)) = (place("SPEED_RANK"), place("SPEED_PORT")) {
        let timeout = Duration::from_secs(60);
        let store = Store::tcp("127.0.0.1", port as u16, ranks, rank == 0, timeout)?.prefix("speed");
        let (group, device) = if device == "cuda" {
            c10d::cuda::set_device(rank)?;
            (Group::nccl(&store, rank, ranks, timeout, rank)?, Device::Cuda(rank))
        } else {
            tch::set_num_threads(1);
            (Group::gloo(&store, rank, ranks, timeout, Some("lo"))?, Device::Cpu)
        };
        for row in measure(&group, device, &sizes, rounds)? {
            if rank == 0 {
                println!("{row}");
            }
        }
        return Ok(());
    }
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let mut running = Vec::new();
    for rank in 0..ranks {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(&args).env("SPEED_RANK", rank.to_string()).env("SPEED_PORT", port.to_string());
        running.push(command.spawn()?);
    }
    for mut rank in running {
        if !rank.wait()?.success() {
            return Err("a rank failed".into());
        }
    }
    Ok(())
}

/// Times each collective for tensors of these sizes in MiB, and returns a row for each.
pub fn measure(group: &Group, device: Device, sizes: &[f64], rounds: usize) -> Result<Vec<String>> {
    let (ranks, kind) = (group.size() as f64, if device == Device::Cpu { Kind::Float } else { Kind::BFloat16 });
    let mut rows = Vec::new();
    for &mib in sizes {
        // Rounded up, so that all ranks have equal parts.
        let part = ((mib * f64::from(1 << 20)) as usize / kind.elt_size_in_bytes()).div_ceil(group.size()) as i64;
        let (whole, own) = (Tensor::ones([part * ranks as i64], (kind, device)), Tensor::ones([part], (kind, device)));
        let bytes = (whole.numel() * kind.elt_size_in_bytes()) as f64;
        let mut time = |name: &str, traffic: f64, run: &dyn Fn() -> Result<()>| -> Result<()> {
            let mut seconds = Vec::new();
            for _ in 0..rounds + 2 {
                group.barrier()?;
                let start = Instant::now();
                run()?;
                // On a GPU, `run` makes the stream wait and not the host. Reading a number waits for the stream.
                let _ = own.get(0).double_value(&[]);
                seconds.push(start.elapsed().as_secs_f64());
            }
            seconds.drain(..2);
            seconds.sort_by(f64::total_cmp);
            let (median, best) = (seconds[seconds.len() / 2], seconds[0]);
            rows.push(format!(
                "{name:>14} {mib:>9} MiB: median {:9.3} ms, best {:9.3} ms, {:8.2} GB/s",
                median * 1e3,
                best * 1e3,
                traffic * bytes / median / 1e9
            ));
            Ok(())
        };
        let share = (ranks - 1.0) / ranks;
        time("all-gather", share, &|| group.all_gather_into(&whole, &own)?.wait())?;
        time("reduce-scatter", share, &|| group.reduce_scatter_into(&own, &whole, Reduce::Sum)?.wait())?;
        time("all-reduce", 2.0 * share, &|| group.all_reduce(&whole, Reduce::Sum)?.wait())?;
    }
    Ok(rows)
}
