//! Measures connecting to many nodes and running a command on all of them: `cargo run --release -p remote --example
//! command_speed -- 64`. The nodes are simulated by `rig` on this machine, so their SSH servers share its CPU with the measured program.

use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

use cluster::NodeId;
use nix::sys::resource::{UsageWho, getrusage};
use remote::{Command, Shell, Ssh, SshOptions};
use rig::Options;
use rundir::Login;

const ROUNDS: usize = 20;

fn main() -> Result<(), Box<dyn Error>> {
    let nodes: usize = std::env::args().nth(1).map_or(Ok(16), |text| text.parse())?;
    let rig = Options::new(nodes).up()?;
    rig.join_network()?;
    let options = SshOptions { config: Some(rig.ssh_config()), ..SshOptions::default() };
    let all: Result<Vec<Ssh>, Box<dyn Error>> = rig
        .nodes()
        .iter()
        .map(|name| Ok(Ssh::new(options.clone(), Login { node: NodeId::new(name)?, user: None, port: None })))
        .collect();
    let mut all = all?;

    let began = Instant::now();
    round(&mut all, "true");
    println!("{nodes} nodes connected in {:.2} s, {:.0} ms of CPU here", began.elapsed().as_secs_f64(), cpu_ms()?);

    for script in ["true", "nvidia-smi --query-gpu=index,power.draw,utilization.gpu --format=csv,noheader,nounits"] {
        let before = cpu_ms()?;
        let mut times: Vec<Duration> = (0..ROUNDS)
            .map(|_| {
                let began = Instant::now();
                round(&mut all, script);
                began.elapsed()
            })
            .collect();
        times.sort();
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        println!(
            "a round of `{:.10}`: median {:.0} ms, longest {:.0} ms, {:.1} ms of CPU here",
            script,
            ms(times[ROUNDS / 2]),
            ms(times[ROUNDS - 1]),
            (cpu_ms()? - before) / ROUNDS as f64
        );
    }
    Ok(())
}

fn round(all: &mut [Ssh], script: &str) {
    let command = Command::new("run the benchmark", script, Duration::from_secs(60));
    thread::scope(|scope| {
        for node in all {
            let command = &command;
            scope.spawn(move || {
                if let Err(error) = node.run(command) {
                    println!("{error}");
                }
            });
        }
    });
}

/// Returns the CPU time of this program and of the child processes that it has waited for.
fn cpu_ms() -> Result<f64, nix::Error> {
    let mut total = 0.0;
    for who in [UsageWho::RUSAGE_SELF, UsageWho::RUSAGE_CHILDREN] {
        let used = getrusage(who)?;
        for time in [used.user_time(), used.system_time()] {
            total += time.tv_sec() as f64 * 1e3 + time.tv_usec() as f64 / 1e3;
        }
    }
    Ok(total)
}
