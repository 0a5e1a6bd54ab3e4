//! Tests that the host waits for the device only at named places of a step.

use crate::families::cogvideox;
use crate::parallelize::unit_tables;
use crate::requests::SaveStopRequests;
use crate::step::Step;
use crate::tests::support::{Rank, on_ranks, plan, random_batch, recipe};
use c10d::waits::{Counting, Place, Wait};
use dit::objective::VPrediction;
use recipe::Recipe;
use sharding::mesh::MeshGroups;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

const SIZES: [&str; 8] = [
    "model.num_layers=3",
    "model.head_dim=16",
    "model.time_embed_dim=16",
    "model.text_dim=8",
    "train.threads=1",
    "train.global_batch=4",
    "optimizer.warmup_steps=0",
    // The files must be on a disk, and /tmp may be a tmpfs.
    concat!("memory.folder=", env!("CARGO_MANIFEST_DIR")),
];

const STEPS: u64 = 3;

/// Returns the waits of the steps after the first one, which also computes tensors that later steps of the shape reuse.
fn waits(recipe: &Recipe, groups: MeshGroups) -> Vec<Wait> {
    let (network, objective) = (cogvideox(recipe), VPrediction::new(&recipe.model, &recipe.loss));
    let mut rank = Rank::new(recipe, unit_tables(recipe), network.family(), groups);
    let step = Step { recipe, network: &network, objective: &objective, seed: 3 };
    let mut train = |steps| rank.train(&step, steps, |_, samples| random_batch(samples, &[3, 16, 8, 8], &[16, 8]));
    train(0..1);
    let counting = Counting::begin().unwrap();
    train(1..1 + STEPS);
    counting.end().unwrap()
}

/// Asserts that the host reads the loss and the norm once a step, the norm of weights once a logged step, and sums of the optimizer
/// `sums` times a step.
fn assert_waits(mesh: [usize; 3], sets: &[&str], sums: u64) {
    let recipe = recipe(mesh, &[&SIZES[..], &["log.interval=2"], sets].concat());
    let of_ranks = match recipe.mesh.world() {
        1 => vec![waits(&recipe, MeshGroups::alone())],
        _ => on_ranks(recipe.mesh, |groups| waits(&recipe, groups)),
    };
    // Steps 2, 3 and 4, of which 2 and 4 are logged.
    let wanted = [(Place::LossAndNorm, STEPS), (Place::WeightNorm, 2), (Place::OptimizerSums, sums * STEPS)];
    for found in of_ranks {
        let by_place: BTreeMap<Option<Place>, u64> = found.iter().map(|wait| (wait.place, wait.count)).collect();
        let wanted = wanted.into_iter().filter(|(_, count)| *count > 0).map(|(place, count)| (Some(place), count));
        assert_eq!(by_place, wanted.collect(), "{mesh:?} {sets:?}: {found:?}");
        assert!(found.iter().all(|wait| wait.call == "read"), "{found:?}");
    }
}

#[test]
fn a_step_waits_only_at_named_places() {
    let ttt = ["model.layer=ttt_mlp", "model.ttt_mini_batch=16"];
    assert_waits([1, 1, 1], &[], 0);
    assert_waits([1, 1, 1], &ttt, 0);
    assert_waits([1, 1, 1], &["train.dtype=bfloat16", "remat.keep_attention=false"], 0);
    assert_waits([1, 2, 1], &["train.grad_accum=2"], 0);
    assert_waits([2, 1, 1], &[], 0);
    assert_waits([1, 1, 2], &ttt, 0);
}

#[test]
fn each_optimizer_waits_at_most_once_more() {
    for (kind, sums) in [("adamw8bit", 0), ("adafactor", 1), ("prodigy", 1)] {
        assert_waits([1, 1, 1], &[&format!("optimizer.kind={kind}")], sums);
    }
}

#[test]
fn adapters_and_what_is_kept_outside_the_device_add_no_wait_on_the_cpu() {
    let lora = ["lora.rank=4", "train.trainable=lora", "lora.dropout=0.1"];
    let offload = ["memory.block_swap=3", "memory.optimizer_offload=true", "memory.activation_offload=true"];
    assert_waits([1, 1, 1], &lora, 0);
    assert_waits([1, 2, 1], &offload, 0);
    assert_waits([1, 1, 1], &[&lora[..], &offload, &["train.grad_accum=2"]].concat(), 0);
}

