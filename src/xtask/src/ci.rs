//! `cargo xtask ci`: runs every check that must pass before a change is merged.

use std::fmt;
use std::time::{Duration, Instant};

use crate::bench::python;
use crate::failure::{Failure, Result};
use crate::libtorch::{self, system};
use crate::process::{cargo, run as run_command};
use crate::test::PROFILE;
use crate::{check_cuda, licences, test};

/// Runs the command: the cheap checks first.
pub fn run(args: &[String]) -> Result<()> {
    if let [first, ..] = args {
        return Err(Failure::request("cannot check", format!("{first:?} is not known"), "give no arguments"));
    }
    let mut times = Times::default();
    times.of("format", || run_command(&mut cargo(["fmt", "--all", "--check"]), "run `cargo fmt --all`"))?;
    times.of("licences", || licences::run(&[]))?;
    times.of("libtorch", || libtorch::ensure(&[test::NEEDS, &[system::VENV]].concat()))?;
    let clippy = ["clippy", "--profile", PROFILE, "--workspace", "--all-targets", "--", "-D", "warnings"];
    times.of("clippy", || run_command(&mut cargo(clippy), "fix what clippy reports above"))?;
    let mut doc = cargo(["doc", "--profile", PROFILE, "--workspace", "--no-deps"]);
    doc.env("RUSTDOCFLAGS", "-D warnings");
    times.of("docs", || run_command(&mut doc, "fix the links that rustdoc reports above"))?;
    // The tests against diffusers run wherever it can be installed, so that the result does not depend on the machine.
    let python = times.of("Python packages", python::environment_with_lora);
    if let Err(failure) = &python {
        println!("{failure}\nthe tests against diffusers and the build for GPUs will be skipped");
    }
    if let Err(failure) = times.of("Python packages of viewers", python::environment_with_viewers) {
        println!("{failure}\nthe tests against TensorBoard and W&B will be skipped");
    }
    let binaries = times.of("build of the tests", test::build)?;
    times.of("tests", || test::run_built(binaries.clone(), &[]))?;
    times.of("faults of CUDA kernels", || test::run_faults(&binaries))?;
    if python.is_ok() {
        match times.of("Python packages for GPUs", python::packages_with_cuda) {
            Ok(_) => times.of("build for GPUs", check_cuda::in_ci)?,
            Err(failure) => println!("{failure}\nthe build for GPUs is skipped"),
        }
    }
    println!("all checks pass\n{times}");
    Ok(())
}

/// The duration of each part, in their order.
#[derive(Debug, Default)]
struct Times(Vec<(&'static str, Duration)>);

impl Times {
    /// Runs a part and records its duration.
    fn of<T>(&mut self, part: &'static str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let began = Instant::now();
        let done = work();
        self.0.push((part, began.elapsed()));
        done
    }
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Duration = self.0.iter().map(|(_, took)| *took).sum();
        for (part, took) in self.0.iter().chain([&("all", all)]) {
            writeln!(f, "{:>6} s  {part}", took.as_secs())?;
        }
        Ok(())
    }
}
