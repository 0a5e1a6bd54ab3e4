//! `cargo xtask ci`: runs every check that must pass before a change is merged.

use crate::bench::python;
use crate::failure::{Failure, Result};
use crate::libtorch::{self, system};
use crate::process::{cargo, run as run_command};
use crate::{check_cuda, licences, test};

/// Runs the command: the cheap checks first.
pub fn run(args: &[String]) -> Result<()> {
    if let [first, ..] = args {
        return Err(Failure::request("cannot check", format!("{first:?} is not known"), "give no arguments"));
    }
    run_command(&mut cargo(["fmt", "--all", "--check"]), "run `cargo fmt --all`")?;
    licences::run(&[])?;
    libtorch::ensure(&[test::NEEDS, &[system::VENV]].concat())?;
    let clippy = ["clippy", "--release", "--workspace", "--all-targets", "--", "-D", "warnings"];
    run_command(&mut cargo(clippy), "fix what clippy reports above")?;
    let mut doc = cargo(["doc", "--release", "--workspace", "--no-deps"]);
    run_command(doc.env("RUSTDOCFLAGS", "-D warnings"), "fix the links that rustdoc reports above")?;
    // The tests against diffusers run wherever it can be installed, so that the result does not depend on the machine.
    let python = python::environment_with_lora();
    if let Err(failure) = &python {
        println!("{failure}\nthe tests against diffusers and the build for GPUs will be skipped");
    }
    test::run(&[])?;
    if python.is_ok() {
        match python::packages_with_cuda() {
            Ok(_) => check_cuda::run(&[])?,
            Err(failure) => println!("{failure}\nthe build for GPUs is skipped"),
        }
    }
    println!("all checks pass");
    Ok(())
}
