//! Project tasks: `cargo xtask COMMAND`.

mod bench;
mod build;
mod check_cuda;
mod ci;
mod decode;
mod demo;
mod failure;
mod fixtures;
mod fuzz;
mod gpu_report;
mod libtorch;
mod licences;
mod process;
mod progress;
mod rig;
mod test;
mod workspace;

use std::process::ExitCode;

use failure::{Failure, Result};

/// A task of the command line.
struct Command {
    name: &'static str,
    args: &'static str,
    does: &'static str,
    run: fn(&[String]) -> Result<()>,
}

#[rustfmt::skip]
const COMMANDS: &[Command] = &[
    Command { name: "demo", args: "[--nodes N]", does: "trains a small model on a clip and samples a video, with the console open; --nodes N does it on N nodes simulated on this machine", run: demo::run },
    Command { name: "build", args: "", does: "installs libtorch and builds both programs in release", run: build::run },
    Command { name: "libtorch", args: "", does: "installs libtorch for the CPU, unless LIBTORCH or LIBTORCH_USE_PYTORCH is set", run: libtorch::run },
    Command { name: "test", args: "[FILTER]…", does: "installs what the tests need, builds them and runs all, or those whose names contain a FILTER", run: test::run },
    Command { name: "ci", args: "", does: "runs all that must pass before a change is merged: fmt, licences, clippy, docs, tests and check-cuda; downloads 5 GB once", run: ci::run },
    Command { name: "licences", args: "", does: "checks the licences of all dependencies", run: licences::run },
    Command { name: "check-cuda", args: "[--kernels]", does: "compiles the CUDA kernels, and compiles and links the trainer for GPUs, without a GPU; downloads 5 GB once, for --kernels 250 MB", run: check_cuda::run },
    Command { name: "gpu-report", args: "", does: "on a machine with GPUs: runs the commands of docs/gpu-first-run.md and writes what they print into one file", run: gpu_report::run },
    Command { name: "bench", args: "[PART]…", does: "compares speed with PyTorch, and measures the console's first frame and idle CPU", run: bench::run },
    Command { name: "fixtures", args: "[--encoders]", does: "makes the latents and texts of tests from the demo's clip, or trains the demo's encoders (needs ffmpeg)", run: fixtures::run },
    Command { name: "fuzz", args: "[TARGET]… [--minutes N]", does: "feeds the readers of files and answers with damaged input, a minute each by default; needs a nightly compiler, and installs cargo-fuzz from crates.io", run: fuzz::run },
    Command { name: "rig", args: "up N [--slurm]|down|…", does: "starts or ends N nodes with SSH servers on this machine", run: rig::run },
    Command { name: "decode", args: "LATENT OUT.png", does: "decodes a latent of `fixtures` to a picture (needs ffmpeg)", run: decode::run },
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (name, rest) = args.split_first().map_or(("help", &[][..]), |(name, rest)| (name.as_str(), rest));
    if matches!(name, "help" | "-h" | "--help") || rest.iter().any(|a| a == "-h" || a == "--help") {
        print!("{}", help());
        return ExitCode::SUCCESS;
    }
    let done = COMMANDS.iter().find(|c| c.name == name).map_or_else(
        || Err(Failure::request(format!("cannot run {name:?}"), "there is no such command", "see `cargo xtask help`")),
        |command| (command.run)(rest),
    );
    done.map_or_else(
        |failure| {
            eprintln!("{failure}");
            ExitCode::from(failure.code)
        },
        |()| ExitCode::SUCCESS,
    )
}

fn help() -> String {
    let mut text = String::from("Project tasks.\n\nusage: cargo xtask COMMAND\n\n");
    for Command { name, args, does, .. } in COMMANDS {
        text += &format!("  {:<26} {does}\n", format!("{name} {args}"));
    }
    text
}
