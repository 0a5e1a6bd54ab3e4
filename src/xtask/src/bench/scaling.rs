//! Weak scaling on paper: estimates the 63 s stage on H100s from the formulas of `vidtui check` and the rates of one GPU.
//!
//! Bytes and operations come from the recipe, rates from the constants below. Those of one GPU were measured (docs/performance.md);
//! those between GPUs are assumed. So the column for this project is named *planned*. The table is written to `docs/scaling.md`.

use std::fmt::Write;
use std::fs;

use serde_json::Value;

use super::table::Row;
use crate::failure::{Failure, Result};
use crate::process::{command, not_started, shown};
use crate::workspace::{release_dir, root};

/// Dense bf16 operations per second of an H100 SXM (NVIDIA's data sheet).
const PEAK: f64 = 989e12;
/// The share of the peak that a block of CogVideoX-5B reached, forward and backward, with its norms and gates (H200, 2026-11-26).
const REACHED: f64 = 0.45;
/// Multiprocessors of an H100, and the share of a multiprocessor's peak that the CUDA kernel of TTT scans reached, forward and backward, with
/// 12 heads (H200, 2026-11-26).
const PROCESSORS: f64 = 132.0;
const REACHED_BY_SCAN: f64 = 0.2;
/// Bytes per second in each direction between GPUs of a node (NVLink 4: 450 GB/s) and between nodes (400 Gb/s per GPU),
/// times the 80 % that collectives reach.
const NVLINK: f64 = 0.8 * 450e9;
const NETWORK: f64 = 0.8 * 50e9;
const GPUS_OF_A_NODE: u64 = 8;

/// Forward passes that ttt-video-dit recomputes in this stage because its activation checkpoints are nested: group, block,
/// and attention or TTT layer; the MLP has one level less.
const UPSTREAM_AGAIN: f64 = 3.0;
const UPSTREAM_AGAIN_MLP: f64 = 2.0;
/// Traffic of one block of ttt-video-dit over a TP group in one pass, in sequences `[L, D]`: four inputs are broadcast, seven
/// results of column-parallel layers and the MLP are gathered, and two norms change the split axis.
const UPSTREAM_TP: fn(f64) -> f64 = |n| 4.0 + 7.0 * (n - 1.0) / n + 2.0 * (n - 1.0) / (n * n);

/// Seconds of a step on one GPU, by part.
#[derive(Debug, Clone, Copy)]
struct Seconds {
    dense: f64,
    scan: f64,
    gather: f64,
    reduce: f64,
    replicas: f64,
    tensor: f64,
    /// The part of `tensor` that overlaps with computation.
    hidden: f64,
}

impl Seconds {
    /// Returns the seconds of communication that do not overlap with computation: all-gathers, reduce-scatters and all-reduces over
    /// replicas overlap with the computation of other blocks, and exchanges of TP ranks partly with the layers beside them.
    fn exposed(&self) -> f64 {
        (self.gather + self.reduce + self.replicas - self.dense - self.scan).max(0.0) + self.tensor - self.hidden
    }

    fn step(&self) -> f64 {
        self.dense + self.scan + self.exposed()
    }
}

/// Computes and writes the table, and compares the step with that of ttt-video-dit.
pub fn rows() -> Result<Vec<Row>> {
    let stage = |replicas: u64| -> Result<Value> {
        costs(&[format!("mesh.dp_replicate={replicas}"), format!("train.global_batch={}", 4 * replicas)])
    };
    let here = stage(16)?;
    let (ours, theirs) = (ours(&here), upstreams(&here));
    let mut wider = Vec::new();
    for replicas in [1, 4, 16, 64] {
        let of = stage(replicas)?;
        wider.push((16 * replicas, self::ours(&of).step()));
    }
    let path = root().join("docs/scaling.md");
    let text = document(&here, &ours, &theirs, &wider);
    let written = fs::create_dir_all(root().join("docs")).and_then(|()| fs::write(&path, text));
    written.map_err(|e| Failure::new(format!("cannot write {path}"), e, "check the permissions"))?;
    println!("wrote {path}");
    Ok(vec![Row {
        what: "63 s stage on 256 H100s, on paper: step".into(),
        unit: "×",
        rounds: vec![ours.step() / theirs.step()],
        at_most: 1.0,
        note: format!("planned {:.1} s, ttt-video-dit {:.1} s", ours.step(), theirs.step()),
    }])
}

