//! Runs the CUDA kernels of the TTT scan on a CPU and compares them with plain loops over doubles.

#![expect(clippy::unwrap_used, reason = "a panic shows the failing line")]

#[path = "../emulated/mod.rs"]
mod emulated;
mod faults;
mod recorded;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use emulated::{AGREES, Program, compiled, cuda, include, run};
use tempfile::TempDir;

/// Head widths that the kernels are compiled for.
const WIDTHS: [usize; 4] = [16, 32, 48, 64];

const PROGRAM: Program = Program { kernels: "kernels", parts: &["reference", "races", "check"] };

/// Compiles the program with the kernels in the folder `kernels` for a width, and `blocks` blocks of a cluster for TTT-MLP.
fn program(kernels: &Path, width: usize, blocks: usize) -> PathBuf {
    PROGRAM.compile(kernels, &[format!("-DWIDTH={width}"), format!("-DBLOCKS={blocks}")])
}

/// Compiles the program with the project's kernels for single blocks, once per width.
fn whole(width: usize) -> &'static Path {
    static PROGRAMS: [OnceLock<PathBuf>; WIDTHS.len()] = [const { OnceLock::new() }; WIDTHS.len()];
    let index = WIDTHS.iter().position(|w| *w == width).expect("kernels of this width");
    PROGRAMS[index].get_or_init(|| program(&cuda(), width, 1))
}

/// Sizes of a run: tokens of a mini-batch, mini-batches, mini-batches between saved states, groups in a chunk of the
/// backward pass, and the seed of the order of threads.
type Sizes = [u32; 5];

fn arguments(kind: &str, sizes: Sizes) -> Vec<String> {
    ["kernels", kind].map(str::to_owned).into_iter().chain(sizes.map(|n| n.to_string())).collect()
}

fn agrees(width: usize, runs: &[Sizes]) {
    for kind in ["mlp", "linear"] {
        for sizes in runs {
            let (status, text) = run(whole(width), &arguments(kind, *sizes));
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
fn kernels_of_width_64_agree_with_the_reference() {
    agrees(64, &[[64, 2, 1, 1, 1]]);
}

/// Clusters of 2 and 4 blocks: with fewer tiles of tokens than blocks, as many, and more; with one warp per tile, and with two.
#[test]
fn kernels_of_clusters_agree_with_the_reference_in_every_order_of_threads() {
    let small = [[16, 3, 2, 1, 0], [32, 4, 2, 2, 1], [48, 5, 3, 1, 2], [64, 3, 1, 4, 3]];
    let runs: [(usize, usize, &[Sizes]); 4] =
        [(16, 2, &small), (16, 4, &small), (64, 2, &[[48, 2, 1, 1, 5]]), (64, 4, &[[64, 2, 1, 1, 4]])];
    for (width, blocks, shapes) in runs {
        let program = program(&cuda(), width, blocks);
        for sizes in shapes {
            let (status, text) = run(&program, &arguments("mlp", *sizes));
            assert_eq!(status, AGREES, "width {width}, clusters of {blocks}, {sizes:?}:\n{text}");
        }
    }
}

/// Twenty shapes and orders of threads, the same in every run.
#[test]
fn kernels_of_random_shapes_agree_with_the_reference() {
    let mut state = 16_u32;
    let mut draw = |from: u32, to: u32| {
        // Numerical Recipes' generator. Its low bits repeat early.
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        from + (state >> 8) % (to - from + 1)
    };
    for _ in 0..20 {
        let (width, tokens) = (16 * draw(1, 4), 16 * draw(1, 4));
        // The time of a run grows with the tokens and the square of the width.
        let batches = draw(1, (5 * 16 * 16 / (tokens * width)).max(1) * 2);
        let (group, chunk) = (draw(1, batches + 1), draw(1, batches + 1));
        agrees(width as usize, &[[tokens, batches, group, chunk, draw(0, 99)]]);
    }
}

/// The shared memory is set at a launch, so that nvcc does not report it. `UPDATE_KERNEL_RESOURCES=1` writes the lines of the file.
#[test]
fn the_shared_memory_of_each_kernel_is_recorded_and_fits_an_a100() {
    let dir = TempDir::new().unwrap();
    let program = dir.path().join("shared_memory");
    let source = cuda().join("on_cpu/shared_memory.cpp");
    let flags = ["-Wno-unknown-pragmas".to_owned(), include(&cuda()), include(&cuda().join("on_cpu"))];
    compiled(flags.iter().map(OsStr::new).chain([source.as_ref(), "-o".as_ref(), program.as_ref()]));
    let out = String::from_utf8(Command::new(program).output().unwrap().stdout).unwrap();
    let bytes = |line: &str| -> usize { line.split_whitespace().rev().nth(4).unwrap().parse().unwrap() };
    assert!(out.lines().all(|line| bytes(line) <= 163 * 1024), "{out}");

    let mut found: Vec<&str> = out.lines().collect();
    found.sort_unstable();
    let file = cuda().join("resources.txt");
    let text = fs::read_to_string(&file).unwrap();
    let (recorded, others): (Vec<&str>, Vec<&str>) =
        text.lines().partition(|line| line.contains("bytes of shared memory"));
    if std::env::var_os("UPDATE_KERNEL_RESOURCES").is_some() {
        let all: Vec<&str> = others.into_iter().chain(found).collect();
        return fs::write(&file, all.join("\n") + "\n").unwrap();
    }
    assert_eq!(found, recorded, "{}", file.display());
}
