//! `cargo xtask check-cuda`: compiles the CUDA kernels, and compiles and links the trainer for GPUs. The machine does not need
//! a GPU.

mod kernels;

use camino::Utf8Path;

use crate::bench::python::{nvcc, packages_with_cuda};
use crate::failure::{Failure, Result};
use crate::libtorch::system;
use crate::process::{cargo, command, output, run as run_command};
use crate::test::PROFILE;
use crate::workspace::root;

/// Libraries that the trainer for GPUs must be linked with.
const LIBRARIES: [&str; 2] = ["libtorch_cuda.so", "libc10_cuda.so"];

/// Runs the command.
pub fn run(args: &[String]) -> Result<()> {
    let only_kernels = args == ["--kernels"];
    if let ([first, ..], false) = (args, only_kernels) {
        let fix = "give no arguments, or --kernels";
        return Err(Failure::request("cannot check", format!("{first:?} is not known"), fix));
    }
    // `gpu-report` runs this trainer.
    check((!only_kernels).then_some("release"))
}

/// Runs all checks for CI. CI does not run the trainer, so it is built with the few optimizations of the tests.
pub fn in_ci() -> Result<()> {
    check(Some(PROFILE))
}

/// Checks the kernels, and the trainer if a profile is given.
fn check(profile: Option<&str>) -> Result<()> {
    system::require(&[system::COMPILER, system::VENV])?;
    let Some(profile) = profile else { return kernels::compile_and_compare() };
    link(profile)?;
    // The build has compiled the kernels already, which takes minutes.
    kernels::compare_built(&root().join("target/cuda").join(profile))
}

/// Builds the trainer for GPUs with a profile, and checks that it is linked with CUDA. The build has its own target folder, so that the
/// trainer for CPUs is kept.
fn link(profile: &str) -> Result<()> {
    let libtorch = packages_with_cuda()?.join("torch");
    let target = root().join("target/cuda");
    let mut build = cargo(["build", "--profile", profile, "--package", "trainer", "--features", "cuda"]);
    build.args(["--target-dir", target.as_str()]).env("LIBTORCH", &libtorch).env("NVCC", nvcc()?);
    for other in ["LIBTORCH_USE_PYTORCH", "LIBTORCH_INCLUDE", "LIBTORCH_LIB"] {
        build.env_remove(other);
    }
    run_command(&mut build, "see the compiler's errors above")?;
    let trainer = target.join(profile).join("vidtui-train");
    linked(&trainer)?;
    let version = output(&mut command(&trainer, ["version", "--json"]), "list its libraries: ldd")?;
    println!("{trainer}: compiled and linked with CUDA\n{}", String::from_utf8_lossy(&version.stdout).trim());
    Ok(())
}

/// Checks that the program is linked with CUDA's libraries and that the loader finds them.
fn linked(trainer: &Utf8Path) -> Result<()> {
    let found = output(&mut command("ldd", [trainer]), "install libc-bin, which has ldd")?;
    let found = String::from_utf8_lossy(&found.stdout);
    let finds = |name: &str| found.lines().any(|line| line.contains(name) && !line.contains("not found"));
    match LIBRARIES.into_iter().find(|name| !finds(name)) {
        None => Ok(()),
        Some(name) => Err(Failure::new(
            format!("{trainer} is not linked with CUDA"),
            format!("the loader finds no {name}"),
            "compare `ldd` of the trainer with the libraries in torch/lib",
        )),
    }
}