/// Returns the costs that `vidtui check` computes for the stage. Missing data and weights do not matter here.
fn costs(sets: &[String]) -> Result<Value> {
    let program = release_dir().join("vidtui");
    let mut check = command(program, ["check", "configs/ttt-mlp/63s.toml", "--json"]);
    check.current_dir(root());
    for set in sets {
        check.args(["--set", set]);
    }
    let out = check.output().map_err(|e| not_started(&check, &e))?;
    serde_json::from_slice(&out.stdout)
        .map_err(|e| Failure::new(format!("`{}` printed no costs", shown(&check)), e, "run it by hand"))
}

fn number(of: &Value, path: &str) -> f64 {
    of.pointer(path).and_then(Value::as_f64).unwrap_or(f64::NAN)
}

/// Returns the operations per sample of one part of a step.
fn part(of: &Value, name: &str) -> f64 {
    number(of, &format!("/step_flops_of_a_sample/{name}"))
}

/// Returns the seconds of the inner loop. Each head of a rank has its own multiprocessor, so more GPUs do not shorten it.
fn scan_seconds(of: &Value, flops: f64) -> f64 {
    flops / HEADS / (PEAK / PROCESSORS * REACHED_BY_SCAN) * (HEADS / number(of, "/mesh/tp") / PROCESSORS).max(1.0)
}

/// Attention heads and blocks of the model.
const HEADS: f64 = 48.0;
const BLOCKS: f64 = 42.0;

/// Returns the bytes of all tokens of a sample in bf16.
fn sequence_bytes(of: &Value) -> f64 {
    number(of, "/cost/seq_len") * HEADS * 64.0 * 2.0
}

fn ours(of: &Value) -> Seconds {
    let tp = number(of, "/mesh/tp");
    let split = ["attention", "projections", "ttt_projections", "mlp"].map(|name| part(of, name)).iter().sum::<f64>();
    let whole = part(of, "modulation") + part(of, "ends");
    let traffic = |name: &str| number(of, &format!("/cost/traffic/{name}"));
    // A shard group has dp_shard × tp ranks: two nodes in this stage.
    let shards = if number(of, "/mesh/dp_shard") * tp > GPUS_OF_A_NODE as f64 { NETWORK } else { NVLINK };
    Seconds {
        dense: (split / tp + whole) / (PEAK * REACHED),
        scan: scan_seconds(of, part(of, "ttt_scan")),
        gather: traffic("all_gather") / shards,
        reduce: traffic("reduce_scatter") / shards,
        replicas: traffic("all_reduce") / NETWORK,
        tensor: traffic("tensor_parallel") / NVLINK,
        hidden: hidden_seconds(of),
    }
}

/// Returns the seconds of an exchange of tokens that are hidden by `computation` seconds of the layers beside it: while one piece is on its
/// way, another is computed.
fn hidden_by(exchange: f64, computation: f64) -> f64 {
    (1.0 - 1.0 / PIECES) * exchange.min(computation)
}

/// Pieces of an exchange of tokens: the most that `train.tp_pieces` chooses, because a rank has half a GiB of tokens.
const PIECES: f64 = 4.0;

/// Returns the hidden seconds of all exchanges of tokens. Of eight in a block and pass, one gathers the tokens of attention, one reduces
/// them, two and two do so for TTT layers, and two for the MLP. Three of four projections follow a gather, and one precedes a reduction.
fn hidden_seconds(of: &Value) -> f64 {
    let tp = number(of, "/mesh/tp");
    // Forward, recomputation of all blocks but the last, and backward.
    let passes = 3.0 * BLOCKS - 1.0;
    let exchanges = 8.0 * passes * sequence_bytes(of) * (tp - 1.0) / tp / NVLINK;
    let layers = |name: &str| part(of, name) / tp / (PEAK * REACHED);
    let projections = |share: f64, name: &str| {
        hidden_by(share * exchanges, 0.75 * layers(name)) + hidden_by(share * exchanges, 0.25 * layers(name))
    };
    projections(0.125, "projections")
        + projections(0.25, "ttt_projections")
        + hidden_by(0.25 * exchanges, layers("mlp"))
}

