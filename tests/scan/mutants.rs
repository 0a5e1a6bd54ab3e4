//! Breaks the kernels on purpose: the comparison or the race checker must find every broken barrier, wait and index.

use std::path::Path;

use crate::emulated::{Breaks, Mutant, failure};
use crate::{arguments, program, whole};

const BREAKS: Breaks = Breaks {
    headers: &["ttt_forward.h", "ttt_backward.h", "ttt_tiles.h", "ttt_sizes.h", "bf16.h", "gpu.h"],
    kernels: &["ttt_forward.h", "ttt_backward.h", "ttt_tiles.h"],
    statements: &["__syncthreads();", "__syncwarp();", "gpu::copy_wait<0>();", "gpu::copy_wait<1>();"],
    wrong: &[
        ("ttt_tiles.h", "column + lane / 16 * 8", "column + lane / 8 % 2 * 8"),
        ("ttt_tiles.h", "row + lane % 8 + lane / 16 * 8", "row + lane % 16"),
        ("ttt_tiles.h", "gpu::mma(z[2 * n], a, b[0], b[1]);", "gpu::mma(z[2 * n], a, b[1], b[0]);"),
        ("ttt_tiles.h", "gpu::mma(w[m][2 * n + 1], a[m], b[2], b[3]);", "gpu::mma(w[m][2 * n + 1], a[m], b[0], b[1]);"),
        ("ttt_tiles.h", "const int i = j % 2 * 2;", "const int i = 0;"),
        ("ttt_tiles.h", "tile_of(tile, t, tiles) * 16", "tile * 16"),
        ("ttt_forward.h", "if (tile + t >= tiles) continue;", ""),
        ("ttt_tiles.h", "gpu::load_transposed(a[m], along", "gpu::load_matrices(a[m], along"),
        ("ttt_backward.h", "unit + j * 8, k * 16, l.lane", "unit, k * 16, l.lane"),
        ("ttt_tiles.h", "v += __shfl_xor_sync(~0u, v, 8);", ";"),
        ("ttt_sizes.h", "P = F + 8", "P = F + 4"),
        ("ttt_tiles.h", "3 * kLinear * kCubic", "2 * kLinear * kCubic"),
        ("ttt_forward.h", "-s.eta[r] * inverse[h]", "s.eta[r] * inverse[h]"),
        ("ttt_forward.h", "inner_bias[j][i] += sum_of_column(sums[j][i]);", ";"),
        ("ttt_forward.h", "for (int i = l.thread; i < tokens / 4;", "for (int i = l.thread; i < tokens / 8;"),
        ("ttt_forward.h", "return s.k + batch % 2 * tokens * P;", "return s.k;"),
        ("ttt_forward.h", "u0 * low(curve)", "u0 * high(curve)"),
        (
            "ttt_forward.h",
            "v = (d[h][n][i] - mean - v * projection) * inverse[h];",
            "v = (d[h][n][i] - mean) * inverse[h];",
        ),
        ("ttt_forward.h", "add_update<S>(inner, a, k, tile * 16, l.lane);", "add_update<S>(inner, a, k, 0, l.lane);"),
        ("ttt_backward.h", "dsigma = etas[h] * -detas[h][0] * inverses[h];", "dsigma = 0;"),
        ("ttt_backward.h", "each_inner_bias([&](float& d, int u) { d += sums[u]; });", ";"),
        ("ttt_backward.h", "add_update<S>(outer, a, s.g, tile * 16, l.lane);", ";"),
        ("ttt_backward.h", " + low(curve[j][h]);", ";"),
        ("ttt_backward.h", "const bool starts = chunk", "const bool starts = true || chunk"),
        ("ttt_backward.h", "(product ? layout.inner : layout.dinner)", "layout.dinner"),
        ("ttt_backward.h", "packed_at(j / 2, 2 * k + i % 2, i / 2)", "packed_at(j / 2, 2 * k, i / 2)"),
    ],
};

/// Code for two warps that share a tile of tokens, which only kernels of width 64 have.
const BREAKS_OF_PAIRS: Breaks = Breaks {
    statements: &["gpu::barrier(1 + own.tile, 64);"],
    wrong: &[
        ("ttt_tiles.h", "square += others[h][1] + apart * apart * (S::F / 4);", "square += others[h][1];"),
        ("ttt_tiles.h", "shift = apart / 2;", "shift = 0;"),
        ("ttt_tiles.h", "sums[h][i] += others[h][i];", ";"),
        ("ttt_tiles.h", "column(half * S::kOwnTiles * 8)", "column(0)"),
        ("ttt_forward.h", "(own.half * S::kOwnTiles + n) * 4", "n * 4"),
        ("ttt_forward.h", "own.tile * F + own.column, z, l);", "own.tile * F, z, l);"),
        ("ttt_backward.h", "own.half * S::kOwnTiles * 4 + 2 * h", "2 * h"),
        (
            "ttt_backward.h",
            "add_of_tile<S>(of_d, s.exchanged[2], own, l);",
            "add_of_tile<S>(of_d, s.exchanged[1], own, l);",
        ),
        ("ttt_backward.h", "own.tile * F + own.column, z, l);", "own.tile * F, z, l);"),
    ],
    ..BREAKS
};

/// Runs a program in three orders of threads; returns the reason of the first failure.
fn why(program: &Path, sizes: [u32; 4], what: &str) -> Option<&'static str> {
    let [tokens, batches, group, chunk] = sizes;
    let runs = ["mlp", "linear"]
        .into_iter()
        .flat_map(|kind| (0..3).map(move |seed| arguments(kind, [tokens, batches, group, chunk, seed])));
    failure(program, runs, what)
}

fn all_found_at(width: usize, sizes: [u32; 4], breaks: &Breaks, mutants: impl IntoIterator<Item = Mutant>) {
    assert_eq!(why(whole(width), sizes, "the kernels as they are"), None, "the kernels as they are fail");
    breaks.all_found(mutants, |kernels, what| why(&program(kernels, width), sizes, what));
}

fn all_found(mutants: impl IntoIterator<Item = Mutant>) {
    // Three tiles, so that the last of two that are computed together does not exist.
    all_found_at(32, [48, 5, 2, 1], &BREAKS, mutants);
}

#[test]
fn two_broken_kernels_are_found() {
    let all = BREAKS.mutants();
    let (barrier, index) = (3, all.len() - 1);
    all_found(all.into_iter().enumerate().filter(|(i, _)| [barrier, index].contains(i)).map(|(_, mutant)| mutant));
}

#[test]
#[ignore = "compiles sixty programs: seven minutes; `cargo test -p xtask --test scan -- --ignored` after a change of the kernels"]
fn every_broken_barrier_wait_and_index_is_found() {
    all_found(BREAKS.mutants());
    all_found_at(64, [32, 3, 2, 1], &BREAKS_OF_PAIRS, BREAKS_OF_PAIRS.mutants());
}
