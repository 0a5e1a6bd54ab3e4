//! Weak scaling on paper: the 63 s stage on H100s, from the formulas of `vidtui check` and assumed rates.
//!
//! Nothing is measured here. The bytes and operations are the recipe's, the rates are the constants below, and the table is
//! written to `docs/scaling.md`, so that whoever changes a formula or doubts a rate can make it again.

use std::fmt::Write;
use std::fs;

use serde_json::Value;

use super::table::Row;
use crate::failure::{Failure, Result};
use crate::process::{command, not_started, shown};
use crate::workspace::{release_dir, root};

/// Dense bf16 operations of an H100 SXM a second (NVIDIA's data sheet).
const PEAK: f64 = 989e12;
/// The share of it that large matrix products and attention reach.
const REACHED: f64 = 0.5;
/// Multiprocessors of an H100, and the share of one's peak that a TTT layer's small products reach.
const PROCESSORS: f64 = 132.0;
const REACHED_BY_SCAN: f64 = 0.3;
/// Bytes a second and direction between GPUs of a node (NVLink 4: 450 GB/s) and between nodes (400 Gb/s a GPU), of which
/// collectives reach a part.
const NVLINK: f64 = 0.8 * 450e9;
const NETWORK: f64 = 0.8 * 50e9;
const GPUS_OF_A_NODE: u64 = 8;

/// Forward passes that ttt-video-dit makes again with its nested checkpoints in this stage: of the group, the block, and
/// attention or TTT layer, which is one more than of the MLP.
const UPSTREAM_AGAIN: f64 = 3.0;
const UPSTREAM_AGAIN_MLP: f64 = 2.0;
/// What a block of upstream's sends over a TP group in one pass, in sequences `[L, D]`: four inputs are broadcast, seven
/// results of column-parallel layers and of the MLP are gathered, and two norms change the axis that is split.
const UPSTREAM_TP: fn(f64) -> f64 = |n| 4.0 + 7.0 * (n - 1.0) / n + 2.0 * (n - 1.0) / (n * n);

/// Seconds of a step on one GPU.
#[derive(Debug, Clone, Copy)]
struct Seconds {
    dense: f64,
    scan: f64,
    gather: f64,
    reduce: f64,
    replicas: f64,
    tensor: f64,
}

impl Seconds {
    /// What is not hidden: gathers and scattered sums run beside a block's work, sums over replicas after the last block,
    /// and TP ranks wait for each other.
    fn exposed(&self) -> f64 {
        (self.gather + self.reduce - self.dense - self.scan).max(0.0) + self.replicas + self.tensor
    }

    fn step(&self) -> f64 {
        self.dense + self.scan + self.exposed()
    }
}

/// Works the table out, writes it, and compares the step with upstream's.
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
        note: format!("ours {:.1} s, upstream {:.1} s", ours.step(), theirs.step()),
    }])
}

/// What `vidtui check` says of the stage; that data and weights are missing does not matter here.
fn costs(sets: &[String]) -> Result<Value> {
    let program = release_dir().join("vidtui");
    let mut check = command(program, ["check", "configs/ttt-mlp/63s.toml", "--json"]);
    check.current_dir(root());
    for set in sets {
        check.args(["--set", set]);
    }
    let out = check.output().map_err(|e| not_started(&check, &e))?;
    serde_json::from_slice(&out.stdout)
        .map_err(|e| Failure::new(format!("`{}` gave no costs", shown(&check)), e, "run it by hand"))
}

fn number(of: &Value, path: &str) -> f64 {
    of.pointer(path).and_then(Value::as_f64).unwrap_or(f64::NAN)
}

/// Operations of one sample by part, of the whole step.
fn part(of: &Value, name: &str) -> f64 {
    number(of, &format!("/step_flops_of_a_sample/{name}"))
}

/// A walk is as long as its sequence whatever the number of GPUs: each of a rank's heads has a multiprocessor of its own.
fn scan_seconds(of: &Value, flops: f64) -> f64 {
    flops / HEADS / (PEAK / PROCESSORS * REACHED_BY_SCAN) * (HEADS / number(of, "/mesh/tp") / PROCESSORS).max(1.0)
}

/// Heads of the model.
const HEADS: f64 = 48.0;

fn ours(of: &Value) -> Seconds {
    let tp = number(of, "/mesh/tp");
    let split = ["attention", "projections", "ttt_projections", "mlp"].map(|name| part(of, name)).iter().sum::<f64>();
    let whole = part(of, "modulation") + part(of, "ends");
    let traffic = |name: &str| number(of, &format!("/cost/traffic/{name}"));
    // A shard group is dp_shard × tp ranks wide: here two nodes.
    let shards = if number(of, "/mesh/dp_shard") * tp > GPUS_OF_A_NODE as f64 { NETWORK } else { NVLINK };
    Seconds {
        dense: (split / tp + whole) / (PEAK * REACHED),
        scan: scan_seconds(of, part(of, "ttt_scan")),
        gather: traffic("all_gather") / shards,
        reduce: traffic("reduce_scatter") / shards,
        replicas: traffic("all_reduce") / NETWORK,
        tensor: traffic("tensor_parallel") / NVLINK,
    }
}

