//! The Python environment of the benches: PyTorch and diffusers, in the cache folder.

use camino::Utf8PathBuf;
use std::fs;

use crate::failure::{Failure, Result};
use crate::process::{command, run};
use crate::workspace::cache_dir;

/// What the benches compare with; the versions are part of the result.
const PACKAGES: [&str; 3] = ["torch==2.11.0", "diffusers==0.42.1", "numpy"];

/// Returns the `bin` folder of a virtual environment with [`PACKAGES`], making it when there is none.
pub fn environment() -> Result<Utf8PathBuf> {
    let dir = cache_dir()?.join("bench-python");
    let (bin, done) = (dir.join("bin"), dir.join("complete"));
    let wanted = PACKAGES.join(" ");
    if fs::read_to_string(&done).is_ok_and(|have| have == wanted) {
        return Ok(bin);
    }
    println!("installing {wanted} into {dir} (5 GB, once)");
    run(
        &mut command("python3", ["-m", "venv", "--clear", dir.as_str()]),
        "install Python's venv (Debian: apt-get install python3-venv)",
    )?;
    let mut install = command(bin.join("python"), ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    run(install.args(PACKAGES), "check that the Python package index can be reached and the disk has 10 GB free")?;
    fs::write(&done, wanted).map_err(|e| Failure::new(format!("cannot write {done}"), e, "check the disk"))?;
    Ok(bin)
}
