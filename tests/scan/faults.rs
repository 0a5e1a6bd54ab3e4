//! Breaks the kernels on purpose: the comparison or the race checker must find every broken barrier, wait and index.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::emulated::{Faults, all_found, cuda, failure};
use crate::{arguments, program};

const FAULTS: Faults = Faults {
    headers: &["ttt_forward.h", "ttt_backward.h", "ttt_tiles.h", "ttt_sizes.h", "bf16.h", "gpu.h"],
    kernels: &["ttt_forward.h", "ttt_backward.h", "ttt_tiles.h"],
    removed: &[
        "__syncthreads();",
        "sync_blocks<S>();",
        "__syncwarp();",
        "gpu::copy_wait<0>();",
        "gpu::copy_wait<1>();",
    ],
    wrong: &[
        ("ttt_tiles.h", "pitch + column + «lane / 16 * 8|lane / 8 % 2 * 8»;"),
        ("ttt_tiles.h", "(row + «lane % 8 + lane / 16 * 8|lane % 16»)"),
        ("ttt_tiles.h", "«gpu::mma(z[2 * n], a, b[0], b[1]);|gpu::mma(z[2 * n], a, b[1], b[0]);»"),
        ("ttt_tiles.h", "«gpu::mma(w[m][2 * n + 1], a[m], b[2], b[3]);|gpu::mma(w[m][2 * n + 1], a[m], b[0], b[1]);»"),
        ("ttt_tiles.h", "const int i = «j % 2 * 2|0»;"),
        ("ttt_tiles.h", "S::P, «tile_of(tile, t, tiles) * 16|tile * 16»"),
        ("ttt_forward.h", "«if (tile + t >= tiles) continue;|»"),
        (
            "ttt_tiles.h",
            "«gpu::load_transposed(a[m], along(a_rows, pitch, row, unit + m * 16, lane));|\
             gpu::load_matrices(a[m], along(a_rows, pitch, row, unit + m * 16, lane));»",
        ),
        ("ttt_backward.h", "P, «unit + j * 8|unit», k * 16, l.lane"),
        ("ttt_tiles.h", "«v += __shfl_xor_sync(~0u, v, 8);|»"),
        ("ttt_tiles.h", "«3|2» * kLinear * kCubic"),
        ("ttt_forward.h", "scale = «-s.eta[r]|s.eta[r]» * inverse[h]"),
        ("ttt_forward.h", "«inner_bias[j][i] += sum_of_column(sums[j][i]);|»"),
        ("ttt_forward.h", "for (int i = l.thread; i < «tokens / 4|tokens / 8»;"),
        ("ttt_forward.h", "return s.k + «batch % 2 * tokens * P|0»;"),
        ("ttt_forward.h", "u0 * «low(curve)|high(curve)»"),
        ("ttt_forward.h", "v = (d[h][n][i] - mean - «v * projection|0») * inverse[h];"),
        ("ttt_forward.h", "add_update<S>(inner, a, k, «tile * 16|0», l.lane);"),
        ("ttt_backward.h", "dsigma = «etas[h] * -detas[h][0] * inverses[h]|0»;"),
        ("ttt_backward.h", "[&](float& d, int u) { d += «sums[u]|0»; });"),
        ("ttt_backward.h", "«add_update<S>(outer, a, s.g, tile * 16, l.lane);|»"),
        ("ttt_backward.h", "low(slope[j][h]) + «low(curve[j][h])|0»;"),
        ("ttt_backward.h", "const bool starts = «chunk.first_group + chunk.groups == groups|true»"),
        ("ttt_backward.h", "(kept + «(product ? layout.inner : layout.dinner)|layout.dinner»)"),
        ("ttt_backward.h", "packed_at(j / 2, 2 * k + «i % 2|0», i / 2)"),
    ],
};

/// Code for two warps that share a tile of tokens, which only kernels of width 64 have.
const FAULTS_OF_PAIRS: Faults = Faults {
    removed: &["gpu::barrier(1 + own.tile, 64);"],
    wrong: &[
        ("ttt_tiles.h", "square += others[h][1] + «apart * apart * (S::F / 4)|0»;"),
        ("ttt_tiles.h", "shift = «apart / 2|0»;"),
        ("ttt_tiles.h", "«sums[h][i] += others[h][i];|»"),
        ("ttt_tiles.h", "column(«half * S::kOwnTiles * 8|0»)"),
        ("ttt_forward.h", "(«own.half * S::kOwnTiles|0» + n) * 4"),
        ("ttt_forward.h", "own.tile * F + «own.column|0», z, l);"),
        ("ttt_backward.h", "«own.half * S::kOwnTiles * 4|0» + 2 * h"),
        ("ttt_backward.h", "add_of_tile<S>(of_d, s.exchanged[«2|1»], own, l);"),
        ("ttt_backward.h", "own.tile * F + «own.column|0», z, l);"),
    ],
    ..FAULTS
};