/// The same stage as ttt-video-dit computes it, counted from its code.
fn upstreams(of: &Value) -> Seconds {
    let tp = number(of, "/mesh/tp");
    // Ours per forward pass: once, nearly once again, and twice for gradients; the loop once more within its own.
    let again = 41.0 / 42.0;
    let once = |name: &str| part(of, name) / (3.0 + again);
    let shared = 21.0 * 18_008.0 / 351_168.0;
    let mixing = once("attention") + once("projections") * shared + once("ttt_projections");
    let dense = mixing * (3.0 + UPSTREAM_AGAIN) + once("mlp") * (3.0 + UPSTREAM_AGAIN_MLP);
    let scan = part(of, "ttt_scan") / (4.0 + again) * (4.0 + UPSTREAM_AGAIN);
    let sequence = number(of, "/cost/seq_len") * HEADS * 64.0 * 2.0;
    let passes = 42.0 * (2.0 + UPSTREAM_AGAIN);
    let ours = ours(of);
    Seconds {
        dense: dense / tp / (PEAK * REACHED),
        scan: scan_seconds(of, scan),
        tensor: UPSTREAM_TP(tp) * passes * sequence / NVLINK,
        // It sums over replicas block by block, beside the work.
        replicas: 0.0,
        ..ours
    }
}

fn document(of: &Value, ours: &Seconds, theirs: &Seconds, wider: &[(u64, f64)]) -> String {
    let mut text = String::from(
        "# The 63 s stage on 256 H100s, on paper\n\n\
         Made by `cargo xtask bench scaling` from the formulas of `vidtui check configs/ttt-mlp:63s` and assumed rates. **Nothing here was measured\n\
         on a GPU.** The column of ttt-video-dit is counted from its code under the same rates.\n\n\
         | seconds of a step | here | ttt-video-dit | because |\n|---|---:|---:|---|\n",
    );
    type Line = (&'static str, fn(&Seconds) -> f64, &'static str);
    let lines: [Line; 8] = [
        (
            "matrix products, attention",
            |s| s.dense,
            "blocks run again once, not in three nested levels; frames that segments share are projected once",
        ),
        (
            "inner loop of TTT layers",
            |s| s.scan,
            "walked again less often; as long as its sequence, since TP shares out heads, not tokens",
        ),
        ("all-gather of blocks", |s| s.gather, "hidden behind the work on the block before"),
        ("reduce-scatter of gradients", |s| s.reduce, "hidden likewise"),
        ("all-reduce over replicas", |s| s.replicas, "here after the last block; there block by block, hidden"),
        ("tensor parallel", |s| s.tensor, "four sums a block and pass, not broadcasts and gathers; ranks wait for it"),
        ("not hidden", Seconds::exposed, ""),
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
        "\nMesh: dp_replicate {} × dp_shard {} × tp {}, one sample to a TP group. A rank sends {:.1} GiB of all-gather, {:.1} of reduce-scatter, \
         {:.1} of\nall-reduce and {:.0} of tensor parallel a step; the step is {:.0} PFLOP over all ranks.\n\n\
         ## With more GPUs and a batch that grows with them\n\n| GPUs | batch | step, s | efficiency |\n|---:|---:|---:|---:|\n",
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
    let _ = write!(
        text,
        "\n## Assumed\n\n\
         * {:.0} TFLOP/s of dense bf16, of which large products and attention reach {:.0} %; the loop's small products reach {:.0} % of one of {PROCESSORS:.0}\n  \
         multiprocessors, one to each head.\n\
         * {:.0} GB/s each way between GPUs of a node and {:.0} GB/s between nodes, {:.0} % of what the links can; {GPUS_OF_A_NODE} GPUs to a node, so that a\n  \
         TP group is within one and a shard group over two.\n\
         * Gathers and scattered sums are hidden as far as there is work; sums over TP ranks and replicas are not.\n\
         * Of ttt-video-dit: {UPSTREAM_AGAIN} more forward passes of attention and TTT layers and {UPSTREAM_AGAIN_MLP} of MLPs, and {:.1} sequences sent a block and pass\n  \
         over a TP group of 4. Its synchronisation of the device after every kernel call is left out.\n\
         * Not counted: norms, rotations and other work that memory bounds; the optimizer; data; checkpoints.\n",
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_exceeds_the_work_and_what_nothing_hides_is_exposed() {
        let light = Seconds { dense: 3.0, scan: 1.0, gather: 2.0, reduce: 1.0, replicas: 0.5, tensor: 0.25 };
        assert_eq!((light.exposed(), light.step()), (0.75, 4.75));
        let heavy = Seconds { gather: 5.0, ..light };
        assert_eq!(heavy.exposed(), 2.75);
    }
}
