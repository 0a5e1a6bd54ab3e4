//! Runs the CUDA kernels of the fused operators on a CPU and compares them with plain loops over doubles, and that of normal numbers, which
//! must have the bits of each counter.

#![expect(clippy::unwrap_used, reason = "a panic shows the failing line")]

#[path = "../emulated/mod.rs"]
mod emulated;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use emulated::{AGREES, Faults, Program, all_found, cuda, failure, run};
use tempfile::TempDir;

const PROGRAM: Program = Program { kernels: "fused_kernels", parts: &["reference", "races", "fused_check"] };

const NORMAL: Program = Program { kernels: "normal_check", parts: &["races"] };

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

const FAULTS: Faults = Faults {
    headers: &["fused.h", "fused_sizes.h", "bf16.h", "gpu.h"],
    kernels: &["fused.h"],
    removed: &["__syncthreads();"],
    wrong: &[
        ("fused.h", "for (int distance = «16|8»;"),
        ("fused.h", "gpu::pack(v[0], v[1]), «gpu::pack(v[2], v[3])|gpu::pack(v[4], v[5])», gpu::pack(v[4], v[5])"),
        ("fused.h", "v[2 * i] = «gpu::low(words[i])|gpu::high(words[i])»;"),
        ("fused.h", "«sample|0» * v.stride"),
        ("fused.h", "«index % rows.length >= rows.split|index % rows.length > rows.split»"),
        ("fused.h", "const int column = (p * 32 + lane) * kPiece<T>;\n    if («column < width|column <= width») f"),
        ("fused.h", "«if (!row.exists) return;|»"),
        ("fused.h", "sum_of_warp(square) / width + «in.eps|0»"),
        ("fused.h", "* («1|0» + scale[i]) + shift[i]"),
        ("fused.h", "d[p][i] *= «(1 + scale[i])|1» * gain[i];"),
        (
            "fused.h",
            "d[p][i] = «(d[p][i] - sum - (hat[i] - mean) * inverse * projection)|\
             (d[p][i] - (hat[i] - mean) * inverse * projection)|(d[p][i] - sum)» * inverse;",
        ),
        ("fused.h", "first ? «gate0|gate1» : gate1"),
        ("fused.h", "«v[i] += gate[i] * u[i];|v[i] = gate[i] * u[i];»"),
        ("fused.h", "rows.split + «(chunk - chunks.count[0])|chunk» * chunks.rows[1]"),
        ("fused.h", "const int end = «end_of_chunk < end_of_part ? end_of_chunk : end_of_part|end_of_chunk»;"),
        ("fused.h", "begin + warp; token < end; token += «kWarps|kWarps + 1»"),
        ("fused.h", "product[i] += dy[i] * «(h[i] - mean)|h[i]» * inverse;"),
        ("fused.h", "for (int w = «0|1»; w < kWarps; ++w) sum"),
        ("fused.h", "«if (own >= width) continue;|»"),
        ("fused.h", "chunks.of_sample() + «(part == 0 ? 0 : chunks.count[0])|0» + chunk"),
        ("fused.h", "gain * product + «bias * plain|0»"),
        ("fused.h", "+ column], «vector.stride == 0 ? total : grad|grad»);"),
        ("fused.h", "row % rows.length * head_width + «at % rows.width % head_width|at % rows.width»"),
        ("fused.h", "sine = «sign * f[k + 1]|f[k + 1]»"),
        ("fused.h", "load(f, «factors + i|factors»);"),
        ("fused.h", "for (int distance = «lanes / 2|lanes / 4»;"),
        ("fused.h", "sum_of_head(square, lanes) / in.width + «in.eps|0»"),
        ("fused.h", "rows.length * in.width + «at % in.width|0»"),
        ("fused.h", "«if (in.factors != nullptr) turn<T>(v, factors_of(rows, in, at), 1);|»"),
        ("fused.h", "turn<T>(d, factors_of(rows, in, at), «-1|1»)"),
        ("fused.h", "v[i] = v[i] * gain[i] + «bias[i]|0»;"),
        ("fused.h", "«begin + chunk < heads ? begin + chunk : heads|begin + chunk»"),
        ("fused.h", "first < end; first += «at_a_time|2 * at_a_time»"),
        ("fused.h", "d[i] = «(d[i] - sum - hat[i] * projection)|(d[i] - hat[i] * projection)|(d[i] - sum)» * inverse;"),
        (
            "fused.h",
            "«of_gain[i] += d[i] * hat[i];\n        d[i] *= gain[i];|d[i] *= gain[i]; of_gain[i] += d[i] * hat[i];»",
        ),
        ("fused.h", "for (int i = «0|1»; i < at_a_time; ++i) sum"),
        ("fused.h", "for (int block = «lane|lane + 1»;"),
        ("fused.h", "void* to = «at < width|at >= width» ? bias : gain;"),
        ("fused_sizes.h", "tokens = «part == 0|part == 1» ? all.split"),
    ],
};