/// Code for blocks of a cluster that share a sequence.
const FAULTS_OF_CLUSTERS: Faults = Faults {
    removed: &["gpu::cluster_barrier();", "sync_blocks<S>();"],
    wrong: &[
        ("ttt_sizes.h", "first = «unit / 16 % kTiles|0»;"),
        ("ttt_tiles.h", "for (int block = «0|1»; block < S::kBlocks; ++block) gpu::store4_in_block(&at, block, v);"),
        ("ttt_tiles.h", "block(«tile % S::kBlocks|0»)"),
        ("ttt_tiles.h", "memory + ((((«own.tile / S::kBlocks|0») * S::kBlocks"),
        ("ttt_tiles.h", "gpu::store16_in_block(place(rank, n), «own.block|rank», sums);"),
        ("ttt_tiles.h", "gpu::load16(place(«(rank + i) % S::kBlocks|rank», n));"),
        ("ttt_forward.h", "layer_unit = «rank * S::kUnits + unit|unit»;"),
        (
            "ttt_forward.h",
            "z[n][i] = «normalizes ? s.outer_bias[column_at(n) + i % 2] : 0|s.outer_bias[column_at(n) + i % 2]»;",
        ),
        ("ttt_forward.h", "outer_layer(S::kMlp ? s.x : s.q, «s.query_sums|s.key_sums»);"),
        ("ttt_backward.h", "layer_unit = «rank * S::kUnits + unit|unit»;"),
        (
            "ttt_backward.h",
            "z[n][i] = «normalizes ? s.outer_bias[column_at(n) + i % 2] : 0|s.outer_bias[column_at(n) + i % 2]»;",
        ),
        ("ttt_backward.h", "fetch<S::kUnits, U>(s.x, PU, kept_x + «rank * S::kUnits|0», tokens"),
        ("ttt_backward.h", "word(kept_x + «rank * S::kUnits|0» + wide_at"),
        ("ttt_backward.h", "(kept + layout.dinner) + «rank * S::kUnits * F|0», F"),
        ("ttt_backward.h", "if (rank == 0 || «i / F % S::kBlocks|0» != rank) continue;"),
        ("ttt_backward.h", "gpu::store4_in_block(s.dbeta + i, 0, gpu::bits_of(«s.dbeta[i]|s.dgamma[i]»));"),
    ],
    ..FAULTS
};

/// Runs a program in three orders of threads; returns the reason of the first failure.
fn why(program: &Path, fault: usize, kinds: &[&str], sizes: [u32; 4]) -> Option<&'static str> {
    let [tokens, batches, group, chunk] = sizes;
    let runs =
        (0..3).flat_map(|seed| kinds.iter().map(move |kind| arguments(kind, [tokens, batches, group, chunk, seed])));
    failure(program, fault, runs)
}

const KINDS: [&str; 2] = ["linear", "mlp"];

/// Compiles kernels with faults; returns the program and the descriptions of the faults.
fn broken(faults: &Faults, width: usize, blocks: usize) -> (PathBuf, Vec<String>) {
    let dir = TempDir::new().unwrap();
    let described = faults.write(dir.path());
    (program(dir.path(), width, blocks), described)
}

/// Three tiles, so that the last of two that are computed together does not exist, and a group of two mini-batches and one of one.
const SIZES: [u32; 4] = [48, 3, 2, 1];

#[test]
#[ignore = "takes almost a minute; `cargo xtask ci` runs it"]
fn every_broken_barrier_wait_and_index_is_found() {
    let (program, faults) = broken(&FAULTS, 32, 1);
    all_found(&faults, |fault| why(&program, fault, &KINDS, SIZES));
}

#[test]
#[ignore = "takes half a minute; `cargo xtask ci` runs it"]
fn every_broken_exchange_between_two_warps_is_found() {
    let (program, faults) = broken(&FAULTS_OF_PAIRS, 64, 1);
    all_found(&faults, |fault| why(&program, fault, &KINDS, [32, 3, 2, 1]));
}

/// The first block has the first and the last of three tiles.
#[test]
#[ignore = "takes half a minute; `cargo xtask ci` runs it"]
fn every_broken_exchange_between_blocks_of_a_cluster_is_found() {
    let (program, faults) = broken(&FAULTS_OF_CLUSTERS, 32, 2);
    all_found(&faults, |fault| why(&program, fault, &["mlp"], SIZES));
}

/// The pitch of rows is a constant, so the fault has a program of its own.
#[test]
fn rows_whose_pitch_is_not_a_multiple_of_16_bytes_are_found() {
    let dir = TempDir::new().unwrap();
    FAULTS.write(dir.path());
    let sizes = dir.path().join("ttt_sizes.h");
    let text = fs::read_to_string(cuda().join("ttt_sizes.h")).unwrap();
    assert!(text.contains("P = F + 8"));
    fs::write(sizes, text.replacen("P = F + 8", "P = F + 4", 1)).unwrap();
    assert!(why(&program(dir.path(), 32, 1), 0, &KINDS, SIZES).is_some());
}