/// Returns the seconds of the same stage in ttt-video-dit, counted from its code.
fn upstreams(of: &Value) -> Seconds {
    let tp = number(of, "/mesh/tp");
    // A step of this project costs one forward pass, 41/42 of one for recomputation, and two for gradients; the inner
    // loop costs one more.
    let again = 41.0 / 42.0;
    let once = |name: &str| part(of, name) / (3.0 + again);
    let shared = 21.0 * 18_008.0 / 351_168.0;
    let mixing = once("attention") + once("projections") * shared + once("ttt_projections");
    let dense = mixing * (3.0 + UPSTREAM_AGAIN) + once("mlp") * (3.0 + UPSTREAM_AGAIN_MLP);
    let scan = part(of, "ttt_scan") / (4.0 + again) * (4.0 + UPSTREAM_AGAIN);
    let passes = BLOCKS * (2.0 + UPSTREAM_AGAIN);
    let ours = ours(of);
    Seconds {
        dense: dense / tp / (PEAK * REACHED),
        scan: scan_seconds(of, scan),
        tensor: UPSTREAM_TP(tp) * passes * sequence_bytes(of) / NVLINK,
        hidden: 0.0,
        ..ours
    }
}

fn document(of: &Value, ours: &Seconds, theirs: &Seconds, wider: &[(u64, f64)]) -> String {
    let mut text = String::from(
        "# The 63 s stage on 256 H100s: an estimate\n\n\
         `cargo xtask bench scaling` writes this page from the formulas of `vidtui check configs/ttt-mlp:63s`. **The rates of one GPU were measured\n\
         ([performance.md](performance.md)); those between GPUs are assumed.** The column ttt-video-dit is counted from its code at the same rates.\n\n\
         | seconds per step | planned | ttt-video-dit | reason for the difference |\n|---|---:|---:|---|\n",
    );
    type Line = (&'static str, fn(&Seconds) -> f64, &'static str);
    let lines: [Line; 8] = [
        (
            "matrix products, attention",
            |s| s.dense,
            "each block is recomputed once, not in three nested levels; frames that segments share are projected once",
        ),
        (
            "inner loop of TTT layers",
            |s| s.scan,
            "recomputed less often; TP splits heads and not tokens, so the loop stays as long as the sequence",
        ),
        ("all-gather of blocks", |s| s.gather, "overlaps with the computation of the previous block"),
        ("reduce-scatter of gradients", |s| s.reduce, "overlaps with computation"),
        ("all-reduce over replicas", |s| s.replicas, "overlaps with the backward pass of earlier blocks"),
        (
            "tensor parallel",
            |s| s.tensor,
            "four gathers and four reduce-scatters per block and pass, in pieces that overlap with projections and MLPs",
        ),
        ("not overlapped", Seconds::exposed, ""),
        ("**step**", Seconds::step, ""),
    ];
    for (name, seconds, why) in lines {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "| {name} | {:.2} | {:.2} | {why} |", seconds(ours), seconds(theirs));
    }
    let mesh = |axis: &str| number(of, &format!("/mesh/{axis}"));
    let gib = |path: &str| number(of, path) / f64::from(1 << 30);
    let _ = write!(
        text,
        "\nMesh: dp_replicate {} × dp_shard {} × tp {}, one sample per TP group. In a step, a rank sends {:.1} GiB of all-gather, {:.1} of reduce-scatter, \
         {:.1} of\nall-reduce and {:.0} of tensor parallel; all ranks together compute {:.0} PFLOP.\n\n\
         ## More GPUs and a batch in proportion\n\n| GPUs | batch | step, s | efficiency |\n|---:|---:|---:|---:|\n",
        mesh("dp_replicate"),
        mesh("dp_shard"),
        mesh("tp"),
        gib("/cost/traffic/all_gather"),
        gib("/cost/traffic/reduce_scatter"),
        gib("/cost/traffic/all_reduce"),
        gib("/cost/traffic/tensor_parallel"),
        number(of, "/cost/step_flops") / 1e15,
    );
    let first = wider.first().map_or(f64::NAN, |(_, step)| *step);
    for (gpus, step) in wider {
        let _ = writeln!(text, "| {gpus} | {} | {step:.2} | {:.1} % |", gpus / 4, 100.0 * first / step);
    }
    text += &basis(of);
    let _ = write!(
        text,
        "\n## Assumptions\n\n\
         * Dense bf16 peaks at {:.0} TFLOP/s. A block of CogVideoX-5B, with its norms and gates, reached {:.0} % of it on one GPU. The CUDA kernel of\n  \
         TTT scans reached {:.0} % of one of {PROCESSORS:.0} multiprocessors, one for each head.\n\
         * {:.0} GB/s in each direction between GPUs of a node and {:.0} GB/s between nodes, {:.0} % of the links' rates. A node has {GPUS_OF_A_NODE} GPUs: a TP group is\n  \
         within one node, a shard group spans two.\n\
         * All-gathers, reduce-scatters and all-reduces over replicas overlap as far as there is computation. TP ranks exchange tokens in {PIECES}\n  \
         pieces; the first of a gather and the last of a reduce-scatter do not overlap, the others as far as the projections and MLPs beside\n  \
         them take as long.\n\
         * ttt-video-dit: {UPSTREAM_AGAIN} more forward passes of attention and TTT layers and {UPSTREAM_AGAIN_MLP} of MLPs, and {:.1} sequences sent per block and pass\n  \
         over a TP group of 4. Its device synchronization after every kernel call is not counted.\n\
         * Not counted: the norms and learning rates of TTT layers, which took a fifth of the time of a layer at 3 s, the optimizer, data,\n  \
         checkpoints.\n",
        PEAK / 1e12,
        100.0 * REACHED,
        100.0 * REACHED_BY_SCAN,
        NVLINK / 1e9,
        NETWORK / 1e9,
        80.0,
        UPSTREAM_TP(4.0),
    );
    text
}

