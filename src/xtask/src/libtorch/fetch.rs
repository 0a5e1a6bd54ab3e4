//! Downloads and unpacks libtorch.

use std::env::consts::ARCH;
use std::fs::{self, File};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};

use super::{VERSION, missing_part};
use crate::failure::{Failure, Result};
use crate::process::{command, not_started, output, works};
use crate::progress::Progress;

/// A platform for which PyTorch has wheels, and the bytes of all [`WHEELS`].
struct Platform {
    arch: &'static str,
    bytes: u64,
}

const PLATFORMS: [Platform; 2] =
    [Platform { arch: "x86_64", bytes: 543_563_779 }, Platform { arch: "aarch64", bytes: 432_290_065 }];

/// PyTorch and the two CUDA libraries that its `libtorch_cpu.so` is linked with.
const WHEELS: [&str; 3] = ["torch==2.11.0", "nvidia-cuda-runtime==13.0.96", "nvidia-cuda-cupti==13.0.85"];

/// Any Python version that has wheels works, because only files are taken from them.
const FOR_PYTHON: [&str; 6] = ["--implementation", "cp", "--python-version", "3.11", "--abi", "cp311"];

const TRY_AGAIN: &str =
    "check the network (pip's own settings apply: PIP_INDEX_URL, proxies), or set LIBTORCH to a libtorch 2.11.0";

/// Downloads, unpacks and links libtorch next to `folder`, then renames the result, so that `folder` is complete or absent.
///
/// The caller has checked Python and holds the lock. Existing files are from an interrupted download.
pub fn fetch(folder: &Utf8Path) -> Result<()> {
    let Some(platform) = PLATFORMS.iter().find(|p| p.arch == ARCH) else {
        let why = format!("PyTorch {VERSION} has no wheel for {ARCH}");
        return Err(Failure::new("cannot get libtorch", why, "build libtorch from source and set LIBTORCH"));
    };
    println!("libtorch {VERSION} for the CPU: fetching {} MB, once, into {folder}", platform.bytes / 1_000_000);
    let part = Utf8PathBuf::from(format!("{folder}.part"));
    let fetched = assemble(&part, platform).and_then(|whole| {
        let moved = clear(folder).and_then(|()| fs::rename(&whole, folder));
        moved.map_err(|e| Failure::new(format!("cannot move {whole} to {folder}"), e, "check the folder's permissions"))
    });
    // Files that remain are removed before the next download.
    let _ = clear(&part);
    fetched
}

/// Downloads and unpacks into `part`; returns the complete folder in it.
fn assemble(part: &Utf8Path, platform: &Platform) -> Result<Utf8PathBuf> {
    let disk = |e| Failure::new(format!("cannot write {part}"), e, "it needs 1.1 GB; make room or set XDG_CACHE_HOME");
    clear(part).and_then(|()| fs::create_dir_all(part.join("tmp"))).map_err(disk)?;
    let wheels = download(part, platform)?;
    println!("  unpacking");
    let whole = part.join("unpacked");
    fs::create_dir_all(whole.join("lib")).map_err(disk)?;
    let mut python = command("python3", ["-c", include_str!("unpack.py"), whole.as_str()]);
    output(python.args(&wheels), "make room on the disk (1.1 GB) and try again")?;
    link_libtorch(&whole.join("lib"))?;
    fs::write(whole.join("build-version"), format!("{VERSION}\n")).map_err(disk)?;
    match missing_part(&whole) {
        None => Ok(whole),
        Some(missing) => {
            let why = format!("{} do not contain it", WHEELS.join(", "));
            Err(Failure::new(format!("cannot unpack {missing}"), why, TRY_AGAIN))
        }
    }
}

