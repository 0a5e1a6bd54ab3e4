//! Breaks the kernels on purpose: the comparison or the race checker must find every broken barrier, wait and index.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::{AGREES, NUMBERS_DIFFER, STOPPED, THREADS_RACE, cuda, program, run, whole};

/// Files with kernels.
const FILES: [&str; 3] = ["ttt_forward.h", "ttt_backward.h", "ttt_tiles.h"];

/// Statements that are removed, one place at a time.
const SYNCHRONISATION: [&str; 4] =
    ["__syncthreads();", "__syncwarp();", "gpu::copy_wait<0>();", "gpu::copy_wait<1>();"];

/// Texts that are replaced, each in one file: file, text, replacement.
const WRONG: [(&str, &str, &str); 24] = [
    ("ttt_tiles.h", "column + lane / 16 * 8", "column + lane / 8 % 2 * 8"),
    ("ttt_tiles.h", "row + lane % 8 + lane / 16 * 8", "row + lane % 16"),
    ("ttt_tiles.h", "gpu::mma(z[2 * n], a, b[0], b[1]);", "gpu::mma(z[2 * n], a, b[1], b[0]);"),
    ("ttt_tiles.h", "gpu::mma(w[m][2 * n + 1], a[m], b[2], b[3]);", "gpu::mma(w[m][2 * n + 1], a[m], b[0], b[1]);"),
    ("ttt_tiles.h", "const int i = j % 2 * 2;", "const int i = 0;"),
    ("ttt_tiles.h", "gpu::load_transposed(a[m], along", "gpu::load_matrices(a[m], along"),
    ("ttt_tiles.h", "unit + j * 8, k * 16, lane", "unit, k * 16, lane"),
    ("ttt_tiles.h", "v += __shfl_xor_sync(~0u, v, 8);", ";"),
    ("ttt_sizes.h", "P = F + 8", "P = F + 4"),
    ("ttt_tiles.h", "3 * kLinear * kCubic", "2 * kLinear * kCubic"),
    ("ttt_forward.h", "-s.eta[r] * inverse[h]", "s.eta[r] * inverse[h]"),
    ("ttt_forward.h", "inner_bias[j][i] += sum_of_column(sums[j][i]);", ";"),
    ("ttt_forward.h", "for (int i = l.thread; i < tokens / 4;", "for (int i = l.thread; i < tokens / 8;"),
    ("ttt_forward.h", "return s.k + batch % 2 * tokens * P;", "return s.k;"),
    ("ttt_forward.h", "u[j][2 * h] * low(curve)", "u[j][2 * h] * high(curve)"),
    ("ttt_forward.h", "v = (d[n][i] - mean - v * projection) * inverse[h];", "v = (d[n][i] - mean) * inverse[h];"),
    ("ttt_forward.h", "add_update<S>(inner, a, k, tile * 16, l.lane);", "add_update<S>(inner, a, k, 0, l.lane);"),
    ("ttt_backward.h", "const float dsigma = eta * -deta * inverse;", "const float dsigma = 0;"),
    ("ttt_backward.h", "each_inner_bias([&](float& d, int u) { d += sums[u]; });", ";"),
    ("ttt_backward.h", "add_update<S>(outer, a, s.g, tile * 16, l.lane);", ";"),
    ("ttt_backward.h", "+ low(curve), d1", ", d1"),
    ("ttt_backward.h", "const bool starts = chunk", "const bool starts = true || chunk"),
    ("ttt_backward.h", "(product ? layout.inner : layout.dinner)", "layout.dinner"),
    ("ttt_backward.h", "packed_at(j / 2, 2 * k + 1, j % 2)", "packed_at(j / 2, 2 * k, j % 2)"),
];

struct Mutant {
    file: &'static str,
    what: String,
    text: String,
}

fn mutants() -> Vec<Mutant> {
    let read = |file: &str| fs::read_to_string(cuda().join(file)).unwrap();
    let mut all = Vec::new();
    for file in FILES {
        let text = read(file);
        for statement in SYNCHRONISATION {
            for (at, _) in text.match_indices(statement) {
                let line = text[..at].lines().count();
                let text = format!("{};{}", &text[..at], &text[at + statement.len()..]);
                all.push(Mutant { file, what: format!("{file}:{line} without {statement}"), text });
            }
        }
    }
    for (file, right, wrong) in WRONG {
        let text = read(file);
        assert!(text.contains(right), "{file} does not contain {right:?}");
        all.push(Mutant { file, what: format!("{file}: {wrong} for {right}"), text: text.replacen(right, wrong, 1) });
    }
    all
}

/// Compiles and runs the broken kernels; returns why they were found, or `None`.
fn found(mutant: &Mutant) -> Option<&'static str> {
    let dir = TempDir::new().unwrap();
    for file in FILES.into_iter().chain(["ttt_sizes.h", "gpu.h"]) {
        fs::copy(cuda().join(file), dir.path().join(file)).unwrap();
    }
    fs::write(dir.path().join(mutant.file), &mutant.text).unwrap();
    failure(&program(dir.path(), dir.path(), 32), &mutant.what)
}

/// Runs a program in three orders of threads; returns why it fails.
fn failure(program: &Path, what: &str) -> Option<&'static str> {
    for kind in ["mlp", "linear"] {
        for seed in 0..3 {
            match run(program, kind, [32, 5, 2, 1, seed]).0 {
                AGREES => {}
                NUMBERS_DIFFER => return Some("numbers differ"),
                THREADS_RACE => return Some("threads race"),
                STOPPED => return Some("the emulator stopped the kernel"),
                status => panic!("{what}: exit status {status}"),
            }
        }
    }
    None
}

fn all_found(mutants: impl Iterator<Item = Mutant>) {
    assert_eq!(failure(whole(32), "the kernels as they are"), None, "the kernels as they are fail");
    let mut missed = Vec::new();
    for mutant in mutants {
        let why = found(&mutant);
        println!("{}: {}", mutant.what, why.unwrap_or("not found"));
        if why.is_none() {
            missed.push(mutant.what);
        }
    }
    assert!(missed.is_empty(), "not found:\n{}", missed.join("\n"));
}

#[test]
fn two_broken_kernels_are_found() {
    let all = mutants();
    let (barrier, index) = (3, all.len() - 1);
    let sample = all.into_iter().enumerate().filter(|(i, _)| [barrier, index].contains(i));
    all_found(sample.map(|(_, mutant)| mutant));
}

#[test]
#[ignore = "compiles fifty programs: five minutes; `cargo test -p xtask --test scan -- --ignored` after a change of the kernels"]
fn every_broken_barrier_wait_and_index_is_found() {
    all_found(mutants().into_iter());
}