/// A quantity that the estimate depends on.
struct Basis {
    quantity: &'static str,
    /// The measured value, and where it was measured.
    measured: &'static str,
    /// The value that the formulas give for the stage.
    computed: fn(&Value) -> String,
    assumed: &'static str,
    proof: Proof,
}

/// What proves a measured quantity, or would replace an assumed one.
enum Proof {
    /// A test: its file and its name.
    Test(&'static str, &'static str),
    /// A command of `cargo xtask gpu-report`, by its title.
    Report(&'static str),
    /// The trace of a run on the nodes in question.
    Runs(&'static str),
}

/// The `computed` of a quantity that has no formula.
fn none(_: &Value) -> String {
    String::new()
}

/// The quantities of the estimate, for the current code.
const BASIS: [Basis; 15] = [
    Basis {
        quantity: "bytes that a rank sends",
        measured: "on CPUs, exactly the formula on four meshes",
        computed: |of| {
            let gib = |name| number(of, &format!("/cost/traffic/{name}")) / f64::from(1 << 30);
            let all = ["all_gather", "reduce_scatter", "all_reduce", "tensor_parallel"].map(gib).iter().sum::<f64>();
            format!("{all:.0} GiB")
        },
        assumed: "",
        proof: Proof::Test("src/trainer/src/tests/collective_traffic.rs", "a_step_sends_exactly_the_forecast_bytes"),
    },
    Basis {
        quantity: "operations of a step",
        measured: "",
        computed: |of| format!("{:.0} PFLOP", number(of, "/cost/step_flops") / 1e15),
        assumed: "",
        proof: Proof::Test(
            "src/recipe/tests/one_minute_video.rs",
            "flops_and_memory_match_the_known_numbers_of_the_reference",
        ),
    },
    Basis {
        quantity: "host synchronizations per step",
        measured: "one read, on CPUs with the same operators",
        computed: none,
        assumed: "",
        proof: Proof::Test("src/trainer/src/tests/waits.rs", "a_step_waits_only_at_named_places"),
    },
    Basis {
        quantity: "peak memory of tensors",
        measured: "on one GPU, one layer of the 3 s and 9 s stages: within 5 % of the plan",
        computed: |of| {
            let part = |name| number(of, &format!("/cost/memory/{name}"));
            let lasting: f64 = ["weights", "gradients", "optimizer", "ema", "batches"].map(part).iter().sum();
            let backward: f64 = ["kept", "gathered", "accumulated", "scan_states", "workspace"].map(part).iter().sum();
            format!("{:.1} GiB", (lasting + backward.max(part("update"))) / f64::from(1 << 30))
        },
        assumed: "",
        proof: Proof::Report("a layer of the 9 s stage, memory against the plan"),
    },
    Basis {
        quantity: "memory besides tensors",
        measured: "",
        computed: none,
        assumed: "context, NCCL, cuBLAS, 3 % slack",
        proof: Proof::Report("a layer of the 9 s stage, memory against the plan"),
    },
    Basis {
        quantity: "rate of matrix products and attention",
        measured: "on one H200, a 5B block: 45 % of the peak",
        computed: none,
        assumed: "the same at TP 4",
        proof: Proof::Report("a layer of the 9 s stage, tensor parallel"),
    },
    Basis {
        quantity: "numbers of the CUDA kernel of TTT scans",
        measured: "on an H100 and an H200, those of the CPU within bf16",
        computed: none,
        assumed: "",
        proof: Proof::Report("the CUDA kernels against the CPU"),
    },
    Basis {
        quantity: "rate of the CUDA kernel of TTT scans",
        measured: "on one H200, 12 heads: 20 % of a multiprocessor",
        computed: none,
        assumed: "",
        proof: Proof::Report("scans against the peak"),
    },
    Basis {
        quantity: "clusters of blocks in TTT scans",
        measured: "",
        computed: none,
        assumed: "no faster than single blocks",
        proof: Proof::Report("scans against the peak"),
    },
    Basis {
        quantity: "rate between GPUs of a node",
        measured: "",
        computed: none,
        assumed: "80 % of NVLink 4",
        proof: Proof::Report("collectives by size"),
    },
    Basis {
        quantity: "rate between nodes",
        measured: "",
        computed: none,
        assumed: "80 % of 400 Gb/s",
        proof: Proof::Runs("`reduce_s` of a run on two nodes"),
    },
    Basis {
        quantity: "overlap of gathers and reductions",
        measured: "on CPUs, they are in flight while a block computes",
        computed: none,
        assumed: "complete on a GPU",
        proof: Proof::Report("a profile"),
    },
    Basis {
        quantity: "overlap of exchanges of TP ranks",
        measured: "on CPUs, starts, products and waits run in the order that allows it, forward and backward",
        computed: none,
        assumed: "the rates of both stay the same beside each other",
        proof: Proof::Report("the same, tokens exchanged at once"),
    },
    Basis {
        quantity: "bits of noise",
        measured: "on CPUs with and without AVX2",
        computed: none,
        assumed: "on GPUs",
        proof: Proof::Report("the CUDA kernels against the CPU"),
    },
    Basis {
        quantity: "data",
        measured: "on CPUs, a batch is read during the step before",
        computed: none,
        assumed: "takes no time of a step",
        proof: Proof::Report("a layer of the 3 s stage, memory against the plan"),
    },
];

/// Returns the table of the quantities.
fn basis(of: &Value) -> String {
    let mut text = String::from(
        "\n## What is measured, computed and assumed\n\n\
         For what the code does today. The last column is the test that proves a row, or the command of `cargo xtask gpu-report` that would replace its\n\
         assumption.\n\n\
         | quantity | measured | computed | assumed | proved or replaced by |\n|---|---|---|---|---|\n",
    );
    for Basis { quantity, measured, computed, assumed, proof } in &BASIS {
        let proof = match proof {
            Proof::Test(file, name) => format!("test `{name}` in {file}"),
            Proof::Report(title) => format!("report: {title}"),
            Proof::Runs(what) => (*what).to_owned(),
        };
        let _ = writeln!(text, "| {quantity} | {measured} | {} | {assumed} | {proof} |", computed(of));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_quantity_has_a_test_or_a_command_of_the_report_that_exists() {
        let titles = crate::gpu_report::titles();
        for Basis { quantity, measured, assumed, proof, .. } in &BASIS {
            match proof {
                Proof::Test(file, name) => {
                    let text = fs::read_to_string(root().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
                    assert!(text.contains(&format!("#[test]\nfn {name}(")), "{file} has no test {name}");
                    assert!(assumed.is_empty(), "{quantity}");
                }
                Proof::Report(title) => {
                    assert!(titles.contains(title), "{quantity}: no command {title:?} in {titles:?}")
                }
                Proof::Runs(_) => assert!(measured.is_empty() && !assumed.is_empty(), "{quantity}"),
            }
        }
    }

    #[test]
    fn the_page_has_the_rows_of_the_program() {
        let page = fs::read_to_string(root().join("docs/scaling.md")).unwrap();
        for Basis { quantity, measured, assumed, .. } in &BASIS {
            let row = page.lines().find(|line| line.starts_with(&format!("| {quantity} |")));
            assert!(row.is_some_and(|row| row.contains(measured) && row.contains(assumed)), "{quantity}: {row:?}");
        }
    }

    #[test]
    fn communication_that_exceeds_computation_or_cannot_overlap_is_exposed() {
        let light =
            Seconds { dense: 3.0, scan: 1.0, gather: 2.0, reduce: 1.0, replicas: 0.5, tensor: 0.5, hidden: 0.25 };
        assert_eq!((light.exposed(), light.step()), (0.25, 4.25));
        // Three of four pieces overlap with computation.
        assert_eq!([hidden_by(4.0, 9.0), hidden_by(4.0, 2.0)], [3.0, 1.5]);
        let heavy = Seconds { gather: 5.0, ..light };
        assert_eq!(heavy.exposed(), 2.75);
    }
}
