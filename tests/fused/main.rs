//! Runs the CUDA kernels of the fused operators on a CPU and compares them with plain loops over doubles.

#![expect(clippy::unwrap_used, reason = "a panic shows the failing line")]

#[path = "../emulated/mod.rs"]
mod emulated;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use emulated::{AGREES, Breaks, Mutant, Program, cuda, failure, run};

const PROGRAM: Program = Program { kernels: "fused_kernels", parts: &["reference", "races", "fused_check"] };

/// Compiles the program with the project's kernels, once.
fn whole() -> &'static Path {
    static WHOLE: OnceLock<PathBuf> = OnceLock::new();
    WHOLE.get_or_init(|| PROGRAM.compile(&cuda(), &[]))
}

/// Sizes of a run: samples, tokens, tokens of the first part, width, heads, whether all samples have the same vectors, and the seed of
/// the order of threads.
type Sizes = [u32; 7];

fn arguments(operator: &str, dtype: &str, sizes: Sizes) -> Vec<String> {
    [operator, dtype].map(str::to_owned).into_iter().chain(sizes.map(|n| n.to_string())).collect()
}

const ALL: [(&str, &str); 8] = [
    ("norm", "bf16"),
    ("norm", "float"),
    ("heads", "bf16"),
    ("heads", "float"),
    ("gate", "bf16"),
    ("gate", "float"),
    ("rotation", "bf16"),
    ("rotation", "float"),
];

/// Head norms have kernels for heads of 1, 2, 4, … or 32 pieces of 16 bytes.
fn has_heads(dtype: &str, sizes: Sizes) -> bool {
    let pieces = sizes[3] / sizes[4] / if dtype == "bf16" { 8 } else { 4 };
    pieces.is_power_of_two() && pieces <= 32
}

/// Returns the operators and dtypes that have kernels for these sizes.
fn operators(sizes: Sizes) -> impl Iterator<Item = (&'static str, &'static str)> {
    ALL.into_iter().filter(move |(operator, dtype)| *operator != "heads" || has_heads(dtype, sizes))
}

fn agrees(sizes: Sizes) {
    for (operator, dtype) in operators(sizes) {
        let (status, text) = run(whole(), &arguments(operator, dtype, sizes));
        assert_eq!(status, AGREES, "{operator}, {dtype}, {sizes:?}:\n{text}");
    }
}

#[test]
fn the_gradients_of_the_reference_are_its_finite_differences() {
    let (status, text) = run(whole(), &["differences".to_owned()]);
    assert_eq!(status, AGREES, "{text}");
}

#[test]
fn kernels_agree_with_the_reference_for_one_part_one_token_and_several_chunks_of_tokens() {
    agrees([1, 1, 0, 8, 1, 0, 0]);
    agrees([2, 5, 5, 64, 2, 0, 1]);
    // 17 and 80 tokens are chunks of 16 and of one, and five of 16.
    agrees([2, 97, 17, 72, 3, 0, 2]);
    agrees([3, 97, 17, 72, 3, 1, 3]);
    // Several blocks of columns, and rows of more than 32 numbers in a lane.
    agrees([1, 9, 4, 1216, 19, 0, 4]);
    // Heads of 32 pieces, and more heads than a block computes.
    agrees([1, 3, 1, 256, 1, 0, 5]);
    agrees([2, 70, 9, 128, 2, 1, 6]);
    // The sums of more than 32 blocks.
    let sizes = [1, 545, 1, 256, 1, 0, 7];
    let (status, text) = run(whole(), &arguments("heads", "bf16", sizes));
    assert_eq!(status, AGREES, "{sizes:?}:\n{text}");
}

/// Twenty shapes and orders of threads, the same in every run.
#[test]
fn kernels_of_random_shapes_agree_with_the_reference() {
    let mut state = 17_u32;
    let mut draw = |from: u32, to: u32| {
        // Numerical Recipes' generator. Its low bits repeat early.
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        from + (state >> 8) % (to - from + 1)
    };
    for _ in 0..20 {
        let (samples, length, heads) = (draw(1, 3), draw(1, 70), draw(1, 5));
        let (split, width) = (draw(0, length), heads * 8 * draw(1, 9));
        agrees([samples, length, split, width, heads, draw(0, 1), draw(0, 99)]);
    }
}