/// The number of calls in each file that copy to another device or read numbers, with the reason why a step has no unnamed wait there.
/// On the CPU such calls leave no trace, so this test counts them in the source.
const CALLS: [(&str, usize, &str); 17] = [
    ("dit/src/cogvideox.rs", 2, "once for each shape"),
    ("dit/src/diffusion.rs", 2, "at the start"),
    ("dit/src/cogvideox/segments.rs", 2, "once for each shape"),
    ("dit/src/mmdit.rs", 1, "once for each shape"),
    ("dit/src/stdit3.rs", 2, "once for each shape"),
    ("dit/src/wan.rs", 1, "once for each shape"),
    ("kernels/src/order.rs", 3, "once for each shape"),
    ("sharding/src/fsdp.rs", 2, "named"),
    ("trainer/src/adapter_files.rs", 1, "at the start"),
    ("trainer/src/conditions.rs", 1, "of tensors of the host"),
    ("trainer/src/data.rs", 1, "at the start"),
    ("trainer/src/decode.rs", 3, "for samples"),
    ("trainer/src/drift.rs", 3, "named"),
    ("trainer/src/ema.rs", 3, "at the start, named, and for samples"),
    ("trainer/src/encode.rs", 2, "in an encode"),
    ("trainer/src/exchange.rs", 1, "of tensors of the host"),
    ("trainer/src/optim/adafactor.rs", 3, "at the start"),
];

/// Returns the number of such calls in a file, without its tests.
fn calls(text: &str) -> usize {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let is_comment = |line: &&str| line.trim_start().starts_with("//");
    const NAMES: [&str; 4] = [".to_device(", "Vec::try_from(", ">::try_from(", ".copy_data"];
    let of = |line: &str| NAMES.iter().filter(|call| line.contains(*call)).count();
    code.lines().filter(|line| !is_comment(line)).map(of).sum()
}

#[test]
fn a_rank_is_not_busy_while_it_waits_for_a_slow_rank_of_any_axis() {
    let delay = Duration::from_millis(600);
    for mesh in [[1, 1, 2], [1, 2, 1], [2, 1, 1]] {
        let recipe = recipe(mesh, &SIZES);
        let outcomes = on_ranks(recipe.mesh, |groups| {
            let (network, objective) = (cogvideox(&recipe), VPrediction::new(&recipe.model, &recipe.loss));
            let mut rank = Rank::new(&recipe, unit_tables(&recipe), network.family(), groups);
            let step = Step { recipe: &recipe, network: &network, objective: &objective, seed: 3 };
            let is_slow = rank.fsdp.groups().world.rank() == 1;
            let plan = plan(&recipe, 0);
            let read = |places: Range<u64>| {
                if is_slow {
                    std::thread::sleep(delay);
                }
                step.noised(random_batch(places.clone(), &[3, 16, 8, 8], &[16, 8]), plan.numbers(), places.start)
            };
            let requests = SaveStopRequests::default();
            step.run_on(&mut rank.fsdp, &mut rank.moments, 0, &plan, requests, read).unwrap()
        });
        let (busy, whole) = (&outcomes[0].busy_s_by_rank, &outcomes[0].step_s_by_rank);
        assert!(busy[1] >= delay.as_secs_f64(), "{mesh:?}: {busy:?} of {whole:?}");
        // Half of the delay, because the first rank may be slow to start.
        assert!(busy[0] < whole[0] - delay.as_secs_f64() / 2.0, "{mesh:?}: {busy:?} of {whole:?}");
    }
}

#[test]
fn the_code_of_a_step_copies_and_reads_only_where_it_is_known() {
    let source = camino::Utf8Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let folders = ["dit/src", "dit/src/cogvideox", "sharding/src", "kernels/src", "trainer/src", "trainer/src/optim"];
    let mut found = BTreeMap::new();
    for folder in folders {
        for entry in source.join(folder).read_dir_utf8().unwrap() {
            let path = entry.unwrap().into_path();
            if path.extension() == Some("rs") && path.file_stem() != Some("tests") {
                let count = calls(&std::fs::read_to_string(&path).unwrap());
                found.insert(path.strip_prefix(source).unwrap().to_string(), count);
            }
        }
    }
    found.retain(|_, count| *count > 0);
    let known: BTreeMap<String, usize> = CALLS.iter().map(|(path, count, _)| ((*path).to_owned(), *count)).collect();
    assert_eq!(
        found, known,
        "name the place with `c10d::waits`, or add the call to the list with the reason why a step does not wait"
    );
}
