//! Compares `configs/ttt-mlp` and `configs/ttt-linear` with the presets of ttt-video-dit and its published numbers.

use camino::Utf8PathBuf;
use recipe::{Curriculum, Flops, Layer, LrSchedule, RankMemory, Recipe, StageStart, Trainable};

fn curriculum(kind: &str) -> Curriculum {
    Curriculum::load(format!("../../configs/{kind}/curriculum.toml").as_str().into(), &[]).expect("a curriculum")
}

/// Name, segments, latent frames, text length, tokens; warm-up, steps; dp_replicate, dp_shard, tp, ranks.
type Row = (&'static str, [usize; 4], [u64; 2], [usize; 4]);

const STAGES: [Row; 5] = [
    ("3s", [1, 13, 498, 18_048], [100, 5000], [8, 8, 1, 64]),
    ("9s", [3, 37, 502, 51_456], [100, 5000], [8, 8, 1, 64]),
    ("18s", [6, 73, 471, 101_376], [50, 1000], [8, 8, 1, 64]),
    ("30s", [10, 121, 497, 168_320], [50, 1000], [16, 4, 2, 128]),
    ("63s", [21, 253, 458, 351_168], [25, 250], [16, 4, 4, 256]),
];

#[test]
fn every_stage_has_the_values_of_the_reference() {
    for kind in ["ttt-mlp", "ttt-linear"] {
        let stages = curriculum(kind).stages;
        assert_eq!(stages.len(), STAGES.len());
        for (at, (stage, (name, shape, steps, mesh))) in stages.iter().zip(STAGES).enumerate() {
            let linear = kind == "ttt-linear";
            let Recipe { model, train, optimizer, mesh: m, remat, checkpoint, .. } = &stage.resolved.recipe;
            let what = format!("{kind}:{name}");
            assert_eq!((stage.name.as_str(), stage.resolved.recipe.name.clone()), (name, format!("{kind}-{name}")));
            assert_eq!(
                [model.cogvideox().segments, model.latent_frames, model.text_len, model.seq_len()],
                shape,
                "{what}"
            );
            let steps = if linear && name == "30s" { [50, 500] } else { steps };
            assert_eq!([optimizer.warmup_steps, train.steps()], steps, "{what}");
            assert_eq!([m.dp_replicate, m.dp_shard, m.tp, m.world()], mesh, "{what}");
            assert_eq!(train.global_batch / m.data_ranks() / train.grad_accum, 1, "{what}");
            assert_eq!((train.global_batch, optimizer.clip_norm), (64, 0.1), "{what}");
            assert_eq!((optimizer.lr, optimizer.lr_end), (1e-5, 1e-5), "{what}");
            assert_eq!(optimizer.lr_ttt, if at == 0 { 1e-4 } else { 1e-5 }, "{what}");
            assert_eq!(
                (optimizer.schedule, optimizer.schedule_ttt),
                (LrSchedule::Linear, LrSchedule::Cosine),
                "{what}"
            );
            assert_eq!((optimizer.beta1, optimizer.beta2, optimizer.weight_decay), (0.9, 0.95, 1e-4), "{what}");
            let trainable = if at == 0 && !linear { Trainable::All } else { Trainable::Qkvo };
            assert_eq!(train.trainable, trainable, "{what}");
            let layer = if linear { (Layer::TttLinear, 16, 1.0) } else { (Layer::TttMlp, 64, 0.1) };
            assert_eq!(
                (model.cogvideox().layer, model.cogvideox().ttt_mini_batch, model.cogvideox().ttt_base_lr),
                layer,
                "{what}"
            );
            assert_eq!(remat.scan_group, if linear && at == 0 { 4 } else { 16 }, "{what}");
            let interval = match (name, linear) {
                ("30s", true) => 50,
                ("30s" | "63s", _) => 25,
                _ => 500,
            };
            assert_eq!(checkpoint.interval, interval, "{what}");
            let start = if at == 0 { format!("weights/cogvideox-5b-{kind}") } else { String::new() };
            match &stage.start {
                StageStart::Path(path) => assert!(at == 0 && path.as_str().ends_with(&start), "{what}: {path}"),
                other => assert!(at > 0 && *other == StageStart::Previous, "{what}: {other:?}"),
            }
        }
    }
}

#[test]
fn a_stage_file_sets_only_what_the_stage_changes() {
    for kind in ["ttt-mlp", "ttt-linear"] {
        for stage in &curriculum(kind).stages {
            let own: Vec<&str> = stage
                .resolved
                .origins
                .iter()
                .filter(|(_, origin)| origin.to_string().contains(&format!("/{}.toml:", stage.name)))
                .map(|(key, _)| key.as_str())
                .collect();
            assert!(own.len() <= 13, "{kind}:{}: {own:?}", stage.name);
            assert!(own.iter().all(|key| *key != "model.layer" && *key != "train.global_batch"), "{own:?}");
        }
    }
}

#[test]
fn parameter_counts_match_the_reference() {
    let counted = |kind: &str, at: usize| {
        let cost = curriculum(kind).stages[at].resolved.recipe.cost();
        (cost.params, cost.trainable)
    };
    assert_eq!(counted("ttt-mlp", 0), (7_230_178_848, 7_230_178_848));
    for at in 1..5 {
        assert_eq!(counted("ttt-mlp", at), (7_230_178_848, 3_245_869_536));
    }
    for at in 0..5 {
        assert_eq!(counted("ttt-linear", at), (7_171_860_000, 3_187_550_688));
    }
}

/// For a forward pass over one sample: TFLOP of one layer (attention, its projections, TTT projections in both directions,
/// the inner loop in both, the MLP), PFLOP of all layers, GiB of one residual stream, GiB of one direction's inner states.
const COSTS: [([f64; 5], f64, f64, f64); 5] = [
    ([4.0, 1.4, 2.7, 0.40, 2.7], 0.47, 0.10, 0.11),
    ([12.0, 4.1, 7.8, 1.1, 7.8], 1.38, 0.29, 0.30),
    ([23.9, 8.2, 15.3, 2.2, 15.3], 2.73, 0.58, 0.59),
    ([40.0, 13.6, 25.4, 3.7, 25.4], 4.54, 0.96, 0.98),
    ([83.7, 28.6, 53.0, 7.7, 53.0], 9.49, 2.01, 2.03),
];

/// Asserts equality up to the rounding of the known value, which is slightly more than half a unit of its last digit.
fn assert_near(ours: f64, known: f64, digit: f64, what: &str) {
    assert!((ours - known).abs() <= 0.55 * digit, "{what}: {ours}, expected {known}");
}

#[test]
fn flops_and_memory_match_the_known_numbers_of_the_reference() {
    for (stage, (layer, whole, stream, states)) in curriculum("ttt-mlp").stages.iter().zip(COSTS) {
        let recipe = &stage.resolved.recipe;
        let (flops, cost, layers) = (Flops::forward(&recipe.model), recipe.cost(), recipe.model.num_layers as f64);
        // The reference projects a frame that two segments share once for each of them.
        let shared =
            (recipe.model.cogvideox().segments * recipe.model.attention_len()) as f64 / recipe.model.seq_len() as f64;
        let reference = flops.projections * shared;
        let parts = [flops.attention, reference, flops.ttt_projections, flops.ttt_scan, flops.mlp];
        for (part, known) in parts.into_iter().zip(layer) {
            assert_near(part / layers / 1e12, known, 0.1, &stage.name);
        }
        assert_near((cost.forward_flops + reference - flops.projections) / 1e15, whole, 0.01, &stage.name);
        let gib = |bytes: f64| bytes / f64::from(1 << 30);
        let tp = recipe.mesh.tp as f64;
        // The longest stages shard the saved inputs of blocks over a TP group. The last stage offloads them to node memory.
        let mut inputs_alone = recipe.clone();
        (inputs_alone.remat.keep_attention, inputs_alone.remat.keep_scan) = (false, false);
        let memory = inputs_alone.cost().memory;
        let kept = if recipe.memory.activation_offload { memory.offloaded.activations } else { memory.kept };
        assert_near(gib(kept as f64 * tp / (layers - 1.0)), stream, 0.01, &stage.name);
        assert_near(gib(RankMemory::scan_states(recipe) as f64 * tp / 2.0), states, 0.01, &stage.name);
    }
}

#[test]
fn every_stage_leaves_6_gib_of_the_memory_of_an_h100() {
    for stage in ["ttt-mlp", "ttt-linear"].into_iter().flat_map(|kind| curriculum(kind).stages) {
        let recipe = &stage.resolved.recipe;
        assert!(recipe.train.device != recipe::Device::Cpu, "the plan is that of a GPU");
        let (peak, parts) = (recipe.peak_memory(), recipe.peak_parts());
        assert!(peak + (6 << 30) <= 81_559 << 20, "{} needs {peak}: {parts:?}", recipe.name);
    }
}

#[test]
fn every_63_s_preset_leaves_6_gib_of_80_gb_with_either_scan() {
    let mut found = Vec::new();
    for folder in std::fs::read_dir("../../configs").unwrap() {
        let path = Utf8PathBuf::from_path_buf(folder.unwrap().path().join("63s.toml")).unwrap();
        if !path.exists() {
            continue;
        }
        for scan in ["operators", "kernel"] {
            let recipe = recipe::load(&path, &[format!("train.ttt_scan={scan}")]).unwrap().recipe;
            let (peak, parts) = (recipe.peak_memory(), recipe.peak_parts());
            // 80e9 bytes: any card that is sold with 80 GB has at least as much memory.
            assert!(peak + (6 << 30) <= 80_000_000_000, "{path} with {scan} needs {peak}: {parts:?}");
        }
        found.push(path);
    }
    assert!(found.len() >= 2, "{found:?}");
}

#[test]
fn a_stage_keeps_the_results_of_attention_and_scans_if_they_fit() {
    for stage in ["ttt-mlp", "ttt-linear"].into_iter().flat_map(|kind| curriculum(kind).stages) {
        let recipe = &stage.resolved.recipe;
        let fits = |attention, scan| {
            let mut with = recipe.clone();
            (with.remat.keep_attention, with.remat.keep_scan) = (attention, scan);
            with.peak_memory() + (6 << 30) <= 81_559 << 20
        };
        let kept = (recipe.remat.keep_attention, recipe.remat.keep_scan);
        let most = [(true, true), (true, false)].into_iter().find(|&(attention, scan)| fits(attention, scan));
        assert_eq!(kept, most.unwrap_or((false, false)), "{}", recipe.name);
    }
}

#[test]
fn checkpoint_sizes_match_the_known_numbers() {
    let gb = |at: usize| curriculum("ttt-mlp").stages[at].resolved.recipe.cost().checkpoint_bytes as f64 / 1e9;
    assert_near(gb(0), 87.0, 1.0, "3s");
    // Frozen parameters are stored in bfloat16.
    assert_near(gb(4), 47.0, 1.0, "63s");
}
