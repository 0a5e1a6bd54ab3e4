//! `cargo xtask ci`: everything that must hold before a change goes in.

use crate::failure::{Failure, Result};
use crate::process::{cargo, run as run_command};
use crate::{libtorch, test};

/// Runs the command. The cheap checks come first.
pub fn run(args: &[String]) -> Result<()> {
    if let [first, ..] = args {
        return Err(Failure::request("cannot check", format!("{first:?} is not known"), "give no arguments"));
    }
    run_command(&mut cargo(["fmt", "--all", "--check"]), "run `cargo fmt --all`")?;
    libtorch::ensure()?;
    let clippy = ["clippy", "--release", "--workspace", "--all-targets", "--", "-D", "warnings"];
    run_command(&mut cargo(clippy), "put right what clippy names above")?;
    test::run(&[])?;
    let mut doc = cargo(["doc", "--release", "--workspace", "--no-deps"]);
    run_command(doc.env("RUSTDOCFLAGS", "-D warnings"), "put right the links that rustdoc names above")?;
    println!("all checks pass");
    Ok(())
}