const BREAKS: Breaks = Breaks {
    headers: &["fused.h", "fused_sizes.h", "bf16.h", "gpu.h"],
    kernels: &["fused.h"],
    statements: &["__syncthreads();"],
    wrong: &[
        ("fused.h", "for (int distance = 16;", "for (int distance = 8;"),
        ("fused.h", "gpu::pack(v[2], v[3]), gpu::pack(v[4], v[5])", "gpu::pack(v[4], v[5]), gpu::pack(v[2], v[3])"),
        ("fused.h", "v[2 * i] = gpu::low(words[i]);", "v[2 * i] = gpu::high(words[i]);"),
        ("fused.h", "sample * v.stride", "0 * v.stride"),
        ("fused.h", "index % rows.length >= rows.split", "index % rows.length > rows.split"),
        (
            "fused.h",
            "const int column = (p * 32 + lane) * kPiece<T>;\n    if (column < width) f",
            "const int column = (p * 32 + lane) * kPiece<T>;\n    if (column <= width) f",
        ),
        ("fused.h", "if (!row.exists) return;", ""),
        ("fused.h", "sum_of_warp(square) / width + in.eps", "sum_of_warp(square) / width"),
        ("fused.h", "* (1 + scale[i]) + shift[i]", "* scale[i] + shift[i]"),
        ("fused.h", "d[p][i] *= (1 + scale[i]) * gain[i];", "d[p][i] *= gain[i];"),
        (
            "fused.h",
            "(d[p][i] - sum - (hat[i] - mean) * inverse * projection) * inverse",
            "(d[p][i] - (hat[i] - mean) * inverse * projection) * inverse",
        ),
        ("fused.h", "(d[p][i] - sum - (hat[i] - mean) * inverse * projection) * inverse", "(d[p][i] - sum) * inverse"),
        ("fused.h", "load(gate, vector_of<T>(first ? gate0 : gate1", "load(gate, vector_of<T>(first ? gate1 : gate1"),
        ("fused.h", "v[i] += gate[i] * u[i];", "v[i] = gate[i] * u[i];"),
        ("fused.h", "rows.split + (chunk - chunks.count[0]) * chunks.rows[1]", "rows.split + chunk * chunks.rows[1]"),
        ("fused.h", "end_of_chunk < end_of_part ? end_of_chunk : end_of_part", "end_of_chunk"),
        ("fused.h", "begin + warp; token < end; token += kWarps", "begin + warp; token < end; token += kWarps + 1"),
        ("fused.h", "product[i] += dy[i] * (h[i] - mean) * inverse;", "product[i] += dy[i] * h[i] * inverse;"),
        ("fused.h", "for (int w = 0; w < kWarps; ++w) sum", "for (int w = 1; w < kWarps; ++w) sum"),
        ("fused.h", "if (own >= width) continue;", ""),
        ("fused.h", "(part == 0 ? 0 : chunks.count[0]) + chunk", "chunk"),
        ("fused.h", "gain * product + bias * plain", "gain * product"),
        (
            "fused.h",
            "put(static_cast<T*>(to)[(vector.stride == 0 ? 0 : int64_t(sample) * width) + column], vector.stride == 0 ? total : grad);",
            "put(static_cast<T*>(to)[(vector.stride == 0 ? 0 : int64_t(sample) * width) + column], grad);",
        ),
        (
            "fused.h",
            "row % rows.length * head_width + at % rows.width % head_width",
            "row % rows.length * head_width + at % rows.width",
        ),
        ("fused.h", "sine = sign * f[k + 1]", "sine = f[k + 1]"),
        ("fused.h", "load(f, factors + i);", "load(f, factors);"),
        ("fused.h", "for (int distance = lanes / 2;", "for (int distance = lanes / 4;"),
        ("fused.h", "sum_of_head(square, lanes) / in.width + in.eps", "sum_of_head(square, lanes) / in.width"),
        ("fused.h", "rows.length * in.width + at % in.width", "rows.length * in.width"),
        ("fused.h", "if (in.factors != nullptr) turn<T>(v, factors_of(rows, in, at), 1);", ""),
        ("fused.h", "turn<T>(d, factors_of(rows, in, at), -1)", "turn<T>(d, factors_of(rows, in, at), 1)"),
        ("fused.h", "v[i] = v[i] * gain[i] + bias[i];", "v[i] = v[i] * gain[i];"),
        ("fused.h", "begin + chunk < heads ? begin + chunk : heads", "begin + chunk"),
        ("fused.h", "first < end; first += at_a_time", "first < end; first += 2 * at_a_time"),
        ("fused.h", "(d[i] - sum - hat[i] * projection) * inverse", "(d[i] - hat[i] * projection) * inverse"),
        ("fused.h", "(d[i] - sum - hat[i] * projection) * inverse", "(d[i] - sum) * inverse"),
        (
            "fused.h",
            "of_gain[i] += d[i] * hat[i];\n        d[i] *= gain[i];",
            "d[i] *= gain[i];\n        of_gain[i] += d[i] * hat[i];",
        ),
        ("fused.h", "for (int i = 0; i < at_a_time; ++i) sum", "for (int i = 1; i < at_a_time; ++i) sum"),
        ("fused.h", "for (int block = lane;", "for (int block = lane + 1;"),
        ("fused.h", "void* to = at < width ? bias : gain;", "void* to = at < width ? gain : bias;"),
        ("fused_sizes.h", "tokens = part == 0 ? all.split", "tokens = part == 1 ? all.split"),
    ],
};

/// Runs all operators on a shape with samples, parts and chunks, and on rows of several blocks of columns; returns the reason of
/// the first failure.
fn why(program: &Path, what: &str) -> Option<&'static str> {
    let runs = [[2, 50, 19, 72, 3, 0, 1], [2, 19, 18, 328, 41, 1, 2], [2, 50, 19, 192, 3, 0, 3]]
        .into_iter()
        .flat_map(|sizes| operators(sizes).map(move |(operator, dtype)| arguments(operator, dtype, sizes)));
    failure(program, runs, what)
}

fn all_found(mutants: impl IntoIterator<Item = Mutant>) {
    assert_eq!(why(whole(), "the kernels as they are"), None, "the kernels as they are fail");
    BREAKS.all_found(mutants, |kernels, what| why(&PROGRAM.compile(kernels, &[]), what));
}

#[test]
fn a_missing_barrier_is_found() {
    all_found(BREAKS.mutants().into_iter().take(1));
}

#[test]
#[ignore = "compiles forty programs: two and a half minutes; `cargo test -p xtask --test fused -- --ignored` after a change of the kernels"]
fn every_broken_barrier_and_index_is_found() {
    all_found(BREAKS.mutants());
}