/// Downloads the wheels with pip, which uses the user's index, proxy and certificates; returns their paths.
fn download(part: &Utf8Path, platform: &Platform) -> Result<Vec<Utf8PathBuf>> {
    let (wheels, log) = (part.join("wheels"), part.join("pip.log"));
    let io = |path: &Utf8Path, e| Failure::new(format!("cannot write {path}"), e, "make room on the disk");
    let log_file = File::create(&log).map_err(|e| io(&log, e))?;
    let also = log_file.try_clone().map_err(|e| io(&log, e))?;

    let mut pip = pip(part)?;
    pip.args(["download", "--quiet", "--no-deps", "--no-cache-dir", "--only-binary=:all:"]).args(FOR_PYTHON);
    for manylinux in ["manylinux_2_28", "manylinux_2_25", "manylinux_2_17", "manylinux2014"] {
        pip.arg("--platform").arg(format!("{manylinux}_{}", platform.arch));
    }
    pip.args(["--dest", wheels.as_str()]).args(WHEELS).env("TMPDIR", part.join("tmp"));
    pip.env("PIP_DISABLE_PIP_VERSION_CHECK", "1").stdin(Stdio::null()).stdout(log_file).stderr(also);
    let mut child = pip.spawn().map_err(|e| not_started(&pip, &e))?;
    let mut progress = Progress::new("downloading", "MB", platform.bytes / 1_000_000);
    let status = loop {
        if let Some(status) = child.try_wait().map_err(|e| not_started(&pip, &e))? {
            break status;
        }
        progress.show((size(&part.join("tmp")) + size(&wheels)) / 1_000_000, "");
        sleep(Duration::from_millis(250));
    };
    if status.success() {
        progress.show(platform.bytes / 1_000_000, "");
    }
    progress.stop();
    if !status.success() {
        let printed = fs::read_to_string(&log).unwrap_or_default();
        let end: Vec<&str> = printed.lines().rev().take(10).collect();
        let why = end.into_iter().rev().collect::<Vec<_>>().join("\n");
        return Err(Failure::new("pip cannot download PyTorch's wheel", why, TRY_AGAIN));
    }
    let listed = wheels.read_dir_utf8().and_then(|d| d.map(|e| Ok(e?.into_path())).collect());
    listed.map_err(|e| io(&wheels, e))
}

/// Returns the installed pip, or one in a temporary environment.
fn pip(part: &Utf8Path) -> Result<Command> {
    if works("python3", &["-m", "pip", "--version"]) {
        return Ok(command("python3", ["-m", "pip"]));
    }
    let venv = part.join("venv");
    output(
        &mut command("python3", ["-m", "venv", venv.as_str()]),
        "install pip (Debian: apt-get install python3-pip)",
    )?;
    Ok(command(venv.join("bin/python"), ["-m", "pip"]))
}

/// Links an empty `libtorch.so` that needs only `libtorch_cpu.so`. The `libtorch.so` of the wheel also needs CUDA.
fn link_libtorch(lib: &Utf8Path) -> Result<()> {
    let to = lib.join("libtorch.so");
    let mut cc = command("cc", ["-shared", "-o", to.as_str(), "-Wl,-soname,libtorch.so", "-Wl,--no-as-needed"]);
    // The loader finds the libraries in the same folder; their own dependencies are resolved when a program is linked.
    cc.args(["-Wl,-rpath,$ORIGIN", "-Wl,--allow-shlib-undefined", "-L", lib.as_str(), "-l:libtorch_cpu.so"]);
    output(&mut cc, "install a C compiler (Debian: apt-get install g++)").map(drop)
}

fn clear(path: &Utf8Path) -> std::io::Result<()> {
    if path.exists() { fs::remove_dir_all(path) } else { Ok(()) }
}

/// Returns the bytes of all files in a folder, without files that are removed meanwhile.
fn size(folder: &Utf8Path) -> u64 {
    let entries = folder.read_dir_utf8().into_iter().flatten().flatten();
    let sizes = entries.map(|e| match e.metadata() {
        Ok(m) if m.is_dir() => size(e.path()),
        Ok(m) => m.len(),
        Err(_) => 0,
    });
    sizes.sum()
}
