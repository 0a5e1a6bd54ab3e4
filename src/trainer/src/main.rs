//! The embedded trainer: one process per rank, and the supervisor that starts and watches the ranks of a node.

mod checkpoint;
#[cfg(test)]
mod converted;
mod data;
mod exchange;
mod fault;
mod init;
mod interface;
mod log;
mod memory;
mod optim;
mod parallelize;
mod rank;
mod seeds;
mod signals;
mod step;
#[cfg(test)]
mod traces;
mod trainer;

use camino::Utf8PathBuf;
use clap::{Parser, Subcommand};
use cluster::NodeId;
use rundir::{Failure, RunDir};
use std::process::ExitCode;

/// The embedded trainer of vidtui. People use `vidtui launch`; the console starts this program on every node.
#[derive(Parser)]
#[command(version, about)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Trains as one rank, whose place is in torchrun's environment variables
    Rank {
        /// The run's directory
        #[arg(long)]
        run_dir: Utf8PathBuf,
        /// Number of the attempt
        #[arg(long)]
        attempt: u32,
    },
    /// Starts and watches the ranks of one node
    Supervise {
        /// The run's directory
        #[arg(long)]
        run_dir: Utf8PathBuf,
        /// Number of the attempt
        #[arg(long)]
        attempt: u32,
        /// This node's name in the attempt's placement
        #[arg(long, value_parser = |name: &str| NodeId::new(name))]
        node: NodeId,
    },
    /// Prints the version of this program and of the libtorch it runs on
    Version {
        /// As one JSON object
        #[arg(long)]
        json: bool,
    },
}

fn main() -> ExitCode {
    let done = match Args::parse().command {
        Command::Rank { run_dir, attempt } => rank::run(&RunDir::new(run_dir), attempt).map(drop),
        Command::Supervise { run_dir, attempt, node } => supervise(run_dir, attempt, node),
        Command::Version { json } => {
            print_version(json);
            Ok(())
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

/// Supervises ranks that this program trains as.
fn supervise(run_dir: Utf8PathBuf, attempt: u32, node: NodeId) -> Result<(), Failure> {
    let program = std::env::current_exe().map_err(|error| {
        Failure::new("cannot start ranks", format!("this program's own file is unknown: {error}"), "check /proc")
    })?;
    supervise::supervise(run_dir, attempt, node, &program)
}

/// The libtorch that tch 0.24 is bound to; its build refuses any other.
const LIBTORCH: &str = "2.11.0";
const TCH: &str = "0.24.0";

fn print_version(json: bool) {
    let (version, cuda) = (env!("CARGO_PKG_VERSION"), tch::Cuda::is_available());
    if json {
        println!("{}", serde_json::json!({ "version": version, "tch": TCH, "libtorch": LIBTORCH, "cuda": cuda }));
    } else {
        println!("vidtui-train {version}, libtorch {LIBTORCH} (tch {TCH}), CUDA {}", if cuda { "yes" } else { "no" });
    }
}
