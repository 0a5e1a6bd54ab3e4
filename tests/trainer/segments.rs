//! Tests of the trainer in a later stage of long videos: TTT layers, two segments with a text each, several blocks.

use crate::harness::{RunUnderTest, Scene, assert_close, losses};
use rundir::StartFrom;

const SETS: [&str; 3] = ["train.steps=4", "train.global_batch=4", "optimizer.warmup_steps=1"];

fn trained(scene: &Scene, name: &str, mesh: &[usize], sets: &[&str]) -> RunUnderTest {
    scene.launch(name, mesh, &[&SETS[..], sets].concat()).finish()
}

#[test]
fn ttt_layers_over_segments_give_the_same_losses_on_every_mesh() {
    let scene = Scene::of_segments();
    let want = losses(&trained(&scene, "one", &[1, 1], &[]));
    assert!(want.windows(2).any(|w| w[0] != w[1]), "{want:?}");
    let meshes: [(&str, &[usize], &str); 5] = [
        ("shards", &[1, 2], "train.grad_accum=1"),
        ("copies", &[2, 2], "train.grad_accum=1"),
        ("parts", &[1, 2], "train.grad_accum=2"),
        ("tp", &[1, 1, 2], "train.grad_accum=1"),
        ("shards-tp", &[1, 2, 2], "train.grad_accum=1"),
    ];
    for (name, mesh, accumulation) in meshes {
        assert_close(&losses(&trained(&scene, name, mesh, &[accumulation])), &want, 1e-4, name);
    }
}

#[test]
fn ttt_layers_over_segments_resume_bit_for_bit() {
    let scene = Scene::of_segments();
    for mesh in [[1, 2, 1], [1, 1, 2]] {
        let name = mesh.map(|n| n.to_string()).join("x");
        let first = trained(&scene, &name, &mesh, &["checkpoint.interval=2"]);
        let (want, saved) = (losses(&first), crate::harness::tensors(&first.dir.step_dir(4)));
        let start = StartFrom::Checkpoint { run: first.id(), step: 2 };
        let again = first.attempt(&mesh, start, 2).finish();
        assert!(again.samples()[2..].iter().all(|sample| sample.attempt == 2));
        assert_eq!(losses(&again), want, "mesh {mesh:?}");
        assert!(crate::harness::tensors(&again.dir.step_dir(4)) == saved, "other tensors on mesh {mesh:?}");
    }
}

#[test]
fn ttt_layers_recomputed_in_groups_have_the_same_gradients() {
    let scene = Scene::of_segments();
    let want = losses(&trained(&scene, "one-by-one", &[1, 2], &[]));
    let plans: [(&str, &[&str]); 6] = [
        ("pairs", &["remat.group=2"]),
        ("threes", &["remat.group=3", "remat.keep_attention=false"]),
        ("scan", &["remat.scan_group=1"]),
        ("kept", &["remat.keep_scan=true"]),
        ("kept-alone", &["remat.keep_scan=true", "remat.keep_attention=false", "remat.group=2"]),
        ("not-at-all", &["remat.mode=none"]),
    ];
    for (name, plan) in plans {
        assert_eq!(losses(&trained(&scene, name, &[1, 2], plan)), want, "{name}");
    }
}

#[test]
fn ttt_layers_in_half_precision_have_losses_close_to_fp32() {
    let scene = Scene::of_segments();
    for (name, mesh) in [("shards", [1, 2, 1]), ("tp", [1, 1, 2])] {
        let run = |dtype: &str| {
            let set = format!("train.dtype={dtype}");
            losses(&trained(&scene, &format!("{name}-{dtype}"), &mesh, &[&set, "train.trainable=qkvo"]))
        };
        // A bfloat16 has eight significant bits: rounding changes a number by at most one part in 256.
        assert_close(&run("bfloat16"), &run("float32"), 0.02, name);
    }
}
