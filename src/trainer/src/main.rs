//! The embedded trainer: one process per rank, and the supervisor that starts and watches the ranks of a node.

// A line that cannot be written, for instance on a full disk, must not panic: see `rundir::log!`.
#![cfg_attr(not(test), warn(clippy::print_stderr))]

mod adapter_files;
mod batches;
mod checkpoint;
mod conditions;
mod data;
mod deadline;
mod decode;
mod device;
mod drift;
mod ema;
mod encode;
mod exchange;
mod families;
mod fault;
mod init;
mod interface;
mod log;
mod memory;
mod noising;
mod offload;
mod optim;
#[cfg(test)]
#[path = "../../../tests/oracle/mod.rs"]
mod oracle;
#[cfg(test)]
#[path = "../../../tests/oracle/device.rs"]
mod oracle_device;
mod out_of_memory;
mod parallelize;
mod phase;
mod profile;
mod rank;
mod requests;
mod sample;
mod seeds;
mod signals;
mod step;
#[cfg(test)]
#[path = "../../../tests/oracle/tensor_file.rs"]
mod tensor_file;
#[cfg(test)]
mod tests;
mod torch_failure;
mod trainer;
mod watchdog;

use camino::Utf8PathBuf;
use clap::{Parser, Subcommand};
use cluster::NodeId;
use dataset::ImportRequest;
use rundir::{Failure, RunDir};
use std::ops::ControlFlow;

/// The embedded trainer of vidtui. `vidtui launch` starts it on every node; users need not call it.
#[derive(Parser)]
#[command(version, about)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Trains as one rank; reads its rank from torchrun's environment variables
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
    /// Prepares data sets; `vidtui data` does the same and shows progress
    #[command(subcommand)]
    Data(DataCommand),
    /// Prints the version of this program and of the libtorch it runs on
    Version {
        /// As one JSON object
        #[arg(long)]
        json: bool,
    },
}

#[derive(Subcommand)]
enum DataCommand {
    /// Imports latents that ttt-video-dit, finetrainers or cogvideox-factory prepared; runs no code of their pickles
    Import {
        /// The index of ttt-video-dit, or the folder that finetrainers or cogvideox-factory prepared
        index: Utf8PathBuf,
        /// The folder to create: a store of latents and texts
        target: Utf8PathBuf,
        /// The folder that paths in the index are relative to (default: the folder of the index)
        #[arg(long)]
        root: Option<Utf8PathBuf>,
        /// Channels of a latent; files with twice as many hold means and log-variances, from which latents are drawn
        #[arg(long, default_value_t = 16)]
        channels: usize,
        /// Replaces an earlier import
        #[arg(long)]
        force: bool,
    },
    /// Decodes the latent of a clip to an mp4; `vidtui data show` calls it
    Decode {
        /// The folder of the data set
        data: Utf8PathBuf,
        /// The id of the clip
        id: String,
        /// The video to write
        out: Utf8PathBuf,
        /// The folder of the VAE
        #[arg(long)]
        vae: Utf8PathBuf,
        /// The tensor of a condition to decode in place of the latent, such as image or masked
        #[arg(long)]
        tensor: Option<String>,
    },
}

fn main() {
    let done = match Args::parse().command {
        Command::Rank { run_dir, attempt } => rank::run(&RunDir::new(run_dir), attempt).map(drop),
        Command::Supervise { run_dir, attempt, node } => supervise(run_dir, attempt, node),
        Command::Data(DataCommand::Import { index, target, root, channels, force }) => {
            let not_finite = dataset::NotFiniteClips::Refuse;
            import(&ImportRequest { index, root, target, channels, not_finite }, force)
        }
        Command::Data(DataCommand::Decode { data, id, out, vae, tensor }) => {
            decode::decode(&data, (&id, tensor.as_deref()), &out, &vae, tch::Device::cuda_if_available())
        }
        Command::Version { json } => {
            print_version(json);
            Ok(())
        }
    };
    match done {
        Ok(()) => c10d::exit(0),
        Err(failure) => {
            rundir::log!("{failure}");
            c10d::exit(1)
        }
    }
}

/// Supervises the ranks of one node, which run this program.
fn supervise(run_dir: Utf8PathBuf, attempt: u32, node: NodeId) -> Result<(), Failure> {
    let own_program = || {
        let path = std::env::current_exe().map_err(|error| error.to_string());
        let path = path.and_then(|path| Utf8PathBuf::try_from(path).map_err(|error| error.to_string()));
        path.map_err(|why| {
            Failure::new(
                rundir::ErrorCode::StartFailed,
                "cannot start ranks",
                format!("the path of this program is unknown: {why}"),
                "check that /proc is mounted",
            )
        })
    };
    supervise::supervise(run_dir, attempt, node, &own_program)
}

fn import(request: &ImportRequest, force: bool) -> Result<(), Failure> {
    let done = dataset::plan_import(request)?.execute(force, &mut |_| ControlFlow::Continue(()))?;
    println!("{}", done.index);
    Ok(())
}

/// The version of libtorch that tch 0.24 requires.
pub(crate) const LIBTORCH: &str = "2.11.0";
const TCH: &str = "0.24.0";

fn print_version(json: bool) {
    // Training on GPUs needs a build with CUDA as well as a visible GPU.
    let (version, cuda) = (env!("CARGO_PKG_VERSION"), c10d::cuda::is_built() && tch::Cuda::is_available());
    // The form of PyTorch's versions: 2.11.0+cu130 is built with CUDA 13.0.
    let suffix = c10d::cuda::version().map(|(major, minor)| format!("+cu{major}{minor}")).unwrap_or_default();
    let libtorch = format!("{LIBTORCH}{suffix}");
    if json {
        println!("{}", serde_json::json!({ "version": version, "tch": TCH, "libtorch": libtorch, "cuda": cuda }));
    } else {
        println!("vidtui-train {version}, libtorch {libtorch} (tch {TCH}), CUDA {}", if cuda { "yes" } else { "no" });
    }
}
