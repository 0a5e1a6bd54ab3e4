//! The project's chores: `cargo xtask COMMAND`.

mod bench;
mod build;
mod check_cuda;
mod ci;
mod decode;
mod demo;
mod failure;
mod fixtures;
mod fuzz;
mod libtorch;
mod process;
mod progress;
mod rig;
mod test;
mod workspace;

use std::process::ExitCode;

use failure::{Failure, Result};

/// A chore: its name, its arguments, what it does, and the function that does it.
struct Command {
    name: &'static str,
    args: &'static str,
    does: &'static str,
    run: fn(&[String]) -> Result<()>,
}

#[rustfmt::skip]
const COMMANDS: &[Command] = &[
    Command { name: "demo", args: "[--nodes N]", does: "trains the demo, on N nodes that stand on this machine if asked, and opens the console", run: demo::run },
    Command { name: "build", args: "", does: "gets libtorch and builds both programs in release", run: build::run },
    Command { name: "libtorch", args: "", does: "gets libtorch for the CPU, unless LIBTORCH or LIBTORCH_USE_PYTORCH is set", run: libtorch::run },
    Command { name: "test", args: "[FILTER]", does: "builds and runs all tests, after getting what they need", run: test::run },
    Command { name: "ci", args: "", does: "runs fmt, clippy, all tests and docs, after getting all that tests may lack (5 GB, once): what must hold before a change goes in", run: ci::run },
    Command { name: "check-cuda", args: "", does: "compiles and links the trainer for GPUs, without needing one; 5 GB, once", run: check_cuda::run },
    Command { name: "bench", args: "[PART]", does: "measures against PyTorch, and the console's first frame and idle cost", run: bench::run },
    Command { name: "fuzz", args: "[SECONDS] [READER]", does: "gives each reader of weights damaged files for a while", run: fuzz::run },
    Command { name: "fixtures", args: "[--clip VIDEO]", does: "makes the demo's latents and texts from its clip (needs ffmpeg)", run: fixtures::run },
    Command { name: "rig", args: "up N [--slurm]|down|…", does: "starts N nodes with SSH servers on this machine, or ends them", run: rig::run },
    Command { name: "decode", args: "LATENT OUT.png", does: "turns a demo latent back into a picture (needs ffmpeg)", run: decode::run },
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (name, rest) = args.split_first().map_or(("help", &[][..]), |(name, rest)| (name.as_str(), rest));
    if matches!(name, "help" | "-h" | "--help") || rest.iter().any(|a| a == "-h" || a == "--help") {
        print!("{}", help());
        return ExitCode::SUCCESS;
    }
    let done = COMMANDS.iter().find(|c| c.name == name).map_or_else(
        || Err(Failure::request(format!("cannot do {name:?}"), "there is no such command", "see `cargo xtask help`")),
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
    let mut text = String::from("The project's chores.\n\nusage: cargo xtask COMMAND\n\n");
    for Command { name, args, does, .. } in COMMANDS {
        text += &format!("  {:<26} {does}\n", format!("{name} {args}"));
    }
    text
}
