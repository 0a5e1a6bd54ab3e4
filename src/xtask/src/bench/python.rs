//! Installs the Python environments of the benches and of `check-cuda` in the cache folder: PyTorch, diffusers and others.

use camino::{Utf8Path, Utf8PathBuf};
use std::fs;

use crate::failure::{Failure, Result};
use crate::process::{command, output, run};
use crate::workspace::cache_dir;

/// The packages that the benches compare this project with. Their versions are pinned, because they affect the results.
const PACKAGES: [&str; 3] = ["torch==2.11.0", "diffusers==0.42.1", "numpy"];

/// Packages with CUDA headers that PyTorch's headers include and its wheel does not contain.
const CUDA_HEADERS: [&str; 2] = ["nvidia-cuda-crt==13.0.*", "nvidia-cuda-cccl==13.0.*"];

/// The additional packages for the comparison of text encoders and tokenizers.
const TEXT_PACKAGES: [&str; 2] = ["transformers==5.23.0", "sentencepiece==0.2.1"];

/// Returns the `bin` folder of the environment, with transformers and sentencepiece in it.
pub fn environment_with_text() -> Result<Utf8PathBuf> {
    let bin = environment()?;
    install(&bin, "complete-text", &TEXT_PACKAGES)?;
    Ok(bin)
}

/// The additional packages for adapters: PEFT, and those that diffusers' pipelines import.
const LORA_PACKAGES: [&str; 3] = ["peft==0.21.2", "transformers==5.23.0", "sentencepiece==0.2.1"];

/// Returns the `bin` folder of the environment, with PEFT in it.
pub fn environment_with_lora() -> Result<Utf8PathBuf> {
    let bin = environment()?;
    install(&bin, "complete-lora", &LORA_PACKAGES)?;
    Ok(bin)
}

/// Returns the `bin` folder of the environment with torchao, which has an 8-bit AdamW that runs on the CPU.
pub fn environment_with_torchao() -> Result<Utf8PathBuf> {
    let bin = environment()?;
    install(&bin, "complete-torchao", &["torchao==0.18.0"])?;
    Ok(bin)
}

/// Returns the `bin` folder of the environment with PyAV, which binds FFmpeg's libraries.
pub fn environment_with_pyav() -> Result<Utf8PathBuf> {
    let bin = environment()?;
    install(&bin, "complete-pyav", &["av==18.1.0"])?;
    Ok(bin)
}

/// Returns the folder of the environment's packages: `torch` is a libtorch with CUDA, and `nvidia` contains the headers and
/// libraries of that CUDA version.
pub fn packages_with_cuda() -> Result<Utf8PathBuf> {
    let bin = environment()?;
    install(&bin, "complete-cuda", &CUDA_HEADERS)?;
    packages(&bin.join("python"))
}

/// Installs more packages into the environment, once. The marker file is inside the environment's folder, so that removing the
/// environment removes it too.
fn install(bin: &Utf8Path, marker: &str, packages: &[&str]) -> Result<()> {
    let (done, wanted) = (bin.with_file_name(marker), packages.join(" "));
    if fs::read_to_string(&done).is_ok_and(|have| have == wanted) {
        return Ok(());
    }
    println!("installing {wanted} (some MB, once)");
    let mut install = command(bin.join("python"), ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    run(install.args(packages), "check that the Python package index can be reached")?;
    fs::write(&done, wanted).map_err(|e| Failure::new(format!("cannot write {done}"), e, "check the disk"))
}

fn packages(python: &Utf8Path) -> Result<Utf8PathBuf> {
    let ask = "import sysconfig; print(sysconfig.get_path('platlib'))";
    let path = output(&mut command(python, ["-c", ask]), "remove the environment's folder and run this again")?;
    Ok(String::from_utf8_lossy(&path.stdout).trim().into())
}

/// Returns the `bin` folder of a virtual environment with [`PACKAGES`]. Creates the environment if needed.
pub fn environment() -> Result<Utf8PathBuf> {
    environment_of("bench-python", &PACKAGES, "5 GB")
}

/// The run viewers that the benches compare the console with, and that read the files of the crate `interop` in its tests.
const VIEWERS: [&str; 2] = ["wandb==0.31.0", "tensorboard==2.21.0"];

/// Returns the `bin` folder of an environment with TensorBoard and W&B, which includes the terminal viewer `wandb leet`.
pub fn environment_with_viewers() -> Result<Utf8PathBuf> {
    environment_of("viewers-python", &VIEWERS, "200 MB")
}

/// The CUDA compiler. `nvidia-cuda-nvcc` accepts any version of `nvidia-nvvm`, but a newer `nvidia-nvvm` writes PTX that the
/// assembler of `nvidia-cuda-nvcc` rejects. So all versions are pinned.
const NVCC_PACKAGES: [&str; 5] = [
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-cccl==13.0.85",
];

/// Returns the path of a CUDA compiler in an environment of its own, which does not contain PyTorch.
pub fn nvcc() -> Result<Utf8PathBuf> {
    let bin = environment_of("nvcc-python", &NVCC_PACKAGES, "250 MB")?;
    Ok(packages(&bin.join("python"))?.join("nvidia/cu13/bin/nvcc"))
}

fn environment_of(name: &str, packages: &[&str], size: &str) -> Result<Utf8PathBuf> {
    let dir = cache_dir()?.join(name);
    let (bin, done) = (dir.join("bin"), dir.join("complete"));
    let wanted = packages.join(" ");
    if fs::read_to_string(&done).is_ok_and(|have| have == wanted) {
        return Ok(bin);
    }
    println!("installing {wanted} into {dir} ({size}, once)");
    run(
        &mut command("python3", ["-m", "venv", "--clear", dir.as_str()]),
        "install Python's venv (Debian: apt-get install python3-venv)",
    )?;
    let mut install = command(bin.join("python"), ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    run(install.args(packages), "check that the Python package index can be reached and the disk has 10 GB free")?;
    fs::write(&done, wanted).map_err(|e| Failure::new(format!("cannot write {done}"), e, "check the disk"))?;
    Ok(bin)
}