/// Runs all operators on a shape with samples, parts and chunks, and on rows of several blocks of columns; returns the reason of
/// the first failure.
fn why(program: &Path, fault: usize) -> Option<&'static str> {
    let runs = [[2, 50, 19, 72, 3, 0, 1], [2, 19, 18, 328, 41, 1, 2], [2, 50, 19, 192, 3, 0, 3]]
        .into_iter()
        .flat_map(|sizes| operators(sizes).map(move |(operator, dtype)| arguments(operator, dtype, sizes)));
    failure(program, fault, runs)
}

#[test]
fn every_broken_barrier_and_index_is_found() {
    let dir = TempDir::new().unwrap();
    let faults = FAULTS.write(dir.path());
    let program = PROGRAM.compile(dir.path(), &[]);
    all_found(&faults, |fault| why(&program, fault));
}

#[test]
fn the_words_of_philox_are_those_of_its_authors() {
    // The known answers of philox4x32-10 in Random123.
    let words = "6627e8d5 e169c58d bc57ac4c 9b00dbd8\n408f276d 41c83b0e a20bc7c6 6d5451fd\n\
                 d16cfe09 94fdcceb 5001e420 24126ea1\n";
    assert_eq!(run(&NORMAL.compile(&cuda(), &[]), &["words".to_owned()]), (AGREES, words.to_owned()));
}

/// The same hash is recorded in `src/kernels/src/normal.rs`, for the code that uses the vectors of the CPU.
#[test]
fn normal_numbers_without_vectors_have_the_recorded_hash() {
    assert_eq!(run(&NORMAL.compile(&cuda(), &[]), &["hash".to_owned()]), (AGREES, "5538d43096e3404d\n".to_owned()));
}

/// Returns why normal numbers fail: of one thread, with a part of a counter, and of several blocks.
fn why_normal(program: &Path, fault: usize) -> Option<&'static str> {
    let counts = [1, 4, 6, 1023, 1024, 1025, 2311];
    let runs = counts
        .into_iter()
        .enumerate()
        .map(|(seed, count)| [u64::MAX - 5, count, seed as u64].into_iter().map(|number| number.to_string()).collect());
    failure(program, fault, runs)
}

#[test]
fn the_kernel_of_normal_numbers_writes_each_number_and_its_faults_are_found() {
    const FAULTS: Faults = Faults {
        headers: &["normal_kernel.h", "normal.h", "gpu.h"],
        kernels: &[],
        removed: &[],
        wrong: &[
            ("normal_kernel.h", "first = «4|2» * (int64_t(blockIdx.x)"),
            ("normal_kernel.h", "four(key, uint64_t(«first / 4|first»), v);"),
            ("normal_kernel.h", "if («first + 4 <= count|first < count») {"),
            ("normal_kernel.h", "bits(v[0]), «bits(v[1])|bits(v[0])»"),
            ("normal_kernel.h", "«first + i < count|i < 4»; ++i"),
        ],
    };
    let dir = TempDir::new().unwrap();
    let faults = FAULTS.write(dir.path());
    let program = NORMAL.compile(dir.path(), &[]);
    all_found(&faults, |fault| why_normal(&program, fault));
}
