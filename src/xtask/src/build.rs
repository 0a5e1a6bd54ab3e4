//! `cargo xtask build`: installs libtorch and builds both programs.

use crate::failure::{Failure, Result};
use crate::libtorch::{self, system};
use crate::process::{cargo, run as run_command};

/// Runs the command.
pub fn run(args: &[String]) -> Result<()> {
    if let [first, ..] = args {
        return Err(Failure::request("cannot build", format!("{first:?} is not known"), "give no arguments"));
    }
    libtorch::ensure(&[system::OPENSSL])?;
    println!("building the console and the trainer (some minutes the first time)");
    let mut build = cargo(["build", "--release", "--package", "vidtui", "--package", "trainer"]);
    run_command(&mut build, "read the compiler's errors above")
}
