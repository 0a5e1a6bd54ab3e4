//! Times the collectives of sharded training over two processes of this node: `collective_speed [MiB] [rounds]`.

use std::process::Command;
use std::time::{Duration, Instant};

use c10d::{Group, Reduce, Store};
use tch::{Device, Kind, Tensor};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let mib: i64 = args.next().as_deref().unwrap_or("26").parse()?;
    let rounds: usize = args.next().as_deref().unwrap_or("20").parse()?;
    tch::set_num_threads(1);
    if let (Some(rank), Some(port)) = (args.next(), args.next()) {
        return measure(rank.parse()?, port.parse()?, mib, rounds);
    }
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let rank = |rank: &str| {
        let args = [&mib.to_string(), &rounds.to_string(), rank, &port.to_string()].map(str::to_owned);
        Command::new(std::env::current_exe()?).args(args).spawn()
    };
    let mut ranks = [rank("0")?, rank("1")?];
    for rank in &mut ranks {
        rank.wait()?;
    }
    Ok(())
}

fn measure(rank: usize, port: u16, mib: i64, rounds: usize) -> Result<(), Box<dyn std::error::Error>> {
    let timeout = Duration::from_secs(60);
    let store = Store::tcp("127.0.0.1", port, 2, rank == 0, timeout)?;
    let group = Group::gloo(&store.prefix("speed"), rank, 2, timeout, Some("lo"))?;
    let whole = Tensor::ones([mib << 18], (Kind::Float, Device::Cpu));
    let part = Tensor::ones([mib << 17], (Kind::Float, Device::Cpu));
    let report = |name: &str, run: &dyn Fn() -> c10d::Result<()>| -> c10d::Result<()> {
        let mut ms = Vec::new();
        for _ in 0..rounds + 2 {
            group.barrier()?;
            let start = Instant::now();
            run()?;
            ms.push(start.elapsed().as_secs_f64() * 1e3);
        }
        ms.drain(..2);
        ms.sort_by(f64::total_cmp);
        if rank == 0 {
            println!("{name:>24} {mib} MiB: median {:6.1} ms, best {:6.1} ms", ms[ms.len() / 2], ms[0]);
        }
        Ok(())
    };
    report("all-gather", &|| group.all_gather_into(&whole, &part)?.wait())?;
    report("reduce-scatter", &|| group.reduce_scatter_into(&part, &whole, Reduce::Sum)?.wait())?;
    report("all-reduce", &|| group.all_reduce(&whole, Reduce::Sum)?.wait())?;
    Ok(())
}
