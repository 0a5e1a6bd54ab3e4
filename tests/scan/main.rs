//! Runs the CUDA kernels of the TTT scan on a CPU and compares them with plain loops over doubles.
//!
//! `src/kernels/cuda/on_cpu` is the program: an emulator of the CUDA instructions that the kernels use, a race checker, and the
//! reference. These tests compile it with g++, so they need neither a GPU, nor CUDA, nor libtorch.

#![expect(clippy::unwrap_used, reason = "a panic shows the failing line")]

mod mutants;
mod recorded;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use tempfile::TempDir;

/// The exit statuses of the program.
const AGREES: i32 = 0;
const NUMBERS_DIFFER: i32 = 1;
const THREADS_RACE: i32 = 2;
const STOPPED: i32 = 3;

/// Head widths that the kernels are compiled for.
const WIDTHS: [usize; 4] = [16, 32, 48, 64];

fn cuda() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels/cuda").canonicalize().unwrap()
}

fn compile<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Output {
    Command::new("g++").arg("-std=c++17").args(args).output().expect("g++ starts")
}

fn compiled<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) {
    let out = compile(args);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// Compiles the parts that do not contain kernels, once.
fn parts() -> &'static [PathBuf] {
    static PARTS: OnceLock<(TempDir, Vec<PathBuf>)> = OnceLock::new();
    let (_, parts) = PARTS.get_or_init(|| {
        let dir = TempDir::new().unwrap();
        let part = |name: &str| {
            let object = dir.path().join(name).with_extension("o");
            let source = cuda().join("on_cpu").join(name).with_extension("cpp");
            compiled([OsStr::new("-O2"), "-c".as_ref(), source.as_ref(), "-o".as_ref(), object.as_ref()]);
            object
        };
        let parts = ["reference", "races", "check"].map(part).to_vec();
        (dir, parts)
    });
    parts
}

/// Compiles the program with the kernels in the folder `kernels`.
fn program(dir: &Path, kernels: &Path, width: usize) -> PathBuf {
    let (program, object) = (dir.join("check"), dir.join("kernels.o"));
    let on_cpu = cuda().join("on_cpu");
    let include = |path: &Path| format!("-I{}", path.display());
    // The race checker takes the place of the sanitizer's library, so linking does not name the sanitizer.
    compiled([
        "-O1",
        "-fsanitize=thread",
        "-fno-strict-aliasing",
        "-Wno-unknown-pragmas",
        &format!("-DWIDTH={width}"),
        &include(&on_cpu),
        &include(kernels),
        "-c",
        on_cpu.join("kernels.cpp").to_str().unwrap(),
        "-o",
        object.to_str().unwrap(),
    ]);
    compiled(parts().iter().chain([&object]).map(|p| p.as_os_str()).chain(["-o".as_ref(), program.as_os_str()]));
    program
}

/// Compiles the program with the project's kernels, once per width.
fn whole(width: usize) -> &'static Path {
    static PROGRAMS: [OnceLock<(TempDir, PathBuf)>; WIDTHS.len()] = [const { OnceLock::new() }; WIDTHS.len()];
    let index = WIDTHS.iter().position(|w| *w == width).expect("kernels of this width");
    let (_, path) = PROGRAMS[index].get_or_init(|| {
        let dir = TempDir::new().unwrap();
        let path = program(dir.path(), &cuda(), width);
        (dir, path)
    });
    path
}

/// Sizes of a run: tokens of a mini-batch, mini-batches, mini-batches between saved states, groups in a chunk of the
/// backward pass, and the seed of the order of threads.
type Sizes = [u32; 5];

fn run(program: &Path, kind: &str, sizes: Sizes) -> (i32, String) {
    let out = Command::new(program).args(["kernels", kind]).args(sizes.map(|n| n.to_string())).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
    (out.status.code().unwrap_or(STOPPED), text.into_owned())
}

fn agrees(width: usize, runs: &[Sizes]) {
    for kind in ["mlp", "linear"] {
        for sizes in runs {
            let (status, text) = run(whole(width), kind, *sizes);
            assert_eq!(status, AGREES, "{kind}, width {width}, {sizes:?}:\n{text}");
        }
    }
}

#[test]
fn the_gradients_of_the_reference_are_its_finite_differences() {
    // The reference does not depend on the width.
    let out = Command::new(whole(16)).arg("differences").output().unwrap();
    assert_eq!(out.status.code(), Some(AGREES), "{}", String::from_utf8_lossy(&out.stdout));
}

#[test]
fn kernels_of_width_16_agree_with_the_reference_in_every_order_of_threads() {
    let shapes =
        [[16, 1, 1, 1, 0], [16, 5, 2, 3, 1], [32, 4, 4, 1, 2], [48, 5, 3, 1, 3], [64, 6, 1, 4, 4], [32, 7, 2, 2, 5]];
    agrees(16, &shapes);
}

#[test]
fn kernels_of_width_32_agree_with_the_reference() {
    agrees(32, &[[16, 3, 2, 1, 0], [64, 3, 1, 2, 1]]);
}

#[test]
fn kernels_of_width_48_agree_with_the_reference() {
    agrees(48, &[[32, 3, 2, 1, 1]]);
}

#[test]
fn kernels_of_width_64_agree_with_the_reference_and_fit_in_the_shared_memory_of_an_a100() {
    agrees(64, &[[64, 2, 1, 1, 1]]);
    let out = Command::new(whole(64)).args(["shared", "64"]).output().unwrap();
    let bytes: usize = String::from_utf8(out.stdout).unwrap().trim().parse().unwrap();
    assert!(bytes <= 163 * 1024, "{bytes} bytes");
}
